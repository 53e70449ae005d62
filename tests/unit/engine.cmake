lamina_test(equivalence_test SOURCES equivalence_test.cpp LINKS lamina_registry lamina_engine LABELS slow)
lamina_test(engine_test SOURCES engine_test.cpp LINKS lamina_registry lamina_engine LABELS threads)
lamina_test(memory_test SOURCES memory_test.cpp LINKS lamina_registry lamina_engine LABELS slow)
lamina_test(precision_test SOURCES precision_test.cpp LINKS lamina_registry lamina_engine LABELS threads)
