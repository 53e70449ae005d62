"""Step time of each run of one or more result files, split into compute and exposed communication.

    python3 plots/step_time.py RESULT.json... --out DIR

Writes DIR/step_time.png and DIR/step_time.pdf: a panel for each result file. Runs of a plain scenario are bars; runs
of a sweep are lines over the swept key. Exposed communication is the part of a step in which a rank's compute stream
ran nothing; the rest is called compute. Whiskers span the spread given in the result, dots are the measured steps.
A run that failed, was skipped or has no step time is shown as words.
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import style  # before matplotlib

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

import results

BAR_ROW = 0.74  # inches a run takes
LINES_HEIGHT = 3.4  # inches of a sweep's panel
BAR = 0.46  # thickness of a bar, in rows
NAME_ROOM = 2.9  # inches that a run's name and plan may take
DASHES = (0, (2, 2))
ASIDE = 0.16  # between runs at one word of a sweep, of the distance between words
UNSPLIT = {"facecolor": style.FAINT, "edgecolor": style.UNKNOWN, "hatch": "////", "linewidth": 0}


# What a panel is about.


def swept_keys(result):
    keys = []
    for run in result["runs"]:
        keys += [key for key in run.get("sweep") or {} if key not in keys]
    return keys


def subtitle(result):
    link_swept = any(key.startswith("transport.link") for key in swept_keys(result))
    samples = max((len(results.metric(run, "step_time_s").samples) for run in result["runs"]), default=0)
    parts = [
        results.deep(result, "scenario.name"),
        results.ranks_text(result["runs"]),
        None if link_swept else results.link_text(result),
        results.model_text(result),
        f"median of {samples} steps" if samples > 1 else "1 step" if samples else None,
    ]
    return " · ".join(part for part in parts if part)


def title(result):
    return results.deep(result, "scenario.purpose") or results.deep(result, "scenario.name") or "Step time"


def why_missing(run, metric):
    """What stands in place of a run that has no step time."""
    status = run.get("status") or "ok"
    reason = metric.reason or run.get("reason") or "no reason given"
    return f"no step time: {reason}" if status == "ok" else f"{status}: {reason}"


def time_axis(axis, limit):
    """Plain numbers along the axis, their unit in its label."""
    letter, factor = results.prefix(limit)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / factor:g}"))
    axis.set_label_text(f"time of a step ({letter}s)")


def name_text(run):
    return style.wrap(run.get("name", "?"), NAME_ROOM, 10, "bold", lines=1)


def plan_text(run):
    """The plan in a few words: what it is, without what is at its default."""
    plan = run.get("plan") or {}
    words = [str(plan.get("method", "")).replace("_", " ")]
    if plan.get("zero_stage"):
        words.append(f"ZeRO-{plan['zero_stage']}")
    if plan.get("micro_batches") is not None:
        words.append(results.count(plan["micro_batches"], "micro-batch").replace("batchs", "batches"))
    if (plan.get("groups") or 1) > 1:
        words.append(f"{plan['groups']} groups")
    if plan.get("recompute") not in (None, "none"):
        words.append(f"recompute {plan['recompute']}")
    return ", ".join(word for word in words if word)


# Bars: one a run.


def draw_bars(axes, result):
    rows = [(run, results.metric(run, "step_time_s")) for run in result["runs"]]
    measured = [(run, metric) for run, metric in rows if metric.median is not None]
    widest = max((end_of(metric) for _, metric in measured), default=0) or 1
    axes.set_xlim(0, widest * 1.28)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks([])
    axes.spines[["left", "bottom"]].set_visible(False)
    if measured:
        axes.grid(axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        time_axis(axes.xaxis, widest)
    else:
        axes.set_xticks([])
    for row, (run, metric) in enumerate(rows):
        write_name(axes, row, run)
        if metric.median is None:
            write_reason(axes, row, run, metric)
        else:
            draw_bar(axes, row, metric, results.metric(run, "exposed_communication_s").median)
            write_time(axes, row, metric, *measured[0])


def end_of(metric):
    """How far a bar with its whiskers and dots reaches."""
    return max([metric.median, metric.high or 0, *metric.samples])


def write_name(axes, row, run):
    """The run's name over its plan, left of the bar."""
    how = {"ha": "right", "va": "center", "transform": style.shifted(axes, -9, -3)}
    plan = style.wrap(plan_text(run), NAME_ROOM, 7.8, lines=1)
    axes.text(0, row, name_text(run) + "\n", size=10, weight="bold", linespacing=1.1, **how)
    axes.text(0, row, "\n" + plan, size=7.8, color=style.MUTED, linespacing=1.25, **how)


