"""One fork server for the tests of a file: it takes seconds to start and forks in a hundredth of one."""

import pytest

import kernels


@pytest.fixture(scope="module")
def server():
    """Starts answering processes."""
    from course.grading.remote import Server

    if kernels.MODE != "interpreter":
        pytest.skip(f"answers are graded in Triton's interpreter, and kernels.MODE is {kernels.MODE!r}")
    with Server() as made:
        yield made
