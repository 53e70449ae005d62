# Drawn with the same Python as the other figures' tests.
execute_process(COMMAND "${PROJECT_SOURCE_DIR}/scripts/python.sh"
  OUTPUT_VARIABLE LAMINA_PAPER_PYTHON OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
lamina_register(paper_plots_test COMMAND "${LAMINA_PAPER_PYTHON}" -B "${CMAKE_CURRENT_LIST_DIR}/paper_plots_test.py" -v
  LABELS slow)
set_tests_properties(paper_plots_test PROPERTIES FAIL_REGULAR_EXPRESSION "skipped=;Ran 0 tests")
