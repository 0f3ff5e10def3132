"""Work lists: equal shares of a ragged batch, against a definition in plain Python; every token once, in every layer."""

import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from kernels import plan, reference
from kernels.work_list import WORK_UNIT
from tests.kernels.accuracy import COMPILED, DTYPES
from tests.kernels.decoding import assert_same, assert_state, by_token, lens, peer, scatter

DEVICE = "cuda" if COMPILED else "cpu"
UNIT = WORK_UNIT.value
H200 = kernels.Device(capability=(9, 0), sm_count=132, shared_memory=227 * 1024)


def pieces_by_definition(lengths, shares):
    """[(share, sequence, start, stop)]: units of all sequences in a row, share i takes the i-th run of ceil(total / shares)."""
    units = [(b, j) for b, n in enumerate(lengths) for j in range(0, n, UNIT)]
    each = max(1, -(-len(units) // shares))
    pieces = []
    for i, (b, j) in enumerate(units):
        stop = min(j + UNIT, lengths[b])
        if pieces and pieces[-1][:2] == (i // each, b):
            pieces[-1] = (*pieces[-1][:3], stop)
        else:
            pieces.append((i // each, b, j, stop))
    return pieces


def pieces_of(work, lengths):
    """The pieces that the programs of a work list take, read as they read it."""
    bounds = work.bounds.tolist()
    pieces = []
    for share, ((first, start), (last, stop)) in enumerate(zip(bounds, bounds[1:], strict=False)):
        assert 0 <= first <= last < len(lengths), "a program would read a length that is not there"
        for b in range(first, last + 1):
            piece = (start if b == first else 0, min(stop if b == last else lengths[b], lengths[b]))
            if piece[0] < piece[1]:
                pieces.append((share, b, *piece))
    return pieces


@settings(max_examples=60 if COMPILED else 40)
@given(
    lengths=st.one_of(
        st.lists(st.integers(0, 3000), min_size=1, max_size=200),
        st.lists(st.sampled_from([0, 0, 1, 127, 128, 129, 256, 10_000, -1, -(2**31), 2**31 - 1]), min_size=1, max_size=200),
    ),
    capacity=st.sampled_from([0, 1, 127, 128, 129, 1000, 10_000]),
    shares=st.integers(1, 300),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    stride=st.integers(1, 2),
)
def test_the_list_is_its_definition(lengths, capacity, shares, dtype, stride):
    """Batches across several blocks of 64, empty sequences anywhere, more shares than units, lengths outside the cache."""
    seq_lens = torch.tensor(lengths, dtype=dtype, device=DEVICE).repeat_interleave(stride)[::stride]
    work = kernels.plan_work(seq_lens, 8, 2, 64, torch.float16, capacity=capacity, shares=shares)
    clipped = [min(max(n, 0), capacity) for n in lengths]
    assert work.bounds.dtype == work.slots.dtype == torch.int32
    assert work.bounds.shape == (shares + 1, 2) and work.slots.shape == (len(lengths), 2)
    pieces = pieces_by_definition(clipped, shares)
    assert pieces_of(work, clipped) == pieces
    # A piece's partial state is share + sequence: no two alike, in the room that a workspace has, those of a sequence in a row.
    states = [share + b for share, b, *_ in pieces]
    assert len(set(states)) == len(states) and all(0 <= state < shares + len(lengths) for state in states)
    for b, (first, count) in enumerate(work.slots.tolist()):
        assert [share + b for share, sequence, *_ in pieces if sequence == b] == list(range(first, first + count))


def test_by_hand():
    """Units of 128 tokens: 3 + 0 + 1 + 5 = 9, in 4 shares of 3. The second takes two sequences; the last has nothing left."""
    work = kernels.plan_work(lens(DEVICE, 300, 0, 128, 600), 8, 2, 64, torch.float16, capacity=640, shares=4)
    assert work.bounds.tolist() == [[0, 0], [0, 384], [3, 256], [3, 640], [3, 640]]
    assert pieces_of(work, [300, 0, 128, 600]) == [(0, 0, 0, 300), (1, 2, 0, 128), (1, 3, 0, 256), (2, 3, 256, 600)]
    assert work.slots.tolist() == [[0, 1], [2, 0], [3, 1], [4, 2]]


def test_a_length_of_64_bits_is_clipped_before_it_is_narrowed():
    lengths = torch.tensor([2**32 + 5, -(2**32) + 300, 2**62], device=DEVICE)
    work = kernels.plan_work(lengths, 8, 2, 64, torch.float16, capacity=300, shares=2)
    assert pieces_of(work, [300, 0, 300]) == [(0, 0, 0, 300), (1, 2, 0, 300)]


@pytest.mark.parametrize(
    ("n_q_heads", "n_kv_heads", "head_dim_v", "dtype", "q_len", "shares"),
    [
        (32, 8, 128, torch.bfloat16, 1, 33), (32, 8, 128, torch.float8_e4m3fn, 4, 33), (128, 1, 512, torch.bfloat16, 1, 66),
        (128, 1, 512, torch.bfloat16, 2, 33), (16, 1, 512, torch.float16, 1, 132), (28, 4, 128, torch.float32, 1, 66),
        (512, 512, 64, torch.float16, 1, 1), (32, 1, 128, torch.bfloat16, 8, 66), (128, 1, 128, torch.float32, 1, 33),
    ],
)  # fmt: skip
def test_shares_fill_the_gpu(monkeypatch, n_q_heads, n_kv_heads, head_dim_v, dtype, q_len, shares):
    """Two programs a processor, one where it is large: as many shares as that takes, one program for each row tile."""
    monkeypatch.setattr(sys.modules["kernels.work_list"], "device_of", lambda tensor: H200)
    work = kernels.plan_work(lens(DEVICE, 5), n_q_heads, n_kv_heads, head_dim_v, dtype, capacity=9, q_len=q_len)
    assert len(work.bounds) - 1 == shares
    tile = kernels.plan_decode(
        1, n_q_heads, n_kv_heads, 9, 128, head_dim_v, dtype.itemsize, H200, q_len=q_len, num_splits=1
    ).tile
    row_tiles = plan.head_tiles(n_q_heads, n_kv_heads, block_h=tile.rows, q_len=q_len)
    one = head_dim_v == 512 or tile.rows * head_dim_v >= 128 * 128
    assert plan.shares(row_tiles, 132, programs_per_sm=1 if one else 2) == shares


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shares", [1, 2, 7, 40])
def test_a_ragged_batch(random, device, shares, dtype):
    """One share for all, shares that end inside sequences, and more shares than there is work; partial states full of NaN."""
    lengths = lens(device, 0, 300, 1, 0, 520, 128)
    q, k, v = random(6, 3, 32, dtype=dtype), random(6, 1, 528, 32, dtype=dtype), random(6, 1, 528, 32, dtype=dtype)
    table, *pages = scatter(lengths, 16, by_token(k), by_token(v))
    work = kernels.plan_work(lengths, 3, 1, 32, dtype, capacity=528, shares=shares)
    elements = (shares + 6) * 3 * 33
    workspace = torch.full((elements + 4,), torch.nan, device=device)
    got = kernels.paged_decode(q, *pages, table, lengths, work=work, workspace=workspace)
    assert_state(got, reference.paged_decode(q, *pages, table, lengths), q, peer(q, k, v, lengths))
    assert torch.isnan(workspace[elements:]).all()
    assert_same(kernels.paged_decode(q, *pages, table, lengths, work=work), got)
    with pytest.raises(ValueError, match=f"at least {elements} elements, got {elements - 1}"):
        kernels.paged_decode(q, *pages, table, lengths, work=work, workspace=workspace[: elements - 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_several_new_tokens_and_heads(random, device, dtype):
    """Draft tokens that fall into two shares; groups of 5 over 2 KV heads, values narrower than keys."""
    lengths, q_len = lens(device, 129, 2, 258), 3
    q, k, v = random(3, q_len, 10, 24, dtype=dtype), random(3, 2, 260, 24, dtype=dtype), random(3, 2, 260, 20, dtype=dtype)
    table, *pages = scatter(lengths, 20, by_token(k), by_token(v))
    work = kernels.plan_work(lengths, 10, 2, 20, dtype, capacity=260, q_len=q_len, shares=4)
    got = kernels.paged_decode(q, *pages, table, lengths, work=work)
    assert_state(got, reference.paged_decode(q, *pages, table, lengths), q, peer(q, k, v, lengths))


def test_one_list_serves_all_layers(random, device):
    """Layers of other heads and widths, MLA too: the list knows lengths only, so a layer's own list would give the same."""
    lengths = lens(device, 200, 0, 140)
    work = kernels.plan_work(lengths, 4, 2, 32, torch.float32, capacity=208, shares=2)
    for n_q_heads, n_kv_heads, width in ((4, 2, 32), (3, 1, 16), (20, 1, 48)):
        q, k, v = random(3, n_q_heads, width), random(3, n_kv_heads, 208, width), random(3, n_kv_heads, 208, width)
        table, *pages = scatter(lengths, 16, by_token(k), by_token(v))
        own = kernels.plan_work(lengths, n_q_heads, n_kv_heads, width, q.dtype, capacity=208, shares=2)
        got = kernels.paged_decode(q, *pages, table, lengths, work=work)
        assert_same(got, kernels.paged_decode(q, *pages, table, lengths, work=own))
        assert_state(got, reference.paged_decode(q, *pages, table, lengths), q, peer(q, k, v, lengths))
    q, record = random(3, 5, 48), random(3, 208, 48)
    table, *pages = scatter(lengths, 16, record[..., :32], record[..., 32:])
    got = kernels.paged_mla_decode(q[..., :32], q[..., 32:], *pages, table, lengths, scale=0.2, work=work)
    wanted = reference.mla_decode(q[..., :32], q[..., 32:], record[..., :32], record[..., 32:], lengths, scale=0.2)
    assert_state(got, wanted, q, peer(q, record[:, None], record[:, None, :, :32], lengths, 0.2))


@pytest.mark.parametrize("lengths", [(), (0,), (0,) * 70])
def test_nothing_to_do(random, device, lengths):
    batch = len(lengths)
    work = kernels.plan_work(lens(device, *lengths), 4, 2, 16, torch.float32, capacity=48, shares=3)
    assert work.bounds.tolist() == [[0, 0]] * 4 and work.slots[:, 1].tolist() == [0] * batch
    pages = torch.full((1, 16, 2, 16), torch.nan, device=device)
    table = torch.full((batch, 3), -1, dtype=torch.int32, device=device)
    workspace = torch.full(((3 + batch) * 4 * 17,), torch.nan, device=device)
    out, lse = kernels.paged_decode(
        random(batch, 4, 16), pages, pages, table, lens(device, *lengths), work=work, workspace=workspace
    )
    assert out.shape == (batch, 4, 16) and (out == 0).all() and (lse == -torch.inf).all()


def test_compiles_without_a_graph_break(random, device):
    """The list made outside of the graph, as one that all layers take, and inside of it."""
    q, lengths = random(2, 4, 16), lens(device, 40, 3)
    table, *pages = scatter(lengths, 16, random(2, 48, 2, 16), random(2, 48, 2, 16))

    def plan_one(lengths):
        return kernels.plan_work(lengths, 4, 2, 16, torch.float32, capacity=48, shares=2)

    def step(q, lengths, work):
        return kernels.paged_decode(q, *pages, table, lengths, work=work or plan_one(lengths))

    work = plan_one(lengths)
    wanted = step(q, lengths, work)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert_same(compiled(q, lengths, work), wanted)
    assert_same(compiled(q, lengths, None), wanted)


def test_refusals(random, device):
    lengths = lens(device, 9, 1)

    def make(seq_lens=lengths, n_q_heads=4, n_kv_heads=2, head_dim_v=16, capacity=24, **options):
        return kernels.plan_work(seq_lens, n_q_heads, n_kv_heads, head_dim_v, torch.float32, capacity=capacity, **options)

    for error, words, options in [
        (TypeError, "seq_lens must be an int32 tensor", {"seq_lens": [9, 1]}),
        (TypeError, "seq_lens must be an int32 tensor", {"seq_lens": lengths.view(1, 2)}),
        (TypeError, "seq_lens must be int32", {"seq_lens": lengths.float()}),
        (ValueError, "multiple of the KV heads", {"n_q_heads": 5}),
        (ValueError, "head_dim_v must be at least 1", {"head_dim_v": 0}),
        (TypeError, "head_dim_v must be an integer", {"head_dim_v": 16.0}),
        (TypeError, "n_kv_heads must be an integer", {"n_kv_heads": None}),
        (TypeError, "q_len must be an integer", {"q_len": None}),
        (ValueError, "capacity must be an integer from 0 to below .*, got -1", {"capacity": -1}),
        (ValueError, "capacity must be an integer .*, got None", {"capacity": None}),
        (ValueError, "q_len must be at least 1", {"q_len": 0}),
        (ValueError, "shares must be at least 1", {"shares": 0}),
        (TypeError, "shares must be an integer", {"shares": 2.0}),
    ]:
        with pytest.raises(error, match=words):
            make(**options)

    q, pages, table = random(2, 4, 16), random(6, 8, 2, 16), lens(device, 0, 1, 2, 3, 4, 5).view(2, 3)
    work = make(shares=2)
    for error, words, options in [
        (ValueError, r"work.slots is \[3, 2\] on .*, but q has B = 2", {"work": make(lens(device, 1, 2, 3))}),
        (ValueError, "work.bounds is .* on meta", {"work": kernels.WorkList(work.bounds.to("meta"), work.slots)}),
        (ValueError, "work.slots is .* on meta", {"work": kernels.WorkList(work.bounds, work.slots.to("meta"))}),
        (TypeError, "work.bounds must be a contiguous int32", {"work": kernels.WorkList(work.bounds.long(), work.slots)}),
        (TypeError, "work.slots must be a contiguous int32", {"work": kernels.WorkList(work.bounds, work.slots.T)}),
        (ValueError, "num_splits must be None with it, got 2", {"work": work, "num_splits": 2}),
    ]:
        with pytest.raises(error, match=words):
            kernels.paged_decode(q, pages, pages, table, lengths, **options)
        with pytest.raises(error, match=words):
            kernels.paged_mla_decode(q, q, pages[:, :, 0], pages[:, :, 0], table, lengths, scale=1.0, **options)


def test_a_list_of_other_lengths_is_refused_on_request(random, device):
    """It would leave tokens out. On a CPU it is always compared with the lengths, on a GPU when asked."""
    q, pages, table = random(2, 4, 16), random(6, 128, 2, 16), lens(device, 0, 1, 2, 3, 4, 5).view(2, 3)
    work = kernels.plan_work(lens(device, 129, 1), 4, 2, 16, q.dtype, capacity=384, shares=2)
    kernels.paged_decode(q, pages, pages, table, lens(device, 129, 1), work=work, validate=True)
    for options in ({"validate": True}, *([] if COMPILED else [{}])):
        with pytest.raises(ValueError, match="work was made for other lengths"):
            kernels.paged_decode(q, pages, pages, table, lens(device, 128, 129), work=work, **options)
        with pytest.raises(ValueError, match="work was made for other lengths"):
            kernels.paged_mla_decode(
                q, q, pages[:, :, 0], pages[:, :, 1], table, lens(device, 1, 129), scale=1.0, work=work, **options
            )


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: graph capture")
def test_graph_capture_makes_the_list_of_the_lengths_it_finds(random, device):
    """Captured at 8 tokens a sequence; at each replay the same graph makes the list of other lengths and works it off."""
    q, k, v = (random(3, *shape, dtype=torch.bfloat16) for shape in ((8, 64), (2, 4096, 64), (2, 4096, 64)))
    lengths = lens(device, 8, 8, 8)
    table, *pages = scatter(lens(device, 4096, 4096, 4096), 16, by_token(k), by_token(v))

    def step():
        work = kernels.plan_work(lengths, 8, 2, 64, q.dtype, capacity=4096)
        return kernels.paged_decode(q, *pages, table, lengths, work=work)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    for values in ((4096, 4096, 4096), (0, 0, 0), (4096, 0, 77), (1, 4096, 8)):
        lengths.copy_(lens(device, *values))
        graph.replay()
        assert_state(got, reference.decode(q, k, v, lengths), q, peer(q, k, v, lengths))


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: lengths stay on it")
def test_a_length_outside_the_cache_stays_inside(random, device):
    q, pages, table = random(2, 4, 32), random(6, 8, 2, 32), lens(device, 5, 1, 2, 3, 4, 0).view(2, 3)
    results = []
    for lengths in (lens(device, 10**9, -5), lens(device, 24, 0)):
        work = kernels.plan_work(lengths, 4, 2, 32, q.dtype, capacity=24, shares=3)
        results.append(kernels.paged_decode(q, pages, pages, table, lengths, work=work))
    assert_same(*results)


@pytest.mark.skipif(not COMPILED, reason="needs a CUDA GPU: nothing may wait for it")
def test_the_host_waits_for_nothing(random, device):
    q, k, v, lengths = random(3, 4, 64), random(3, 528, 2, 64), random(3, 528, 2, 64), lens(device, 8, 500, 0)
    table, *pages = scatter(lengths, 16, k, v)

    def step():
        work = kernels.plan_work(lengths, 4, 2, 64, q.dtype, capacity=528)
        return kernels.paged_decode(q, *pages, table, lengths, work=work)

    wanted = step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same(got, wanted)


def test_a_list_of_other_lengths_or_capacity_is_refused(random, device):
    pages, q = random(32, 16, 2, 16), random(2, 4, 16)
    table = torch.arange(32, dtype=torch.int32, device=device).view(2, 16)
    short, long = (torch.tensor(n, dtype=torch.int32, device=device) for n in ([5, 5], [256, 200]))

    def plan(lengths, capacity=256):
        return kernels.plan_work(lengths, 4, 2, 16, torch.float32, capacity=capacity, shares=4)

    for lengths, work in ((long, plan(short)), (short, plan(long)), (long, plan(long, 128))):
        with pytest.raises(ValueError, match="work was made for other lengths or another capacity"):
            kernels.paged_decode(q, pages, pages, table, lengths, work=work, validate=True)
    kernels.paged_decode(q, pages, pages, table, long, work=plan(long), validate=True)
