"""The kernels written in Gluon: what their machine code shows, when they are taken, and on a Hopper GPU that they are right.

They run behind the functions that `test_forward.py` and `test_backward.py` test. Here are the shapes that bring them to work:
widths that they have, more rows than one tile, lengths that fill no tile, strides of every kind.
"""

import itertools
import json
import math
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import kernels
from kernels import backward_hopper, decode_hopper, forward_hopper, hopper
from kernels._mode import launching
from kernels.backward import attention_backward
from kernels.backward_hopper import scale_kernel
from tests.kernels.test_backward import compare as compare_gradients
from tests.kernels.test_forward import compare as compare_attention

on_hopper = pytest.mark.skipif(not hopper.present(), reason="needs a GPU of compute capability 9.0")
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(scope="module")
def compiled():
    """What each kernel's machine code shows, compiled ahead of time: no such GPU needed."""
    program = pathlib.Path(__file__).with_name("ahead_of_time_hopper.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


SPILLS = {"gradients 128": 16, "gradients 192/128": 48}


@pytest.mark.skipif(hopper.VERSION not in hopper.TESTED, reason="needs a Triton that these kernels were tried with")
def test_machine_code(compiled):
    """Room in shared memory, registers for everything in the loops, and products that run while others are waited for.

    When the compiler cannot keep a product in flight it waits after each instruction of it: as many waits as instructions.
    """
    assert len(compiled) == 7 + 4
    for case in compiled[:7]:
        assert case["shared"] <= case["limit"], case
        assert case["waits"] * 6 <= case["products"], case
        assert len(case["loops"]) >= 2, case  # each consumer has its own
        for loop in case["loops"]:
            assert loop["spills"] == 0, case
        # What the backward keeps outside its loops, the roles' own state, has no room in the registers.
        assert case["spills"] <= next((n for name, n in SPILLS.items() if case["case"].startswith(name)), 0), case


def test_what_is_not_hoppers_is_left_alone(random, monkeypatch):
    tensors = [random(1, 2, 128, 128, dtype=torch.float16) for _ in range(3)]
    device = kernels.Device((9, 0), 132, 227 * 1024)
    monkeypatch.setattr(hopper, "MODE", "compiled")
    monkeypatch.setattr(hopper, "VERSION", hopper.TESTED[0])
    monkeypatch.setattr(hopper, "device_of", lambda tensor: device)
    assert forward_hopper.faster(*tensors) and not backward_hopper.faster(*tensors, tensors[0])
    longer = [random(1, 2, 129, 128, dtype=torch.float16) for _ in range(3)]
    assert backward_hopper.faster(*longer, longer[0])
    wide = [random(1, 2, 129, 192, dtype=torch.float16) for _ in range(2)]
    assert backward_hopper.faster(*wide, *longer[:2]) and not backward_hopper.faster(*wide, wide[0], wide[0])
    with hopper.portable():
        assert not forward_hopper.faster(*tensors)
    q, k, v = tensors
    assert not forward_hopper.faster(q[:, :, :64], k, v)
    for refused in (
        [x.float() for x in tensors],  # 32 bits
        [q[..., :64], k[..., :64], v],  # widths
        [q, k, v[..., :64]],
        [q, k[:, :1].expand(-1, 2, -1, -1), v],  # a step of 0
        [q, k, v.transpose(2, 3).contiguous().transpose(2, 3)],  # columns apart
        [q, torch.empty(1, 2, 128, 132, dtype=q.dtype, device=q.device)[..., 2:130], v],  # no multiple of 16 bytes
    ):
        assert not forward_hopper.faster(*refused)
    with deterministic():
        assert forward_hopper.faster(*longer) and not backward_hopper.faster(*longer, longer[0])
    device = kernels.Device((10, 0), 148, 227 * 1024)
    assert not forward_hopper.faster(*tensors)


def test_another_triton_is_said_once(random, monkeypatch):
    q = random(1, 1, 128, 128, dtype=torch.float16)
    monkeypatch.setattr(hopper, "MODE", "compiled")
    monkeypatch.setattr(hopper, "VERSION", "9.9")
    monkeypatch.setattr(hopper, "device_of", lambda tensor: kernels.Device((9, 0), 132, 227 * 1024))
    monkeypatch.setattr(hopper._warn_once, "__defaults__", ([],))
    with pytest.warns(UserWarning, match="this is 9.9") as warned:
        assert not any(hopper.available(q, q) for _ in range(3))
    assert len(warned) == 1


class deterministic:
    def __enter__(self):
        self.before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_):
        torch.use_deterministic_algorithms(self.before)


