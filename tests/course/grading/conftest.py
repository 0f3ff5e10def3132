"""What tests share: a fork server, slow to start and quick to fork, and the shell of a notebook."""

import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import kernels
from course.grading import student


@pytest.fixture(scope="module")
def server():
    """Starts answering processes."""
    from course.grading.remote import Server

    if kernels.MODE != "interpreter":
        pytest.skip(f"answers are graded in Triton's interpreter, and kernels.MODE is {kernels.MODE!r}")
    with Server() as made:
        yield made


@pytest.fixture(scope="module")
def shell():
    """An IPython of its own: it keeps the text of cells, which Triton reads, and knows the magics."""
    main = sys.modules["__main__"]
    made = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    # The module registers it where it is first imported in a shell; here another test may have imported it before.
    made.register_magic_function(student.change, "cell", "change")
    yield made
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main  # the shell had put its own there, from which no process can be spawned
