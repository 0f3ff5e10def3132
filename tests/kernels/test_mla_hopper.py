"""MLA decode in Gluon: compiled ahead of time anywhere; on a Hopper GPU against the definition and the portable kernel."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

import kernels
from kernels import hopper, mla_hopper, plan, reference
from tests.kernels.decoding import assert_alike, assert_repeats, assert_same, assert_state, lens, scatter, variants
from tests.kernels.test_mla import sdpa

on_hopper = pytest.mark.skipif(not hopper.present(), reason="needs a Hopper GPU, and a version of Triton that was tried")
LENGTHS = 0, 1, 63, 64, 65, 127, 128, 129, 500, 512


@pytest.mark.skipif(kernels.MODE == "reference", reason="needs Triton's compiler")
def test_machine_code():
    """Every product is queued without a wait of its own, nothing is spilled in the loops, and a program fits."""
    program = pathlib.Path(__file__).with_name("ahead_of_time_mla_hopper.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(cases) == 3
    for case in cases:
        assert case["shared"] <= case["limit"], case
        # Each consumer: 36 products of 16 columns for the scores and 2 times 4 of 16 tokens for the output; three waits.
        assert (case["products"], case["waits"]) == (2 * (36 + 8), 2 * 3), case
        # A share keeps more numbers than a split: some wait in memory while it multiplies.
        spilled = [loop["spills"] for loop in case["loops"] if loop["products"] == 44]
        assert len(spilled) >= 2
        assert case["spills"] == 0 or case["case"].startswith("work list") and sorted(spilled)[1] <= 4, case


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        ({}, True), ({"rows": (1, 1)}, True), ({"rows": (2, 8)}, True), ({"rows": (1, 16), "capacity": 64}, False),
        ({"rows": (1, 16), "num_splits": 2}, False), ({"rows": (1, 16), "num_splits": 64}, True), ({"num_splits": 2}, True),
        ({"rows": (1, 16), "num_splits": 2, "page_size": 16}, True), ({"q_rope": None}, False), ({"page_size": 8}, True),
        ({"page_size": 48}, True), ({"page_size": 192}, True), ({"page_size": 4}, False), ({"page_size": 100}, False),
        ({"q_rope": 32}, False), ({"q_latent": 256}, False), ({"latent": torch.float8_e4m3fn}, False),
    ],
    ids=str,
)  # fmt: skip
def test_what_it_takes(monkeypatch, changed, taken):
    """The rows, the widths, the dtype and the pages; tensors themselves are `hopper.py`'s to judge."""
    monkeypatch.setattr(mla_hopper, "available", lambda *tensors: len(tensors) == 4)
    given = {"rows": (1, 64), "q_latent": 512, "q_rope": 64, "latent": torch.float16} | changed
    given = {"page_size": 0, "capacity": 8192, "num_splits": 1} | given
    tokens, heads = given["rows"]
    tensors = {
        "q_latent": torch.empty(2, tokens, heads, given["q_latent"], dtype=torch.float16),
        "q_rope": None if given["q_rope"] is None else torch.empty(2, tokens, heads, given["q_rope"], dtype=torch.float16),
        "latent": torch.empty(2, 1, 8, 512, dtype=given["latent"]),
        "k_rope": torch.empty(2, 1, 8, 64, dtype=torch.float16),
    }
    call = {name: given[name] for name in ("page_size", "capacity", "num_splits")}
    assert mla_hopper.faster(**tensors, **call) == taken


@pytest.mark.parametrize("page_size", [None, 64])
def test_it_is_planned_with_its_own_tiles(page_size):
    """Whatever tile the portable kernel would have: as many row tiles as this one has."""
    h200 = kernels.Device((9, 0), 132, 227 * 1024)
    for tokens in range(1, 9):
        for n_q_heads in range(1, 129):
            launch = kernels.plan_decode(
                2, n_q_heads, 1, 8192, 576, 512, 2, h200, q_len=tokens, num_splits=1, shared_width=512, page_size=page_size
            )
            assert launch.row_tiles == plan.ceil_div(tokens * n_q_heads, mla_hopper.TILE_ROWS), (tokens, n_q_heads)


