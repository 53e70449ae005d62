#!/usr/bin/env bash
# Formats the C++ and CUDA sources in place; with --check changes nothing and ends non-zero, naming what differs.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# The version decides the result, so the one of Debian 12 is meant.
format=clang-format-14
command -v "$format" >/dev/null || format=clang-format

mode=(-i)
[[ ${1:-} != --check ]] || mode=(--dry-run --Werror)
git ls-files -z -- '*.h' '*.cpp' '*.cu' '*.cuh' | xargs -0 --no-run-if-empty "$format" --style=file "${mode[@]}"
