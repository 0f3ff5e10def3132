"""A learner's code in a process of its own: what it does to itself, and what it cannot do to anybody else."""

import contextlib
import os
import time
from pathlib import Path

import pytest
import torch

import kernels
from course.grading import answering, confine, remote
from course.grading.judge import Wrong
from course.grading.remote import Remote, Session

QUICK = confine.Limits(cell=1.5, memory=1 << 30)


@pytest.fixture
def session(server):
    with Session(server, QUICK) as made:
        yield made


def one(session, source, name, seconds=5.0):
    """An answer defined by a cell, and the property's time."""
    cell = session.run(source)
    assert not cell.ended, cell
    return Remote(session, name), session.within(seconds)


def below(pid: int) -> list[int]:
    import psutil

    return [process.pid for process in psutil.Process(pid).children(recursive=True)]


BAD_CELLS = {
    "an error": ("1 / 0", "ZeroDivisionError", False),
    "no Python": ("def", "SyntaxError", False),
    "exit()": ("exit()", "SystemExit", False),
    "sys.exit()": ("import sys; sys.exit(1)", "SystemExit", False),
    "input()": ("input('name?')", "EOFError", False),
    "too much memory": ("x = bytearray(3 << 30)", "MemoryError", False),
    "too large a file": ("open('big', 'wb').write(bytes(100 << 20))", "File too large", False),
    "os._exit": ("import os; os._exit(3)", "exit code 3", True),
    "a crash": ("import ctypes; ctypes.string_at(0)", "SIGSEGV", True),
    "kill": ("import os; os.kill(os.getpid(), 9)", "SIGKILL", True),
    "an endless loop": ("while True:\n    pass", "ran longer", True),
    "an endless loop that catches": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass", "ran longer", True,
    ),
    "closed descriptors": ("import os; os.closerange(3, 1000)", "ended its process", True),
    "processes": (
        "import os, time\nwhile True:\n    if os.fork() == 0:\n        os.setsid(); time.sleep(60)\n    time.sleep(.02)",
        "", True,
    ),
}  # fmt: skip


def test_a_bad_cell_costs_itself(session):
    assert not session.run("kept = [1]").ended
    for name, (source, said, fatal) in BAD_CELLS.items():
        cell = session.run(source)
        assert said in cell.ended and cell.ended and cell.fatal is fatal, (name, cell)
    assert not session.run("kept.append(2)").ended
    with session.within(5):
        assert Remote(session, "kept").value() == [1, 2]
        assert not session.irregular


def test_what_notebooks_do_besides_is_no_error(server):
    for source in (
        "%matplotlib inline",
        "!echo hello\n%time x = !echo there\nassert x == ['there']",
        "%%bash\necho hello",
        "from IPython.display import display, Markdown\ndisplay(Markdown('a'))\nget_ipython()",
        "import asyncio\nawait asyncio.sleep(0)",
        "import threading\nt = threading.Thread(target=print); t.start(); t.join()",
        "import torch\nx = torch.ones(2, requires_grad=True); x.sum().backward(); assert x.grad.sum() == 2",
    ):
        with Session(server, confine.Limits(cell=20.0)) as session:
            assert not session.run(source).ended, session.cells[-1]


def test_nothing_is_left_of_a_submission(server, session):
    session.run("import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(60)")
    folder = session.folder.name
    assert len(below(server.process.pid)) >= 2
    session.__exit__()
    assert below(server.process.pid) == [] and not Path(folder).exists()


def test_what_a_cell_prints_is_cut(session):
    assert len(session.run("print('x' * 100_000)\nprint('y')").said) == answering.SAID
    assert session.run("raise ValueError('y' * 100_000)").ended.startswith("ValueError: yyy")
    assert not session.run("import os; os.write(1, b'z' * 100_000); os.write(2, b'z')").ended


def test_its_environment_is_its_own(session):
    os.environ["A_SECRET"] = "secret"
    try:
        cell = session.run("import os, sys; print(sorted(os.environ), os.getcwd() == os.environ['HOME'])")
    finally:
        del os.environ["A_SECRET"]
    assert "A_SECRET" not in cell.said and "True" in cell.said


