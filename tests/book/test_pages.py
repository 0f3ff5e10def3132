"""README and the book's pages: links lead somewhere, commands exist, versions agree."""

import re
from pathlib import Path

import pytest

from course import costs
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


def test_every_reference_is_cited_and_every_citation_exists():
    keys = set(re.findall(r"^@\w+\{(\S+),$", (ROOT / "book/references.bib").read_text(encoding="utf-8"), re.MULTILINE))
    cited = set()
    for path in [*sorted(ROOT.glob("book/*.md")), *sorted(ROOT.glob("notebooks/*.ipynb"))]:
        for group in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", path.read_text(encoding="utf-8")):
            # A page's own list of references has a prefix of its own, such as c1-, which its citations repeat.
            cited |= {re.sub(r"^c\d+-", "", key.strip()) for key in group.split(",")}
    assert cited == keys
