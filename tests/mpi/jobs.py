#!/usr/bin/env python3
"""Scenarios over MPI processes, by the program itself: what it prints, keeps and ends with, and what it leaves behind.

    jobs.py --lamina PROGRAM --mpiexec PROGRAM [--times N] CASE

Ends with 0 when the case went as it should N times (those that do not involve a fault are run once)."""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SCENARIO = {
    "schema_version": 1, "name": "job", "executor": "train",
    "model": {"layers": 3, "hidden": 8, "heads": 2, "sequence": 5, "vocabulary": 16},
    "data": {"synthetic": {"seed": 1}}, "batch": {"global": 12, "micro": 1},
    "optimizer": {"name": "sgd", "learning_rate": 0.1}, "precision": {"compute": "fp64", "wire": "fp64"},
    "steps": {"warmup": 1, "measured": 3}, "transport": {"kind": "mpi"},
    "runs": [{"name": "first", "method": "data_parallel", "parallel": {"data": 2}},
             {"name": "second", "method": "layered_accumulation", "parallel": {"data": 3}}],
}
FAULT_WITHIN_S = 10  # the job ends
AROUND_S = 4         # the launcher's own start and end on a busy machine, and the steps before the fault


class Ended:
    def __init__(self, code, output, errors, seconds, result):
        self.code, self.output, self.errors, self.seconds, self.result = code, output, errors, seconds, result

    def said(self):
        """The program's own lines on stderr, without progress and warnings."""
        return [line for line in self.errors.splitlines() if line.startswith("lamina: ")]

    def runs(self):
        return [(run["status"], run["reason"]) for run in self.result["runs"]]


