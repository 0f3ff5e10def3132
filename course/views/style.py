"""One look for every picture: a light card, a palette that colour-blind readers can tell apart, and five labels.

The palette is that of Okabe and Ito (2008), darkened where it also colours text. Sizes are chosen for a phone: a figure is five
inches wide and its text at least 10 points, so that at 360 pixels no letter is smaller than 10 pixels.
"""

import matplotlib.pyplot as plt

INK = "#1f2430"
MUTED = "#565d6b"
GRID = "#dfe3e9"
FAINT = "#eef1f5"
CARD = "#ffffff"

BLUE = "#0072b2"
VERMILLION = "#c44e00"
GREEN = "#00795c"
PURPLE = "#9a4c86"
GOLD = "#e69f00"
SKY = "#56b4e9"
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, GOLD, SKY)

WIDTH = 5.0  # inches; every figure has this width

# The five kinds of number, as keyword arguments of Axes.plot. Shape, not colour, tells them apart: colour is free for series.
STYLES: dict[str, dict] = {
    "computed": {"linestyle": "-", "linewidth": 1.8, "marker": ""},
    "counted": {"linestyle": "", "marker": "s", "markersize": 6.5},
    "recorded": {"linestyle": "", "marker": "o", "markersize": 6.5, "markerfacecolor": CARD, "markeredgewidth": 1.6},
    "live": {"linestyle": "", "marker": "D", "markersize": 6.5},
    "quoted": {"linestyle": "", "marker": "x", "markersize": 7.5, "markeredgewidth": 2.0},
}

RC = {
    "figure.facecolor": CARD,
    "figure.dpi": 100,
    "savefig.facecolor": CARD,
    "font.family": "DejaVu Sans",  # ships with matplotlib, so that every machine draws the same letters
    "font.size": 10,
    "text.color": INK,
    "axes.facecolor": CARD,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.which": "major",
    "axes.prop_cycle": plt.cycler(color=SERIES),
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "hatch.linewidth": 0.8,
}


def subplots(*args, height: float = 3.4, **kwargs):
    """``plt.subplots`` in the course's look: five inches wide, ``height`` inches high. Give the figure to ``views.figure``.

    Sets matplotlib's defaults for the process: a legend or a text added later takes its look from them.
    """
    plt.rcParams.update(RC)
    return plt.subplots(*args, figsize=(WIDTH, height), layout="constrained", **kwargs)
