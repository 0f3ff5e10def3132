"""Every page of the built site, as a reader's browser shows it."""

import io
import re
import urllib.parse
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page

from course.site import BUILD, ROOT
from course.site.address import current

SITE = Path(BUILD, "html")


def excess_width(page: Page) -> int:
    """Pixels by which the page is wider than the screen."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def theme(page: Page) -> str:
    """The theme the page shows, ``light`` or ``dark``."""
    return page.evaluate("document.documentElement.dataset.theme")


def test_page_on_a_laptop_and_on_paper(laptop):
    page = laptop.page
    assert laptop.said == []
    assert excess_width(page) <= 0
    assert theme(page) == "light"
    page.emulate_media(media="print")
    assert page.locator("article.bd-article").is_visible()
    for furniture in (".bd-sidebar-primary", ".bd-header-article", ".prev-next-footer"):
        assert not page.locator(furniture).first.is_visible(), furniture
    page.emulate_media(media="screen")


def test_page_on_a_phone(phone):
    assert phone.said == []
    assert excess_width(phone.page) <= 0
    assert theme(phone.page) == "dark"


def test_page_from_a_folder(visit, draw_explorers, name):
    opened = visit(name, origin=SITE.as_uri() + "/")
    page = opened.page
    draw_explorers(page, 1)  # what draws the others is then there, and they are drawn over http
    assert opened.said == []
    if page.locator("math").count():
        # From a style sheet, so that no browser refuses it here. Letters of the text are wider.
        assert page.evaluate("document.fonts.check('16px \"STIX Two Math\"', 'x')")
        assert "STIX Two Math" in page.locator("math").first.evaluate("formula => getComputedStyle(formula).fontFamily")


def test_wide_braces_are_drawn_to_their_ends(browser, base):
    """Also across the tiles, of 256 dots, in which Chromium draws a page without a GPU."""
    page = browser.new_page(device_scale_factor=3)
    page.goto(base + "notebooks/07_mla_compress.html")
    page.evaluate("sectionsLaidOut")
    base_of_brace = page.locator("math munder > munder[accentunder] > mrow").first
    base_of_brace.scroll_into_view_if_needed()
    box = base_of_brace.bounding_box()
    assert box["width"] * 3 > 256
    below = {"x": box["x"], "y": box["y"] + box["height"], "width": box["width"], "height": 10}
    picture = Image.open(io.BytesIO(page.screenshot(clip=below))).convert("L")
    left, _, right, _ = picture.point(lambda grey: 255 * (grey < 128)).getbbox()
    assert left < 9
    assert right > picture.width - 9
    page.close()


def test_every_section_is_laid_out_soon(visit, name):
    """Without a reader who goes there: a picture of the whole page shows all of it."""
    page = visit(name).page
    page.evaluate("sectionsLaidOut")
    sections = page.locator(".bd-article > section > section")
    assert sections.evaluate_all("all => all.filter((one) => getComputedStyle(one).contentVisibility === 'auto').length") == 0
    assert sections.count() > 1 or not name.startswith("notebooks/")
    page.wait_for_function("Array.from(document.images).every((picture) => picture.complete)")
    assert page.locator("img[loading=lazy]").count() == 0


def test_link_to_a_place_leads_there(visit):
    """Also to the last section of a long page, while those above wait."""
    page = visit("notebooks/08_mla_absorb.html#references").page
    page.evaluate("sectionsLaidOut")
    top = "document.querySelector('#references').getBoundingClientRect().top"
    page.wait_for_function(f"{top} < innerHeight && {top} >= 0")
    page.locator("#pst-page-toc-nav a").first.click()
    page.wait_for_function(f"{top} > innerHeight")


def test_keyboard_reaches_what_scrolls(phone):
    """And nothing else of the kind."""
    marked = phone.page.locator("pre").evaluate_all(
        "blocks => blocks.map((block) => [block.scrollWidth > block.clientWidth, block.tabIndex === 0])"
    )
    assert all(scrolls == reached for scrolls, reached in marked)


def test_first_page_leads_to_the_book(visit, base):
    opened = visit("index.html")
    opened.page.wait_for_url(base + "book/index.html")
    assert opened.said == []
    assert opened.page.locator("article h1").inner_text().startswith("From MHA to MLA")


def test_favicon(visit, base):
    page = visit("book/index.html").page
    address = page.locator("link[rel=icon]").evaluate("link => link.href")
    answer = page.request.get(address)
    assert address.startswith(base)
    assert answer.ok
    assert answer.headers["content-type"] == "image/svg+xml"


def test_search_finds_a_word_of_the_book(visit):
    opened = visit("search.html?q=latent")
    results = opened.page.locator("#search-results li a")
    results.first.wait_for()
    assert results.count() >= 2
    assert opened.said == []
    results.first.click()
    opened.page.wait_for_load_state()
    assert "latent" in opened.page.locator("article").text_content().lower()


@pytest.mark.parametrize(
    ("words", "page"),
    [("absorption", "08_mla_absorb"), ("split-KV", "05_flash_decoding"), ("block table", "06_paged_attention")],
)
def test_search_leads_to_the_chapter_about_it(visit, words, page):
    opened = visit(f"search.html?q={urllib.parse.quote(words)}").page
    for wanted in (f"notebooks/{page}.html", "book/glossary.html"):
        opened.locator(f'#search-results li a[href*="{wanted}"]').first.wait_for()


def test_search_field_of_a_page_leads_to_what_is_found(visit):
    opened = visit("book/run.html")
    opened.page.keyboard.press("Control+k")
    opened.page.locator("#pst-search-dialog input[name=q]").fill("latent")
    opened.page.keyboard.press("Enter")
    opened.page.locator("#search-results li a").first.wait_for()
    assert opened.said == []


def test_colours_do_not_wait_for_a_script(context, base):
    """Whoever reads in the dark sees no light page first."""
    page = context.new_page()
    page.emulate_media(color_scheme="dark")
    page.route("**/*.js*", lambda route: route.abort())
    page.goto(base + "book/run.html")
    assert theme(page) == "dark"
    page.close()


def test_theme_button_changes_the_theme(visit):
    page = visit("book/index.html").page
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    button = page.locator("button.theme-switch-button:visible")
    for _ in range(2):  # the button goes round auto, light and dark
        button.click()
        if theme(page) == "dark":
            break
    assert page.evaluate(background) != light


@pytest.mark.notebooks_only
def test_notebook_opens_in_colab_and_can_be_downloaded(laptop, name):
    url, tag = current()
    notebook = name.removesuffix(".html") + ".ipynb"
    page = laptop.page
    colab = page.locator(".dropdown-launch-buttons a").get_attribute("href")
    assert colab == f"https://colab.research.google.com/github/{url.split('/', 3)[3]}/blob/{tag}/{notebook}"
    download = page.locator("a.btn-download-source-button").evaluate("link => link.href")
    assert page.request.get(download).text() == Path(ROOT, notebook).read_text(encoding="utf-8")


def test_cheat_sheet_prints_on_one_page(visit):
    paper = visit("book/cheat_sheet.html").page.pdf(format="A4")
    assert len(re.findall(rb"/Type\s*/Page\b", paper)) == 1
