"""``python3 -m course.site COMMAND``: what the Makefile calls, and what to type where there is no make.

Standard library and Python 3.6 only: see the package.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys

from . import BUILD, ROOT, environment

COMMANDS = {
    "environment": "create or update .venv",
    "book": "build the site into _build/html",
    "serve": "build the site and show it on localhost",
    "test": "build the site and run every test",
    "lab": "open the notebooks in JupyterLab",
    "notebooks": "execute all notebooks and store their outputs",
    "check-notebooks": "run all notebooks and compare their checks; --without-triton hides Triton",
    "assignments": "write what students get into an instructor's course folder",
    "measure": "record a sweep on this machine's GPU",
    "gpu-test": "run the kernel and measurement tests and the notebooks on this machine's GPU",
    "clean": "remove .venv and build outputs",
    "bootstrap": "write the bootstrap cell into every notebook",
    "address": "address URL TAG: set the repository's address and release everywhere",
}
# What a command imports beyond the standard library, to be named when an interpreter used as it is lacks it.
BOOK = ("jupyter_book", "math_core", "nbclient", "torch", "vl_convert", "ziamath")
RUN = ("torch", "altair", "ipywidgets", "matplotlib", "numpy")
NEEDS = {
    "book": BOOK,
    "serve": BOOK,
    "test": BOOK + RUN + ("axe_playwright_python", "hypothesis", "nbval", "pytest", "ruff"),
    "lab": RUN + ("jupyterlab",),
    "notebooks": RUN + ("nbclient", "vl_convert"),
    "check-notebooks": RUN + ("nbval", "pytest"),
    "bootstrap": ("nbclient",),
    "assignments": RUN + ("triton", "nbgrader"),
    "measure": ("torch", "triton"),
    "gpu-test": ("torch", "triton", "pytest", "hypothesis"),
}
CACHES = (".pytest_cache", ".ruff_cache", ".hypothesis")


def clean():
    """Remove the environment and everything that was built; keep recordings and whatever a learner wrote."""
    for name in (environment.VENV, BUILD) + tuple(os.path.join(ROOT, cache) for cache in CACHES):
        shutil.rmtree(name, ignore_errors=True)
    for folder in ("kernels", "course", "tests"):
        for path, names, _ in os.walk(os.path.join(ROOT, folder)):
            if "__pycache__" in names:
                shutil.rmtree(os.path.join(path, "__pycache__"))


def main():
    parser = argparse.ArgumentParser(
        prog="python3 -m course.site",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join("  {:15} {}".format(*item) for item in COMMANDS.items()),
    )
    parser.add_argument("--as-is", action="store_true", help="use the interpreter that runs this; create and install nothing")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to the command")
    options = parser.parse_args()
    os.chdir(ROOT)
    if options.command == "clean":
        return clean()
    if options.as_is:
        python = sys.executable
        missing = [name for name in NEEDS.get(options.command, ()) if importlib.util.find_spec(name) is None]
        if missing:
            sys.exit("{} lacks what `{}` needs: {}".format(python, options.command, ", ".join(missing)))
    else:
        python = environment.ensure()
    os.environ["MHA_TO_MLA"] = ROOT
    if options.command in ("serve", "test"):
        built = subprocess.call([python, "-m", "course.site.build"])
        if built != 0:
            return built
    modules = {"book": "site.build", "measure": "measure", "assignments": "grading"}
    name = "course." + modules.get(options.command, "site." + options.command.replace("-", "_"))
    if options.command == "assignments":
        options.arguments.insert(0, "release")
    # Replace this process, so that Ctrl-C and the exit status are the command's own.
    if options.command != "environment":
        os.execv(python, [python, "-m", name] + options.arguments)


if __name__ == "__main__":
    sys.exit(main())
