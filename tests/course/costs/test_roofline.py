"""Floors: the larger time inside a kernel, the sum over kernels, and the figures the chapters quote."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.costs import (
    FP8_MLA,
    Attention,
    Floor,
    cache_bytes,
    decode_floors,
    decode_flops,
    floor,
    gpu,
    intensity,
    model,
    step_floor,
)

H100, H200 = gpu("H100 SXM"), gpu("H200 SXM")
amounts = st.floats(0, 1e15)


def ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)


def attention_floor(name, chip, *, batch, bytes_per_element=2):
    return decode_floors(model(name), 32_768, chip, batch=batch, bytes_per_element=bytes_per_element)["attention"]


# ch. 1, 9: floors of decode attention on an H100 at 32,768 tokens and batch 4, in ms
@pytest.mark.parametrize(
    ("name", "memory_ms", "bound"),
    [
        ("Llama 2 7B", 20.51, "memory"),
        ("Llama 2 70B", 12.82, "memory"),
        ("Llama 3 8B", 5.13, "memory"),
        ("Mistral 7B v0.1", 0.64, "memory"),  # its rolling buffer holds 4,096 tokens
        ("DeepSeek-V3", 2.75, "memory"),
    ],
)
def test_floors_of_the_model_table(name, memory_ms, bound):
    got = attention_floor(name, H100, batch=4)
    assert (ms(got.memory_s), got.bound) == (memory_ms, bound)


def test_fewer_bytes_do_not_help_where_the_products_set_the_floor():
    # ch. 9, 11: V3 on an H100; the deployed FP8 record, and the one byte an element that nobody deploys
    deployed = attention_floor("DeepSeek-V3", H100, batch=4, bytes_per_element=FP8_MLA)
    assert (ms(deployed.memory_s), ms(deployed.compute_s), deployed.bound) == (1.57, 2.25, "compute")
    hypothetical = attention_floor("DeepSeek-V3", H100, batch=4, bytes_per_element=1)
    assert (ms(hypothetical.memory_s), ms(hypothetical.seconds), hypothetical.bound) == (1.37, 2.25, "compute")


def test_same_work_flips_between_gpus():
    # ch. 1, 8: V3 at 32,768 tokens and batch 8: memory 5.50 against compute 4.50 on an H100, 3.84 on an H200
    on_h100, on_h200 = (attention_floor("DeepSeek-V3", chip, batch=8) for chip in (H100, H200))
    assert (ms(on_h100.memory_s), ms(on_h100.compute_s), on_h100.bound) == (5.50, 4.50, "memory")
    assert (ms(on_h200.memory_s), ms(on_h200.compute_s), on_h200.bound) == (3.84, 4.50, "compute")
    assert ms(on_h100.seconds) == 5.50  # the larger, not the 10.00 of adding the two
    assert ms(on_h100.memory_s + on_h100.compute_s) == 10.00


def test_eight_gpus_for_one_layer_of_mla():
    # ch. 8: batch 64 at 32,768 tokens on an H200. All 128 heads: compute 0.590 ms; 16 heads a GPU read the same bytes
    # in 0.503 ms: 1.17 times faster on eight GPUs. FP8 record, 128 heads: 0.287 ms of memory time that win nothing.
    def one_layer(n_heads, bytes_per_element=2):
        shape = Attention.mla(n_heads)
        n_bytes = cache_bytes(shape, 32_768, batch=64, bytes_per_element=bytes_per_element)
        return floor(n_bytes, decode_flops(shape, 32_768, batch=64), H200)

    whole, part, fp8 = one_layer(128), one_layer(16), one_layer(128, FP8_MLA)
    assert (round(whole.seconds * 1e3, 3), whole.bound) == (0.590, "compute")
    assert (round(part.seconds * 1e3, 3), part.bound) == (0.503, "memory")
    assert round(whole.seconds / part.seconds, 2) == 1.17
    assert (round(fp8.memory_s * 1e3, 3), fp8.seconds) == (0.287, whole.seconds)


def test_ridges_in_flop_per_byte_and_in_heads():
    # ch. 1, 8
    assert [round(gpu(name).ridge()) for name in ("H100 SXM", "H200 SXM", "A100 80GB SXM")] == [295, 206, 153]
    per_head = intensity(Attention.mla(1))
    heads = [round(gpu(name).ridge() / per_head) for name in ("H200 SXM", "H100 SXM", "A100 80GB SXM")]
    assert heads == [109, 156, 81]
    # a GPU by measured rates: 675 TFLOP/s over 4.68 TB/s is 144 FLOP/B, or 76 heads
    measured = dataclasses.replace(H200, bandwidth=4.68e12, peaks={"bfloat16": 675e12})
    assert (round(measured.ridge()), round(measured.ridge() / per_head)) == (144, 76)


def test_weight_stream_of_a_70b():
    assert round(model("Llama 2 70B").weight_bytes() / H100.bandwidth * 1e3, 1) == 41.8  # ch. 1


def test_throughput_saturates():
    # ch. 1: Llama 2 7B at 32,768 tokens on an H200: 6.39 ms a step, 9.97 for two sequences, 157 and 201 tokens/s
    llama = model("Llama 2 7B")
    steps = [step_floor(decode_floors(llama, 32_768, H200, batch=batch).values()) for batch in (1, 2)]
    assert [ms(step) for step in steps] == [6.39, 9.97]
    assert [round(batch / step) for batch, step in zip((1, 2), steps, strict=True)] == [157, 201]
    assert round(2 / steps[1] * steps[0], 2) == 1.28
    assert round(H200.bandwidth / llama.cache_bytes(32_768)) == 279  # never more


def test_workhorse_step_at_batch_16():
    # ch. 13: Llama 3 8B, batch 16, 8,192 tokens, at the measured 4.68 TB/s: weights 3.43 ms, one layer 115 µs
    measured = dataclasses.replace(H200, bandwidth=4.68e12)
    parts = decode_floors(model("Llama 3.1 8B"), 8192, measured, batch=16)
    assert ms(parts["weights"].memory_s) == 3.43
    assert parts["attention"].memory_s == pytest.approx(32 * 536_870_912 / 4.68e12)
    assert list(parts) == ["weights", "attention"]


def test_weights_become_compute_bound_near_the_ridge():
    # ch. 1: a linear layer in 16 bits has about batch FLOP/B, so batching pays up to the ridge
    bounds = [decode_floors(model("Llama 2 70B"), 1, H200, batch=b)["weights"].bound for b in (1, 206, 207)]
    assert bounds == ["memory", "memory", "compute"]


@given(amounts, amounts, st.sampled_from(["H200 SXM", "A100 80GB SXM", "L4"]))
def test_a_floor_is_the_larger_time_and_names_it(n_bytes, flops, name):
    got = floor(n_bytes, flops, name)
    chip = gpu(name)
    times = {"memory": n_bytes / chip.bandwidth, "compute": flops / chip.peak_flops()}
    assert got.seconds == max(times.values()) == times[got.bound]
    assert got.seconds <= got.memory_s + got.compute_s <= 2 * got.seconds


@given(st.floats(1, 1e12), st.floats(1e-3, 1e3))
def test_the_ridge_decides_the_bound(n_bytes, times_ridge):
    got = floor(n_bytes, n_bytes * H200.ridge() * times_ridge, H200)
    if abs(times_ridge - 1) > 1e-9:
        assert got.bound == ("compute" if times_ridge > 1 else "memory")


@given(st.lists(st.builds(Floor, st.floats(0, 1), st.floats(0, 1)), max_size=6))
def test_kernels_in_a_row_add_up(floors):
    got = step_floor(floors)
    assert got == pytest.approx(sum(each.seconds for each in floors))
    # never below what one kernel that overlapped everything could reach
    assert got >= max(sum(each.memory_s for each in floors), sum(each.compute_s for each in floors)) - 1e-12


def test_the_sum_over_kernels_exceeds_one_maximum_over_the_step():
    # one kernel bound by memory, one by compute: 3 + 4, not max(3 + 1, 1 + 4)
    assert step_floor([Floor(3.0, 1.0), Floor(1.0, 4.0)]) == 7.0


def test_a_tie_is_called_memory():
    assert Floor(1.0, 1.0).bound == "memory"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((-1, 0, "H200 SXM"), ValueError, "n_bytes must be a finite number of at least 0, got -1"),
        ((float("nan"), 0, "H200 SXM"), ValueError, "n_bytes must be a finite number"),
        ((0, float("inf"), "H200 SXM"), ValueError, "flops must be a finite number"),
        (("16 GiB", 0, "H200 SXM"), TypeError, "n_bytes must be a number, got '16 GiB'"),
        ((1, 1, "H20"), ValueError, "unknown gpu 'H20'; nearest: "),
        ((1, 1, None), TypeError, "gpu must be given by name, got None"),
        ((1, 1, "T4"), ValueError, "T4 has no bfloat16 tensor cores (compute capability 7.5, needs 8.0)"),
    ],
)
def test_floor_refuses(arguments, error, says):
    with pytest.raises(error) as caught:
        floor(*arguments)
    assert says in str(caught.value)