@pytest.mark.parametrize(
    ("n_kv_heads", "group_size", "row_tiles", "causal", "heads"),
    [
        (32, 1, 64, True, 16), (16, 4, 64, True, 16), (64, 1, 32, False, 16), (1024, 1, 4, False, 16),  # long, or no mask
        (1024, 1, 4, True, 64), (256, 4, 4, True, 16), (512, 1, 8, True, 32),  # short: tiles decide
        (50, 1, 64, True, 17), (31, 1, 64, True, 31), (5, 8, 64, True, 5), (1, 1, 1, True, 1),  # no narrow last section
    ],
)  # fmt: skip
def test_heads_go_together(n_kv_heads, group_size, row_tiles, causal, heads):
    found = forward_hopper.section_heads(n_kv_heads, group_size * row_tiles, causal)
    assert found == heads
    assert n_kv_heads % found == 0 or n_kv_heads % found > found // 2


def fixed_order(n_heads, row_tiles, programs, section=None):
    """The tiles of each program, (row tile, head), as its producer asks for them without a counter: in sections or in pairs."""
    n_paired = 0 if section else forward_hopper.paired_heads(n_heads, row_tiles, programs)
    sizes = forward_hopper.Sizes(n_heads, 1, 0, 0, n_heads, n_heads * row_tiles, n_paired, section or n_heads)
    for program in range(programs):
        tiles = []
        while True:
            place = forward_hopper.place_of(len(tiles), program, programs, n_paired * row_tiles)
            if place >= sizes.n_tiles:
                break
            tiles.append(forward_hopper.row_tile_of(place, row_tiles, sizes))
        yield tiles


@pytest.mark.skipif(kernels.MODE == "compiled", reason="kernels are text only where no GPU compiles them")
@given(st.integers(1, 700), st.integers(1, 16), st.integers(1, 140), st.integers(0, 70), st.booleans())
@example(1024, 4, 132, 0, True)
@example(512, 8, 132, 0, False)
@example(1, 1, 1, 0, False)
def test_a_fixed_order_has_each_tile_once_and_is_even(n_heads, row_tiles, programs, offset, in_sections):
    """Whatever the numbers of heads, tiles and programs; in sections those of whole rounds.

    A tile's length is counted in blocks of keys, ``offset`` of them to the left of all queries.
    """
    section = 2 * programs // math.gcd(2 * programs, row_tiles) if in_sections else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hopper.gl, "minimum", min, raising=False)
        tiles = list(fixed_order(n_heads, row_tiles, programs, section))
    assert sorted(itertools.chain(*tiles)) == [(tile, head) for tile in range(row_tiles) for head in range(n_heads)]
    for cost in (offset, offset + 1, offset + 2) if row_tiles <= programs else ():  # a tile itself costs something too
        costs = [sum(tile + 1 + cost for tile, _ in of_program) for of_program in tiles]
        assert max(costs) <= sum(costs) / programs + row_tiles + cost


@pytest.mark.parametrize(
    ("q_len", "kv_len", "n_heads", "causal", "wide", "order"),
    [
        (8192, 8192, 8, True, False, (0, 8, False)), (512, 100, 132, False, True, (0, 132, False)),  # few tiles
        (1024, 1024, 512, True, False, (462, 512, False)), (2048, 2100, 256, True, False, (232, 256, False)),  # pairs
        (512, 512, 1024, True, False, (0, 66, False)),  # two tiles for each program
        (512, 512, 1024, False, False, (0, 16, True)), (512, 512, 1024, True, True, (0, 64, True)),  # drawn
        (2049, 2049, 256, True, False, (0, 16, True)), (640, 640, 1024, True, False, (0, 52, True)),
        (1024, 2048, 512, True, False, (0, 32, True)), (1024, 1023, 512, True, False, (0, 32, True)),
    ],
)  # fmt: skip
def test_the_order_of_tiles(q_len, kv_len, n_heads, causal, wide, order):
    assert forward_hopper.tile_order(q_len, kv_len, n_heads, 1, 132, causal, wide) == order


