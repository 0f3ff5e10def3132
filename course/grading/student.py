"""What an assignment's notebook imports: `check`, and the cell magic that puts a learner's definition into a copy of our code.

    %%change kernels/merge.py as mended
    def ...

makes ``mended``, the package `kernels` in which the definitions of the cell stand in place of those with the same names.
"""

import re

from . import packages
from .answers import Local
from .assignments import find
from .draw import Draw
from .tasks import PUBLIC_SEED, Report, judge

CHANGE = re.compile(r"(?P<file>\S+)\s+as\s+(?P<name>[A-Za-z_]\w*)\s*$")


def check(task: str, answer, givens: dict | None = None) -> Report:
    """Look at an answer with the public checks of a task, 'assignment.task', and say what is wrong; a bad answer never raises.

    ``givens`` are the values that the release of the assignment gave; without them the public ones are meant.
    """
    assignment, found = find(task)
    givens = assignment.draw_givens() if givens is None else givens
    return judge(found, Local(answer), [Draw(PUBLIC_SEED, task, givens=givens)], public=True)


def change(line: str, cell: str) -> None:
    """The magic ``%%change FILE as NAME``."""
    from IPython import get_ipython

    asked = CHANGE.match(line.strip())
    if asked is None:
        raise ValueError(f"write `%%change FILE as NAME`, for example `%%change kernels/merge.py as mended`; got {line!r}")
    get_ipython().user_ns[asked["name"]] = packages.changed(asked["file"], cell)


def _register() -> None:
    try:
        from IPython import get_ipython
    except ImportError:
        return
    shell = get_ipython()
    if shell is not None:
        shell.register_magic_function(change, "cell", "change")


_register()
