"""The process in which a learner's code runs: it executes cells and answers calls, and knows nothing of what is right.

    python -m course.grading.answering DESCRIPTOR      (started by `remote.Server`)

imports everything once and forks a process for each submission, behind the fences of `confine`. That process is told what to do
one message at a time (`wire`): execute a cell, evaluate an expression, call, observe. Seeds, expected values and the state of
the checks stay with the grader.

What a call requested is counted in here, beside the learner's code, so it can be forged by code that knows how. Two things make
that hard to do by accident or in a hurry: before and after each observed call a canary of the grader's choice is counted, and
the functions that count are compared with what they were before the first cell ran. Code that rewrites this process with care
(through the garbage collector, a foreign function, the socket itself) gets past both. It cannot make a wrong result right.
"""

import builtins
import contextlib
import gc
import io
import json
import os
import pwd
import selectors
import signal
import site
import socket
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from types import FunctionType

import numpy as np
import torch

import kernels
from kernels._mode import tl, triton

from ..measure import traffic
from ..session import ROOT
from . import answers, confine, wire

SAID = 4000
"""Characters of a cell's output that are kept."""

CANARY_BLOCK = 64


# ---- observing ----


@triton.jit
def _canary_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    once = tl.load(x + at, mask=at < n, other=0.0)
    again = tl.load(x + at, mask=at < n // 2, other=0.0)
    tl.store(out + at, once + again, mask=at < n)


def canary(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, spare: int) -> torch.Tensor:
    """Work whose counts are known: x [n] is loaded once and its first half again, a [m, k] times b [k, l], ``spare`` elements
    are allocated."""
    out = torch.empty_like(x)
    _canary_kernel[(triton.cdiv(x.numel(), CANARY_BLOCK),)](x, out, x.numel(), BLOCK=CANARY_BLOCK)
    torch.zeros(spare)
    return a @ b


def canary_counts(n: int, m: int, k: int, l: int, spare: int) -> dict:
    """What an honest observation of `canary` finds."""
    return {
        "requested": {"0": n + n // 2, "1": 0, "2": 0},
        "distinct": {"0": n, "1": 0, "2": 0},
        "programs": -(-n // CANARY_BLOCK),
        "launches": 1,
        "flops": 2 * m * k * l,
        "largest": max(n, m * l, spare),
    }


def counts(seen: answers.Observed) -> dict:
    """The counts of an observation, as they are sent."""
    return {
        "requested": seen._requested,
        "distinct": seen._distinct,
        "programs": seen.programs,
        "launches": seen.launches,
        "flops": seen.flops,
        "largest": seen.largest,
    }


def _watched() -> dict[str, object]:
    """By name, what counting relies on and a learner's code could replace."""
    from torch.utils import _python_dispatch, flop_counter
    from triton.runtime import interpreter

    owners = [answers, traffic, sys.modules[__name__], wire, answers.Observed, traffic.Traffic, traffic._Counter]
    owners += [_python_dispatch.TorchDispatchMode, flop_counter.FlopCounterMode, torch.Tensor, builtins]
    owners += [interpreter.InterpreterBuilder, interpreter.GridExecutor]
    found = {"kernels.MODE": kernels.MODE, "course.measure.traffic._active": traffic._active}
    for owner in owners:
        label = getattr(owner, "__module__", "") or ""
        label = f"{label}.{owner.__name__}".lstrip(".")
        for name, value in vars(owner).items():
            if callable(value) or isinstance(value, staticmethod | classmethod | property):
                found[f"{label}.{name}"] = value
    for name in ("unique", "concatenate", "isin", "repeat", "broadcast_to"):
        found[f"numpy.{name}"] = getattr(np, name)
    for name in ("empty", "zeros", "matmul", "save", "load"):
        found[f"torch.{name}"] = getattr(torch, name)
    found |= {f"flop_registry.{key}": value for key, value in flop_counter.flop_registry.items()}
    return found


def _code(value):
    value = getattr(value, "__func__", value)
    return (value.__code__, value.__defaults__, value.__kwdefaults__) if isinstance(value, FunctionType) else None


class Untouched:
    """Whether what counting relies on is still what it was."""

    def __init__(self):
        self.before = {name: (value, _code(value)) for name, value in _watched().items()}

    def changes(self) -> list[str]:
        """Names that are gone or mean something else; at most ten."""
        now = _watched()
        changed = [
            name
            for name, (value, code) in self.before.items()
            if name not in now or now[name] is not value or _code(value) != code
        ]
        return changed[:10]


# ---- one submission ----


class _Said(io.StringIO):
    """What a cell prints, up to a length."""

    def write(self, text: str) -> int:
        if self.tell() < SAID:
            super().write(text[: SAID - self.tell()])
        return len(text)


class Answering:
    """Executes cells in a shell and answers the grader's requests about what they define."""

    def __init__(self, shell):
        self.shell, self.objects, self.untouched = shell, [], Untouched()

    def handle(self, value) -> object:
        """Data as it is, anything else by its number."""
        if answers.is_plain(value):
            return value
        self.objects.append(value)
        return wire.Handle(len(self.objects) - 1, type(value).__name__)

    def inside(self, value):
        """The same with handles resolved."""
        if isinstance(value, wire.Handle):
            return self.objects[value.number]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self.inside, value))
        if isinstance(value, list | tuple):
            return type(value)(map(self.inside, value))
        if isinstance(value, dict):
            return {key: self.inside(item) for key, item in value.items()}
        return value

    def run(self, source: str) -> dict:
        said = _Said()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            result = self.shell.run_cell(source, store_history=False)
        error = result.error_before_exec or result.error_in_exec
        began = result.error_before_exec is None and not isinstance(error, SyntaxError)
        return {"said": said.getvalue(), "error": None if error is None else _named(error)["text"], "began": began}

    def evaluate(self, expression: str) -> object:
        value = eval(expression, self.shell.user_ns)
        self.objects.append(value)
        return wire.Handle(len(self.objects) - 1, type(value).__name__)

    def call(self, of: wire.Handle, args: tuple, kwargs: dict) -> object:
        function = self.inside(of)
        answers._callable(function)
        with _quiet():
            return self.handle(function(*self.inside(args), **self.inside(kwargs)))

    def observe(self, of: wire.Handle, args: tuple, kwargs: dict, canaries: list) -> dict:
        function = self.inside(of)
        answers._callable(function)
        first, last = canaries
        with _quiet():
            before = counts(answers.watch(canary, *first))
            seen = answers.watch(function, *self.inside(args), **self.inside(kwargs))
            after = counts(answers.watch(canary, *last))
        arguments = [self.handle(value) for value in seen.arguments]
        result = self.handle(seen.result)
        return {
            "result": result,
            "arguments": arguments,
            "counts": counts(seen),
            "canaries": [before, after],
            "changed": self.untouched.changes(),
        }

    def get(self, of: wire.Handle, name: str) -> object:
        return self.handle(getattr(self.inside(of), name))

    def value(self, of: wire.Handle) -> object:
        return answers.Local(self.inside(of)).value()

    def serve(self, sock: socket.socket) -> None:
        """Answer requests until the grader hangs up."""
        does = {name: getattr(self, name) for name in ("run", "evaluate", "call", "observe", "get", "value")}
        while True:
            try:
                request = wire.receive_trusted(sock)
            except wire.Closed:
                return
            try:
                reply = {"ok": does[request.pop("do")](**request)}
            except BaseException as error:  # KeyboardInterrupt and SystemExit too: a learner may raise anything
                reply = {"error": _named(error)}
            try:
                wire.send(sock, reply)
            except TypeError as error:
                wire.send(sock, {"error": _named(error)})


@contextlib.contextmanager
def _quiet():
    with contextlib.redirect_stdout(_Said()), contextlib.redirect_stderr(_Said()):
        yield


def _named(error: BaseException) -> dict:
    """An error as data: names of its classes, and the innermost cause's text (Triton's interpreter wraps errors of kernels)."""
    names = [c.__name__ for c in type(error).__mro__]
    while error.__cause__ is not None:
        error = error.__cause__
    try:
        text = f"{type(error).__name__}: {error}".strip().rstrip(":")
    except BaseException:  # a __str__ of the learner's own
        text = type(error).__name__
    return {"names": names[:12], "text": text[:500]}


# ---- the fork server ----


def _shell():
    """An IPython shell that lives in memory alone."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    class Shell(InteractiveShell):
        """`exit` ends the cell (Jupyter would end the kernel after it), nobody looks at pictures, ``!`` needs no terminal."""

        system = InteractiveShell.system_raw

        def ask_exit(self):
            raise SystemExit

        def enable_gui(self, gui=None):
            pass

    settings = Config()
    settings.HistoryManager.enabled = False
    settings.HistoryAccessor.enabled = False
    settings.InteractiveShell.colors = "NoColor"
    settings.InteractiveShell.xmode = "Minimal"
    # get_ipython() asks the class that every shell derives from.
    return Shell.instance(config=settings)


def _readable() -> list[str]:
    """What the learner's process may read: programs, Python and its packages, this repository."""
    found = [
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/sbin",
        "/etc",
        "/proc",
        "/sys",
        "/opt",
        "/dev/null",
        "/dev/zero",
        "/dev/urandom",
    ]
    found += [sys.prefix, sys.base_prefix, str(ROOT), *(path for path in sys.path if os.path.isdir(path))]
    homes = {"/", "/home", "/root", "/tmp"}
    with contextlib.suppress(KeyError):  # a user without an entry, as containers have them
        homes.add(os.path.realpath(pwd.getpwuid(os.getuid()).pw_dir))
    return [path for path in found if os.path.realpath(path) not in homes]


def _submission(sock: socket.socket, shell, order: dict, own_users: bool) -> None:
    """Become the process of one submission: put up the fences, then serve."""
    limits = confine.Limits(**order["limits"])
    folder = order["folder"]
    os.setsid()
    confine.die_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    keep = sock.fileno()
    os.closerange(3, keep)
    os.closerange(keep + 1, 1 << 20)
    os.chdir(folder)
    own = ("HOME", "TMPDIR", "IPYTHONDIR", "MPLCONFIGDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    os.environ |= dict.fromkeys(own, folder)
    tempfile.tempdir = None
    sys.path.append(folder)
    confine.rlimits(limits, own_users)
    confine.no_privileges()
    confine.files_only(_readable(), [folder, "/dev/null"])
    warnings.simplefilter("ignore")
    os.dup2(0, 2)  # until here it says what went wrong
    Answering(shell).serve(sock)


def _reap(pid: int) -> int:
    """Wait for a child; its exit code, or 128 and the number of the signal that ended it."""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


def _start(sock: socket.socket, shell, order: dict, fences: dict) -> int:
    """Fork what will be the submission; return the number of the process to wait for."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        confine.die_with_parent()
        if fences["nobody"]:
            confine.become_nobody()
            confine.die_with_parent()  # a change of user clears it
        own = fences["namespaces"] and confine.namespaces()
        # The first process in a namespace takes all others with it, and cannot be killed from inside: it only waits.
        for _ in range(2 if own else 0):
            child = os.fork()
            if child:
                sock.close()
                os._exit(_reap(child))
            confine.die_with_parent()
        _submission(sock, shell, order, own)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _try(step) -> bool:
    """Whether a step succeeds, tried in a child."""
    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if step() in (None, True) else 1)
        except BaseException:
            os._exit(1)
    return _reap(pid) == 0


def _fences() -> dict:
    """Which fences this machine allows."""

    def nobody():
        confine.become_nobody()
        for path in (ROOT / "course" / "session.py", Path(torch.__file__), Path(sys.executable)):
            with open(path, "rb"):
                pass

    def walls():
        if fences["nobody"]:
            confine.become_nobody()
        return confine.namespaces() and _try(lambda: None)

    fences = {"nobody": os.getuid() == 0 and _try(nobody)}
    fences["namespaces"] = _try(walls)
    fences["landlock"] = confine.landlock_version()
    return fences


def _end_all() -> None:
    """Kill what is left of a submission: everything below this process."""
    import psutil

    while left := psutil.Process().children(recursive=True):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.002)


def main(descriptor: int) -> None:
    """Serve one grader: fork a submission when told, say how it ended, end it when told."""
    control = socket.socket(fileno=descriptor)
    confine.die_with_parent()
    confine.adopt_orphans()
    torch.set_num_threads(1)
    shell = _shell()
    from .. import costs, layers  # noqa: F401
    from . import student  # noqa: F401

    # The first observation imports much that later ones find.
    answers.watch(canary, torch.ones(1), torch.ones(1, 1), torch.ones(1, 1), 1)
    gc.collect()
    gc.freeze()
    fences = _fences()
    control.send(json.dumps({"fences": fences}).encode())
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        pid = process = None
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if process in ready:
                selector.unregister(process)
                os.close(process)
                code = _reap(pid)
                _end_all()
                process = None
                control.send(json.dumps({"ended": code}).encode())
            if control not in ready:
                continue
            message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 1)
            if not message:
                _end_all()
                return
            order = json.loads(message)
            if "stop" in order:
                if process is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                continue
            with socket.socket(fileno=descriptors[0]) as sock:
                if fences["nobody"]:
                    os.chown(order["folder"], confine.NOBODY, confine.NOBODY)
                pid = _start(sock, shell, order, fences)
            process = os.pidfd_open(pid)
            selector.register(process, selectors.EVENT_READ)


def command(descriptor: int) -> list[str]:
    """How the grader starts this module."""
    return [sys.executable, *([] if site.ENABLE_USER_SITE else ["-s"]), "-m", __name__, str(descriptor)]


if __name__ == "__main__":
    from course.grading import answering  # under its own name, which the handles and the check of changes use

    answering.main(int(sys.argv[1]))
