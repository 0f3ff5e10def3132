"""What every notebook of the course keeps to."""

import re
from pathlib import Path

import nbformat
import pytest

from course.site import ROOT, bootstrap, notebooks

TAGS = {"bootstrap", "predict", "check", "figure", "live", "explorer"}  # ours
TAGS |= {"hide-input", "hide-output", "remove-cell", "raises-exception"}  # Jupyter Book's
LARGEST = 1_000_000  # bytes


@pytest.fixture(params=notebooks.paths(), ids=lambda path: path.stem)
def path(request) -> Path:
    return request.param


@pytest.fixture
def notebook(path) -> nbformat.NotebookNode:
    return notebooks.read(path)


@pytest.fixture
def code(notebook) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_are_notebooks():
    assert notebooks.paths()


def test_every_notebook_is_in_the_table_of_contents(path):
    assert f"file: notebooks/{path.stem}\n" in Path(ROOT, "_toc.yml").read_text(encoding="utf-8")


def test_format_is_valid_and_ids_are_unique(notebook):
    nbformat.validate(notebook)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)


def test_bootstrap_is_the_one_text(path, code):
    assert bootstrap.cells(path) == [bootstrap.text()]
    assert "bootstrap" in code[0].metadata.tags, "the bootstrap comes before any other code"


def test_title_carries_the_number_of_the_file(path, notebook):
    number = path.stem.split("_")[0].lstrip("0").upper().replace("B", "b") or "0"  # 4, 3b, P1
    assert notebook.cells[0].source.startswith(f"# {number} ")


def test_tags_are_from_the_closed_list(notebook):
    used = {tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])}
    assert used <= TAGS


def test_nothing_stored_must_not_be_published(path):
    assert notebooks.stored_faults(path) == []


def test_file_is_as_the_normaliser_writes_it(path, notebook):
    notebooks.normalise(notebook)
    assert path.read_text(encoding="utf-8") == notebooks.serialised(notebook)


def test_size(path):
    assert path.stat().st_size < LARGEST


def test_holds_no_kernel(code):
    for cell in code:
        assert not re.search(r"@(triton|gluon)\.jit|@jit\b", cell.source), "kernels are shown from kernels/, not retyped"


def test_holds_no_path_of_the_machine_that_ran_it(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|Users|tmp|usr|opt|work|content)/", text)
    assert ROOT not in text


def test_figures_have_words(code):
    for cell in code:
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                html = output.data.get("text/html", "")
                assert re.search(r'<img alt="[^"]{20,}"', html), f"a picture without an alternative text in cell {cell.id}"


def test_live_cells_leave_something_to_read_without_a_kernel(code):
    for cell in code:
        if "live" in cell.metadata.get("tags", []):
            shown = [
                output for output in cell.outputs if output.output_type == "stream" or "text/html" in output.get("data", {})
            ]
            assert shown, f"cell {cell.id} shows nothing on the site"
