"""The commands as a reader types them: serving, cleaning, and the same thing with and without make."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from course.site import ROOT, serve
from course.site.__main__ import COMMANDS


@pytest.fixture
def copy(tmp_path) -> Path:
    """What the commands themselves consist of, in a folder with a space in its name, with a learner's files beside it."""
    root = tmp_path / "a copy"
    shutil.copytree(Path(ROOT, "course", "site"), root / "course" / "site", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", "constraints.txt", "requirements.txt", "course/__init__.py"):
        shutil.copy(Path(ROOT, name), root / name)
    return root


def test_every_target_is_a_command():
    makefile = Path(ROOT, "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    assert targets <= set(COMMANDS)
    assert targets == set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())


@pytest.fixture
def make(copy):
    """Function that runs make in the copy as from a fresh shell, even if make runs these tests."""
    if shutil.which("make") is None:
        pytest.skip("no make on this machine; install the package make")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}

    def run(*arguments: str) -> str:
        done = subprocess.run(["make", *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return run


@pytest.mark.parametrize(
    "target",
    ["book", "serve", "test", "lab", "notebooks", "check-notebooks", "assignments", "measure", "gpu-test", "clean"],
)
def test_make_uses_a_given_interpreter_as_it_is(make, target):
    assert make("--dry-run", target, f"PYTHON={sys.executable}") == f'"{sys.executable}" -m course.site --as-is {target}'


def test_make_passes_arguments_on(make):
    assert make("--dry-run", "test", "ARGS=-k decode") == '"python3" -m course.site  test -k decode'


def test_clean_keeps_recordings_and_what_a_learner_wrote(make, copy):
    kept = [
        "book/recorded/a-gpu/decode.json",
        "book/recorded/a-gpu/decode.partial.jsonl",
        ".predictions.jsonl",
        "notebooks/mine.ipynb",
        "kernels/my_kernel.py",
    ]
    removed = [".venv/complete", "_build/html/index.html", ".pytest_cache/x", "kernels/__pycache__/x.pyc"]
    for name in kept + removed:
        path = copy / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    for _ in range(2):  # the second time there is nothing to do
        make("clean")
        assert [name for name in kept + removed if (copy / name).exists()] == kept


def test_server_takes_another_port_where_one_is_taken(tmp_path):
    (tmp_path / "index.html").write_text("hello")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with serve.server(str(tmp_path), [taken, 0]) as served:
            assert served.server_port not in (taken, 0)
            assert served.server_address[0] == "127.0.0.1"


def test_no_free_port_is_said(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(SystemExit, match=str(taken)):
            serve.server(str(tmp_path), [taken])


def test_serving_prints_its_address_and_ends_quietly(copy):
    page = copy / "_build" / "html" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("hello")
    # As in a terminal; what a shell starts in the background ignores Ctrl-C, and so would what these tests start.
    command = [sys.executable, "-c", "import signal, os, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
               "os.execv(sys.executable, [sys.executable, '-m', 'course.site.serve'])"]  # fmt: skip
    with subprocess.Popen(command, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        address = re.search(r"http://localhost:\d+/", process.stdout.readline())[0]
        assert urllib.request.urlopen(address).read() == b"hello"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=10)
    assert process.returncode == 0
    assert said == ""


def test_unknown_command_lists_the_known(copy):
    done = subprocess.run([sys.executable, "-m", "course.site", "bok"], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 2
    assert "book" in done.stderr


def test_interpreter_used_as_it_is_is_told_what_it_lacks(copy):
    command = [sys.executable, "-S", "-m", "course.site", "--as-is", "book"]  # -S: without installed packages
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    assert done.returncode == 1
    assert "jupyter_book" in done.stderr
    assert "Traceback" not in done.stderr


def test_gpu_test_needs_nothing_of_jupyter():
    blocked = "import sys; sys.modules.update(dict.fromkeys(('nbformat', 'nbclient', 'nbval', 'ipykernel', 'xdist')))"
    code = f"{blocked}; from course.site import gpu_test, test; print(test.spread(), test.missing(test.NOTEBOOK_PACKAGES))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_gpu_test_without_a_gpu_says_so():
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "course.site", "--as-is", "gpu-test"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs a CUDA GPU" in done.stderr