def write_reason(axes, row, run, metric):
    """Why there is no bar, in its place."""
    words = style.wrap(why_missing(run, metric), inches_across(axes) - 0.1, 9, style="italic", lines=2)
    colour = style.VERMILION if run.get("status") == "failed" else style.MUTED
    axes.text(0, row, words, size=9, style="italic", color=colour, va="center", transform=style.shifted(axes, 6, 0))


def write_time(axes, row, metric, first_run, first):
    """The step time and, but for the first run, how it compares with the first, right of the bar."""
    end, comparison = end_of(metric), ""
    if metric is not first and first.median > 0 and metric.median > 0:
        comparison = f"{first.median / metric.median:.2f}× as fast"
        named = f"{comparison} as {first_run.get('name')}"
        room = inches_across(axes) * (1 - end / axes.get_xlim()[1]) + 0.1
        comparison = named if style.text_width(named, 8.5) <= room else comparison
    axes.text(end, row, results.seconds(metric.median), size=10.5, weight="bold", va="center",
              transform=style.shifted(axes, 8, 6 if comparison else 0))
    axes.text(end, row, comparison, size=8.5, color=style.MUTED, va="center", transform=style.shifted(axes, 8, -7))


def inches_across(axes):
    return axes.get_position().width * style.WIDTH


def draw_bar(axes, row, metric, exposed):
    if exposed is None:
        axes.barh(row, metric.median, BAR, **UNSPLIT)
    else:
        exposed = min(max(exposed, 0), metric.median)
        compute = metric.median - exposed
        axes.barh(row, compute, BAR, color=style.COMPUTE)
        axes.barh(row, exposed, BAR, left=compute, color=style.EXPOSED)
        clear = metric.low if has_spread(metric) else metric.median  # of the whiskers
        for left, width, colour in ((0, compute, "white"), (compute, exposed, style.INK)):
            room = min(left + width, clear) - left
            words = results.seconds(width)
            if style.text_width(words, 9) + 0.12 < inches_across(axes) * room / axes.get_xlim()[1]:
                axes.text(left + room / 2, row, words, size=9, color=colour, ha="center", va="center")
    if len(metric.samples) > 1:
        axes.plot(metric.samples, [row + BAR / 2 + 0.08] * len(metric.samples), "o", markersize=2.6, color=style.INK,
                  alpha=0.55, markeredgewidth=0, clip_on=False)
    whiskers(axes, metric, row, horizontal=True)


def has_spread(metric):
    return metric.low is not None and metric.high is not None and metric.high > metric.low


def whiskers(axes, metric, place, horizontal, colour=style.INK):
    if not has_spread(metric):
        return
    spread = [[max(0, metric.median - metric.low)], [max(0, metric.high - metric.median)]]
    where = (metric.median, place) if horizontal else (place, metric.median)
    axes.errorbar(*where, **{"xerr" if horizontal else "yerr": spread}, color=colour, elinewidth=1.1, capsize=3,
                  capthick=1.1, zorder=5)


def bars_left(result):
    """Room left of the bars, in inches, for names and plans."""
    widths = [0.9]
    for run in result["runs"]:
        widths.append(style.text_width(name_text(run), 10, "bold"))
        widths.append(style.text_width(style.wrap(plan_text(run), NAME_ROOM, 7.8, lines=1), 7.8))
    return max(widths) + 0.4


# Lines: step time over the swept key.


def series_of(result, keys):
    """Runs by line: the run of the scenario, and the other swept values where several keys are swept."""
    series = {}
    for run in result["runs"]:
        words = [str(run.get("run") or run.get("name", "?"))]
        others = [(key, value) for key, value in (run.get("sweep") or {}).items() if key != keys[0]]
        words += [f"{key.rsplit('.', 1)[-1]} {value}" for key, value in others]
        series.setdefault(", ".join(words), []).append(run)
    return series


