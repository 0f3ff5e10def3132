"""Wrong answers to chapter 6 that are no edits of shipped code."""

import torch

import kernels
from course.layers.pages import OutOfPages
from tests.course.grading.right_answers import c06_paged_attention as right


def addressed(place):
    """Paged attention with the address of token j by ``place(row, j, page_size)`` -> (page, slot)."""

    def answer(q, k_pages, v_pages, block_table, seq_lens, **_):
        longest, size = int(seq_lens.max()), k_pages.shape[1]
        j = torch.arange(longest)
        places = [place(row, j, size) for row in block_table.long()]
        k, v = (torch.stack([pages[where].transpose(0, 1) for where in places]) for pages in (k_pages, v_pages))
        for b, n in enumerate(seq_lens.tolist()):
            k[b, :, n:] = v[b, :, n:] = 0
        return tuple(x.float() for x in kernels.reference.decode(q, k, v, seq_lens))

    return answer


def dealt_round(row, j, size):
    """Token j on the j-th page, beginning again after the last."""
    pages = -(-len(j) // size)
    return row[j % pages], j // pages


def dead_values_loaded(q, k_pages, v_pages, block_table, seq_lens, **_):
    """Whole pages, scores masked: 0 times NaN is NaN."""
    outs, lses = [], []
    for one, row, n in zip(q, block_table.long(), seq_lens.tolist(), strict=True):
        pages = -(-n // k_pages.shape[1])
        k, v = (x[row[:pages]].flatten(0, 1).transpose(0, 1) for x in (k_pages, v_pages))
        scores = torch.einsum("hgd,hnd->hgn", one.view(len(k), -1, one.shape[-1]), k) / one.shape[-1] ** 0.5
        scores[..., n:] = -torch.inf
        outs.append((scores.softmax(-1) @ v).flatten(0, 1))
        lses.append(scores.logsumexp(-1).flatten())
    return torch.stack(outs), torch.stack(lses)


class EagerFork(right.SetsOfOwners):
    """A fork gets pages of its own at once."""

    def fork(self, sequence):
        return self.allocate(self.lengths[sequence])


class NeverCopies(right.SetsOfOwners):
    def append(self, sequence, n=1):
        held = self.held[sequence]
        need = -(-(self.lengths[sequence] + n) // self.size) - len(held)
        if need > self.n_free:
            raise OutOfPages("full")
        held += [self._take(sequence) for _ in range(need)]
        self.lengths[sequence] += n
        return []


class CopiesFullPages(right.SetsOfOwners):
    """A shared last page is copied although the next token goes elsewhere."""

    def append(self, sequence, n=1):
        held = self.held[sequence]
        if n and held and self.lengths[sequence] % self.size == 0 and self.holders[held[-1]] != {sequence}:
            copies = [(held[-1], self._take(sequence))]
            self.holders[held[-1]].discard(sequence)
            held[-1] = copies[0][1]
            return copies + super().append(sequence, n)
        return super().append(sequence, n)


class OnePageAtMost(right.SetsOfOwners):
    """An append takes one page at most, as if tokens came one by one."""

    def append(self, sequence, n=1):
        copies = super().append(sequence, min(n, 1))
        self.lengths[sequence] += n - min(n, 1)
        return copies


class FreesSharedPages(right.SetsOfOwners):
    def free(self, sequence):
        for page in self.held.pop(sequence):
            self.holders[page].discard(sequence)
            self.unused.append(page)
        del self.lengths[sequence]


class FailsHalfWay(right.SetsOfOwners):
    """Pages are taken until there are none."""

    def append(self, sequence, n=1):
        held, copies = self.held[sequence], []
        if n and self.lengths[sequence] % self.size and self.holders[held[-1]] != {sequence}:
            copies = [(held[-1], self._taken(sequence))]
            self.holders[held[-1]].discard(sequence)
            held[-1] = copies[0][1]
        while len(held) * self.size < self.lengths[sequence] + n:
            held.append(self._taken(sequence))
        self.lengths[sequence] += n
        return copies

    def _taken(self, sequence):
        if not self.unused:
            raise OutOfPages("full")
        return self._take(sequence)


class NumbersAgain(right.SetsOfOwners):
    """A sequence is known by how many there are."""

    def fork(self, sequence):
        self.born = 99 + len(self.held)
        return super().fork(sequence)


class OneOwnerEach(right.SetsOfOwners):
    def owners(self, page):
        return min(1, len(self.holders[page]))


def prefix_for_each_user(q, k_prefix, v_prefix, k_own, v_own, own_lens):
    """Right, and the prefix is copied for each user."""
    k, v = (torch.cat([a.expand(len(q), *a.shape), b], 2) for a, b in ((k_prefix, k_own), (v_prefix, v_own)))
    return kernels.decode(q, k, v, own_lens + k_prefix.shape[1])[0]


def prefix_expanded(q, k_prefix, v_prefix, k_own, v_own, own_lens):
    """No copy, and each user's program reads it."""
    views = (x.expand(len(q), *x.shape) for x in (k_prefix, v_prefix))
    states = kernels.decode(q, *views, num_splits=1), kernels.decode(q, k_own, v_own, own_lens)
    return kernels.merge(*(torch.stack(each) for each in zip(*states, strict=True)))[0]


def averaged(q, k_prefix, v_prefix, k_own, v_own, own_lens):
    views = (x.expand(len(q), *x.shape) for x in (k_prefix, v_prefix))
    return (kernels.decode(q, *views)[0] + kernels.decode(q, k_own, v_own, own_lens)[0]) / 2


def heads_mixed(q, k_prefix, v_prefix, k_own, v_own, own_lens):
    """Users before KV heads in the rows of the tile."""
    out, lse = kernels.decode(q.reshape(1, -1, q.shape[-1]), k_prefix[None], v_prefix[None])
    states = (out.view(q.shape), lse.view(q.shape[:2])), kernels.decode(q, k_own, v_own, own_lens)
    return kernels.merge(*(torch.stack(each) for each in zip(*states, strict=True)))[0]


def lengths_ignored(q, k_prefix, v_prefix, k_own, v_own, own_lens):
    return right.cascade_of_kernels(q, k_prefix, v_prefix, k_own.nan_to_num(), v_own.nan_to_num(), None)


def off(key, change):
    return lambda givens: {**right.predicted(givens), key: change(givens)}


def _full(givens):
    return -(-givens["prompt_len"] // givens["page_size"])


WRONG = {
    "06_paged_attention.waste": [
        ("used instead of wasted", off("reserved_wasted", lambda g: sum(g["lengths"]) / 6 / g["capacity"])),
        ("by the formula", off("paged_wasted", lambda g: (w := 3 * (g["page_size"] - 1)) / (w + sum(g["lengths"])))),
        ("nothing shared", off("pages_of_samples", lambda g: g["samples"] * _full(g))),
        ("nobody copies", off("pages_of_samples", _full)),
        ("the last one copies too", off("pages_of_samples", lambda g: _full(g) + g["samples"])),
        ("as many as users", off("times_fewer", lambda g: g["users"])),
    ],
    "06_paged_attention.address": [
        ("table ignored", lambda: addressed(lambda row, j, size: (j // size, j % size))),
        ("table by token", lambda: addressed(lambda row, j, size: (row[j], j % size))),
        ("first slot", lambda: addressed(lambda row, j, size: (row[j // size], 0 * j))),
        ("slots from the end", lambda: addressed(lambda row, j, size: (row[j // size], size - 1 - j % size))),
        ("pages dealt round", lambda: addressed(dealt_round)),
        ("dead values loaded", lambda: dead_values_loaded),
    ],
    "06_paged_attention.pool": [
        ("a fork copies at once", lambda: EagerFork),
        ("never copies", lambda: NeverCopies),
        ("copies full pages", lambda: CopiesFullPages),
        ("one page at most", lambda: OnePageAtMost),
        ("frees pages of others", lambda: FreesSharedPages),
        ("fails half way", lambda: FailsHalfWay),
        ("numbers used again", lambda: NumbersAgain),
        ("owners are not counted", lambda: OneOwnerEach),
    ],
    "06_paged_attention.cascade": [
        ("copied for each user", lambda: prefix_for_each_user),
        ("read by each user", lambda: prefix_expanded),
        ("averaged", lambda: averaged),
        ("heads of users mixed", lambda: heads_mixed),
        ("lengths ignored", lambda: lengths_ignored),
    ],
}  # fmt: skip
