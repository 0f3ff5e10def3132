"""Arguments that kernels must not meet: memory that is written and read, positions they cannot count, lazy views."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kernels
from kernels import checks
from tests.kernels.accuracy import COMPILED
from tests.kernels.decoding import assert_same, lens

needs_triton = pytest.mark.skipif(kernels.MODE == "reference", reason="needs Triton: without it nothing is launched")


@st.composite
def views(draw, memory):
    """A view of ``memory`` with one to three axes, in any order, and any type of elements."""
    start = draw(st.integers(0, memory.numel() - 1))
    shape, strides, left = [], [], memory.numel() - 1 - start
    for _ in range(draw(st.integers(1, 3))):
        stride = draw(st.integers(0, 20))
        size = draw(st.integers(0, 5 if stride == 0 else min(5, left // stride + 1)))
        left -= max(size - 1, 0) * stride
        shape.append(size)
        strides.append(stride)
    return memory.as_strided(shape, strides, start)


@given(st.data())
def test_memory_is_shared_where_an_element_is(data):
    memory = torch.zeros(120, dtype=torch.int32)
    one, other = (data.draw(views(memory)) for _ in range(2))
    if data.draw(st.booleans()) and other.stride(-1) == 1 and other.numel():
        other = other.view(torch.int16)
    one.fill_(-1)
    if (other == -1).any():
        with pytest.raises(ValueError, match="one and other share memory"):
            checks.apart("one other", (one, other), 1)
    else:
        checks.apart("one other", (one, other), 1)
        checks.apart("other nothing one", (other, None, one), 2)


@given(st.data())
def test_memory_of_its_own(data):
    """Never called so where two elements are in one place; strides that interlock are refused as well."""
    memory = torch.zeros(120, dtype=torch.int32)
    view = data.draw(views(memory))
    places = torch.arange(120).as_strided(view.shape, view.stride(), view.storage_offset()).flatten()
    alone = len(places.unique()) == len(places)
    steps = sorted((step, size) for size, step in zip(view.shape, view.stride(), strict=True) if size > 1)
    nested = all(step > sum((n - 1) * s for s, n in steps[:i]) for i, (step, _) in enumerate(steps))
    if alone and nested:
        checks.own_memory("view", view)
    elif not alone:
        with pytest.raises(ValueError, match="view has elements in one place"):
            checks.own_memory("view", view)


@needs_triton
def test_a_workspace_holds_no_input(random, device):
    memory = random(40000)
    q, k, v = memory[:128].view(2, 4, 16), memory[1000:6120].view(2, 2, 80, 16), memory[7000:12120].view(2, 2, 80, 16)
    size = kernels.plan.decode_workspace(2, 1, 4, 16, 2)
    wanted = kernels.decode(q, k, v, num_splits=2)
    assert_same(kernels.decode(q, k, v, num_splits=2, workspace=memory[128 : 128 + size]), wanted)
    for name, start in (("q", 127), ("k", 1000 - size + 1), ("k", 6119), ("v", 7100)):
        workspace, before = memory[start : start + size], memory.clone()
        with pytest.raises(ValueError, match=f"workspace and {name} share memory"):
            kernels.decode(q, k, v, num_splits=2, workspace=workspace)
        assert torch.equal(memory, before)
    lengths = memory[20000:20002].view(torch.int32).zero_()
    with pytest.raises(ValueError, match="workspace and seq_lens share memory"):
        kernels.decode(q, k, v, lengths, num_splits=2, workspace=memory[20001:21000])
    pages, table = memory[1000:6120].view(10, 16, 2, 16), lens(device, *range(10)).view(2, 5)
    with pytest.raises(ValueError, match="workspace and v_pages share memory"):
        kernels.paged_decode(q, pages + 0, pages, table, lens(device, 80, 3), num_splits=2, workspace=pages.view(-1))
    work = kernels.plan_work(lens(device, 80, 3), 4, 2, 16, torch.float32, capacity=80, shares=2)
    with pytest.raises(ValueError, match="workspace and k_pages share memory"):
        kernels.paged_decode(q, pages, pages + 0, table, lens(device, 80, 3), work=work, workspace=pages.view(-1))
    record = memory[1000:5160].view(2, 80, 26)  # latent and rotary part side by side
    with pytest.raises(ValueError, match="workspace and k_rope share memory"):
        kernels.mla_decode(
            q, q[..., :8], record[..., :16].clone(), record[..., 16:24], scale=0.1, num_splits=2, workspace=memory[1000:4000]
        )


@needs_triton
def test_a_cache_shares_no_memory_with_what_else_append_takes(random, device):
    packed, new = random(2, 2, 8, 32), random(2, 2, 16)
    k, v, lengths = packed[..., :16], packed[..., 16:], lens(device, 3, 8)
    kernels.append(new, 2 * new, k, v, lengths)  # between each other is not in one place
    assert torch.equal(packed[0, :, 2], torch.cat([new[0], 2 * new[0]], -1))
    before = packed.clone()
    for name, arguments in (
        ("k and v", (new, new, packed[..., :16], packed[..., 15:31], lengths)),
        ("k and v", (new, new, k, k, lengths)),
        ("k and k_new", (k[:, :, 0], new, k, v, lengths)),
        ("v and k_new", (v[:, :, 0], new, k, v, lengths)),
        ("v and seq_lens", (new, new, k, v, packed.view(torch.int32)[:, 1, 7, 31])),
    ):
        with pytest.raises(ValueError, match=f"{name} share memory"):
            kernels.append(*arguments)
    pages, table = packed.transpose(1, 2), lens(device, 0, 1).view(2, 1)
    with pytest.raises(ValueError, match="k_pages and v_pages share memory"):
        kernels.paged_append(new, new, pages[..., :16], pages[..., :16], table, lengths)
    with pytest.raises(ValueError, match="latent and k_rope share memory"):
        kernels.mla_append(new[:, 0], new[:, 0, :8], packed[:, 0, :, :16], packed[:, 0, :, 8:16], lengths)
    assert torch.equal(packed, before)
    step = torch.compile(lambda k: kernels.append(new, new, k, v, lengths), fullgraph=True, backend="eager")
    step(k)
    with pytest.raises(Exception, match="has elements in one place"):
        step(k[:, :1].expand(-1, 2, -1, -1))
    for cache in (k[:, :1].expand(-1, 2, -1, -1), random(999).as_strided((2, 2, 8, 16), (300, 128, 15, 1))):
        with pytest.raises(ValueError, match="v has elements in one place"):
            kernels.append(new, new, k, cache, lengths)


@needs_triton
@pytest.mark.parametrize("num_splits", [3, 64, 10**6, 2**31 - 1])
def test_no_more_splits_than_tiles(random, device, num_splits):
    q, k, v = random(2, 4, 16), random(2, 2, 130, 16), random(2, 2, 130, 16)
    lengths = lens(device, 130, 1)
    launch = kernels.plan_decode(2, 4, 2, 130, 16, 16, 4, kernels.device_of(q), num_splits=num_splits)
    assert launch.num_splits == min(num_splits, kernels.plan.ceil_div(130, launch.tile.block_n))
    workspace = torch.full((kernels.plan.decode_workspace(2, 1, 4, 16, launch.num_splits),), torch.nan, device=device)
    got = kernels.decode(q, k, v, lengths, num_splits=num_splits, workspace=workspace)
    torch.testing.assert_close(got, kernels.decode(q, k, v, lengths, num_splits=1), rtol=1e-4, atol=1e-4 if COMPILED else 1e-5)


def test_more_tokens_than_kernels_count(random, device):
    q, k, lengths = random(1, 2, 16), random(1).expand(1, 1, 2**31, 16), lens(device, 5)
    latent = k[:, 0]
    for words, call in {
        "decode goes up to 2.* L = 2147483648": lambda: kernels.decode(q, k, k, lengths),
        "mla_decode goes up to 2.* L = 2147483648": lambda: kernels.mla_decode(q, q, latent, latent, lengths, scale=1.0),
        "attention goes up to 2.* N = 2147483648": lambda: kernels.attention(q[:, :, None], k, k),
        "attention goes up to 2.* M = 2147483648": lambda: kernels.attention(k, q[:, :1, None], q[:, :1, None]),
        "one_row goes up to 2.* N = 2147483648": lambda: kernels.one_row(q[0, 0], k[0, 0], k[0, 0]),
        "paged_decode goes up to 2.* P = 2147483648": lambda: kernels.paged_decode(
            q, k.transpose(1, 2), k.transpose(1, 2), lens(device, 0).view(1, 1), lengths
        ),
    }.items():
        with pytest.raises(kernels.Unsupported, match=words):
            call()


def test_views_that_memory_does_not_hold(random, device):
    """The imaginary part of a conjugate is negated by whoever reads it, and a kernel would not."""
    lazy = torch.view_as_complex(random(2, 2, 8, 16, 2)).conj().imag
    q, plain, lengths = random(2, 2, 16), lazy.resolve_neg(), lens(device, 3, 4)
    for name, call in {
        "k is negated": lambda: kernels.decode(q, lazy, plain),
        "q is negated": lambda: kernels.attention(lazy, plain, plain),
        "v is negated": lambda: kernels.append(q, q, plain, lazy, lengths),
        "lses is negated": lambda: kernels.merge(plain, lazy[..., 0]),
        "x is negated": lambda: kernels.first.softmax(lazy[0, 0]),
    }.items():
        with pytest.raises(ValueError, match=f"{name} .*resolve_neg"):
            call()
    with pytest.raises(ValueError, match="x is .*conjugated"):
        kernels.first.copy(torch.view_as_complex(random(8, 2)).conj())
    with pytest.raises(TypeError, match="q must be a dense .* got a nested tensor"):
        kernels.attention(torch.nested.nested_tensor([q[0], q[1]]), plain, plain)
