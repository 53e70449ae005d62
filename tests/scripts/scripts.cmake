lamina_register(scripts_test COMMAND bash "${CMAKE_CURRENT_LIST_DIR}/scripts_test.sh" LABELS slow)
