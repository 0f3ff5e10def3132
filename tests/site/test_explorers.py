"""Explorers answer: each of their controls changes what is drawn, by mouse and by keyboard, in a chart that can be read."""

from playwright.sync_api import Locator

# The marks of a chart and its words; axes apart, which Vega may write in another order.
DRAWN = "explorer => Array.from(explorer.querySelectorAll('svg .role-mark'), (mark) => mark.outerHTML).join()"

# Moves a control as a reader would and waits until Vega has drawn.
MOVE = """async (control, value) => {
    control.value = value;
    control.dispatchEvent(new Event("input", {bubbles: true}));
    control.dispatchEvent(new Event("change", {bubbles: true}));
    await control.closest("div.explorer").view.runAsync();
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


def other_values(control: Locator) -> list[str]:
    """Values that a slider or a menu could also have."""
    if control.evaluate("control => control.tagName") == "SELECT":
        values = control.locator("option").evaluate_all("options => options.map(option => option.value)")
    else:
        values = [control.get_attribute("min"), control.get_attribute("max")]
    return [value for value in values if value != control.input_value()]


def test_every_control_changes_what_is_drawn(drawn):
    for explorer in drawn.page.locator("div.explorer").all():
        identity = explorer.get_attribute("id")
        controls = explorer.locator(".vega-bindings :is(input[type=range], select)").all()
        assert controls, f"{identity} has nothing to move"
        for control in controls:
            before, first, name = explorer.evaluate(DRAWN), control.input_value(), control.get_attribute("name")
            after = set()
            for value in other_values(control):
                control.evaluate(MOVE, value)
                after.add(explorer.evaluate(DRAWN))
            assert after - {before}, f"{identity}: {name} changes nothing"
            control.evaluate(MOVE, first)
            assert explorer.evaluate(DRAWN) == before, f"{identity}: {name} does not come back to where it was"
    assert drawn.said == []


def test_arrow_key_moves_a_slider(drawn):
    for slider in drawn.page.locator("div.explorer input[type=range]").all():
        before = slider.input_value()
        there, back = ("ArrowLeft", "ArrowRight") if before == slider.get_attribute("max") else ("ArrowRight", "ArrowLeft")
        slider.press(there)
        assert slider.input_value() != before
        slider.press(back)
        assert slider.input_value() == before


def assert_readable(explorer: Locator) -> None:
    """The chart lies inside its frame and its letters are large enough."""
    frame, chart = explorer.bounding_box(), explorer.locator("svg").bounding_box()
    assert chart["x"] >= frame["x"]
    assert chart["x"] + chart["width"] <= frame["x"] + frame["width"]
    assert explorer.evaluate(SMALLEST_TEXT) >= 9, explorer.get_attribute("id")


def test_chart_follows_the_width_of_the_page(drawn):
    for width in (360, 1280):  # in between the theme's sidebar slides out and in
        drawn.page.set_viewport_size({"width": width, "height": 900})
        for explorer in drawn.page.locator("div.explorer").all():
            drawn.page.wait_for_function(WIDTHS_AGREE, arg=explorer.element_handle())
            assert_readable(explorer)


def test_chart_on_a_phone_can_be_read(visit, draw_explorers, notebook_name):
    for explorer in draw_explorers(visit(notebook_name, width=360).page):
        assert_readable(explorer)


def test_text_follows_the_theme(drawn):
    label = "explorer => getComputedStyle(explorer.querySelector('svg .role-axis-label text')).fill"
    explorers = drawn.page.locator("div.explorer").all()
    light = [explorer.evaluate(label) for explorer in explorers]
    drawn.page.emulate_media(color_scheme="dark")
    drawn.page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    for explorer, before in zip(explorers, light, strict=True):
        assert explorer.evaluate(label) != before, explorer.get_attribute("id")
    drawn.page.emulate_media(color_scheme="light")
    drawn.page.wait_for_function("document.documentElement.dataset.theme === 'light'")