def key_axis(key):
    """Label and formatter of a swept key; the unit stands in its name."""
    last = key.rsplit(".", 1)[-1]
    for ending, unit in (("_bits_per_s", "b/s"), ("_bytes", "B"), ("_s", "s")):
        if last.endswith(ending):
            words = last[: -len(ending)].replace("_", " ")
            parent = key.split(".")[-2] if "." in key else ""
            return f"{parent} {words}".strip(), lambda value, _: results.scaled(value, unit)
    return key, lambda value, _: f"{value:g}"


def draw_lines(axes, result, keys):
    label, formatter = key_axis(keys[0])
    lines, missing, words = points_of(result, keys, formatter)
    for number, line in enumerate(lines):
        if words:  # side by side, so that near ones can be told apart
            aside = min(ASIDE, 0.8 / len(lines)) * (number - (len(lines) - 1) / 2)
            line = [(place + aside, *rest) for place, *rest in line]
        draw_line(axes, line, style.series_colour(number), style.series_marker(number), joined=not words)
    axes.grid(True)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(label)
    measured = [point for line in lines for point in line]
    if not measured:
        axes.set_xticks([])
        axes.set_yticks([])
    else:
        if words:
            axes.set_xticks(range(len(words)), words)
            axes.set_xlim(-0.5, len(words) - 0.5)
        else:
            set_scale(axes, [place for place, _, _ in measured])
            axes.xaxis.set_major_formatter(FuncFormatter(formatter))
        top = max(end_of(metric) for _, metric, _ in measured) or 1
        axes.set_ylim(0, top * 1.08)
        time_axis(axes.yaxis, top)
    write_missing(axes, missing, centred=not measured)


def points_of(result, keys, formatter):
    """The points (place, step time, exposed communication) of each line, by place; what is missing, in words; and,
    where the swept values are words, those words, whose positions are then the places."""
    series = series_of(result, keys)
    values = [run["sweep"].get(keys[0]) for runs in series.values() for run in runs if run.get("sweep")]
    words = []
    if any(results.finite(value) is None for value in values):
        words = list(dict.fromkeys(str(value) for value in values))
    lines, missing = [], []
    for name, runs in series.items():
        line = []
        for run in runs:
            metric, value = results.metric(run, "step_time_s"), (run.get("sweep") or {}).get(keys[0])
            if metric.median is None:
                at = value if results.finite(value) is None else formatter(value, None)
                missing.append(f"{name} at {at}: {why_missing(run, metric)}")
            elif value is not None:
                place = words.index(str(value)) if words else results.finite(value)
                line.append((place, metric, results.metric(run, "exposed_communication_s").median))
        lines.append(sorted(line, key=lambda point: point[0]))
    return lines, missing, words


def draw_line(axes, line, colour, marker, joined):
    """Step time as markers with whiskers, the compute within it dashed; joined where values lie between the places."""
    axes.plot([place for place, _, _ in line], [metric.median for _, metric, _ in line], color=colour, marker=marker,
              markersize=6, linewidth=1.8, linestyle="-" if joined else "none", markeredgecolor="white",
              markeredgewidth=0.8, zorder=4)
    for place, metric, _ in line:
        whiskers(axes, metric, place, horizontal=False, colour=colour)
    split = [(place, metric.median - min(max(exposed, 0), metric.median)) for place, metric, exposed in line
             if exposed is not None]
    how = {"color": colour, "linewidth": 1.2, "linestyle": DASHES, "zorder": 3}
    if split and joined:
        axes.plot(*zip(*split), **how)
    for place, compute in [] if joined else split:
        axes.plot([place - ASIDE / 3, place + ASIDE / 3], [compute, compute], **how)


def write_missing(axes, missing, centred):
    """What could not be drawn, inside the axes: a few of them, then their number."""
    shown = [style.wrap(words, 5.5, 8, style="italic", lines=1) for words in missing[:4]]
    if len(missing) > 4:
        shown.append(f"and {len(missing) - 4} more without a step time")
    if shown:
        axes.text(0.5, 0.5 if centred else 0.03, "\n".join(shown), transform=axes.transAxes, size=8, style="italic",
                  color=style.MUTED, ha="center", va="center" if centred else "bottom", zorder=6,
                  bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2})


