"""One address and one release, the same everywhere, and a command that changes them."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from course.site import ROOT, address

NEW = ("https://github.com/someone-else/kv-course", "v0.2.0")


@pytest.fixture
def copy(tmp_path):
    """The files of the repository that hold the address."""
    for path in address.files(Path(ROOT)):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return tmp_path


def mentions(root: Path) -> set[tuple[str, str]]:
    """Every place under ``root`` that names the address, the repository or the release, as (file, what it says)."""
    url, tag = address.current(root / "_config.yml")
    slug = url.split("/", 3)[3]
    pattern = re.compile(rf"https://github\.com/{re.escape(slug)}|{re.escape(slug)}|\b{re.escape(tag)}\b")
    return {(p.name, found) for p in address.files(root) for found in pattern.findall(p.read_text(encoding="utf-8"))}


def test_config_is_read_as_yaml_reads_it():
    repository = yaml.safe_load(address.CONFIG.read_text(encoding="utf-8"))["repository"]
    assert address.current() == (repository["url"], repository["branch"])


def test_readme_and_citation_say_the_same():
    url, tag = address.current()
    citation = yaml.safe_load(Path(ROOT, "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["repository-code"] == url
    assert citation["version"] == tag.removeprefix("v")
    readme = Path(ROOT, "README.md").read_text(encoding="utf-8")
    assert url in readme
    # Every link of ours, to the repository or to Colab, is of this address and release.
    for slug, release in re.findall(
        r"https://(?:colab\.research\.google\.com/)?github(?:\.com)?/([\w.-]+/from-mha-to-mla)(?:/blob/([^/\s)]+))?",
        readme,
    ):
        assert slug == url.split("/", 3)[3]
        assert release in ("", tag)


def test_change_reaches_every_place(copy):
    before = mentions(copy)
    changed = address.change(copy, *NEW)
    assert {path.name for path in changed} == {name for name, _ in before}
    assert address.current(copy / "_config.yml") == NEW
    after = "\n".join(path.read_text(encoding="utf-8") for path in address.files(copy))
    url, tag = address.current()
    assert url.split("/", 3)[3] not in after
    assert tag not in after
    assert yaml.safe_load((copy / "CITATION.cff").read_text(encoding="utf-8"))["version"] == "0.2.0"
    assert all(json.loads(path.read_text(encoding="utf-8")) for path in copy.glob("notebooks/*.ipynb"))


def test_there_and_back_changes_nothing(copy):
    before = {path: path.read_text(encoding="utf-8") for path in address.files(copy)}
    address.change(copy, *NEW)
    address.change(copy, *address.current())
    assert {path: path.read_text(encoding="utf-8") for path in before} == before


@pytest.mark.parametrize(
    ("url", "tag", "word"),
    [
        ("github.com/someone/kv-course", "v0.2.0", "url"),
        ("https://github.com/someone", "v0.2.0", "url"),
        ("https://github.com/someone/kv-course.git", "v0.2.0", "url"),
        ("https://github.com/someone/kv-course/", "v0.2.0", "url"),
        ("https://github.com/someone/kv-course", "0.2.0", "tag"),
        ("https://github.com/someone/kv-course", "main", "tag"),
    ],
)
def test_anything_else_is_refused_and_nothing_written(copy, url, tag, word):
    before = {path: path.read_text(encoding="utf-8") for path in address.files(copy)}
    with pytest.raises(ValueError, match=f"^{word} is "):
        address.change(copy, url, tag)
    assert {path: path.read_text(encoding="utf-8") for path in before} == before
