"""Kernel source in a notebook: read from the file it lives in, numbered as there, with the changes marked.

A notebook never holds kernel text. What is shown here is the file the tests run, whether or not Triton is installed.
"""

import html
import inspect
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from pygments.style import Style
from pygments.token import Comment, Keyword, Literal, Name, Number, Operator, String

ROOT = Path(__file__).resolve().parents[2]

NEW, CHANGED, GONE = "+", "~", "−"
_MEANING = {NEW: "new", CHANGED: "changed", GONE: "a line is gone above"}
_TINT = {NEW: "#dff3e4", CHANGED: "#fff0c9", GONE: "transparent", " ": "transparent"}
# A line of a diff by its first letter: sign in the margin, tint, meaning.
_IN_DIFF = {"+": (NEW, _TINT[NEW], "new"), "-": (GONE, "#fdeaea", "gone"), " ": (" ", "transparent", "")}


class Paper(Style):
    """Dark letters for the light card; each colour has at least 4.5:1 on the card and on both tints."""

    styles = {
        Comment: "italic #5a606b",
        Keyword: "bold #6b3fa0",
        Operator.Word: "bold #6b3fa0",
        Name.Builtin: "#00598f",
        Name.Function: "bold #00598f",
        Name.Class: "bold #00598f",
        Name.Decorator: "#8a3a00",
        String: "#00604a",
        Number: "#8a3a00",
        Literal: "#8a3a00",
    }


@dataclass(frozen=True)
class Source:
    """Lines of a function or file: ``signs`` holds '+', '~', '−' or ' ' for each, ``gone`` the lines it lost."""

    title: str
    first_line: int
    lines: tuple[str, ...]
    signs: tuple[str, ...]
    gone: tuple[str, ...]
    against: str | None

    def _legend(self) -> str:
        if self.against is None:
            return ""
        counts = ", ".join(f"{sum(sign == kind for sign in self.signs)} {_MEANING[kind]} ({kind})" for kind in (NEW, CHANGED))
        return f"Against {self.against}: {counts}, {len(self.gone)} gone ({GONE})."

    def __repr__(self) -> str:
        width = len(str(self.first_line + len(self.lines)))
        body = [
            f"{self.first_line + i:>{width}} {sign} {line}".rstrip()
            for i, (sign, line) in enumerate(zip(self.signs, self.lines, strict=True))
        ]
        return "\n".join([self.title, *([self._legend()] if self.against else []), *body])

    def _repr_html_(self) -> str:
        coloured = _coloured(self.lines)
        rows = "".join(
            f'<span style="display:block;background:{_TINT[sign]}">'
            f'<span style="color:#5a606b;user-select:none" aria-hidden="true">{self.first_line + i:>4} </span>'
            f'<span style="font-weight:bold;user-select:none"{_label(sign)}>{sign} </span>{code}\n</span>'
            for i, (sign, code) in enumerate(zip(self.signs, coloured, strict=True))
        )
        legend = f'<div style="padding:0 12px 6px;font-size:0.85em">{html.escape(self._legend())}</div>' if self.against else ""
        return _card(self.title, legend, rows, self._gone())

    def _gone(self) -> str:
        if not self.gone:
            return ""
        lines = "\n".join(f"{GONE} {html.escape(line)}" for line in self.gone)
        return (
            f'<details style="padding:0 12px 8px;font-size:0.85em"><summary>{len(self.gone)} lines of '
            f'{html.escape(self.against)} are gone</summary><pre style="background:transparent;color:inherit;border:0;'
            f'overflow-x:auto;margin:4px 0 0">{lines}</pre></details>'
        )


@dataclass(frozen=True)
class Difference:
    """A unified diff of a Python file as a page shows it: numbered as in the new file, '+' and '−' in the margin."""

    title: str
    diff: str

    def __repr__(self) -> str:
        return f"{self.title}\n{self.diff}"

    def _repr_html_(self) -> str:
        hunks = re.split(r"^@@ -\S+ \+(\d+)\S* @@\n", self.diff, flags=re.M)[1:]
        shown = [self._hunk(int(first), tuple(body.splitlines())) for first, body in zip(hunks[::2], hunks[1::2], strict=True)]
        return _card(self.title, "", '<span style="display:block;border-top:1px solid #d9dde3"></span>'.join(shown), "")

    def _hunk(self, number: int, lines: tuple[str, ...]) -> str:
        rows = []
        for letter, code in zip((line[0] for line in lines), _coloured(tuple(line[1:] for line in lines)), strict=True):
            sign, tint, meaning = _IN_DIFF[letter]
            rows.append(
                f'<span style="display:block;background:{tint}">'
                f'<span style="color:#5a606b;user-select:none" aria-hidden="true">{"" if sign == GONE else number:>4} </span>'
                f'<span style="font-weight:bold;user-select:none"{meaning and _role(meaning)}>{sign} </span>{code}\n</span>'
            )
            number += sign != GONE
        return "".join(rows)