@pytest.mark.parametrize(
    ("programs", "group_size", "splits"),
    [
        (1024, 4, 1), (512, 8, 2), (2048, 8, 1), (256, 4, 1), (128, 4, 2), (128, 32, 8),
        (8, 7, 7), (512, 7, 1), (1024, 5, 1), (128, 6, 2), (1, 1, 1),
    ],
)  # fmt: skip
def test_a_group_is_shared_where_programs_are_few(programs, group_size, splits):
    assert backward_hopper.group_splits(programs, group_size, 132) == splits


@pytest.mark.skipif(kernels.MODE == "reference", reason="needs Triton")
def test_sums_are_scaled_without_their_padding(random):
    sums, out = random(6, 128, 192), random(2, 3, 110, 192, dtype=torch.float16)
    wanted = out.clone()
    wanted[:, :, 10:] = 0.3 * sums.view(2, 3, 128, 192)[:, :, 28:]
    # Tiles of 64 rows and columns, and of each the 8 rows and 4 pairs of columns of a warp's threads inside the other parts.
    tiles = sums.view(6, 2, 64, 3, 64).transpose(2, 3)
    total = tiles.unflatten(-2, (4, 2, 8)).unflatten(-1, (8, 4, 2)).permute(0, 1, 2, 6, 3, 5, 7, 4, 8).contiguous()
    with launching(total):
        scale_kernel[(6 * 2 * 3,)](total, out[:, :, 10:], 0.3, 2, 28, 100, 110, WIDTH=192)
    torch.testing.assert_close(out, wanted)


def tensors_of(random, batch, n_q_heads, n_kv_heads, q_len, kv_len, head_dim_qk, dtype, packed=False):
    """q, k and v; packed as a projection leaves them, [B, L, H, D], with columns to spare."""
    shapes = (n_q_heads, q_len, head_dim_qk), (n_kv_heads, kv_len, head_dim_qk), (n_kv_heads, kv_len, 128)
    if packed:
        return [random(batch, n, h, d + 8, dtype=dtype)[..., :d].transpose(1, 2) for h, n, d in shapes]
    return [random(batch, h, n, d, dtype=dtype) for h, n, d in shapes]


SHAPES = [
    (2, 4, 2, 512, 512),
    (1, 3, 3, 300, 515),
    (1, 2, 1, 700, 300),
    (3, 6, 3, 129, 129),
    (2, 14, 2, 65, 1000),
    (1, 71, 1, 257, 257),
    (2, 24, 2, 191, 1333),
    (4, 12, 1, 777, 64),
    (1, 5, 1, 130, 1),
    (2, 132, 132, 256, 256),
    (1, 300, 4, 130, 200),
]


@on_hopper
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head_dim_qk", [128, 192])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(random, shape, head_dim_qk, causal):
    """Of the two formats and the two layouts, each shape sees two."""
    for dtype, packed in zip(HALVES, (shape[1] % 2 == 0, shape[1] % 2 == 1), strict=True):
        q, k, v = tensors_of(random, *shape, head_dim_qk, dtype, packed)
        assert forward_hopper.faster(q, k, v)
        compare_attention(q, k, v, causal)


@on_hopper
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head_dim_qk", [128, 192])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients(random, shape, head_dim_qk, causal):
    for dtype, packed in zip(HALVES, (shape[1] % 2 == 0, shape[1] % 2 == 1), strict=True):
        q, k, v = tensors_of(random, *shape, head_dim_qk, dtype, packed)
        d_out = random(*q.shape[:3], 128, dtype=dtype)
        d_lse = random(*q.shape[:3])
        assert backward_hopper.faster(q, k, v, d_out) == (shape[3] > backward_hopper.FEW_QUERIES)
        compare_gradients(q, k, v, d_out, d_lse, causal)


