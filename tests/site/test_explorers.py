"""Explorers answer: each of their controls changes what is drawn, by mouse and by keyboard, in a chart that can be read."""

import pytest
from playwright.sync_api import Locator

pytestmark = pytest.mark.explorers_only

# Moves each control as a reader would, to every other value that it could have (a slider: to its ends) and back, and waits
# until Vega has drawn; returns what is wrong. What is drawn are the marks of a chart and its words; axes apart, which Vega may
# write in another order. One call for an explorer: what is drawn never leaves the browser.
FAULTS_OF_CONTROLS = """async explorer => {
    const drawn = () => Array.from(explorer.querySelectorAll("svg .role-mark"), (mark) => mark.outerHTML).join();
    const move = async (control, value) => {
        control.value = value;
        control.dispatchEvent(new Event("input", {bubbles: true}));
        control.dispatchEvent(new Event("change", {bubbles: true}));
        await explorer.view.runAsync();
    };
    const controls = explorer.querySelectorAll(".vega-bindings :is(input[type=range], select)");
    const faults = controls.length ? [] : ["there is nothing to move"];
    for (const control of controls) {
        const before = drawn(), first = control.value;
        const values = control.options ? Array.from(control.options, (option) => option.value) : [control.min, control.max];
        let changed = false;
        for (const value of values.filter((value) => value !== first)) {
            await move(control, value);
            changed ||= drawn() !== before;
        }
        if (!changed) faults.push(`${control.name} changes nothing`);
        await move(control, first);
        if (drawn() !== before) faults.push(`${control.name} does not come back to where it was`);
    }
    return faults;
}"""

SMALLEST_TEXT = """explorer => Math.min(...Array.from(explorer.querySelectorAll("svg text"))
    .filter((text) => text.textContent && getComputedStyle(text).opacity !== "0")
    .map((text) => {
        const to_screen = text.getScreenCTM();
        return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(to_screen.a, to_screen.b);
    }))"""

# A chart is drawn at the width of its frame: its letters have the size they were given.
WIDTHS_AGREE = """explorer => {
    const drawn = explorer.querySelector("svg").getAttribute("width"), page = document.querySelector(".bd-main");
    return page.clientWidth <= innerWidth && Math.abs(drawn - explorer.clientWidth) <= 1;
}"""


def test_every_control_changes_what_is_drawn(laptop):
    explorers = laptop.page.locator("div.explorer").all()
    faults = {explorer.get_attribute("id"): explorer.evaluate(FAULTS_OF_CONTROLS) for explorer in explorers}
    assert faults == {identity: [] for identity in faults}
    assert laptop.said == []


def test_arrow_key_moves_a_slider(laptop):
    for slider in laptop.page.locator("div.explorer input[type=range]").all():
        before = slider.input_value()
        there, back = ("ArrowLeft", "ArrowRight") if before == slider.get_attribute("max") else ("ArrowRight", "ArrowLeft")
        slider.press(there)
        assert slider.input_value() != before
        slider.press(back)
        assert slider.input_value() == before


def assert_readable(explorer: Locator) -> None:
    """The chart and what moves it lie inside their frame, and its letters are large enough."""
    frame = explorer.bounding_box()
    for part in explorer.locator("svg, .vega-bindings :is(input, select)").all():
        box = part.bounding_box()
        assert box["x"] >= frame["x"]
        assert box["x"] + box["width"] <= frame["x"] + frame["width"]
    assert explorer.evaluate(SMALLEST_TEXT) >= 9, explorer.get_attribute("id")


def test_chart_follows_the_width_of_the_page(laptop):
    for width in (360, 1280):  # in between the theme's sidebar slides out and in
        laptop.page.set_viewport_size({"width": width, "height": 900})
        for explorer in laptop.page.locator("div.explorer").all():
            laptop.page.wait_for_function(WIDTHS_AGREE, arg=explorer.element_handle())
            assert_readable(explorer)


def test_chart_on_a_phone_can_be_read(phone):
    for explorer in phone.page.locator("div.explorer").all():
        assert_readable(explorer)


def test_text_follows_the_theme(laptop):
    label = "explorer => getComputedStyle(explorer.querySelector('svg .role-axis-label text')).fill"
    explorers = laptop.page.locator("div.explorer").all()
    light = [explorer.evaluate(label) for explorer in explorers]
    laptop.page.emulate_media(color_scheme="dark")
    laptop.page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    for explorer, before in zip(explorers, light, strict=True):
        assert explorer.evaluate(label) != before, explorer.get_attribute("id")
    laptop.page.emulate_media(color_scheme="light")
    laptop.page.wait_for_function("document.documentElement.dataset.theme === 'light'")
