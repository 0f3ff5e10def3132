"""The grader's side of an answering process: starts it, tells it what to do, believes nothing it says.

`Server` is a process that has imported everything and forks one for each submission; `Session` is one submission in it; and
`Remote` is an answer there as a property sees it. A cell or a call that ends the process, or overruns its time, costs itself:
the process is started anew and the cells before are executed again, without those that ended it.
"""

import builtins
import contextlib
import json
import math
import os
import select
import signal
import site
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

import torch

import kernels

from ..session import ROOT
from . import answering, wire
from .answers import Answer, Observed, _copied
from .confine import Limits
from .judge import Wrong

STARTING, ENDING = 120.0, 30.0  # seconds for a process to start, and to end when told
BUILTIN = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
    and not issubclass(kind, UnicodeError | BaseExceptionGroup)
}  # fmt: skip
_random = SystemRandom()


class NoAnswer(Exception):
    """The answering process is gone; says why."""


def environment(home: str) -> dict[str, str]:
    """The whole environment of the fork server: nothing of the grader's own but where libraries are."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    made = {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": home,
        "MPLBACKEND": "Agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "MHA_TO_MLA": str(ROOT),
        "TORCHINDUCTOR_CACHE_DIR": home,
        **dict.fromkeys(threads, "1"),
    }
    if site.ENABLE_USER_SITE:
        made["PYTHONUSERBASE"] = site.getuserbase()
    if "LD_LIBRARY_PATH" in os.environ:
        made["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return made


class Server:
    """The fork server. Use as a context manager; it starts by itself, and again should it end."""

    def __init__(self):
        self.process, self.control, self.home, self.fences = None, None, None, {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _ensure(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        self.close()
        if kernels.MODE != "interpreter":
            raise RuntimeError(f"answers are graded in Triton's interpreter (on Linux), and kernels.MODE is {kernels.MODE!r}")
        self.home = tempfile.TemporaryDirectory(prefix="answering-", ignore_cleanup_errors=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                answering.command(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                env=environment(self.home.name),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.control = ours
        self.fences = self._message(STARTING)["fences"]

    def _message(self, seconds: float) -> dict:
        self.control.settimeout(seconds)
        try:
            data = self.control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.close()
            raise NoAnswer("the process that starts answering processes has ended")
        return json.loads(data)

    def start(self, folder: str, limits: Limits) -> socket.socket:
        """Start an answering process with this folder as its own; return the socket to it."""
        self._ensure()
        ours, theirs = socket.socketpair()
        order = json.dumps({"folder": folder, "limits": limits.as_dict()}).encode()
        with theirs:
            try:
                socket.send_fds(self.control, [order], [theirs.fileno()])
            except OSError:
                ours.close()
                self.close()
                raise NoAnswer("the process that starts answering processes has ended") from None
        return ours

    def ended(self, wait: float = 0.0) -> int | None:
        """End the answering process unless it ends by itself in ``wait`` seconds; its exit code, 128 and more for a signal."""
        try:
            if not select.select([self.control], [], [], wait)[0]:
                self.control.send(b'{"stop": true}')
            return self._message(ENDING)["ended"]
        except (OSError, NoAnswer, AttributeError):
            self.close()
            return None

    def close(self) -> None:
        """End the server and everything below it."""
        if self.control is not None:
            self.control.close()
        if self.process is not None:
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.home is not None:
            self.home.cleanup()
        self.process = self.control = self.home = None


@dataclass
class Cell:
    """A cell that was executed: what it printed, and how it ended ('' for well)."""

    source: str
    said: str = ""
    ended: str = ""
    fatal: bool = False  # it took the process with it, and is not executed again
    began: bool = True  # some of it may have been executed


class Session:
    """One submission in an answering process. Use as a context manager.

    files: what its folder holds, by name. ``irregular`` collects what an instructor should look at.
    """

    MOST_DEATHS = 12
    """Cells that may end the process before only those of the assignment are executed still."""

    def __init__(self, server: Server, limits: Limits | None = None, files: dict[str, bytes] | None = None):
        self.server, self.limits, self.files = server, limits or Limits(), files or {}
        self.cells: list[Cell] = []
        self.irregular: list[str] = []
        self.generation = 0
        self.sock = None
        self.ends = time.monotonic() + self.limits.total
        self.deadline, self.stopped = None, None

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="answers-", ignore_cleanup_errors=True)
        for name, data in self.files.items():
            path = Path(self.folder.name, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return self

    def __exit__(self, *_):
        self._end()
        self.folder.cleanup()

    def _end(self, wait: float = 0.0) -> int | None:
        if self.sock is None:
            return None
        self.sock.close()
        self.sock = None
        return self.server.ended(wait)

    # ---- one message ----

    def _ask(self, deadline: float, seconds: float, **message):
        """Send a request and return what came of it. Raises `NoAnswer` if the process ended or had to be ended."""
        try:
            wire.send_trusted(self.sock, message, deadline)
            reply = wire.receive(self.sock, self.limits.reply, deadline)
        except wire.Late:
            self._end()
            raise NoAnswer(f"ran longer than {seconds:.0f} s and was stopped (an endless loop?)") from None
        except wire.Closed:
            raise NoAnswer(_said_of(self._end(wait=1.0))) from None
        except wire.Refused as reason:
            self._end()
            raise NoAnswer(f"sent {reason}, and was stopped") from None
        if isinstance(reply, dict) and set(reply) == {"ok"}:
            return reply["ok"]
        if isinstance(reply, dict) and set(reply) == {"error"}:
            raise _error(reply["error"])
        self._end()
        raise NoAnswer("sent a message that was none, and was stopped")

    def _start(self) -> None:
        """Start the process and execute the cells so far that did not end it."""
        while self.sock is None:
            if time.monotonic() > self.ends:
                raise NoAnswer(f"took more than the {self.limits.total:.0f} s that a submission has, with all its cells")
            self.sock = self.server.start(self.folder.name, self.limits)
            self.generation += 1
            for cell in self.cells:
                if not cell.fatal and not self._execute(cell):
                    break

    def _execute(self, cell: Cell) -> bool:
        try:
            got = self._ask(time.monotonic() + self.limits.cell, self.limits.cell, do="run", source=cell.source)
        except NoAnswer as reason:
            cell.ended, cell.fatal = str(reason), True
            return False
        except Exception:  # the shell answers errors of a cell as text
            got = {}
        if isinstance(got, dict):
            cell.said, cell.ended = str(got.get("said", ""))[: answering.SAID], str(got.get("error") or "")[:600]
            cell.began = got.get("began") is not False
        return True

    # ---- cells ----

    def run(self, source: str, own: bool = False) -> Cell:
        """Execute a cell. ``own``: it is none of the assignment's, and is left out if too many cells ended the process."""
        cell = Cell(source)
        if own and sum(c.fatal for c in self.cells) >= self.MOST_DEATHS:
            cell.ended, cell.fatal = "was not executed: too many cells of this notebook ended its process", True
            self.cells.append(cell)
            return cell
        try:
            self._start()
        except NoAnswer as reason:
            cell.ended, cell.fatal = str(reason), True
        else:
            self._execute(cell)
        self.cells.append(cell)
        return cell

    # ---- answers ----

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """One property: what it asks has to be answered in ``seconds``. `Wrong` if the process ended, whatever it caught."""
        self.deadline, self.seconds, self.stopped = None, seconds, None
        try:
            yield
        finally:
            reason, self.stopped = self.stopped, None
            if reason is not None:
                raise Wrong(reason) from None

    def ask(self, **message):
        """A request of a property."""
        if self.stopped is not None:
            raise Wrong(self.stopped)
        try:
            if self.sock is None:
                self._start()
                self.deadline = None
            if self.deadline is None:
                self.deadline = time.monotonic() + self.seconds
            return self._ask(self.deadline, self.seconds, **message)
        except NoAnswer as reason:
            self.stopped = f"the answer {reason}"
            raise Wrong(self.stopped) from None

    def tampered(self, what: str) -> None:
        """Give up this property: what counts was changed."""
        self.irregular.append(what)
        self.stopped = "what counts loads or products was changed by this notebook, so they are not counted"
        raise Wrong(self.stopped)


