"""What the interpreter is spared changes nothing that it does: the language is whole in every function and as it was after."""

import inspect

import pytest
import torch

import kernels
from course.interpreter import patch_once
from kernels._mode import tl, triton

pytestmark = pytest.mark.skipif(kernels.MODE != "interpreter", reason="needs Triton's interpreter")


@triton.jit
def halved(x):
    """Calls a function of Triton's own library in turn, which sees ``tl.core`` where this one sees ``tl``."""
    return tl.where(tl.max(x, 0) > 0, x / 2, tl.zeros_like(x))


@triton.jit
def halving_kernel(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    for _ in range(3):
        tl.store(out + i, halved(tl.load(x + i)) + tl.sum(tl.zeros((N,), tl.float32)))


@triton.jit
def failing_kernel(x, N: tl.constexpr):
    halved(tl.load(x + tl.arange(0, N)))
    tl.static_assert(N < 0)


def launch():
    x, out = torch.arange(8.0), torch.zeros(8)
    halving_kernel[(2,)](x, out, N=8)
    assert torch.equal(out, x / 2)


def language() -> dict:
    """Whatever a launch could leave changed, by name."""
    places = (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base, tl.dtype)
    return {(place.__name__, name): member for place in places for name, member in inspect.getmembers(place)}


@pytest.fixture
def everywhere(monkeypatch):
    """The functions for which the interpreter went through the language."""
    from triton.runtime import interpreter

    fast, functions = interpreter._patch_lang, []

    def counted(fn):
        functions.append(fn.__name__)
        return fast.everywhere(fn)

    # The one in force, over a count: made anew, as at the first import.
    monkeypatch.setattr(interpreter, "_patch_lang", counted)
    patch_once()
    return functions


def test_the_language_is_gone_through_once_a_launch(everywhere):
    launch()
    everywhere.clear()  # the first time Triton's library is patched too, for good
    launch()
    assert everywhere == ["halving_kernel"]


def test_launches_leave_the_language_as_it_was():
    launch()
    before = language()
    launch()
    with pytest.raises(Exception, match="AssertionError"):
        failing_kernel[(1,)](torch.zeros(8), N=8)
    assert language() == before
    launch()


def test_a_launch_from_a_module_that_sees_the_core_alone():
    """Such a kernel finds ``tl.core`` patched by an earlier launch, and tensors that are not."""
    from triton.language import core

    launch()
    seen = {"triton": triton, "core": core, "__name__": __name__}
    assert not core.is_builtin(core.load) and core.is_builtin(tl.tensor.__add__)
    code = "def kernel(x, out):\n    core.store(out, core.load(x) + 1)\n"
    exec(code, seen)
    out = torch.zeros(1)
    triton.jit(seen["kernel"])[(1,)](torch.ones(1), out)
    assert out.item() == 2


def test_another_triton_stays_as_it_is(monkeypatch):
    from triton.runtime import interpreter

    stock = interpreter._patch_lang.everywhere
    monkeypatch.setattr(interpreter, "_patch_lang", stock)
    monkeypatch.delattr(interpreter, "_LangPatchScope")
    patch_once()
    assert interpreter._patch_lang is stock
