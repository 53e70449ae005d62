lamina_test(parallel_test SOURCES parallel_test.cpp LINKS lamina_model LABELS threads)
