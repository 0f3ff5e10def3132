"""Chapters and assignments run where readers are: without Triton, from another folder, on a checkout that cannot be written.

Two chapters stand for all; the weekly workflow runs every one of them without Triton.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from course.site import ROOT, check_notebooks, test

NOBODY = 65534


def test_chapters_run_without_triton(monkeypatch, tmp_path):
    chapters = ["notebooks/04_grouped_head_decode.ipynb", "notebooks/08_mla_absorb.ipynb"]
    for name in ("PYTHONPATH", "IPYTHONDIR"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # put back what the command sets
    monkeypatch.setattr(check_notebooks, "REPORT", tmp_path / "report.xml")
    monkeypatch.setattr(test, "spread", lambda: [])
    with pytest.raises(SystemExit) as stopped:
        check_notebooks.main(["--without-triton", *chapters])
    assert stopped.value.code == 0
    run = {case.get("file") for case in xml.parse(tmp_path / "report.xml").iter("testcase")}
    assert run == set(chapters)


def test_assignments_run_without_triton(tmp_path):
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", f"--junitxml={report}", "tests/course/grading/test_sources.py"]
    environment = os.environ | {"PYTHONPATH": check_notebooks.hiding_path()}
    done = subprocess.run([*command, "-k", "runs_and_asks"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert len(list(xml.parse(report).iter("testcase"))) == len(list(Path(ROOT, "notebooks", "assignments").glob("*.ipynb")))


@pytest.fixture
def checkout():
    """A copy of what chapters use, in which nothing may be written."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "checkout")
        for name in ("course", "kernels", "book/recorded"):
            shutil.copytree(Path(ROOT, name), root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(Path(ROOT, "_toc.yml"), root)
        paths = [root, *root.rglob("*")]
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield root
        for path in paths:
            path.chmod(0o755)


CODE = """
import os, pathlib, sys, nbformat, nbclient
try:
    pathlib.Path(os.environ["MHA_TO_MLA"], "probe").touch()
except PermissionError:
    print("read-only")
notebook = nbformat.read(sys.stdin, as_version=4)
nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
print(*[output.text for cell in notebook.cells for output in cell.get("outputs", []) if output.output_type == "stream"])
"""


def test_a_chapter_runs_from_another_folder_on_a_checkout_that_is_read_only(checkout, tmp_path):
    command = [sys.executable, "-c", CODE]
    if os.geteuid() == 0:  # whom permissions do not bind, unless these capabilities are given up
        if shutil.which("setpriv") is None:
            pytest.skip("root can write anywhere, and setpriv, which could prevent that, is missing")
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    # Packages may come by PYTHONPATH; the course itself must not.
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and Path(path) != Path(ROOT)]
    environment = os.environ | {"MHA_TO_MLA": str(checkout), "PYTHONPATH": os.pathsep.join(others), "IPYTHONDIR": str(tmp_path)}
    with Path(ROOT, "notebooks", "02_sharing_heads.ipynb").open() as notebook:
        done = subprocess.run(command, cwd=tmp_path, env=environment, stdin=notebook, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("read-only\n")
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in done.stdout
