"""Formulas as MathML, which browsers draw themselves: no script sets them, and they are there with the page's first picture.

``math_core`` translates TeX to MathML Core. The font, STIX Two Math out of ``ziamath``, is cut down to what the site's formulas
show and lies within a style sheet, because some browsers load no font file over ``file://``.
"""

import base64
import html
import io
import re
from importlib.util import find_spec
from pathlib import Path

from docutils import nodes
from fontTools import subset
from fontTools.ttLib import TTFont
from math_core import LatexError, LatexToMathML
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

STYLE = "formulas.css"
CONVERTER = LatexToMathML(fancy_error=False)
SIZED = re.compile(r"(<msu(?:b|p|bsup)>)(<mo minsize[^>]*>[^<]*</mo>)")  # as of \bigr)^2
CONTINUED = re.compile(r'(<mtd style="text-align: left;[^"]*">)<mo>(?=[+−])')  # as of a &= b \\ &+ c
ROW_SPACE = re.compile(r"\\\\\[[^\]]*\]")  # rows stand where the style sheet puts them

FORMULA = re.compile(r"<math\b.*?</math>", re.DOTALL)
VARIABLE = re.compile(r"<mi>(.)</mi>")  # one letter, drawn in italics
ROOT_SIGN = "√"  # drawn by <msqrt>, which names no character
PRIME, RAISED_PRIME = 0x2032, "minute.ssty"  # the form for exponents, which not all browsers ask for
ITALIC_LATIN, ITALIC_GREEK = 0x1D434, 0x1D6E2  # mathematical italic A and Alpha
APART = {"h": "\u210e", "∂": "\U0001d715", "ℓ": "ℓ"}  # not where the others of their alphabet are


def mathml(tex: str, *, display: bool) -> str:
    """A formula in MathML. Raises ``LatexError`` on TeX that is wrong or unknown."""
    made = CONVERTER.convert_with_local_state(ROW_SPACE.sub(r"\\\\", tex), displaystyle=display)
    # Browsers stretch what stands in a row, but not what carries a script: it would be lower than its partner.
    made = SIZED.sub(r"\1<mrow>\2</mrow>", made)
    # A sign at the start of an aligned line has its other term in the line above, and as much space as between two.
    return CONTINUED.sub(r'\1<mo form="infix">', made)


def italic(letter: str) -> str:
    """The character that a browser draws for a variable of one letter."""
    if letter in APART:
        return APART[letter]
    for first, last, start in (("A", "Z", 0), ("a", "z", 26)):
        if first <= letter <= last:
            return chr(ITALIC_LATIN + start + ord(letter) - ord(first))
    for first, last, start in (("Α", "Ω", 0), ("α", "ω", 26)):
        if first <= letter <= last:
            return chr(ITALIC_GREEK + start + ord(letter) - ord(first))
    return letter


def _set(translator, node, *, display: bool) -> str:
    try:
        return mathml(node.astext(), display=display)
    except LatexError as error:
        logging.getLogger(__name__).warning("formula %r: %s", node.astext(), error, location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def visit_inline(translator, node: nodes.math) -> None:
    """A formula in a line."""
    translator.body.append(translator.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    translator.body.append(_set(translator, node, display=False) + "</span>")
    raise nodes.SkipNode


def visit_block(translator, node: nodes.math_block) -> None:
    """A formula by itself, with its number if it has one."""
    translator.body.append(translator.starttag(node, "div", "", CLASS="math notranslate nohighlight"))
    if node["number"]:
        translator.body.append(f'<span class="eqno">({get_node_equation_number(translator, node)})')
        translator.add_permalink_ref(node, "Link to this equation")
        translator.body.append("</span>")
    translator.body.append(_set(translator, node, display=True) + "</div>\n")
    raise nodes.SkipNode


def shown(text: str) -> set[str]:
    """Every character that the formulas of a page's html may show."""
    found = {ROOT_SIGN}
    for formula in FORMULA.findall(text):
        found |= {italic(html.unescape(letter)) for letter in VARIABLE.findall(formula)}
        found |= set(html.unescape(re.sub(r"<[^>]*>", "", formula)))
    return found


def font(site: Path) -> None:
    """Write the style sheet with the font of the formulas that the pages of ``site`` show."""
    characters = set().union(*(shown(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")))
    full = TTFont(Path(find_spec("ziamath").submodule_search_locations[0], "fonts", "STIXTwoMath-Regular.ttf"))
    for table in full["cmap"].tables:
        table.cmap[PRIME] = RAISED_PRIME
    # No other forms for exponents: they would double the font.
    options = subset.Options(layout_features=[], hinting=False, notdef_outline=True, name_IDs=["*"])
    subsetter = subset.Subsetter(options)
    subsetter.populate(text="".join(characters))
    subsetter.subset(full)
    full.flavor = "woff"
    file = io.BytesIO()
    full.save(file)
    data = base64.b64encode(file.getvalue()).decode()
    rule = f'@font-face{{font-family:"STIX Two Math";src:url(data:font/woff;base64,{data}) format("woff")}}\n'
    Path(site, "_static", STYLE).write_text(rule, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Register the renderer that ``_config.yml`` names."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
