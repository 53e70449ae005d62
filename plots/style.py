"""What all figures share: colours, sizes, frame (title, subtitle, small print) and saving.

Import this before anything of matplotlib: it chooses a backend that needs no display and, where the home folder cannot
be written, a temporary folder for matplotlib's caches.
"""

import atexit
import os
import shutil
import tempfile


def _settle_config_folder():
    if "MPLCONFIGDIR" in os.environ:
        return
    try:
        for variable, fallback in (("XDG_CONFIG_HOME", "~/.config"), ("XDG_CACHE_HOME", "~/.cache")):
            folder = os.path.join(os.environ.get(variable) or os.path.expanduser(fallback), "matplotlib")
            os.makedirs(folder, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        folder = tempfile.mkdtemp(prefix="lamina-plots-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["MPLCONFIGDIR"] = folder


_settle_config_folder()

import matplotlib  # noqa: E402  (after the folder is settled)

matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.backends.backend_agg import RendererAgg  # noqa: E402
from matplotlib.font_manager import FontProperties  # noqa: E402
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


_renderer = RendererAgg(1, 1, 72)


def text_width(text, size, weight="normal", style="normal"):
    """Width of the widest line, in inches."""
    font = FontProperties(size=size, weight=weight, style=style)
    return max(_renderer.get_text_width_height_descent(line or " ", font, False)[0] for line in text.split("\n")) / 72


def wrap(text, inches, size, weight="normal", style="normal", lines=None):
    """Breaks the text between words so that it fits the width; what does not fit into `lines` lines ends in “…”."""
    def fits(line):
        return text_width(line, size, weight, style) <= inches

    broken = [""]
    for word in str(text).split():
        joined = f"{broken[-1]} {word}".strip()
        if fits(joined) or not broken[-1]:
            broken[-1] = joined
        else:
            broken.append(word)
    cut = lines is not None and len(broken) > lines
    broken = broken[:lines]
    for number, line in enumerate(broken):  # too long a word, or room for the mark of the cut
        mark = "…" if cut and number == len(broken) - 1 else ""
        while line and not fits(line + mark):
            line, mark = line[:-1].rstrip(), "…"
        broken[number] = line + mark
    return "\n".join(broken)


MARGIN = 0.22  # inches
HEADING = 0.45  # inches above a panel for a heading of its own


def legend_columns(handles, room):
    """Columns that a legend fits into."""
    widths = [text_width(handle.get_label(), 9) + 0.55 for handle in handles] or [room]
    return len(widths) if sum(widths) <= room else max(1, int(room / max(widths)))


def framed(panels, title="", subtitle="", small_print="", handles=(), headings=()):
    """A figure of panels one below the other: title, subtitle, legend, panels, small print. Sizes in inches.

    `panels` has a (height, room left of the axes) for each; `handles` make the legend's line; `headings`, where given,
    has a (bold line, plain line) for each panel. Returns the figure and its list of axes.
    """
    margin, right, gap = MARGIN, 0.3, 0.75 + (HEADING if headings else 0)
    room = WIDTH - 2 * margin
    title, subtitle = wrap(title, room, 13, "bold", lines=3), wrap(subtitle, room, 9.5)
    small_print = "\n".join(wrap(line, room, 6.8) for line in small_print.split("\n"))
    title_height = 0.245 * (1 + title.count("\n"))
    subtitle_height = 0.19 * (1 + subtitle.count("\n"))
    small_height = 0.15 * (1 + small_print.count("\n"))
    columns = legend_columns(handles, room)
    legend_height = 0.08 + 0.22 * -(-len(handles) // columns)
    above = margin + title_height + 0.07 + subtitle_height + 0.08  # down to the legend
    head = above + legend_height + (HEADING + 0.15 if headings else 0)
    foot = 0.62 + small_height + margin * 0.7
    height = head + sum(panel_height for panel_height, _ in panels) + gap * (len(panels) - 1) + foot
    figure = pyplot.figure(figsize=(WIDTH, height))

    def line(inches_down, text, **how):
        figure.text(margin / WIDTH, 1 - inches_down / height, text, va="top", **how)

    line(margin, title, size=13, weight="bold", linespacing=1.2)
    line(margin + title_height + 0.07, subtitle, size=9.5, color=MUTED, linespacing=1.3)
    figure.text(margin / WIDTH, margin * 0.7 / height, small_print, va="bottom", size=6.8, color=UNKNOWN,
                linespacing=1.3)
    if handles:
        figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(margin / WIDTH, 1 - above / height),
                      borderaxespad=0, borderpad=0, ncol=columns, handlelength=1.4, handleheight=0.9,
                      columnspacing=1.8)

    axes, down = [], head
    for number, (panel_height, left) in enumerate(panels):
        if headings:
            bold, plain = headings[number]
            line(down - HEADING, wrap(bold, room, 10, "bold", lines=1), size=10, weight="bold")
            line(down - HEADING + 0.19, wrap(plain, room, 8.5, lines=1), size=8.5, color=MUTED)
        down += panel_height
        place = [left / WIDTH, 1 - down / height, (WIDTH - left - right) / WIDTH, panel_height / height]
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
