lamina_test(comm_test SOURCES comm_test.cpp comm_checks.cpp LINKS lamina_comm LABELS threads)
    lamina_test(comm_link_test SOURCES comm_link_test.cpp LINKS lamina_comm LABELS slow)
        set_tests_properties(comm_link_test PROPERTIES RUN_SERIAL TRUE) #it measures time
