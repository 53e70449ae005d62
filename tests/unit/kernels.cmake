lamina_test(kernels_test SOURCES kernels_test.cpp LINKS lamina_kernels)
