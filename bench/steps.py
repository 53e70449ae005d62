"""Takes training steps of lamina and of PyTorch in turn, round after round, and writes the samples to one JSON file.

A round is one start of each program with a few steps; so what the machine does meanwhile meets all of them alike.
"""

import argparse
import json
import subprocess
import sys

HERE = __file__.rsplit("/", 1)[0]


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def case(o, title, ranks, threads, micro, torch_threads):
    shape = ["--ranks", ranks, "--micro-batch", micro, "--global-batch", o.global_batch, "--hidden", o.hidden, "--layers",
             o.layers, "--heads", o.hidden // 64, "--steps", o.steps]
    result = {"title": f"{title}, {o.layers} layers, hidden {o.hidden}, sequence 128, micro-batch {micro}", "ranks": ranks,
              "lamina": [], "torch": {}}
    for number in range(o.rounds):
        print(f"steps: {result['title']}: round {number + 1} of {o.rounds}", file=sys.stderr)
        plain = [] if ranks == 1 else ["--no-products"]
        result["lamina"].append(run([o.step_bench, *shape, "--threads", threads, *plain]))
        for own, blas in torch_threads:
            name = f"PyTorch, {own} thread{'s' if own > 1 else ''}" + (" a rank, DDP" if ranks > 1 else "")
            name += f", its BLAS {blas}" if blas != own else ""
            report = run([o.torch_python, f"{HERE}/torch_step.py", *shape, "--threads", own, "--blas-threads", blas])
            result["torch"].setdefault(name, []).append(report)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-bench", required=True)
    parser.add_argument("--torch-python", default="/usr/bin/python3", help="a Python that has torch")
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--global-batch", type=int, default=8)
    o = parser.parse_args()
    one = [(1, 1)]  # PyTorch's own threads, and its BLAS's
    two = [(1, 1), (1, 2), (2, 1), (2, 2)]
    cases = []
    for title, ranks, threads, micro, torch_threads in (("one rank, one thread", 1, 1, 1, one),
                                                        ("one rank, one thread", 1, 1, 4, one),
                                                        ("one rank, two threads", 1, 2, 1, two),
                                                        ("one rank, two threads", 1, 2, 4, two),
                                                        ("two data-parallel ranks, one thread each", 2, 1, 1, one)):
        cases.append(case(o, title, ranks, threads, micro, torch_threads))
        with open(o.out, "w") as file:  # after each case: what is measured is kept
            json.dump({"cases": cases}, file, indent=1)


if __name__ == "__main__":
    main()
