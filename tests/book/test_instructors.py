"""The pages for students and instructors list what `course.grading` holds.

python -m tests.book.test_instructors      writes the lists, and the last cell of each chapter
"""

import json
import math
import re
from pathlib import Path

import pytest
import torch

from course import costs
from course.grading import assignments, guide, judge, tasks
from course.grading.answers import Local
from course.grading.assignments import ASSIGNMENTS
from course.grading.draw import Draw
from course.grading.mutants import MUTANTS, Mutant
from course.views import contents
from tests.course.grading.grade import loses

BOOK = Path(__file__).resolve().parents[2] / "book"
PAGES = {
    "assignments.md": {"table": guide.assignment_table, "sections": guide.assignment_sections},
    "instructors.md": {
        "counts": guide.counts,
        "objectives": guide.objectives,
        "day": guide.one_day,
        "weeks": guide.six_weeks,
        "faults": guide.faults,
        "rubrics": guide.rubrics,
    },
}
PARTS = [(page, part) for page, parts in PAGES.items() for part in parts]


def marks(part: str) -> tuple[str, str]:
    return f"% begin {part}\n", f"% end {part}\n"


def chapter(name: str) -> Path:
    return BOOK.parent / "notebooks" / f"{name}.ipynb"


def read(page: str) -> str:
    return BOOK.joinpath(page).read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "part"), PARTS)
def test_the_pages_show_what_there_is(page, part):
    begin, end = marks(part)
    shown = read(page).split(begin)[1].split(end)[0]
    assert shown == f"\n{PAGES[page][part]()}\n\n", "write it again: python -m tests.book.test_instructors"


@pytest.mark.parametrize("name", ASSIGNMENTS)
def test_the_chapter_ends_with_its_assignment(name):
    last = json.loads(chapter(name).read_text(encoding="utf-8"))["cells"][-1]
    assert "".join(last["source"]) == guide.chapter_cell(ASSIGNMENTS[name]), (
        "write it again: python -m tests.book.test_instructors"
    )


def test_every_page_of_the_course_has_a_week_and_a_board_plan():
    weeks = [page for pages in guide.SIX_WEEKS for page in pages]
    assert sorted(weeks) == sorted(contents.written_pages())
    plans = re.findall(r"^\*\*(\S+)\*\*:? ", read("instructors.md").split("## Board plans")[1].split("\n## ")[0], re.MULTILINE)
    assert [plan.rstrip(".") for plan in plans] == list(contents.written_pages())


def test_nothing_is_left_out():
    text = read("instructors.md")
    for mutant in MUTANTS.values():
        assert guide.plain(mutant.story) in text and guide.plain(mutant.source) in text
    for assignment in ASSIGNMENTS.values():
        assert all(guide.plain(what) in text for _, what in assignment.rubric)
        assert guide.question(assignment) and not guide.question(assignment).startswith("#")


def test_the_figures_on_the_board_are_computed():
    text = read("instructors.md")
    parts = ((2.0, 0.0), (1.0, 2.0)), ((3.0, 1.0), (3.0, 4.0))  # scores and values, as in chapters 3 and 5
    masses = [sum(map(math.exp, scores)) for scores, _ in parts]
    outs = [sum(math.exp(x) * v for x, v in zip(*part, strict=True)) / mass for part, mass in zip(parts, masses, strict=True)]
    merged = sum(mass * out for mass, out in zip(masses, outs, strict=True)) / sum(masses)
    assert all(f"{x:.4f}" in text for x in (merged, sum(outs) / 2, *outs))
    h200 = costs.gpu("H200 SXM").sm_count
    for splits, said in ((16, "97%"), (17, "52%")):
        programs = 8 * splits
        assert f"{programs / h200 / -(-programs // h200):.0%}" == said and said in text and f"{programs} programs" in text
    assert (-(-1000 // 256), 4 * 256 - 1000) == (4, 24) and "4 programs, 24 idle lanes" in text
    v3 = costs.model("DeepSeek-V3").attention
    assert v3.elements_per_token == 576 and "576" in text
    assert [37 // 16, 37 % 16] == [2, 5] and "page 9, slot 5" in text


def test_the_example_exercise_works():
    """The code of the page, run: the bug is found, the task tells right from wrong."""
    text = read("instructors.md").split("## Add an exercise")[1].split("\n## ")[0]
    bug, prop, task, answers = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    mutant = eval(bug, {"Mutant": Mutant})
    assert loses(mutant.task, assignments.find(mutant.task)[1].shipped(mutant.load()))
    names = {"math": math, "torch": torch, "judge": judge, "named": tasks.named, "Task": tasks.Task}
    for code in (prop, task, answers):
        exec(code, names)
    for listed, points in (("RIGHT", 1), ("WRONG", 0)):
        ((_, factory),) = names[listed]["05_flash_decoding.shares"]
        report = tasks.judge(names["SHARES"], Local(factory()), [Draw(1), Draw(2)], public=True)
        assert report.got == points, report


def main() -> None:
    for page, parts in PAGES.items():
        text = read(page)
        for part, made in parts.items():
            begin, end = marks(part)
            before, rest = text.split(begin)
            text = before + begin + f"\n{made()}\n\n" + end + rest.split(end)[1]
        BOOK.joinpath(page).write_text(text, encoding="utf-8")
    for name, assignment in ASSIGNMENTS.items():
        notebook = json.loads(chapter(name).read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["id"] != "assignment"]
        source = guide.chapter_cell(assignment).splitlines(keepends=True)
        cells.append({"cell_type": "markdown", "id": "assignment", "metadata": {}, "source": source})
        notebook["cells"] = cells
        chapter(name).write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
