# lamina_mpi_register(NAME COMMAND …): a test that starts several processes under the launcher of the MPI that was found.
# It refuses root and more ranks than cores unless told otherwise; tests are welcome to both.
function(lamina_mpi_register name)
  cmake_parse_arguments(ARG "" "" "COMMAND" ${ARGN})
  lamina_register(${name} COMMAND ${CMAKE_COMMAND} -E env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
                  ${ARG_COMMAND} LABELS mpi slow)
  set_tests_properties(${name} PROPERTIES PROCESSORS 2 TIMEOUT 120)
endfunction()
