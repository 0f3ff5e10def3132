"""What the book tells of the assignments, to students and to instructors, made from the tasks, the mutants and the sources.

Nothing of it is typed a second time: `tests.book.test_instructors` writes it into the pages and finds a page that is behind.
"""

import re

from ..views import contents
from .assignments import ASSIGNMENTS
from .mutants import MUTANTS
from .release import solved
from .tasks import Assignment, Task

DOWNLOADS = "../assignments"
"""Where the released notebooks lie, from a page of the book."""

KINDS = {"predict": "predict", "fix": "mend", "build": "write", "stretch": "write, a stretch"}
ONE_DAY = (
    ("before", ("P1", "P3"), ()),
    ("morning", ("1", "2"), ()),
    ("before lunch", ("4",), ()),
    ("afternoon", ("5", "7"), ()),
    ("end", ("8",), ()),
    ("afterwards", (), ("02_sharing_heads", "05_flash_decoding", "07_mla_compress")),
)
SIX_WEEKS = (("0", "P1", "1"), ("P2", "2"), ("P3", "3", "3b"), ("4", "5"), ("6", "7"), ("8", "8b", "9"))


def plural(n: int, word: str) -> str:
    """'1 point', '2 points'."""
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def points(assignment: Assignment) -> int:
    """Points of an assignment in all, those that a person gives too."""
    return sum(task.max_points for task in assignment.tasks) + explained(assignment)


def explained(assignment: Assignment) -> int:
    """Points of the open question."""
    return sum(n for n, _ in assignment.rubric)


def download(name: str) -> str:
    """Link to the released notebook of an assignment."""
    return f'<a href="{DOWNLOADS}/{name}.ipynb" download>{name}.ipynb</a>'


def plain(text: str) -> str:
    """A text of ours as Markdown that means nothing but itself."""
    return re.sub(r"([*$<\[])", r"\\\1", text)


def titled(assignment: Assignment) -> str:
    """Title with the number of the page: '5 Flash-Decoding'."""
    page = next(page for page in contents.written_pages() if _of_page(page) is assignment)
    return f"{page} {assignment.title}"


def _of_page(page: str) -> Assignment | None:
    return ASSIGNMENTS.get(contents.notebook(page).removesuffix(".ipynb"))


