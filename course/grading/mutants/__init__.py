"""Wrong versions of shipped code: one edit each, and where it really happened.

They are what fix-the-bug tasks are made from and what proves the properties: a mutant that keeps all points of its task is a
hole in the grading. One file an assignment; `MUTANTS` holds them all by name.
"""

import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType

from ... import copies
from .. import packages


@dataclass(frozen=True)
class Mutant:
    """One line of shipped code, written wrongly.

    task: 'assignment.task', the one that has to find it. file: path in the repository. old, new: the text that is
    replaced, which stands exactly once in the file. story: what happened, told in a sentence or two; source: repository and
    number, or paper. given: whether it may be handed out as the bug to fix.
    """

    name: str
    task: str
    file: str
    old: str
    new: str
    story: str
    source: str
    given: bool = False

    def text(self) -> str:
        """The whole file with the edit. Raises ValueError unless ``old`` stands in it exactly once."""
        return copies.edited(self.file, [(self.old, self.new)], f"mutant {self.name}")

    def _line(self) -> int:
        shipped = copies.shipped_text(self.file)
        # The first line that differs: ``old`` may begin with lines that only say where.
        before = shipped[: shipped.index(self.old)].count("\n")
        pairs = zip(self.old.split("\n"), self.new.split("\n"), strict=False)
        return before + next((i for i, (a, b) in enumerate(pairs) if a != b), 0)

    def broken(self) -> str:
        """The definition that holds the edit, as a learner gets it."""
        return packages.definition_at(self.text(), self._line())

    def shipped(self) -> str:
        """The same definition as we ship it: the solution."""
        return packages.definition_at(copies.shipped_text(self.file), self._line())

    def load(self) -> ModuleType:
        """The package with the edit, under a fresh name."""
        return copies.with_text(self.file, self.text())


def _all() -> dict[str, Mutant]:
    found: dict[str, Mutant] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        for mutant in importlib.import_module(f"{__name__}.{module}").MUTANTS:
            if mutant.name in found:
                raise ValueError(f"two mutants are called {mutant.name}")
            found[mutant.name] = mutant
    return found


MUTANTS = _all()
