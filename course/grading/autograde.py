"""Grade a class: a process for each core, a verdict a file, and one writer for the gradebook.

A verdict is on disk before the gradebook hears of it, and is used again as long as submission, release, seed and grading code
are the same. So a run that is killed goes on where it was, and a second run costs nothing.
"""

import contextlib
import fcntl
import json
import multiprocessing
import multiprocessing.util
import os
import re
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

import nbformat

from . import confine, rebuild
from .assignments import ASSIGNMENTS
from .folder import Folder, Refusal, Submission, write

DRAWS = 2
MOST_TRIES = 2

_server = None


def _prepare() -> None:
    """In a worker: end with the command, keep its memory to itself, one thread."""
    confine.die_with_parent()
    confine.hide_memory()
    import torch

    torch.set_num_threads(1)


def _grade(submission: Submission, master: str, seed: str, draws: int, limits: confine.Limits) -> dict:
    """One verdict, without what the folder knows of it."""
    global _server
    from . import grade
    from .remote import Server

    if _server is None:
        _server = Server()
        multiprocessing.util.Finalize(None, _server.close, exitpriority=1)  # workers leave without atexit
    assignment, release = ASSIGNMENTS[submission.assignment], nbformat.reads(master, as_version=4)
    try:
        notebook, notes = rebuild.rebuild(release, submission.data, assignment)
    except rebuild.Unreadable as reason:
        return {"unreadable": str(reason), "notes": [], "tasks": {}, "cells": {}, "irregular": [], "seconds": 0.0}
    verdict = grade.grade(notebook, release, assignment, seed, _server, draws, limits, submission.beside)
    return {**verdict, "notes": notes, "fences": _server.fences}


def _safely(*arguments) -> dict:
    try:
        return _grade(*arguments)
    except Exception:
        return {"fault": traceback.format_exc()}


@contextlib.contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """One command at a time writes the gradebook of a folder. Raises `Refusal` while another does."""
    folder.create()
    with open(folder.root / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refusal(f"another command is writing in {folder.root}; wait for it to end") from None
        yield


def verdicts(
    folder: Folder,
    work: list[tuple[str, str]],
    draws: int = DRAWS,
    jobs: int | None = None,
    limits: confine.Limits | None = None,
) -> Iterator[tuple[str, str, dict]]:
    """Verdicts on (assignment, student), as they come: those on disk first. One that our own code failed on has 'fault'."""
    limits, todo = limits or confine.Limits(), {}
    for name, student in work:
        submission = folder.submission(student, name)
        key, known = folder.key(submission, draws), folder.verdict(name, student)
        if known is not None and known["key"] == key:
            yield name, student, known
        else:
            todo[name, student] = key, 0
    if not todo:
        return
    masters = {name: nbformat.writes(folder.master(name)) for name, _ in todo}
    jobs = max(1, min(jobs or len(os.sched_getaffinity(0)), len(todo)))
    while todo:
        # A worker that dies (out of memory, say) breaks the pool: what was in work is tried again, alone, and then given up.
        alone = any(tries for _, tries in todo.values())
        batch = [each for each, (_, tries) in todo.items() if tries][:1] if alone else list(todo)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1 if alone else jobs, context, initializer=_prepare) as pool:
            waiting, queue = {}, iter(batch)

            def more(pool=pool, waiting=waiting, queue=queue) -> None:
                for name, student in queue:
                    arguments = folder.submission(student, name), masters[name], folder.hidden_seed, draws, limits
                    waiting[pool.submit(_safely, *arguments)] = name, student
                    return

            try:
                for _ in range(jobs + 1):
                    more()
                while waiting:
                    for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                        name, student = waiting[done]
                        verdict = done.result()
                        del waiting[done]
                        key, _ = todo.pop((name, student))
                        verdict |= {"assignment": name, "student": student, "key": key, "draws": draws}
                        if "fault" not in verdict:
                            write(folder.verdict_path(name, student), json.dumps(verdict, indent=1) + "\n")
                        yield name, student, verdict
                        more()
            except BrokenProcessPool:
                for each in waiting.values():
                    key, tries = todo[each]
                    todo[each] = key, tries + 1
                    if tries + 1 >= MOST_TRIES:
                        del todo[each]
                        fault = "the process that grades it ended (out of memory?), and again when it was tried alone"
                        yield *each, {"fault": fault, "assignment": each[0], "student": each[1]}
            except BaseException:
                workers = list((pool._processes or {}).values())  # the pool forgets them when it is shut down
                pool.shutdown(wait=False, cancel_futures=True)
                for process in workers:
                    process.kill()
                raise


def missing_fences(fences: dict | None) -> set[str]:
    """What a machine does not offer to keep submissions in, in words."""
    if fences is None:
        return set()
    missing = set() if fences["namespaces"] else {"submissions see other processes and the network (no user namespaces)"}
    return missing if fences["landlock"] else missing | {"submissions can read the files that you can read (no Landlock)"}


def points(verdict: dict) -> tuple[int, int]:
    """Points got and points to get of a verdict, the stretch task included."""
    lines = [line for task in verdict["tasks"].values() for line in task["lines"]]
    whole = sum(task.max_points for task in ASSIGNMENTS[verdict["assignment"]].tasks)
    return sum(line["got"] for line in lines), whole


def autograde(
    folder: Folder,
    names: list[str],
    draws: int = DRAWS,
    jobs: int | None = None,
    limits: confine.Limits | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Grade all submissions of the assignments and write the gradebook; return how many could not be graded."""
    from .gradebook import Book

    with locked(folder):
        book = Book(folder)
        confine.hide_memory()
        work = [(name, student) for name in names for student in folder.students(name)]
        for name in names:
            folder.master(name)
        listed = folder.class_list() or {}
        faults, irregular, open_fences, n = [], [], set(), 0
        for name, student, verdict in verdicts(folder, work, draws, jobs, limits):
            n += 1
            if "fault" in verdict:
                faults.append((name, student, verdict["fault"]))
                say(f"[{n:>4}/{len(work)}] {name} {student}: could not be graded: {_short(verdict['fault'])}")
                continue
            written = ""
            if book.graded_key(name, student) != verdict["key"]:
                why = book.write_verdict(name, student, bool(verdict.get("unreadable")))
                if why:
                    faults.append((name, student, why))
                    say(f"[{n:>4}/{len(work)}] {name} {student}: nbgrader did not take it: {_short(why)}")
                    continue
                if student in listed:
                    book.describe(student, **listed[student])
            else:
                written = ", as before"
            open_fences |= missing_fences(verdict.get("fences"))
            got, whole = points(verdict)
            what = (
                verdict["unreadable"]
                if verdict.get("unreadable")
                else f"{got} of {whole} ({verdict['seconds']:.0f} s{written})"
            )
            say(f"[{n:>4}/{len(work)}] {name} {student}: {what}")
            irregular += [f"{name} {student}: {each}" for each in verdict["irregular"]]
            irregular += [f"{name} {student}: {verdict['unreadable']}"] if verdict.get("unreadable") else []
        for line in irregular:
            say(f"look at {line}")
        for line in sorted(open_fences):
            say(f"on this machine {line}; grade as a throw-away user or in a container (see the instructor's guide)")
        if faults:
            path = folder.root / "verdicts" / "faults.txt"
            write(path, "\n".join(f"{name} {student}\n{fault}\n" for name, student, fault in faults))
            say(f"{len(faults)} could not be graded; what went wrong is in {path}")
        return len(faults)


def _short(fault: str) -> str:
    """The line of a traceback that says what happened."""
    lines = [line for line in fault.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)), lines[-1])[:200]
