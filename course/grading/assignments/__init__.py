"""The assignments, one file each, named as the chapter's notebook. `ASSIGNMENTS` holds them by name, in the book's order."""

import importlib
import pkgutil

from ..mutants import MUTANTS, Mutant
from ..tasks import Assignment, Task

ORDER = (
    "p1_gpu",
    "p2_triton",
    "p3_attention",
    "01_kv_cache",
    "02_sharing_heads",
    "03_full_sequence",
    "03b_backward",
    "04_grouped_head_decode",
    "05_flash_decoding",
    "06_paged_attention",
    "07_mla_compress",
    "08_mla_absorb",
    "09_costs",
)


def _all() -> dict[str, Assignment]:
    found = {}
    for info in pkgutil.iter_modules(__path__):
        assignment = importlib.import_module(f"{__name__}.{info.name}").ASSIGNMENT
        found[assignment.name] = assignment
    return {name: found[name] for name in ORDER if name in found}


ASSIGNMENTS = _all()


def find(name: str) -> tuple[Assignment, Task]:
    """The assignment and task of 'assignment.task'. Raises ValueError naming what there is."""
    assignment, _, task = name.partition(".")
    if assignment not in ASSIGNMENTS:
        raise ValueError(f"there is no assignment {assignment!r} (there are {', '.join(ASSIGNMENTS)})")
    return ASSIGNMENTS[assignment], ASSIGNMENTS[assignment].task(task)


def mutants_of(assignment: Assignment, task: Task, given: bool = False) -> list[Mutant]:
    """The mutants that a task has to find, or only those that may be handed out, in the order in which they are listed."""
    name = f"{assignment.name}.{task.name}"
    return [m for m in MUTANTS.values() if m.task == name and (m.given or not given)]