@pytest.fixture
def launches(monkeypatch):
    """How often the kernel in Gluon was launched."""
    seen = []
    launch = mla_hopper.launch
    monkeypatch.setattr(mla_hopper, "launch", lambda *arguments: (seen.append(1), launch(*arguments)))
    return seen


@pytest.fixture
def step(random):
    """Queries and a cache of a decode step at DeepSeek's widths, NaN in all dead slots."""

    def make(seq_lens, tokens, n_q_heads, context_len=512, dtype=torch.bfloat16):
        batch = len(seq_lens)
        record = random(batch, context_len, 576, dtype=dtype)
        for b, n in enumerate(seq_lens.tolist()):
            record[b, n:] = torch.nan
        shape = (batch, n_q_heads) if tokens == 1 else (batch, tokens, n_q_heads)
        return random(*shape, 512, dtype=dtype), random(*shape, 64, dtype=dtype), record[..., :512], record[..., 512:]

    return make


def check(got, q_latent, q_rope, latent, k_rope, seq_lens):
    wanted = reference.mla_decode(q_latent, q_rope, latent, k_rope, seq_lens, scale=0.1)
    assert_state(got, wanted, q_latent, sdpa(q_latent, q_rope, latent, k_rope, seq_lens, 0.1))


@on_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize(
    ("tokens", "n_q_heads"), [(1, 1), (1, 16), (1, 32), (1, 40), (1, 64), (1, 96), (1, 128), (2, 16), (2, 64), (2, 96), (8, 16)]
)
def test_heads_tokens_and_lengths(step, launches, device, tokens, n_q_heads, num_splits, dtype):
    lengths = lens(device, *LENGTHS)
    given = step(lengths, tokens, n_q_heads, dtype=dtype)
    check(kernels.mla_decode(*given, lengths, scale=0.1, num_splits=num_splits), *given, lengths)
    assert launches


@on_hopper
@pytest.mark.parametrize("page_size", [8, 16, 48, 64, 128, 192])
@pytest.mark.parametrize("tokens", [1, 2])
def test_pages(step, launches, device, tokens, page_size):
    """Pages in any order, NaN in their dead slots, and nonsense in the entries that are not in use."""
    lengths = lens(device, *LENGTHS)
    given = step(lengths, tokens, 64)
    table, *pages = scatter(lengths, page_size, *given[2:], garbage=2**31 - 1)
    for options in ({"num_splits": 1}, {"num_splits": 2}):
        check(kernels.paged_mla_decode(*given[:2], *pages, table, lengths, scale=0.1, **options), *given, lengths)
    assert len(launches) == 2


@on_hopper
@pytest.mark.parametrize("shares", [1, 3, 20, None])
def test_shares_of_a_work_list(step, launches, device, shares):
    lengths = lens(device, 0, *LENGTHS, 0)
    given = step(lengths, 1, 128)
    table, *pages = scatter(lengths, 64, *given[2:])
    work = kernels.plan_work(lengths, 128, 1, 512, torch.bfloat16, capacity=512, shares=shares)
    check(kernels.paged_mla_decode(*given[:2], *pages, table, lengths, scale=0.1, work=work), *given, lengths)
    assert launches


@on_hopper
def test_dead_slots_change_nothing(step, device):
    lengths = lens(device, *LENGTHS)
    q_latent, q_rope, latent, k_rope = step(lengths, 1, 128)
    zeros = [torch.nan_to_num(x) for x in (latent, k_rope)]
    for num_splits in (1, 2):
        results = [
            kernels.mla_decode(q_latent, q_rope, *cache, lengths, scale=0.1, num_splits=num_splits)
            for cache in ((latent, k_rope), zeros)
        ]
        assert_same(*results)


