"""The files of the built site, read without a browser."""

import json
import posixpath
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

import pytest

from course.site import BUILD, ROOT

SITE = Path(BUILD, "html")


class Links(HTMLParser):
    """Collects the ids of a page, what it links to and what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        elif tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loads.append(found["src"])
        elif tag == "link" and found.get("href") and found.get("rel") not in ("canonical",):
            self.loads.append(found["href"])


@pytest.fixture(scope="module")
def pages() -> dict[str, Links]:
    """Every html page of the site by its path."""
    found = {
        path.relative_to(SITE).as_posix(): Links(path.read_text(encoding="utf-8"))
        for path in SITE.rglob("*.html")
        if "_static" not in path.parts
    }
    assert found, "there is no built site; `make book` builds it, `make test` does so first"
    return found


def test_every_entry_of_the_contents_is_a_page(name):
    assert (SITE / name).is_file()


def test_internal_links_and_files_exist(pages):
    broken = []
    for page, content in pages.items():
        for link in content.links + content.loads:
            address = urllib.parse.urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(page), urllib.parse.unquote(address.path)))
            target = page if not address.path else target
            if not (SITE / target).exists():
                broken.append(f"{page}: {link}")
            elif address.fragment and target in pages and address.fragment not in pages[target].ids:
                broken.append(f"{page}: {link} (no such place)")
    assert broken == []


def test_pages_load_nothing_from_elsewhere(pages):
    outside = [
        f"{page}: {url}" for page, content in pages.items() for url in content.loads if urllib.parse.urlsplit(url).netloc
    ]
    assert outside == []


def test_only_pages_with_an_explorer_load_what_draws_it(name):
    text = (SITE / name).read_text(encoding="utf-8")
    assert ("explorers.js" in text) == ('class="explorer"' in text)
    assert "vega.js" not in text  # the script asks for it when an explorer comes near


@pytest.mark.notebooks_only
def test_no_page_shows_an_error_that_nobody_meant(name):
    notebook = json.loads(Path(ROOT, name).with_suffix(".ipynb").read_text(encoding="utf-8"))
    meant = any("raises-exception" in cell["metadata"].get("tags", []) for cell in notebook["cells"])
    text = (SITE / name).read_text(encoding="utf-8")
    assert meant or "Traceback" not in text
    assert "mystnb.exec" not in text


def test_prose_shows_no_error(name):
    if not name.startswith("notebooks/"):
        assert "Traceback (most recent call last)" not in (SITE / name).read_text(encoding="utf-8")


def test_no_path_of_the_machine_that_built_it(pages):
    for page in pages:
        assert ROOT not in (SITE / page).read_text(encoding="utf-8"), page
