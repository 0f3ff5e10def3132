"""The first page and chapter 0 list the pages that exist, with their minutes, paths and map.

python -m tests.book.test_contents      writes lists and map
"""

import re
from pathlib import Path

import pytest

from course import views
from course.site import notebooks

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "book/index.md"
START = ROOT / "notebooks/00_start_here.ipynb"
MAP = ROOT / "book/images/course-map.png"
BEGIN, END = "% begin pages\n", "% end pages\n"


def of_the_index() -> str:
    made = views.course_map()
    picture = f"![{made.alt}](images/course-map.png){{width=560px}}"
    return f"\n{views.page_table('../notebooks/')}\n\n{views.path_list()}\n\n{picture}\n\n*{made.caption}*\n\n"


def of_chapter_0() -> str:
    return f"{views.page_table()}\n\n{views.path_list()}"


def cell_of_chapter_0(notebook):
    return next(cell for cell in notebook.cells if cell.id == "paths")


PLACE = re.compile(r"\| page.*?\n\n(?:- \*\*.*\n?)+", re.DOTALL)


def test_the_first_page_lists_the_pages():
    shown = INDEX.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert shown == of_the_index(), "write it again: python -m tests.book.test_contents"
    assert MAP.exists()


def test_chapter_0_lists_the_pages():
    source = cell_of_chapter_0(notebooks.read(START)).source
    assert of_chapter_0() in source, "write it again: python -m tests.book.test_contents"


@pytest.mark.parametrize("page", ["README.md", "book/index.md"])
def test_readers_are_told_of_no_page_that_is_missing(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in re.findall(r"notebooks/(\w+\.ipynb)", text):
        assert (ROOT / "notebooks" / name).exists()


def main() -> None:
    before, rest = INDEX.read_text(encoding="utf-8").split(BEGIN)
    INDEX.write_text(before + BEGIN + of_the_index() + END + rest.split(END)[1], encoding="utf-8")
    MAP.write_bytes(views.course_map().png)
    notebook = notebooks.read(START)
    cell = cell_of_chapter_0(notebook)
    cell.source = PLACE.sub(lambda _: of_chapter_0() + "\n", cell.source).rstrip("\n")
    notebooks.write(notebook, START)


if __name__ == "__main__":
    main()
