import ast
from pathlib import Path

import pytest

import kernels
from course.measure import code

SOURCE = '''"""What it is: ½."""

# why
NAMES = ("a",)  # the first


def double(x):
    """Twice.

    Of x.
    """
    text = """# not a comment"""
    return text, 2 * x, f"{x}# nor this"
'''


@pytest.mark.parametrize(
    "old, new",
    [
        ("What it is: ½.", "It is ¼, and more"),
        ("# why\n", ""),
        ("  # the first", ""),
        ("    Of x.\n", ""),
        ("\n\n\n", "\n\n  \n"),
    ],
)
def test_wording_leaves_the_statements(old, new):
    assert old in SOURCE
    assert code.statements(SOURCE.replace(old, new)) == code.statements(SOURCE)


@pytest.mark.parametrize(
    "old, new", [("2 * x", "3 * x"), ("# not a comment", "# not one"), ("# nor this", ""), ('("a",)', '("b",)')]
)
def test_other_statements_show(old, new):
    assert old in SOURCE
    assert code.statements(SOURCE.replace(old, new)) != code.statements(SOURCE)


def test_nothing_but_statements_is_left():
    left = code.statements(SOURCE).splitlines()
    assert left == [
        'NAMES = ("a",)',
        "def double(x):",
        '    text = """# not a comment"""',
        '    return text, 2 * x, f"{x}# nor this"',
    ]


def test_what_is_left_of_a_kernel_file_is_the_same_program():
    source = (Path(kernels.__file__).parent / "tiles.py").read_text()
    trees = [ast.parse(text) for text in (source, code.statements(source))]
    for node in ast.walk(trees[0]):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            del node.body[0]
    assert ast.dump(trees[0]) == ast.dump(trees[1])


def test_a_file_more_or_by_another_name_shows(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    one = code.sha256(tmp_path)
    (tmp_path / "b.py").write_text("")
    two = code.sha256(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    renamed = code.sha256(tmp_path)
    assert len({one, two, renamed}) == 3
    (tmp_path / "notes.md").write_text("x")
    assert code.sha256(tmp_path) == renamed
