"""Run every test: ours, and the notebooks compared with their stored outputs.

    python -m course.site test [arguments of pytest]

Stored outputs come from the interpreter. Where kernels run otherwise (a GPU, no Triton) only the cells tagged 'check' are
compared. The report is written to ``_build/test-report.xml``.
"""

import contextlib
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from . import BUILD, ROOT, jupyter

REPORT = Path(BUILD, "test-report.xml")
NOTEBOOK_PACKAGES = ("nbval", "ipykernel", "altair", "ipywidgets", "matplotlib")


def missing(packages) -> list[str]:
    """Those of ``packages`` that cannot be imported here."""
    return [package for package in packages if find_spec(package) is None]


def mode() -> str:
    """``kernels.MODE`` as a fresh process finds it."""
    code = "import warnings; warnings.simplefilter('ignore'); import kernels; print(kernels.MODE)"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def notebook_arguments(how: str) -> list[str]:
    """pytest's arguments for the notebooks; ``how`` is ``--nbval`` (strict) or ``--nbval-lax``."""
    return [
        "notebooks",
        "--ignore=notebooks/assignments",  # sources: Python only once a release has drawn their values
        how,
        "--nbval-current-env",
        f"--nbval-cell-timeout={jupyter.CELL_TIMEOUT}",
        "--nbval-sanitize-with=tests/notebooks/sanitize.cfg",
        "--nbval-kernel-startup-timeout=120",
    ]


def spread() -> list[str]:
    """pytest's arguments that use the cores there are. tests/conftest.py says what stays in one process."""
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(), 16)
    return (
        [f"--numprocesses={workers}", "--dist=loadfile", "--no-loadscope-reorder"]
        if workers > 1 and not missing(["xdist"])
        else []
    )


def run_pytest(arguments: list[str], report: Path = REPORT) -> int:
    """Run pytest in the repository's root, with kernels (the Jupyter sort) that start silently; return its exit status.

    ``report`` receives the results as JUnit XML; the form xunit1 names each test's file.
    """
    jupyter.quiet_kernels(Path(BUILD, "ipython"))
    command = [sys.executable, "-m", "pytest", "-o", "junit_family=xunit1", f"--junitxml={report}", *arguments]
    sys.stdout.flush()
    with subprocess.Popen(command, cwd=ROOT) as process:
        while True:
            # Ctrl-C reaches pytest too, which stops and says what it found so far.
            with contextlib.suppress(KeyboardInterrupt):
                return process.wait()


def main(arguments: list[str]) -> None:
    here = mode()
    how = "--nbval" if here == "interpreter" else "--nbval-lax"
    at_once = [] if here == "compiled" else spread()  # tests that time something want the GPU to themselves
    sys.exit(run_pytest(["tests", *notebook_arguments(how), *at_once, *arguments]))


if __name__ == "__main__":
    main(sys.argv[1:])
