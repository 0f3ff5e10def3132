"""Who cannot see, or see colours, or run scripts, gets the same: WCAG 2.1 AA by axe, and words where no script runs."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

WCAG_AA = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
COLOURS = {"type": "rule", "values": ["color-contrast"]}  # all that a theme changes

# A page may have thousands of coloured words of code; blocks without a colour that an earlier one lacks are left out meanwhile.
ONE_CODE_BLOCK_OF_EACH_KIND = """() => {
    const seen = new Set(), places = [];
    for (const block of document.querySelectorAll("div.highlight")) {
        const kinds = Array.from(block.querySelectorAll("span"), (word) => word.className);
        if (kinds.every((kind) => seen.has(kind))) {
            const place = document.createComment("a block left out");
            block.replaceWith(place);
            places.push([place, block]);
        }
        kinds.forEach((kind) => seen.add(kind));
    }
    window.putBack = () => places.forEach(([place, block]) => place.replaceWith(block));
}"""


@pytest.fixture
def shortened(laptop) -> Iterator[Page]:
    """The page with one code block of each kind, in the light theme."""
    page, said = laptop.page, len(laptop.said)
    page.evaluate(ONE_CODE_BLOCK_OF_EACH_KIND)
    yield page
    del laptop.said[said:]  # axe asks for an imported style sheet where it isn't
    page.evaluate("putBack()")
    page.emulate_media(color_scheme="light")
    page.wait_for_function("document.documentElement.dataset.theme === 'light'")


def violations(page: Page, rules: dict) -> list[str]:
    """What axe finds against ``rules``, a line for each element."""
    found = Axe().run(page, options={"runOnly": rules, "resultTypes": ["violations"]}).response["violations"]
    return [f"{rule['id']}: {node['html'][:200]} | {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def test_page_in_both_themes(shortened):
    page = shortened
    assert violations(page, WCAG_AA) == []
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    page.evaluate("Promise.all(document.getAnimations().map((change) => change.finished))")  # colours fade into each other
    assert violations(page, COLOURS) == []


@pytest.fixture
def without_javascript(browser, base):
    """A page in a browser that runs no script."""
    context = browser.new_context(java_script_enabled=False)
    yield context.new_page()
    context.close()


@pytest.mark.explorers_only
def test_explorers_and_labs_are_a_picture_and_words_without_javascript(without_javascript, base, name):
    without_javascript.goto(base + name)
    shown = without_javascript.locator("div.explorer, div.lab").all()
    assert shown
    for each in shown:
        assert each.locator("img").is_visible()
        assert len(each.locator("img").get_attribute("alt")) > 20
        assert len(each.locator("p").first.text_content()) > 20


@pytest.mark.notebooks_only
def test_labs_show_no_dead_controls(laptop):
    page = laptop.page
    assert page.locator(".jupyter-widgets, div.lab :is(input, select, button)").count() == 0
    for lab in page.locator("div.lab").all():
        assert "open this page as a notebook" in lab.text_content()