class Place:
    """A folder of one job, with a name of its own for the program, so that what is left of this job can be told."""

    def __init__(self, options):
        self.options = options
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lamina-job-"))
        self.program = self.folder / "lamina"
        self.program.symlink_to(options.lamina)
        self.started = 0

    def __enter__(self):
        return self

    def __exit__(self, failure, *_):
        left = self.left()
        for process in left:
            os.kill(process, signal.SIGKILL)
        shutil.rmtree(self.folder)
        check(failure or not left, f"processes left: {left}")  # a failure within is the first cause

    def left(self):
        found = subprocess.run(["pgrep", "-f", str(self.program)], capture_output=True, text=True, check=False)
        return [int(line) for line in found.stdout.split()]

    def scenario(self, change=None):
        document = json.loads(json.dumps(SCENARIO))
        if change:
            change(document)
        path = self.folder / f"scenario{self.started}.json"
        path.write_text(json.dumps(document))
        self.started += 1
        return path

    def command(self, scenario, extra=()):
        return [str(self.program), "run", str(scenario), *extra]

    def launch(self, ranks):
        return [self.options.mpiexec, "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]

    def start(self, command):
        out = self.folder / f"out{self.started}"
        self.started += 1
        process = subprocess.Popen(command, cwd=self.folder, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        return process, time.monotonic(), out

    def run(self, scenario, ranks, extra=(), limit_s=60):
        out = self.folder / f"out{self.started}"
        launch = self.launch(ranks) if ranks else []
        process, begin, _ = self.start(launch + self.command(scenario, ["--out", str(out), *extra]))
        return self.finish(process, begin, out, limit_s)

    def finish(self, process, begin, out, limit_s=60):
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.communicate(timeout=AROUND_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise Failure(f"the job hung for {limit_s} s") from None
        seconds = time.monotonic() - begin
        file = out / "result.json"
        result = json.loads(file.read_text()) if file.exists() else None
        return Ended(process.returncode, output, errors, seconds, result)


class Failure(Exception):
    pass


def check(condition, message, ended=None):
    if not condition:
        if ended:
            message += f"\nexit code {ended.code} after {ended.seconds:.1f} s\n{ended.output}\n{ended.errors}"
        raise Failure(message)


def check_fine(ended):
    check(ended.code == 0, "not fine", ended)
    check(all(status == "ok" for status, _ in ended.runs()), f"runs: {ended.runs()}", ended)


# ---- without a fault ----

def case_subgroup(place):
    """Rank 0 alone speaks; a run with fewer ranks than were launched is right, one with more is skipped."""
    def change(document):
        document["runs"] += [{"name": "one", "method": "data_parallel"},
                             {"name": "too many", "method": "data_parallel", "parallel": {"data": 6}}]
        document["expect"] = [{"metric": "loss", "of": run, "equal_to": "one", "within": 1e-12}
                              for run in ("first", "second")]
    ended = place.run(place.scenario(change), 4, ["--trace"])
    check(ended.code == 3, "a skipped run makes the exit code 3", ended)
    check(ended.runs() == [("ok", None)] * 3 + [
        ("skipped", "it needs 6 ranks, and 4 were started: mpirun -n 6 lamina run …")], f"{ended.runs()}", ended)
    check([one["met"] for one in ended.result["expectations"]] == [True, True], "other losses", ended)
    check(ended.output.count("# run  ") == 1 and ended.errors.count("[1/4] first") == 1, "not one voice", ended)
    ranks = ended.result["context"]["ranks"]
    check(len(ranks) == 4 and all(rank["network"].startswith("mpi: ") and rank["cores"] for rank in ranks),
          f"{ranks}", ended)
    metrics = ended.result["runs"][1]["metrics"]
    for per_rank in (metrics["step_time_s"]["per_rank_median"], metrics["traffic_bytes"]["per_rank"],
                     metrics["peak_memory_bytes"]["per_rank"], metrics["peak_memory_bytes"]["resident_set"]):
        check(len(per_rank) == 3, f"not of three ranks: {per_rank}", ended)
    check(metrics["traffic_bytes"]["per_rank"][2]["data"] == metrics["traffic_bytes"]["predicted"][2]["data"],
          "other traffic than predicted", ended)
    run = ended.result["runs"][1]
    check(run["compute_threads"] == 3 * run["threads_per_rank"], f"{run}", ended)
    check(run["oversubscribed"] == (3 > run["cores"]), f"{run['cores']} cores", ended)
    check(not run["oversubscribed"] or "warning: run second has 3 ranks on" in ended.errors, "no warning", ended)


def case_alone(place):
    """Without a launcher: one rank is run, more are told how to start."""
    def change(document):
        document["runs"][0]["parallel"] = {"data": 1}
    ended = place.run(place.scenario(change), 0)
    check(ended.code == 3 and ended.runs() == [
        ("ok", None), ("skipped", "it needs 3 ranks, and 1 was started: mpirun -n 3 lamina run …")], "alone", ended)


def case_sleeping(place):
    """A rank that waits for its run leaves the processor alone."""
    def change(document):
        document["runs"][0]["parallel"] = {"data": 1}
        document["disturbances"] = [{"kind": "sleep", "rank": 0, "step": 1, "sleep_s": 5}]
    sleeper = place.folder / "sleeper"
    sleeper.write_text('import resource, subprocess, sys\n'
                       'code = subprocess.call(sys.argv[1:])\n'
                       'used = resource.getrusage(resource.RUSAGE_CHILDREN)\n'
                       'print("used", used.ru_utime + used.ru_stime)\n'
                       'sys.exit(code)\n')
    scenario = place.scenario(change)
    out = place.folder / "out"
    command = place.command(scenario, ["--out", str(out)])
    process, begin, _ = place.start(place.launch(2) + command + [":", "-n", "1", sys.executable, str(sleeper)] +
                                    command)
    ended = place.finish(process, begin, out)
    check_fine(ended)
    used = float(re.search(r"^used (.*)$", ended.output, re.MULTILINE)[1])
    check(ended.seconds > 10 and used < 0.1 * ended.seconds, f"{used:.2f} s of {ended.seconds:.1f} s", ended)


def case_agreement(place):
    """Another scenario on one rank: named, exit code 2, nothing started."""
    first = place.scenario()
    other = place.scenario(lambda document: document.update(seed=2))
    out = ["--out", str(place.folder / "out")]
    for command, words in (
            (place.command(other, out), ["the ranks were started with different scenarios: rank 2 has "]),
            (place.command(first, [*out, "--trace"]), ["the ranks were started with different plans: rank 2 has "]),
            (place.command(place.folder / "none.json", out),
             ["rank 2 on ", "the ranks were started with different scenarios: rank 2 has "])):
        process, begin, _ = place.start(place.launch(2) + place.command(first, out) + [":", "-n", "1"] + command)
        ended = place.finish(process, begin, place.folder / "out")
        check(ended.code == 2, "exit code", ended)
        said = ended.said()
        check(len(said) == len(words) and all(any(word in line for line in said) for word in words), "said", ended)
        check(ended.result is None, "something was started", ended)


def case_refusals(place):
    """What all ranks refuse is said once, with exit code 2."""
    def threads(document):
        document["transport"]["kind"] = "threads"

    def batch(document):
        document["batch"]["global"] = 7

    def link(document):
        document["transport"]["link"] = {"preset": "ethernet-10g"}

    for change, words in ((threads, "transport.kind is threads"), (batch, "batch.global is 7"),
                          (link, "transport.link is for transport.kind threads")):
        ended = place.run(place.scenario(change), 3)
        check(ended.code == 2 and len(ended.said()) == 1 and words in ended.said()[0], words, ended)
    scenario = place.scenario()
    out = place.folder / "out"
    out.mkdir()
    (out / "result.json").write_text("mine")
    process, begin, _ = place.start(place.launch(3) + place.command(scenario, ["--out", str(out)]))
    output, errors = process.communicate(timeout=60)
    check(process.returncode == 2 and errors.count("lamina: ") == 1 and "--force" in errors, errors)
    check((out / "result.json").read_text() == "mine", "overwritten")


def case_two_jobs(place):
    """At once on one host."""
    jobs = []
    for _ in range(2):
        scenario = place.scenario()
        out = place.folder / f"out{place.started}"
        process, begin, _ = place.start(place.launch(3) + place.command(scenario, ["--out", str(out)]))
        jobs.append((process, begin, out))
    for job in jobs:
        check_fine(place.finish(*job))


def case_wire(place):
    """Over TCP on loopback: the interface counts what the ledger says, and some headers."""
    def change(document):
        document["model"].update(hidden=64, vocabulary=256)
    scenario = place.scenario(change)
    out = place.folder / "out"
    launch = [*place.launch(3), "--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]
    process, begin, _ = place.start(launch + place.command(scenario, ["--out", str(out)]))
    ended = place.finish(process, begin, out)
    check_fine(ended)
    check(ended.result["context"]["ranks"][2]["network"] == "mpi: ob1 (tcp)", f"{ended.result['context']}", ended)
    traffic = ended.result["runs"][1]["metrics"]["traffic_bytes"]
    data = [rank["data"]["reduce"] for rank in traffic["per_rank"]]
    sent = {port["port"]: port["sent"] for port in traffic["wire"]["per_rank"][0]["ports"]}
    ledger = sum(data) * traffic["wire"]["steps"]
    check(ledger < sent["lo"] < 1.5 * ledger, f"{sent} on the wire, {ledger} in the ledger", ended)


def case_netlab(place):
    """In the network lab each interface counts what its rank's ledger says, and little more; the lab is taken down."""
    def change(document):
        document["model"].update(hidden=64, vocabulary=256)
    scenario = place.scenario(change)
    out = place.folder / "out"
    process, begin, _ = place.start([place.options.mpiexec, "run", "--ranks", "3", "--rate", "600mbit", "--"] +
                                    place.command(scenario, ["--out", str(out)]))
    ended = place.finish(process, begin, out)
    check_fine(ended)
    check(ended.errors.count("netlab: rank ") == 3, "no counters", ended)
    for rate in ("600mbti", "0bit"):  # the second is for tc to refuse: no run over a link that is not shaped
        refused = subprocess.run([place.options.mpiexec, "run", "--rate", rate, "--", "true"], capture_output=True,
                                 text=True, check=False)
        check(refused.returncode == 2 and refused.stderr.count("\n") == 1 and rate in refused.stderr,
              f"{rate}: {refused.returncode}, {refused.stderr}", ended)
    traffic = ended.result["runs"][1]["metrics"]["traffic_bytes"]
    for rank, wire in zip(traffic["per_rank"], traffic["wire"]["per_rank"]):
        ledger = rank["data"]["reduce"] * traffic["wire"]["steps"]
        sent = {port["port"]: port["sent"] for port in wire["ports"]}["lab0"]
        check(ledger < sent < 1.1 * ledger, f"{sent} on the wire, {ledger} in the ledger", ended)
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    check(f"lamina-{process.pid}-" not in spaces, f"left: {spaces}", ended)


def case_link(place):
    """What can be sent between processes: rank 0 alone prints and writes, every value arrives, the transport is named."""
    def measure(name, ranks, extra, network=()):
        json_file = place.folder / name
        command = [*place.launch(ranks), *network, str(place.program), "link", "--max-bytes", "4096", "--seconds",
                   "0.001", *extra]
        process, begin, _ = place.start(command + (["--json", str(json_file)] if name else []))
        ended = place.finish(process, begin, place.folder)
        return ended, json.loads(json_file.read_text()) if name and json_file.exists() else None

    over_tcp = ["--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"]
    for network, name in (([], "mpi: "), (over_tcp, "mpi: ob1 (tcp)")):
        ended, document = measure(f"link{len(network)}.json", 4, [], network)
        check(ended.code == 0 and not ended.said(), "not fine", ended)
        lines = ended.output.splitlines()
        check(lines[0].startswith(f"# transport {name}") and ", 4 ranks: 4 on " in lines[0], "header", ended)
        heads = [line.split() for line in lines if "algbw" in line]
        check(heads == ["# size B operation times time us algbw GB/s busbw GB/s check".split()], "not one table", ended)
        rows = [line.split() for line in lines if not line.startswith("#")]
        check(all(row[-1] == "ok" for row in rows), "wrong values", ended)
        samples = document["samples"]
        check(len(rows) == len(samples) == 6 * 10, f"{len(rows)} rows, {len(samples)} samples", ended)
        check(document["transport"] == "mpi" and document["ranks"] == 4, f"{document['transport']}", ended)
        check(document["collectives"] == "ring" and lines[0].endswith(", ring collectives"), "who made them", ended)
        check([place["network"].startswith(name) for place in document["places"]] == [True] * 4,
              f"{document['places']}", ended)
        seen = {}
        for sample in samples:
            check(sample["correct"] and sample["repetitions"] >= 3 and sample["time_s"] > 0, f"{sample}", ended)
            seen.setdefault((sample["operation"], sample["peer"]), []).append(sample["bytes"])
        sizes = [8 << i for i in range(10)]
        check(seen == {("send", 1): sizes, ("send", 2): sizes, ("send", 3): sizes,
                       **{(each, None): [16, *sizes[1:]] for each in ("all_reduce", "all_gather", "reduce_scatter")}},
              f"{seen}", ended)
        check(document["bandwidth_bits_per_s"] > 0, "no bandwidth", ended)
    sent = {port["port"]: port["sent"] for port in document["ports"]}
    check(sent["lo"] > sum(sample["bytes"] * sample["repetitions"] for sample in samples), f"{sent}", ended)
    ended, document = measure("library.json", 3, ["--collectives", "library"])
    check(ended.code == 0 and ended.output.splitlines()[0].endswith(", library collectives"), "header", ended)
    check(document["collectives"] == "library" and all(sample["correct"] for sample in document["samples"]),
          "by the library", ended)
    for extra, words in ((["--preset", "ethernet-10g"], "emulate a link between threads"),
                         (["--ranks", "2"], "--ranks is 2, but the launcher started 3"),
                         (["--min-bytes", "8192"], "sizes from 8192 to 4096 bytes"),
                         (["--json", str(place.folder / "link0.json")], "--force replaces it")):
        ended, _ = measure("", 3, extra)
        check(ended.code == 2 and len(ended.said()) == 1 and words in ended.said()[0] and not ended.output, words,
              ended)


def case_collectives(place):
    """By rings and by MPI: the same losses up to rounding, and the same bytes in the ledger, which says whose they are."""
    def change(document):
        document["sweep"] = {"transport.collectives": ["ring", "library"]}
        document["runs"].append({"name": "sharded", "method": "layered_accumulation", "zero_stage": 3,
                                 "parallel": {"data": 3}})
        document["expect"] = [{"metric": "loss", "of": f"{run}, collectives=library",
                               "equal_to": f"{run}, collectives=ring", "within": 1e-12}
                              for run in ("first", "second", "sharded")]
    ended = place.run(place.scenario(change), 3)
    check_fine(ended)
    check([one["met"] for one in ended.result["expectations"]] == [True] * 3, "other losses", ended)
    rings, libraries = ended.result["runs"][:3], ended.result["runs"][3:]
    for ring, library in zip(rings, libraries):
        ring, library = (run["metrics"]["traffic_bytes"] for run in (ring, library))
        check(ring["per_rank"] == library["per_rank"] and ring["predicted"] == library["predicted"], "traffic", ended)
        check(ring["counted"] == "sent" and library["counted"] == "algorithm",
              f"{ring['counted']}, {library['counted']}", ended)

    def threads(document):
        document["transport"] = {"kind": "threads", "collectives": "library"}

    def narrow(document):
        document["precision"] = {"compute": "bf16", "reduce": "bf16"}
        document["transport"]["collectives"] = "library"

    for wrong, words in ((threads, "between threads there is no library"), (narrow, "MPI has no sums of 16-bit")):
        refused = place.run(place.scenario(wrong), 0)
        check(refused.code == 2 and len(refused.said()) == 1 and words in refused.said()[0], words, refused)


# ---- with a fault ----

def fault(place, kind, pattern, ranks=3, kind_of_transport="mpi"):
    """The last rank does it to itself in the second run."""
    def change(document):
        document["transport"]["kind"] = kind_of_transport
        document["disturbances"] = [{"kind": kind, "rank": 2, "step": 2}]
    ended = place.run(place.scenario(change), ranks)
    check(ended.code != 0, "exit code 0", ended)
    check(ended.seconds < FAULT_WITHIN_S + AROUND_S, "too late", ended)
    status, reason = ended.runs()[1]
    check(ended.runs()[0] == ("ok", None) and status == "failed", f"{ended.runs()}", ended)
    if pattern:
        check(re.search(pattern, reason), f"reason {reason}", ended)
        said = ended.said()
        check(ranks == 0 or (said and re.search(pattern, said[0])), "the first words are not the cause", ended)
    return ended


def case_fail(place):
    fault(place, "fail", r"rank 2, step 2, .*: this rank was asked to fail$")


def case_out_of_memory(place):
    fault(place, "out_of_memory", r"rank 2, step 2, .*: out of memory$")


def case_exit(place):
    fault(place, "exit", None)


def case_kill(place):
    fault(place, "kill", None)


def case_stop(place):
    ended = fault(place, "stop", r"rank 2 has given no sign of life for 6")
    check(ended.seconds > 5, "too early for a heartbeat", ended)


def case_link_kill(place):
    """A rank that is killed while links are measured ends the job."""
    process, begin, _ = place.start([*place.launch(3), str(place.program), "link", "--max-bytes", "64", "--seconds", "9"])
    ranks = []
    while len(ranks) < 3 and time.monotonic() - begin < FAULT_WITHIN_S:
        time.sleep(0.2)
        ranks = [each for each in place.left()
                 if pathlib.Path(f"/proc/{each}/cmdline").read_bytes().startswith(str(place.program).encode())]
    check(len(ranks) == 3, f"ranks: {ranks}")
    time.sleep(1)
    os.kill(ranks[-1], signal.SIGKILL)
    killed = time.monotonic()
    ended = place.finish(process, begin, place.folder)
    check(ended.code != 0 and not ended.output, "not ended by it", ended)
    check(time.monotonic() - killed < FAULT_WITHIN_S, "too late", ended)


def case_threads_fail(place):
    ended = fault(place, "fail", r"rank 2, step 2, .*: this rank was asked to fail$", 0, "threads")
    check(ended.code == 3, "exit code", ended)


def case_threads_out_of_memory(place):
    ended = fault(place, "out_of_memory", r"rank 2, step 2, .*: out of memory$", 0, "threads")
    check(ended.code == 3, "exit code", ended)


def case_threads_kill(place):
    """It takes the process, whose result says so."""
    ended = fault(place, "kill", r"^the program ended while it ran$", 0, "threads")
    check(ended.code == -signal.SIGKILL, "exit code", ended)


def main():
    faults = ("fail", "out_of_memory", "exit", "kill", "stop", "link_kill")
    cases = {name[len("case_"):]: do for name, do in globals().items() if name.startswith("case_")}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lamina", required=True, type=pathlib.Path)
    parser.add_argument("--mpiexec", required=True)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("case", choices=sorted(cases))
    options = parser.parse_args()
    options.lamina = options.lamina.resolve()
    for turn in range(options.times if options.case in faults else 1):
        begin = time.monotonic()
        try:
            with Place(options) as place:
                cases[options.case](place)
        except Failure as failure:
            print(f"{options.case}, turn {turn + 1}: {failure}", file=sys.stderr)
            return 1
        print(f"{options.case}, turn {turn + 1}: fine after {time.monotonic() - begin:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