@pytest.mark.skipif(confine.landlock_version() < 1, reason="this kernel has no Landlock")
def test_files_of_others_cannot_be_read(session, tmp_path):
    (tmp_path / "seeds.json").write_text("secret")
    assert "PermissionError" in session.run(f"print(open({str(tmp_path / 'seeds.json')!r}).read())").ended
    assert "PermissionError" in session.run(f"open({str(tmp_path / 'new')!r}, 'w')").ended
    assert "PermissionError" in session.run(f"print(open('/proc/{os.getpid()}/environ').read())").ended
    assert not session.run("open('mine', 'w').write('x'); print(open('mine').read())").ended
    if confine.landlock_version() >= 6:
        assert session.run(f"import os; os.kill({os.getpid()}, 0)").ended


def test_files_beside_the_notebook_can_be_imported(server):
    with Session(server, QUICK, {"helper.py": b"def f(x):\n    return x + 1\n", "data/a.txt": b"a"}) as session:
        answer, within = one(session, "import helper\nassert open('data/a.txt').read() == 'a'", "helper.f")
        with within:
            assert answer(1) == 2


def test_calls_get_copies_with_their_strides(session):
    answer, within = one(session, "def f(x, *, out=None):\n    s = x.stride()\n    x.zero_()\n    return s, x, x.T", "f")
    x = torch.randn(3, 8)[:, ::2]
    before = x.clone()
    with within:
        strides, same, turned = answer(x)
        assert strides == (8, 2) == same.stride() and torch.equal(x, before) and not same.any()
        assert same.untyped_storage().data_ptr() == turned.untyped_storage().data_ptr()
        seen = answer.observe(x, out=None)
        assert not seen.arguments[0].any() and seen.arguments[0].stride() == (8, 2)
        assert seen.result[1].untyped_storage().data_ptr() == seen.arguments[0].untyped_storage().data_ptr()


def test_counts_are_those_of_an_observation_here(session):
    source = Path(answering.__file__).read_text()
    assert "def canary" in source
    answer, within = one(session, "from course.grading.answering import canary", "canary")
    work, expected = remote._draw_canary()
    with within:
        seen = answer.observe(*work)
    assert answering.counts(seen) == expected and seen.requested(0) == expected["requested"]["0"]


def test_objects_stay_there_and_answer_by_name(session):
    answer, within = one(
        session,
        "class Cache:\n    size = 0\n    def __init__(self, n): self.n = n\n    def add(self, k): self.size += k; return self\n"
        "def total(cache, more): return cache.size + more[0].n",
        "Cache",
    )
    with within:
        cache = answer(3)
        assert cache.get("n") == 3 and cache.get("add")(4).get("size") == 4
        assert Remote(session, "total")(cache, [cache]) == 7
        with pytest.raises(TypeError, match="must be data"):
            cache.value()
        with pytest.raises(AttributeError):
            cache.get("nothing")
        with pytest.raises(TypeError, match="something to call"):
            Remote(session, "total.__name__")()


RAISING = """
import kernels

class Mine(ValueError): pass
class Wrong(Exception): pass
class NotHere(Exception): pass
class Nasty(Exception):
    def __str__(self): raise SystemExit

def f(what):
    if what == "cause":
        try: 1 / 0
        except ZeroDivisionError as error: raise RuntimeError("x") from error
    raise {"mine": Mine("m"), "todo": NotImplementedError(), "here": NotHere("h"), "wrong": Wrong("w"), "nasty": Nasty(),
           "exit": SystemExit(), "unsupported": kernels.Unsupported("u")}[what]
"""


def test_errors_are_known_by_their_class_and_innermost_cause(session):
    answer, within = one(
        session,
        RAISING,
        "f",
    )
    with within:
        for what, kind in {"mine": ValueError, "todo": NotImplementedError, "unsupported": kernels.Unsupported}.items():
            with pytest.raises(kind):
                answer(what)
        for what in ("here", "wrong", "nasty", "exit", "cause"):
            with pytest.raises(Exception) as error:
                answer(what)
            assert type(error.value).__module__ != "course.grading.judge", what
        with pytest.raises(Exception, match="division by zero"):
            answer("cause")


