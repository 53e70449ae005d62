#!/usr/bin/env bash
# Set-up, build, all tests. Ends non-zero when a test failed or did not run.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

phase "set-up" 300 scripts/setup.sh
phase "build (release)" 480 build release
phase "tests (release)" 480 run_tests release
