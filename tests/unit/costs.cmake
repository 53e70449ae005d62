lamina_test(exactness_test SOURCES exactness_test.cpp LINKS lamina_harness)