def set_scale(axes, places):
    """Logarithmic where the swept values span a decade or more, with zero at its left end where it is one of them."""
    positive = sorted({place for place in places if place > 0})
    distinct = sorted(set(places))
    if not positive or positive[-1] < 10 * positive[0]:
        if len(distinct) == 1:
            axes.set_xlim(distinct[0] - max(1, abs(distinct[0])) * 0.5, distinct[0] + max(1, abs(distinct[0])) * 0.5)
        ticks = distinct
    elif distinct[0] < 0:
        ticks = None
    else:
        if distinct[0] == 0:
            axes.set_xscale("symlog", linthresh=positive[0], linscale=0.6)
            axes.set_xlim(-0.15 * positive[0], positive[-1] * 1.3)
        else:
            axes.set_xscale("log")
            axes.set_xlim(positive[0] / 1.3, positive[-1] * 1.3)
        ticks = distinct
    if ticks is not None and len(ticks) <= 9:
        axes.set_xticks(ticks)
        axes.xaxis.set_minor_locator(NullLocator())


# The figure.


def draw(loaded):
    """The figure of these results: a panel for each."""
    sweeps = [swept_keys(result) for result in loaded]
    lines = [list(series_of(result, keys)) if keys else [] for result, keys in zip(loaded, sweeps)]
    several = len(loaded) > 1
    handles = bar_handles([result for result, keys in zip(loaded, sweeps) if not keys])
    if not several:
        handles += line_handles(lines[0])
    figure, panels = style.framed(
        [(LINES_HEIGHT, 0.85) if keys else (BAR_ROW * max(1, len(result["runs"])), bars_left(result))
         for result, keys in zip(loaded, sweeps)],
        title="Time of a training step" if several else title(loaded[0]),
        subtitle=f"{len(loaded)} result files" if several else subtitle(loaded[0]),
        small_print="\n".join(dict.fromkeys(results.provenance(result) for result in loaded)),
        handles=handles,
        headings=[(title(result), subtitle(result)) for result in loaded] if several else (),
    )
    for axes, result, keys, names in zip(panels, loaded, sweeps, lines):
        if keys:
            draw_lines(axes, result, keys)
            if several:
                axes.legend(handles=line_handles(names), loc="best")
        elif result["runs"]:
            draw_bars(axes, result)
        else:
            axes.axis("off")
            axes.text(0.5, 0.5, "no runs", transform=axes.transAxes, style="italic", color=style.MUTED, ha="center")
    return figure


def bar_handles(loaded):
    """The legend of the bars: only what occurs."""
    split = unsplit = several = False
    spreads = []
    for run in (run for result in loaded for run in result["runs"]):
        metric = results.metric(run, "step_time_s")
        if metric.median is None:
            continue
        known = results.metric(run, "exposed_communication_s").median is not None
        split, unsplit = split or known, unsplit or not known
        if has_spread(metric):
            spreads.append({"range": "range", "median_95": "median's 95 % interval"}.get(metric.spread, "spread"))
        several = several or len(metric.samples) > 1
    handles = []
    if split:
        handles.append(Patch(color=style.COMPUTE, label="compute"))
        handles.append(Patch(color=style.EXPOSED, label="exposed communication"))
    if unsplit:
        handles.append(Patch(**UNSPLIT, label="not split"))
    if several:
        handles.append(Line2D([], [], color=style.INK, marker="o", linestyle="", markersize=3, alpha=0.6,
                              label="measured steps"))
    if spreads:
        handles.append(Line2D([], [], color=style.INK, marker="|", linewidth=1.1, markersize=7,
                              label=" or ".join(dict.fromkeys(spreads))))
    return handles


def line_handles(names):
    """The legend of a sweep's lines."""
    handles = [Line2D([], [], color=style.series_colour(number), marker=style.series_marker(number), linewidth=1.8,
                      markeredgecolor="white", label=name) for number, name in enumerate(names)]
    if names:
        handles.append(Line2D([], [], color=style.MUTED, linewidth=1.2, linestyle=DASHES, label="compute alone"))
    return handles


def main(arguments):
    parser = argparse.ArgumentParser(
        description="Draws the step time of each run, split into compute and exposed communication.")
    parser.add_argument("results", nargs="+", metavar="RESULT.json", help="result files of `lamina run`")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder that step_time.png and step_time.pdf go to")
    options = parser.parse_args(arguments)
    style.apply()
    try:
        loaded = [results.load(path) for path in options.results]
        paths = style.save(draw(loaded), options.out, "step_time")
    except (results.ResultError, OSError) as error:
        print(f"step_time: {error}", file=sys.stderr)
        return 2
    print("\n".join(paths))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
