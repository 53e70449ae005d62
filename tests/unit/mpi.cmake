# The transport by real processes.
if(LAMINA_WITH_MPI)
  add_executable(mpi_checks "${CMAKE_CURRENT_LIST_DIR}/mpi_checks.cpp" "${CMAKE_CURRENT_LIST_DIR}/comm_checks.cpp")
  target_link_libraries(mpi_checks PRIVATE lamina_flags lamina_comm_mpi)
  add_executable(mpi_fault "${CMAKE_CURRENT_LIST_DIR}/mpi_fault.cpp")
  target_link_libraries(mpi_fault PRIVATE lamina_flags lamina_comm_mpi)

  include("${PROJECT_SOURCE_DIR}/tests/mpi/register.cmake")

  set(launch ${MPIEXEC_EXECUTABLE} --oversubscribe --bind-to none)
  set(gibibyte 1073741824)
  foreach(ranks 1 2 3 5)
    lamina_mpi_register(mpi_checks_${ranks}_ranks NEEDS mpi_checks
      COMMAND ${launch} -n ${ranks} $<TARGET_FILE:mpi_checks> ${ranks} ${gibibyte} 0 any)
  endforeach()
  # Nothing is buffered: the smallest eager limits that Open MPI takes (its headers), and synchronous sends.
  lamina_mpi_register(mpi_checks_rendezvous NEEDS mpi_checks
    COMMAND ${launch} --mca pml ob1 --mca btl self,vader --mca btl_vader_eager_limit 56
            -n 3 $<TARGET_FILE:mpi_checks> 3 ${gibibyte} 1 "ob1 (vader)")
  lamina_mpi_register(mpi_checks_rendezvous_tcp NEEDS mpi_checks
    COMMAND ${launch} --mca pml ob1 --mca btl self,tcp --mca btl_tcp_eager_limit 64 --mca btl_tcp_rndv_eager_limit 64
            -n 3 $<TARGET_FILE:mpi_checks> 3 ${gibibyte} 1 "ob1 (tcp)")
  # Messages cut into many pieces, as those beyond 2³¹ bytes are.
  foreach(ranks 2 5)
    lamina_mpi_register(mpi_checks_pieces_${ranks}_ranks NEEDS mpi_checks
      COMMAND ${launch} -n ${ranks} $<TARGET_FILE:mpi_checks> ${ranks} 1000 0 any)
  endforeach()

  # Faults while ranks reduce by rings, or by the library (a test name more).
  function(lamina_mpi_fault fault ranks pattern)
    cmake_parse_arguments(ARG "LIBRARY" "" "" ${ARGN})
    set(collectives ring)
    set(name mpi_fault_${fault}_${ranks}_ranks)
    if(ARG_LIBRARY)
      set(collectives library)
      set(name mpi_fault_library_${fault}_${ranks}_ranks)
    endif()
    lamina_mpi_register(${name} NEEDS mpi_fault
      COMMAND sh "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/mpi_fault.sh" ${MPIEXEC_EXECUTABLE} $<TARGET_FILE:mpi_fault>
              ${collectives} ${fault} ${ranks} "${pattern}")
  endfunction()
  lamina_mpi_fault(none 3 -)
  lamina_mpi_fault(throw 3 "^lamina: rank 2 on .*: a wheel came off$")
  lamina_mpi_fault(throw 2 "^lamina: rank 1 on .*: a wheel came off$")
  lamina_mpi_fault(unwind 3 "^lamina: rank 2 on .*: a wheel came off$")
  lamina_mpi_fault(uncaught 3 "^lamina: rank 2 on .*: an exception left this rank's run$")
  lamina_mpi_fault(exit 3 -)
  lamina_mpi_fault(quick-exit 3 -)
  lamina_mpi_fault(kill 3 -)
  lamina_mpi_fault(stop 3 "^lamina: rank 0 on .*: rank 2 has given no sign of life for 6")
  lamina_mpi_fault(hang 3 "^lamina: rank [01] on .*: rank [01] waited 5.0 s to .* bytes")
  lamina_mpi_fault(leave 3 "^lamina: rank [01] on .*: rank [01] waited .* that rank has ended its run$")
  lamina_mpi_fault(disagree 3 "^lamina: rank [0-2] on .*: the ranks were started with different scenarios: rank 2 has bad, rank 0 has good$")
  lamina_mpi_fault(none 3 - LIBRARY)
  lamina_mpi_fault(late 3 - LIBRARY)
  lamina_mpi_fault(blind 3 - LIBRARY)
  lamina_mpi_fault(mute 3 -)
  lamina_mpi_fault(throw 3 "^lamina: rank 2 on .*: a wheel came off$" LIBRARY)
  lamina_mpi_fault(unwind 3 "^lamina: rank 2 on .*: a wheel came off$" LIBRARY)
  lamina_mpi_fault(kill 3 - LIBRARY)
  lamina_mpi_fault(stop 3 "^lamina: rank 0 on .*: rank 2 has given no sign of life for 7" LIBRARY)
  lamina_mpi_fault(stop-making 3 "^lamina: rank [01] on .*: rank [01] waited 4.* to make a communicator of ranks .0, 1, 2.: the deadline has passed$" LIBRARY)
  lamina_mpi_fault(hang 3 "^lamina: rank [01] on .*: rank [01] waited 5.0 s to all_reduce 12000000 bytes by MPI with ranks .0, 1, 2.: the deadline has passed$" LIBRARY)
  lamina_mpi_fault(leave 3 "^lamina: rank [01] on .*: rank [01] waited .* by MPI with ranks .0, 1, 2.: one of them has ended its run$" LIBRARY)

  # Another MPI's launcher: each process would believe to be rank 0 of 1.
  lamina_mpi_register(mpi_launcher_mismatch NEEDS mpi_checks
    COMMAND ${CMAKE_COMMAND} -E env PMI_SIZE=4 $<TARGET_FILE:mpi_checks> 1 ${gibibyte} 0 any)
  set_tests_properties(mpi_launcher_mismatch PROPERTIES
    PASS_REGULAR_EXPRESSION "^the launcher started 4 processes .PMI_SIZE., but the MPI library")

  lamina_mpi_register(mpi_two_jobs_at_once NEEDS mpi_checks
    COMMAND sh -c "\"$@\" & first=$! && \"$@\" && wait $first" sh
            ${launch} -n 2 $<TARGET_FILE:mpi_checks> 2 ${gibibyte} 0 any)
endif()
