"""Who owns which page: an allocator of pages for sequences that grow, fork and end.

A sequence holds the pages of its tokens, in order; any free page will do as its next. Two sequences may share pages, which is
how a fork or a common prefix costs nothing: a page has a count of its owners and is free again when the last one leaves. A page
with several owners is never written. Whoever has to write to it gets a copy first (copy-on-write).

Only numbers live here, no keys and no values: `caches.PagedCache` has the memory, and makes the copies that `append` asks for.
(Kwon et al. 2023, 2309.06180, sections 4.2 to 4.4.)
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from ..costs.checks import whole

NO_PAGE = -1  # in entries of a block table that are not in use


class OutOfPages(RuntimeError):
    """The free pages do not suffice. Nothing was changed."""


class PageAllocator:
    """Pages 0 to n_pages - 1 of ``page_size`` tokens each, and the sequences that hold them.

    A sequence is known by the number that `allocate` and `fork` return; numbers are not used again.
    """

    def __init__(self, n_pages: int, page_size: int) -> None:
        self.n_pages = whole("n_pages", n_pages)
        self.page_size = whole("page_size", page_size)
        self._free = list(reversed(range(n_pages)))  # a stack: the page that was freed last is taken first
        self._owners = [0] * n_pages
        self._pages: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._next_sequence = 0
        self.has_memory = False  # set by the cache that it serves
        self.changes = 0  # grows with every change, so that tables made from it know when they are old

    @property
    def n_free(self) -> int:
        """Pages that no sequence holds."""
        return len(self._free)

    @property
    def sequences(self) -> tuple[int, ...]:
        """All sequences, in the order they came."""
        return tuple(self._pages)

    def length(self, sequence: int) -> int:
        """Tokens of a sequence."""
        return self._lengths[self._known(sequence)]

    def pages(self, sequence: int) -> tuple[int, ...]:
        """The pages of a sequence, in the order of its tokens: token j lies on pages(sequence)[j // page_size]."""
        return tuple(self._pages[self._known(sequence)])

    def owners(self, page: int) -> int:
        """How many sequences hold a page."""
        if whole("page", page, at_least=0) >= self.n_pages:
            raise ValueError(f"page must be below {self.n_pages}, got {page}")
        return self._owners[page]

    def allocate(self, n_tokens: int = 0) -> int:
        """A new sequence, with room for its first ``n_tokens``. OutOfPages if there is none."""
        self._demand(self._pages_of(whole("n_tokens", n_tokens, at_least=0)))
        sequence = self._new()
        self.append(sequence, n_tokens)
        return sequence

    def fork(self, sequence: int, length: int | None = None) -> int:
        """A new sequence that begins with the first ``length`` tokens of another (None: all of them), on the same pages."""
        shared = self.length(sequence)
        if length is not None:
            if whole("length", length, at_least=0) > shared:
                raise ValueError(f"length must not exceed the {shared} tokens of sequence {sequence}, got {length}")
            shared = length
        fork = self._new()
        self._pages[fork] = self._pages[sequence][: self._pages_of(shared)]
        self._lengths[fork] = shared
        for page in self._pages[fork]:
            self._owners[page] += 1
        return fork

    def append(self, sequence: int, n: int = 1) -> list[tuple[int, int]]:
        """Room for ``n`` more tokens of a sequence.

        Returns:
            The copies to make before anything is written, as (from page, to page): one, if the first new token falls on a page
            that others hold as well; else none.

        Raises:
            OutOfPages: the free pages do not suffice; nothing was changed.
        """
        self._demand(self.pages_needed([sequence], n))
        pages, length = self._pages[sequence], self._lengths[sequence]
        copies = []
        if n and self._writes_on_shared(sequence):
            copies.append((pages[-1], self._take()))
            self._owners[pages[-1]] -= 1
            pages[-1] = copies[0][1]
        pages += [self._take() for _ in range(self._pages_of(length + n) - len(pages))]
        self._lengths[sequence] = length + n
        self.changes += 1
        return copies

    def pages_needed(self, sequences: Iterable[int], n: int = 1) -> int:
        """Free pages it takes to append ``n`` tokens to each of these sequences, one after the other."""
        whole("n", n, at_least=0)
        sequences = [self._known(sequence) for sequence in sequences]
        if not n:
            return 0
        lengths = [self._lengths[sequence] for sequence in sequences]
        grown = sum(self._pages_of(length + n) - self._pages_of(length) for length in lengths)
        writers = Counter(self._pages[sequence][-1] for sequence in sequences if self._writes_on_shared(sequence))
        # The last owner of a page keeps it: by then all others have copies.
        return grown + sum(min(number, self._owners[page] - 1) for page, number in writers.items())

    def free(self, sequence: int) -> None:
        """End a sequence. Its pages are free unless others hold them too."""
        self._known(sequence)
        self.changes += 1
        del self._lengths[sequence]
        for page in reversed(self._pages.pop(sequence)):
            self._owners[page] -= 1
            if not self._owners[page]:
                self._free.append(page)

    def block_table(
        self, sequences: Sequence[int], max_pages: int | None = None, *, device: torch.device | str = "cpu"
    ) -> torch.Tensor:
        """The pages of these sequences, as kernels take them: int32 [B, max_pages], -1 where there is no page.

        ``max_pages`` None means as many as the longest of them has, at least 1.
        """
        rows = [self._pages[self._known(sequence)] for sequence in sequences]
        longest = max([1, *map(len, rows)])
        width = longest if max_pages is None else whole("max_pages", max_pages)
        if width < longest:
            raise ValueError(f"max_pages must be at least {longest}, the pages of the longest sequence, got {width}")
        table = [row + [NO_PAGE] * (width - len(row)) for row in rows]
        return torch.tensor(table, dtype=torch.int32).view(len(rows), width).to(device)

    def seq_lens(self, sequences: Sequence[int], *, device: torch.device | str = "cpu") -> torch.Tensor:
        """Tokens of these sequences, int32 [B]."""
        return torch.tensor([self.length(sequence) for sequence in sequences], dtype=torch.int32).to(device)

    @property
    def tokens_stored(self) -> int:
        """Tokens on pages; one that several sequences share counts once."""
        filled = [0] * self.n_pages
        for sequence, pages in self._pages.items():
            for i, page in enumerate(pages):
                filled[page] = max(filled[page], min(self.page_size, self._lengths[sequence] - i * self.page_size))
        return sum(filled)

    def check(self) -> None:
        """AssertionError unless each page is free or counted once for every owner, and each sequence has the pages it needs."""
        held = Counter(page for pages in self._pages.values() for page in pages)
        for page in range(self.n_pages):
            _demand_that(
                held[page] == self._owners[page], f"page {page} has {held[page]} owners, counted are {self._owners[page]}"
            )
        free = Counter(self._free)
        for page in range(self.n_pages):
            _demand_that(free[page] == (not held[page]), f"page {page} is {free[page]} times free and has {held[page]} owners")
        _demand_that(set(free) | set(held) == set(range(self.n_pages)), "there are pages that do not exist")
        for sequence, pages in self._pages.items():
            length = self._lengths[sequence]
            _demand_that(len(set(pages)) == len(pages), f"sequence {sequence} holds a page twice: {pages}")
            _demand_that(
                len(pages) == self._pages_of(length), f"sequence {sequence} of {length} tokens holds {len(pages)} pages"
            )

    def _known(self, sequence: int) -> int:
        if sequence not in self._pages:
            raise ValueError(f"sequence {sequence!r} does not exist: it was freed or never allocated")
        return sequence

    def _new(self) -> int:
        sequence = self._next_sequence
        self._next_sequence += 1
        self.changes += 1
        self._pages[sequence], self._lengths[sequence] = [], 0
        return sequence

    def _pages_of(self, n_tokens: int) -> int:
        return -(-n_tokens // self.page_size)

    def _writes_on_shared(self, sequence: int) -> bool:
        """The next token falls on a page that is begun already, and that has other owners."""
        return self._lengths[sequence] % self.page_size > 0 and self._owners[self._pages[sequence][-1]] > 1

    def _demand(self, n_pages: int) -> None:
        if n_pages > self.n_free:
            raise OutOfPages(f"{n_pages} pages of {self.page_size} tokens are needed, {self.n_free} of {self.n_pages} are free")

    def _take(self) -> int:
        page = self._free.pop()
        self._owners[page] = 1
        return page


def _demand_that(true: bool, otherwise: str) -> None:
    if not true:
        raise AssertionError(otherwise)
