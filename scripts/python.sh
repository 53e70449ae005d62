#!/usr/bin/env bash
# Prints the Python that has the packages lamina's figures and checks need: $LAMINA_PYTHON if set, else the first
# python3 on the path that can import them, else /usr/bin/python3 if it can.
set -euo pipefail

mapfile -t on_path < <(type -ap python3)
candidates=(${LAMINA_PYTHON:+"$LAMINA_PYTHON"})
[[ ${#candidates[@]} -gt 0 ]] || candidates=("${on_path[@]}" /usr/bin/python3)

for python in "${candidates[@]}"; do
  if "$python" -c 'import jsonschema, matplotlib, numpy' >/dev/null 2>&1; then
    echo "$python"
    exit 0
  fi
done
echo "no Python with numpy, matplotlib and jsonschema among: ${candidates[*]}" \
  "(scripts/setup.sh installs them; LAMINA_PYTHON names another Python)" >&2
exit 1