def _card(title: str, legend: str, rows: str, below: str) -> str:
    """Numbered lines on the light card."""
    return (
        '<div class="kernel-source" style="background:#f8f9fb;color:#1f2430;border:1px solid #d9dde3;border-radius:8px;'
        'margin:0.5em 0">'
        f'<div style="padding:6px 12px;font-size:0.85em;font-weight:bold">{html.escape(title)}</div>{legend}'
        '<pre tabindex="0" style="margin:0;padding:4px 0 8px;background:transparent;color:inherit;border:0;'
        f'overflow-x:auto;font-size:0.85em;line-height:1.45"><code style="display:inline-block;min-width:100%;'
        f'background:transparent;color:inherit;padding:0">{rows}</code></pre>{below}</div>'
    )


def _label(sign: str) -> str:
    return _role(_MEANING[sign]) if sign in _MEANING else ""


def _role(meaning: str) -> str:
    return f' role="img" aria-label="{meaning}"'


def _coloured(lines: tuple[str, ...]) -> list[str]:
    formatter = HtmlFormatter(noclasses=True, nowrap=True, style=Paper)
    return highlight("\n".join(lines), PythonLexer(stripnl=False, ensurenl=False), formatter).split("\n")[: len(lines)]


def _read(shown: object, argument: str) -> tuple[str, int, tuple[str, ...]]:
    """Title, first line number and lines of a function, a jit function, a class or a module."""
    target = shown
    # A Triton kernel wraps its Python function as .fn, compiled or interpreted; decorators use __wrapped__.
    while not inspect.isfunction(target) and hasattr(target, "fn"):
        target = target.fn
    if not isinstance(target, ModuleType):
        target = inspect.unwrap(target) if callable(target) else target
    try:
        lines, first = inspect.getsourcelines(target)
        path = Path(inspect.getsourcefile(target)).resolve()
    except (TypeError, OSError):
        raise TypeError(
            f"{argument} must be a kernel, a Python function or a module of a file, got {type(shown).__name__}"
        ) from None
    place = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    title = place if isinstance(target, ModuleType) else f"{place} · {target.__qualname__}"
    text = textwrap.dedent("".join(lines)).rstrip("\n")
    return title, max(first, 1), tuple(text.split("\n"))


def _kept(old: tuple[str, ...], new: tuple[str, ...]) -> list[tuple[int, int]]:
    """Places (in old, in new) of the lines that stay, in order: those that save the most letters from being marked.

    (difflib looks for long runs instead, and may give up a line that says much for two that close a bracket.)
    """
    best = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in reversed(range(len(old))):
        for j in reversed(range(len(new))):
            kept = best[i + 1][j + 1] + 1 + len(new[j].strip()) if old[i] == new[j] else 0
            best[i][j] = max(kept, best[i + 1][j], best[i][j + 1])
    places, i, j = [], 0, 0
    while i < len(old) and j < len(new):
        if best[i][j] == best[i + 1][j]:
            i += 1
        elif best[i][j] == best[i][j + 1]:
            j += 1
        else:
            places.append((i, j))
            i, j = i + 1, j + 1
    return places


def compare(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Signs of the new lines and the old lines that are gone. Every line that differs is marked; none is left out.

    A changed line counts as changed, not as gone; where a block grew, its later lines count as new; where it shrank, the rest
    of the old block is gone.
    """
    signs, gone = [" "] * len(new), []
    old_lo = new_lo = 0
    for old_hi, new_hi in [*_kept(old, new), (len(old), len(new))]:
        both = min(old_hi - old_lo, new_hi - new_lo)
        signs[new_lo : new_lo + both] = CHANGED * both
        signs[new_lo + both : new_hi] = NEW * (new_hi - new_lo - both)
        gone += old[old_lo + both : old_hi]
        if old_lo < old_hi and new_lo == new_hi < len(new):
            signs[new_hi] = GONE
        old_lo, new_lo = old_hi + 1, new_hi + 1
    return tuple(signs), tuple(gone)


def show(kernel: object, against: object | None = None) -> Source:
    """The source of a kernel, a function or a module, with every line that differs from ``against`` marked in the margin.

    TypeError if either has no source file.
    """
    title, first, lines = _read(kernel, "kernel")
    if against is None:
        return Source(title, first, lines, (" ",) * len(lines), (), None)
    other, _, old = _read(against, "against")
    signs, gone = compare(old, lines)
    return Source(title, first, lines, signs, gone, other)
