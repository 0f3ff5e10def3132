"""The README's pictures, their words and their captions are those that `course.views` makes.

python -m tests.book.test_pictures      makes the pictures and writes their words into the README
"""

import html
import re
from pathlib import Path

import pytest

from course import measure, views

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PICTURES = {
    "measured": lambda: views.measured_against_arithmetic(measure.latest("NVIDIA H200"), select={"batch": 16}),
    "token-path": lambda: views.token_path(),
}


def block(name: str, picture) -> str:
    """Markdown of one picture: the image with its alternative text, and its caption below."""
    alt = html.escape(picture.alt)
    return f'<img src="book/images/{name}.png" width="480" alt="{alt}">\n\n*{picture.caption}*'


def places(name: str) -> str:
    """Pattern of that Markdown, whatever its words."""
    return rf'<img src="book/images/{name}\.png"[^>]*>\n\n\*[^\n]*\*'


@pytest.mark.parametrize("name", PICTURES)
def test_readme_shows_the_picture_with_its_words(name):
    assert (ROOT / f"book/images/{name}.png").exists()
    shown = re.findall(places(name), README.read_text(encoding="utf-8"))
    assert shown == [block(name, PICTURES[name]())], "write it again: python -m tests.book.test_pictures"


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    for name, make in PICTURES.items():
        picture = make()
        (ROOT / f"book/images/{name}.png").write_bytes(picture.png)
        text = re.sub(places(name), lambda _, name=name, picture=picture: block(name, picture), text)
    README.write_text(text, encoding="utf-8")
