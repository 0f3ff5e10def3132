"""Every mutant is one edit that still applies, and its task finds it; what a fix-the-bug task hands out can be handed out."""

import pytest

import kernels
from course import copies
from course.grading import assignments, packages
from course.grading.mutants import MUTANTS, Mutant
from tests.course.grading.grade import listed, loses

FIXES = [(a, t) for a in assignments.ASSIGNMENTS.values() for t in a.tasks if t.kind == "fix"]


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_a_mutant_is_found_by_its_task(mutant):
    _, task = assignments.find(mutant.task)
    assert mutant.text() != copies.shipped_text(mutant.file)
    assert mutant.file.split("/")[0] == task.package
    assert mutant.story and mutant.source
    assert loses(mutant.task, task.shipped(mutant.load())), "it survives: the grading has a hole"


@pytest.mark.parametrize("mutant", [m for m in MUTANTS.values() if m.given], ids=lambda m: m.name)
def test_a_bug_that_is_handed_out_is_one_definition(mutant):
    _, task = assignments.find(mutant.task)
    assert task.kind == "fix"
    shipped, broken = mutant.shipped(), mutant.broken()
    assert broken != shipped
    text = copies.shipped_text(mutant.file)
    assert packages.replace_definitions(text, broken) == mutant.text()
    assert packages.replace_definitions(mutant.text(), shipped) == text
    assert len(broken.splitlines()) <= 120, "too long to read in a cell"


@pytest.mark.parametrize(("assignment", "task"), FIXES, ids=lambda one: one.name)
def test_every_fix_has_a_bug_to_hand_out(assignment, task):
    assert assignments.mutants_of(assignment, task, given=True)


@pytest.mark.parametrize("assignment", assignments.ASSIGNMENTS.values(), ids=assignments.ASSIGNMENTS)
def test_every_assignment_has_mutants(assignment):
    assert sum(m.task.startswith(f"{assignment.name}.") for m in MUTANTS.values()) >= 3


def test_there_are_enough_to_prove_the_grading():
    assert len(MUTANTS) >= 100, "mutants were lost: is a file of `mutants` not read?"
    right = listed("right_answers", "RIGHT")
    assert len(right) >= 40 and {task.split(".")[0] for task, _, _ in right} == set(assignments.ASSIGNMENTS)


@pytest.mark.parametrize("old", ["no such text", "offsets"])
def test_an_edit_that_does_not_apply_once_is_refused(old):
    lost = Mutant("lost", "", "kernels/first.py", old, "x", "", "")
    with pytest.raises(ValueError, match=f"stands {copies.shipped_text(lost.file).count(old)} times"):
        lost.text()


def test_a_copy_is_a_package_of_its_own():
    made = Mutant("x", "", "kernels/first.py", "MAX_BLOCK = 8192", "MAX_BLOCK = 4096", "", "").load()
    assert (made.first.MAX_BLOCK, kernels.first.MAX_BLOCK) == (4096, 8192)
    assert made.first is not kernels.first
