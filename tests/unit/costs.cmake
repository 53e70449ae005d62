lamina_test(exactness_test SOURCES exactness_test.cpp LINKS lamina_harness LABELS slow)
lamina_test(exactness_data_test SOURCES exactness_data_test.cpp LINKS lamina_harness LABELS slow)
