"""Figures as one displayable thing: the picture, its caption and its words for those who cannot see it."""

import base64
import html
import io
import re
from dataclasses import dataclass

import matplotlib.pyplot as plt
from matplotlib.figure import Figure as Canvas
from PIL import Image

from . import style

PIXELS_PER_INCH = 200
COLOURS = 128  # flat colours and their soft edges need no more, and the file shrinks to a third


@dataclass(frozen=True)
class Figure:
    """A finished picture: PNG bytes with a caption and an alternative text, both plain text."""

    name: str
    caption: str
    alt: str
    png: bytes
    width: int  # CSS pixels on a wide page

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        data = base64.b64encode(self.png).decode()
        return {"text/plain": repr(self), "text/html": self.html(data), "image/png": data}

    def __repr__(self) -> str:
        return f"Figure {self.name}: {self.caption}"

    def html(self, data: str) -> str:
        """The figure for a page; ``data`` is the PNG in base64. The card stays light in a dark theme."""
        return (
            f'<figure class="course-figure" id="figure-{self.name}" style="margin:1em 0">'
            f'<img alt="{html.escape(self.alt)}" src="data:image/png;base64,{data}" '
            f'style="width:100%;max-width:{self.width}px;height:auto;background:{style.CARD};border-radius:8px">'
            f'<figcaption style="max-width:{self.width}px">{html.escape(self.caption)}</figcaption></figure>'
        )


def figure(fig: Canvas, *, name: str, caption: str, alt: str) -> Figure:
    """Finish a matplotlib figure: draw it once, close it (so that a notebook does not show it twice), add its words.

    ``name`` becomes the html id. The bytes depend on the drawing and on matplotlib's version only. ValueError for a name that
    is no id, or for an empty caption or alternative text.
    """
    check_name(name)
    for argument, text in (("caption", caption), ("alt", alt)):
        if not text.strip():
            raise ValueError(f"{argument} of figure {name!r} is empty: say in words what the picture shows")
    drawn = io.BytesIO()
    fig.savefig(drawn, format="png", dpi=PIXELS_PER_INCH, facecolor=style.CARD, metadata={"Software": None})
    width = round(fig.get_figwidth() * 120)
    plt.close(fig)
    return Figure(name, caption.strip(), alt.strip(), shrink(drawn.getvalue()), width)


def check_name(name: str) -> None:
    """ValueError unless ``name`` can be an html id in this book: lower-case letters, digits and hyphens."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise ValueError(f"name must be lower-case letters, digits and hyphens, got {name!r}")


def shrink(png: bytes) -> bytes:
    """The same picture with a palette of few colours."""
    small = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()
