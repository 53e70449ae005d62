#!/usr/bin/env bash
# repeat.sh N [BUILD]: every fault that ends a job, N times, and every other job once. Ends with 0 when no job hung, left
# a process behind or ended otherwise than it should. BUILD is a build folder (default: build/release).
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
times=${1:?repeat.sh N [BUILD]}
build=${2:-$top/build/release}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
bad=0
for case in fail out_of_memory exit kill stop link_kill agreement refusals subgroup sleeping alone two_jobs wire collectives link; do
  python3 -B "$top/tests/mpi/jobs.py" --lamina "$build/lamina" --mpiexec mpirun --times "$times" "$case" || bad=$((bad + 1))
done
[[ $bad -eq 0 ]] && echo "all fine" || { echo "$bad cases went wrong"; exit 1; }
