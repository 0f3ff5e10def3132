"""The one cell that every notebook starts with, and the command that writes it into them.

    python -m course.site bootstrap      writes the cell tagged 'bootstrap' of every notebook

The cell is the only code that notebooks repeat: it finds the repository, so that everything else can be imported from it.
"""

from pathlib import Path

from . import ROOT, notebooks
from .address import current

TEXT = """\
import os, pathlib, subprocess, sys
here = pathlib.Path.cwd()
found = [p for p in (here, *here.parents) if (p / "_toc.yml").is_file()]
root = os.environ.get("MHA_TO_MLA") or next(iter(found), None)
if root is None and "google.colab" in sys.modules:
    root = here / "from-mha-to-mla"
    if not root.exists():
        url = "{url}"
        clone = ["git", "clone", "--quiet", "--depth=1", "--branch={tag}"]
        subprocess.run([*clone, url, root], check=True)
if root is None or not pathlib.Path(root, "course", "session.py").is_file():
    raise RuntimeError("set the environment variable MHA_TO_MLA to the course's folder")
sys.path.insert(0, str(root))
import course.session"""


def text() -> str:
    """The bootstrap cell, with the address and the release that ``_config.yml`` names."""
    url, tag = current()
    return TEXT.format(url=url, tag=tag)


def cells(path: Path) -> list[str]:
    """Sources of the cells tagged ``bootstrap`` in the notebook at ``path``; a finished notebook has one."""
    return [cell.source for cell in notebooks.read(path).cells if "bootstrap" in cell.metadata.get("tags", [])]


def main() -> None:
    for path in notebooks.paths():
        notebook = notebooks.read(path)
        for cell in notebook.cells:
            if "bootstrap" in cell.metadata.get("tags", []):
                cell.source = text()
        if notebooks.write(notebook, path):
            print("written:", path.relative_to(ROOT))


if __name__ == "__main__":
    main()
