"""Tests of plots/paper.py: what is drawn from small data, and how bad input is met."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "plots"))

import paper  # noqa: E402
import style  # noqa: E402


def frontier_data():
    entry = {"gpus_at_most": 1000, "baseline_days": 4.0, "baseline_interleaved_days": 3.0, "improved_days": 2.0,
             "ratio": 2.0, "ratio_interleaved": 1.5}
    missing = {key: None for key in entry} | {"gpus_at_most": 500}
    return {"title": "A title", "conclusion": "A conclusion.", "assumptions": ["One.", "Two."],
            "links": {"infiniband": [missing, entry, dict(entry, gpus_at_most=5000)], "ethernet": [entry]}}


def published_data():
    parts = {"layers_s": 6.0, "bubble_s": 1.0, "boundary_s": 0.5, "exposed_data_s": 1.5, "head_s": 0.7,
             "vocabulary_s": 0.1, "update_s": 0.2}
    row = parts | {"id": "one", "predicted_step_s": 10.0, "measured_step_s": 8.0, "ratio": 1.25,
                   "ratio_at_nominal_links": 1.1, "reason": None}
    missing = {key: None for key in row} | {"id": "two", "measured_step_s": 3.0, "reason": "'hidden' is not stated"}
    unmeasured = row | {"id": "three", "measured_step_s": None, "ratio": None, "ratio_at_nominal_links": None,
                        "reason": "no measured step time"}
    return {"title": "A title", "conclusion": "A conclusion.", "assumptions": ["One."],
            "rows": [row, missing, unmeasured]}


class Drawing(unittest.TestCase):
    def setUp(self):
        style.apply()

    def test_missing_points_are_left_out(self):
        figure = paper.frontier(frontier_data())
        for line, days in zip(figure.axes[0].lines, (4.0, 3.0, 2.0)):
            self.assertEqual(list(line.get_xdata()), [1000, 5000])
            self.assertEqual(list(line.get_ydata()), [days, days])

    def test_words_stand_in_the_picture(self):
        figure = paper.frontier(frontier_data())
        words = " ".join(text.get_text() for text in figure.texts)
        for part in ("A title", "A conclusion.", "One. Two."):
            self.assertIn(part, words)

    def test_memory_beyond_the_edge_is_cut_and_marked(self):
        kinds = ("parameters", "gradients", "optimizer", "buffers", "checkpoints", "working_set")
        method = {f"{kind}_bytes": 50e9 for kind in kinds} | {"label": "huge", "total_bytes": 300e9, "fits": False}
        data = frontier_data() | {"methods": [method], "device_memory_bytes": 80e9}
        axes = paper.memory(data).axes[0]
        self.assertEqual(max(bar.get_x() + bar.get_width() for bar in axes.patches), 120)
        self.assertIn("… 300 GB", [text.get_text() for text in axes.texts])


    def test_published_rows_all_stand_there(self):
        ratios, parts = paper.published(published_data()).axes
        for panel in (ratios, parts):
            self.assertEqual([label.get_text() for label in panel.get_yticklabels()], ["one", "two", "three"])
        words = [text.get_text() for text in ratios.texts]
        self.assertIn("10.0 s / 8.00 s", words)
        self.assertIn("not predicted: 'hidden' is not stated", words)
        self.assertIn("no measured step time", words)
        dots = [tuple(line.get_xdata()) for line in ratios.lines if line.get_marker() == "o"]
        self.assertEqual(sorted(dots), [(1.1,), (1.25,)])
        widths = [bar.get_width() for bar in parts.patches if round(bar.get_y() + bar.get_height() / 2) == 0]
        self.assertAlmostEqual(sum(widths), 1)
        self.assertAlmostEqual(widths[0], 0.6)

    def test_published_without_any_ratio(self):
        data = published_data()
        data["rows"] = data["rows"][1:]
        self.assertEqual(len(paper.published(data).axes), 2)


class Command(unittest.TestCase):
    def refused(self, *arguments):
        with self.assertRaises(SystemExit) as caught, contextlib.redirect_stderr(io.StringIO()):
            paper.main(arguments)
        return str(caught.exception)

    def test_writes_both_kinds(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "frontier.json"), "w", encoding="utf-8") as file:
                json.dump(frontier_data(), file)
            with contextlib.redirect_stdout(io.StringIO()):
                paper.main([folder])
            self.assertEqual(sorted(os.listdir(folder)), ["frontier.json", "frontier.pdf", "frontier.png"])

    def test_bad_data_gets_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertIn("holds no figure's data", self.refused(folder))
            self.assertIn("no such file", self.refused(folder, "--figure", "memory"))
            for content in ("", "{}", "[1]"):
                with open(os.path.join(folder, "memory.json"), "w", encoding="utf-8") as file:
                    file.write(content)
                message = self.refused(folder)
                self.assertIn("not the data of figure memory", message)
                self.assertNotIn("\n", message)


if __name__ == "__main__":
    unittest.main()
