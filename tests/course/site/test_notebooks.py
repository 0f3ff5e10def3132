"""Executing a notebook twice changes nothing, failures leave the file alone, and what must not be published is found."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.site import jupyter, notebooks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of notebooks in the place of ours."""
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    monkeypatch.setattr(notebooks, "ROOT", str(tmp_path))
    return tmp_path


def save(path, *cells) -> None:
    nbformat.write(new_notebook(cells=list(cells)), path)


NOISY = """\
import sys
from IPython.display import display
print("one"); sys.stdout.flush(); print("two")
class Widget:
    def _repr_mimebundle_(self, include=None, exclude=None):
        view = {"model_id": str(id(self)), "version_major": 2, "version_minor": 0}
        return {"application/vnd.jupyter.widget-view+json": view, "text/html": "<p>Run me</p>", "text/plain": "lab"}
display(Widget())
"""


def test_second_run_changes_nothing(folder):
    path = folder / "1_noisy.ipynb"
    cell = new_code_cell(NOISY, id="noisy", metadata={"tags": ["live"], "collapsed": False})
    save(path, new_markdown_cell("# 1 Noisy", id="title"), cell)
    assert notebooks.execute(path)
    first = path.read_bytes()
    assert not notebooks.execute(path)
    assert path.read_bytes() == first
    stored = notebooks.read(path)
    assert [cell.id for cell in stored.cells] == ["title", "noisy"]
    assert stored.cells[1].metadata == {"tags": ["live"]}
    assert stored.cells[1].outputs[0] == {"output_type": "stream", "name": "stdout", "text": "one\ntwo\n"}
    assert stored.cells[1].outputs[1].data == {"text/html": "<p>Run me</p>", "text/plain": "lab"}
    assert stored.metadata.language_info.pygments_lexer == "ipython3"
    assert "version" not in stored.metadata.language_info
    assert list(folder.iterdir()) == [path]


def test_runs_from_its_own_folder_without_a_notice_of_the_kernel(folder, monkeypatch, tmp_path, capfd):
    monkeypatch.setenv("IPYTHONDIR", "")  # restored afterwards
    jupyter.quiet_kernels(tmp_path / "ipython")
    path = folder / "1_where.ipynb"
    save(path, new_code_cell("import pathlib; print(pathlib.Path('1_where.ipynb').exists())"))
    notebooks.execute(path)
    assert notebooks.read(path).cells[0].outputs[0].text == "True\n"
    assert capfd.readouterr().err == ""


def test_failure_leaves_the_file_and_is_named(folder, monkeypatch, capsys):
    monkeypatch.setenv("IPYTHONDIR", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    save(folder / "1_bad.ipynb", new_code_cell("1 / 0"))
    save(folder / "2_good.ipynb", new_code_cell("1 / 1"))
    before = (folder / "1_bad.ipynb").read_bytes()
    with pytest.raises(SystemExit, match=r"1_bad\.ipynb"):
        notebooks.main([])
    assert (folder / "1_bad.ipynb").read_bytes() == before
    assert notebooks.read(folder / "2_good.ipynb").cells[0].execution_count == 1
    assert "ZeroDivisionError" in capsys.readouterr().out


def test_cell_without_an_end_is_stopped(folder, monkeypatch):
    monkeypatch.setattr(jupyter, "CELL_TIMEOUT", 2)
    path = folder / "1_endless.ipynb"
    save(path, new_code_cell("import time; time.sleep(60)"))
    with pytest.raises(notebooks.FAILURES):
        notebooks.execute(path)


def test_unknown_name_lists_what_there_is(folder, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    save(folder / "1_one.ipynb", new_code_cell("1"))
    with pytest.raises(SystemExit, match=r"1_one\.ipynb"):
        notebooks.main(["7_"])


ERROR = new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=["File /some/where/x.py"])


def test_meant_error_is_kept_without_the_traceback_of_a_machine():
    notebook = new_notebook(cells=[new_code_cell("1/0", outputs=[ERROR], metadata={"tags": ["raises-exception"]})])
    notebooks.normalise(notebook)
    assert notebook.cells[0].outputs[0].traceback == ["ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(
    ("cell", "fault"),
    [
        (new_code_cell("1/0", outputs=[ERROR], execution_count=1), "ZeroDivisionError"),
        (new_code_cell("1 + 1"), "without stored outputs"),
        (new_code_cell("1/0", outputs=[ERROR], execution_count=1, metadata={"tags": ["raises-exception"]}), None),
        (new_code_cell("1 + 1", execution_count=1), None),
        (new_code_cell(""), None),
    ],
)
def test_faults(folder, cell, fault):
    path = folder / "1_fault.ipynb"
    save(path, cell)
    found = notebooks.stored_faults(path)
    assert len(found) == (fault is not None)
    assert fault is None or (fault in found[0] and "1_fault.ipynb" in found[0])
