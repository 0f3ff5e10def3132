"""Run every notebook as this machine does and compare the cells tagged 'check': a notebook must run wherever a reader is.

    python -m course.site check-notebooks [--without-triton] [NOTEBOOK ...]

``--without-triton`` hides Triton, if it is there, as on macOS, on Windows and in Colab without a GPU.
Needs the first part of requirements.txt, pytest, nbval and ipykernel; nothing is built or stored.
"""

import argparse
import os
import sys
from pathlib import Path

from . import BUILD, ROOT, test

HIDING = Path(ROOT, "tests", "without_triton")  # its sitecustomize.py does it, in the kernels that notebooks start as well
REPORT = Path(BUILD, "notebooks-report.xml")


def hiding_path() -> str:
    """PYTHONPATH of a process that is not to see Triton; packages that come by PYTHONPATH here come there too."""
    return os.pathsep.join([str(HIDING), *filter(None, [os.environ.get("PYTHONPATH")])])


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python3 -m course.site check-notebooks")
    parser.add_argument("--without-triton", action="store_true", help="hide Triton, as if it had never been installed")
    parser.add_argument("notebooks", nargs="*", metavar="NOTEBOOK", help="files to run instead of all chapters and primers")
    options = parser.parse_args(arguments)
    lacking = test.missing(("pytest", *test.NOTEBOOK_PACKAGES))
    if lacking:
        sys.exit(f"check-notebooks needs packages that this Python lacks: {', '.join(lacking)}")
    if options.without_triton:
        os.environ["PYTHONPATH"] = hiding_path()
    every, *rest = test.notebook_arguments("--nbval-lax")
    # The tags' meaning lies in that file; those above it are for tests of ours, and import PyTorch.
    tags = ["tests/notebooks/conftest.py", "--confcutdir=tests/notebooks"]
    sys.exit(test.run_pytest([*tags, *(options.notebooks or [every]), *rest, *test.spread()], REPORT))


if __name__ == "__main__":
    main(sys.argv[1:])
