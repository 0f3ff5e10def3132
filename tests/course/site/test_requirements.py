"""The two lists: ranges that Colab's image meets as it is, and the exact set that resolves on every machine."""

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from course.site import ROOT


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


# Colab's GPU image of autumn 2026, and one of some time after it.
COLAB = {
    "torch": "2.11.0",
    "triton": "3.6.0",
    "numpy": "2.1.3",
    "matplotlib": "3.10.0",
    "altair": "5.5.0",
    "ipywidgets": "7.7.1",
}
LATER = {
    "torch": "2.14.1",
    "triton": "3.8.0",
    "numpy": "2.5.2",
    "matplotlib": "3.12.0",
    "altair": "5.5.0",
    "ipywidgets": "8.1.9",
}


@pytest.mark.parametrize("image", [COLAB, LATER], ids=["colab", "later"])
def test_pip_would_replace_nothing_in_colab(tmp_path, image):
    venv.create(tmp_path / "image", with_pip=False)
    [site] = (tmp_path / "image").glob("lib/python*/site-packages")
    for name, version in image.items():
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "INSTALLER").write_text("pip\n")
    command = [sys.executable, "-m", "pip", "--isolated", "--python", str(tmp_path / "image" / "bin" / "python")]
    command += ["install", "--dry-run", "--no-index", *run_part()]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "Would install" not in finished.stdout
    assert finished.stdout.count("Requirement already satisfied") == len(image)


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
