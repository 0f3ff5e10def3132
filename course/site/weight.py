"""What keeps pages light: pictures as files that wait until they are near, scripts that hold nothing up, the icons in use, and
no element that changes nothing."""

import base64
import hashlib
import io
import re
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont
from PIL import Image
from sphinx.application import Sphinx

IMAGE = re.compile(r"<img\b(?P<attributes>[^>]*?)\s*/?>")
SOURCE = re.compile(r'\bsrc="(?P<source>[^"]*)"')
INLINE = "data:image/png;base64,"

# The theme's rules for its icons, one a name, and the fonts that draw them.
ICON_RULE = re.compile(r'((?:\.fa-[\w-]+:before,?)+)\{content:"\\([0-9a-f]+)"\}')
FONT = re.compile(r"src:url\(\.\./(vendor/fontawesome/webfonts/[\w-]+)\.woff2\)[^}]*")

# Words of highlighted code, more than half of them, that have the colour of their block in both themes.
PLAIN_WORD = re.compile(r'<span class="(?:n|p|w)">([^<]*)</span>')

# The theme's script measures each block that might scroll and marks it, so that the browser lays out the page once for each.
# sections.js does both for all blocks together.
MARKS_SCROLLERS = re.compile(r'"complete"===document\.readyState\?(\w+)\(\):window\.addEventListener\("load",\1\)')

# Scripts that must have run before the page's own lines between them.
AT_ONCE = ("_static/documentation_options.js",)


def images(app: Sphinx, body: str, to_root: str) -> str:
    """The html of a page with its pictures as files, sized, and all but the first loaded only when they come near.

    ``to_root`` leads from the page to the site's root: ``'../'``.
    """
    folder = Path(app.outdir, app.builder.imagedir)
    sources = {name: Path(app.srcdir, path) for path, name in app.builder.images.items()}
    seen = 0

    def mended(found: re.Match) -> str:
        nonlocal seen
        attributes = found["attributes"]
        source = SOURCE.search(attributes)["source"]
        if source.startswith(INLINE):
            data = base64.b64decode(source.removeprefix(INLINE))
            path = folder / f"{hashlib.sha256(data).hexdigest()[:20]}.webp"
            if not path.exists():
                folder.mkdir(exist_ok=True)
                with Image.open(io.BytesIO(data)) as picture:
                    picture.save(path, lossless=True)  # the same pixels in three quarters of the bytes
            attributes = attributes.replace(source, f"{to_root}{app.builder.imagedir}/{path.name}")
        else:
            path = sources.get(source.rsplit("/", 1)[-1])
        if path and path.suffix in (".png", ".webp") and " width=" not in attributes:
            with Image.open(path) as picture:
                attributes += f' width="{picture.width}" height="{picture.height}"'
        seen += 1
        if seen > 1 and " loading=" not in attributes:
            attributes += ' loading="lazy"'
        return f"<img{attributes}>"

    return IMAGE.sub(mended, body)


def scripts(app: Sphinx, context: dict) -> None:
    """Have the scripts in a page's head wait for the page, and leave out what the page has no use for.

    The search's own page keeps their order: its template runs what builds on them at once.
    """
    body = context["body"]
    unused = ["design-tabs"] * ("sd-tab" not in body)
    kept = [script for script in context["script_files"] if not any(name in str(script.filename) for name in unused)]
    if context["pagename"] != "search":
        kept = [script if not script.filename or script.filename in AT_ONCE else deferred(script) for script in kept]
    context["script_files"][:] = kept
    unused = ["sphinx-thebe.css"] + ["sphinx-design"] * ("sd-" not in body)
    kept = [style for style in context["css_files"] if not any(name in str(style.filename) for name in unused)]
    context["css_files"][:] = kept


def deferred(script):
    """The same script that waits for its page. Pages share what Sphinx holds of a script, so that is left as it is."""
    return type(script)(script.filename, priority=script.priority, **script.attributes | {"defer": "defer"})


def code(body: str) -> str:
    """The html of a page with the plain words of its code as mere text."""
    return PLAIN_WORD.sub(r"\1", body)


def layouts(site: Path) -> None:
    """Keep the theme's script from laying out the pages of ``site`` over and over."""
    script = site / "_static" / "scripts" / "pydata-sphinx-theme.js"
    text, found = MARKS_SCROLLERS.subn("0", script.read_text(encoding="utf-8"))
    if found != 1:
        raise RuntimeError(f"{script.name} starts its marking of what scrolls at {found} places, not at one: look at it anew")
    script.write_text(text, encoding="utf-8")


def icons(site: Path) -> None:
    """Keep of the theme's icons those that a page or a script of the site at ``site`` names, within the theme's style."""
    static = site / "_static"
    writers = [*site.rglob("*.html"), *static.glob("*.js"), *static.glob("scripts/*theme.js")]
    named = {name for path in writers for name in re.findall(r"\bfa-[\w-]+", path.read_text(encoding="utf-8"))}
    sheet = static / "styles" / "pydata-sphinx-theme.css"
    text, characters = sheet.read_text(encoding="utf-8"), set()

    def kept(found: re.Match) -> str:
        if not named & set(re.findall(r"\.(fa-[\w-]+):before", found[1])):
            return ""
        characters.add(int(found[2], 16))
        return found[0]

    def drawn(found: re.Match) -> str:
        font = TTFont(static / f"{found[1]}.ttf")
        options = subset.Options(flavor="woff", layout_features=[], notdef_outline=True)
        subsetter = subset.Subsetter(options)
        subsetter.populate(unicodes=characters)
        subsetter.subset(font)
        font.flavor = "woff"
        file = io.BytesIO()
        font.save(file)
        return f'src:url(data:font/woff;base64,{base64.b64encode(file.getvalue()).decode()}) format("woff")'

    text = ICON_RULE.sub(kept, text)
    if not characters:
        raise RuntimeError(f"no icon of the site was found in {sheet.name}: the theme writes its icons in another way now")
    sheet.write_text(FONT.sub(drawn, text), encoding="utf-8")
    for path in (*static.glob("vendor/fontawesome/**/*.*"), *static.rglob("*.map"), static / "scripts" / "fontawesome.js"):
        path.unlink()
