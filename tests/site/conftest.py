"""The built site in a real browser. `make test` builds it first; without a browser on the machine these tests are skipped."""

import functools
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Request, sync_playwright

from course.site import BUILD, ROOT
from course.site.serve import server

SITE = Path(BUILD, "html")
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def files(entry) -> list[str]:
    """Every file named in a piece of a table of contents, in order."""
    if isinstance(entry, list):
        return [name for each in entry for name in files(each)]
    own = [entry[key] for key in ("root", "file") if key in entry]
    return own + [name for key in ("parts", "chapters", "sections") for name in files(entry.get(key, []))]


PAGES = [f"{entry}.html" for entry in files(yaml.safe_load(Path(ROOT, "_toc.yml").read_text(encoding="utf-8")))]

MARKS = {"notebooks_only": ("notebooks/",), "explorers_only": ("notebooks/", "book/index.html")}


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium, the one that is on the machine."""
    executable = next(filter(None, map(shutil.which, NAMES)), None)
    if executable is None:
        pytest.skip("no Chromium on PATH; install the package chromium (apt install chromium) or Google Chrome")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def base() -> Iterator[str]:
    """Address of the built site over http, ending in a slash."""
    assert (SITE / "index.html").is_file(), "there is no built site; `make book` builds it, `make test` does so first"
    with server(str(SITE), [0]) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}/"
        served.shutdown()


@dataclass
class Visit:
    """An open page and everything it complained of or asked another host for."""

    page: Page
    said: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def context(browser: Browser) -> BrowserContext:
    """One context for all tests: its pages share what they have loaded."""
    return browser.new_context()


def open_page(
    context: BrowserContext, name: str, origin: str, *, width: int = 1280, height: int = 900, scheme: str = "light"
) -> Visit:
    """Open a page of the site (``'book/run.html'``) and wait until it has loaded."""
    visit = Visit(context.new_page())
    visit.page.set_viewport_size({"width": width, "height": height})
    visit.page.emulate_media(color_scheme=scheme)
    visit.page.on("console", lambda m: visit.said.append(f"console: {m.text}") if m.type == "error" else None)
    visit.page.on("pageerror", lambda error: visit.said.append(f"page error: {error}"))
    visit.page.on("request", functools.partial(note_outside, visit, origin))
    visit.page.on("requestfailed", functools.partial(note_failure, visit))
    visit.page.goto(origin + name)
    return visit


@pytest.fixture
def visit(context: BrowserContext, base: str) -> Iterator[Callable[..., Visit]]:
    """Function that opens a page; it is closed after the test."""
    visits = []

    def opened(name: str, *, origin: str = base, **how) -> Visit:
        visits.append(open_page(context, name, origin, **how))
        return visits[-1]

    yield opened
    for each in visits:
        each.page.close()


def note_outside(visit: Visit, origin: str, request: Request) -> None:
    """Note a request that leaves the site."""
    if not request.url.startswith((origin, "data:", "blob:")):
        visit.said.append(f"outside: {request.url}")


def note_failure(visit: Visit, request: Request) -> None:
    """Note a request that failed, other than one that was given up because the page went elsewhere."""
    if request.failure != "net::ERR_ABORTED":
        visit.said.append(f"failed: {request.url}: {request.failure}")


def draw(page: Page, how_many: int | None = None) -> list[Locator]:
    """Bring each explorer of a page (or the first ``how_many``) into view until it is drawn; return them.

    The sections of the page are laid out then.
    """
    page.evaluate("sectionsLaidOut")
    explorers = page.locator("div.explorer").all()[:how_many]
    for explorer in explorers:
        explorer.scroll_into_view_if_needed()
        page.locator(f"#{explorer.get_attribute('id')}[data-drawn]").wait_for()
    return explorers


@pytest.fixture(scope="session")
def draw_explorers() -> Callable[..., list[Locator]]:
    """Function that brings the explorers of a page (or the first so many) into view until they are drawn, and returns them."""
    return draw


@pytest.fixture(scope="session")
def name(request: pytest.FixtureRequest) -> str:
    """Each page in turn, as its path in the site."""
    return request.param


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give tests of a ``name`` every page of the table of contents, or those that a mark names.

    For the whole session: all tests of a page follow each other and share what is open.
    """
    if "name" in metafunc.fixturenames:
        prefixes = next((of for mark, of in MARKS.items() if metafunc.definition.get_closest_marker(mark)), ("",))
        pages = [page for page in PAGES if page.startswith(prefixes)]
        metafunc.parametrize("name", pages, indirect=True, scope="session")


@pytest.fixture(scope="session")
def laptop(context: BrowserContext, base: str, name: str) -> Iterator[Visit]:
    """The page with its explorers drawn, kept open for all tests of it. They leave it as they found it."""
    visit = open_page(context, name, base)
    draw(visit.page)
    yield visit
    visit.page.close()


@pytest.fixture(scope="session")
def phone(context: BrowserContext, base: str, name: str) -> Iterator[Visit]:
    """The same on a narrow dark screen."""
    visit = open_page(context, name, base, width=360, scheme="dark")
    draw(visit.page)
    yield visit
    visit.page.close()
