"""Faults stop the build and leave the last good site; an interrupted build leaves nothing that is taken for a site."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.site import ROOT
from course.site.metadata import CARD


@pytest.fixture(scope="module")
def small_book(tmp_path_factory) -> Path:
    """A repository with our settings and builder, in a folder with a space in its name, and a book of two pages."""
    root = tmp_path_factory.mktemp("build") / "a small book"
    shutil.copytree(Path(ROOT, "course", "site"), root / "course" / "site", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "book" / "images").mkdir(parents=True)
    for name in ("_config.yml", "constraints.txt", "course/__init__.py", f"book/images/{CARD}"):
        shutil.copy(Path(ROOT, name), root / name)
    (root / "notebooks").mkdir()
    (root / "_toc.yml").write_text("format: jb-book\nroot: book/index\nchapters:\n- file: notebooks/1_one\n")
    (root / "book" / "references.bib").write_text("")
    return root


@pytest.fixture
def book(small_book) -> Path:
    """The small book in its good state, not built."""
    shutil.rmtree(small_book / "_build", ignore_errors=True)
    (small_book / "book" / "index.md").write_text("# Title\n\nSome $x^2$.\n")
    notebook(small_book, new_code_cell("1 + 1", execution_count=1))
    return small_book


def notebook(root: Path, cell) -> None:
    path = root / "notebooks" / "1_one.ipynb"
    written = new_notebook(cells=[new_markdown_cell("# 1 One"), cell])
    written.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(written, path)


def build(root: Path) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-m", "course.site", "--as-is", "book"]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)


ERROR = new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])


def test_good_book_over_the_remains_of_others(book):
    left, site = book / "_build" / "new", book / "_build" / "html"
    (left / "html" / "book").mkdir(parents=True)
    (left / "html" / "book" / "index.html").write_text("half a pa")
    (left / "doctrees").write_text("not even a folder")
    (site / "book").mkdir(parents=True)
    (site / "book" / "gone.html").write_text("a page that has left the contents")
    done = build(book)
    assert done.returncode == 0, done.stdout + done.stderr
    page = Path(done.stdout.strip().splitlines()[-1].split("page is ")[1])
    assert page == site / "index.html"
    assert page.is_file()
    assert "<h1>Title" in (site / "book" / "index.html").read_text(encoding="utf-8")
    assert (site / "notebooks" / "1_one.html").is_file()
    assert "STIX Two Math" in (site / "_static" / "formulas.css").read_text(encoding="utf-8")
    assert "vegaEmbed" in (site / "_static" / "offline" / "vega.js").read_text(encoding="utf-8")
    assert not (site / "book" / "gone.html").exists()
    assert [path.name for path in (book / "_build").iterdir()] == ["html"]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (new_code_cell("1/0", outputs=[ERROR], execution_count=1), "ZeroDivisionError"),
        (new_code_cell("1 + 1"), "without stored outputs"),
    ],
    ids=["stored error", "never run"],
)
def test_notebook_at_fault_stops_the_build(book, cell, said):
    notebook(book, cell)
    done = build(book)
    assert done.returncode != 0
    assert said in done.stderr
    assert not (book / "_build" / "html").exists()


FAULTY = """\
# Title

[gone](gone.md), {cite}`nobody2020`, {eq}`no-equation`.

### Skipped a level
"""


def test_warnings_stop_the_build_each_time_and_the_last_site_stays(book):
    site = book / "_build" / "html" / "index.html"
    site.parent.mkdir(parents=True)
    site.write_text("the last good site")
    (book / "book" / "index.md").write_text(FAULTY)
    for _ in range(2):
        done = build(book)
        assert done.returncode != 0
        for fault in ("gone.md", "nobody2020", "no-equation", "header"):
            assert fault in done.stderr
    assert site.read_text() == "the last good site"
