"""Write what students get into a course folder: the source with values drawn, and nbgrader's release of it."""

import nbformat

from . import grade
from .assignments import ASSIGNMENTS
from .autograde import locked
from .folder import Folder, Refusal, named, write
from .gradebook import Book
from .release import solved
from .tasks import PUBLIC_SEED


def release(folder: Folder, names: list[str], variant: str | None = None, replace: bool = False) -> int:
    """Write source and release of assignments into a course folder, and tell nbgrader's gradebook; return how many failed.

    variant: '1', '2', … draw from the private seed, 'public' is what the site hands out; None stays with what is out, or 1.
    A source that was edited by hand is used as it is, unless ``replace`` says to write it anew (a copy is kept).
    """
    if variant is not None and variant != PUBLIC_SEED and not (variant.isdecimal() and int(variant) > 0):
        raise Refusal(f"--variant must be 1, 2, … or 'public', got {variant!r}")
    failed = 0
    with locked(folder):
        book = Book(folder)
        for name in named(names, list(ASSIGNMENTS)):
            known = folder.released(name)
            wanted = known.get("variant", 1) if variant is None else variant if variant == PUBLIC_SEED else int(variant)
            if known and wanted != known["variant"] and book.has_submissions(name):
                raise Refusal(
                    f"{name}: students have handed in variant {known['variant']}; for another class use another course folder"
                )
            said = _write_source(folder, name, wanted, known, replace)
            why = book.release(name)
            failed += bool(why)
            print(f"{name}: {why or f'variant {wanted}{said}: {folder.release(name)}'}")
    return failed


def _write_source(folder: Folder, name: str, variant: int | str, known: dict, replace: bool) -> str:
    path, said = folder.source(name), ""
    new = nbformat.writes(solved(name, folder.release_seed(variant))) + "\n"
    if path.exists():
        old = path.read_bytes()
        if grade.digest(old) != known.get("source") and old != new.encode():
            if not replace:
                folder.set_released(name, variant=known.get("variant", variant), source=known.get("source"))
                return ", from your edited source (--replace writes it anew)"
            kept = path.with_suffix(".edited.ipynb.txt")
            while kept.exists():
                kept = kept.with_name(kept.name + "~")
            write(kept, old)
            said = f", your edited source is kept as {kept.name}"
    write(path, new)
    folder.set_released(name, variant=variant, source=grade.digest(new))
    return said
