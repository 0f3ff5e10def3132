"""The files of the built site, read without a browser."""

import base64
import functools
import gzip
import io
import json
import posixpath
import re
import urllib.parse
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fontTools.ttLib import TTFont
from PIL import Image

from course.site import BUILD, ROOT, formulas
from course.site.metadata import site_address

SITE = Path(BUILD, "html")

# What a page may weigh when all of it has been looked at, before the script that explorers share. Servers compress texts.
MOST_BYTES = 600_000
TEXTS = (".html", ".css", ".js", ".svg")

# What a page may weigh before a browser shows anything of it: itself and its style sheets.
MOST_BYTES_BEFORE_FIRST = 180_000

# Scripts that hold up the page while they load. All others are the page's own lines or wait for it.
AT_ONCE = ["documentation_options.js"]

NEIGHBOURS = ("index", "search", "next", "prev")  # pages, not parts of this one


class Links(HTMLParser):
    """Collects the ids of a page, what it links to and what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.scripts: list[dict[str, str | None]] = []
        self.styles: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "img":
            self.images.append(found)
        if tag == "script" and found.get("src"):
            self.scripts.append(found)
        if tag == "link" and found.get("rel") == "stylesheet":
            self.styles.append(found["href"])
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


def files(page: str, urls: list[str]) -> set[Path]:
    """The files that a page's urls name."""
    return {SITE / posixpath.normpath(posixpath.join(posixpath.dirname(page), urllib.parse.urlsplit(url).path)) for url in urls}


def test_a_page_is_light(pages, name):
    loaded = {SITE / name} | files(name, pages[name].loads)
    assert sum(map(weight, loaded)) <= MOST_BYTES, sorted((weight(file), file.name) for file in loaded)[-8:]


def test_little_is_needed_before_a_page_shows(pages, name):
    needed = {SITE / name} | files(name, pages[name].styles)
    assert sum(map(weight, needed)) <= MOST_BYTES_BEFORE_FIRST, sorted((weight(file), file.name) for file in needed)[-8:]
    assert not any("@import" in file.read_text(encoding="utf-8") for file in needed - {SITE / name})
    held_up = [urllib.parse.urlsplit(script["src"]).path for script in pages[name].scripts if "defer" not in script]
    assert [posixpath.basename(path) for path in held_up] == AT_ONCE


def test_formulas_are_there_without_a_script(pages, name):
    """Each is MathML, on a page with the font for it, and nobody sets it anew."""
    text = (SITE / name).read_text(encoding="utf-8")
    places = len(re.findall(r'<(?:span|div) class="[^"]*\bmath\b[^"]*"', text))
    assert text.count("<math") == text.count("</math>") == places
    assert ("formulas.css" in text) == (places > 0)
    assert "window.MathJax" not in text
    assert not any("mathjax" in script["src"].lower() for script in pages[name].scripts)


def test_font_of_formulas_has_all_that_they_show():
    style = (SITE / "_static/formulas.css").read_text(encoding="utf-8")
    [data] = re.findall(r"base64,([^)]*)\)", style)
    font = TTFont(io.BytesIO(base64.b64decode(data)))
    wanted = set().union(*(formulas.shown(path.read_text(encoding="utf-8")) for path in SITE.glob("*/*.html")))
    assert {"√", "𝑥", "∑", "′"} < wanted
    assert {letter for letter in wanted if ord(letter) not in font.getBestCmap()} <= {"\u2061"}  # which is never seen
    assert "MATH" in font  # without it nothing grows with what is below or beside it
    assert "Open Font License" in font["name"].getDebugName(13)


def test_plain_words_of_code_are_no_elements(name):
    """Those of highlighted code that have its own colour in both themes; most of the page's elements otherwise."""
    style = (SITE / "_static/pygments.css").read_text(encoding="utf-8")
    for theme in ("light", "dark"):
        [colour] = re.findall(rf'"{theme}"\] \.highlight {{ .*color: (#\w+) }}', style)
        for kind in "npw":
            assert f'"{theme}"] .highlight .{kind} {{ color: {colour} }}' in style
    text = (SITE / name).read_text(encoding="utf-8")
    assert not re.search(r'<span class="[npw]">', text)


def test_theme_does_not_measure_block_by_block():
    theme = (SITE / "_static/scripts/pydata-sphinx-theme.js").read_text(encoding="utf-8")
    assert ".tabIndex=" in theme  # it is the script that did
    assert 'addEventListener("load"' not in theme


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
    with Image.open(SITE / said["og:image"].removeprefix(site_address())) as card:
        assert (str(card.width), str(card.height)) == (said["og:image:width"], said["og:image:height"])
    assert said["og:image:alt"]
    assert said["twitter:card"] == "summary_large_image"


def test_the_site_as_one_file_is_the_site():
    """Whole but for itself, in a folder of its own, and no larger than a few pictures."""
    [whole] = SITE.glob("*.zip")
    with zipfile.ZipFile(whole) as archive:
        held = {name for name in archive.namelist() if not name.endswith("/")}
    there = {path.relative_to(SITE).as_posix() for path in SITE.rglob("*") if path.is_file()} - {whole.name}
    assert held == {f"{whole.stem}/{name}" for name in there}
    assert whole.stat().st_size < 10_000_000
