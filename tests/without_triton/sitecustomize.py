"""Hides Triton from every Python that is started with this folder on PYTHONPATH, as if it had never been installed.

Python imports a module of this name by itself when it starts, so the kernels behind notebooks are reached too.
"""

import sys
from importlib.machinery import PathFinder


class WithoutTriton(PathFinder):
    """Python's finder of installed packages, to which Triton and its metadata do not exist."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname.partition(".")[0] == "triton" else super().find_spec(fullname, path, target)

    @staticmethod
    def find_distributions(context):
        return iter(()) if context.name == "triton" else PathFinder.find_distributions(context)


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTriton
