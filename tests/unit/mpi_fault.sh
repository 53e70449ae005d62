#!/bin/sh
# mpi_fault.sh MPIEXEC PROGRAM COLLECTIVES FAULT RANKS PATTERN
# The job must end within 10 seconds of the fault (12 with the launcher's own start and end), with a non-zero exit code
# from the launcher, a first line on stderr that matches PATTERN (-: the launcher's own words), and no process left.
set -u
mpiexec=$1 program=$2 collectives=$3 fault=$4 ranks=$5 pattern=$6
# A name of its own for the program, so that what is left of this job, and of no other, can be told.
own=$(mktemp -d)
trap 'rm -rf "$own"' EXIT
ln -s "$program" "$own/ranks"
begin=$(date +%s)
timeout -s KILL 40 "$mpiexec" --oversubscribe --bind-to none -n "$ranks" "$own/ranks" "$collectives" "$fault" >"$own/out" 2>"$own/err"
code=$?
seconds=$(($(date +%s) - begin))
cat "$own/err"
echo "exit code $code after $seconds s"
fail() { echo "FAILED: $1"; exit 1; }
left=$(pgrep -f "$own/ranks")
[ -n "$left" ] && { kill -KILL $left; fail "processes left: $left"; }
case $fault in
  none | late | mute | blind) [ "$code" -eq 0 ] || fail "a run without a fault ended with $code" ;;
  *) [ "$code" -ne 0 ] && [ "$code" -ne 2 ] || fail "exit code $code" ;;
esac
[ "$seconds" -le 12 ] || fail "took $seconds s"
[ "$pattern" = - ] || head -n 1 "$own/err" | grep -Eq "$pattern" || fail "the first line does not match '$pattern'"
