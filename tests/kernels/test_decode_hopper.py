"""Decode of many rows in Gluon: compiled ahead of time anywhere, and on a Hopper GPU against the definition."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import kernels
from kernels import decode_hopper, hopper, reference
from tests.kernels.decoding import (
    assert_alike,
    assert_repeats,
    assert_same,
    assert_state,
    by_token,
    lens,
    peer,
    scatter,
    variants,
)

HERE = torch.empty(0, device="cuda" if kernels.MODE == "compiled" else "cpu")
on_hopper = pytest.mark.skipif(
    kernels.MODE != "compiled" or kernels.device_of(HERE).capability != (9, 0) or hopper.VERSION not in hopper.TESTED,
    reason="needs a Hopper GPU, and a version of Triton that was tried",
)
H200 = kernels.Device(capability=(9, 0), sm_count=132, shared_memory=227 * 1024)
LENGTHS = 0, 1, 5, 8, 127, 128, 129, 135, 256, 385, 639, 640


@pytest.mark.skipif(kernels.MODE == "reference", reason="needs Triton's compiler")
def test_machine_code():
    """Products run while others are waited for, the loops keep their numbers in registers, and a program fits."""
    program = pathlib.Path(__file__).with_name("ahead_of_time_decode_hopper.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == 3
    for case in cases:
        assert case["shared"] <= case["limit"], case
        # Each consumer: 8 products of 16 columns for the scores and 8 of 16 tokens for the output, in two loops, and half of
        # them before and after.
        assert (case["products"], case["waits"]) == (2 * 3 * 16, 2 * 6), case
        assert case["spills"] == 0 and len(case["loops"]) == 4, case


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        ({}, True), ({"group_size": 128, "q_len": 1}, True), ({"group_size": 48}, True), ({"group_size": 4}, False),
        ({"group_size": 4, "q_len": 9}, True),
        ({"group_size": 2, "q_len": 17}, True), ({"group_size": 1, "q_len": 33}, True), ({"group_size": 12}, False),
        ({"group_size": 100, "q_len": 1}, False), ({"q_len": 1}, False), ({"head_dim_qk": 192}, False),
        ({"head_dim_v": 64}, False),
        ({"itemsize": 1}, False), ({"itemsize": 4}, False), ({"page_size": 8}, True), ({"page_size": 48}, True),
        ({"page_size": 256}, True), ({"page_size": 4}, False), ({"page_size": 100}, False),
        ({"device": kernels.Device((10, 0), 148, 227 * 1024)}, False),
    ],
    ids=str,
)  # fmt: skip
def test_what_it_is_faster_for(changed, taken):
    """Rows, widths, the dtype and the pages. What it is not for is planned as on any GPU."""
    step = {"group_size": 32, "q_len": 8, "head_dim_qk": 128, "head_dim_v": 128, "itemsize": 2} | changed
    step = {"device": H200, "page_size": None} | step
    assert decode_hopper.faster(**step) == taken
    widths = step["head_dim_qk"], step["head_dim_v"]
    planned = kernels.plan_decode(
        1, step["group_size"], 1, 65536, *widths, step["itemsize"], step["device"],
        q_len=step["q_len"], page_size=step["page_size"],
    )  # fmt: skip
    assert (planned.tile == decode_hopper.TILE) == taken


def test_how_it_is_planned():
    """Tiles of 128 rows: half as many as in plain Triton, so twice the splits; in a work list, one share for each SM."""
    shapes = 1, 32, 1, 66 * 1024, 128, 128, 2, H200
    planned, portable = (kernels.plan_decode(*shapes, q_len=8, portable=portable) for portable in (False, True))
    assert (planned.tile.rows, planned.row_tiles, planned.num_splits, planned.programs) == (128, 2, 66, 132)
    assert (portable.tile.rows, portable.row_tiles, portable.num_splits, portable.programs) == (64, 4, 33, 132)


@pytest.mark.parametrize(
    ("batch", "group_size", "context_len", "num_splits", "taken"),
    [
        (1, 128, 8192, None, False), (1, 128, 65536, None, True), (1, 64, 8192, None, True), (64, 128, 128, None, False),
        (128, 128, 128, None, True), (1, 128, 8192, 2, True), (1, 128, 8192, 64, False),
    ],
)  # fmt: skip
def test_walks_of_one_block(batch, group_size, context_len, num_splits, taken):
    """They go to the portable kernel, if there are several of its tiles, and an SM for each."""
    planned = kernels.plan_decode(batch, group_size, 1, context_len, 128, 128, 2, H200, num_splits=num_splits)
    assert (planned.tile == decode_hopper.TILE) == taken


def test_boxes():
    """Queries of a consumer: several new tokens of a small group, a part of a large one, or a few heads at a time."""
    assert [decode_hopper.query_box(n) for n in (8, 16, 32, 64, 128, 192, 96, 48, 40, 12, 4, 1, 7)] == [
        (8, 8), (4, 16), (2, 32), (1, 64), (1, 64), (1, 64), (1, 32), (1, 16), (1, 8), (1, 4), (16, 4), (64, 1), (1, 1)
    ]  # fmt: skip
    assert [hopper.box_rows(n, 128) for n in (0, 8, 16, 48, 64, 128, 256, 192)] == [128, 8, 16, 16, 64, 128, 128, 64]


@pytest.fixture
def launches(monkeypatch):
    """How often the kernel in Gluon was launched."""
    seen = []
    launch = decode_hopper.launch
    monkeypatch.setattr(decode_hopper, "launch", lambda *arguments: (seen.append(1), launch(*arguments)))
    return seen


@pytest.fixture
def step(random):
    """Queries and a cache of a decode step, NaN in all dead slots."""

    def make(seq_lens, tokens, n_q_heads, n_kv_heads=1, context_len=640, dtype=torch.bfloat16):
        batch = len(seq_lens)
        cache = [random(batch, n_kv_heads, context_len, 128, dtype=dtype) for _ in range(2)]
        for b, n in enumerate(seq_lens.tolist()):
            for x in cache:
                x[b, :, n:] = torch.nan
        shape = (batch, n_q_heads, 128) if tokens == 1 else (batch, tokens, n_q_heads, 128)
        return random(*shape, dtype=dtype), *cache

    return make


def check(got, q, k, v, seq_lens, scale=None):
    wanted = reference.decode(q, k, v, seq_lens, scale=scale or 128**-0.5)
    assert_state(got, wanted, q, peer(q, k, v, seq_lens, scale))


@on_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize(
    ("tokens", "n_q_heads", "n_kv_heads"),
    [
        (4, 32, 1), (5, 32, 1), (8, 32, 1), (8, 32, 2), (8, 64, 4), (1, 128, 1), (3, 128, 1), (1, 192, 1), (2, 96, 1),
        (8, 48, 2), (8, 40, 1), (6, 80, 2), (7, 24, 1), (8, 16, 1),
    ],
)  # fmt: skip
def test_heads_tokens_and_lengths(step, launches, device, tokens, n_q_heads, n_kv_heads, num_splits, dtype):
    lengths = lens(device, *LENGTHS)
    given = step(lengths, tokens, n_q_heads, n_kv_heads, dtype=dtype)
    check(kernels.decode(*given, lengths, num_splits=num_splits), *given, lengths)
    assert launches


@on_hopper
@pytest.mark.parametrize("page_size", [8, 16, 48, 64, 128, 256])
@pytest.mark.parametrize(("tokens", "n_q_heads", "n_kv_heads"), [(8, 32, 1), (4, 64, 2)])
def test_pages(step, launches, device, tokens, n_q_heads, n_kv_heads, page_size):
    """Pages in any order, NaN in their dead slots, and nonsense in the entries that are not in use."""
    lengths = lens(device, *LENGTHS)
    q, *cache = step(lengths, tokens, n_q_heads, n_kv_heads)
    for splits, table_dtype in ((1, torch.int32), (2, torch.int64)):
        table, *pages = scatter(lengths, page_size, *map(by_token, cache), garbage=2**31 - 1, table_dtype=table_dtype)
        got = kernels.paged_decode(q, *pages, table, lengths, num_splits=splits)
        check(got, q, *cache, lengths)
    assert len(launches) == 2


@on_hopper
@pytest.mark.parametrize("shares", [1, 3, 20, None])
@pytest.mark.parametrize(("tokens", "n_q_heads", "n_kv_heads"), [(5, 32, 1), (8, 64, 2)])
def test_shares_of_a_work_list(step, launches, device, tokens, n_q_heads, n_kv_heads, shares):
    lengths = lens(device, 0, *LENGTHS, 0)
    q, *cache = step(lengths, tokens, n_q_heads, n_kv_heads)
    table, *pages = scatter(lengths, 64, *map(by_token, cache))
    work = kernels.plan_work(
        lengths, n_q_heads, n_kv_heads, 128, q.dtype, capacity=table.shape[1] * 64, q_len=tokens, shares=shares
    )
    check(kernels.paged_decode(q, *pages, table, lengths, work=work), q, *cache, lengths)
    assert launches


@on_hopper
def test_dead_slots_change_nothing(step, device):
    lengths = lens(device, *LENGTHS)
    q, *cache = step(lengths, 8, 32)
    zeros = [torch.nan_to_num(x) for x in cache]
    for num_splits in (1, 2):
        assert_same(*(kernels.decode(q, *x, lengths, num_splits=num_splits) for x in (cache, zeros)))


@on_hopper
def test_without_lengths_every_token_counts(step, launches, device):
    lengths = lens(device, 200, 200)
    given = step(lengths, 4, 32, context_len=200)
    assert_same(kernels.decode(*given), kernels.decode(*given, lengths))
    assert len(launches) == 2


@on_hopper
def test_large_scores(step, device):
    """Every row's maximum moves, and scores beyond what exp2 can hold are no harm."""
    lengths = lens(device, *LENGTHS)
    q, k, v = step(lengths, 8, 32)
    k *= torch.linspace(-9, 9, 640, device=device)[:, None].to(k.dtype)
    check(kernels.decode(q, k, v, lengths, scale=1.0, num_splits=1), q, k, v, lengths, 1.0)


