"""The files of the built site, read without a browser."""

import functools
import gzip
import json
import posixpath
import re
import urllib.parse
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest

from course.site import BUILD, ROOT
from course.site.metadata import site_address

SITE = Path(BUILD, "html")

# What a page may weigh when all of it has been looked at, before the script that explorers share. Servers compress texts.
MOST_BYTES = 600_000
TEXTS = (".html", ".css", ".js", ".svg")
FORMULAS = ("core.js", "input/tex.js", "output/chtml.js", "output/chtml/fonts/tex.js", "a11y/assistive-mml.js")
LETTERS = ("Main-Regular", "Math-Italic", "Size1-Regular", "Size2-Regular")  # the fonts that nearly every formula asks for


NEIGHBOURS = ("index", "search", "next", "prev")  # pages, not parts of this one


class Links(HTMLParser):
    """Collects the ids of a page, what it links to and what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "img":
            self.images.append(found)
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        elif tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.loads.append(found["src"])
        elif tag == "link" and found.get("href") and found.get("rel") != "canonical":
            (self.links if found.get("rel") in NEIGHBOURS else self.loads).append(found["href"])


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


@functools.cache
def weight(path: Path) -> int:
    """Bytes that a file takes on its way to a reader."""
    data = path.read_bytes()
    return len(gzip.compress(data, mtime=0)) if path.suffix in TEXTS else len(data)


def test_a_page_is_light(pages, name):
    files = {SITE / name} | {
        SITE / posixpath.normpath(posixpath.join(posixpath.dirname(name), urllib.parse.urlsplit(url).path))
        for url in pages[name].loads
    }
    mathjax = SITE / "_static/offline/mathjax"
    if mathjax / "startup.js" in files:
        files |= {mathjax / file for file in FORMULAS}
        files |= {mathjax / f"output/chtml/fonts/woff-v2/MathJax_{font}.woff" for font in LETTERS}
    assert sum(map(weight, files)) <= MOST_BYTES, sorted((weight(file), file.name) for file in files)[-8:]


def test_a_page_loads_no_formulas_without_one(name):
    text = (SITE / name).read_text(encoding="utf-8")
    assert ("mathjax/startup.js" in text) == ("formulas.js" in text) == ('class="math' in text)


def test_pictures_have_their_size_and_wait_until_they_are_near(pages, name):
    images = [image for image in pages[name].images if "logo_colab" not in image["src"]]
    assert all(image.get("width") and image.get("height") for image in images)
    assert all(image.get("loading") == "lazy" for image in images[1:])
    assert not any(image["src"].startswith("data:") for image in images)


def test_icons_come_with_the_style():
    """Each icon that a page names is one of the theme's, and the script that brought all of them is gone."""
    style = (SITE / "_static/styles/pydata-sphinx-theme.css").read_text(encoding="utf-8")
    texts = [path.read_text(encoding="utf-8") for path in SITE.glob("*/*.html")]
    named = {icon for text in texts for icon in re.findall(r'"fa[\w-]* (fa-[\w-]+)', text)}
    assert len(named) > 5
    assert [icon for icon in named if f".{icon}:before" not in style] == []
    assert style.count("data:font/woff;base64,") == 3
    assert "webfonts" not in style
    assert not (SITE / "_static/scripts/fontawesome.js").exists()


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


def test_a_page_says_what_it_is_about(name):
    text = (SITE / name).read_text(encoding="utf-8")
    said = dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)"', text))
    address = f"{site_address()}{name}"
    assert 20 < len(said["description"]) <= 300
    assert said["og:description"] == said["description"]
    assert said["og:title"]
    assert said["og:url"] == address
    assert f'<link rel="canonical" href="{address}"' in text
    assert (SITE / said["og:image"].removeprefix(site_address())).is_file()


def test_the_site_as_one_file_is_the_site():
    """Whole but for itself, in a folder of its own, and no larger than a few pictures."""
    [whole] = SITE.glob("*.zip")
    with zipfile.ZipFile(whole) as archive:
        held = {name for name in archive.namelist() if not name.endswith("/")}
    there = {path.relative_to(SITE).as_posix() for path in SITE.rglob("*") if path.is_file()} - {whole.name}
    assert held == {f"{whole.stem}/{name}" for name in there}
    assert whole.stat().st_size < 10_000_000