@on_hopper
def test_without_lengths_every_token_counts(step, launches, device):
    lengths = lens(device, 200, 200)
    given = step(lengths, 1, 64, context_len=200)
    assert_same(kernels.mla_decode(*given, scale=0.1), kernels.mla_decode(*given, lengths, scale=0.1))
    assert len(launches) == 2


@on_hopper
def test_other_layouts(step, launches, device):
    """Strides that the copy engine takes, and strides that it does not, which run in the portable form."""
    lengths = lens(device, *LENGTHS)
    q_latent, q_rope, latent, k_rope = step(lengths, 1, 64)
    wanted = kernels.mla_decode(q_latent, q_rope, latent, k_rope, lengths, scale=0.1)
    heads_first = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q_latent, q_rope)]
    tokens_first = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (latent, k_rope)]
    odd = torch.stack([lengths, lengths + 99], 1).flatten().long()[::2]
    assert_same(kernels.mla_decode(*heads_first, *tokens_first, odd, scale=0.1), wanted)
    assert len(launches) == 2
    shifted = latent.new_full((*latent.shape[:2], 580), torch.nan)
    shifted[..., 1:577] = torch.cat([latent, k_rope], -1)
    misplaced = shifted[..., 1:513], shifted[..., 513:577]
    assert_alike(kernels.mla_decode(q_latent, q_rope, *misplaced, lengths, scale=0.1), wanted)
    with hopper.portable():
        assert_alike(kernels.mla_decode(q_latent, q_rope, latent, k_rope, lengths, scale=0.1), wanted)
    assert len(launches) == 2


@on_hopper
def test_compiles_without_a_graph_break(step, device):
    lengths = lens(device, *LENGTHS)
    q_latent, q_rope, *cache = step(lengths, 1, 64)

    def decode(q_latent, q_rope):
        return kernels.mla_decode(q_latent, q_rope, *cache, lengths, scale=0.1)

    compiled = torch.compile(decode, fullgraph=True, backend="aot_eager")
    assert_same(compiled(q_latent, q_rope), decode(q_latent, q_rope))


@on_hopper
@pytest.mark.parametrize(("page_size", "listed"), [(0, False), (16, False), (64, True)])
def test_a_thousand_runs_are_one(step, device, page_size, listed):
    """Bit for bit: whoever comes first at a barrier, the sums run in one order."""
    lengths = lens(device, *LENGTHS, 0, 500, 512)
    q_latent, q_rope, *cache = step(lengths, 1, 128)

    def run():
        if not page_size:
            return kernels.mla_decode(q_latent, q_rope, *cache, lengths, scale=0.1)
        work = kernels.plan_work(lengths, 128, 1, 512, torch.bfloat16, capacity=512, shares=5) if listed else None
        return kernels.paged_mla_decode(q_latent, q_rope, *pages, table, lengths, scale=0.1, work=work)

    table, *pages = scatter(lengths, page_size or 64, *cache)
    assert_repeats(run, device)


@on_hopper
def test_lengths_and_batches_compile_nothing_new(random, device):
    record = random(16, 4096, 576, dtype=torch.float16)

    def sweep():
        for n in (1, 64, 100, 1000, 4095, 4096):
            for batch in (1, 3, 16):
                queries = random(batch, 64, 512, dtype=torch.float16), random(batch, 64, 64, dtype=torch.float16)
                lengths = torch.full((batch,), n, dtype=torch.int32, device=device)
                kernels.mla_decode(*queries, record[:batch, :n, :512], record[:batch, :n, 512:], lengths, scale=0.1)

    before = variants(mla_hopper.mla_kernel)
    sweep()
    assert variants(mla_hopper.mla_kernel)[0] - before[0] <= 4


@pytest.mark.skipif(kernels.MODE != "compiled" or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_a_gpu_that_is_not_current(step, random):
    lengths = lens("cuda:1", 65, 500)
    given = [x.to("cuda:1") for x in step(lens("cuda", 65, 500), 1, 64)]
    check(kernels.mla_decode(*given, lengths, scale=0.1), *given, lengths)
