"""What an assignment is made of: properties with points, tasks, and the report of a check."""

import html
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType

from .answers import Answer
from .draw import Draw
from .judge import NotHere, Wrong

KINDS = ("predict", "fix", "build", "stretch")
PUBLIC_SEED = "public"
UNANSWERED = "not answered yet"


@dataclass(frozen=True)
class Property:
    """Something that is true of every right answer. ``check(answer, draw)`` raises `Wrong` where it does not hold.

    Where it holds it may return a remark for the learner.
    """

    name: str
    about: str
    check: Callable[[Answer, Draw], str | None] = field(repr=False)

    def __call__(self, answer: Answer, draw: Draw) -> str | None:
        return self.check(answer, draw)


def named(name: str, about: str) -> Callable[[Callable[[Answer, Draw], str | None]], Property]:
    """Decorator: make a `Property` of a function (answer, draw)."""
    return lambda check: Property(name, about, check)


@dataclass(frozen=True)
class Task:
    """One question of an assignment.

    answer: expression that names the answer in the learner's notebook ('merge_two', or 'mended.merge').
    points: a property and its points, in the order of the report. hidden: names of those that only grading looks at.
    shipped: our own answer, from the package it lives in (None where the solution stands in the assignment's source alone).
    package: 'kernels' or 'course', the package that ``shipped`` and the mutants of the task take.
    seconds: how long one property may take when it is graded.
    """

    name: str
    kind: str
    title: str
    answer: str
    points: tuple[tuple[Property, int], ...]
    hidden: tuple[str, ...] = ()
    shipped: Callable[[ModuleType], object] | None = None
    package: str = "kernels"
    seconds: int = 20

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {KINDS}, got {self.kind!r}")
        names = [p.name for p, _ in self.points]
        if len(set(names)) != len(names) or not set(self.hidden) < set(names):
            raise ValueError(
                f"{self.name}: properties must differ and one at least must be public, got {names}, hidden {self.hidden}"
            )

    @property
    def max_points(self) -> int:
        return sum(points for _, points in self.points)


@dataclass(frozen=True)
class Assignment:
    """The tasks of one chapter. ``name`` is that of the chapter's notebook and of the source in notebooks/assignments.

    givens: values that stand in the released text, drawn once for each release.
    rubric: for the open question, whose points a person gives: (points, what they are for) in order.
    """

    name: str
    title: str
    minutes: int
    objectives: tuple[str, ...]
    tasks: tuple[Task, ...]
    givens: Callable[[Draw], dict]
    rubric: tuple[tuple[int, str], ...]

    def task(self, name: str) -> Task:
        for task in self.tasks:
            if task.name == name:
                return task
        raise ValueError(f"{self.name} has no task {name!r} (it has {', '.join(task.name for task in self.tasks)})")

    def draw_givens(self, seed: str = PUBLIC_SEED) -> dict:
        """The values of the release with this seed."""
        return self.givens(Draw(seed, self.name, "givens"))


@dataclass(frozen=True)
class Line:
    """What became of one property: points got of points, and what to say where some are lost."""

    name: str
    about: str
    got: int
    points: int
    message: str = ""
    state: str = "ok"  # or 'wrong', 'failed' (the answer raised), 'unanswered', 'not here'


@dataclass(frozen=True)
class Report:
    """All lines of a task. In a notebook it shows itself as a table."""

    task: str
    title: str
    lines: tuple[Line, ...]
    public: bool = True

    @property
    def got(self) -> int:
        return sum(line.got for line in self.lines)

    @property
    def points(self) -> int:
        return sum(line.points for line in self.lines)

    @property
    def _unanswered(self) -> bool:
        return bool(self.lines) and all(line.state == "unanswered" for line in self.lines)

    def _verdict(self) -> str:
        if self._unanswered:
            return self.lines[0].message
        where = " in the public checks" if self.public else ""
        unseen = sum(line.points for line in self.lines if line.state == "not here")
        return f"{self.got} of {self.points} points{where}{f', {unseen} of them not looked at here' if unseen else ''}"

    def __str__(self) -> str:
        lines = [f"{self.title}: {self._verdict()}"]
        if not self._unanswered:
            for line in self.lines:
                lines.append(f"  {line.state:<10} {line.got}/{line.points}  {line.name}: {line.message or line.about}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{line.state}</td><td style='padding:4px 12px'>{line.got}/{line.points}</td><td style='text-align:left'>"
            f"<b>{html.escape(line.name)}</b><br>{html.escape(line.message or line.about)}</td></tr>"
            for line in self.lines
        )
        table = "" if self._unanswered else f"<table><tbody>{rows}</tbody></table>"
        return f"<p><b>{html.escape(self.title)}</b>: {self._verdict()}</p>{table}"


def judge(task: Task, answer: Answer, draws: Iterable[Draw], public: bool) -> Report:
    """Look at an answer with every property of a task, once with each draw; the first draw that finds a fault decides."""
    draws = list(draws)
    lines = []
    for prop, points in task.points:
        if public and prop.name in task.hidden:
            continue
        state, message = "ok", ""
        for draw in draws:
            state, message = _state(prop, answer, draw.of(prop.name))
            if state != "ok":
                break
        # What cannot be looked at here is not lost: grading looks at it where it can.
        lines.append(Line(prop.name, prop.about, points if state in ("ok", "not here") else 0, points, message, state))
        if state == "unanswered":
            rest = [(p, n) for p, n in task.points if not (public and p.name in task.hidden)][len(lines) :]
            lines += [Line(p.name, p.about, 0, n, message, state) for p, n in rest]
            break
    return Report(task.name, task.title, tuple(lines), public)


def _state(prop: Property, answer: Answer, draw: Draw) -> tuple[str, str]:
    try:
        with warnings.catch_warnings():
            # A wrong answer may divide by zero; a graded cell has to be silent on stderr.
            warnings.simplefilter("ignore")
            return "ok", prop(answer, draw) or ""
    except NotImplementedError as error:
        return "unanswered", str(error) if str(error).startswith(UNANSWERED) else UNANSWERED
    except Wrong as wrong:
        return "wrong", str(wrong)
    except NotHere as reason:
        return "not here", str(reason)
    except (Exception, SystemExit) as error:  # a learner's code may raise anything
        return "failed", _said(error)


def _said(error: BaseException) -> str:
    """The innermost cause: Triton's interpreter wraps what a kernel raises."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = f"{type(error).__name__}: {error}".strip().rstrip(":")
    return f"the answer raised {text[:500]}"
