"""Tests of plots/: what is drawn from sample results, and how bad input is met."""

import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PLOTS = os.path.join(HERE, "..", "..", "plots")
SAMPLES = os.path.join(HERE, "plots")
sys.path.insert(0, PLOTS)

import step_time  # noqa: E402
import results  # noqa: E402
import style  # noqa: E402
from matplotlib import pyplot  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402
from matplotlib.transforms import Bbox  # noqa: E402


def sample(name):
    return os.path.join(SAMPLES, f"{name}.json")


def all_samples():
    return sorted(name[: -len(".json")] for name in os.listdir(SAMPLES) if name.endswith(".json"))


def figure_of(*loaded):
    style.apply()
    return step_time.draw(list(loaded))


def words(figure):
    """Every text in the figure that is not empty."""
    return [text.get_text() for text in texts(figure) if text.get_text().strip()]


def texts(figure):
    return figure.findobj(lambda artist: hasattr(artist, "get_text"))


def labels_out_of_view(axes):
    """Labels that matplotlib keeps for ticks beyond the axes' limits and never draws."""
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        for tick in axis.get_major_ticks():
            if not low <= tick.get_loc() <= high:
                yield from (tick.label1, tick.label2)


def bars(axes):
    """(left, width) of every bar, in data coordinates."""
    drawn = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return [(round(bar.get_x(), 9), round(bar.get_width(), 9)) for bar in drawn]


