"""course.site.metadata: what is said of a page outside of it."""

import re

import pytest
from docutils.core import publish_doctree

from course.site import metadata
from course.site.address import current


def test_the_address_is_that_of_the_repository():
    owner, name = re.fullmatch(r"https://github\.com/([\w.-]+)/([\w.-]+)", current()[0]).groups()
    assert metadata.site_address() == f"https://{owner.lower()}.github.io/{name}/"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("First words.\n\n**The question.** Why so\nslow?", "Why so slow?"),
        ("*First* words.\n\nMore.", "First words."),
        ("long " * 90, ("long " * 39).strip() + " …"),
    ],
)
def test_a_page_is_described_by_its_question_or_its_first_words(text, said):
    assert metadata.describe(publish_doctree(text)) == said
