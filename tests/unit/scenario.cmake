lamina_test(scenario_test SOURCES scenario_test.cpp LINKS lamina_harness)

# The shipped scenarios against the schema, by somebody else's validator.
file(GLOB LAMINA_SCENARIOS CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/scenarios/*.json")
list(FILTER LAMINA_SCENARIOS EXCLUDE REGEX "schema\\.json$")
lamina_register(scenario_schema_test
  COMMAND bash "${CMAKE_CURRENT_LIST_DIR}/scenario_schema_test.sh" "${PROJECT_SOURCE_DIR}" ${LAMINA_SCENARIOS}
  LABELS slow)
