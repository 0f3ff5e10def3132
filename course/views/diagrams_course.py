"""The pages of the course and what each needs, as a drawing of those that exist."""

from collections.abc import Iterable

from . import style
from .contents import ARITHMETIC, KERNEL, OPTIONAL, PAGES, PRIMER, written_pages
from .diagrams import _arrow, _card, _sheet
from .figures import Figure, figure

NAMES = {ARITHMETIC: "arithmetic", KERNEL: "kernels", PRIMER: "primers"}
COLOURS = {PRIMER: (style.MUTED, "#eef1f5"), ARITHMETIC: (style.BLUE, "#dcebf6"), KERNEL: (style.VERMILLION, "#fbe6da")}


def course_map(pages: Iterable[str] | None = None) -> Figure:
    """The pages of the course as boxes, an arrow from each page to those that need it; by default those that exist.

    An arrow is left out where a longer way says the same. ValueError for a page that is not known.
    """
    shown = written_pages() if pages is None else tuple(pages)
    if unknown := [page for page in shown if page not in PAGES]:
        raise ValueError(f"pages must be among {', '.join(PAGES)}, got {', '.join(map(str, unknown))}")
    rows = sorted({PAGES[page].place[1] for page in shown})
    height, width, pitch = 4.6, 14.2, 8.0
    tall = pitch * len(rows) + 3.4
    fig, ax = _sheet(tall)

    def corner(page: str) -> tuple[float, float]:
        column, row = PAGES[page].place
        return 1.0 + column * 16.9, tall - pitch * rows.index(row) - height - 1.0

    for page in shown:
        for needed in PAGES[page].needs:
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
        words, kind = PAGES[page].words, PAGES[page].kind
        edge, fill = COLOURS[kind]
        x, y = corner(page)
        _card(ax, x, y, width, height, edge=edge, fill=fill, line=1.3, linestyle=(0, (3, 2)) if page in OPTIONAL else "-")
        ax.text(x + 0.9, y + height / 2, page, va="center", fontsize=10.5, weight="bold", color=edge)
        ax.text(x + (3.6 if len(page) > 1 else 2.7), y + height / 2, words, va="center", fontsize=9.5)
    x = 1.0
    for kind, words in NAMES.items():
        if any(PAGES[page].kind == kind for page in shown):
            edge, fill = COLOURS[kind]
            _card(ax, x, 0.7, 1.8, 1.4, edge=edge, fill=fill, line=1.2)
            ax.text(x + 2.5, 1.35, words, va="center", fontsize=9.5)
            x += 12
    needs = "; ".join(
        f"{page} {PAGES[page].words}"
        + (f" needs {' and '.join(found)}" if (found := [n for n in PAGES[page].needs if n in shown]) else "")
        for page in shown
    )
    return figure(
        fig,
        name="course-map",
        caption="The pages and what each needs: follow the arrows. A dashed page is optional.",
        alt=f"Boxes joined by arrows, one a page of the course. {needs}.",
    )
