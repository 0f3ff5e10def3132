"""Drawings of chapter 6: their numbers are those of course.costs and of the kernels' own plan."""

import pytest
import torch

import kernels
from course import costs, views
from course.views import diagrams_paging

RAGGED = [8192, 512, 3000, 700, 1500, 600, 900, 5000]


def test_reservation_says_what_costs_says():
    made = views.reservation_figure(mean=2000, capacity=32_768, page_size=16, rows=8)
    many = costs.sequences_that_fit(8 * 32_768, costs.lengths_like("exponential", 2000), page_size=16)
    assert f"about {many} sequences" in made.alt and "93%" in made.alt
    with pytest.raises(ValueError, match="capacity"):
        views.reservation_figure(mean=20_000, capacity=4096)


def test_pages_say_where_a_token_lies():
    tables, lengths = {"a": [5, 1, 6], "b": [5, 3]}, {"a": 10, "b": 7}
    made = views.pages_figure(tables, lengths, token=("a", 6))
    assert "Token 6 of a (orange): entry 1 of its row says page 1, where it is slot 2" in made.alt
    assert "Free: 0, 2, 4, 7." in made.alt and "Shared (grey): 5." in made.alt
    assert "Token" not in views.pages_figure(tables, lengths).alt


@pytest.mark.parametrize("change, word", [
    ({"tables": {"a": [5]}}, "'a'"),
    ({"tables": {"answer": [5]}}, "letters"),
    ({"tables": {"a": [5, 1, 8]}}, "pages go"),
    ({"token": ("a", 10)}, "token"),
    ({"token": ("z", 0)}, "token"),
    ({"page_size": 5}, "at most"),
])  # fmt: skip
def test_pages_refuse_what_cannot_be(change, word):
    given = {"tables": {"a": [5, 1, 6]}, "lengths": {"a": 10}, "token": None, "page_size": 4} | change
    with pytest.raises(ValueError, match=word):
        views.pages_figure(given["tables"], given["lengths"], page_size=given["page_size"], token=given["token"])


@pytest.mark.parametrize("programs", [8, 16, 64])
def test_every_token_is_in_one_program(programs):
    for each in (
        diagrams_paging.even_splits(RAGGED, programs // len(RAGGED)),
        diagrams_paging.equal_shares(RAGGED, programs),
    ):
        assert len(each) == programs
        found = [sum(n for one in each for b, n in one if b == wanted) for wanted in range(len(RAGGED))]
        assert found == RAGGED


@pytest.mark.skipif(kernels.MODE == "reference", reason="the list is made by a kernel")
@pytest.mark.parametrize("lengths, shares", [(RAGGED, 16), ([700, 130, 0, 300], 4), ([1], 3), ([5000], 7), ([0, 0], 2)])
def test_shares_are_the_kernel_s(lengths, shares):
    work = kernels.plan_work(torch.tensor(lengths, dtype=torch.int32), 32, 8, 128, torch.float32, capacity=8192, shares=shares)
    made = []
    bounds = work.bounds.tolist()
    for (first, start), (last, stop) in zip(bounds, bounds[1:], strict=False):
        pieces = []
        for b in range(first, min(last, len(lengths) - 1) + 1):
            begin = start if b == first else 0
            end = min(stop if b == last else lengths[b], lengths[b])
            if begin < end:
                pieces.append((b, end - begin))
        made.append(pieces)
    assert made == diagrams_paging.equal_shares(lengths, shares)


def test_work_says_the_longest_walk():
    made = views.work_figure(RAGGED, 16)
    assert "4,096" in made.alt and "1,408" in made.alt
    assert "3.2 times the mean" in made.caption and "1.1 times" in made.caption
    with pytest.raises(ValueError, match="programs"):
        views.work_figure(RAGGED, 12)


def test_no_letter_is_too_small_for_a_phone(monkeypatch):
    sizes = []
    finish = diagrams_paging.figure

    def spy(fig, **words):
        sizes.extend(text.get_fontsize() for ax in fig.axes for text in ax.texts)
        return finish(fig, **words)

    monkeypatch.setattr(diagrams_paging, "figure", spy)
    views.reservation_figure()
    views.pages_figure({"a": [5, 1, 6]}, {"a": 10}, token=("a", 6))
    assert min(sizes) >= 9
