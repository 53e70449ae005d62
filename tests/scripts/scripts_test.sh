#!/usr/bin/env bash
# Tests of the scripts, on a small project of its own made in the working folder: tests/faults/run.sh tells caught
# faults from uncaught ones, run_tests takes a skipped test for a failed one, python.sh passes over a Python that lacks
# packages, setup.sh does nothing when nothing is missing.
set -euo pipefail

project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
failures=0

# expect WHAT WANTED GOT
expect() {
  if [[ $2 == "$3" ]]; then
    echo "ok: $1"
  else
    printf 'FAILED: %s\n  wanted: %s\n  got:    %s\n' "$1" "$2" "$3"
    failures=$((failures + 1))
  fi
}

# holds WHAT PART TEXT
holds() {
  if [[ $3 == *"$2"* ]]; then
    echo "ok: $1"
  else
    printf 'FAILED: %s\n  wanted in it: %s\n  got: %s\n' "$1" "$2" "$3"
    failures=$((failures + 1))
  fi
}

mkdir -p toy/scripts toy/tests/faults
cp "$project/scripts/common.sh" toy/scripts/
cp "$project/tests/faults/run.sh" toy/tests/faults/
cd toy
git init --quiet .
git config user.name test
git config user.email test@example.org

cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(toy CXX)
enable_testing()
add_executable(sum_test sum_test.cpp)
add_test(NAME sum_test COMMAND sum_test)
END
cat >CMakePresets.json <<'END'
{"version": 6,
 "configurePresets": [{"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/release"}],
 "buildPresets": [{"name": "release", "configurePreset": "release"}],
 "testPresets": [{"name": "release", "configurePreset": "release", "execution": {"noTestsAction": "error"}}]}
END
cat >sum_test.cpp <<'END'
#include <cstdlib>
#include <string_view>
int sum(int a, int b) {
  return a + b;
}
int main() {
  const char* filter = std::getenv("GTEST_FILTER");
  const std::string_view chosen = filter ? filter : "*";
  const bool known = chosen == "*" || chosen == "Sum.OfTwo" || chosen == "Sum.WithZero";
  const bool two = chosen == "Sum.WithZero" || sum(2, 3) == 5;
  const bool zero = chosen == "Sum.OfTwo" || sum(2, 0) == 2;
  return known && two && zero ? 0 : 1;
}
END
echo /build/ >.gitignore
git add -A
git commit --quiet -m toy

# fault NAME BREAKS SED
fault() {
  sed -i "$3" sum_test.cpp
  { printf '# breaks: %s\n# why: for the test\n' "$2"; git diff; } >"tests/faults/$1.patch"
  git checkout --quiet sum_test.cpp
}
fault a-product sum_test:Sum.OfTwo 's/a + b/a * b/'
fault b-same sum_test:Sum.OfTwo 's/a + b/b + a/'
fault c-broken sum_test:Sum.OfTwo 's/a + b/a + c/'
fault d-unknown-filter sum_test:Sum.OfThree 's/a + b/a * b/'
fault e-whole-test sum_test 's/a + b/a - b/'
fault f-no-header "" 's/a + b/a - b/'
fault g-other-source sum_test 's/a + b/a - b/'
sed -i 's/return a + b/return b + a + 0/; s/2, 3/3, 2/' tests/faults/g-other-source.patch

# verdicts OUTPUT: "NAME VERDICT" a line.
verdicts() { sed -nE 's/^(.{22}) ([a-z]-[a-z-]+) .*/\2 \1/p' <<<"$1" | sed 's/ *$//'; }

status=0
output=$(tests/faults/run.sh) || status=$?
expect "faults are told apart" "a-product caught
b-same NOT CAUGHT
c-broken does not build
d-unknown-filter test fails without it
e-whole-test caught
f-no-header header incomplete
g-other-source does not apply" "$(verdicts "$output")"
expect "an uncaught fault fails the script" 1 "$status"

status=0
output=$(tests/faults/run.sh a-product tests/faults/e-whole-test.patch) || status=$?
expect "named faults only" "a-product caught
e-whole-test caught" "$(verdicts "$output")"
expect "all caught is success" 0 "$status"
holds "the count" "2 of 2 faults caught" "$output"

sed -i 's/return a + b/return b + a/' sum_test.cpp
status=0
output=$(tests/faults/run.sh --check a-product) || status=$?
expect "changes not committed count" "a-product does not apply" "$(verdicts "$output")"
expect "a patch that does not apply fails the check" 1 "$status"
git checkout --quiet sum_test.cpp
expect "the sample is spread evenly" 2 "$(tests/faults/run.sh --check --sample 2 | grep -c '^applies')"

# tests STATUS: what run_tests makes of a test that ends with this exit code, 77 meaning skipped.
tests() {
  cat >CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.25)
project(toy NONE)
enable_testing()
add_test(NAME one COMMAND sh -c "exit $1")
set_tests_properties(one PROPERTIES SKIP_RETURN_CODE 77)
END
  bash -c 'source scripts/common.sh; build release && run_tests release' >/dev/null 2>&1 && echo passed || echo failed
}
expect "a passing test" passed "$(tests 0)"
expect "a failing test" failed "$(tests 1)"
expect "a skipped test" failed "$(tests 77)"

mkdir -p ../bare
printf '#!/bin/sh\nexit 1\n' >../bare/python3
chmod +x ../bare/python3
output=$(PATH="$PWD/../bare:$PATH" "$project/scripts/python.sh")
holds "a Python without packages is passed over" "python3" "$output"
expect "and is not the one chosen" 0 "$(grep -c /bare/ <<<"$output" || true)"
status=0
LAMINA_PYTHON=$PWD/../bare/python3 "$project/scripts/python.sh" 2>/dev/null || status=$?
expect "a named Python without packages is refused" 1 "$status"

mkdir -p ../debian
printf '#!/bin/sh\necho installed\n' >../debian/dpkg-query
printf '#!/bin/sh\necho apt-get was called\nexit 1\n' >../debian/apt-get
printf '#!/bin/sh\nexec "$@"\n' >../debian/sudo
chmod +x ../debian/*
expect "set-up is silent when nothing is missing" "" "$(PATH="$PWD/../debian:$PATH" "$project/scripts/setup.sh" 2>&1)"
printf '#!/bin/sh\nexit 1\n' >../debian/dpkg-query
status=0
output=$(PATH="$PWD/../debian:$PATH" "$project/scripts/setup.sh" 2>&1) || status=$?
expect "set-up that cannot install fails" 1 "$status"
holds "and names what is missing" "ninja-build" "$output"

echo "$failures failed"
[[ $failures -eq 0 ]]
