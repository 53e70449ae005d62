#!/usr/bin/env bash
# Installs what lamina needs and this machine lacks, from the distribution's own packages. Quick and silent when
# nothing is missing.
set -euo pipefail

packages=(
  g++ cmake ninja-build git                                    # to build
  libopenblas-dev libopenmpi-dev openmpi-bin                   # matrix products, messages between processes
  nlohmann-json3-dev libcli11-dev libfmt-dev                   # JSON, command line, text
  libgtest-dev libgmock-dev libbenchmark-dev clang-format      # tests, benches, format check
  python3 python3-numpy python3-matplotlib python3-jsonschema  # figures, checks of result files
  iproute2 ca-certificates                                     # shaped links between namespaces, downloads
)

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian-like system, so nothing was installed. lamina needs a C++20 compiler (GCC 12 or later)," \
    "CMake 3.25, Ninja, OpenBLAS with cblas.h, nlohmann-json, CLI11, fmt, GoogleTest with GoogleMock and Python 3" \
    "with numpy, matplotlib and jsonschema; Open MPI, Google Benchmark and clang-format 14 are used where present." >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $EUID -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: missing: ${missing[*]}. Install them as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() { "$@" >"$log" 2>&1 </dev/null || { cat "$log" >&2; return 1; }; }
quietly "${as_root[@]}" apt-get update -q
quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -q -y --no-install-recommends "${missing[@]}"
