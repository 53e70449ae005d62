"""The paper's figures, from the data that `lamina paper --out DIR` writes.

    python3 plots/paper.py DIR [--figure NAME]... [--out DIR]

Reads DIR/NAME.json and writes NAME.png and NAME.pdf (beside the data, or into --out). Without --figure every figure
whose data is there. Each picture carries the conclusion drawn from its numbers and the assumptions behind them.
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import style  # before matplotlib

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

FAMILIES = [
    ("baseline", "Baseline (depth-first, GPipe, 1F1B)", style.UNKNOWN),
    ("baseline_interleaved", "with interleaved 1F1B", style.ORANGE),
    ("improved", "Improved (layered, modular)", style.BLUE),
]
VARIANTS = [
    ("baseline", "Baseline", style.UNKNOWN),
    ("interleaved", "with interleaved 1F1B", style.ORANGE),
    ("partitioned", "Baseline, ZeRO-3", style.GREEN),
    ("improved", "Improved", style.BLUE),
    ("improved, checkpoints on host", "Improved, checkpoints on host", style.SKY),
]
STRATEGIES = ["none", "data", "data+pipeline", "data+tensor", "data+pipeline+tensor"]
LINKS = {"infiniband": "InfiniBand, 25 GB/s a GPU", "ethernet": "Ethernet, 25 Gb/s a GPU"}
WORK_COLOURS = {
    "forward": style.SKY, "backward": style.BLUE, "gather": style.GREEN, "reduce": style.ORANGE,
    "all-reduce": style.ORANGE, "transfer": style.PURPLE,
}
PANEL = 2.5  # inches
LEFT = 0.85


# Small helpers.


def plain(value, _=None):
    """A tick of a log axis: 1,000 or 0.1."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def seconds(value, _=None):
    return f"{value:,.0f} s" if value >= 10 else f"{value:.3g} s"


def step_words(value):
    return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s"


