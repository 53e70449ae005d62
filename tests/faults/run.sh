#!/usr/bin/env bash
# Proves that tests can fail: puts each fault (a patch) into a copy of the tracked tree and requires that the test
# which the patch names fails then, having passed without it. README.md beside this file tells the format.
#
#   run.sh [--check | --sample N] [PATCH…]      (no PATCH: all of them)
#
#   --check     only look whether the headers are complete and the patches apply
#   --sample N  try N of the patches, evenly spread over the sorted list
#
# One line a fault; ends non-zero unless all are caught. The copy and its build stay under build/faults, so that a
# later run compiles only what changed.
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/common.sh"

check_only=false
sample=0
patches=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --check) check_only=true ;;
    --sample) sample=$2; shift ;;
    -*) echo "run.sh [--check | --sample N] [PATCH…]" >&2; exit 2 ;;
    *.patch) patches+=("$(realpath "$1")") ;;
    *) patches+=("$PWD/tests/faults/$1.patch") ;;
  esac
  shift
done
[[ ${#patches[@]} -gt 0 ]] || mapfile -t patches < <(find "$PWD/tests/faults" -name '*.patch' | LC_ALL=C sort)
if [[ $sample -gt 0 && $sample -lt ${#patches[@]} ]]; then
  chosen=()
  for ((i = 0; i < sample; i++)); do chosen+=("${patches[i * ${#patches[@]} / sample]}"); done
  patches=("${chosen[@]}")
fi
if [[ ${#patches[@]} -eq 0 ]]; then
  echo "no faults found under tests/faults" >&2
  exit 1
fi

work=$PWD/build/faults
source=$work/source
binary=$work/build
mkdir -p "$work/logs"
exec 9>"$work/lock"
flock -n 9 || { echo "another tests/faults/run.sh is at work in $work" >&2; exit 2; }

# The copy: a bare-bones checkout that borrows this repository's objects. Only files that differ are rewritten, which
# keeps the build incremental. It holds the tracked files as they stand now, committed or not.
tree=$(git stash create)
tree=${tree:-$(git rev-parse HEAD)}
[[ -d $source/.git ]] || git init --quiet "$source"
realpath "$(git rev-parse --git-path objects)" >"$source/.git/objects/info/alternates"
restore() { git -C "$source" reset --quiet --hard "$tree" && git -C "$source" clean --quiet -ffd; }
restore
trap restore EXIT

header() { sed -n "/^diff /q; s/^# $2: *//p" "$1" | head -n 1; }
build_test() {  # NAME: builds the test's executable; tests without one (scripts) need no build
  ! ninja -C "$binary" -t query "$1" >/dev/null 2>&1 || cmake --build "$binary" -j "$jobs" --target "$1"
}
run_test() {  # NAME FILTER
  GTEST_FILTER=${2:-*} ctest --test-dir "$binary" --tests-regex "^$1\$" --no-tests=error --timeout 120 \
    --output-on-failure
}

if ! $check_only; then
  # Lightly optimised: compiled once more for every fault, and run for seconds.
  cmake -S "$source" -B "$binary" -G Ninja -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" \
    -DLAMINA_CUDA=off >"$work/logs/configure.log" 2>&1 || { cat "$work/logs/configure.log" >&2; exit 1; }
fi

# Sets `verdict`. Tests named by several faults are tried without a fault only once.
declare -A sound
try() {  # PATCH LOG
  local patch=$1 log=$2 breaks test filter
  breaks=$(header "$patch" breaks)
  test=${breaks%%:*}
  filter=
  [[ $breaks != *:* ]] || filter=${breaks#*:}
  verdict="no such patch"
  [[ -f $patch ]] || return 1
  verdict="header incomplete"
  [[ -n $breaks && -n $(header "$patch" why) ]] || return 1
  verdict="does not apply"
  git -C "$source" apply --check "$patch" >>"$log" 2>&1 || return 1
  verdict="applies"
  ! $check_only || return 0
  if [[ -z ${sound[$breaks]:-} ]]; then
    verdict="test fails without it"
    build_test "$test" >>"$log" 2>&1 && run_test "$test" "$filter" >>"$log" 2>&1 || return 1
    sound[$breaks]=yes
  fi
  git -C "$source" apply "$patch" >>"$log" 2>&1
  verdict="does not build"
  build_test "$test" >>"$log" 2>&1 || return 1
  verdict="NOT CAUGHT"
  ! run_test "$test" "$filter" >>"$log" 2>&1 || return 1
  verdict="caught"
}

bad=0
for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch)
  log=$work/logs/$name.log
  : >"$log"
  start=$SECONDS
  try "$patch" "$log" || bad=$((bad + 1))
  restore
  breaks=$(header "$patch" breaks 2>/dev/null || true)
  printf '%-22s %-36s %4d s  %s\n' "$verdict" "$name" $((SECONDS - start)) "$breaks"
done
good=$((${#patches[@]} - bad))
if $check_only; then
  echo "$good of ${#patches[@]} faults apply"
else
  echo "$good of ${#patches[@]} faults caught"
  [[ $bad -eq 0 ]] || echo "logs: $work/logs"
fi
[[ $bad -eq 0 ]]
