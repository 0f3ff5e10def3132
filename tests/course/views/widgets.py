"""What the tests of labs share."""


def controls(widget, kind):
    """A widget of this kind, and those within it."""
    found = [widget] if isinstance(widget, kind) else []
    for child in getattr(widget, "children", ()):
        found += controls(child, kind)
    return found
