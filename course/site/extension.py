"""Local Sphinx extension: the site asks no other host for anything, and carries the course's own style and explorers.

What the pages load comes out of installed packages at build time: Vega (vl-convert) and the font of formulas (ziamath).
"""

from pathlib import Path

import sphinx_thebe
import vl_convert
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from . import ROOT, formulas, metadata, weight

ASSETS = Path(__file__).parent / "assets"
TEMPLATES = Path(__file__).parent / "templates"
VEGA_LITE = "5.20"  # what Altair 5.5 writes

# Tells the small script beside an explorer, in the notebook's own output, that this page draws it.
MARKER = '<meta name="mha-to-mla-site" content="explorers">\n'

# Roles that docutils gives a bibliography and that ARIA has withdrawn since; the list's role then has no items.
OLD_ROLES = (' role="doc-biblioentry"', ' role="doc-backlink"', ' role="list"')


class ExplorerDirective(SphinxDirective):
    """``{explorer} NAME``: an explorer of ``course.views`` on a page that is no notebook."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The explorer's html; an error at the line that names one there is not."""
        from course import views
        from course.views.explorers.base import Explorer

        made = getattr(views, self.arguments[0], lambda: None)()
        if not isinstance(made, Explorer):
            raise self.error(f"course.views has no explorer {self.arguments[0]!r}")
        return [nodes.raw("", made.html(), format="html")]


def disconnect_thebe(app: Sphinx, config) -> None:
    """Silence sphinx_thebe, which Jupyter Book always loads: it declares one constant twice, an error on every page."""
    for listeners in app.events.listeners.values():
        listeners[:] = [each for each in listeners if each.handler is not sphinx_thebe.init_thebe_core]


def add_assets(app: Sphinx, config) -> None:
    """Serve our folder of assets as static files, and let our templates come before the theme's."""
    config.html_static_path.append(str(ASSETS))
    config.html_static_path.append(str(Path(ROOT, "book", "images", metadata.CARD)))
    config.templates_path.append(str(TEMPLATES))
    config.html_baseurl = metadata.site_address()


def name_labels(app: Sphinx, env) -> None:
    """Let a link to a file with ``#label`` find the page's own labels: notebooks know no other way to link."""
    for label, (page, place, title) in env.domaindata["std"]["labels"].items():
        env.metadata[page].setdefault("myst_slugs", {}).setdefault(label, (0, place, title))


def finish_page(app: Sphinx, pagename: str, templatename: str, context: dict, doctree) -> None:
    """Load what a page needs and no more, and mend what accessibility checks find fault with."""
    body = context.get("body", "")
    if 'class="explorer"' in body:
        context["metatags"] = context.get("metatags", "") + MARKER
        app.add_js_file("explorers.js")
    if 'class="math' in body:
        app.add_css_file(formulas.STYLE)
    for role in OLD_ROLES:
        body = body.replace(role, "")
    context["body"] = weight.images(app, weight.code(body), context["content_root"])
    weight.scripts(app, context)
    metadata.add(app, context, doctree)


def finish_site(app: Sphinx, exception: Exception | None) -> None:
    """Put Vega and the formulas' font beside the pages, and take out of the theme's files what costs time."""
    if exception or app.builder.name != "html":
        return
    offline = Path(app.outdir, "_static", "offline")
    offline.mkdir()
    # A classic script works over file://, which a module does not; the function keeps the bundle's globals to itself.
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    (offline / "vega.js").write_text(f"(function () {{\n{bundle}\n}})();\n", encoding="utf-8")
    formulas.font(Path(app.outdir))
    weight.icons(Path(app.outdir))
    weight.layouts(Path(app.outdir))


def setup(app: Sphinx) -> dict:
    """Register with Sphinx."""
    formulas.setup(app)
    app.add_directive("explorer", ExplorerDirective)
    app.connect("config-inited", disconnect_thebe)
    app.connect("config-inited", add_assets)
    app.connect("env-updated", name_labels)
    app.connect("html-page-context", finish_page, priority=900)  # after all who add scripts
    app.connect("build-finished", finish_site)
    app.add_css_file("course.css")
    app.add_js_file("sections.js")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
