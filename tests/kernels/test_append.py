"""Appending: new rows land in their places, bit for bit, and no other byte of the memory around changes."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from kernels import reference
from kernels.append import append_kernel
from tests.kernels.accuracy import COMPILED, strides_beyond_31_bits

FP8 = torch.float8_e4m3fn
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
DEVICE = "cuda" if COMPILED else "cpu"
FP8_RUNS = not COMPILED or torch.cuda.get_device_capability() >= (8, 9)
needs_fp8 = pytest.mark.skipif(not FP8_RUNS, reason="needs compute capability 8.9: float8_e4m3fn")


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def octets(tensor):
    return tensor.contiguous().view(torch.uint8)


class Memory:
    """One allocation filled with random bits, and tensors that are views of it; a copy has the same layout."""

    def __init__(self, n_bytes, seed):
        generator = torch.Generator().manual_seed(seed)
        self.bytes = torch.randint(0, 256, (n_bytes,), dtype=torch.uint8, generator=generator).to(DEVICE)
        self.used = 0
        self.views = {}

    def view(self, name, shape, dtype, order, gap):
        """A tensor of ``shape`` whose axes lie in memory in ``order``, with a ``gap`` after each innermost row."""
        size = torch.empty(0, dtype=dtype).element_size()
        strides, step = [0] * len(shape), 1
        for axis in reversed(order):
            strides[axis] = step
            step = step * max(shape[axis], 1) + (gap if axis == order[-1] else 0)
        start = -(-self.used // 16) * 16
        self.used = start + (step + gap) * size
        assert self.used <= self.bytes.numel()
        self.views[name] = (dtype, start // size, tuple(shape), tuple(strides))
        return self[name]

    def __getitem__(self, name):
        dtype, start, shape, strides = self.views[name]
        size = torch.empty(0, dtype=dtype).element_size()
        return self.bytes[: self.bytes.numel() // size * size].view(dtype).as_strided(shape, strides, start)

    def clone(self):
        twin = object.__new__(Memory)
        twin.bytes, twin.used, twin.views = self.bytes.clone(), self.used, self.views
        return twin


def table_for(lengths, page_size, max_pages, n_pages, garbage, dtype, seed):
    """Distinct pages in random order for the tokens in use, ``garbage`` elsewhere."""
    pages = torch.randperm(n_pages, generator=torch.Generator().manual_seed(seed)).tolist()
    table = torch.full((len(lengths), max_pages), garbage, dtype=dtype)
    for b, length in enumerate(lengths):
        for i in range(-(-length // page_size)):
            table[b, i] = pages.pop()
    return table.to(DEVICE).repeat_interleave(3, 0).repeat_interleave(2, 1)[::3, ::2]  # strides of its own


def same_memory(call, twin, memory, *tensors, seq_lens, **options):
    """``call`` and its twin change two copies of the memory alike, to the last byte; returns the changed one."""
    ours, theirs = memory.clone(), memory.clone()
    cached = [name for name in memory.views if not name.endswith("scale")]
    for function, place in ((call, ours), (twin, theirs)):
        scales = {name: place[name] for name in place.views if name.endswith("scale")}
        table = [options["block_table"]] if "block_table" in options else []
        function(*tensors, *(place[name] for name in cached), *table, seq_lens, **scales)
    assert torch.equal(ours.bytes, theirs.bytes)
    return ours


def test_by_hand():
    """Two new tokens a sequence; of the first sequence only one has a place, of the last none."""
    k_new = torch.arange(1.0, 7.0, device=DEVICE).view(3, 2, 1, 1)
    for function in (kernels.append, reference.append):
        k, v = torch.zeros(2, 3, 1, 4, 1, device=DEVICE)
        function(k_new, -k_new, k, v, ints(1, 4, 0))
        assert k.flatten(1).tolist() == [[2, 0, 0, 0], [0, 0, 3, 4], [0, 0, 0, 0]]
        assert torch.equal(v, -k)


def test_by_hand_on_pages():
    """Tokens 2 and 3 of a sequence on pages 4 and 1 of two tokens; the third entry is garbage, and so is another sequence's."""
    k_new = torch.arange(1.0, 5.0, device=DEVICE).view(2, 2, 1, 1)
    for function in (kernels.paged_append, reference.paged_append):
        k, v = torch.zeros(2, 5, 2, 1, 1, device=DEVICE)
        function(k_new, -k_new, k, v, ints(4, 1, -7, 3, -1, 99).view(2, 3), ints(4, 1))
        assert k.flatten(1).tolist() == [[0, 0], [1, 2], [0, 0], [4, 0], [0, 0]]
        assert torch.equal(v, -k)


