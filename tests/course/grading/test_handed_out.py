"""What is public holds no solution and no marker of one: releases, the built site with its sources and its search index."""

import functools
import html
import re
from pathlib import Path

import nbformat
import pytest

from course.copies import CONTENTS
from course.grading import release
from course.grading.assignments import ASSIGNMENTS
from course.session import ROOT
from course.site import BUILD

SITE = Path(BUILD, "html")
SHORT = 25
"""Characters of a line that says too little to tell where it comes from."""


def lines(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines() if len(line.strip()) > SHORT}


@functools.cache
def shown() -> str:
    """What pages may show: the shipped code, and the cells of the chapters."""
    paths = [path for package, patterns in CONTENTS.items() for pattern in patterns for path in (ROOT / package).glob(pattern)]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    chapters = [nbformat.read(path, as_version=4) for path in ROOT.glob("notebooks/*.ipynb")]
    cells = [cell.source for notebook in chapters for cell in notebook.cells]
    return "\n".join([file.read_text(encoding="utf-8") for file in files] + cells)


@functools.cache
def handed_out() -> str:
    """What all assignments give: a later one may start from what an earlier one asks for."""
    notebooks = [release.without_solutions(release.solved(name)) for name in ASSIGNMENTS]
    return "\n".join(cell.source for notebook in notebooks for cell in notebook.cells)


def solution_lines(name: str) -> set[str]:
    """Lines that stand in solutions alone: not in what pages show, as repairs do, and not in what is handed out."""
    solved = release.solved(name)
    found = {line for cell in solved.cells for part in release.SOLUTION.findall(cell.source) for line in lines(part)}
    return {line for line in found if "SOLUTION" not in line and line not in shown() and line not in handed_out()}


def searched(text: str, page: bool) -> str:
    """Text as a reader sees it: of a page without tags and entities, elsewhere with JSON's escapes resolved; spaces as one."""
    text = html.unescape(re.sub(r"<[^>]*>", "", text)) if page else text.replace('\\"', '"').replace("\\\\", "\\")
    return re.sub(r"\s+", " ", text)


@pytest.fixture(scope="module")
def site() -> dict[str, str]:
    """Every file of the built site that holds text, as a reader sees it."""
    if not (SITE / "index.html").is_file():
        pytest.skip("there is no built site; `make test` builds it first")
    files = [path for path in SITE.rglob("*") if path.suffix in (".html", ".js", ".ipynb", ".md", ".json", ".txt", ".inv")]
    files = [path for path in files if "_static" not in path.relative_to(SITE).parts]
    return {str(path.relative_to(SITE)): path.read_text(encoding="utf-8", errors="replace") for path in files}


def test_the_site_hands_out_every_assignment(site):
    files = {name for name in site if name.startswith("assignments/")}
    assert files == {f"assignments/{name}.ipynb" for name in ASSIGNMENTS}
    for name in ASSIGNMENTS:
        public = release.without_solutions(release.solved(name))
        assert nbformat.reads(site[f"assignments/{name}.ipynb"], as_version=4) == nbformat.from_dict(public)
    assert "_sources/notebooks/p1_gpu.ipynb" in site and "searchindex.js" in site


def test_no_marker_and_no_solution_is_on_the_site(site):
    wanted = {line: name for name in ASSIGNMENTS for line in solution_lines(name)}
    assert len(wanted) > 10 * len(ASSIGNMENTS), "the search would find nothing"
    for file, text in site.items():
        assert release.BEGIN not in text and "END SOLUTION" not in text, file
        assert '"stub"' not in text or not file.endswith(".ipynb"), file
        seen = searched(text, file.endswith(".html"))
        found = [(name, line) for line, name in wanted.items() if re.sub(r"\s+", " ", line) in seen]
        assert not found, f"{file}: {found[:3]}"


def test_the_search_would_find_a_planted_line():
    name = next(iter(ASSIGNMENTS))
    planted = next(iter(sorted(solution_lines(name))))
    source = nbformat.writes(release.solved(name))
    assert re.sub(r"\s+", " ", planted) in searched(source, False)
    as_page = "".join(f"<span class='n'>{html.escape(part)}</span>" for part in re.split(r"(\W)", planted))
    assert re.sub(r"\s+", " ", planted) in searched(f"<pre>{as_page}</pre>", True)
