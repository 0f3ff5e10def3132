"""``python -m course.grading COMMAND``: the instructor's commands, in the order in which they are needed."""

import argparse
import os
import sys
from pathlib import Path

# Before anything imports Triton or starts a thread. Answers are graded in the interpreter, on machines with a GPU too.
os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

COMMANDS = """\
  release [NAME...]           draw values and bugs from the class's private seed and write what students get
  collect PLACE NAME          take in a folder, or a zip, of submissions
  autograde [NAME...]         grade what was handed in and write the gradebook; goes on where it was stopped
  feedback [NAME...]          write a page for each student
  export [NAME...]            write CSV files of the points
  status                      how far each assignment is
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course.grading", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=COMMANDS
    )
    parser.add_argument("--course", metavar="FOLDER", help="the course folder (default: $COURSE, or ~/from-mha-to-mla-course)")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, about: str, **names) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=about, description=about)
        if names:
            made.add_argument("names", metavar="NAME", **names)
        return made

    release = command("release", "write what students get", nargs="*")
    release.add_argument("--variant", metavar="N", help="other values and bugs: 1 (the first), 2, …, or 'public'")
    release.add_argument("--replace", action="store_true", help="write a source anew that was edited; a copy is kept")
    collect = command("collect", "take in submissions")
    collect.add_argument("place", type=Path, metavar="PLACE", help="a folder or a zip file")
    collect.add_argument("name", nargs="?", metavar="NAME")
    collect.add_argument("--assignment", metavar="NAME", help="the same as NAME")
    collect.add_argument("--pattern", metavar="REGEX", help="searched in each path; its group (?P<student>…) says whose it is")
    autograde = command("autograde", "grade what was handed in", nargs="*")
    autograde.add_argument("--jobs", type=int, metavar="N", help="submissions at once (default: one for each core)")
    autograde.add_argument("--draws", type=int, default=2, metavar="N", help="inputs that a property is looked at with (2)")
    autograde.add_argument("--cell-seconds", type=float, default=30, metavar="S", help="time of one cell (30)")
    autograde.add_argument("--memory", type=float, default=2, metavar="GiB", help="memory of a submission (2)")
    command("feedback", "write a page for each student", nargs="*")
    export = command("export", "write CSV files of the points", nargs="*")
    export.add_argument("--to", type=Path, metavar="FOLDER", help="where to (default: exports/TIME in the course folder)")
    command("status", "how far each assignment is")
    options = parser.parse_args(arguments)

    from .folder import Refusal

    try:
        return _do(options) or 0
    except Refusal as reason:
        print(reason, file=sys.stderr)
        return 2


def _do(options) -> int | None:
    from . import autograde as grading
    from . import collect, confine, handout, report
    from .folder import Folder, Refusal, named
    from .gradebook import Book

    folder = Folder(options.course)
    if options.command == "release":
        return handout.release(folder, options.names, options.variant, options.replace)
    if options.command == "collect":
        if (options.name is None) == (options.assignment is None):
            raise Refusal("name one assignment: collect PLACE NAME")
        (name,) = named([options.name or options.assignment], folder.released_names() + folder.other_names())
        print("\n".join(collect.collect(folder, options.place, name, options.pattern)))
        return None
    book = Book(folder)
    if options.command == "status":
        print(report.status(book))
    elif options.command == "autograde":
        others = folder.other_names()
        names = named(options.names, folder.released_names() + others)
        faults = 0
        for name in (name for name in names if name in others):
            if name not in options.names:
                print(f"{name} is an exercise of your own: nbgrader would execute it with no fences; name it to do so")
                continue
            print(f"{name} is an exercise of your own: nbgrader executes it in your account, with no fences")
            why = book.classical(name)
            print(why, file=sys.stderr) if why else None
            faults += bool(why)
        limits = confine.Limits(cell=options.cell_seconds, memory=int(options.memory * 2**30))
        names = [name for name in names if name not in others]
        return bool(grading.autograde(folder, names, options.draws, options.jobs, limits) + faults)
    elif options.command == "feedback":
        return book.all_feedback(named(options.names, folder.released_names() + folder.other_names()))
    elif options.command == "export":
        for path in report.export(book, named(options.names, folder.released_names()), options.to):
            print(path)
    return None


if __name__ == "__main__":
    sys.exit(main())
