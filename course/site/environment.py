"""The course's own environment: ``.venv`` in the repository, holding exactly the versions of ``constraints.txt``.

A stamp is written last, so an environment without one was interrupted and is made anew. Standard library and Python 3.6 only.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys

from . import ROOT

try:
    import fcntl
except ImportError:
    sys.exit("These commands need Linux or macOS. On Windows run them inside WSL.")

VENV = os.path.join(ROOT, ".venv")
VENV_PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "complete")
REQUIREMENTS = os.path.join(ROOT, "requirements.txt")
CONSTRAINTS = os.path.join(ROOT, "constraints.txt")
SUPPORTED = ((3, 12), (3, 11), (3, 13), (3, 14))  # in the order in which they are tried


@contextlib.contextmanager
def locked():
    """Let one process at a time change the environment or the built site; a second one waits."""
    with open(CONSTRAINTS, "r+") as file:  # writable, because network file systems lock no other
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wanted_stamp():
    """Digest of what the environment is made from."""
    digest = hashlib.sha256()
    for path in (REQUIREMENTS, CONSTRAINTS):
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def _succeeds(python, code):
    """Whether ``python -c code`` exits with 0. A missing or broken interpreter does not."""
    try:
        return subprocess.call([python, "-c", code], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL) == 0
    except OSError:
        return False


def find_python():
    """Path of a Python that can run the course: this one, else the first supported one on PATH."""
    if sys.version_info[:2] in SUPPORTED:
        # Started with the environment's own Python, which may be about to be replaced, it is the one below it.
        return getattr(sys, "_base_executable", sys.executable)
    for version in SUPPORTED:
        path = shutil.which("python{}.{}".format(*version))
        # A name on PATH proves little: version managers leave stand-ins there for versions that are switched off.
        if path and _succeeds(path, "import sys; sys.exit(sys.version_info[:2] != {})".format(version)):
            return path
    sys.exit(
        "The course needs Python 3.11 to 3.14. This is Python {}.{}, and no python3.11 to python3.14 was found on PATH.\n"
        "Install one of them (on Debian and Ubuntu: apt install python3 python3-venv) and run the command again.".format(
            *sys.version_info[:2]
        )
    )


def _create(python):
    """Make an empty ``.venv`` in place of whatever is there."""
    if not _succeeds(python, "import ensurepip, venv"):
        version = subprocess.check_output(
            [python, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"], universal_newlines=True
        ).strip()
        sys.exit(
            "{} cannot create environments: its ensurepip or venv module is missing.\n"
            "On Debian and Ubuntu it is in a package of its own: apt install python{}-venv".format(python, version)
        )
    if os.path.isdir(VENV):
        shutil.rmtree(VENV)
    subprocess.check_call([python, "-m", "venv", VENV])


def _stamp():
    """The stamp of the environment that is there, or None."""
    try:
        with open(STAMP) as file:
            return file.read()
    except OSError:
        return None


def ensure():
    """Make ``.venv`` hold what ``requirements.txt`` and ``constraints.txt`` say; return the path of its Python.

    Nothing happens when it already does. A changed list is installed over a complete environment; an interrupted or broken
    environment is made anew.
    """
    with locked():
        stamp = _stamp()
        # Where the system's Python was upgraded below it, the environment's Python runs but no longer finds its packages.
        works = stamp is not None and _succeeds(
            VENV_PYTHON, "import sys, importlib.util as u; sys.exit(u.find_spec('jupyter_book') is None)"
        )
        if works and stamp == wanted_stamp():
            return VENV_PYTHON
        if works:
            os.remove(STAMP)
        else:
            _create(find_python())
        print(
            "Installing the course's packages into .venv (a few minutes, about 2 GB; more where PyTorch brings CUDA)",
            flush=True,
        )
        install = [VENV_PYTHON, "-m", "pip", "install", "--disable-pip-version-check"]
        install += [] if sys.stdout.isatty() else ["--quiet"]
        install += ["--requirement", REQUIREMENTS, "--constraint", CONSTRAINTS]
        if subprocess.call(install) != 0:
            sys.exit(
                "The packages could not be installed; pip says why above. Running the command again starts afresh.\n"
                "On a machine without a network, name an interpreter that has the packages: make TARGET PYTHON=/path/to/python"
            )
        with open(STAMP, "w") as file:
            file.write(wanted_stamp())
    return VENV_PYTHON
