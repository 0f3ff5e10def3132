"""Imports ``kernels`` before any test module can import Triton, so that Triton starts in the mode this machine needs.

And the order of tests, how they are spread over processes, and the threads of each.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("MPLBACKEND", "Agg")
if "PYTEST_XDIST_WORKER" in os.environ:
    # As many processes as cores run tests, and each starts more. Threads of one would wait for cores that another has.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from course.session import our_kernels

kernels = our_kernels()

# How fast a machine draws and runs examples says nothing about what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# Files that take long come first: one at the end would keep one process busy while the others have nothing left to do.
FIRST = ("tests/kernels/test_tiles.py", "tests/kernels/", "notebooks/")
# Files whose tests share what takes long to compile.
COMPILED_ONCE = ("tests/kernels/test_tiles.py",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long first; otherwise the order stays."""
    items.sort(key=lambda item: next((n for n, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST)))


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Keep a file in one process (the cells of a notebook share a kernel), and all tests of one page of the site.

    On a GPU, which has cores to compile beside it, each kernel test with all its cases goes where there is room.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            if file.startswith("tests/site/") and "[" in test:
                return test.partition("[")[2]
            if kernels.MODE == "compiled" and file.startswith("tests/kernels/") and file not in COMPILED_ONCE:
                return f"{file}::{test.partition('[')[0]}"
            return file

    return Scheduling(config, log)
