"""What the properties of bytes and times compare with, and that a slip costs its own property alone."""

import pytest

from course import costs
from course.grading.answers import Local
from course.grading.draw import Draw
from course.grading.judge import Wrong
from course.grading.properties import accounting
from course.grading.tasks import judge
from tests.course.grading.grade import assignments, draw

LLAMA = {
    "n_layers": 32, "n_q_heads": 32, "n_kv_heads": 8, "head_dim_qk": 128, "head_dim_v": 128, "head_dim_shared": 0,
    "window": None, "n_window_layers": 0, "bytes_per_element": 2,
}  # fmt: skip
V3 = {**LLAMA, "n_layers": 61, "n_q_heads": 128, "n_kv_heads": 1, "head_dim_qk": 576, "head_dim_v": 512, "head_dim_shared": 512}


def test_a_share_is_that_of_the_published_model():
    for name, shape in (("Llama 3 8B", LLAMA), ("DeepSeek-V3", V3)):
        for n_gpus in (1, 8, 16):
            share = accounting.RIGHT_SHARE(shape, 32_768, 4, n_gpus)
            served = costs.serve(name, "H200 SXM", 32_768, batch=4, n_gpus=n_gpus)
            assert (share["cache_bytes"], share["copies"]) == (served.cache_bytes, served.kv_copies)


@pytest.mark.parametrize(
    ("slip", "lost"),
    [
        ({"cache_bytes": lambda share, shape, n: share["cache_bytes"] / 2}, {"one GPU", "latent"}),
        ({"copies": lambda share, shape, n: 1}, {"copies", "latent"}),
        ({"cache_bytes": lambda share, shape, n: share["cache_bytes"] / share["copies"]}, {"copies", "latent"}),
        ({"flops": lambda share, shape, n: share["flops"] * n}, {"divided heads", "copies", "latent"}),
    ],
)
def test_a_slip_costs_its_own_properties(slip, lost):
    def gpu_share(shape, context_len, batch, n_gpus):
        share = accounting.RIGHT_SHARE(shape, context_len, batch, n_gpus)
        return {**share, **{key: change(share, shape, n_gpus) for key, change in slip.items()}}

    _, task = assignments.find("09_costs.share")
    report = judge(task, Local(gpu_share), [draw("09_costs.share", "first")], public=False)
    assert {line.name for line in report.lines if line.state != "ok"} == lost


def test_a_missing_entry_is_said():
    with pytest.raises(Wrong, match="cache_bytes, flops, copies"):
        accounting.share_whole(Local(lambda *_: {"bytes": 3}), Draw(1))


def test_sequences_or_heads():
    rates = {"bandwidth": costs.gpu("H200 SXM").bandwidth, "peak": costs.gpu("H200 SXM").peak_flops()}
    latent = accounting.divisions(V3, 32_768, 64, 8, **rates)
    assert min(latent, key=latent.get) == 1 and set(latent) == {1, 2, 4, 8}
    assert latent[8] == pytest.approx(
        costs.serve("DeepSeek-V3", "H200 SXM", 32_768, batch=64, n_gpus=8).floors["attention"].seconds
    )
    alone = accounting.divisions(V3, 32_768, 1, 8, **rates)
    assert alone[8] < alone[1]
    heads = accounting.divisions(LLAMA, 32_768, 64, 8, **rates)
    assert heads[8] == pytest.approx(heads[1])
    assert set(accounting.divisions({**LLAMA, "n_q_heads": 24, "n_kv_heads": 3}, 100, 4, 8, **rates)) == {1}
