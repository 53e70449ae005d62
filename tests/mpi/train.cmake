# Training over MPI processes: equal to training over threads and on one rank, and what ends a job.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(jobs ${Python3_EXECUTABLE} -B "${CMAKE_CURRENT_LIST_DIR}/jobs.py" --lamina $<TARGET_FILE:lamina>)

# Ranks that are threads.
foreach(case threads_fail threads_out_of_memory threads_kill)
  add_custom_target(job_${case})
  add_dependencies(job_${case} lamina)
  lamina_register(job_${case} COMMAND ${jobs} --mpiexec none ${case} LABELS slow)
  set_tests_properties(job_${case} PROPERTIES TIMEOUT 60)
endforeach()

if(LAMINA_WITH_MPI)
  include("${CMAKE_CURRENT_LIST_DIR}/register.cmake")
  add_executable(mpi_train_checks "${CMAKE_CURRENT_LIST_DIR}/train_checks.cpp")
  target_link_libraries(mpi_train_checks PRIVATE lamina_flags lamina_registry lamina_engine lamina_comm_mpi)

  # What a link is used for while ranks compute: a measurement, not a test.
  add_executable(mpi_overlap "${CMAKE_CURRENT_LIST_DIR}/overlap.cpp")
  target_link_libraries(mpi_overlap PRIVATE lamina_flags lamina_comm_mpi lamina_kernels lamina_model)

  set(launch ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none)
  foreach(ranks 1 2 3 5 8)
    lamina_mpi_register(mpi_train_${ranks}_ranks NEEDS mpi_train_checks
      COMMAND ${launch} -n ${ranks} $<TARGET_FILE:mpi_train_checks> ${ranks} 0)
  endforeach()
  # Nothing is buffered: the smallest eager limits that Open MPI takes (its headers), and synchronous sends.
  lamina_mpi_register(mpi_train_rendezvous NEEDS mpi_train_checks
    COMMAND ${launch} --mca pml ob1 --mca btl self,vader --mca btl_vader_eager_limit 56
            -n 8 $<TARGET_FILE:mpi_train_checks> 8 1)
  # Under the address sanitizer too. What the MPI library itself leaves behind is not looked at.
  set_tests_properties(mpi_train_rendezvous PROPERTIES LABELS mpi)
  if(LAMINA_SANITIZE)
    set_property(TEST mpi_train_rendezvous APPEND PROPERTY ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
  endif()
  lamina_mpi_register(mpi_train_rendezvous_tcp NEEDS mpi_train_checks
    COMMAND ${launch} --mca pml ob1 --mca btl self,tcp --mca btl_tcp_eager_limit 64 --mca btl_tcp_rndv_eager_limit 64
            -n 4 $<TARGET_FILE:mpi_train_checks> 4 1)

  # Scenarios by the program itself.
  foreach(case agreement refusals subgroup sleeping alone two_jobs wire collectives link link_kill fail out_of_memory exit kill stop)
    lamina_mpi_register(mpi_job_${case} NEEDS lamina
      COMMAND ${jobs} --mpiexec ${MPIEXEC_EXECUTABLE} --times 3 ${case})
  endforeach()

  # The network lab, where the system lets one be built.
  execute_process(COMMAND "${PROJECT_SOURCE_DIR}/scripts/netlab" check RESULT_VARIABLE no_lab ERROR_VARIABLE why
                  OUTPUT_QUIET ERROR_STRIP_TRAILING_WHITESPACE)
  if(no_lab)
    message(STATUS "no test of the network lab: ${why}")
  else()
    lamina_mpi_register(mpi_job_netlab NEEDS lamina
      COMMAND ${jobs} --mpiexec "${PROJECT_SOURCE_DIR}/scripts/netlab" netlab)
  endif()
endif()
