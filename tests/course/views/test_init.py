"""The package: names load when used, and a wrong name says which there are."""

import subprocess
import sys

import pytest

from course import views


def test_every_name_loads():
    for name in dir(views):
        assert getattr(views, name) is not None


def test_a_wrong_name_lists_the_right_ones():
    with pytest.raises(AttributeError, match="token_path"):
        _ = views.tokenpath


def test_importing_the_package_waits_for_no_plotting_library():
    heavy = ("matplotlib", "altair", "ipywidgets", "torch", "pygments")
    code = f"import sys; from course import views; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
