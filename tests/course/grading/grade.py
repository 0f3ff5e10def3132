"""Grading as these tests do it: all properties, the hidden ones too, over a fixed set of seeds."""

import dataclasses
import functools
import importlib
import inspect
from pathlib import Path

import pytest

import kernels
from course import costs, layers
from course.grading import assignments
from course.grading.answers import Local
from course.grading.draw import Draw
from course.grading.tasks import Report, judge

SEEDS = ("first", "second", "third")
HERE = Path(__file__).parent


class course:
    """What a copy of the package `course` offers to ``Task.shipped``, from the package itself."""

    costs, layers = costs, layers


SHIPPED = {"kernels": kernels, "course": course}


@functools.cache
def draw(name: str, seed: str) -> Draw:
    """A draw for a task, with the values that a release of this seed gives."""
    assignment, _ = assignments.find(name)
    return Draw(seed, name, givens=assignment.draw_givens(seed))


def graded(name: str, answer, seeds=SEEDS) -> Report:
    """The report of hidden grading. An answer that has to know what was given is a function of it, and asked for each seed."""
    _, task = assignments.find(name)
    reports = [judge(task, Local(_of(answer, draw(name, seed).givens)), [draw(name, seed)], public=False) for seed in seeds]
    return min(reports, key=lambda report: report.got)


def loses(name: str, answer) -> bool:
    """Whether some property takes points from an answer with one of the seeds; the first that does ends the search.

    Skips the test where none did and some could not look: loads, for instance, are counted in the interpreter only.
    """
    _, task = assignments.find(name)
    alone = [dataclasses.replace(task, points=(each,), hidden=()) for each in task.points]
    blind = set()
    for seed in SEEDS:
        made = Local(_of(answer, draw(name, seed).givens))
        for one in alone:
            report = judge(one, made, [draw(name, seed)], public=False)
            if report.got < report.points:
                return True
            blind |= {line.message for line in report.lines if line.state == "not here"}
    if blind:
        pytest.skip("; ".join(blind))
    return False


class Made:
    """An answer that a factory makes, of what was given if the factory asks for it."""

    def __init__(self, factory):
        self.factory = factory

    def __call__(self, givens: dict):
        return self.factory(givens) if inspect.signature(self.factory).parameters else self.factory()


def _of(answer, givens: dict):
    return answer(givens) if isinstance(answer, Made) else answer


def listed(folder: str, name: str) -> list[tuple[str, str, Made]]:
    """(task, what it is, answer) of all files in a folder here; each file has a dictionary called ``name``."""
    found = []
    for file in sorted((HERE / folder).glob("*.py")):
        module = importlib.import_module(f"tests.course.grading.{folder}.{file.stem}")
        for task, answers in getattr(module, name).items():
            found += [(task, what, Made(factory)) for what, factory in answers]
    return found