def days(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def log_ticks(axis, formatter=plain, steps=(1, 2, 5)):
    axis.set_major_locator(LogLocator(subs=steps, numticks=30))
    axis.set_major_formatter(FuncFormatter(formatter))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def small_print(data):
    return " ".join(data["assumptions"])


def framed(data, panels, handles=(), headings=()):
    return style.framed(panels, data["title"], data["conclusion"], small_print(data), handles, headings)


def line_handle(label, colour, **how):
    return Line2D([], [], color=colour, label=label, linewidth=2, **how)


def drawn(points, x, y):
    """The points that have both values, as two lists."""
    kept = [(point[x], point[y]) for point in points if point[x] is not None and point[y] is not None]
    return [k[0] for k in kept], [k[1] for k in kept]


# One function a figure: data in, matplotlib figure out.


def frontier(data):
    links = list(data["links"])
    handles = [line_handle(label, colour) for _, label, colour in FAMILIES]
    panels = [(PANEL, LEFT)] * len(links) + [(PANEL * 0.8, LEFT)]
    headings = [(LINKS.get(link, link), "Shortest training time in days on at most so many GPUs") for link in links]
    headings.append(("Gain of the proposed methods", "Time of the baseline over time of the improved plans"))
    figure, axes = framed(data, panels, handles, headings)
    for link, panel in zip(links, axes):
        for key, _, colour in FAMILIES:
            x, y = drawn(data["links"][link], "gpus_at_most", f"{key}_days")
            panel.plot(x, y, color=colour, linewidth=2, marker="o", markersize=3.5,
                       linestyle=(0, (3, 1.5)) if key == "baseline_interleaved" else "-",
                       zorder=3 if key == "improved" else 2)
        panel.set_yscale("log")
        log_ticks(panel.yaxis)
    gains = axes[-1]
    for link, marker in zip(links, style.MARKERS):
        for key, colour in (("ratio", style.UNKNOWN), ("ratio_interleaved", style.ORANGE)):
            x, y = drawn(data["links"][link], "gpus_at_most", key)
            gains.plot(x, y, color=colour, linewidth=1.6, marker=marker, markersize=4.5,
                       linestyle="-" if link == links[0] else (0, (3, 1.5)))
    gains.axhline(1, color=style.INK, linewidth=0.8)
    gains.set_ylim(bottom=min(0.9, gains.get_ylim()[0]))
    gains.legend(handles=[line_handle(LINKS.get(link, link), style.MUTED, marker=marker, markersize=4.5,
                                      linestyle="-" if link == links[0] else (0, (3, 1.5)))
                          for link, marker in zip(links, style.MARKERS)], loc="upper left")
    for panel in axes:
        panel.set_xscale("log")
        log_ticks(panel.xaxis)
        panel.set_xlim(220, 115_000)
        panel.grid(True)
    gains.set_xlabel("GPUs")
    return figure


def headline(data):
    links = list(data["links"])
    handles = [Patch(color=colour, label=label) for _, label, colour in VARIANTS[:4]]
    headings = [(LINKS.get(link, link), "Days of training (log scale) · GPUs · memory a GPU") for link in links]
    figure, axes = framed(data, [(4.1, 1.75)] * len(links), handles, headings)
    longest = max(entry["plan"]["training_days"] for link in links for entry in data["links"][link] if entry["plan"])
    for link, panel in zip(links, axes):
        by_key = {(entry["strategy"], entry["variant"]): entry for entry in data["links"][link]}
        for row, strategy in enumerate(STRATEGIES):
            for place, (variant, _, colour) in enumerate(VARIANTS[:4]):
                entry = by_key[strategy, variant]
                at = row + (place - 1.5) * 0.215
                plan = entry["plan"]
                if plan is None:
                    panel.text(1.1, at, "no plan fits the memory", va="center", size=7.5, color=style.UNKNOWN,
                               style="italic")
                    continue
                panel.barh(at, plan["training_days"], height=0.19, color=colour, left=0)
                panel.text(plan["training_days"] * 1.06, at,
                           f"{days(plan['training_days'])} days · {plan['gpus']:,} GPUs · "
                           f"{plan['memory']['total_bytes'] / 1e9:.1f} GB",
                           va="center", size=7.5, color=style.INK)
        panel.set_xscale("log")
        log_ticks(panel.xaxis, steps=(1,))
        panel.set_xlim(1, longest * 150)
        panel.set_ylim(len(STRATEGIES) - 0.45, -0.55)
        panel.set_yticks(range(len(STRATEGIES)))
        panel.set_yticklabels(["one GPU" if name == "none" else name.replace("+", " + ") for name in STRATEGIES])
        panel.spines["left"].set_visible(False)
    return figure


def model_size(data):
    link = next(iter(data["links"]))
    points = data["links"][link]
    widest = STRATEGIES[-1]
    handles = [line_handle(label, colour) for _, label, colour in VARIANTS]
    headings = [
        ("Training time", f"Days; data + pipeline + tensor, {LINKS.get(link, link)}"),
        ("GPUs", "Number of GPUs of that fastest plan"),
        ("Memory", "GB a GPU of that fastest plan; dashed: what a GPU has"),
        ("Which strategy", "Days of the improved variant, per strategy"),
    ]
    figure, axes = framed(data, [(2.1, LEFT)] * 4, handles, headings)
    for variant, _, colour in VARIANTS:
        mine = [p for p in points if p["strategy"] == widest and p["variant"] == variant]
        for panel, key, scale in zip(axes, ("training_days", "gpus", "memory_bytes"), (1, 1, 1e9)):
            x, y = drawn(mine, "parameters", key)
            panel.plot(x, [value / scale for value in y], color=colour, linewidth=1.8, marker="o", markersize=3.5,
                       linestyle=(0, (3, 1.5)) if "host" in variant else "-", zorder=2 if "host" in variant else 3)
    axes[2].axhline(80, color=style.VERMILION, linewidth=1, linestyle=(0, (4, 3)))
    for number, strategy in enumerate(STRATEGIES):
        x, y = drawn([p for p in points if p["strategy"] == strategy and p["variant"] == "improved"], "parameters",
                     "training_days")
        axes[3].plot(x, y, color=style.series_colour(number), marker=style.series_marker(number), markersize=4,
                     linewidth=1.6, label="one GPU" if strategy == "none" else strategy.replace("+", " + "))
    axes[3].legend(loc="lower right", fontsize=8)
    for panel in axes:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlim(5e8, 1.3e14)
        panel.xaxis.set_major_locator(FixedLocator([1e9, 1e10, 1e11, 1e12, 1e13, 1e14]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(
            lambda value, _: f"{value / 1e9:g} billion" if value < 1e12 else f"{value / 1e12:g} trillion"))
        log_ticks(panel.yaxis, steps=(1,))
        panel.grid(True)
    axes[-1].set_xlabel("Parameters")
    return figure


def network(data):
    kinds = [("One stage", [m for m in data["methods"] if m["plan"]["parallel"]["pipeline"] == 1]),
             ("Pipeline", [m for m in data["methods"] if m["plan"]["parallel"]["pipeline"] > 1])]
    kinds = [kind for kind in kinds if kind[1]]
    headings = [(name, "Step time; a dot marks the bandwidth from which the network costs less than 5 %")
                for name, _ in kinds]
    figure, axes = framed(data, [(2.9, LEFT)] * len(kinds), (), headings)
    for (_, methods), panel in zip(kinds, axes):
        limits = []
        for method in methods:
            label = method["label"]
            improved = label.startswith(("layered", "modular"))
            colour = (style.BLUE if improved else style.GREEN if "interleaved" in label
                      else style.PURPLE if "GPipe" in label else style.VERMILION)
            x, y = drawn(method["points"], "bandwidth_bits_per_s", "step_time_s")
            panel.plot(x, y, color=colour, linewidth=1.9, label=label,
                       linestyle=(0, (3, 1.5)) if "ZeRO-3" in label else "-")
            limits += [y[-1]]
            panel.plot([method["threshold_bits_per_s"]], [1.05 * y[-1]], "o", color=colour, markersize=5.5,
                       markeredgecolor="white", zorder=4)
        panel.set_ylim(0.7 * min(limits), 60 * min(limits))
        for link in data["links"]:
            panel.axvline(link["bandwidth_bits_per_s"], color=style.MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
            panel.text(link["bandwidth_bits_per_s"] * 1.04, 54 * min(limits), link["name"], size=7.5,
                       color=style.MUTED, va="top")
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlim(1e9, 1e13)
        panel.xaxis.set_major_locator(FixedLocator([1e9, 1e10, 1e11, 1e12, 1e13]))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(
            lambda value, _: f"{value / 1e9:g} Gb/s" if value < 1e12 else f"{value / 1e12:g} Tb/s"))
        log_ticks(panel.yaxis, seconds)
        panel.grid(True)
        panel.legend(loc="upper right", fontsize=8, bbox_to_anchor=(1, 0.94))
    axes[-1].set_xlabel("Bandwidth between nodes, per GPU and direction")
    return figure


def memory(data):
    kinds = [("parameters_bytes", "Parameters", style.BLUE), ("gradients_bytes", "Gradients", style.SKY),
             ("optimizer_bytes", "Optimizer", style.GREEN), ("buffers_bytes", "Gather and gradient buffers", style.ORANGE),
             ("checkpoints_bytes", "Checkpoints", style.VERMILION),
             ("working_set_bytes", "Layer in flight", style.PURPLE)]
    methods = data["methods"]
    limit = data["device_memory_bytes"] / 1e9
    figure, (panel,) = framed(data, [(0.36 * len(methods) + 0.2, 2.1)],
                              [Patch(color=colour, label=label) for _, label, colour in kinds])
    edge = 1.5 * limit
    for row, method in enumerate(methods):
        left = 0
        for key, _, colour in kinds:
            width = method[key] / 1e9
            panel.barh(row, max(0, min(width, edge - left)), left=left, height=0.62, color=colour)
            left = min(edge, left + width)
        total = method["total_bytes"] / 1e9
        panel.text(left + 1, row, f"{total:,.1f} GB" if total < 100 else f"… {total:,.0f} GB", va="center", size=8,
                   color=style.INK if method["fits"] else style.VERMILION)
    panel.axvline(limit, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    panel.text(limit, -0.62, f" a GPU has {limit:.0f} GB", size=8, color=style.INK, va="bottom")
    panel.set_xlim(0, edge * 1.14)
    panel.set_ylim(len(methods) - 0.5, -0.6)
    panel.set_yticks(range(len(methods)))
    panel.set_yticklabels([f"{m['label']}" for m in methods])
    panel.set_xlabel("Memory a GPU (GB)")
    panel.spines["left"].set_visible(False)
    return figure


def batch_law(data):
    laws = [("gpt3", style.BLUE), ("kaplan", style.ORANGE)]
    headings = [("Critical batch", "Tokens a step against parameters"),
                ("Gain of the proposed methods",
                 f"Time of the baseline over time of the improved plans, at most {data['cases'][0]['gpus_at_most']:,} "
                 "GPUs")]
    figure, (curves, bars) = framed(data, [(1.9, LEFT), (2.5, 2.3)],
                                    [line_handle(f"law {law}", colour) for law, colour in laws], headings)
    for law, colour in laws:
        x, y = drawn([p for p in data["curves"] if p["law"] == law], "parameters", "critical_batch_tokens")
        curves.plot(x, [value / 1e6 for value in y], color=colour, linewidth=2)
    curves.set_xscale("log")
    curves.set_yscale("log")
    curves.xaxis.set_major_locator(FixedLocator([1e9, 1e10, 1e11, 1e12, 1e13, 1e14]))
    curves.xaxis.set_minor_locator(NullLocator())
    curves.xaxis.set_major_formatter(FuncFormatter(
        lambda value, _: f"{value / 1e9:g} billion" if value < 1e12 else f"{value / 1e12:g} trillion"))
    log_ticks(curves.yaxis, lambda value, _: f"{value:g} M", steps=(1,))
    curves.grid(True)
    cases = data["cases"]
    colours = dict(laws)
    for row, case in enumerate(cases):
        for place, key in enumerate(("ratio", "ratio_interleaved")):
            if case[key] is None:
                continue
            at = row + (place - 0.5) * 0.36
            bars.barh(at, case[key] - 1, left=1, height=0.32, color=colours[case["law"]], alpha=(1, 0.45)[place])
            bars.text(max(1, case[key]) + 0.01, at,
                      f"{case[key]:.2f} " + ("over the baseline", "over the interleaved baseline")[place],
                      va="center", size=7.5)
    bars.axvline(1, color=style.INK, linewidth=0.8)
    lows = [case[key] for case in cases for key in ("ratio", "ratio_interleaved") if case[key]]
    bars.set_xlim(min(0.95, min(lows) - 0.03), max(lows) + 0.35)
    bars.set_ylim(len(cases) - 0.5, -0.5)
    bars.set_yticks(range(len(cases)))
    bars.set_yticklabels([f"{case['law']}, {case['rule'].replace('_', ' ')}, "
                          f"{case['link'].replace('infiniband', 'InfiniBand').replace('ethernet', 'Ethernet')}"
                          for case in cases])
    bars.spines["left"].set_visible(False)
    return figure


def timeline(data):
    panels = data["panels"]
    lanes = []
    for panel in panels:
        ranks = sorted({event["rank"] for event in panel["events"]})
        if len(ranks) == 1:
            lanes.append([(0, "compute", "compute"), (0, "data", "network")])
        else:
            lanes.append([(rank, "compute", f"rank {rank}") for rank in ranks])
    works = [("forward", "Forward"), ("backward", "Backward with recomputation"), ("gather", "Gather of parameters"),
             ("reduce", "Reduction of gradients")]
    # Panels of one heading share their time axis, so that lengths compare.
    ends = {}
    for panel in panels:
        ends[panel["panel"]] = max(ends.get(panel["panel"], 0), panel["end"])
    figure, axes = framed(data, [(0.27 * len(rows) + 0.1, LEFT) for rows in lanes],
                          [Patch(color=WORK_COLOURS[key], label=label) for key, label in works],
                          [(f"{panel['method']}, {panel['panel']}".replace(", pipeline", " pipeline"),
                            f"{panel['end']:g} units; numbers are layers, the first one of each stage"
                            if panel["method"] == "GPipe" else f"{panel['end']:g} units; numbers are layers") for panel in panels])
    for panel, rows, ax in zip(panels, lanes, axes):
        place = {(rank, lane): row for row, (rank, lane, _) in enumerate(rows)}
        scale = (style.WIDTH - LEFT - 0.3) / (1.02 * ends[panel["panel"]])  # inches a unit
        for event in panel["events"]:
            row = place.get((event["rank"], event["lane"]))
            if row is None:
                continue
            width = event["end"] - event["start"]
            ax.barh(row, width, left=event["start"], height=0.82, color=WORK_COLOURS[event["work"]],
                    edgecolor="white", linewidth=0.6)
            if width * scale > 0.09:
                ax.text(event["start"] + width / 2, row, event["layer"], ha="center", va="center", size=6.5,
                        color="white" if event["work"] == "backward" else style.INK)
        ax.axvline(panel["end"], color=style.INK, linewidth=1)
        ax.set_xlim(0, 1.02 * ends[panel["panel"]])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.set_yticks(range(len(rows)))
        ax.set_yticklabels([label for _, _, label in rows])
        ax.spines["left"].set_visible(False)
    axes[-1].set_xlabel("Time, in forward passes of one layer and micro-batch")
    return figure


def published(data):
    rows = data["rows"]
    kinds = [("layers_s", "Layers", style.BLUE), ("bubble_s", "Pipeline bubble", style.SKY),
             ("boundary_s", "Boundary transfers", style.PURPLE),
             ("exposed_data_s", "Exposed gathers and reductions", style.ORANGE),
             ("head_s", "Head", style.GREEN), ("vocabulary_s", "Embedding's reduction", style.YELLOW),
             ("update_s", "Update", style.VERMILION)]
    tall = 0.27 * len(rows) + 0.1
    left = 0.25 + max(style.text_width(row["id"], 8) for row in rows)
    headings = [("Predicted over measured step time", "Dots: at the efficiencies reached; circles: at the links' "
                 "nominal rates; grey: 10 % to either side"),
                ("What the predicted step is made of", "Share of the predicted step; colours as in the legend above")]
    figure, (ratios, parts) = framed(data, [(tall, left), (tall, left)],
                                     [Patch(color=colour, label=label) for _, label, colour in kinds], headings)
    known = [row[key] for row in rows for key in ("ratio", "ratio_at_nominal_links") if row[key] is not None]
    low, high = min([0.8, *known]) / 1.12, max([1.25, *known]) * 1.12
    ratios.axvspan(1 / 1.1, 1.1, color=style.FAINT, alpha=0.5, linewidth=0)
    ratios.axvline(1, color=style.INK, linewidth=0.8)
    for place, row in enumerate(rows):
        if row["predicted_step_s"] is None:
            words = style.wrap(f"not predicted: {row['reason']}", style.WIDTH - left - 0.4, 7.5, lines=1)
            for panel in (ratios, parts):
                panel.text(0.01, place, words, transform=panel.get_yaxis_transform(), va="center", size=7.5,
                           color=style.UNKNOWN, style="italic")
            continue
        start = 0
        for key, _, colour in kinds:
            width = row[key] / row["predicted_step_s"]
            parts.barh(place, width, left=start, height=0.7, color=colour)
            start += width
        parts.text(1.01, place, step_words(row["predicted_step_s"]), va="center", size=7.5, color=style.MUTED)
        if row["ratio"] is None:
            ratios.text(0.01, place, row["reason"], transform=ratios.get_yaxis_transform(), va="center", size=7.5,
                        color=style.UNKNOWN, style="italic")
            continue
        ratios.plot([1, row["ratio"]], [place, place], color=style.INK, linewidth=1.2, zorder=2)
        ratios.plot([row["ratio_at_nominal_links"]], [place], "o", markersize=5, markerfacecolor="none",
                    markeredgecolor=style.MUTED, zorder=3)
        ratios.plot([row["ratio"]], [place], "o", markersize=5, color=style.INK, zorder=4)
        ratios.text(1.01, place, " / ".join(step_words(row[f"{kind}_step_s"]) for kind in ("predicted", "measured")),
                    transform=ratios.get_yaxis_transform(), va="center", ha="left", size=7.5, color=style.MUTED)
    ratios.set_xscale("log")
    ratios.set_xlim(low, high)
    ticks = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10)
    ratios.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    ratios.xaxis.set_minor_locator(NullLocator())
    ratios.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    parts.set_xlim(0, 1)
    parts.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    for panel in (ratios, parts):
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.set_yticks(range(len(rows)))
        panel.set_yticklabels([row["id"] for row in rows], size=8)
        panel.spines["left"].set_visible(False)
        # Room for the times at the right.
        box = panel.get_position()
        panel.set_position([box.x0, box.y0, box.width - 1.0 / style.WIDTH, box.height])
    return figure


FIGURES = {"timeline": timeline, "headline": headline, "frontier": frontier, "model-size": model_size,
           "network": network, "memory": memory, "batch-law": batch_law, "published": published}


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Draws the paper's figures from their data.")
    parser.add_argument("data", help="the folder with NAME.json")
    parser.add_argument("--figure", action="append", choices=sorted(FIGURES), help="only this one; may be repeated")
    parser.add_argument("--out", help="where the pictures go (default: beside the data)")
    options = parser.parse_args(arguments)
    style.apply()
    made = 0
    for name, draw in FIGURES.items():
        if options.figure and name not in options.figure:
            continue
        path = os.path.join(options.data, f"{name}.json")
        if not os.path.exists(path):
            if options.figure:
                sys.exit(f"{path}: no such file")
            continue
        try:
            with open(path, encoding="utf-8") as file:
                data = json.load(file)
            figure = draw(data)
        except (ValueError, KeyError, TypeError) as error:
            sys.exit(f"{path}: not the data of figure {name}: {error!r}")
        for written in style.save(figure, options.out or options.data, name):
            print(written)
        made += 1
    if made == 0:
        sys.exit(f"{options.data}: holds no figure's data")


if __name__ == "__main__":
    main()
