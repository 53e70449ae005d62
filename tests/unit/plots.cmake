# The figures' tests run in the Python that the scripts draw with.
execute_process(COMMAND "${PROJECT_SOURCE_DIR}/scripts/python.sh"
  OUTPUT_VARIABLE LAMINA_PYTHON OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE LAMINA_PYTHON_STATUS)
if(NOT LAMINA_PYTHON_STATUS EQUAL 0)
  message(FATAL_ERROR "no suitable Python (see above); -DLAMINA_TESTS=OFF builds without the tests")
endif()
message(STATUS "Python for figures and their tests: ${LAMINA_PYTHON}")

lamina_register(plots_test COMMAND "${LAMINA_PYTHON}" -B "${CMAKE_CURRENT_LIST_DIR}/plots_test.py" -v LABELS slow)
set_tests_properties(plots_test PROPERTIES FAIL_REGULAR_EXPRESSION "skipped=;Ran 0 tests")