class Figures(unittest.TestCase):
    def tearDown(self):
        pyplot.close("all")

    def test_bars_are_compute_then_exposed_communication(self):
        axes = figure_of(results.load(sample("two_runs"))).axes[0]
        self.assertEqual(bars(axes), [(0, 2.94), (2.94, 1.39), (0, 2.88), (2.88, 0.17)])

    def test_title_subtitle_and_small_print_say_what_was_measured(self):
        text = "\n".join(words(figure_of(results.load(sample("two_runs")))))
        self.assertIn("Depth-first against layered accumulation on two ranks over a slow link", text)
        for part in ("accumulation-ethernet", "2 ranks", "612 Mb/s", "8 layers", "median of 5 steps"):
            self.assertIn(part, text)
        self.assertIn("lamina 0123abc", text)
        self.assertIn("2 cores", text)

    def test_local_changes_are_told(self):
        text = "\n".join(words(figure_of(results.load(sample("partial")))))
        self.assertIn("lamina 0123abc with local changes", text)

    def test_step_times_and_ratio_are_written(self):
        text = words(figure_of(results.load(sample("two_runs"))))
        self.assertIn("4.33 s", text)
        self.assertIn("3.05 s", text)
        self.assertIn("1.42× as fast as depth-first", text)

    def test_whiskers_span_the_spread(self):
        axes = figure_of(results.load(sample("two_runs"))).axes[0]
        spans = [segment[:, 0].tolist() for lines in axes.collections for segment in lines.get_segments()]
        for span, expected in zip(spans, ([4.29, 4.40], [3.02, 3.11]), strict=True):
            for measured, wanted in zip(span, expected, strict=True):
                self.assertAlmostEqual(measured, wanted, places=9)

    def test_labels_keep_clear_of_the_whiskers(self):
        result = results.load(sample("two_runs"))
        step = result["runs"][0]["metrics"]["step_time_s"]
        step["low"] = 0.8 * step["median"]
        figure = figure_of(result)
        figure.canvas.draw()
        axes = figure.axes[0]
        whiskers = [Bbox(axes.transData.transform(segment)) for lines in axes.collections
                    for segment in lines.get_segments()]
        self.assertEqual(len(whiskers), 2)
        for text in axes.texts:
            for whisker in whiskers:
                self.assertFalse(whisker.overlaps(text.get_window_extent()), text.get_text())

    def test_runs_without_a_step_time_are_words(self):
        figure = figure_of(results.load(sample("partial")))
        text = " ".join(" ".join(words(figure)).split())
        self.assertIn("failed: rank 3: CHECK failed: bytes == expected", text)
        self.assertIn("skipped: batch.global is 16, not a multiple of 5", text)
        self.assertIn("no step time: every step was a warm-up step", text)
        self.assertEqual(bars(figure.axes[0]), [(0, 2.94), (2.94, 1.39), (0, 2.88), (2.88, 0.17), (0, 2.55)])

    def test_step_time_without_a_split_is_drawn_whole(self):
        self.assertIn("not split", words(figure_of(results.load(sample("partial")))))
        self.assertNotIn("not split", words(figure_of(results.load(sample("two_runs")))))

    def test_all_runs_failed(self):
        figure = figure_of(results.load(sample("all_failed")))
        self.assertEqual(bars(figure.axes[0]), [])
        self.assertIn("failed: rank 1: no memory", words(figure))

    def test_no_runs(self):
        result = results.load(sample("two_runs"))
        result["runs"] = []
        self.assertIn("no runs", words(figure_of(result)))

    def test_one_step_of_one_run(self):
        figure = figure_of(results.load(sample("single")))
        self.assertEqual(bars(figure.axes[0]), [(0, 0.0042), (0.0042, 0)])
        self.assertIn("link ethernet-25g", " ".join(words(figure)))

    def test_zero_step_time(self):
        result = results.load(sample("single"))
        result["runs"][0]["metrics"]["step_time_s"].update(samples=[0], median=0)
        self.assertEqual(bars(figure_of(result).axes[0]), [(0, 0), (0, 0)])

    def test_exposed_beyond_the_step_is_cut(self):
        result = results.load(sample("single"))
        result["runs"][0]["metrics"]["exposed_communication_s"]["median"] = 1.0
        self.assertEqual(bars(figure_of(result).axes[0]), [(0, 0), (0, 0.0042)])

    def test_sweep_is_a_line_for_each_run_of_the_scenario(self):
        figure = figure_of(results.load(sample("sweep")))
        axes = figure.axes[0]
        lines = {line.get_color(): line.get_xydata().tolist() for line in axes.lines if line.get_linestyle() == "-" and
                 line.get_marker() in ("o", "s")}
        self.assertEqual(len(lines), 2)
        places = [[x for x, _ in line] for line in lines.values()]
        self.assertEqual(places, [[1e8, 2e8, 4e8, 8e8, 1.6e9, 6.4e9]] * 2)
        self.assertEqual(lines[style.series_colour(0)][0][1], 10.8764)  # depth-first at 100 Mb/s
        self.assertEqual(axes.get_xscale(), "log")
        text = " ".join(words(figure))
        self.assertIn("depth-first at 0 b/s: skipped: the link must have a bandwidth above 0", text)
        self.assertNotIn("612 Mb/s", text)  # the swept link is no longer the scenario's

    def test_zero_stands_at_the_end_of_a_logarithmic_axis(self):
        axes = figure_of(results.load(sample("sweep_from_zero"))).axes[0]
        self.assertEqual(axes.get_xscale(), "symlog")
        self.assertEqual([tick for tick in axes.get_xticks()], [0, 1e-5, 1e-4, 1e-3])
        self.assertEqual(axes.lines[0].get_xdata().tolist(), [0, 1e-5, 1e-4, 1e-3])

    def test_sweep_over_words(self):
        result = results.load(sample("sweep_from_zero"))
        for run in result["runs"]:
            run["sweep"] = {"runs[].recompute": "none" if run["sweep"]["transport.link.latency_s"] == 0 else "full"}
        labels = [tick.get_text() for tick in figure_of(result).axes[0].get_xticklabels()]
        self.assertEqual(labels, ["none", "full"])

    def test_words_are_not_joined_and_runs_stand_side_by_side(self):
        result = results.load(sample("sweep"))
        for run in result["runs"]:
            run["sweep"] = {"transport.collectives": f"word {next(iter(run['sweep'].values()))}"}
        marked = [line for line in figure_of(result).axes[0].lines if len(line.get_xdata()) > 2]
        self.assertTrue(all(line.get_linestyle() == "None" for line in marked))
        places = [place for line in marked for place in line.get_xdata()]
        self.assertEqual(len(set(places)), len(places))
        self.assertGreater(len(marked), 1)

    def test_nothing_leaves_the_figure(self):
        loaded = {name: [results.load(sample(name))] for name in all_samples()}
        loaded["together"] = [one for each in loaded.values() for one in each]
        long = results.load(sample("two_runs"))
        long["scenario"]["purpose"] = "Depth-first against layered accumulation " * 8
        long["runs"][0]["name"] = "a-very-long-name-of-a-run-" * 5
        long["runs"][1]["metrics"]["step_time_s"].update(median=43.0, high=44.0)
        loaded["long"] = [long]
        for name, each in loaded.items():
            with self.subTest(name):
                figure = figure_of(*each)
                figure.canvas.draw()
                box = figure.bbox.padded(1)
                hidden = {id(label) for axes in figure.axes for label in labels_out_of_view(axes)}
                for text in texts(figure):
                    if text.get_text().strip() and id(text) not in hidden:
                        extent = text.get_window_extent()
                        self.assertTrue(box.x0 <= extent.x0 and extent.x1 <= box.x1, text.get_text())
                        self.assertTrue(box.y0 <= extent.y0 and extent.y1 <= box.y1, text.get_text())


