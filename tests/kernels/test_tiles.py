"""Tiles fit the GPU they are chosen for: by their own bound over many shapes, and compiled for real ones."""

import json
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernels
from kernels import tiles, work_list

GPUS = [((7, 5), 64), ((8, 0), 163), ((8, 6), 99), ((9, 0), 227), ((10, 0), 227), ((12, 0), 99)]


@given(
    st.integers(1, 576),
    st.integers(1, 512),
    st.integers(1, 1024),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(GPUS),
    st.integers(0, 2**20),
    st.booleans(),
    st.sampled_from([None, 1, 16, 64, 128, 100]),
)
def test_decode_tiles_keep_to_the_limit(head_dim_qk, head_dim_v, rows, itemsize, gpu, tokens, mla, page_size):
    capability, kib = gpu
    shared_width = min(head_dim_v, head_dim_qk - 1) if mla and head_dim_qk > 1 else 0
    try:
        tile = tiles.decode_tile(
            rows, head_dim_qk, shared_width or head_dim_v, itemsize, capability, kib * 1024, tokens,
            shared_width=shared_width, page_size=page_size,
        )  # fmt: skip
    except kernels.Unsupported as refusal:
        assert "shared memory" in str(refusal) and kib < 227  # an H200 takes every width that decode accepts
        return
    width = tiles.pad(shared_width) + tiles.pad(head_dim_qk - shared_width) if mla and shared_width else None
    pad_qk = width or tiles.padded_width(head_dim_qk)
    columns = pad_qk + (0 if shared_width else tiles.pad(head_dim_v))
    operand = 4 if capability < (8, 0) else itemsize
    assert tiles.shared_bytes(tile, columns, pad_qk, operand, buffers=1) <= kib * 1024
    assert tile.rows <= 8 if capability < (8, 0) else tile.rows >= 16
    assert all(x & (x - 1) == 0 for x in (tile.rows, tile.block_n, tile.num_warps))
    assert work_list.WORK_UNIT.value % tile.block_n == 0


@given(st.integers(1, 256), st.integers(1, 256), st.integers(1, 10**6), st.sampled_from([2, 4]), st.sampled_from(GPUS))
def test_forward_tiles_keep_to_the_limit(head_dim_qk, head_dim_v, q_len, itemsize, gpu):
    capability, kib = gpu
    tile = tiles.forward_tile(q_len, head_dim_qk, head_dim_v, itemsize, capability, kib * 1024)
    pad_qk = tiles.padded_width(head_dim_qk)
    operand = 4 if capability < (8, 0) else itemsize
    assert tiles.shared_bytes(tile, pad_qk + tiles.pad(head_dim_v), pad_qk, operand, buffers=1) <= kib * 1024


@given(st.integers(1, 4096))
def test_a_width_splits_where_that_wastes_less(width):
    head, tail = tiles.split_width(width)
    assert head + tail == width
    assert tiles.padded_width(width) <= tiles.pad(width)
    if tail:
        assert head & (head - 1) == 0 and tiles.padded_width(width) < tiles.pad(width)


@pytest.mark.parametrize(
    ("width", "blocks"), [(128, (128, 0)), (192, (128, 64)), (576, (512, 64)), (112, (112, 0)), (80, (64, 16))]
)
def test_known_widths(width, blocks):
    assert tiles.split_width(width) == blocks


@pytest.mark.parametrize(("group_size", "rows"), [(1, 16), (4, 16), (16, 16), (17, 32), (32, 32), (71, 64)])
def test_a_group_is_one_tile_where_it_can_be(group_size, rows):
    assert tiles.decode_tile(group_size, 128, 128, 2, (9, 0), 227 * 1024, 8192).rows == rows


def test_a_width_that_fits_nowhere_is_refused_by_name():
    with pytest.raises(kernels.Unsupported, match="a program has 65536"):
        tiles.decode_tile(16, 576, 512, 2, (7, 5), 64 * 1024, 8192)


TOGETHER = [(100,), (90,), (86, 89), (80,), (120,), (75,)]  # compute capabilities, by process; the longest first


@pytest.fixture(scope="module")
def compilations():
    """All kernels compiled for each GPU, as many processes at a time as there are cores here."""
    program = pathlib.Path(__file__).with_name("ahead_of_time.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}

    def compile_all(group):
        return subprocess.run([sys.executable, program, *map(str, group)], capture_output=True, text=True, env=environment)

    with ThreadPoolExecutor(min(os.cpu_count() or 1, len(TOGETHER))) as pool:
        done = [(group, pool.submit(compile_all, group)) for group in TOGETHER]
        yield {sm: result for group, result in done for sm in group}


@pytest.mark.skipif(kernels.MODE == "reference", reason="needs Triton's compiler")
@pytest.mark.parametrize("sm", sorted(sm for group in TOGETHER for sm in group))
def test_compiled_kernels_fit(compilations, sm):
    """Compiled ahead of time, no such GPU needed: shared memory within the limit, and hardly a register spilled."""
    done = compilations[sm].result()
    assert done.returncode == 0, done.stderr[-2000:]
    cases = [case for case in map(json.loads, done.stdout.splitlines()) if case["sm"] == sm]
    assert len(cases) == 29 + 5 * (sm >= 89)
    assert any(case["bfloat16"] for case in cases) == (sm >= 80)
    for case in cases:
        assert case["shared"] <= case["limit"], case
        # Spilled around the loops, not in them. Hopper's tiles were measured, and those that spill nothing were slower.
        # Full float32 over 8 bits is for checking, not for speed.
        assert case["stack"] <= (320 if sm == 90 or "8 bits, float32" in case["case"] else 160), case


@pytest.mark.skipif(kernels.MODE == "reference", reason="needs Triton's compiler")
def test_every_kernel_is_compiled_for_a_t4(compilations):
    """The smallest limit, and no bfloat16: what runs there has been compiled for it, in the types that it has."""
    files = pathlib.Path(kernels.__file__).parent.glob("*.py")
    texts = [path.read_text(encoding="utf-8") for path in files if not path.stem.endswith("_hopper")]
    launched = {name for text in texts for name in re.findall(r"^@triton\.jit.*\ndef (\w+_kernel)\(", text, re.MULTILINE)}
    cases = [json.loads(line) for line in compilations[75].result().stdout.splitlines()]
    assert {name for case in cases for name in case["kernels"]} == launched
    assert {case["limit"] for case in cases} == {64 * 1024}
