"""Build the site: warnings are errors, nothing is executed, and what an interrupted build leaves is never shown.

Every build starts from nothing in ``_build/new`` and takes the place of ``_build/html`` when it is complete. An incremental
build would keep pages that have left the table of contents and stay silent about warnings that it gave before.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from jupyter_book.sphinx import build_sphinx

from . import BUILD, ROOT, environment, notebooks

OFFLINE = "from-mha-to-mla"  # the whole site as a zip, in the site

# In place of the builder's own, which has no icon and no language.
FIRST_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>From MHA to MLA</title>
<link rel="icon" href="_static/favicon.svg">
<meta http-equiv="refresh" content="0; url=book/index.html">
</head>
<body><a href="book/index.html">From MHA to MLA</a></body>
</html>
"""


def build() -> Path:
    """Build the book and return the path of its first page. Exits with a message where a page or a notebook is at fault."""
    root, site, new = Path(ROOT), Path(BUILD, "html"), Path(BUILD, "new")
    pages = new / OFFLINE
    faults = [fault for path in notebooks.paths() for fault in notebooks.stored_faults(path)]
    if faults:
        sys.exit("The site was not built:\n" + "\n".join(faults))
    with environment.locked():
        shutil.rmtree(new, ignore_errors=True)
        status = build_sphinx(
            root,
            pages,
            noconfig=True,  # there is no conf.py
            path_config=root / "_config.yml",
            confoverrides={
                "nitpicky": True,
                "latex_individualpages": False,
                "external_toc_path": str(root / "_toc.yml"),
            },
            doctreedir=new / "doctrees",
            quiet=True,
            warningiserror=True,
            keep_going=True,
        )
        if status != 0:
            sys.exit("The site was not built; the warnings are above. The pages of the last good build, if any, are unchanged.")
        (pages / "index.html").write_text(FIRST_PAGE, encoding="utf-8")
        if (root / "notebooks" / "assignments").is_dir():
            # In a process of its own: the site is built on what is below it, and this is beside it.
            command = [sys.executable, "-m", "course.grading.release", str(pages / "assignments")]
            subprocess.run(command, cwd=root, check=True)
        # Made beside the site and moved into it, so that it does not hold itself.
        whole = shutil.make_archive(str(pages), "zip", new, OFFLINE)
        os.replace(whole, pages / f"{OFFLINE}.zip")
        shutil.rmtree(site, ignore_errors=True)
        os.replace(pages, site)
        shutil.rmtree(new)
    return site / "index.html"


if __name__ == "__main__":
    print("Building the site", flush=True)
    print(f"The site is built. Its first page is {build()}")
