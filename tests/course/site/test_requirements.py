"""The two lists: ranges that Colab's image meets as it is, and the exact set that resolves on every machine."""

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from course.site import ROOT
from tests.course.site.test_repository import TEXTS, imported


def requirements(name: str) -> list[Requirement]:
    """The requirements that a file lists."""
    lines = Path(ROOT, name).read_text(encoding="utf-8").splitlines()
    return [Requirement(text) for line in lines if (text := line.split("#")[0].strip())]


def run_part() -> list[str]:
    """The lines of requirements.txt that the kernels and the notebooks need, without those that only build and test."""
    text = Path(ROOT, "requirements.txt").read_text(encoding="utf-8")
    return [
        line.split("#")[0].strip() for line in text.split("# --- run")[1].split("# ---")[0].splitlines()[1:] if line.strip()
    ]


def frozen(image: str) -> dict[str, str]:
    """Names and versions of one of Colab's images, as tests/data keeps them with source and date."""
    [path] = Path(ROOT, "tests", "data").glob(f"colab-{image}-*.txt")
    rows = [Requirement(line) for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {canonicalize_name(row.name): str(row.specifier).removeprefix("==") for row in rows}


# Colab's images, and one of some time later. What is absent is what the list of the image does not hold, for the reason given.
LATER = {
    "torch": "2.14.1",
    "triton": "3.8.0",
    "numpy": "2.5.2",
    "matplotlib": "3.12.0",
    "altair": "5.5.0",
    "ipywidgets": "8.1.9",
}
IMAGES = {"gpu": frozen("gpu"), "cpu": frozen("cpu"), "later": LATER}
ABSENT = {
    "gpu": set(),
    "cpu": {"triton", "torch"},  # there is no Triton: the mode 'reference' serves; PyTorch is there, listed by an address
    "later": set(),
}


@pytest.mark.parametrize("image", IMAGES)
def test_colab_has_what_the_notebooks_need(image):
    versions = IMAGES[image]
    wanted = [Requirement(line) for line in run_part()]
    assert {requirement.name for requirement in wanted} - set(versions) == ABSENT[image]
    for requirement in wanted:
        if requirement.name in versions:
            # A bound without a local version is met by every build of that release: 2.11.0+cu128 is 2.11.0.
            assert requirement.specifier.contains(versions[requirement.name]), (requirement, versions[requirement.name])


@pytest.mark.parametrize("image", IMAGES)
def test_pip_would_replace_nothing_in_colab(tmp_path, image):
    venv.create(tmp_path / "image", with_pip=False)
    [site] = (tmp_path / "image").glob("lib/python*/site-packages")
    for name, version in IMAGES[image].items():
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "INSTALLER").write_text("pip\n")
    there = [line for line in run_part() if Requirement(line).name not in ABSENT[image]]
    command = [sys.executable, "-m", "pip", "--isolated", "--python", str(tmp_path / "image" / "bin" / "python")]
    command += ["install", "--quiet", "--dry-run", "--report", str(tmp_path / "report.json"), "--no-index", *there]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert json.loads((tmp_path / "report.json").read_text())["install"] == []


# Names of modules whose package is called otherwise, and what is used only where it is installed.
PACKAGES = {"PIL": "pillow"}
OPTIONAL = {"triton", "torch", "flashinfer", "flash_attn", "sgl_kernel", "vl_convert"}


def test_colab_has_whatever_else_the_notebooks_import():
    """Through our packages too: the run part names what the course asks for, the rest comes along with that."""
    found = set()
    for name, text in TEXTS.items():
        if re.match(r"(kernels|course/(costs|layers|measure|views))/.*\.py$|course/session\.py$", name):
            found |= imported(name, text)
        elif re.match(r"notebooks/\w+\.ipynb$", name):
            for cell in json.loads(text)["cells"]:
                code = "".join(line for line in cell["source"] if not line.startswith(("%", "!")))
                found |= imported(name, code) if cell["cell_type"] == "code" else set()
    modules = {module.split(".")[0] for module in found} - sys.stdlib_module_names - {"course", "kernels"}
    assert {"numpy", "PIL", "ipywidgets"} < modules
    for image in ("cpu", "gpu"):
        assert {PACKAGES.get(module, module).lower() for module in modules - OPTIONAL} <= set(IMAGES[image])


def test_exact_set_meets_the_ranges():
    exact = {requirement.name.lower().replace("_", "-"): requirement for requirement in requirements("constraints.txt")}
    for wanted in requirements("requirements.txt"):
        [pin] = exact[wanted.name.lower()].specifier
        assert pin.operator == "=="
        assert wanted.specifier.contains(pin.version), wanted


def test_exact_set_resolves_with_and_without_cuda():
    text = Path(ROOT, "constraints.txt").read_text(encoding="utf-8")
    for requirement in requirements("constraints.txt"):
        [pin] = requirement.specifier
        assert "+" not in pin.version, f"{requirement}: a local version is found on one kind of machine only"
        assert not requirement.name.startswith(("nvidia", "cuda"))
    assert not re.search(r"^(pip|setuptools|wheel)\b", text, re.MULTILINE)


def test_every_wanted_package_has_its_reason():
    for line in Path(ROOT, "requirements.txt").read_text(encoding="utf-8").splitlines():
        assert not line or line.startswith("#") or re.search(r"  # \w", line), line
