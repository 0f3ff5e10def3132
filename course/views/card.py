"""The card that stands for the course where somebody links to it: 1200 by 630 pixels, as such places show them."""

import io

import matplotlib.pyplot as plt
from PIL import Image

from . import style
from .diagrams import token_path
from .figures import Figure, figure

INCHES = (6.0, 3.15)  # at 200 pixels an inch
SHARE = 0.49  # of the width, for the path; the rest is for words


def social_card() -> Figure:
    """Title and aim of the course, and the upper part of its map, as large as can be read."""
    plt.rcParams.update(style.RC)
    fig = plt.figure(figsize=INCHES)
    width, height = (round(inches * 200) for inches in INCHES)
    with Image.open(io.BytesIO(token_path().png)) as whole:
        scale = SHARE * width / whole.width
        path = whole.convert("RGB").resize((round(SHARE * width), round(whole.height * scale)), Image.Resampling.LANCZOS)
    path = path.crop((0, 0, path.width, height))
    ax = fig.add_axes((1 - SHARE, 0, SHARE, 1))
    ax.imshow(path, aspect="auto", interpolation="none")
    ax.axis("off")
    left = 0.05
    fig.text(left, 0.7, "From MHA\nto MLA", fontsize=31, weight="bold", va="center", linespacing=1.1)
    fig.text(left, 0.43, "KV caches and\nattention kernels", fontsize=14.5, va="center", color=style.BLUE, linespacing=1.2)
    aim = "Predict a decode step, read the\nkernel, measure it against\nthe arithmetic."
    fig.text(left, 0.2, aim, fontsize=10.5, va="center", color=style.MUTED, linespacing=1.3)
    words = "From MHA to MLA, with one cached token's way through a decode step beside it."
    return figure(fig, name="card", caption=words, alt=words)
