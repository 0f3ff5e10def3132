"""Merging partial states: the weights, the empty state, shapes and strides."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from kernels import reference
from tests.kernels.accuracy import COMPILED, assert_accurate, assert_lse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 3, 16), (2, 16), (5, 2, 3, 40), (70, 2, 24), (130, 1, 128)])
def test_matches_the_definition(random, shape, dtype):
    outs, lses = random(*shape, dtype=dtype), 3 * random(*shape[:-1])
    out, lse = kernels.merge(outs, lses)
    wanted, wanted_lse = reference.merge(outs, lses)
    assert out.dtype == dtype
    assert_accurate(out, wanted)
    assert_lse(lse, wanted_lse)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("position", [0, 1])
def test_the_empty_state_is_the_identity_bit_for_bit(random, dtype, position):
    out, lse = random(4, 33, dtype=dtype), 20 * random(4)
    outs, lses = (
        torch.full((2, 4, 33), torch.nan, device=out.device, dtype=dtype),
        torch.full((2, 4), -torch.inf, device=out.device),
    )
    outs[position], lses[position] = out, lse
    merged, merged_lse = kernels.merge(outs, lses)
    assert torch.equal(merged, out) and torch.equal(merged_lse, lse)


def test_only_empty_states_give_the_empty_state(device):
    out, lse = kernels.merge(torch.full((3, 2, 16), torch.nan, device=device), torch.full((3, 2), -torch.inf, device=device))
    assert (out == 0).all() and (lse == -torch.inf).all()


def test_hand_worked_halves(device):
    """1.1192 and 3.1192 with weights 0.2689 and 0.7311 give 2.5813; the average, 2.1192, is the classic mistake."""
    outs = torch.tensor([[1.1192029], [3.1192029]], device=device)
    out, lse = kernels.merge(outs, torch.tensor([2.1269280, 3.1269280], device=device))
    assert round(out.item(), 4) == 2.5813 and round(lse.item(), 4) == 3.4402


@settings(max_examples=25)
@given(st.integers(2, 20), st.integers(1, 4), st.integers(1, 40), st.integers(0, 2**31), st.data())
def test_a_tree_gives_what_one_merge_gives(num_splits, rows, width, seed, data):
    generator = torch.Generator("cuda" if COMPILED else "cpu").manual_seed(seed)
    outs = torch.randn(num_splits, rows, width, generator=generator, device=generator.device)
    lses = 5 * torch.randn(num_splits, rows, generator=generator, device=generator.device)
    lses[torch.rand(num_splits, rows, generator=generator, device=generator.device) < 0.2] = -torch.inf
    cut = data.draw(st.integers(1, num_splits - 1))
    parts = [kernels.merge(outs[:cut], lses[:cut]), kernels.merge(outs[cut:], lses[cut:])]
    tree = kernels.merge(torch.stack([o for o, _ in parts]), torch.stack([x for _, x in parts]))
    wanted, wanted_lse = reference.merge(outs, lses)
    assert_accurate(tree[0], wanted)
    assert_lse(tree[1], wanted_lse)


def test_any_strides(random):
    outs, lses = random(24, 3, 5).permute(2, 1, 0), random(3, 5).T
    out, lse = kernels.merge(outs, lses)
    wanted, wanted_lse = reference.merge(outs, lses)
    assert_accurate(out, wanted)
    assert_lse(lse, wanted_lse)


def test_compiles_without_a_graph_break(random):
    outs, lses = random(3, 2, 16), random(3, 2)
    torch.testing.assert_close(
        torch.compile(kernels.merge, fullgraph=True, backend="aot_eager")(outs, lses), kernels.merge(outs, lses)
    )


def test_refusals(random):
    outs, lses = random(3, 2, 16), random(3, 2)
    for error, words, arguments in [
        (TypeError, "outs must be a torch.Tensor", ([1], lses)),
        (TypeError, "lses must be a float32", (outs, lses.half())),
        (TypeError, "lses must be a torch.Tensor, got NoneType", (outs, None)),
        (ValueError, "without its last axis", (outs, lses[:2])),
        (ValueError, "at least one state", (outs[:0], lses[:0])),
    ]:
        with pytest.raises(error, match=words):
            kernels.merge(*arguments)
