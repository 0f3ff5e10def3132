"""README and the book's pages: links lead somewhere, commands exist, versions agree."""

import re
from pathlib import Path

import pytest

from course import costs
from course.measure.plans import KINDS
from course.site.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("book/*.md"))]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_to_files(page):
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r'src="([^"]+)"', text)
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_named_commands_exist(page):
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^(\S+): ;", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z][a-z-]+)(?=[`\s])(?! [a-z])", text)) <= targets
    assert set(re.findall(r"-m course\.site(?: --as-is)? ([a-z-]+)", text)) <= set(COMMANDS)


def test_readme_counts_what_the_tables_hold():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    models, gpus = re.search(r"knows (\d+) published models and (\d+) GPUs", text).groups()
    assert (int(models), int(gpus)) == (len(costs.models(doubtful=True)), len(costs.gpus(doubtful=True)))


def test_lists_of_kernels_and_of_kinds_are_whole():
    files = {path.stem for path in ROOT.glob("kernels/[a-z]*.py")}
    readme, index, run = (
        ROOT.joinpath(page).read_text(encoding="utf-8") for page in ("README.md", "book/index.md", "book/run.md")
    )
    layout = re.search(r"^kernels/.*?^course/", readme, re.MULTILINE | re.DOTALL)[0]
    listed = re.findall(r"^  (\w+(?:, \w+)*)  ", layout, re.MULTILINE)
    assert sorted(", ".join(listed).split(", ")) == sorted(files)
    table = index.split("| file | what it does |")[1].split("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(files)
    table = run.split("| kind | what it measures |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(KINDS)
    assert f"by GPU and kind: {', '.join(KINDS)}\n" in readme


def test_every_reference_is_cited_and_every_citation_exists():
    keys = set(re.findall(r"^@\w+\{(\S+),$", (ROOT / "book/references.bib").read_text(encoding="utf-8"), re.MULTILINE))
    cited = set()
    for path in [*sorted(ROOT.glob("book/*.md")), *sorted(ROOT.glob("notebooks/*.ipynb"))]:
        for group in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", path.read_text(encoding="utf-8")):
            # A page's own list of references has a prefix of its own, such as c1-, c3b- or p1-, which its citations repeat.
            cited |= {re.sub(r"^[cp]\d+b?-", "", key.strip()) for key in group.split(",")}
    assert cited == keys
