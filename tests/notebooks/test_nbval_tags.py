"""The tags reach nbval: a stored output that is wrong fails where it is compared and passes where it is not."""

import subprocess
import sys
import xml.etree.ElementTree as xml

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course.site import ROOT
from course.site.test import notebook_arguments

TAGS = ["bootstrap", "predict", "check", "figure", "live", "explorer"]


@pytest.mark.parametrize(
    ("how", "compared"),
    [("--nbval", {"predict", "check", "explorer"}), ("--nbval-lax", {"check"})],
)
def test_what_is_compared(tmp_path, how, compared):
    cells = [new_code_cell(f"print('{tag} now')", metadata={"tags": [tag]}, execution_count=1) for tag in TAGS]
    for cell in cells:
        cell.outputs = [new_output("stream", name="stdout", text="something else\n")]
    notebook, report = tmp_path / "stale.ipynb", tmp_path / "report.xml"
    nbformat.write(new_notebook(cells=cells), notebook)
    arguments = [str(notebook) if argument == "notebooks" else argument for argument in notebook_arguments(how)]
    # The folder of this file brings the tags along, as it does for the real notebooks.
    command = [
        sys.executable,
        "-m",
        "pytest",
        f"--junitxml={report}",
        "-k",
        "stale.ipynb",
        "tests/notebooks",
        "--confcutdir=tests/notebooks",  # without Triton: nothing here runs a kernel of ours
        *arguments,
    ]
    subprocess.run(command, cwd=ROOT, capture_output=True)
    results = {case.get("name"): case.find("failure") is not None for case in xml.parse(report).iter("testcase")}
    assert {tag for number, tag in enumerate(TAGS) if results[f"Cell {number}"]} == compared
