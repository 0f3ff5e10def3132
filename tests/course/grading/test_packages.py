"""Copies of our packages with definitions replaced."""

import sys

import pytest

import kernels
from course.grading import packages

TEXT = '''"""A file."""

import os

A = 1


def f():
    return A


@property
def g():
    return 2
'''


def test_definitions_are_replaced_by_name():
    new = packages.replace_definitions(TEXT, "import re\n\n\ndef help():\n    return 3\n\n\ndef f():\n    return help()")
    scope = {}
    exec(new, scope)
    assert scope["f"]() == 3 and scope["A"] == 1 and "re" in scope
    assert new.startswith('"""A file."""')
    assert packages.replace_definitions(TEXT, "@staticmethod\ndef g():\n    pass\n").count("@") == 1


@pytest.mark.parametrize(
    ("new", "error", "message"),
    [
        ("def h(): pass", ValueError, r"no definition here has a name of x.py.*it defines A, f, g"),
        ("f()", ValueError, "line 1 is no definition"),
        ("def f(:", SyntaxError, "invalid syntax"),
    ],
)
def test_what_cannot_be_replaced(new, error, message):
    with pytest.raises(error, match=message):
        packages.replace_definitions(TEXT, new, "x.py")


def test_the_definition_that_holds_a_line():
    assert packages.definition_at(TEXT, 11) == "@property\ndef g():\n    return 2\n"
    with pytest.raises(ValueError, match="line 2 is in no definition"):
        packages.definition_at(TEXT, 1)


def test_a_change_stays_in_its_copy():
    before = kernels.plan.ceil_div(5, 2)
    made = packages.changed("kernels/plan.py", "def ceil_div(a, b):\n    return 7\n")
    assert made.plan.ceil_div(5, 2) == 7 and kernels.plan.ceil_div(5, 2) == before


def test_a_copy_that_does_not_import_leaves_nothing_behind():
    known = set(sys.modules)
    with pytest.raises(ZeroDivisionError):
        packages.changed("kernels/plan.py", "ceil_div = 1 / 0\n")
    assert set(sys.modules) == known
