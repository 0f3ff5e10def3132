"""Copies of our packages in which one file has another text, and the edits that make it."""

import sys

import pytest

import kernels
from course import copies

FILE = "kernels/plan.py"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("tests/conftest.py", "must be a Python file in"),
        ("kernels/../x.py", "must be a Python file in"),
        ("kernels/frist.py", "did you mean 'kernels/first.py'"),
    ],
)
def test_only_files_of_ours(file, message):
    with pytest.raises(ValueError, match=message):
        copies.shipped_text(file)


@pytest.fixture
def file(monkeypatch):
    monkeypatch.setattr(copies, "shipped_text", lambda file: "one\ntwo\nthree\nfour\n")
    return FILE


def test_edits_apply_in_any_order(file):
    edits = [("three", "3"), ("one\ntwo", "one\nhalf\ntwo"), ("two", "2"), ("four\n", "")]
    for order in (edits, edits[::-1]):
        assert copies.edited(file, order, "x") == "one\nhalf\n2\n3\n"
    assert copies.edited(file, [], "x") == copies.shipped_text(file)


def test_common_lines_only_say_where(file):
    around = [("one\ntwo\nthree", "one\nthree"), ("three\nfour", "three\nfour and more")]
    assert copies.edited(file, around, "x") == "one\nthree\nfour and more\n"


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ([("five", "5")], "x: a text to edit stands 0 times in kernels/plan.py, once is wanted: 'five'"),
        ([("o", "0")], "stands 3 times"),
        ([("two\nthree", "2"), ("three", "3")], "two edits change the same place"),
        ([("two", "a\ntwo"), ("two", "b\ntwo")], "two edits change the same place"),
    ],
)
def test_edits_that_do_not_apply(file, edits, message):
    with pytest.raises(ValueError, match=message):
        copies.edited(file, edits, "x")


def test_a_copy_is_a_package_of_its_own():
    text = copies.shipped_text(FILE) + "\nADDED = 7\n"
    made, named = copies.with_text(FILE, text), copies.with_text(FILE, text, "kernels_of_a_test")
    assert made.plan.ADDED == named.plan.ADDED == 7 and not hasattr(kernels.plan, "ADDED")
    assert named.__name__ == "kernels_of_a_test" and made.plan is not named.plan


def test_a_copy_that_does_not_import_leaves_nothing_behind():
    known = set(sys.modules)
    with pytest.raises(ZeroDivisionError):
        copies.with_text(FILE, "1 / 0\n")
    assert set(sys.modules) == known
