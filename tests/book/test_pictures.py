"""The README's pictures, their words and their captions are those that `course.views` makes, and so is the card of the site.

python -m tests.book.test_pictures      makes the pictures and writes their words into the README
"""

import html
import io
import re
from pathlib import Path

import pytest
from PIL import Image, ImageChops

from course import measure, views
from course.site import metadata

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PICTURES = {
    "measured": lambda: views.measured_against_arithmetic(measure.latest("NVIDIA H200"), select={"batch": 16}),
    "token-path": lambda: views.token_path(),
    "card": lambda: views.social_card(),
}
IN_README = ("measured", "token-path")


def block(name: str, picture) -> str:
    """Markdown of one picture: the image with its alternative text, and its caption below."""
    alt = html.escape(picture.alt)
    return f'<img src="book/images/{name}.png" width="480" alt="{alt}">\n\n*{picture.caption}*'


def places(name: str) -> str:
    """Pattern of that Markdown, whatever its words."""
    return rf'<img src="book/images/{name}\.png"[^>]*>\n\n\*[^\n]*\*'


@pytest.mark.parametrize("name", IN_README)
def test_readme_shows_the_picture_with_its_words(name):
    assert (ROOT / f"book/images/{name}.png").exists()
    shown = re.findall(places(name), README.read_text(encoding="utf-8"))
    assert shown == [block(name, PICTURES[name]())], "write it again: python -m tests.book.test_pictures"


def test_card_is_as_large_as_cards_are_shown():
    path = ROOT / f"book/images/{metadata.CARD}"
    with Image.open(path) as card:
        assert card.size == metadata.CARD_SIZE
    assert path.stat().st_size < 200_000  # some who show cards take no larger ones
    made = views.social_card()
    with Image.open(io.BytesIO(made.png)) as anew, Image.open(path) as stored:
        assert ImageChops.difference(anew.convert("RGB"), stored.convert("RGB")).getbbox() is None, (
            "make it again: python -m tests.book.test_pictures"
        )
    assert made.alt == metadata.CARD_WORDS


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    for name, make in PICTURES.items():
        picture = make()
        (ROOT / f"book/images/{name}.png").write_bytes(picture.png)
        text = re.sub(places(name), lambda _, name=name, picture=picture: block(name, picture), text)
    README.write_text(text, encoding="utf-8")
