"""Token slots: worked figures of chapter 6, and rules that hold for any lengths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.costs import (
    Occupancy,
    lengths_like,
    mean_page_waste,
    paged,
    pages_of,
    paging,
    reserved,
    sequences_that_fit,
    tokens_read,
)

lengths_of_a_batch = st.lists(st.integers(1, 5000), min_size=1, max_size=20)
page_sizes = st.integers(1, 300)


def test_reserving_the_longest_wastes_most_of_it():
    got = reserved([2000] * 4, 32_768)
    assert got == Occupancy(8000, 4 * 32_768)
    assert round(got.wasted, 2) == 0.94


@pytest.mark.parametrize(("page_size", "per_cent"), [(16, 0.4), (64, 1.6), (256, 6.0)])
def test_mean_waste_of_pages(page_size, per_cent):
    assert mean_page_waste(page_size) == (page_size - 1) / 2
    assert round(100 * mean_page_waste(page_size) / (2000 + mean_page_waste(page_size)), 1) == per_cent


@given(page_sizes)
def test_mean_waste_is_the_mean_over_all_fillings(page_size):
    lengths = range(5 * page_size + 1, 6 * page_size + 1)
    got = paged(list(lengths), page_size)
    assert (got.slots - got.tokens) / page_size == mean_page_waste(page_size)


@given(lengths_of_a_batch, page_sizes)
def test_pages_hold_every_token_and_waste_less_than_one_each(lengths, page_size):
    got = paged(lengths, page_size)
    assert got.tokens == sum(lengths)
    assert 0 <= got.slots - got.tokens < len(lengths) * page_size
    assert got.slots % page_size == 0
    assert paged(lengths, 1).wasted == 0


@given(lengths_of_a_batch, page_sizes, st.integers(0, 2000))
def test_a_shared_prefix_is_stored_once(own, page_size, prefix):
    lengths = [prefix + n for n in own]
    alone, shared = paged(lengths, page_size), paged(lengths, page_size, shared_prefix=prefix)
    whole_pages = prefix // page_size
    assert alone.slots - shared.slots == (len(own) - 1) * whole_pages * page_size
    assert 0 <= shared.slots - shared.tokens < len(own) * page_size


def test_how_many_fit():
    # 2,000 tokens each where 32,768 were reserved: 16 times more
    budget = 2**20
    assert sequences_that_fit(budget, [2000], capacity=32_768) == 32
    assert sequences_that_fit(budget, [2000], page_size=16) == budget // 2000 == 524
    assert sequences_that_fit(budget, [2000], page_size=256) == budget // 2048
    # a prefix of 1,000 tokens: 62 whole pages of 16 once, then 63 own pages each
    assert sequences_that_fit(budget, [2000], page_size=16, shared_prefix=1000) == (budget // 16 - 62) // 63


@given(lengths_of_a_batch, page_sizes, st.integers(1, 50))
def test_what_fits_fits(lengths, page_size, rounds):
    budget = rounds * paged(lengths, page_size).slots
    assert sequences_that_fit(budget, lengths, page_size=page_size) == rounds * len(lengths)


def test_tokens_of_a_shared_prefix():
    # 32 users, 8,192 shared and 512 own tokens: 11.3 times fewer
    apart, once = tokens_read([512] * 32, 8192), tokens_read([512] * 32, 8192, prefix_once=True)
    assert (apart, once) == (32 * 8704, 8192 + 32 * 512)
    assert round(apart / once, 1) == 11.3
    assert tokens_read([], 8192, prefix_once=True) == tokens_read([], 8192) == 0


@pytest.mark.parametrize("kind", paging.LENGTH_KINDS)
@pytest.mark.parametrize("mean", [3, 500, 2000, 4000])
def test_lengths_have_the_mean_and_do_not_change(kind, mean):
    lengths = lengths_like(kind, mean)
    assert len(lengths) == 256 and lengths == sorted(lengths) == lengths_like(kind, mean)
    assert sum(lengths) / 256 == pytest.approx(mean, rel=0.02 if mean > 100 else 0.2)
    assert min(lengths) >= 1
    assert max(lengths) <= 7 * mean + 1


def test_log_uniform_means_equal_numbers_in_each_doubling():
    lengths = lengths_like("log-uniform", 2000, 600)
    shortest = lengths[0]
    counts = [sum(shortest * 2**i <= n < shortest * 2 ** (i + 1) for n in lengths) for i in range(6)]
    assert max(counts) - min(counts) <= 6


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="kind"):
        lengths_like("normal", 10)
    with pytest.raises(ValueError, match="capacity"):
        reserved([10], 9)
    with pytest.raises(ValueError, match="capacity or page_size"):
        sequences_that_fit(10, [1])
    with pytest.raises(ValueError, match="shared_prefix"):
        sequences_that_fit(100, [16], page_size=16, shared_prefix=16)
    with pytest.raises(ValueError, match="lengths"):
        paged([10], 16, shared_prefix=11)
    with pytest.raises(ValueError, match="page_size"):
        pages_of(1, 0)
    with pytest.raises(ValueError, match="lengths"):
        sequences_that_fit(10, [], page_size=1)


def test_nothing_is_not_waste():
    assert paged([], 16) == Occupancy(0, 0)
    assert Occupancy(0, 0).wasted == 0
