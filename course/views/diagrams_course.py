"""The pages of the course and what each needs, as a drawing of those that exist."""

from collections.abc import Iterable

from . import style
from .diagrams import NOTEBOOKS, _arrow, _card, _sheet
from .figures import Figure, figure

PRIMER, ARITHMETIC, KERNEL = "primer", "arithmetic", "kernel"
NAMES = {ARITHMETIC: "arithmetic", KERNEL: "kernels", PRIMER: "primers"}
COLOURS = {PRIMER: (style.MUTED, "#eef1f5"), ARITHMETIC: (style.BLUE, "#dcebf6"), KERNEL: (style.VERMILLION, "#fbe6da")}
# Page: what it is about in few words, its kind, its place (column, row), and the pages it needs.
PAGES: dict[str, tuple[str, str, tuple[float, float], tuple[str, ...]]] = {
    "0": ("Start here", ARITHMETIC, (0, 0), ()),
    "P1": ("A GPU", PRIMER, (1, 0), ("0",)),
    "P2": ("Triton", PRIMER, (1, 1), ("P1",)),
    "P3": ("Attention", PRIMER, (2, 1), ()),
    "1": ("The KV cache", ARITHMETIC, (0, 1), ("0", "P1")),
    "2": ("Sharing heads", ARITHMETIC, (0, 2), ("1",)),
    "3": ("Full sequence", KERNEL, (1, 2), ("P2", "P3", "2")),
    "3b": ("Backward", KERNEL, (2, 2), ("3",)),
    "4": ("Grouped heads", KERNEL, (1, 3), ("3",)),
    "5": ("Flash-Decoding", KERNEL, (1, 4), ("4",)),
    "6": ("Pages", KERNEL, (2, 4), ("5",)),
    "7": ("MLA: compress", ARITHMETIC, (0, 4), ("2",)),
    "8": ("MLA: absorb", KERNEL, (1, 5), ("5", "7")),
    "9": ("Costs", ARITHMETIC, (0, 6), ("7",)),
}
OPTIONAL = ("3b",)


def written_pages() -> tuple[str, ...]:
    """Pages that have a notebook, by their number: '0', 'P1', '3b'."""
    stems = [path.stem.split("_")[0] for path in NOTEBOOKS.glob("*_*.ipynb")]
    numbers = {stem.lstrip("0").upper().replace("B", "b") or "0" for stem in stems}
    return tuple(page for page in PAGES if page in numbers)


def course_map(pages: Iterable[str] | None = None) -> Figure:
    """The pages of the course as boxes, an arrow from each page to those that need it; by default those that exist.

    An arrow is left out where a longer way says the same. ValueError for a page that is not known.
    """
    shown = written_pages() if pages is None else tuple(pages)
    if unknown := [page for page in shown if page not in PAGES]:
        raise ValueError(f"pages must be among {', '.join(PAGES)}, got {', '.join(map(str, unknown))}")
    rows = sorted({PAGES[page][2][1] for page in shown})
    height, width, pitch = 4.6, 14.2, 8.0
    tall = pitch * len(rows) + 3.4
    fig, ax = _sheet(tall)

    def corner(page: str) -> tuple[float, float]:
        column, row = PAGES[page][2]
        return 1.0 + column * 16.9, tall - pitch * rows.index(row) - height - 1.0

    for page in shown:
        for needed in PAGES[page][3]:
            if needed not in shown:
                continue
            (x0, y0), (x1, y1) = corner(needed), corner(page)
            if y0 == y1:  # side by side
                start, end = (x0 + width, y0 + height / 2), (x1, y1 + height / 2)
            elif x0 == x1:
                start, end = (x0 + width / 2, y0), (x1 + width / 2, y1 + height)
            elif x0 < x1:
                start, end = (x0 + width * 0.8, y0), (x1 + width * 0.2, y1 + height)
            else:
                start, end = (x0 + width * 0.2, y0), (x1 + width * 0.8, y1 + height)
            _arrow(ax, start, end, colour=style.MUTED, line=1.1)
    for page in shown:
        words, kind, _, _ = PAGES[page]
        edge, fill = COLOURS[kind]
        x, y = corner(page)
        _card(ax, x, y, width, height, edge=edge, fill=fill, line=1.3, linestyle=(0, (3, 2)) if page in OPTIONAL else "-")
        ax.text(x + 0.9, y + height / 2, page, va="center", fontsize=10.5, weight="bold", color=edge)
        ax.text(x + (3.6 if len(page) > 1 else 2.7), y + height / 2, words, va="center", fontsize=9.5)
    x = 1.0
    for kind, words in NAMES.items():
        if any(PAGES[page][1] == kind for page in shown):
            edge, fill = COLOURS[kind]
            _card(ax, x, 0.7, 1.8, 1.4, edge=edge, fill=fill, line=1.2)
            ax.text(x + 2.5, 1.35, words, va="center", fontsize=9.5)
            x += 12
    needs = "; ".join(
        f"{page} {PAGES[page][0]}"
        + (f" needs {' and '.join(found)}" if (found := [n for n in PAGES[page][3] if n in shown]) else "")
        for page in shown
    )
    return figure(
        fig,
        name="course-map",
        caption="The pages and what each needs: follow the arrows. A dashed page is optional.",
        alt=f"Boxes joined by arrows, one a page of the course. {needs}.",
    )
