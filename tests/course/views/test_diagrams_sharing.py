"""Drawings of chapter 2: their words are the head map and the arithmetic of course.costs."""

import pytest

from course import costs, views
from course.views import diagrams_sharing


def test_every_query_head_reads_the_head_of_its_group():
    told = views.head_sharing_figure(12, (12, 4, 3, 1)).alt
    assert "query heads 3 to 5 read KV head 1" in told and "query heads 8 to 11 read KV head 2" in told
    assert "MQA: query heads 0 to 11 read KV head 0" in told
    assert "query head 11 reads KV head 11" in told


@pytest.mark.parametrize("wrong", [(8, (3,)), (8, ()), (64, (8,)), (8, (0,))])
def test_impossible_heads_are_refused(wrong):
    with pytest.raises(ValueError, match="variants"):
        views.head_sharing_figure(*wrong)


def test_a_token_s_kib_on_each_gpu():
    told = views.tensor_parallel_figure().alt
    assert (
        "GQA-8: 320 KiB on one GPU, 160 KiB on each of 2, 80 KiB on each of 4, 40 KiB on each of 8, 40 KiB on each of 16"
        in told
    )
    assert costs.model("Llama 2 70B").bytes_per_token() == 320 * costs.KiB
    assert told.count("40 KiB") == 2 + 5 + 1  # and MHA's 640 KiB


def test_a_layer_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="n_gpus"):
        views.tensor_parallel_figure(n_q_heads=48, kv_heads=(3,))


def test_no_letter_is_too_small_for_a_phone(monkeypatch):
    sizes = []
    finish = diagrams_sharing.figure

    def spy(fig, **words):
        sizes.extend(text.get_fontsize() for ax in fig.axes for text in ax.texts)
        return finish(fig, **words)

    monkeypatch.setattr(diagrams_sharing, "figure", spy)
    views.head_sharing_figure()
    views.tensor_parallel_figure()
    assert min(sizes) >= 9
