"""Set the repository's address and release everywhere they are written.

    python -m course.site address https://github.com/someone/from-mha-to-mla v0.2.0

``_config.yml`` is where both are read from; README, citation and the bootstrap cells repeat them, and a test holds them equal.
"""

import re
import sys
from pathlib import Path

from . import ROOT

CONFIG = Path(ROOT, "_config.yml")
_ADDRESS = re.compile(r"^repository:\n  url: (?P<url>\S+)\n  branch: (?P<tag>\S+)$", re.MULTILINE)


def current(config: Path = CONFIG) -> tuple[str, str]:
    """Address and release tag as ``_config.yml`` has them."""
    found = _ADDRESS.search(config.read_text(encoding="utf-8"))
    return found["url"], found["tag"]


def files(root: Path) -> list[Path]:
    """The files under ``root`` that repeat the address."""
    return [root / "_config.yml", root / "README.md", root / "CITATION.cff", *sorted(root.glob("notebooks/*.ipynb")),
            *sorted(root.glob("book/*.md"))]  # fmt: skip


def change(root: Path, url: str, tag: str) -> list[Path]:
    """Replace the address and the release in every file that has them; return the files that changed.

    ``url`` is the repository's page, ``tag`` a release such as ``v0.2.0``; ValueError for anything else, before any change.
    """
    if not re.fullmatch(r"https://[\w.-]+/[\w.-]+/[\w.-]*[\w-]", url) or url.endswith(".git"):
        raise ValueError(f"url is {url!r}; wanted a repository's page like https://github.com/OWNER/from-mha-to-mla")
    if not re.fullmatch(r"v\d+(\.\d+)+", tag):
        raise ValueError(f"tag is {tag!r}; wanted a release like v0.2.0")
    old_url, old_tag = current(root / "_config.yml")
    # Links to Colab name the repository by owner and name only; a citation names the version without its v.
    changes = [
        (re.escape(old_url.split("/", 3)[3]) + r"(?![\w-])", url.split("/", 3)[3]),
        (re.escape(old_url.rsplit("/", 2)[0]) + "/" + re.escape(url.split("/", 3)[3]), url),
        (r"\b" + re.escape(old_tag) + r"\b", tag),
        (r"^(version: \"?)" + re.escape(old_tag[1:]) + r"(?=\"?$)", r"\g<1>" + tag[1:]),
    ]
    changed = []
    for path in files(root):
        old = new = path.read_text(encoding="utf-8")
        for pattern, replacement in changes:
            new = re.sub(pattern, replacement, new, flags=re.MULTILINE)
        if new != old:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


def main(arguments: list[str]) -> None:
    if len(arguments) != 2:
        sys.exit("Usage: python3 -m course.site address URL TAG. Now: {} {}".format(*current()))
    try:
        changed = change(Path(ROOT), *arguments)
    except ValueError as error:
        sys.exit(str(error))
    print("\n".join(f"written: {path.relative_to(ROOT)}" for path in changed) or "Nothing to change.")


if __name__ == "__main__":
    main(sys.argv[1:])