def _table(columns: list[str], rows: list[list[str]], right: tuple[int, ...]) -> str:
    lines = [columns, ["---:" if i in right else "---" for i in range(len(columns))], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def assignment_table() -> str:
    """One line an assignment: minutes, points, and the notebook to download."""
    rows = []
    for page in contents.written_pages():
        found = _of_page(page)
        if found is not None:
            rows.append([f"[{titled(found)}](#{anchor(found)})", f"{found.minutes}", f"{points(found)}", download(found.name)])
    total = [f"{sum(get(a) for a in ASSIGNMENTS.values())}" for get in (lambda a: a.minutes, points)]
    return _table(["assignment", "minutes", "points", "notebook"], [*rows, ["*all*", *total, ""]], (1, 2))


def anchor(assignment: Assignment) -> str:
    """Name of the section of an assignment."""
    return "assignment-" + assignment.name.replace("_", "-")


def assignment_sections() -> str:
    """What each assignment asks, and what one can do afterwards."""
    sections = []
    for page in contents.written_pages():
        found = _of_page(page)
        if found is None:
            continue
        rows = [[task.title, KINDS[task.kind], str(task.max_points)] for task in found.tasks]
        rows.append(["Explain, in a paragraph", "explain; a person reads it", str(explained(found))])
        sections.append(
            f"({anchor(found)})=\n## {titled(found)}\n\n"
            f"About {found.minutes} minutes, {plural(points(found), 'point')}, after "
            f"[{contents.title(page)}](../notebooks/{contents.notebook(page)}): {download(found.name)}\n\n"
            f"{_table(['task', 'kind', 'points'], rows, (2,))}\n\n"
            "Afterwards you can\n\n" + "\n".join(f"- {plain(one)};" for one in found.objectives)[:-1] + "."
        )
    return "\n\n".join(sections)


def chapter_cell(assignment: Assignment) -> str:
    """The last cell of the chapter: what its assignment asks, and where it is."""
    tasks = "; ".join(f"*{task.title}* ({KINDS[task.kind]})" for task in assignment.tasks)
    return (
        f"## Assignment\n\nNow your turn: [assignment {titled(assignment)}](../book/assignments.md#{anchor(assignment)}), "
        f"about {assignment.minutes} minutes, graded as you go. {tasks}."
    )


def objectives() -> str:
    """Objectives of each page, as its first cell states them, with minutes, needs and assignment."""
    parts = []
    for page in contents.written_pages():
        found = _of_page(page)
        needs = ", ".join(contents.PAGES[page].needs) or "nothing of the course"
        work = f"; the assignment takes {found.minutes} and has {plural(points(found), 'point')}" if found is not None else ""
        parts.append(
            f"**[{contents.title(page)}](../notebooks/{contents.notebook(page)})** takes {contents.minutes(page)} minutes and "
            f"needs {needs}{work}.\n\n" + "\n".join(contents.objectives(page))
        )
    return "\n\n".join(parts)


def _listed(pages) -> str:
    return ", ".join(f"[{page}](../notebooks/{contents.notebook(page)})" for page in pages) or "–"


def one_day() -> str:
    """Timetable of one day, with minutes."""
    rows = []
    for when, pages, work in ONE_DAY:
        reading, doing = sum(map(contents.minutes, pages)), sum(ASSIGNMENTS[name].minutes for name in work)
        said = ", ".join(f"{{ref}}`{titled(ASSIGNMENTS[name])} <{anchor(ASSIGNMENTS[name])}>`" for name in work)
        rows.append([when, _listed(pages), f"{reading or '–'}", said or "–", f"{doing or '–'}"])
    in_class = sum(contents.minutes(page) for when, pages, _ in ONE_DAY if when != "before" for page in pages)
    rows.append(["*in class*", "", f"{in_class}", "", ""])
    return _table(["when", "pages", "minutes", "assignments", "minutes"], rows, (2, 4))


def six_weeks() -> str:
    """Timetable of six weeks, with minutes and points of what is not optional."""
    rows = []
    for week, pages in enumerate(SIX_WEEKS, 1):
        counted = [page for page in pages if page not in contents.OPTIONAL]
        work = [found for found in map(_of_page, counted) if found is not None]
        rows.append([
            f"{week}", _listed(pages), f"{sum(map(contents.minutes, counted))}", f"{sum(a.minutes for a in work)}",
            f"{sum(map(points, work))}",
        ])  # fmt: skip
    columns = ["week", "pages, each with its assignment", "minutes of reading", "minutes of assignments", "points"]
    return _table(columns, rows, (0, 2, 3, 4))


def faults() -> str:
    """What goes wrong, by assignment: the stories of the mutants, with the task that finds each."""
    parts = []
    for assignment in ASSIGNMENTS.values():
        found = [m for m in MUTANTS.values() if m.task.startswith(f"{assignment.name}.")]
        lines = []
        for mutant in found:
            task = assignment.task(mutant.task.split(".")[1])
            use = "handed out to be mended in" if mutant.given else "found by"
            name = re.sub("[-_]", " ", mutant.name).capitalize()
            lines.append(f"- **{name}**, {use} *{task.title}*. {plain(mutant.story)} *Source:* {plain(mutant.source)}.")
        summary = f"{titled(assignment)}: {plural(len(found), 'fault')}"
        parts.append(f"<details><summary>{summary}</summary>\n\n" + "\n".join(lines) + "\n\n</details>")
    return "\n\n".join(parts)


def question(assignment: Assignment) -> str:
    """The open question as the release asks it: the text before the cell for the answer, without its heading."""
    cells = solved(assignment.name).cells
    place = next(i for i, cell in enumerate(cells) if cell.metadata.get("nbgrader", {}).get("grade_id") == "explain")
    lines = cells[place - 1].source.split("\n")
    return "\n".join(line for line in lines if not line.startswith("#")).strip()


def rubrics() -> str:
    """The open questions with what their points are for."""
    parts = []
    for assignment in ASSIGNMENTS.values():
        lines = [f"- {plural(n, 'point')}: {plain(what)}" for n, what in assignment.rubric]
        summary = f"{titled(assignment)}: {plural(explained(assignment), 'point')}"
        parts.append(
            f"<details><summary>{summary}</summary>\n\n{question(assignment)}\n\n" + "\n".join(lines) + "\n\n</details>"
        )
    return "\n\n".join(parts)


def counts() -> str:
    """What there is, in one sentence."""
    tasks: list[Task] = [task for assignment in ASSIGNMENTS.values() for task in assignment.tasks]
    hidden = sum(len(task.hidden) for task in tasks)
    return (
        f"There are {len(ASSIGNMENTS)} assignments with {len(tasks)} tasks that are graded by "
        f"{sum(len(task.points) for task in tasks)} properties, {hidden} of which only grading looks at, and {len(MUTANTS)} "
        "wrong versions of our own code that prove those properties."
    )
