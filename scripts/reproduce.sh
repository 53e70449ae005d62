#!/usr/bin/env bash
# Set-up, build, then the main job: two ways of accumulating gradients, trained for real over a slow link, measured,
# drawn. Everything it makes lies under out/. Ends with the exit code of the job.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

scenario=scenarios/accumulation-ethernet.json
out=out/accumulation-ethernet

phase "set-up" 300 scripts/setup.sh
phase "build (release)" 480 build release

say "lamina run $scenario"
status=0
table=$(build/release/lamina run "$scenario" --out "$out" --force --trace) || status=$?
# 1 says that an expectation was not met: there is a result all the same, and the figure shows it.
if [[ $status -gt 1 ]]; then
  [[ -z $table ]] || echo "$table"
  exit $status
fi
echo "$table" >"$out/table.txt"

python=$(scripts/python.sh)
say "figures by $python"
"$python" plots/step_time.py "$out/result.json" --out "$out" >&2

cat <<END

result   $out/result.json
figure   $out/step_time.png (and .pdf)
trace    $out/trace.json (open it in ui.perfetto.dev or chrome://tracing)
table    $out/table.txt, with the whole scenario; its end:

END
sed -n '/^# run /,$p' "$out/table.txt"
exit $status
