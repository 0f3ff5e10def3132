"""A model on GPUs: the sums of its parts, the figures the chapters quote, and what does not fit."""

import pytest

from course import costs
from course.costs import FP8_MLA, GiB, gpu, model, serve

H100, H200 = gpu("H100 SXM"), gpu("H200 SXM")


@pytest.mark.parametrize("name", ["Llama 3.1 8B", "DeepSeek-V3", "Gemma 3 27B", "Mixtral 8x7B"])
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_on_one_gpu_it_is_the_arithmetic_of_the_other_functions(name, batch):
    one, got = model(name), serve(name, "H200 SXM", 20_000, batch=batch)
    assert got.floors == costs.decode_floors(one, 20_000, H200, batch=batch)
    assert got.seconds == costs.step_floor(got.floors.values())
    assert got.cache_bytes == one.cache_bytes(20_000, batch) == batch * got.sequence_bytes
    assert got.max_batch == max(0, int((141e9 - one.weight_bytes()) // one.cache_bytes(20_000)))
    assert got.fits == (one.weight_bytes() + got.cache_bytes <= 141e9)


def test_terms_add_over_kernels_and_not_within_one():
    # V3 on an H100 at 32,768 tokens, batch 8: attention's two times are 5.50 and 4.50 ms
    v3 = serve("DeepSeek-V3", H100, 32_768, batch=8)
    part = v3.floors["attention"]
    assert (round(part.memory_s * 1e3, 2), round(part.compute_s * 1e3, 2)) == (5.5, 4.5)
    assert part.seconds == part.memory_s
    assert v3.seconds == pytest.approx(part.memory_s + v3.floors["weights"].seconds)
    assert serve("DeepSeek-V3", H200, 32_768, batch=8).floors["attention"].bound == "compute"


def test_the_deployed_fp8_record_moves_the_floor_to_compute():
    v3 = serve("DeepSeek-V3", H100, 32_768, batch=4, bytes_per_element=FP8_MLA).floors["attention"]
    assert (round(v3.memory_s * 1e3, 2), round(v3.compute_s * 1e3, 2), v3.bound) == (1.57, 2.25, "compute")


def test_several_gpus_divide_what_can_be_divided():
    one, eight = (serve("Llama 3.1 70B", H100, 32_768, batch=16, n_gpus=n) for n in (1, 8))
    assert eight.weight_bytes == one.weight_bytes / 8 and eight.cache_bytes == one.cache_bytes / 8
    assert eight.seconds == pytest.approx(one.seconds / 8)
    assert serve("Llama 3.1 70B", H100, 32_768, batch=16, n_gpus=16).cache_bytes == eight.cache_bytes  # copied
    v3_one, v3_eight = (serve("DeepSeek-V3", H200, 32_768, batch=64, n_gpus=n) for n in (1, 8))
    assert v3_eight.cache_bytes == v3_one.cache_bytes and v3_eight.kv_copies == 8
    # one layer: 0.590 ms (compute) on one, 0.503 (memory) on each of eight
    assert v3_one.floors["attention"].seconds / 61 * 1e3 == pytest.approx(0.590, abs=5e-4)
    assert v3_eight.floors["attention"].seconds / 61 * 1e3 == pytest.approx(0.503, abs=5e-4)


def test_weights_that_do_not_fit_leave_room_for_nobody():
    assert not serve("Llama 3.1 70B", H100, 8192).weights_fit
    assert serve("Llama 3.1 70B", H100, 8192).max_batch == 0
    two = serve("Llama 3.1 70B", H100, 8192, n_gpus=2)
    assert two.weights_fit and two.max_batch == int((80e9 - two.weight_bytes) // (160 * 1024 * 8192))
    assert serve("Llama 3.1 70B", H100, 8192, weight_bytes_per_element=0.5).weights_fit


def test_windows_and_the_model_s_own_context():
    gemma = serve("Gemma 3 27B", H200, 131_072)
    assert gemma.cache_bytes / GiB == pytest.approx(10.4, abs=0.05)
    assert not gemma.beyond_context and serve("Llama 2 7B", H200, 8192).beyond_context


def test_a_gpu_without_bfloat16():
    assert serve("Llama 3.1 8B", "T4", 512).floors["attention"].compute_s > 0


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"n_gpus": 3}, "n_gpus must divide n_q_heads"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"bytes_per_element": FP8_MLA}, "layout for MLA"),
    ],
)
def test_what_is_refused(more, says):
    with pytest.raises(ValueError, match=says):
        serve("Llama 3.1 8B", H200, 4096, **more)
    with pytest.raises(ValueError, match="not in the table"):
        serve("GLM-5", H200, 4096)
