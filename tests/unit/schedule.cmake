add_library(schedule_test_support STATIC "${CMAKE_CURRENT_LIST_DIR}/toy_arithmetic.cpp")
target_link_libraries(schedule_test_support PUBLIC lamina_registry)
lamina_test(schedule_test SOURCES schedule_test.cpp LINKS schedule_test_support)
lamina_test(mutation_test SOURCES mutation_test.cpp LINKS schedule_test_support)
