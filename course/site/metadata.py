"""What search engines and links elsewhere say of a page: its description, its address, its card."""

import textwrap

from docutils import nodes
from sphinx.application import Sphinx

from .address import current

CARD, CARD_SIZE = "card.png", (1200, 630)  # of book/images, made by views.social_card; pixels
CARD_WORDS = "From MHA to MLA, with one cached token's way through a decode step beside it."
LONGEST = 200  # characters; what is longer is cut where it is shown


def site_address() -> str:
    """Where GitHub Pages shows the repository that ``_config.yml`` names."""
    owner, name = current()[0].split("/")[-2:]
    return f"https://{owner.lower()}.github.io/{name}/"


def describe(doctree: nodes.document) -> str:
    """The page's question, or its first paragraph where it asks none, as one line."""
    # Those of the text itself: the first paragraph of a page may be the heading of a table's column.
    inside = [each for each in doctree.findall(nodes.paragraph) if isinstance(each.parent, nodes.section | nodes.document)]
    paragraphs = [paragraph.astext() for paragraph in inside]
    asked = [text.removeprefix("The question.") for text in paragraphs if text.startswith("The question.")]
    return textwrap.shorten((asked or paragraphs or [""])[0], LONGEST, placeholder=" …")


def add(app: Sphinx, context: dict, doctree: nodes.document | None) -> None:
    """Give the template of a page its description and the address of its card. Pages that Sphinx makes have neither."""
    if doctree is not None:
        context["description"] = describe(doctree)
        context["card"] = f"{site_address()}_static/{CARD}"
        context["card_size"], context["card_words"] = CARD_SIZE, CARD_WORDS
