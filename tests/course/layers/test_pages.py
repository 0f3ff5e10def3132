"""The allocator: any sequence of operations against a model in which every sequence has its own list of tokens."""

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from course.layers import OutOfPages, PageAllocator


class AllocatorMachine(RuleBasedStateMachine):
    """Tokens are written to pages as a cache would; each sequence must read back its own, whatever the others did."""

    @initialize(n_pages=st.integers(1, 12), page_size=st.integers(1, 5))
    def begin(self, n_pages, page_size):
        self.allocator = PageAllocator(n_pages, page_size)
        self.memory = [[None] * page_size for _ in range(n_pages)]
        self.texts = {}
        self.written = 0

    def any_sequence(self, data):
        return data.draw(st.sampled_from(sorted(self.texts)))

    @rule()
    def allocate(self):
        sequence = self.allocator.allocate()
        assert sequence not in self.texts
        self.texts[sequence] = []

    @rule(data=st.data(), n=st.integers(0, 9))
    @precondition(lambda self: self.texts)
    def append(self, data, n):
        sequence = self.any_sequence(data)
        before, needed = self.allocator.n_free, self.allocator.pages_needed([sequence], n)
        state = {s: self.allocator.pages(s) for s in self.texts}
        try:
            copies = self.allocator.append(sequence, n)
        except OutOfPages:
            assert needed > before
            assert state == {s: self.allocator.pages(s) for s in self.texts} and self.allocator.n_free == before
            return
        assert before - self.allocator.n_free == needed <= before
        for source, target in copies:
            self.memory[target] = list(self.memory[source])
        for _ in range(n):
            self.written += 1
            position = len(self.texts[sequence])
            page = self.allocator.pages(sequence)[position // self.allocator.page_size]
            assert self.allocator.owners(page) == 1, "a page with several owners is written"
            self.memory[page][position % self.allocator.page_size] = self.written
            self.texts[sequence].append(self.written)

    @rule(data=st.data())
    @precondition(lambda self: self.texts)
    def fork(self, data):
        sequence, before = self.any_sequence(data), self.allocator.n_free
        length = data.draw(st.none() | st.integers(0, len(self.texts[sequence])))
        self.texts[self.allocator.fork(sequence, length)] = self.texts[sequence][:length]
        assert self.allocator.n_free == before, "a fork takes no page"

    @rule(data=st.data())
    @precondition(lambda self: self.texts)
    def free(self, data):
        sequence = self.any_sequence(data)
        self.allocator.free(sequence)
        del self.texts[sequence]

    @invariant()
    def each_sequence_reads_its_own(self):
        if not hasattr(self, "texts"):
            return
        self.allocator.check()
        size = self.allocator.page_size
        places = set()
        for sequence, text in self.texts.items():
            pages = self.allocator.pages(sequence)
            assert [self.memory[pages[j // size]][j % size] for j in range(len(text))] == text
            places |= {(pages[j // size], j % size) for j in range(len(text))}
        assert self.allocator.tokens_stored == len(places)
        assert set(self.allocator.sequences) == set(self.texts)
        if not self.texts:
            assert self.allocator.n_free == self.allocator.n_pages, "a page has leaked"


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=30)


def test_by_hand():
    allocator = PageAllocator(5, 4)
    first = allocator.allocate(6)
    assert allocator.pages(first) == (0, 1) and allocator.length(first) == 6 and allocator.n_free == 3
    second = allocator.fork(first)
    assert allocator.owners(0) == allocator.owners(1) == 2 and allocator.n_free == 3
    assert allocator.append(second) == [(1, 2)]  # the last page is begun and shared
    assert allocator.pages(second) == (0, 2) and allocator.owners(1) == 1
    assert allocator.append(first) == []  # now it has page 1 alone
    assert allocator.block_table([second, first], 3).tolist() == [[0, 2, -1], [0, 1, -1]]
    assert allocator.seq_lens([first, second]).tolist() == [7, 7]
    allocator.free(first)
    assert allocator.n_free == 3 and allocator.owners(0) == 1
    allocator.check()


def test_a_full_shared_page_is_not_copied():
    allocator = PageAllocator(4, 2)
    first = allocator.allocate(4)
    second = allocator.fork(first)
    assert allocator.append(second, 1) == [] and allocator.append(first, 1) == []
    assert allocator.pages(first)[:2] == allocator.pages(second)[:2]
    assert allocator.pages(first)[2] != allocator.pages(second)[2]


def test_a_prefix_is_shared():
    allocator = PageAllocator(4, 4)
    first = allocator.allocate(8)
    second = allocator.fork(first, 5)
    assert allocator.pages(second) == allocator.pages(first) and allocator.length(second) == 5
    assert allocator.append(second, 1) == [(1, 2)]
    assert allocator.fork(first, 0) and allocator.pages(allocator.sequences[-1]) == ()


def test_pages_for_several_sequences_at_once():
    allocator = PageAllocator(8, 4)
    first = allocator.allocate(5)
    forks = [allocator.fork(first) for _ in range(2)]
    assert allocator.pages_needed([first, *forks]) == 2  # the last of three keeps the page
    assert allocator.pages_needed(forks) == 2
    assert allocator.pages_needed([first, *forks], 4) == 3 + 2
    assert allocator.pages_needed([first, *forks], 0) == 0


def test_too_few_pages_change_nothing():
    allocator = PageAllocator(2, 4)
    first = allocator.allocate(5)
    for call in (lambda: allocator.append(first, 4), lambda: allocator.allocate(1)):
        with pytest.raises(OutOfPages, match="1 pages of 4 tokens are needed, 0 of 2 are free"):
            call()
    assert allocator.length(first) == 5 and allocator.sequences == (first,)
    allocator.check()


def test_table_widths_and_types():
    allocator = PageAllocator(4, 2)
    first, empty = allocator.allocate(3), allocator.allocate()
    table = allocator.block_table([empty, first])
    assert table.dtype == torch.int32 and table.tolist() == [[-1, -1], [0, 1]]
    assert allocator.block_table([empty]).tolist() == [[-1]]
    assert allocator.block_table([]).shape == (0, 1) and allocator.seq_lens([]).shape == (0,)


@pytest.mark.parametrize(
    "error, words, call",
    [
        (ValueError, "n_pages must be at least 1", lambda a: PageAllocator(0, 4)),
        (TypeError, "page_size must be a whole", lambda a: PageAllocator(4, 2.0)),
        (ValueError, "n must be at least 0", lambda a: a.append(0, -1)),
        (ValueError, "sequence 7 does not exist", lambda a: a.append(7)),
        (ValueError, "sequence 7 does not exist", lambda a: a.fork(7)),
        (ValueError, "sequence 7 does not exist", lambda a: a.free(7)),
        (ValueError, "length must not exceed the 3 tokens", lambda a: a.fork(0, 4)),
        (ValueError, "max_pages must be at least 2", lambda a: a.block_table([0], 1)),
        (ValueError, "page must be below 4", lambda a: a.owners(4)),
    ],
)
def test_refusals(error, words, call):
    allocator = PageAllocator(4, 2)
    allocator.allocate(3)
    with pytest.raises(error, match=words):
        call(allocator)


def test_freed_is_gone():
    allocator = PageAllocator(4, 2)
    first = allocator.allocate(3)
    allocator.free(first)
    with pytest.raises(ValueError, match="was freed or never"):
        allocator.free(first)
    assert allocator.allocate() != first


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda a: a._free.append(0), "page 0 is 1 times free"),
        (lambda a: a._free.pop(), "page 2 is 0 times free"),
        (lambda a: a._pages[0].append(0), "page 0 has 2 owners, counted are 1"),
        (lambda a: a._owners.__setitem__(3, 1), "page 3 has 0 owners, counted are 1"),
        (lambda a: a._lengths.__setitem__(0, 9), "holds 2 pages"),
        (lambda a: a._free.append(9), "do not exist"),
    ],
)
def test_check_finds_what_is_wrong(spoil, words):
    allocator = PageAllocator(4, 2)
    allocator.allocate(3)
    spoil(allocator)
    with pytest.raises(AssertionError, match=words):
        allocator.check()