@on_hopper
def test_other_layouts(step, launches, device):
    """Strides that the copy engine takes, and strides that it does not, which run in the portable form."""
    lengths = lens(device, *LENGTHS)
    q, k, v = step(lengths, 4, 64, 2)
    wanted = kernels.decode(q, k, v, lengths, num_splits=2)
    heads_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    tokens_first = [x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for x in (k, v)]
    odd = torch.stack([lengths, lengths + 99], 1).flatten().long()[::2]
    assert_same(kernels.decode(heads_first, *tokens_first, odd, num_splits=2), wanted)
    assert len(launches) == 2
    columns_apart = v.transpose(2, 3).contiguous().transpose(2, 3)
    shifted = k.new_full((*k.shape[:3], 132), torch.nan)
    shifted[..., 1:129] = k
    assert_alike(kernels.decode(q, shifted[..., 1:129], v, lengths, num_splits=2), wanted)
    assert_alike(kernels.decode(q, k, columns_apart, lengths, num_splits=2), wanted)
    with hopper.portable():
        assert_alike(kernels.decode(q, k, v, lengths, num_splits=2), wanted)
    assert len(launches) == 2


@on_hopper
def test_the_workspace_that_was_planned_is_enough(step, device):
    """Also where strides bring the portable form, whose own tiles would be cut otherwise."""
    lengths = lens(device, 640, 600)
    q, k, v = step(lengths, 8, 32)
    planned = kernels.plan_decode(2, 32, 1, 640, 128, 128, 2, kernels.device_of(q), q_len=8, num_splits=2)
    assert planned.tile == decode_hopper.TILE and planned.num_splits == 2
    size = kernels.plan.decode_workspace(2, 8, 32, 128, planned.num_splits)
    columns_apart = v.transpose(2, 3).contiguous().transpose(2, 3)
    for values in (v, columns_apart):
        workspace = torch.full((size,), torch.nan, device=device)
        check(kernels.decode(q, k, values, lengths, num_splits=2, workspace=workspace), q, k, v, lengths)
        assert not workspace.isnan().any()


