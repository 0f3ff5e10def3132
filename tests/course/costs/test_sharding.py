"""Heads over GPUs: every query head finds its key, nothing is lost, copies are counted."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from course.costs import Attention, KiB, kv_copies, model, split_heads


def test_kib_a_token_and_gpu_of_a_70b():
    llama = model("Llama 2 70B")
    shares = [llama.n_layers * split_heads(llama.attention, t).bytes_per_token() / KiB for t in (1, 2, 4, 8, 16)]
    assert shares == [320, 160, 80, 40, 40]
    assert [kv_copies(llama.attention, t) for t in (1, 2, 4, 8, 16)] == [1, 1, 1, 1, 2]


def test_mla_is_copied_whole_and_loses_its_intensity():
    from course.costs import intensity

    v3 = Attention.mla(128)
    part = split_heads(v3, 8)
    assert part.bytes_per_token() == v3.bytes_per_token() == 1152
    assert part.n_q_heads == 16 and kv_copies(v3, 8) == 8
    assert intensity(part) == pytest.approx(intensity(v3) / 8)


@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 64))
def test_each_gpu_has_the_kv_heads_that_its_query_heads_need(n_kv_heads, group_size, n_gpus):
    whole = Attention.gqa(n_kv_heads * group_size, n_kv_heads, 64)
    assume(whole.n_q_heads % n_gpus == 0 and (n_kv_heads % n_gpus == 0 or n_gpus % n_kv_heads == 0))
    part = split_heads(whole, n_gpus)
    on_gpu = [{head // group_size for head in range(gpu * part.n_q_heads, (gpu + 1) * part.n_q_heads)} for gpu in range(n_gpus)]
    assert {len(kv_heads) for kv_heads in on_gpu} == {part.n_kv_heads}
    assert set().union(*on_gpu) == set(range(n_kv_heads))
    assert sum(0 in kv_heads for kv_heads in on_gpu) == kv_copies(whole, n_gpus)
    assert part.n_kv_heads * n_gpus == n_kv_heads * kv_copies(whole, n_gpus)


@pytest.mark.parametrize(
    ("attention", "n_gpus", "says"),
    [
        (Attention.gqa(40, 8, 128), 16, "got 16 GPUs for 40 query heads"),
        (Attention.gqa(24, 6, 128), 4, "got 4 GPUs for 6 KV heads"),
        (Attention.mha(8, 64), 0, "n_gpus must be at least 1, got 0"),
    ],
)
def test_what_does_not_divide_is_refused(attention, n_gpus, says):
    for function in (split_heads, kv_copies):
        with pytest.raises(ValueError, match=says):
            function(attention, n_gpus)
