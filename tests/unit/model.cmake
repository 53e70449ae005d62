lamina_test(model_golden_test SOURCES model_golden_test.cpp LINKS lamina_model)
target_compile_definitions(model_golden_test PRIVATE LAMINA_TEST_DATA_DIR="${CMAKE_CURRENT_LIST_DIR}/../golden")
