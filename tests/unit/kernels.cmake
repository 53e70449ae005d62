lamina_test(kernels_test SOURCES kernels_test.cpp LINKS lamina_kernels)
lamina_test(sixteen_bits_test SOURCES sixteen_bits_test.cpp LINKS lamina_kernels)
