"""What is true of paged attention and of who owns which page: addresses, dead slots, look-ups, reference counts, reuse.

Addresses are tried where wrong ones show: pages of several tokens in random order, several a sequence, with NaN in every slot
and page that no token lies on. Around the pages in use lies memory of ours, so that a wrong address reads NaN or another
token, and nothing else of the process.
"""

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

import kernels
from kernels import reference

from .. import judge
from ..answers import Answer
from ..draw import Draw
from ..judge import Wrong
from ..tasks import Property, named
from .full_sequence import needs_triton

DECODED = ("sequence", "query head", "column")


def _pages_of(n_tokens: int, page_size: int) -> int:
    return -(-n_tokens // page_size)


class _Cache:
    """Sequences of drawn tokens on pages in random order; everything else is NaN.

    A row of the table has an entry for each token of the longest sequence. Those beyond a sequence's pages name a page of NaN,
    behind which there are as many more as the longest sequence is long.
    """

    def __init__(self, draw: Draw, page_size: int, lengths: Sequence[int], n_kv_heads: int = 2, width: int = 16):
        batch, longest = len(lengths), max(lengths)
        self.q = draw.tensor(batch, 2 * n_kv_heads, width)
        self.k, self.v = draw.tensor(2, batch, n_kv_heads, longest, width)
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=self.q.device)
        counts = [_pages_of(n, page_size) for n in lengths]
        order, dead = draw.permutation(sum(counts)).tolist(), sum(counts)
        rows = [[order.pop() for _ in range(count)] for count in counts]
        table = [row + [dead] * (longest - len(row)) for row in rows]
        self.table = torch.tensor(table, dtype=torch.int32, device=self.q.device)
        shape = (dead + 1 + _pages_of(longest, page_size), page_size, n_kv_heads, width)
        self.k_pages, self.v_pages = (torch.full(shape, math.nan, device=self.q.device) for _ in range(2))
        for b, length in enumerate(lengths):
            for j in range(length):
                page, slot = rows[b][j // page_size], j % page_size
                self.k_pages[page, slot], self.v_pages[page, slot] = self.k[b, :, j], self.v[b, :, j]

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return self.q, self.k_pages, self.v_pages, self.table, self.lengths

    def expected(self) -> tuple[Tensor, Tensor]:
        return reference.decode(self.q.cpu(), self.k.cpu(), self.v.cpu(), self.lengths.cpu())


def _same(result, cache: _Cache, page_size: int) -> None:
    out, lse = judge.parts(result, 2, "out, lse")
    lengths = ", ".join(map(str, cache.lengths.tolist()))
    hint = f"Pages of {page_size} tokens in random order, sequences of {lengths}; what is no token of theirs is NaN."
    expected, expected_lse = cache.expected()
    judge.close(out, expected, DECODED, "out", 1e-4, hint)
    judge.close(lse, expected_lse, DECODED[:2], "lse", 1e-4, hint)


@named("pages in any order", "pages smaller than a tile, several a sequence, in random order; dead slots hold NaN")
def small_pages(answer: Answer, draw: Draw) -> None:
    """For an answer like `kernels.paged_decode`."""
    needs_triton()
    page_size = draw.choice((4, 8, 16))
    cache = _Cache(draw, page_size, [draw.integer(35, 50), draw.integer(17, 31)])
    _same(answer(*cache.arguments, num_splits=1), cache, page_size)


@named("pages larger than a tile", "pages that hold several tiles, several a sequence, in random order")
def large_pages(answer: Answer, draw: Draw) -> None:
    """For an answer like `kernels.paged_decode`."""
    needs_triton()
    page_size = draw.choice((64, 96))
    cache = _Cache(draw, page_size, [draw.integer(page_size + 33, page_size + 60), draw.integer(33, 60)], n_kv_heads=1)
    _same(answer(*cache.arguments, num_splits=1), cache, page_size)


@named("page sizes that fit no tile", "pages whose size neither divides a tile nor is divided by one, in two splits")
def odd_pages(answer: Answer, draw: Draw) -> None:
    """For an answer like `kernels.paged_decode`."""
    needs_triton()
    page_size = draw.choice((12, 20, 24, 40))
    cache = _Cache(draw, page_size, [draw.integer(65, 80)], n_kv_heads=1)
    _same(answer(*cache.arguments, num_splits=2), cache, page_size)


@named("one look-up a token", "no more look-ups than one for each token and KV head, and the cache read once")
def look_ups(answer: Answer, draw: Draw) -> None:
    """For an answer like `kernels.paged_decode`."""
    needs_triton()
    page_size, heads = draw.choice((4, 8)), 2
    cache = _Cache(draw, page_size, [draw.integer(33, 45), draw.integer(5, 31)], n_kv_heads=heads)
    seen = answer.observe(*cache.arguments, num_splits=1)
    _same(seen.result, cache, page_size)
    tokens = int(cache.lengths.sum())
    asked, most = seen.requested(3), tokens * heads
    if asked > most:
        raise Wrong(
            f"{asked} entries of the table were read for {tokens} tokens and {heads} KV heads. Entries beyond a sequence's "
            "length may hold anything: they are not to be followed, and not to be read."
        )
    elements = tokens * heads * cache.q.shape[-1]
    for name, i in (("keys", 1), ("values", 2)):
        if seen.requested(i) > elements:
            raise Wrong(f"{seen.requested(i):,} elements of the {name} were read, and the sequences have {elements:,}")


class _Watched:
    """An allocator that is asked and never believed: what it says is written down and held against a memory of tokens."""

    def __init__(self, answer: Answer, n_pages: int, page_size: int):
        self.n_pages, self.page_size = n_pages, page_size
        self.pool = answer(n_pages, page_size)
        if self.pool is None:
            raise NotImplementedError
        if not isinstance(self.pool, Answer):
            raise Wrong(f"the class must make an object, got {type(self.pool).__name__}")
        self.ask = {name: self.pool.get(name) for name in ("allocate", "fork", "append", "free", "pages", "length", "owners")}
        self.tokens: dict[int, list[int]] = {}
        self.memory = [[None] * page_size for _ in range(n_pages)]
        self.written, self.said = 0, f"Pool({n_pages}, {page_size})"

    def _do(self, name: str, *args):
        self.said = f"after {name}({', '.join(map(str, args))})"
        return self.ask[name](*args)

    def _new(self, sequence) -> int:
        if type(sequence) is not int or sequence in self.tokens:
            raise Wrong(f"{self.said}: the number of a new sequence must be an int that none has, got {sequence!r:.60}")
        return sequence

    def held(self, sequence: int) -> list[int]:
        """The pages of a sequence, checked to be pages."""
        pages = self.ask["pages"](sequence)
        if not isinstance(pages, list | tuple) or not all(type(page) is int for page in pages):
            raise Wrong(f"pages({sequence}) must be a list or tuple of ints, got {pages!r:.80}")
        strange = [page for page in pages if not 0 <= page < self.n_pages]
        if strange:
            raise Wrong(f"{self.said}: sequence {sequence} holds page {strange[0]}, pages are 0 to {self.n_pages - 1}")
        if len(set(pages)) < len(pages):
            raise Wrong(f"{self.said}: sequence {sequence} holds a page twice: {list(pages)}")
        needed = _pages_of(len(self.tokens[sequence]), self.page_size)
        if len(pages) != needed:
            raise Wrong(
                f"{self.said}: sequence {sequence} has {len(self.tokens[sequence])} tokens and holds {len(pages)} pages of "
                f"{self.page_size}; it needs {needed}"
            )
        return list(pages)

    def counted(self) -> Counter:
        """Owners of each page, by the pages that the sequences say they hold."""
        return Counter(page for sequence in self.tokens for page in self.held(sequence))

    def free_pages(self) -> int:
        return int(judge.number(self.pool.get("n_free"), "n_free"))

    def allocate(self, n_tokens: int) -> int:
        sequence = self._new(self._do("allocate", n_tokens))
        self.tokens[sequence] = []
        self._write(sequence, n_tokens)
        return sequence

    def fork(self, sequence: int) -> int:
        before = self.held(sequence)
        fork = self._new(self._do("fork", sequence))
        self.tokens[fork] = list(self.tokens[sequence])
        if self.held(fork) != before:
            raise Wrong(
                f"{self.said}: sequence {sequence} lies on pages {before} and its fork on {self.held(fork)}; a fork begins on "
                "the same pages, for nothing has been written yet"
            )
        return fork

    def append(self, sequence: int, n: int = 1) -> None:
        owners, before = self.counted(), self.held(sequence)
        copies = self._do("append", sequence, n)
        if not isinstance(copies, list | tuple) or not all(isinstance(c, list | tuple) and len(c) == 2 for c in copies):
            raise Wrong(f"append must return a list of copies (from page, to page), got {copies!r:.80}")
        shared = n > 0 and len(self.tokens[sequence]) % self.page_size > 0 and owners[before[-1]] > 1
        if len(copies) != shared:
            length, said = len(self.tokens[sequence]), self.said
            raise Wrong(
                f"{said}: copies asked for: {len(copies)}. The sequence had {length} tokens on pages of {self.page_size}"
                + (f"; owners of its last page: {owners[before[-1]]}" if before else "")
                + ". A page is copied if a token is going to be written on it and somebody else holds it too, and else not."
            )
        for source, target in copies:
            if source not in before or type(target) is not int or not 0 <= target < self.n_pages or owners[target]:
                raise Wrong(
                    f"{self.said}: a copy from page {source!r:.20} to page {target!r:.20} was asked for. It has to be from a "
                    "page of the sequence to one that was free"
                )
            self.memory[target] = list(self.memory[source])
        self._write(sequence, n)

    def _write(self, sequence: int, n: int) -> None:
        """Write the new tokens where the allocator says, as a cache would."""
        first = len(self.tokens[sequence])
        self.tokens[sequence] += range(self.written, self.written + n)
        self.written += n
        pages = self.held(sequence)
        for j in range(first, first + n):
            self.memory[pages[j // self.page_size]][j % self.page_size] = self.tokens[sequence][j]

    def free(self, sequence: int) -> None:
        self._do("free", sequence)
        del self.tokens[sequence]

    def refused(self, name: str, *args) -> None:
        """It has to raise OutOfPages and to leave everything as it was."""
        before = self.free_pages(), {sequence: self.held(sequence) for sequence in self.tokens}
        try:
            self._do(name, *args)
        except (NotImplementedError, Wrong):
            raise
        except Exception as error:
            if "OutOfPages" not in [kind.__name__ for kind in type(error).__mro__]:
                raise
        else:
            raise Wrong(f"{name}({', '.join(map(str, args))}) must raise OutOfPages with {before[0]} free pages, and returned")
        after = self.free_pages(), {sequence: self.held(sequence) for sequence in self.tokens}
        if before != after:
            raise Wrong(
                f"{name}({', '.join(map(str, args))}) raised OutOfPages, and something changed: free pages were {before[0]} "
                f"and are {after[0]}. Count what is needed before you take anything."
            )

    def look(self, owners: bool = False) -> None:
        """All that has to hold after any operation."""
        counted = self.counted()
        for sequence, tokens in self.tokens.items():
            length = judge.number(self.ask["length"](sequence), f"length({sequence})")
            if length != len(tokens):
                raise Wrong(f"{self.said}: length({sequence}) is {length:g}, and {len(tokens)} tokens were appended")
            pages = self.held(sequence)
            for j, token in enumerate(tokens):
                if self.memory[pages[j // self.page_size]][j % self.page_size] != token:
                    raise Wrong(
                        f"{self.said}: token {j} of sequence {sequence} is not on page {pages[j // self.page_size]}: it was "
                        "never copied there, or another sequence has written over it. Who may write on a shared page?"
                    )
        free, wanted = self.free_pages(), self.n_pages - len(counted)
        if free != wanted:
            fault = (
                "pages are leaked: nobody holds them and they are not free"
                if free < wanted
                else "pages are free that somebody holds"
            )
            raise Wrong(f"{self.said}: n_free is {free}, and {len(counted)} of {self.n_pages} pages are held; {fault}")
        for page in range(self.n_pages) if owners else ():
            said = judge.number(self.ask["owners"](page), f"owners({page})")
            if said != counted[page]:
                raise Wrong(f"{self.said}: owners({page}) is {said:g}; sequences that hold that page: {counted[page]}")

    def end(self) -> None:
        """Free everything that is left."""
        for sequence in list(self.tokens):
            self.free(sequence)
            self.look()
        self.look(owners=True)


@named("growing", "sequences that grow and end: pages enough and no more, none owned twice, none leaked")
def growing(answer: Answer, draw: Draw) -> None:
    """For a class (n_pages, page_size)."""
    pool = _Watched(answer, 12, draw.choice((3, 4)))
    pool.look()
    first, second = pool.allocate(draw.integer(2, 6)), pool.allocate(0)
    for _ in range(4):
        pool.append(first, draw.integer(1, 3))
        pool.append(second)
        pool.look()
    pool.append(second, pool.page_size * _pages_of(len(pool.tokens[second]), pool.page_size) - len(pool.tokens[second]))
    pool.look()  # its last page is full to the brim
    pool.free(first)
    pool.look()
    pool.allocate(3 * pool.page_size)
    pool.look()
    pool.end()


@named("copy-on-write", "forks share pages until one of them writes, and no token is lost")
def copy_on_write(answer: Answer, draw: Draw) -> None:
    """For a class (n_pages, page_size)."""
    size = draw.choice((3, 4, 5))
    pool = _Watched(answer, 20, size)
    samples = [pool.allocate(2 * size + draw.integer(1, size - 1))]  # the last page is begun
    samples += [pool.fork(samples[0]) for _ in range(2)]
    pool.look(owners=True)
    for sample in samples:  # the last writer is alone on the page by then
        pool.append(sample, draw.integer(1, 2 * size))
        pool.look(owners=True)
    pool.end()
    full = pool.allocate(2 * size)  # full pages: the next token has a page of its own
    fork = pool.fork(full)
    for sequence in (fork, full):
        pool.append(sequence)
        pool.look(owners=True)
    pool.append(pool.fork(full), 0)
    pool.look(owners=True)
    pool.end()


@named("reference counts", "a page is free when its last owner has gone, and not before")
def reference_counts(answer: Answer, draw: Draw) -> None:
    """For a class (n_pages, page_size)."""
    size = draw.choice((2, 3))
    pool = _Watched(answer, 10, size)
    root = pool.allocate(2 * size + 1)
    forks = [pool.fork(root) for _ in range(3)]
    pool.append(forks[0])
    pool.look(owners=True)
    for sequence in draw.some([root, *forks], 4):
        pool.free(sequence)
        pool.look(owners=True)
    pool.allocate(10 * size)
    pool.look(owners=True)
    pool.end()


@named("out of pages", "what does not fit is refused before anything has changed")
def out_of_pages(answer: Answer, draw: Draw) -> None:
    """For a class (n_pages, page_size)."""
    size = draw.choice((3, 4))
    pool = _Watched(answer, 5, size)
    pool.refused("allocate", 5 * size + 1)
    first = pool.allocate(2 * size + 1)
    second = pool.fork(first)
    pool.refused("allocate", 2 * size + 1)
    # The copy takes one of the two free pages, so the tokens have the rest of that page and one page more.
    pool.refused("append", second, 2 * size)
    pool.append(second, 2 * size - 1)
    pool.look(owners=True)
    pool.refused("append", first, size)
    pool.append(first, size - 1)
    pool.look(owners=True)
    pool.end()


@named("random operations", "sequences come, grow, fork and end in any order")
def random_operations(answer: Answer, draw: Draw) -> None:
    """For a class (n_pages, page_size)."""
    size = draw.choice((2, 3, 4))
    pool = _Watched(answer, 16, size)
    for step in range(60):
        live, free = list(pool.tokens), pool.free_pages()
        action = draw.choice(("allocate", "append", "append", "append", "fork", "fork", "free"))
        if not live or (action == "allocate" and len(live) < 6):
            pool.allocate(draw.integer(0, min(free, 3) * size))
        elif action == "append" and free >= 3:
            pool.append(draw.choice(live), draw.integer(0, 2 * size))
        elif action == "fork" and len(live) < 6:
            pool.fork(draw.choice(live))
        else:
            pool.free(draw.choice(live))
        pool.look(owners=step % 6 == 5)
    pool.end()


@named("paging after reuse", "attention over pages that others have left, with NaN in every slot without a token")
def reuse(answer: Answer, draw: Draw) -> None:
    """For a class (n_pages, page_size)."""
    size, width = draw.choice((3, 4)), 16
    pool = _Watched(answer, 12, size)
    old = [pool.allocate(draw.integer(2 * size, 3 * size)) for _ in range(2)]
    first = pool.allocate(draw.integer(size + 1, 2 * size - 1))
    pool.free(old[0])
    second = pool.fork(first)
    third = pool.allocate(draw.integer(1, 2 * size))
    pool.free(old[1])
    for sequence in (second, third, first, third):
        pool.append(sequence, draw.integer(1, size))
    pool.look(owners=True)
    sequences = [first, second, third]
    values = draw.tensor(2, pool.written, 1, width)
    k_pages, v_pages = torch.full((2, pool.n_pages, size, 1, width), math.nan, device=values.device)
    for pages, rows in ((k_pages, values[0]), (v_pages, values[1])):
        for sequence in sequences:
            for j, token in enumerate(pool.tokens[sequence]):
                pages[pool.held(sequence)[j // size], j % size] = rows[token]
    rows = [pool.held(sequence) for sequence in sequences]
    longest = max(map(len, rows))
    table = torch.tensor([row + [-1] * (longest - len(row)) for row in rows], dtype=torch.int32, device=values.device)
    lengths = torch.tensor([len(pool.tokens[s]) for s in sequences], dtype=torch.int32, device=values.device)
    q = draw.tensor(3, 2, width)
    got, _ = kernels.paged_decode(q, k_pages, v_pages, table, lengths)
    for b, sequence in enumerate(sequences):
        k, v = values[:, pool.tokens[sequence]].transpose(1, 2)
        expected, _ = reference.decode(q[b : b + 1].cpu(), k[None].cpu(), v[None].cpu())
        hint = f"Sequence {sequence} lies on pages {rows[b]}, some of which others held before."
        judge.close(got[b : b + 1], expected, DECODED, f"attention of sequence {sequence}", 1e-4, hint)
    pool.end()


def _users(draw: Draw, own: Sequence[int]) -> tuple[tuple[Tensor, ...], Tensor]:
    """q, prefix, own tokens and their lengths for users of one prefix; and attention over both."""
    heads, group, width, prefix = 2, 2, 16, draw.integer(33, 60)
    q = draw.tensor(len(own), heads * group, width)
    k_prefix, v_prefix = draw.tensor(2, heads, prefix, width)
    k_own, v_own = draw.tensor(2, len(own), heads, max(own), width)
    lengths = torch.tensor(own, dtype=torch.int32, device=q.device)
    whole = [torch.cat([a.expand(len(own), *a.shape), b], 2).cpu() for a, b in ((k_prefix, k_own), (v_prefix, v_own))]
    expected, _ = reference.decode(q.cpu(), *whole, (lengths + prefix).cpu())
    for b, length in enumerate(own):
        k_own[b, :, length:] = v_own[b, :, length:] = math.nan
    return (q, k_prefix, v_prefix, k_own, v_own, lengths), expected


def prefix_and_own(name: str, about: str, own: Sequence[int]) -> Property:
    """Attention of several users over one prefix and their own tokens, so many each (a range for what is drawn)."""

    @named(name, about)
    def check(answer: Answer, draw: Draw) -> None:
        lengths = [n if n < 2 else draw.integer(n // 2, n) for n in own]
        given, expected = _users(draw, lengths)
        hint = f"{len(own)} users of {', '.join(map(str, lengths))} own tokens after a prefix of {given[1].shape[1]}."
        judge.close(answer(*given), expected, DECODED, "out", 1e-4, hint)

    return check


@named("prefix read once", "keys and values of the prefix are asked for once in all, and not copied for each user")
def prefix_read_once(answer: Answer, draw: Draw) -> None:
    """For an answer (q, k_prefix, v_prefix, k_own, v_own, own_lens) -> out."""
    needs_triton()
    given, expected = _users(draw, [draw.integer(3, 8) for _ in range(3)])
    seen = answer.observe(*given)
    judge.close(seen.result, expected, DECODED, "out", 1e-4)
    prefix = given[1].numel()
    if seen.largest >= len(given[0]) * prefix:
        raise Wrong(
            f"a tensor of {seen.largest:,} elements was made, as large as a copy of the prefix's {prefix:,} for each of the "
            f"{len(given[0])} users. Can the users be rows of one product?"
        )
    for name, i in (("keys", 1), ("values", 2)):
        if seen.requested(i) > prefix:
            raise Wrong(
                f"the prefix has {prefix:,} elements of {name}, and {seen.requested(i):,} were asked for. The query heads of "
                "all users that read one KV head can be rows of one tile: whose tile are they in now?"
            )
