"""Rows of data that are found by name: the same for models and for GPUs."""

import json
from collections.abc import Callable
from pathlib import Path

from .checks import squeezed, unknown


class Table:
    """Rows of the JSON file ``file`` beside this one, each made by ``make`` and with attributes ``name`` and ``doubt``.

    ``kind`` is what an error calls a row, ``also`` the field that holds a row's other names. ``make`` gets a row without it.
    """

    def __init__(self, kind: str, file: str, make: Callable[[dict], object], also: str):
        self.kind = kind
        self.by_name, self.by_spelling = {}, {}
        for row in json.loads(Path(__file__).with_name(file).read_text(encoding="utf-8")):
            spellings = [row["name"], *row.pop(also, [])]
            one = make(row)
            self.by_name[one.name] = one
            self.by_spelling |= {squeezed(spelling): one for spelling in spellings}

    def find(self, name: str):
        """The row of that name; case, blanks and punctuation don't count. ValueError for an unknown one, with the nearest."""
        try:
            return self.by_spelling[squeezed(name)]
        except (KeyError, AttributeError):
            raise unknown(self.kind, name, self.by_name, f"course.costs.{self.kind}s(doubtful=True)") from None

    def rows(self, *, doubtful: bool) -> list:
        """All rows, without the doubtful ones unless asked."""
        return [one for one in self.by_name.values() if doubtful or not one.doubt]
