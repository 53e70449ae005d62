# Sourced by the other scripts: enters the project's folder and holds what they share.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

jobs=$(nproc)

# Open MPI refuses to start ranks for root, which is who containers and CI run as.
if [[ $EUID -eq 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# say TEXT…: a progress line.
say() { echo "== $*" >&2; }

# phase NAME BUDGET_S COMMAND…: runs the command and says how long it took against its budget.
phase() {
  local name=$1 budget=$2 start=$SECONDS status=0
  shift 2
  say "$name"
  "$@" || status=$?
  local took=$((SECONDS - start)) note=""
  [[ $took -le $budget ]] || note=", over budget"
  [[ $status -eq 0 ]] || note+=", failed with exit code $status"
  say "$name: $took s (budget $budget s)$note"
  return $status
}

# build PRESET [TARGET…]: configures and builds quietly; the whole log is shown when it fails.
build() {
  local preset=$1 log="build/$1/build.log"
  shift
  mkdir -p "build/$preset"
  local targets=()
  [[ $# -eq 0 ]] || targets=(--target "$@")
  if ! { cmake --preset "$preset" && cmake --build --preset "$preset" -j "$jobs" "${targets[@]}"; } >"$log" 2>&1; then
    cat "$log" >&2
    return 1
  fi
}

# run_tests PRESET: runs the preset's tests. A skipped test fails the run as a failed one does.
run_tests() {
  local preset=$1 log="build/$1/tests.log" status=0
  ctest --preset "$preset" 2>&1 | tee "$log" || status=$?
  if grep -q '^The following tests did not run:' "$log"; then
    say "some tests did not run (see above), which counts as a failure"
    status=1
  fi
  return $status
}
