"""show: the file's own text, every differing line marked, nothing else."""

import difflib
import html
import inspect
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels
from course import views
from course.views import source
from kernels.interval import attend_interval

# The package exposes functions under the names of two of its modules.
FORWARD = inspect.getmodule(kernels.attention)
DECODE = inspect.getmodule(kernels.decode)


def text_of(shown) -> str:
    """The letters a reader sees, without the gutter."""
    rows = re.findall(r'<span style="display:block.*?\n</span>', shown._repr_html_(), flags=re.S)
    codes = [re.sub(r"<[^>]+>", "", row.split("</span>", 2)[2]) for row in rows]
    return html.unescape("".join(codes))


def test_a_kernel_is_shown_as_its_file_has_it():
    shown = views.show(DECODE.decode_kernel)
    file = Path(inspect.getsourcefile(DECODE)).read_text().splitlines()
    assert list(shown.lines) == file[shown.first_line - 1 : shown.first_line - 1 + len(shown.lines)]
    assert shown.lines[0].startswith("@triton.jit") and shown.lines[-1].strip()
    assert shown.title == "kernels/decode.py · decode_kernel"
    assert set(shown.signs) == {" "} and shown.against is None
    assert text_of(shown) == "\n".join(shown.lines) + "\n"


def test_a_module_is_shown_whole():
    shown = views.show(DECODE)
    assert shown.title == "kernels/decode.py" and shown.first_line == 1
    assert "\n".join(shown.lines) == Path(inspect.getsourcefile(DECODE)).read_text().rstrip("\n")


def test_a_python_function_and_a_wrapped_one():
    assert views.show(kernels.plan.ceil_div).lines[0].startswith("def ceil_div")
    assert views.show(kernels.decode).title.startswith("kernels/decode.py")


def test_every_line_that_differs_is_marked_and_no_other():
    shown = views.show(attend_interval, against=FORWARD.attention_kernel)
    old = views.show(FORWARD.attention_kernel).lines
    kept = [line for line, sign in zip(shown.lines, shown.signs, strict=True) if sign in " −"]
    # The unmarked lines are common to both, in order.
    walk = iter(old)
    assert all(any(line == other for other in walk) for line in kept)
    assert "    rows = row_tile * ROWS + tl.arange(0, ROWS)" in kept
    assert "~" in shown.signs and "forward.py" in repr(shown) and "forward.py" in shown._repr_html_()


def test_a_line_that_says_much_is_kept_before_two_that_say_little():
    signs, gone = source.compare(("rows = theirs", ")", "]"), (")", "]", "rows = theirs"))
    assert signs == ("+", "+", " ") and gone == (")", "]")


@given(st.lists(st.sampled_from("abcd"), max_size=12), st.lists(st.sampled_from("abcd"), max_size=12))
def test_compare_accounts_for_every_line(old, new):
    signs, gone = source.compare(tuple(old), tuple(new))
    assert len(signs) == len(new)
    changed = signs.count("~")
    unchanged = signs.count(" ") + signs.count("−")
    assert unchanged + changed + len(gone) == len(old)
    assert unchanged + changed + signs.count("+") == len(new)
    if old == new:
        assert set(signs) <= {" "} and not gone
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    assert unchanged >= sum(block.size for block in matcher.get_matching_blocks())


def test_a_change_is_marked_by_more_than_colour():
    shown = views.show(attend_interval, against=FORWARD.attention_kernel)
    page = shown._repr_html_()
    assert page.count('aria-label="changed"') == shown.signs.count("~")
    assert page.count('aria-label="new"') == shown.signs.count("+")
    width = len(str(shown.first_line + len(shown.lines))) + 1
    assert tuple((line + " " * width)[width] for line in repr(shown).splitlines()[2:]) == shown.signs
    assert f"{len(shown.gone)} gone" in page


def test_code_is_escaped():
    def trick(x):
        return x < 1 and "</pre><script>alert(1)</script>" or x & 2

    page = views.show(trick)._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page


@pytest.mark.parametrize("thing", [7, "decode", len])
def test_what_has_no_source_is_refused_with_its_type(thing):
    with pytest.raises(TypeError, match=r"^kernel must be .* got (int|str|builtin)"):
        views.show(thing)
    with pytest.raises(TypeError, match=r"^against must be"):
        views.show(kernels.plan.ceil_div, against=thing)


def test_the_same_twice():
    assert views.show(kernels.decode)._repr_html_() == views.show(kernels.decode)._repr_html_()


@pytest.mark.parametrize("background", ["#f8f9fb", *source._TINT.values(), *(tint for _, tint, _ in source._IN_DIFF.values())])
def test_letters_have_enough_contrast(background):
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    if background == "transparent":
        background = "#f8f9fb"
    for style in source.Paper.styles.values():
        colour = re.search(r"#[0-9a-f]{6}", style)
        if colour:
            light, dark = sorted((luminance(background), luminance(colour[0])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (style, background)
