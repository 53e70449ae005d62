"""Reading result files (schema version 1) into what a figure needs."""

import json
import math
from dataclasses import dataclass, field


class ResultError(Exception):
    """A result file that cannot be drawn; the message is one line naming the file."""


@dataclass
class Metric:
    """A metric's samples with their median and spread; all None or empty where it was not measured."""

    median: float = None
    low: float = None
    high: float = None
    spread: str = None  # what low and high are: "range", or "median_95" for the median's 95 % interval
    samples: list = field(default_factory=list)
    reason: str = None


def load(path):
    """The result file as a dictionary."""
    try:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ResultError(f"{path}: not JSON: {error}") from error
    if not isinstance(result, dict) or not isinstance(result.get("runs"), list):
        raise ResultError(f"{path}: not a result file: it has no list of runs")
    if result.get("schema_version") != 1:
        raise ResultError(f"{path}: schema version {result.get('schema_version')}; this program reads version 1")
    return result


def finite(value):
    """The value as a float, or None for null, text, true, nan and infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def metric(run, name):
    """A run's metric by name; an empty Metric (with the reason, if any is given) where there is none."""
    entry = (run.get("metrics") or {}).get(name)
    if not isinstance(entry, dict):
        return Metric(reason=run.get("reason"))
    samples = [finite(sample) for sample in entry.get("samples") or []]
    return Metric(
        median=finite(entry.get("median")),
        low=finite(entry.get("low")),
        high=finite(entry.get("high")),
        spread=entry.get("spread"),
        samples=[sample for sample in samples if sample is not None],
        reason=entry.get("reason") or run.get("reason"),
    )


def deep(value, path):
    """value[a][b]… for the path "a.b…", None where a key is missing."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def count(number, noun):
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def prefix(value):
    """The decimal prefix that suits a value, and its power of ten: 4e8 gives ("M", 1e6)."""
    if value == 0:
        return "", 1.0
    exponent = min(4, max(-3, math.floor(math.log10(abs(value)) / 3 + 1e-9)))
    return {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T"}[exponent], 1000.0**exponent


def scaled(value, unit, digits=3):
    """A value with a decimal prefix: 4e8, "b/s" gives "400 Mb/s"."""
    value = float(f"{value:.{digits}g}")  # rounded first, so that 999.9 ms reads 1 s
    letter, factor = prefix(value)
    return f"{value / factor:g} {letter}{unit}"


def seconds(value):
    return scaled(value, "s")


def link_text(result):
    """The link in words. A calibrated bandwidth is one found on the machine at hand."""
    link = deep(result, "scenario.transport.link")
    if not isinstance(link, dict):
        return None
    words = []
    if link.get("preset"):
        words.append(str(link["preset"]))
    bandwidth, latency = finite(link.get("bandwidth_bits_per_s")), finite(link.get("latency_s"))
    if bandwidth:
        words.append(scaled(bandwidth, "b/s"))
    if latency:
        words.append(f"latency {seconds(latency)}")
    if not words and finite(link.get("all_reduce_share_of_compute")) is not None:
        words.append(f"all-reduce of {100 * link['all_reduce_share_of_compute']:g} % of compute")
    return "link " + ", ".join(words) if words else None


def ranks_text(runs):
    """The number of ranks of the runs that were measured: "2 ranks", "1 to 4 ranks"."""
    measured = [run for run in runs if metric(run, "step_time_s").median is not None] or runs
    sizes = sorted({math.prod(deep(run, "plan.parallel").values()) for run in measured if deep(run, "plan.parallel")})
    if not sizes:
        return None
    return count(sizes[0], "rank") if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} ranks"


def model_text(result):
    model = deep(result, "scenario.model")
    if not isinstance(model, dict):
        return None
    words = [f"{key} {model[key]}" if key != "layers" else f"{model[key]} layers"
             for key in ("layers", "hidden", "sequence") if key in model]
    return ", ".join(words) or None


def provenance(result):
    """Revision, date and machine of a result, for the small print."""
    context = result.get("context") or {}
    revision = deep(context, "build.revision") or "unknown"
    if deep(context, "build.dirty"):
        revision += " with local changes"
    words = [f"lamina {revision}"]
    if result.get("started"):
        words.append(str(result["started"]).replace("T", " ").replace("Z", " UTC"))
    if deep(context, "host.cpu"):
        words.append(f"{deep(context, 'host.cpu')}, {count(deep(context, 'host.cores') or 0, 'core')}")
    if result.get("run_id"):
        words.append(f"run {result['run_id']}")
    return " · ".join(words)