class CommandLine(unittest.TestCase):
    def run_it(self, *arguments, **environment):
        return subprocess.run(
            [sys.executable, "-B", os.path.join(PLOTS, "step_time.py"), *arguments],
            capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"], **environment})

    def test_needs_neither_display_nor_home(self):
        with tempfile.TemporaryDirectory() as out, tempfile.NamedTemporaryFile() as file:
            # Nobody, not even root, makes a folder below a file.
            done = self.run_it(sample("two_runs"), "--out", out, HOME=f"{file.name}/home")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(sorted(os.listdir(out)), ["step_time.pdf", "step_time.png"])
            with open(os.path.join(out, "step_time.png"), "rb") as file:
                self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")
            with open(os.path.join(out, "step_time.pdf"), "rb") as file:
                self.assertEqual(file.read(5), b"%PDF-")

    def test_same_result_same_bytes(self):
        sums = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as out, contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(step_time.main([sample("two_runs"), "--out", out]), 0)
                for name in ("step_time.png", "step_time.pdf"):
                    with open(os.path.join(out, name), "rb") as file:
                        sums.append(hashlib.sha256(file.read()).hexdigest())
        self.assertEqual(sums[:2], sums[2:])

    def test_bad_files_are_named_in_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            for content, told in (("", "not JSON"), ("{", "not JSON"), ("[]", "no list of runs"),
                                  ("{}", "no list of runs"), ('{"schema_version": 2, "runs": []}', "version 2")):
                with self.subTest(content):
                    path = os.path.join(folder, "bad.json")
                    with open(path, "w", encoding="utf-8") as file:
                        file.write(content)
                    errors = io.StringIO()
                    with contextlib.redirect_stderr(errors):
                        self.assertEqual(step_time.main([path, "--out", folder]), 2)
                    self.assertIn(path, errors.getvalue())
                    self.assertIn(told, errors.getvalue())
                    self.assertEqual(errors.getvalue().count("\n"), 1)
            done = self.run_it(os.path.join(folder, "absent.json"), "--out", folder)
            self.assertEqual(done.returncode, 2)
            self.assertIn("absent.json: No such file", done.stderr)


class Reading(unittest.TestCase):
    def test_numbers_that_are_none(self):
        for value in (None, "4", True, float("nan"), float("inf"), [1]):
            self.assertIsNone(results.finite(value))
        self.assertEqual(results.finite(4), 4.0)

    def test_units(self):
        self.assertEqual(results.scaled(4e8, "b/s"), "400 Mb/s")
        self.assertEqual(results.scaled(25e9, "b/s"), "25 Gb/s")
        self.assertEqual(results.seconds(0.0123456), "12.3 ms")
        self.assertEqual(results.seconds(0.99999), "1 s")
        self.assertEqual(results.seconds(1234.0), "1.23 ks")
        self.assertEqual(results.seconds(0), "0 s")

    def test_samples_fit_the_format(self):
        for name in all_samples():
            with open(sample(name), encoding="utf-8") as file:
                json.load(file, parse_constant=lambda word: self.fail(f"{name} holds {word}"))


if __name__ == "__main__":
    unittest.main()
