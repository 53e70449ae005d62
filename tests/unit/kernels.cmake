lamina_test(kernels_test SOURCES kernels_test.cpp LINKS lamina_kernels LABELS threads)
if(LAMINA_SANITIZE)
  # Every kernel by every launcher is a lot of code to instrument; unoptimised it takes a quarter of the time.
  target_compile_options(kernels_test PRIVATE -O0)
endif()
lamina_test(sixteen_bits_test SOURCES sixteen_bits_test.cpp LINKS lamina_kernels)