@on_hopper
@pytest.mark.parametrize(
    "shape",
    [(2, 32, 8, 64, 4096), (1, 32, 8, 77, 3333), (1, 8, 4, 65, 1500), (1, 64, 8, 60, 4097), (2, 16, 4, 100, 5000),
     (1, 32, 1, 5, 1030), (1, 8, 2, 300, 2825), (1, 1, 1, 1280, 1270), (2, 16, 16, 90, 4100)],
    ids=str,
)  # fmt: skip
def test_few_programs_become_a_decode_step(random, monkeypatch, shape):
    """Groups of 1, 2, 4, 8 and 32 heads; the gradients take the results as they are."""
    steps, launch = [], decode_hopper.launch
    monkeypatch.setattr(decode_hopper, "launch", lambda *arguments: (steps.append(1), launch(*arguments)))
    for dtype, packed in zip(HALVES, (False, True), strict=True):
        q, k, v = tensors_of(random, *shape, 128, dtype, packed)
        compare_attention(q, k, v, True)
        assert len(steps) == 1
        compare_attention(q, k, v, False)
        assert steps.pop() and not steps
    compare_gradients(q, k, v, random(*q.shape, dtype=dtype), random(*q.shape[:3]), True)


@on_hopper
@pytest.mark.parametrize("head_dim_qk", [128, 192])
def test_what_rows_without_keys_hold_does_not_matter(random, head_dim_qk):
    q, k, v = tensors_of(random, 1, 4, 2, 400, 150, head_dim_qk, torch.bfloat16)
    d_out = random(1, 4, 400, 128, dtype=torch.bfloat16)
    q[:, :, :250] = d_out[:, :, :250] = torch.nan
    inputs = [t.requires_grad_() for t in (q, k, v)]
    out, lse = kernels.attention(*inputs, causal=True)
    assert (out[:, :, :250] == 0).all() and (lse[:, :, :250] == -torch.inf).all()
    dq, dk, dv = torch.autograd.grad(out, inputs, d_out)
    assert (dq[:, :, :250] == 0).all() and not any(x.isnan().any() for x in (dq, dk, dv))


@on_hopper
@pytest.mark.parametrize("head_dim_qk", [128, 192])
def test_the_same_bits_a_thousand_times(random, head_dim_qk):
    """Many more tiles than programs, and a race between any two warps would show."""
    q, k, v = tensors_of(random, 2, 36, 4, 1111, 1333, head_dim_qk, torch.bfloat16, packed=True)
    first = kernels.attention(q, k, v, causal=True)
    differs = torch.zeros((), dtype=torch.int64, device=q.device)
    for _ in range(1000):
        for got, wanted in zip(kernels.attention(q, k, v, causal=True), first, strict=True):
            differs += (got != wanted).any()
    assert differs.item() == 0


@on_hopper
def test_in_a_graph_and_compiled(random):
    q, k, v = tensors_of(random, 2, 40, 4, 1000, 1000, 128, torch.float16)
    d_out = random(*q.shape, dtype=torch.float16)

    def attention(q, k, v):
        return kernels.attention(q, k, v, causal=True)

    def both(attention):
        out, lse = attention(q, k, v)
        return out, lse, *attention_backward(q, k, v, out, lse, d_out, None, True, 128**-0.5, False)

    def right(out, lse, *gradients):
        torch.testing.assert_close((out, lse), (eager[0], eager[1]), atol=0, rtol=0)
        for got, wanted in zip(gradients, eager[2:], strict=True):  # dQ is added up in any order
            torch.testing.assert_close(got, wanted, atol=2e-3, rtol=1e-2)

    eager = both(attention)
    right(*both(torch.compile(attention, fullgraph=True, backend="aot_eager")))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both(attention)
    for _ in range(3):
        for tensor in captured:
            tensor.zero_()
        graph.replay()
        right(*captured)
