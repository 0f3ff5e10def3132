"""The pages of the course: what each is about, what it needs, how long it takes; the same everywhere they are listed.

Only pages that have a notebook are listed. Minutes are those that a page's own first cell names.
"""

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from .diagrams import NOTEBOOKS

PRIMER, ARITHMETIC, KERNEL = "primer", "arithmetic", "kernel"


class Page(NamedTuple):
    """One page. ``place``: (column, row) on the map; ``needs``: pages to read before; ``question``: what it answers."""

    words: str
    kind: str
    place: tuple[int, int]
    needs: tuple[str, ...]
    question: str


PAGES: dict[str, Page] = {
    "0": Page("Start here", ARITHMETIC, (0, 0), (), "What is in this course, and what can my machine do with it?"),
    "P1": Page("A GPU", PRIMER, (1, 0), (), "What in a GPU decides how long a kernel takes?"),
    "P2": Page("Triton", PRIMER, (1, 1), ("P1",), "How is a kernel written, and what can go wrong?"),
    "P3": Page("Attention", PRIMER, (2, 1), (), "What do attention, rotary positions and few bits do to numbers?"),
    "1": Page("The KV cache", ARITHMETIC, (0, 1), ("0",), "Why does decode wait for memory, and how long must it wait?"),
    "2": Page("Sharing heads", ARITHMETIC, (0, 2), ("1",), "What does one more or one less KV head change, and what not?"),
    "3": Page("Full sequence", KERNEL, (1, 2), ("P2", "P3", "2"), "How is a softmax computed whose row arrives in pieces?"),
    "3b": Page("Backward", KERNEL, (2, 2), ("3",), "How do the heads of a group add up to one gradient?"),
    "4": Page("Grouped heads", KERNEL, (1, 3), ("3",), "How can one load of a key serve all the heads that share it?"),
    "5": Page("Flash-Decoding", KERNEL, (1, 4), ("4",), "Where does parallel work come from when there is one query?"),
    "6": Page("Pages", KERNEL, (2, 4), ("5",), "How can a cache lie in pieces, and what does that buy?"),
    "7": Page("MLA: compress", ARITHMETIC, (0, 4), ("2",), "Can a token leave one short vector for all heads?"),
    "8": Page("MLA: absorb", KERNEL, (1, 5), ("5", "7"), "How is attention computed on that vector, and what limits it then?"),
    "8b": Page("Fast kernels", KERNEL, (2, 5), ("8",), "How can tensor cores go on while a softmax is computed?"),
    "9": Page("Costs", ARITHMETIC, (0, 6), ("7",), "Which attention, for which users, on which GPUs, and how long is a step?"),
}  # fmt: skip
OPTIONAL = ("3b", "8b")
PATHS = {
    "For the arithmetic": (
        ("0", "1", "2", "7", "8", "9"),
        "bytes, FLOPs, the floor and the regime of any model on any GPU; no kernel is read, so stop in 8 where it begins.",
    ),
    "For the kernels": (
        ("P1", "P2", "1", "3", "4", "5", "6", "8", "8b"),
        "reading and writing the Triton kernels, line by line, from copy to latent attention, and how fast ones are built.",
    ),
    "For serving": (("0", "1", "5", "6", "9"), "batches, pages, splits and what fits on which GPUs."),
}


def _notebooks() -> dict[str, str]:
    """File name of every page that exists, by its number, in the order of the course."""
    found = {}
    for path in NOTEBOOKS.glob("*_*.ipynb"):
        number = path.stem.split("_")[0]
        found[number.lstrip("0").upper().replace("B", "b") or "0"] = path.name
    return {page: found[page] for page in PAGES if page in found}


def written_pages() -> tuple[str, ...]:
    """Pages that have a notebook, by their number: '0', 'P1', '3b'."""
    return tuple(_notebooks())


def first_cell(page: str) -> str:
    """Text of a page's first cell: title, question, minutes."""
    text = NOTEBOOKS.joinpath(_notebooks()[page]).read_text(encoding="utf-8")
    return "".join(json.loads(text)["cells"][0]["source"])


def minutes(page: str) -> int:
    """Minutes that a page's first cell names."""
    return int(re.search(r"(\d+) minutes", first_cell(page))[1])


def title(page: str) -> str:
    """A page's title with its number: '4 Grouped-head decode'."""
    return first_cell(page).split("\n")[0].removeprefix("# ").strip()


def notebook(page: str) -> str:
    """File name of a page: '05_flash_decoding.ipynb'."""
    return _notebooks()[page]


def objectives(page: str) -> list[str]:
    """What a page's first cell says one can do afterwards (or, on the first page, wants to), as lines of a Markdown list."""
    return re.search(r"you (?:can|want to)\*\*\n\n((?:- .*(?:\n|$))+)", first_cell(page))[1].strip().split("\n")


def page_table(folder: str = "") -> str:
    """Markdown: one line a page, with a link into ``folder``, minutes, what it needs and the question it answers."""
    files = _notebooks()
    lines = ["| page, and the question it answers | minutes | needs |", "|---|---:|---|"]
    for page, name in files.items():
        needs = ", ".join(need for need in PAGES[page].needs if need in files) or "–"
        optional = " (optional)" if page in OPTIONAL else ""
        lines.append(f"| [{title(page)}]({folder}{name}){optional}<br>{PAGES[page].question} | {minutes(page)} | {needs} |")
    return "\n".join(lines)


def path_list() -> str:
    """Markdown: ways through the pages that exist, with their hours."""
    files = _notebooks()
    lines = [
        "Ways through the pages. Where a page needs one that a way leaves out, read that one's *Three things to remember* "
        "first.\n"
    ]
    for name, (pages, gives) in PATHS.items():
        kept = [page for page in pages if page in files]
        lines.append(f"- **{name}** ({_hours(kept)}): {', '.join(kept)}. You get {gives}")
    lines.append(
        f"- **In a class** ({_hours(files)}): everything in order, two or three pages a week. Collect the predictions before "
        "anyone runs the cell below them."
    )
    return "\n".join(lines)


def _hours(pages: Iterable[str]) -> str:
    hours = sum(map(minutes, pages)) / 60
    return f"{round(2 * hours) / 2:g} hours"
