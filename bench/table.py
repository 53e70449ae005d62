"""Prints one table from the JSON files that scripts/bench.sh left in a folder: what was measured, beside what."""

import json
import os
import statistics
import sys


def load(folder, name):
    try:
        with open(os.path.join(folder, name)) as file:
            return json.load(file)
    except FileNotFoundError:
        return None
    except json.JSONDecodeError:
        print(f"\n# {name}: not complete, its bench was ended early")
        return None


def entries(folder, name):
    """Median of each benchmark's repetitions, and their spread (largest over smallest), by its name."""
    report = load(folder, name)
    samples = {}
    for entry in report["benchmarks"] if report else []:
        if entry.get("run_type") != "aggregate" and not entry.get("error_occurred"):
            samples.setdefault(entry["run_name"], []).append(entry)
    found = {}
    for run, list_ in samples.items():
        list_ = sorted(list_, key=time_of)
        found[run] = dict(list_[(len(list_) - 1) // 2], spread=time_of(list_[-1]) / time_of(list_[0]))
    return found


def time_of(entry):
    """What the rates of an entry are counted from: real time where it asked for it, the thread's processor time else."""
    return entry["real_time" if "/real_time" in entry["name"] else "cpu_time"]


def row(*cells):
    widths = (54, 16, 16, 10, 12)
    print("  ".join(str(c).ljust(w) if i == 0 else str(c).rjust(w) for i, (c, w) in enumerate(zip(cells, widths))).rstrip())


def section(title, *columns):
    print(f"\n# {title}")
    row(*columns)


def kernels(folder):
    found = entries(folder, "kernel_bench.json")
    if not found:
        return
    exponentials = found["limit_exponential/128"]["items_per_second"]
    product = found["limit_product"]["items_per_second"]
    section("row kernels, one thread, against what bounds them (the larger share counts)", "kernel/rows", "GB/s",
            "of memory", "of exp", "spread")
    row("limit: exponentials in the nearest cache", f"{exponentials / 1e9:.2f} G/s", "", "", "")
    row("limit: a square product of 1024 by cblas", f"{product / 1e9:.1f} GFLOP/s", "", "", "")
    with_exponentials = ("bias_gelu", "causal_softmax", "cross_entropy")
    for name, entry in found.items():
        if name in ("limit_product", "limit_exponential/128"):
            continue
        memory = found["limit_memory/" + name.split("/")[1]]["bytes_per_second"]
        exp = entry["items_per_second"] / exponentials if name.startswith(with_exponentials) else None
        row(name, f"{entry['bytes_per_second'] / 1e9:.1f}", f"{entry['bytes_per_second'] / memory:.2f}",
            "" if exp is None else f"{exp:.2f}", f"{entry['spread']:.2f}")


def layers(folder):
    found = entries(folder, "layer_bench.json")
    if not found:
        return
    section("products and layers beside plain cblas (hidden / sequences / threads)", "what", "lamina GFLOP/s",
            "cblas GFLOP/s", "ratio", "spread")
    for name, entry in found.items():
        if "/lamina" not in name:
            continue
        plain = found.get(name.replace("/lamina", "/plain"))
        if plain:
            mine, theirs = entry["items_per_second"], plain["items_per_second"]
            row(name.split("/lamina")[0], f"{mine / 1e9:.1f}", f"{theirs / 1e9:.1f}", f"{mine / theirs:.3f}",
                f"{max(entry['spread'], plain['spread']):.2f}")


def collectives(folder):
    found = entries(folder, "collective_bench.json")
    if found:
        section("collectives between threads (ranks / bytes)", "what", "GB/s", "us", "", "spread")
        for name, entry in found.items():
            row(name.replace("/real_time", ""), f"{entry['bytes_per_second'] / 1e9:.3f}", f"{entry['real_time']:.0f}", "",
                f"{entry['spread']:.2f}")
    ring = entries(folder, "mpi_ring.json")
    for others, what in (("library", "MPI_I* by the same sleeping thread"), ("bare", "MPI_I* and MPI_Wait, which spins")):
        beside = entries(folder, f"mpi_{others}.json")
        if not ring or not beside:
            print(f"\n# collectives between processes beside {what}: not measured in this run")
            continue
        section(f"collectives between processes (ranks / bytes): our rings beside {what}", "what", "ring GB/s",
                "MPI_I* GB/s", "ratio", "spread")
        for name, entry in ring.items():
            other = beside[name.replace("mpi_ring", f"mpi_{others}")]
            mine, theirs = entry["bytes_per_second"], other["bytes_per_second"]
            row(name.split("/iterations")[0].replace("mpi_ring_", ""), f"{mine / 1e9:.3f}", f"{theirs / 1e9:.3f}",
                f"{mine / theirs:.2f}", f"{max(entry['spread'], other['spread']):.2f}")


def rates(folder):
    found = entries(folder, "simulator_bench.json") | entries(folder, "search_bench.json")
    if found:
        section("schedules and search", "what", "items/s", "ms", "", "spread")
        for name, entry in found.items():
            factor = {"ns": 1e-6, "us": 1e-3, "ms": 1.0}[entry["time_unit"]]
            row(name, f"{entry['items_per_second']:.3g}", f"{time_of(entry) * factor:.3g}", "", f"{entry['spread']:.2f}")


class Samples:
    def __init__(self, reports, key):
        self.reports = reports
        self.wall = sum((r[key]["wall_s"] for r in reports), [])
        self.processor = sum((r[key]["processor_s"] for r in reports), [])

    def seconds(self, kind):
        return statistics.median(getattr(self, kind))

    def text(self, kind):
        values = getattr(self, kind)
        return f"{statistics.median(values):.3f} ({min(values):.3f}..{max(values):.3f})"


def steps(folder):
    report = load(folder, "steps.json")
    if not report:
        return
    blas = report["cases"][0]["lamina"][0]["blas"]
    print(f"\n# BLAS of the steps: {blas['name']}, core {blas['core']}")
    for case in report["cases"]:
        lamina = Samples(case["lamina"], "step")
        plain = Samples(case["lamina"], "plain_products") if case["ranks"] == 1 else None
        peers = {}
        for name, runs in case["torch"].items():
            missing = next((r["missing"] for r in runs if "missing" in r), None)
            peers[name] = missing or Samples(runs, "step")
        print(f"\n# training step: {case['title']}; tokens a step: {case['lamina'][0]['tokens']}")
        for kind, label in (("wall", "seconds by the clock"), ("processor", "seconds of processor, all threads")):
            if kind == "processor" and case["ranks"] > 1:
                continue  # each process counts its own
            print(f"  {label}: median (least..most)".ljust(64) + "times lamina's")
            mine = lamina.seconds(kind)
            print(f"    {'lamina':32}{lamina.text(kind):28}{1:.3f}")
            if plain:
                print(f"    {'its products by cblas':32}{plain.text(kind):28}{plain.seconds(kind) / mine:.3f}")
            measured = []
            for name, peer in peers.items():
                if isinstance(peer, str):
                    print(f"    {name:32}not measured: {peer}")
                else:
                    print(f"    {name:32}{peer.text(kind):28}{peer.seconds(kind) / mine:.3f}")
                    measured.append(peer.seconds(kind))
            if len(measured) > 1:
                print(f"    {'the best PyTorch':32}{'':28}{min(measured) / mine:.3f}")


def machine(folder):
    about = load(folder, "machine.json")
    if about:
        print("\n".join(f"# {key}: {value}" for key, value in about.items()))


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: table.py FOLDER")
    for part in (machine, kernels, layers, collectives, rates, steps):
        part(sys.argv[1])


if __name__ == "__main__":
    main()
