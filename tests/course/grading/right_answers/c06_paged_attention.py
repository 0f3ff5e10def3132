"""Right answers to chapter 6, written in ways that are not ours."""

import collections
import heapq

import torch

import kernels
from course.grading import packages
from course.layers.pages import OutOfPages

EVERY_TOKEN_LOOKS_UP = """
@triton.jit
def load_paged(cache, sequence, kv_head, start, stop, BLOCK_N: tl.constexpr, LAYOUT: tl.constexpr, MASKED: tl.constexpr):
    place = start + tl.arange(0, BLOCK_N)
    alive = place < stop
    page = place // LAYOUT.page
    slot = place - page * LAYOUT.page
    number = tl.load(cache.block_table + sequence * cache.table_sequence + page * cache.table_entry, mask=alive, other=0)
    return load_blocks(cache, kv_head, number.to(tl.int64), 0, slot.to(tl.int64), alive, LAYOUT, True)
"""


def gathered(q, k_pages, v_pages, block_table, seq_lens, **_):
    """Plain tensors from the pages, then attention over them, one sequence after the other."""
    outs, lses = [], []
    for one, row, n in zip(q, block_table.long(), seq_lens.tolist(), strict=True):
        j = torch.arange(n, device=q.device)
        k, v = (pages[row[j // pages.shape[1]], j % pages.shape[1]].transpose(0, 1) for pages in (k_pages, v_pages))
        grouped = one.view(len(k), -1, one.shape[-1])
        scores = torch.einsum("hgd,hnd->hgn", grouped, k) / one.shape[-1] ** 0.5
        outs.append((scores.softmax(-1) @ v).flatten(0, 1))
        lses.append(scores.logsumexp(-1).flatten())
    return torch.stack(outs), torch.stack(lses)


class SetsOfOwners:
    """No counts: each page knows who holds it. The lowest free page is taken first."""

    def __init__(self, n_pages, page_size):
        self.size, self.held, self.lengths = page_size, {}, {}
        self.holders = [set() for _ in range(n_pages)]
        self.unused = list(range(n_pages))
        self.born = 100

    @property
    def n_free(self):
        return len(self.unused)

    def allocate(self, n_tokens=0):
        if -(-n_tokens // self.size) > self.n_free:
            raise OutOfPages("full")
        self.born += 1
        self.held[self.born], self.lengths[self.born] = [], 0
        self.append(self.born, n_tokens)
        return self.born

    def fork(self, sequence):
        self.born += 1
        self.held[self.born], self.lengths[self.born] = self.held[sequence][:], self.lengths[sequence]
        for page in self.held[sequence]:
            self.holders[page].add(self.born)
        return self.born

    def append(self, sequence, n=1):
        held, length = self.held[sequence], self.lengths[sequence]
        room = len(held) * self.size - length
        copied = n > 0 and room > 0 and self.holders[held[-1]] != {sequence}
        if max(0, -((room - n) // self.size)) + copied > self.n_free:
            raise OutOfPages("full")
        copies = []
        if copied:
            copies = [[held[-1], self._take(sequence)]]
            self.holders[held[-1]].discard(sequence)
            held[-1] = copies[0][1]
        while len(held) * self.size < length + n:
            held.append(self._take(sequence))
        self.lengths[sequence] = length + n
        return copies

    def _take(self, sequence):
        page = heapq.heappop(self.unused)
        self.holders[page] = {sequence}
        return page

    def free(self, sequence):
        for page in self.held.pop(sequence):
            self.holders[page].discard(sequence)
            if not self.holders[page]:
                heapq.heappush(self.unused, page)
        del self.lengths[sequence]

    def pages(self, sequence):
        return list(self.held[sequence])

    def length(self, sequence):
        return self.lengths[sequence]

    def owners(self, page):
        return len(self.holders[page])


class NothingKept:
    """Only the pages of each sequence are kept; counts and free pages are found anew each time."""

    def __init__(self, n_pages, page_size):
        self.total, self.size, self.rows, self.numbers = n_pages, page_size, {}, iter(range(1000))

    def _counts(self):
        return collections.Counter(page for row, _ in self.rows.values() for page in row)

    def _unused(self):
        counts = self._counts()
        return [page for page in range(self.total) if page not in counts]

    n_free = property(lambda self: len(self._unused()))

    def allocate(self, n_tokens=0):
        free = self._unused()
        row = tuple(free[: (n_tokens + self.size - 1) // self.size])
        if len(row) * self.size < n_tokens:
            raise OutOfPages("no room")
        number = next(self.numbers)
        self.rows[number] = row, n_tokens
        return number

    def fork(self, sequence):
        number = next(self.numbers)
        self.rows[number] = self.rows[sequence]
        return number

    def append(self, sequence, n=1):
        (row, length), free, counts = self.rows[sequence], self._unused(), self._counts()
        copies = []
        if n and length % self.size and counts[row[-1]] > 1:
            if not free:
                raise OutOfPages("no room for a copy")
            copies = [(row[-1], free[0])]
            row, free = (*row[:-1], free[0]), free[1:]
        more = (length + n + self.size - 1) // self.size - len(row)
        if more > len(free):
            raise OutOfPages("no room")
        self.rows[sequence] = (*row, *free[:more]), length + n
        return copies

    def free(self, sequence):
        del self.rows[sequence]

    def pages(self, sequence):
        return self.rows[sequence][0]

    def length(self, sequence):
        return self.rows[sequence][1]

    def owners(self, page):
        return self._counts()[page]


def cascade_of_kernels(q, k_prefix, v_prefix, k_own, v_own, own_lens):
    users, heads, width = q.shape
    grouped = q.view(users, len(k_prefix), -1, width).transpose(0, 1)
    out, lse = kernels.decode(grouped.reshape(1, -1, width), k_prefix[None], v_prefix[None], num_splits=1)
    out = out.view(*grouped.shape[:3], -1).transpose(0, 1).reshape(users, heads, -1)
    lse = lse.view(grouped.shape[:3]).transpose(0, 1).reshape(users, heads)
    own, own_lse = kernels.decode(q, k_own, v_own, own_lens)
    return kernels.merge(torch.stack([out, own]), torch.stack([lse, own_lse]))[0]


def cascade_of_einsum(q, k_prefix, v_prefix, k_own, v_own, own_lens):
    """One softmax over scores that lie side by side."""
    users, heads, width = q.shape
    n_kv_heads, prefix, _ = k_prefix.shape
    q = q.view(users, n_kv_heads, -1, width) * width**-0.5
    dead = torch.arange(k_own.shape[2], device=q.device) >= own_lens[:, None]
    k_own, v_own = (x.masked_fill(dead[:, None, :, None], 0.0) for x in (k_own, v_own))
    own = torch.einsum("bkgd,bknd->bkgn", q, k_own).masked_fill(dead[:, None, None], -torch.inf)
    rows = q.transpose(0, 1).flatten(1, 2)
    first = (rows @ k_prefix.transpose(1, 2)).view(n_kv_heads, users, -1, prefix).transpose(0, 1)
    weights = torch.cat([first, own], -1).softmax(-1)
    shared = weights[..., :prefix].transpose(0, 1).flatten(1, 2) @ v_prefix
    shared = shared.view(n_kv_heads, users, -1, v_prefix.shape[-1]).transpose(0, 1)
    return (shared + torch.einsum("bkgn,bknd->bkgd", weights[..., prefix:], v_own)).reshape(users, heads, -1)


def predicted(givens):
    """By counting slots."""
    lengths, size = givens["lengths"], givens["page_size"]
    slots = sum(-(-n // size) * size for n in lengths)
    reserved = givens["capacity"] * len(lengths)
    users, prefix, own = givens["users"], givens["prefix"], givens["own"]
    return {
        "reserved_wasted": (reserved - sum(lengths)) / reserved,
        "paged_wasted": 100 * (slots - sum(lengths)) / slots,
        # The prompt never ends with a page here: all samples but one copy the page on which it ends.
        "pages_of_samples": -(-givens["prompt_len"] // size) + givens["samples"] - 1,
        "times_fewer": users * (prefix + own) / (prefix + users * own),
    }


RIGHT = {
    "06_paged_attention.waste": [("slots counted, one in per cent", lambda givens: predicted(givens))],
    "06_paged_attention.address": [
        ("every token looks up", lambda: packages.changed("kernels/paged.py", EVERY_TOKEN_LOOKS_UP).paged_decode),
        ("gathered into plain tensors", lambda: gathered),
    ],
    "06_paged_attention.pool": [("sets of owners", lambda: SetsOfOwners), ("nothing kept", lambda: NothingKept)],
    "06_paged_attention.cascade": [
        ("kernels and a merge", lambda: cascade_of_kernels),
        ("one softmax, einsum", lambda: cascade_of_einsum),
    ],
}
