"""course.site.extension: a page of prose shows an explorer by its name."""

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import directives

from course.site.extension import ExplorerDirective


@pytest.fixture(autouse=True)
def known():
    """The directive as docutils knows it in a build."""
    directives.register_directive("explorer", ExplorerDirective)


def test_an_explorer_is_shown_by_its_name():
    [html] = publish_doctree(".. explorer:: bytes_per_step").findall(nodes.raw)
    assert 'class="explorer" id="explorer-bytes-per-step"' in html.astext()
    assert html["format"] == "html"


@pytest.mark.parametrize("name", ["no_such_thing", "course_map"])
def test_what_is_no_explorer_is_an_error_at_its_line(name):
    [message] = publish_doctree(f".. explorer:: {name}", settings_overrides={"report_level": 5}).findall(nodes.system_message)
    assert f"course.views has no explorer '{name}'" in message.astext()
    assert message["line"] == 1
