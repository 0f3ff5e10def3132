"""What a notebook says first: the mode in words, the versions, and whose `kernels` it found."""

import os
import subprocess
import sys
import types

import pytest

import kernels
from course import session
from course.site import ROOT
from course.site.check_notebooks import HIDING as WITHOUT_TRITON


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("interpreter", "interpreter, on the CPU"),
        ("compile-only", "compiled, but not run"),
        ("reference", "Triton is not installed"),
    ],
)
def test_each_mode_has_words_and_versions(monkeypatch, mode, words):
    monkeypatch.setattr(kernels, "MODE", mode)
    lines = session.summary().splitlines()
    assert words in lines[0]
    assert 3 <= len(lines) <= 5
    assert max(map(len, lines)) <= 88
    assert lines[-1].startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}")
    assert "PyTorch" in lines[-1]
    assert "Triton" in lines[-1]


def test_a_gpu_is_named(monkeypatch):
    import torch

    device = types.SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, total_memory=141 * 2**30)
    monkeypatch.setattr(kernels, "MODE", "compiled")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)
    assert session.summary().startswith("NVIDIA H200: ")
    assert "9.0" in session.summary()


def test_missing_package_is_said(monkeypatch):
    def version(name):
        if name == "triton":
            raise session.PackageNotFoundError
        return "1.0"

    monkeypatch.setattr(session, "version", version)
    assert "no Triton" in session.versions()


@pytest.mark.parametrize("place", ["notebook", "script"])
def test_that_triton_is_missing_is_said_once(place):
    notebook = "sys.modules['ipykernel'] = sys\n" if place == "notebook" else ""
    finished = python(notebook + OURS, WITHOUT_TRITON)
    assert finished.returncode == 0, finished.stderr
    assert (finished.stdout + finished.stderr).count("Triton is not installed") == 1
    assert finished.stdout.count("no Triton") == (place == "notebook")


def test_a_pytorch_for_cuda_does_not_say_it_again():
    # Counting FLOPs in a cell would put PyTorch's own warning under it.
    code = "sys.modules['ipykernel'] = sys; import torch; torch.version.cuda = '13.0'\n" + OURS
    finished = python(code + "import torch.utils.flop_counter", WITHOUT_TRITON)
    assert finished.returncode == 0 and not finished.stderr, finished.stderr


def stranger(folder, name: str, text: str = "") -> None:
    """A package of another owner, importable from ``folder``."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(text)


def python(code: str, folder) -> subprocess.CompletedProcess:
    """Run ``code`` in a fresh Python that finds packages in ``folder`` first, as one that was installed there would be."""
    first = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, "-c", first + code], env=environment, capture_output=True, text=True)


OURS = f"sys.path.insert(0, {ROOT!r}); import course.session\n"


def test_another_package_of_that_name_that_came_first_is_refused(tmp_path):
    stranger(tmp_path, "kernels")
    finished = python("import kernels\n" + OURS, tmp_path)
    assert finished.returncode != 0
    assert "found another package of that name" in finished.stderr
    assert "restart the kernel" in finished.stderr


def test_library_that_looks_for_the_other_package_still_imports(tmp_path):
    # What transformers does: use `kernels` of that owner if it can, do without if not.
    stranger(tmp_path, "kernels", "get_kernel = None")
    stranger(tmp_path, "library", "try:\n    from kernels import get_kernel\nexcept ImportError:\n    get_kernel = None\n")
    for code in (OURS + "import library\n", "import library; del sys.modules['kernels']\n" + OURS):
        finished = python(code + "import kernels; print(kernels.__file__)", tmp_path)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.strip().startswith(ROOT)
