#!/usr/bin/env bash
# Runs all benches and prints one table; JSON and table lie under out/bench.
#   --quick          short: one repetition, small times; for seeing that all run
#   --install-torch  installs the distribution's python3-torch first, to measure beside
#   --out DIR        elsewhere than out/bench
#   --build DIR      an existing build folder instead of building the release preset
#   --only PATTERN   the benches whose name matches: kernel_bench, layer_bench, collective_bench, search_bench,
#                    simulator_bench, mpi, steps
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

out=out/bench
build_folder=""
only=""
quick=0
install_torch=0
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=1 ;;
    --install-torch) install_torch=1 ;;
    --out) out=$2; shift ;;
    --build) build_folder=$2; shift ;;
    --only) only=$2; shift ;;
    *) sed -n '2,8s/^# //p' scripts/bench.sh >&2; exit 2 ;;
  esac
  shift
done

if [[ $install_torch -eq 1 ]]; then
  sudo=()
  [[ $EUID -eq 0 ]] || sudo=(sudo)
  "${sudo[@]}" apt-get install -y --no-install-recommends python3-torch >&2
fi
if [[ -z $build_folder ]]; then
  phase "build (release)" 480 build release benches
  build_folder=build/release
fi
benches=$build_folder/bench
mkdir -p "$out"

wanted() { [[ -z $only || $1 =~ $only ]]; }
settings=(--benchmark_repetitions=3 --benchmark_min_time=0.1)
rounds=3
steps=3
if [[ $quick -eq 1 ]]; then
  settings=(--benchmark_repetitions=1 --benchmark_min_time=0.01)
  rounds=1
  steps=1
fi

cat >"$out/machine.json" <<END
{
  "machine": "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc) cores",
  "date": "$(date -u +%F)",
  "revision": "$(git describe --always --dirty)",
  "BLAS core": "${OPENBLAS_CORETYPE:-chosen by OpenBLAS}",
  "load when begun": "$(cut -d' ' -f1 /proc/loadavg)"
}
END

for name in kernel_bench layer_bench collective_bench simulator_bench search_bench; do
  wanted "$name" || continue
  say "$name"
  "$benches/$name" "${settings[@]}" --benchmark_out="$out/$name.json" --benchmark_out_format=json >"$out/$name.txt" 2>&1
done
if wanted mpi && [[ -x $benches/collective_mpi_bench ]]; then
  for mode in ring library bare; do
    say "collective_mpi_bench $mode"
    mpirun --oversubscribe --bind-to none -n 2 "$benches/collective_mpi_bench" \
      --benchmark_out="$out/mpi_$mode.json" --benchmark_out_format=json "$mode" >"$out/mpi_$mode.txt" 2>&1
  done
fi
if wanted steps; then
  python3 bench/steps.py --step-bench "$benches/step_bench" --out "$out/steps.json" \
    --rounds "$rounds" --steps "$steps"
fi
python3 bench/table.py "$out" | tee "$out/table.txt"
