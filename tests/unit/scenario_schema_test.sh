#!/usr/bin/env bash
# scenario_schema_test.sh TOP SCENARIO…: in the Python that the scripts use.
set -euo pipefail
top=$1
shift
exec "$("$top/scripts/python.sh")" -B "$top/tests/unit/scenario_schema_test.py" "$top/scenarios/scenario.schema.json" "$@"