def test_a_call_that_does_not_end_costs_its_property(session):
    answer, within = one(session, "n = 0\ndef f(x):\n    global n\n    n += 1\n    while x: pass\n    return n", "f", 1.0)
    begun = time.monotonic()
    with pytest.raises(Wrong, match="longer than 1 s"), within:
        assert answer(0) == 1
        with contextlib.suppress(Exception):
            answer(1)
        with contextlib.suppress(Exception):
            answer(0)  # not asked: this property is lost
    assert time.monotonic() - begun < 20
    with session.within(5):
        assert answer(0) == 1  # a new process, and the cells before


def test_a_call_that_ends_the_process_costs_its_property(session):
    answer, within = one(session, "import os\ndef f(x):\n    if x: os._exit(0)\n    return x", "f")
    with pytest.raises(Wrong, match="ended its process"), within:
        answer(1)
    made = Remote(session, "dict")
    with session.within(5):
        old = made()
        assert answer(0) == 0 and old == {}


def test_an_answer_too_large_to_send_is_an_error(server):
    with Session(server, confine.Limits(reply=1 << 20)) as session:
        answer, within = one(
            session, "import torch\ndef f(n): return torch.zeros(n)\ndef g(): return torch.eye(2).to_sparse()", "f"
        )
        with within, pytest.raises(Exception, match="cannot be handed over"):
            Remote(session, "g")()
        with pytest.raises(Wrong, match="at most are taken"), session.within(5):
            answer(1 << 20)


TAMPERING = {
    "the counter": "from torch.utils.flop_counter import FlopCounterMode\nFlopCounterMode.get_total_flops = lambda self: 0",
    "watch": "from course.grading import answers\nanswers.watch = lambda function, *a, **k: 1 / 0",
    "its code": (
        "from course.grading import answers\ndef fake(function, *args, **kwargs):\n    pass\n"
        "answers._by_argument.__code__ = (lambda traffic, tensors: ({'0': 0}, {'0': 0})).__code__"
    ),
    "the interpreter": (
        "from triton.runtime import interpreter\nold = interpreter.InterpreterBuilder.create_masked_load\n"
        "interpreter.InterpreterBuilder.create_masked_load = lambda *a, **k: old(*a, **k)"
    ),
    "the formulas": (
        "from torch.utils.flop_counter import flop_registry\nimport torch\n"
        "flop_registry[torch.ops.aten.mm] = lambda *a, **k: 0"
    ),
    "the mode": "import kernels\nkernels.MODE = 'compiled'",
}  # fmt: skip


@pytest.mark.parametrize("how", TAMPERING)
def test_changed_counting_is_noticed(session, how):
    answer, within = one(session, TAMPERING[how] + "\ndef f(a, b): return a @ b", "f")
    # Where nothing can be counted at all there is an error, and nothing to look at for a person.
    with pytest.raises(ZeroDivisionError if how == "watch" else Wrong), within:
        answer.observe(torch.ones(2, 2), torch.ones(2, 2))
    assert bool(session.irregular) == (how != "watch")
    with session.within(5):
        assert torch.equal(answer(torch.eye(2), torch.ones(2, 2)), torch.ones(2, 2))  # results are still looked at


def test_a_server_that_was_killed_is_started_again(server):
    with Session(server, QUICK) as session:
        answer, within = one(session, "def f(): return 1", "f")
        server.process.kill()
        server.process.wait()
        time.sleep(0.3)  # its children go with it
        with pytest.raises(Wrong), within:
            answer()
        with session.within(5):
            assert answer() == 1


def test_limits_are_in_force(session):
    cell = session.run(
        "import resource as r; print([r.getrlimit(x)[0] for x in (r.RLIMIT_CORE, r.RLIMIT_NOFILE, r.RLIMIT_FSIZE)])"
    )
    assert cell.said.strip() == f"[0, {QUICK.files}, {QUICK.file}]"
