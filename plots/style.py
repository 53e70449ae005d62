"""What all figures share: colours, sizes, frame (title, subtitle, small print) and saving.

Import this before anything of matplotlib: it chooses a backend that needs no display and, where the home folder cannot
be written, a temporary folder for matplotlib's caches.
"""

import atexit
import os
import shutil
import tempfile
import textwrap


def _settle_config_folder():
    if "MPLCONFIGDIR" in os.environ:
        return
    home = os.path.expanduser("~")
    if os.path.isdir(home) and os.access(home, os.W_OK):
        return
    folder = tempfile.mkdtemp(prefix="lamina-plots-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["MPLCONFIGDIR"] = folder


_settle_config_folder()

import matplotlib  # noqa: E402  (after the folder is settled)

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.transforms import ScaledTranslation  # noqa: E402

# Okabe and Ito's palette: told apart with any colour vision, and in grey by their lightness.
BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW = "#56B4E9", "#CC79A7", "#F0E442"
SERIES = [BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY]
MARKERS = ["o", "s", "^", "D", "v", "P"]

COMPUTE, EXPOSED = BLUE, ORANGE
INK, MUTED, FAINT, UNKNOWN = "#1F2328", "#59636E", "#D9DEE3", "#8C959F"

WIDTH = 8.0  # inches
DPI = 160


def apply():
    """Sets matplotlib's defaults to this project's."""
    pyplot.rcdefaults()
    pyplot.rcParams.update(
        {
            "font.family": "DejaVu Sans",
            "font.size": 9.5,
            "text.color": INK,
            "text.parse_math": False,  # names and reasons are shown as they are written
            "axes.labelcolor": MUTED,
            "axes.labelsize": 9.5,
            "axes.edgecolor": FAINT,
            "axes.linewidth": 0.8,
            "axes.axisbelow": True,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": False,
            "grid.color": FAINT,
            "grid.linewidth": 0.7,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "xtick.major.size": 0,
            "ytick.major.size": 0,
            "legend.frameon": False,
            "legend.fontsize": 9,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "pdf.fonttype": 42,
            "svg.hashsalt": "lamina",
        }
    )


def series_colour(number):
    return SERIES[number % len(SERIES)]


def series_marker(number):
    return MARKERS[number % len(MARKERS)]


def wrap(text, columns, lines=None):
    """Wraps text at words; cut to `lines` lines with an ellipsis."""
    wrapped = textwrap.wrap(str(text), columns, break_long_words=True) or [""]
    if lines is not None and len(wrapped) > lines:
        wrapped = wrapped[:lines]
        wrapped[-1] = wrapped[-1][: columns - 1].rstrip() + "…"
    return "\n".join(wrapped)


def text_width(text, size, weight="normal"):
    """Width of the widest line, in inches."""
    figure = pyplot.figure(dpi=100)
    try:
        drawn = figure.text(0, 0, text, size=size, weight=weight)
        return drawn.get_window_extent(figure.canvas.get_renderer()).width / 100
    finally:
        pyplot.close(figure)


MARGIN = 0.22  # inches
HEADING = 0.45  # inches above a panel for a heading of its own


def framed(panel_heights, left=0.75, title="", subtitle="", small_print="", handles=(), headings=()):
    """A figure of panels one below the other: title, subtitle, legend, panels, small print. Sizes in inches.

    `left` is the room for what stands left of the axes; `handles` make the legend's line; `headings`, where given, has
    a (bold line, plain line) for each panel. Returns the figure and its list of axes.
    """
    title, subtitle = wrap(title, 74), wrap(subtitle, 108)
    small_print = "\n".join(wrap(line, 150) for line in small_print.split("\n"))
    margin, right, gap = MARGIN, 0.3, 0.75 + (HEADING if headings else 0)
    title_height = 0.245 * (1 + title.count("\n"))
    subtitle_height = 0.19 * (1 + subtitle.count("\n"))
    small_height = 0.15 * (1 + small_print.count("\n"))
    legend_height = 0.3 if handles else 0.05
    above = margin + title_height + 0.07 + subtitle_height + 0.08  # down to the legend
    head = above + legend_height + (HEADING if headings else 0)
    foot = 0.62 + small_height + margin * 0.7
    height = head + sum(panel_heights) + gap * (len(panel_heights) - 1) + foot
    figure = pyplot.figure(figsize=(WIDTH, height))

    def line(inches_down, text, **how):
        figure.text(margin / WIDTH, 1 - inches_down / height, text, va="top", **how)

    line(margin, title, size=13, weight="bold", linespacing=1.2)
    line(margin + title_height + 0.07, subtitle, size=9.5, color=MUTED, linespacing=1.3)
    figure.text(margin / WIDTH, margin * 0.7 / height, small_print, size=6.8, color=UNKNOWN, va="bottom", linespacing=1.3)
    if handles:
        figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(margin / WIDTH, 1 - above / height),
                      borderaxespad=0, borderpad=0, ncol=len(handles), handlelength=1.4, handleheight=0.9,
                      columnspacing=1.8)

    axes, down = [], head
    for number, panel in enumerate(panel_heights):
        if headings:
            bold, plain = headings[number]
            line(down - HEADING, wrap(bold, 92, 1), size=10, weight="bold")
            line(down - HEADING + 0.19, wrap(plain, 122, 1), size=8.5, color=MUTED)
        down += panel
        place = [left / WIDTH, 1 - down / height, (WIDTH - left - right) / WIDTH, panel / height]
        axes.append(figure.add_axes(place))
        down += gap
    return figure, axes


def shifted(axes, points_x, points_y):
    """A transform of data coordinates moved by points."""
    return axes.transData + ScaledTranslation(points_x / 72, points_y / 72, axes.figure.dpi_scale_trans)


def save(figure, folder, name):
    """Writes NAME.png and NAME.pdf, each whole or not at all; the same figure gives the same bytes."""
    os.makedirs(folder, exist_ok=True)
    paths = []
    for kind, metadata in (("png", {"Software": None}), ("pdf", {"CreationDate": None})):
        path = os.path.join(folder, f"{name}.{kind}")
        partial = f"{path}.partial"
        figure.savefig(partial, format=kind, dpi=DPI, metadata=metadata)
        os.replace(partial, path)
        paths.append(path)
    pyplot.close(figure)
    return paths
