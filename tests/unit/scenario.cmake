lamina_test(scenario_test SOURCES scenario_test.cpp LINKS lamina_harness)

# The shipped scenarios against the schema, by somebody else's validator.
file(GLOB LAMINA_SCENARIOS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/scenarios/*.json")
list(FILTER LAMINA_SCENARIOS EXCLUDE REGEX "schema\\.json$")
lamina_register(scenario_schema_test
  COMMAND bash "${CMAKE_CURRENT_LIST_DIR}/scenario_schema_test.sh" "${PROJECT_SOURCE_DIR}" ${LAMINA_SCENARIOS}
  LABELS slow)

# Every shipped scenario resolves. Those whose expectations no clock decides are run, and must meet them.
set(LAMINA_EXACT_SCENARIOS odd-sizes simulated-ethernet sixteen-bits tiny-exact)
foreach(file ${LAMINA_SCENARIOS})
  get_filename_component(scenario "${file}" NAME_WE)
  add_custom_target(scenario_check_${scenario})
  add_dependencies(scenario_check_${scenario} lamina)
  lamina_register(scenario_check_${scenario} COMMAND $<TARGET_FILE:lamina> check "${file}" LABELS slow)
  if(scenario IN_LIST LAMINA_EXACT_SCENARIOS)
    add_custom_target(scenario_run_${scenario})
    add_dependencies(scenario_run_${scenario} lamina)
    lamina_register(scenario_run_${scenario} LABELS slow
      COMMAND $<TARGET_FILE:lamina> run "${file}" --force --out "${CMAKE_CURRENT_BINARY_DIR}/scenario_run_${scenario}.out")
  endif()
endforeach()
add_custom_target(scenario_plan_trillion)
add_dependencies(scenario_plan_trillion lamina)
lamina_register(scenario_plan_trillion LABELS slow
  COMMAND $<TARGET_FILE:lamina> plan "${PROJECT_SOURCE_DIR}/scenarios/plan-trillion.json")