def _said_of(code: int | None) -> str:
    if code is None or code == 0:
        return "ended its process"
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"ended its process (signal {signal.Signals(code - 128).name})"
    return f"ended its process (exit code {code})"


class Forwarded(Exception):
    """An error of the answer, none of ours."""


def _error(said) -> Exception:
    """The error as the property would have seen it here: of the same name, and of the nearest class of Python's or ours."""
    names = [n for n in said.get("names", []) if isinstance(n, str)] if isinstance(said, dict) else []
    text = str(said.get("text", ""))[:500] if isinstance(said, dict) else ""
    name = names[0] if names and names[0].isidentifier() else "Error"
    known = {**BUILTIN, "Unsupported": kernels.Unsupported}
    kind = next((known[n] for n in names if n in known), Forwarded)
    text = text.removeprefix(f"{name}: ").removeprefix(name)
    if kind is NotImplementedError:
        return NotImplementedError(text)
    return type(name[:60], (kind,), {"__str__": lambda self: text})()


class Remote(Answer):
    """An answer in an answering process. ``expression`` names it there (None for an object that came out of a call)."""

    def __init__(self, session: Session, expression: str | None, handle: wire.Handle | None = None):
        self._session, self._expression, self._handle, self._generation = session, expression, handle, session.generation

    def __reduce__(self):
        return wire.Handle, (self._here().number,)

    def _here(self) -> wire.Handle:
        """The object's number in the process as it is now."""
        session = self._session
        if session.sock is None:
            session.ask(do="run", source="")
        if self._generation != session.generation or self._handle is None:
            if self._expression is None:
                raise Wrong("the object that the answer made is gone: its process ended since")
            got = session.ask(do="evaluate", expression=self._expression)
            if not isinstance(got, wire.Handle):
                session.tampered("a message about an answer was forged")
            self._handle, self._generation = got, session.generation
        return self._handle

    def _wrapped(self, value):
        return Remote(self._session, None, value) if isinstance(value, wire.Handle) else value

    def __call__(self, *args, **kwargs):
        of = self._here()
        return self._wrapped(self._session.ask(do="call", of=of, args=_copied(args), kwargs=_copied(kwargs)))

    def observe(self, *args, **kwargs) -> Observed:
        of = self._here()
        canaries, expected = zip(*(_draw_canary() for _ in range(2)), strict=True)
        got = self._session.ask(do="observe", of=of, args=_copied(args), kwargs=_copied(kwargs), canaries=canaries)
        if not isinstance(got, dict) or not isinstance(got.get("arguments"), list) or not _counts(got.get("counts")):
            self._session.tampered("counts were forged")
        if got.get("changed") or got.get("canaries") != list(expected):
            changed = got.get("changed")
            names = (
                ", ".join(map(str, changed))[:300] if isinstance(changed, list) and changed else "counts of known work are off"
            )
            self._session.tampered(f"what counts was changed: {names}")
        seen = got["counts"]
        return Observed(
            self._wrapped(got.get("result")),
            tuple(map(self._wrapped, got["arguments"])),
            *(seen[key] for key in ("requested", "distinct", "programs", "launches", "flops", "largest")),
        )

    def get(self, name: str):
        return self._wrapped(self._session.ask(do="get", of=self._here(), name=name))

    def value(self):
        return self._session.ask(do="value", of=self._here())


def _draw_canary() -> tuple[tuple, dict]:
    n, m, k, l, spare = (_random.randint(*span) for span in ((65, 400), (1, 9), (1, 9), (1, 9), (10, 2000)))
    work = (torch.rand(n), torch.rand(m, k), torch.rand(k, l), spare)
    return work, answering.canary_counts(n, m, k, l, spare)


def _counts(seen) -> bool:
    """Whether these are counts as an observation has them in the interpreter."""

    def count(value):
        return type(value) is int and 0 <= value < math.inf

    return (
        isinstance(seen, dict)
        and all(count(seen.get(key)) for key in ("programs", "launches", "flops", "largest"))
        and all(
            isinstance(seen.get(key), dict) and all(type(k) is str and count(v) for k, v in seen[key].items())
            for key in ("requested", "distinct")
        )
    )
