"""course.site.formulas: TeX becomes MathML that browsers draw, and the font has what they draw it with."""

import re
import string
import unicodedata
from xml.etree import ElementTree

import pytest
from docutils import nodes
from math_core import LatexError

from course.site import formulas

GREEK = [chr(code) for code in (*range(0x3B1, 0x3CA), *range(0x391, 0x3AA)) if code != 0x3A2]


def words(mathml: str) -> str:
    """What is shown of a formula, without its form."""
    return "".join(ElementTree.fromstring(mathml.replace("&nbsp;", " ")).itertext())


def test_a_formula_keeps_its_letters_and_its_form():
    made = formulas.mathml(r"\frac{1}{\sqrt{d_{qk}}}\,\underbrace{K_B^\top}_{(d_{qk},\,n)}", display=True)
    tree = ElementTree.fromstring(made)
    assert tree.get("display") == "block"
    for form in ("mfrac", "msqrt", "msub", "munder", "msubsup"):
        assert tree.find(f".//{form}") is not None, form
    assert words(made).replace(" ", "") == "1dqkKB⊤⏟(dqk,n)"


def test_rows_are_rows_and_their_extra_space_is_no_text():
    made = formulas.mathml(
        "\\begin{aligned}\na &= b, \\\\[4pt]\nc &= d \\\\[-10pt]\ne &= f \\\\\ng &= h\n\\end{aligned}", display=True
    )
    assert len(re.findall("<mtr>", made)) == 4
    assert words(made) == "a=b,c=de=fg=h"


def test_a_sign_that_goes_on_with_a_line_has_space_and_one_of_a_number_has_none():
    tex = r"\begin{aligned} a &= b \\ &+ c \end{aligned} \begin{pmatrix} x & y \\ -x & y \end{pmatrix}"
    tree = ElementTree.fromstring(formulas.mathml(tex, display=True))
    signs = [sign for sign in tree.iter("mo") if sign.text in ("+", "−")]
    assert [(sign.text, sign.get("form")) for sign in signs] == [("+", "infix"), ("−", None)]


@pytest.mark.parametrize("script", ["^2", "_j", "_j^2"])
def test_a_sized_bracket_with_a_script_stands_in_a_row(script):
    """Where browsers stretch it as they do its partner."""
    tree = ElementTree.fromstring(formulas.mathml(rf"\bigl(a + b\bigr){script}", display=True))
    sized = tree.findall(".//mo[@minsize]")
    assert [bracket.text for bracket in sized] == ["(", ")"]
    assert {parent.tag for parent in tree.iter() for child in parent if child in sized} <= {"math", "mrow"}
    assert words(ElementTree.tostring(tree, encoding="unicode")) == "(a+b)" + re.sub("[_^]", "", script)


def test_a_line_and_a_block_differ():
    assert 'display="block"' not in formulas.mathml("x", display=False)


@pytest.mark.parametrize("tex", [r"\frac{1}", r"\nosuchcommand x", r"\begin{aligned} a", "{a"])
def test_wrong_tex_is_an_error(tex):
    with pytest.raises(LatexError):
        formulas.mathml(tex, display=True)


def test_wrong_tex_fails_a_build(caplog):
    """As a warning at its place, which a build takes for an error; the page shows the TeX."""
    node = nodes.math(r"\nosuchcommand", r"\nosuchcommand")
    with caplog.at_level("WARNING"):
        assert formulas._set(None, node, display=False) == r"<code>\nosuchcommand</code>"
    assert "nosuchcommand" in caplog.text


def test_letters_are_looked_up_where_unicode_has_them_in_italics():
    for letter in string.ascii_letters + "".join(GREEK):
        found = unicodedata.normalize("NFKC", formulas.italic(letter)), unicodedata.name(formulas.italic(letter))
        expected = "PLANCK CONSTANT" if letter == "h" else "MATHEMATICAL ITALIC"
        assert found[0] in (letter, "θ" if letter == "ϑ" else letter)
        assert found[1].startswith(expected)
    assert unicodedata.name(formulas.italic("∂")) == "MATHEMATICAL ITALIC PARTIAL DIFFERENTIAL"
    assert formulas.italic("1") == "1"


def test_shown_are_the_letters_of_formulas_alone():
    page = f"<p>Some text: {formulas.mathml('h_1 < BW', display=False)}</p><p>more</p>"
    assert formulas.shown(page) == {"√", "\u210e", "h", "1", "<", "𝐵", "𝑊", "B", "W"}
