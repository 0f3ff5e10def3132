"""Who cannot see, or see colours, or run scripts, gets the same: WCAG 2.1 AA by axe, and words where no script runs."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

WCAG_AA = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
COLOURS = {"type": "rule", "values": ["color-contrast"]}  # all that a theme changes


def violations(page: Page, rules: dict) -> list[str]:
    """What axe finds against ``rules``, a line for each element."""
    found = Axe().run(page, options={"runOnly": rules, "resultTypes": ["violations"]}).response["violations"]
    return [f"{rule['id']}: {node['html'][:200]} | {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def test_page_in_both_themes(visit, draw_explorers, name):
    page = visit(name).page
    draw_explorers(page)
    assert violations(page, WCAG_AA) == []
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    assert violations(page, COLOURS) == []


def test_page_on_a_phone(visit, draw_explorers, name):
    page = visit(name, width=360).page
    draw_explorers(page)
    target_size = {"type": "rule", "values": ["target-size", "scrollable-region-focusable", "meta-viewport"]}
    assert violations(page, target_size) == []


@pytest.fixture
def without_javascript(browser, base):
    """A page in a browser that runs no script."""
    context = browser.new_context(java_script_enabled=False)
    yield context.new_page()
    context.close()


def test_explorers_are_a_picture_and_a_sentence_without_javascript(without_javascript, base, notebook_name):
    without_javascript.goto(base + notebook_name)
    for explorer in without_javascript.locator("div.explorer").all():
        assert explorer.locator("img").is_visible()
        assert len(explorer.locator("img").get_attribute("alt")) > 20
        assert len(explorer.locator("p").inner_text()) > 20