@on_hopper
def test_compiles_without_a_graph_break(step, device):
    lengths = lens(device, *LENGTHS)
    q, *cache = step(lengths, 8, 32)

    def decode(q):
        return kernels.decode(q, *cache, lengths)

    assert_same(torch.compile(decode, fullgraph=True, backend="aot_eager")(q), decode(q))


@on_hopper
@pytest.mark.parametrize(("page_size", "listed"), [(0, False), (16, False), (64, True)])
def test_a_thousand_runs_are_one(step, device, page_size, listed):
    """Bit for bit: whoever comes first at a barrier, the sums run in one order."""
    lengths = lens(device, *LENGTHS, 0, 500, 640)
    q, *cache = step(lengths, 7, 32, 1)

    def run():
        if not page_size:
            return kernels.decode(q, *cache, lengths)
        work = kernels.plan_work(lengths, 32, 1, 128, q.dtype, capacity=640, q_len=7, shares=5) if listed else None
        return kernels.paged_decode(q, *pages, table, lengths, work=work)

    table, *pages = scatter(lengths, page_size or 64, *map(by_token, cache))
    assert_repeats(run, device)


@on_hopper
def test_lengths_and_batches_compile_nothing_new(random, device):
    k, v = (random(16, 1, 4096, 128, dtype=torch.float16) for _ in range(2))

    def sweep():
        for n in (8, 64, 100, 1000, 4095, 4096):
            for batch in (1, 3, 16):
                for tokens in (4, 7):
                    q = random(batch, tokens, 32, 128, dtype=torch.float16)
                    lengths = torch.full((batch,), n, dtype=torch.int32, device=device)
                    kernels.decode(q, k[:batch, :, :n], v[:batch, :, :n], lengths)

    before = variants(decode_hopper.many_rows_kernel)
    sweep()
    assert variants(decode_hopper.many_rows_kernel)[0] - before[0] <= 4
