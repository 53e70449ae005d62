lamina_test(result_test SOURCES result_test.cpp LINKS lamina_harness)
