lamina_test(statistics_test SOURCES statistics_test.cpp LINKS lamina_harness)
