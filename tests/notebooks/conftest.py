"""What our cell tags mean to nbval, and one worker a notebook.

Loaded before the notebooks are collected because the commands that run them name this folder, or its parent, first.
"""

import pytest
from nbval.plugin import IPyNbCell, metadata_tags

# What differs between machines is not compared; a check is, even in a lax run (on a GPU, or without Triton).
metadata_tags.update(dict.fromkeys(("bootstrap", "figure", "live"), ("check", False)), check=("check", True))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the cells of a notebook together when tests are spread over processes: they share one kernel."""
    for item in items:
        if isinstance(item, IPyNbCell):
            item.add_marker(pytest.mark.xdist_group(item.path.name))
