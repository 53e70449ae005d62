# Training over MPI processes: equal to training over threads and on one rank, and what ends a job.
if(LAMINA_WITH_MPI)
  include("${CMAKE_CURRENT_LIST_DIR}/register.cmake")
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_executable(mpi_train_checks "${CMAKE_CURRENT_LIST_DIR}/train_checks.cpp")
  target_link_libraries(mpi_train_checks PRIVATE lamina_flags lamina_registry lamina_engine lamina_comm_mpi)

  set(launch ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none)
  foreach(ranks 1 2 3 5 8)
    lamina_mpi_register(mpi_train_${ranks}_ranks
      COMMAND ${launch} -n ${ranks} $<TARGET_FILE:mpi_train_checks> ${ranks} 0)
  endforeach()
  # Nothing is buffered: the smallest eager limits that Open MPI takes (its headers), and synchronous sends.
  lamina_mpi_register(mpi_train_rendezvous
    COMMAND ${launch} --mca pml ob1 --mca btl self,vader --mca btl_vader_eager_limit 56
            -n 6 $<TARGET_FILE:mpi_train_checks> 6 1)
  lamina_mpi_register(mpi_train_rendezvous_tcp
    COMMAND ${launch} --mca pml ob1 --mca btl self,tcp --mca btl_tcp_eager_limit 64 --mca btl_tcp_rndv_eager_limit 64
            -n 4 $<TARGET_FILE:mpi_train_checks> 4 1)

  # Scenarios by the program itself.
  foreach(case agreement refusals subgroup sleeping alone two_jobs wire threads_fail threads_out_of_memory threads_kill
          fail out_of_memory exit kill stop)
    lamina_mpi_register(mpi_job_${case}
      COMMAND ${Python3_EXECUTABLE} -B "${CMAKE_CURRENT_LIST_DIR}/jobs.py" --lamina $<TARGET_FILE:lamina>
              --mpiexec ${MPIEXEC_EXECUTABLE} --times 3 ${case})
  endforeach()
endif()
