lamina_test(cli_test SOURCES cli_test.cpp LINKS lamina_harness)
