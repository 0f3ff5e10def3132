"""Tiles counted one pair at a time, and the FLOPs and bytes of gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course.costs import Attention, attention_flops, backward_flops, gradient_bytes, tile_map
from course.costs.full_sequence import MASKS

sizes = st.integers(1, 40)
blocks = st.sampled_from([1, 2, 4, 8, 16])
ALIGNED = {"bottom-right": lambda q_len, kv_len: kv_len - q_len, "top-left": lambda q_len, kv_len: 0}


@given(sizes, sizes, blocks, blocks, st.sampled_from(MASKS))
def test_kinds_of_tiles_are_those_of_the_mask(q_len, kv_len, rows, block_n, mask):
    seen = torch.ones(q_len, kv_len, dtype=torch.bool)
    if mask != "none":
        seen = seen.tril(ALIGNED[mask](q_len, kv_len))
    full = masked = skipped = keys = 0
    for strip in seen.split(rows):
        for tile in strip.split(block_n, dim=1):
            if not tile.any():
                skipped += 1
            elif tile.all() and tile.shape[1] == block_n:
                full += 1
            else:
                masked += 1
        keys += strip.any(0).sum().item()
    found = tile_map(q_len, kv_len, rows, block_n, mask=mask)
    assert (found.full, found.masked, found.skipped, found.keys) == (full, masked, skipped, keys)
    assert found.total == found.computed + found.skipped


def test_half_of_a_long_prompt_is_never_loaded():
    found = tile_map(8192, 8192, 128, 128)
    assert (found.computed, found.total, found.masked) == (2080, 4096, 64)


def test_one_query_is_one_row_of_tiles_and_top_left_would_leave_it_one_key():
    assert tile_map(1, 1000, 16, 64).keys == 1000
    assert tile_map(1, 1000, 16, 64, mask="top-left").keys == 1


@pytest.mark.parametrize("wrong", [{"q_len": 0}, {"rows": 0}, {"mask": "left"}])
def test_impossible_maps_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        tile_map(**{"q_len": 8, "kv_len": 8, "rows": 4, "block_n": 4} | wrong)


def test_five_products_where_the_forward_pass_has_two():
    workhorse = Attention.gqa(32, 8, 128)
    assert backward_flops(workhorse, 512, 512, causal=True) == 2.5 * attention_flops(workhorse, 512, 512, causal=True)
    latent = Attention(16, 16, 192, 128)
    assert backward_flops(latent, 2, 3, batch=2) == 2 * 16 * 2 * 3 * 2 * (3 * 192 + 2 * 128)


def test_bytes_of_gradients():
    workhorse = Attention.gqa(32, 8, 128)
    assert gradient_bytes(workhorse, 8192, per_query_head=True) == 4 * gradient_bytes(workhorse, 8192) == 268_435_456
    assert gradient_bytes(workhorse, 8192, batch=2, bytes_per_element="bfloat16") == 67_108_864