layouts = {
    "gap": st.integers(0, 3),
    "order": st.permutations(range(4)),
    "eight": st.booleans() if FP8_RUNS else st.just(False),
    "dtype": st.sampled_from(DTYPES),
    "seed": st.integers(0, 2**31),
}


@settings(max_examples=30)
@given(
    batch=st.integers(1, 3), q_len=st.sampled_from([None, 1, 2, 8, 11]), n_kv_heads=st.integers(1, 3),
    head_dim_qk=st.integers(1, 40), head_dim_v=st.integers(1, 40), capacity=st.integers(0, 12),
    page_size=st.sampled_from([None, 1, 3, 4, 16]), garbage=st.sampled_from([-1, 2**31 - 1, 0]),
    integers=st.sampled_from([torch.int32, torch.int64]), **layouts,
)  # fmt: skip
def test_keys_and_values(
    batch, q_len, n_kv_heads, head_dim_qk, head_dim_v, capacity, page_size, garbage, integers, gap, order, eight, dtype, seed
):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    tokens = (batch,) if q_len is None else (batch, q_len)
    new = [
        torch.randn(n_kv_heads, *tokens, 2 * width, generator=generator, device=DEVICE).to(dtype).movedim(0, -2)[..., ::2]
        for width in (head_dim_qk, head_dim_v)
    ]
    lengths = torch.randint(0, capacity + 1, (batch,), generator=generator, device=DEVICE)
    cached = FP8 if eight else dtype
    memory = Memory(1 << 17, seed)
    options = {}
    if page_size is None:
        rows, names, functions = (batch, n_kv_heads, capacity), ("k", "v"), (kernels.append, reference.append)
    else:
        max_pages = -(-capacity // page_size)
        rows, names = (batch * max_pages + 1, page_size, n_kv_heads), ("k_pages", "v_pages")
        functions = kernels.paged_append, reference.paged_append
        options["block_table"] = table_for(lengths.tolist(), page_size, max_pages, rows[0], garbage, integers, seed)
    for name, width, axes in zip(names, (head_dim_qk, head_dim_v), (order, order[::-1]), strict=True):
        memory.view(name, (*rows, width), cached, axes, gap)
        if eight:
            memory.view(f"{name[0]}_scale", rows, torch.float32, [axis for axis in axes if axis < 3], gap + 1)
    seq_lens = lengths.to(integers).repeat_interleave(2)[::2]
    same_memory(*functions, memory, *new, seq_lens=seq_lens, **options)


@settings(max_examples=30)
@given(
    batch=st.integers(1, 3), q_len=st.sampled_from([None, 1, 3]), latent_dim=st.integers(1, 50), rope_dim=st.integers(1, 20),
    capacity=st.integers(0, 12), page_size=st.sampled_from([None, 1, 3, 16]), packed=st.booleans(), **layouts,
)  # fmt: skip
def test_latents(batch, q_len, latent_dim, rope_dim, capacity, page_size, packed, gap, order, eight, dtype, seed):
    """The latent and the rotary key apart in memory, or side by side in one record with a NaN, or anything, behind it."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    tokens = (batch,) if q_len is None else (batch, q_len)
    new = [torch.randn(*tokens, w, generator=generator, device=DEVICE).to(dtype) for w in (latent_dim, rope_dim)]
    lengths = torch.randint(0, capacity + 1, (batch,), generator=generator, device=DEVICE)
    memory = Memory(1 << 17, seed)
    options = {}
    if page_size is None:
        rows, names, functions = (batch, capacity), ("latent", "k_rope"), (kernels.mla_append, reference.mla_append)
    else:
        max_pages = -(-capacity // page_size)
        rows, names = (batch * max_pages + 2, page_size), ("latent_pages", "k_rope_pages")
        functions = kernels.paged_mla_append, reference.paged_mla_append
        options["block_table"] = table_for(lengths.tolist(), page_size, max_pages, rows[0], -1, torch.int32, seed)
    order = [axis for axis in order if axis < 3]
    if packed and not eight:
        record = memory.view("record", (*rows, latent_dim + rope_dim), dtype, order, gap)
        start, strides = record.storage_offset(), record.stride()
        del memory.views["record"]
        memory.views[names[0]] = (dtype, start, (*rows, latent_dim), strides)
        memory.views[names[1]] = (dtype, start + latent_dim * strides[-1], (*rows, rope_dim), strides)
    else:
        memory.view(names[0], (*rows, latent_dim), FP8 if eight else dtype, order, gap)
        memory.view(names[1], (*rows, rope_dim), dtype, order, gap)
    if eight:
        memory.view("latent_scale", rows, torch.float32, [axis for axis in order if axis < 2], gap)
    same_memory(*functions, memory, *new, seq_lens=lengths.int(), **options)


@needs_fp8
def test_a_record_of_bytes(random):
    """A record of 8-bit latent, its scale and a 16-bit rotary key in one row of memory, as fast kernels store it."""
    records = torch.full((2, 5, 48), 77, dtype=torch.uint8, device=DEVICE)
    latent, scale, k_rope = records[..., :16].view(FP8), records[..., 16:20].view(torch.float32)[..., 0], records[..., 20:28]
    k_rope = k_rope.view(torch.bfloat16)
    latent_new, k_rope_new = random(2, 16).bfloat16(), random(2, 4).bfloat16()
    kernels.mla_append(latent_new, k_rope_new, latent, k_rope, ints(3, 5), latent_scale=scale)
    for b, j in ((0, 2), (1, 4)):
        stored, wanted = reference.quantise(latent_new[b])
        assert torch.equal(octets(latent[b, j]), octets(stored)) and scale[b, j] == wanted
        assert torch.equal(k_rope[b, j], k_rope_new[b])
        records[b, j, :28] = 77
    assert (records == 77).all()


def test_pages_hold_what_a_contiguous_cache_holds(random):
    """Token by token and several at a time, decoding alike."""
    n_kv_heads, width, page_size, capacity = 2, 24, 4, 16
    k, v = torch.full((2, 3, n_kv_heads, capacity, width), torch.nan, device=DEVICE)
    k_pages, v_pages = torch.full((2, 13, page_size, n_kv_heads, width), torch.nan, device=DEVICE)
    table = table_for([16, 16, 16], page_size, 4, 13, -1, torch.int32, 3)
    lengths = ints(0, 3, 9)
    kernels.append(random(3, 9, n_kv_heads, width), random(3, 9, n_kv_heads, width), k, v, lengths)
    for b, n in enumerate(lengths.tolist()):
        for j in range(n):
            page = table[b, j // page_size]
            k_pages[page, j % page_size], v_pages[page, j % page_size] = k[b, :, j], v[b, :, j]
    for tokens in (1, 1, 3, 2):
        lengths += tokens
        k_new, v_new = random(3, tokens, n_kv_heads, width), random(3, tokens, n_kv_heads, width)
        kernels.append(k_new, v_new, k, v, lengths)
        kernels.paged_append(k_new, v_new, k_pages, v_pages, table, lengths)
        for pages, cache in ((k_pages, k), (v_pages, v)):
            for b, rows in enumerate(reference.gather_pages(pages, table, lengths)):
                assert torch.equal(rows.transpose(0, 1), cache[b, :, : lengths[b]]) and not rows.isnan().any()
    q = random(3, 4, width)
    out, lse = kernels.decode(q, k, v, lengths)
    wanted, wanted_lse = reference.paged_decode(q, k_pages, v_pages, table, lengths)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-5, atol=1e-5)


def test_the_address_of_the_cache_stays(random):
    k, v = random(1, 2, 8, 16), random(1, 2, 8, 16)
    before, rest = (k.data_ptr(), v.data_ptr()), (k[:, :, :5].clone(), k[:, :, 6:].clone())
    assert kernels.append(random(1, 2, 16), random(1, 2, 16), k, v, ints(6)) is None
    assert (k.data_ptr(), v.data_ptr()) == before
    assert torch.equal(k[:, :, :5], rest[0]) and torch.equal(k[:, :, 6:], rest[1])


@pytest.fixture
def unchecked(monkeypatch):
    """Lengths and tables as a GPU takes them when nobody asked for a check; its own guards are all there is."""
    monkeypatch.setattr(kernels.checks, "length_values", lambda *_: None)
    monkeypatch.setattr(kernels.checks, "table_values", lambda *_: None)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_positions_outside_the_cache_are_not_written(random, unchecked, dtype):
    memory = torch.full((3, 6, 2, 8, 8), 7.0, device=DEVICE)
    k, v = memory[:, :, 0, 2:6, 1:7], memory[:, :, 1, 2:6, 1:7]  # room on every side
    lengths = [(5, 0, -3), (2**31 - 1, -(2**31), 6), *([(2**40, -(2**40), 2**62)] if dtype == torch.int64 else [])]
    for values in lengths:
        new = random(3, 2, 6, 6)
        kernels.append(new, new, k, v, ints(*values, dtype=dtype))
        if 5 in values:  # the first of two tokens is the last of the cache
            assert torch.equal(k[0, :, 3], new[0, 0]) and torch.equal(v[0, :, 3], new[0, 0])
            memory[0, :, :, 5] = 7.0
        assert (memory == 7).all()


def test_an_entry_that_is_no_page_is_not_written(random, unchecked):
    memory = torch.full((9, 4, 2, 3, 8), 7.0, device=DEVICE)
    k_pages, v_pages = memory[2:6, 1:3, 0], memory[2:6, 1:3, 1]
    table = ints(-1, 4, 2**31 - 1, 1, -2, 0).view(3, 2)
    new = random(3, 3, 3, 8)
    kernels.paged_append(new, new, k_pages, v_pages, table, ints(4, 3, 5))  # pages -1, 4, 4; 2**31 - 1, 2**31 - 1, 1; 0, 0, no
    for page, slot, row in ((1, 0, new[1, 2]), (0, 0, new[2, 0]), (0, 1, new[2, 1])):
        assert torch.equal(k_pages[page, slot], row) and torch.equal(v_pages[page, slot], row)
        memory[2 + page, 1 + slot] = 7.0
    assert (memory == 7).all()


@pytest.mark.parametrize("axis", ["token", "head", "batch"])
def test_offsets_beyond_31_bits(random, axis):
    """One stride of 2**30 + 64 elements; as a contiguous cache and as pages."""
    far, near = strides_beyond_31_bits(random, DEVICE, axis)
    batch, n_kv_heads, capacity, width = near.shape
    new = random(batch, 2, n_kv_heads, width, dtype=torch.float16)
    lengths = ints(*[capacity] * batch)
    halves = lambda rows: (rows[..., : width // 2], rows[..., width // 2 :])  # noqa: E731
    for cache in (far, near):
        kernels.append(*halves(new), *halves(cache), lengths)
    assert torch.equal(far, near)
    assert torch.equal(near[:, :, -2:], new.transpose(1, 2))
    if axis == "batch":
        table = ints(2, 0, 1).view(1, 3)
        for cache in (far, near):
            pages = halves(cache.transpose(1, 2))
            kernels.paged_append(*halves(new[:1, :1]), *pages, table[:, :1], ints(2))
            kernels.paged_append(*halves(new[:1, 1:]), *pages, table, ints(8))
        assert torch.equal(far, near)
        assert torch.equal(near[2, 0, 1], new[0, 0, 0]) and torch.equal(near[1, 0, 1], new[0, 1, 0])


@needs_fp8
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 300.0, 1e4])
def test_what_eight_bits_lose(random, dtype, size):
    """e4m3 keeps 3 bits after the leading one: a value moves by half a step, 2**-4 of it at most.

    Below 2**-6 steps are 2**-9 wide, whatever the value: there it moves by 2**-10 at most, times the row's scale. The scale and
    the quotient are rounded in float32, hence the last 1e-6.
    """
    new = (size * random(4, 3, 100).exp() * random(4, 3, 100).sign()).clamp(-6e4, 6e4).to(dtype)  # elements of many sizes
    k, v = torch.zeros(2, 4, 3, 2, 100, dtype=FP8, device=DEVICE)
    scales = torch.zeros(2, 4, 3, 2, device=DEVICE)
    kernels.append(new, -new, k, v, ints(1, 2, 1, 2), k_scale=scales[0], v_scale=scales[1])
    for b, j in enumerate((0, 1, 0, 1)):
        wanted = new[b].float()
        scale = scales[0, b, :, j, None]
        assert torch.equal(scale[:, 0].cpu(), (wanted.cpu().abs().amax(-1) / 448).clamp_min(2.0**-126))
        assert torch.equal(octets(k[b, :, j]), octets((wanted / scale).to(FP8)))
        assert torch.equal(v[b, :, j].float(), -k[b, :, j].float()) and torch.equal(scales[1, b, :, j], scale[:, 0])
        error = (k[b, :, j].double() * scale.double() - wanted.double()).abs()
        assert (error <= torch.maximum(wanted.abs().double() * 2**-4, 2.0**-10 * scale) * (1 + 1e-6)).all()
        if scale.min() > 2.0**-126:
            assert (k[b, :, j].float().abs().amax(-1) == 448).all()


@needs_fp8
def test_zeros_and_rows_too_small_for_a_scale(random):
    """A row of zeros is stored as zeros beside a finite scale and decodes to exactly 0; a tiny row does not overflow."""
    rows = torch.stack([torch.zeros(16), -torch.zeros(16), torch.full((16,), 1e-45), torch.linspace(-1e-36, 1e-36, 16)])
    new = rows.to(DEVICE).view(1, 4, 1, 16)
    k, v = (torch.full((1, 1, 4, 16), 3.0, device=DEVICE).to(FP8) for _ in range(2))
    k_scale, v_scale = torch.full((2, 1, 1, 4), torch.nan, device=DEVICE)
    kernels.append(new, new, k, v, ints(4), k_scale=k_scale, v_scale=v_scale)
    assert torch.equal(k_scale, v_scale) and (k_scale == 2.0**-126).all()
    assert (k[0, 0, :2].float() == 0).all() and torch.isfinite(k.float()).all()
    exact = new[0, :, 0].double()
    error = ((k.double() * k_scale.double()[..., None])[0, 0] - exact).abs()
    assert (error <= torch.clamp(exact.abs() * 2**-4, min=2.0**-136)).all()
    out, lse = kernels.decode(random(1, 2, 16), k[:, :, :2], v[:, :, :2], k_scale=k_scale[..., :2], v_scale=v_scale[..., :2])
    assert (out == 0).all() and torch.isfinite(lse).all()


@needs_fp8
def test_the_same_token_twice_gives_the_same_bits(random):
    new = random(1, 1, 2, 33).half().expand(1, 4, 2, 33)
    k, v = torch.zeros(2, 1, 2, 4, 33, device=DEVICE).to(FP8)
    scales = torch.zeros(2, 1, 2, 4, device=DEVICE)
    kernels.append(new, new, k, v, ints(4), k_scale=scales[0], v_scale=scales[1])
    assert (octets(k)[:, :, 1:] == octets(k)[:, :, :1]).all() and (scales[..., 1:] == scales[..., :1]).all()


def test_compiles_without_a_graph_break(random):
    """The graph knows what is changed in place, two views of one record included."""

    def step(k_new, v_new, k, v, record, seq_lens):
        kernels.append(k_new, v_new, k, v, seq_lens)
        kernels.mla_append(k_new[:, 0], v_new[:, 0], record[..., :16], record[..., 16:24], seq_lens)
        return k.sum() + record[:, 1].sum()

    def arguments():
        generator = torch.Generator(DEVICE).manual_seed(5)
        shapes = (2, 3, 16), (2, 3, 8), (2, 3, 4, 16), (2, 3, 4, 8), (2, 4, 30)
        return *(torch.randn(s, generator=generator, device=DEVICE) for s in shapes), ints(2, 4)

    wanted, got = arguments(), arguments()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*got), step(*wanted))
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@needs_fp8
def test_compiles_views_of_one_record_that_come_from_outside(random):
    def arguments():
        generator = torch.Generator(DEVICE).manual_seed(6)
        record = torch.randn(2, 4, 30, generator=generator, device=DEVICE)
        rows = torch.randn(2, 24, generator=generator, device=DEVICE)
        eight, scale = torch.zeros(2, 4, 16, device=DEVICE).to(FP8), torch.zeros(2, 4, device=DEVICE)
        return rows[:, :16], rows[:, 16:], record[..., :16], record[..., 16:24], eight, scale, ints(2, 4)

    def step(latent_new, k_rope_new, latent, k_rope, eight, scale, seq_lens):
        kernels.mla_append(latent_new, k_rope_new, latent, k_rope, seq_lens)
        kernels.mla_append(latent_new, k_rope_new, eight, k_rope, seq_lens, latent_scale=scale)

    wanted, got = arguments(), arguments()
    step(*wanted)
    torch.compile(step, fullgraph=True, backend="aot_eager")(*got)
    assert all(torch.equal(octets(a), octets(b)) for a, b in zip(got, wanted, strict=True))


def test_under_inference_mode(random):
    with torch.inference_mode():
        k, v = torch.zeros(1, 2, 4, 8, device=DEVICE), torch.zeros(1, 2, 4, 8, device=DEVICE)
        new = random(1, 2, 8)
        kernels.append(new, new, k, v, ints(3))
        assert torch.equal(k[:, :, 2], new)


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: graph capture")
def test_graph_capture_follows_lengths_and_tables(random):
    k_pages, v_pages = torch.zeros(2, 9, 4, 2, 64, device=DEVICE, dtype=torch.bfloat16)
    table, lengths = ints(*range(8)).view(2, 4), ints(1, 1)
    new = random(2, 2, 64, dtype=torch.bfloat16)
    kernels.paged_append(new, new, k_pages, v_pages, table, lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.paged_append(new, new, k_pages, v_pages, table, lengths)
    for values in ((5, 16), (2, 0)):
        lengths.copy_(ints(*values))
        table.copy_(table.flip(0))
        new.normal_()
        wanted = k_pages.clone(), v_pages.clone()
        graph.replay()
        reference.paged_append(new, new, *wanted, table, lengths)
        assert torch.equal(k_pages, wanted[0]) and torch.equal(v_pages, wanted[1])


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: counts compiled variants")
def test_batches_lengths_and_capacities_compile_a_handful(random):
    def variants():
        return sum(len(cache[0]) for cache in append_kernel.device_caches.values())

    def sweep():
        for batch in (1, 2, 3, 16):
            for tokens in (1, 2, 3, 8):
                for n in (16, 17, 100, 128):
                    k, v = (torch.zeros(batch, 2, n, 64, device=DEVICE, dtype=torch.float16) for _ in range(2))
                    new = random(batch, tokens, 2, 64, dtype=torch.float16)
                    kernels.append(new, new, k, v, ints(*[n] * batch))

    before = variants()
    sweep()
    after = variants()
    assert after - before <= 4
    sweep()
    assert variants() == after


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: values on it are checked only when asked")
def test_values_are_checked_when_asked(random):
    k, v = random(2, 2, 5, 16), random(2, 2, 5, 16)
    new = random(2, 2, 16)
    kernels.append(new, new, k, v, ints(6, 1))
    with pytest.raises(ValueError, match="between 0 and the cache's 5"):
        kernels.append(new, new, k, v, ints(6, 1), validate=True)
    pages = k.transpose(1, 2), v.transpose(1, 2)
    kernels.paged_append(new, new, *pages, ints(0, 2).view(2, 1), ints(1, 1))
    with pytest.raises(ValueError, match="pages 0 to 1"):
        kernels.paged_append(new, new, *pages, ints(0, 2).view(2, 1), ints(1, 1), validate=True)


@pytest.mark.skipif(COMPILED, reason="on a GPU values are checked only when asked")
def test_values_are_checked_on_a_cpu(random):
    k, v = random(2, 2, 5, 16), random(2, 2, 5, 16)
    new = random(2, 2, 16)
    for values in ((6, 1), (1, -1)):
        with pytest.raises(ValueError, match="between 0 and the cache's 5"):
            kernels.append(new, new, k, v, ints(*values))
    pages = k.transpose(1, 2), v.transpose(1, 2)
    for entry in (-1, 2):
        with pytest.raises(ValueError, match="pages 0 to 1"):
            kernels.paged_append(new, new, *pages, ints(0, entry).view(2, 1), ints(1, 1))


def test_without_triton_the_definition_writes(random, monkeypatch):
    monkeypatch.setattr(sys.modules["kernels.append"], "MODE", "reference")
    new = random(2, 2, 8)
    k, v = torch.zeros(2, 2, 2, 4, 8, device=DEVICE)
    kernels.append(new, -new, k, v, ints(2, 4))
    assert torch.equal(k[0, :, 1], new[0]) and torch.equal(v[1, :, 3], -new[1])
    pages = torch.zeros(4, 2, 2, 8, device=DEVICE)
    kernels.paged_append(new, new, pages, pages, ints(3, 0).view(2, 1), ints(2, 1))
    assert torch.equal(pages[3, 1], new[0]) and torch.equal(pages[0, 0], new[1])
    kernels.mla_append(new[:, 0], new[:, 1], k[:, 0], k[:, 1], ints(1, 1))
    kernels.paged_mla_append(new[:, 0], new[:, 1], k[:, 0], k[:, 1], ints(1, 0).view(2, 1), ints(3, 1))
    assert torch.equal(k[0, :, 0], new[1]) and torch.equal(k[1, :, 2], new[0])
    with pytest.raises(ValueError, match="between 0 and the cache's 4"):
        kernels.append(new, new, k, v, ints(5, 1))


def test_refusals(random, monkeypatch):
    append, paged = kernels.append, kernels.paged_append
    mla, paged_mla = kernels.mla_append, kernels.paged_mla_append
    k, v, rows, lengths = random(2, 3, 7, 16), random(2, 3, 7, 8), random(2, 3, 16), ints(3, 7)
    new = rows, rows[..., :8]
    pages, table = (k.transpose(1, 2), v.transpose(1, 2)), ints(0, 1).view(2, 1)
    k8, v8 = k.to(FP8), v.to(FP8)
    k_scale, v_scale = torch.zeros(2, 2, 3, 7, device=DEVICE)
    scales, shared = {"k_scale": k_scale, "v_scale": v_scale}, v_scale[:1].expand(2, -1, -1)
    flat = rows[:, 0], rows[:, 0, :8]
    for error, words, function, arguments, options in [
        (TypeError, "v must be a torch.Tensor, got list", append, (*new, k, [1.0], lengths), {}),
        (TypeError, "v_new is float16", append, (rows, new[1].half(), k, v, lengths), {}),
        (TypeError, "float16, bfloat16 or float32", append, (k8[:, :, 0], v8[:, :, 0], k, v, lengths), {}),
        (TypeError, "k must be torch.float32", append, (*new, k.half(), v, lengths), {}),
        (TypeError, "v must be torch.float8_e4m3fn", append, (*new, k8, v, lengths), scales),
        (TypeError, "v must be torch.float32", append, (*new, k, v8, lengths), {}),
        (ValueError, "k_scale is missing", append, (*new, k8, v8, lengths), {}),
        (ValueError, "k_scale belongs to", append, (*new, k, v, lengths), scales),
        (TypeError, "k_scale must be float32", append, (*new, k8, v8, lengths), scales | {"k_scale": k_scale.half()}),
        (ValueError, "L = 7", append, (*new, k8, v8, lengths), scales | {"k_scale": k_scale[..., :5]}),
        (ValueError, "Hkv = 1", append, (rows[:, :1], new[1][:, :1], k, v, lengths), {}),
        (ValueError, "Dv = 16", append, (rows, rows, k, v, lengths), {}),
        (ValueError, "k_new must have shape", append, (rows[0], new[1][0], k, v, lengths), {}),
        (ValueError, "v_new must have shape", append, (rows, new[1][:, None], k, v, lengths), {}),
        (ValueError, "v_new must have at least one column", append, (rows, rows[..., :0], k, v[..., :0], lengths), {}),
        (kernels.Unsupported, "append goes up to Dqk = 1024", append, (random(2, 3, 1025), new[1], k, v, lengths), {}),
        (ValueError, "k has elements in one place", append, (*new, k[:, :1].expand(-1, 3, -1, -1), v, lengths), {}),
        (ValueError, "v_scale has elements in one place", append, (*new, k8, v8, lengths), scales | {"v_scale": shared}),
        (TypeError, "seq_lens must be an int32 tensor", append, (*new, k, v, None), {}),
        (ValueError, r"seq_lens must have shape \[B\]", append, (*new, k, v, ints(1)), {}),
        (TypeError, "validate must be", append, (*new, k, v, lengths), {"validate": 1}),
        (kernels.Unsupported, "k_new requires a gradient", append, (rows.clone().requires_grad_(), new[1], k, v, lengths), {}),
        (kernels.Unsupported, "v requires a gradient", append, (*new, k, v.clone().requires_grad_(), lengths), {}),
        (TypeError, "block_table must be", paged, (*new, *pages, [[0], [1]], lengths), {}),
        (ValueError, "block_table must have shape", paged, (*new, *pages, table[:1], lengths), {}),
        (ValueError, "at least one token", paged, (*new, *(x[:, :0] for x in pages), table, lengths), {}),
        (ValueError, "L = 7", mla, (*flat, k[:, 0], v[:, 0, :5], lengths), {}),
        (TypeError, "k_rope must be torch.float32", mla, (*flat, k8[:, 0], v8[:, 0], lengths), {"latent_scale": k_scale[:, 0]}),
        (ValueError, "latent_scale is missing", mla, (*flat, k8[:, 0], v[:, 0], lengths), {}),
        (ValueError, "P = 7", paged_mla, (*flat, k[:, 0], v[:, 0, :5], table, lengths), {}),
    ]:
        with pytest.raises(error, match=words):
            function(*arguments, **options)
    with pytest.raises(kernels.Unsupported, match="v_new carries a tangent"):
        torch.func.jvp(lambda x: append(rows, x, k, v, lengths), (new[1],), (new[1],))
    monkeypatch.setattr(sys.modules["kernels.append"], "device_of", lambda _: kernels.Device((8, 0), 108, 163 * 1024))
    with pytest.raises(kernels.Unsupported, match=r"compute capability 8\.9, this GPU has 8\.0"):
        append(*new, k8, v8, lengths, **scales)
    append(*new, k, v, lengths)


@pytest.mark.parametrize("shape", [(0, 2, 3, 8), (2, 0, 3, 8)])
def test_nothing_to_append(random, shape):
    k, v = random(shape[0], 3, 4, 8), random(shape[0], 3, 4, 8)
    before = k.clone()
    kernels.append(random(*shape), random(*shape), k, v, ints(*[4] * shape[0]))
    assert torch.equal(k, before)
