"""Where keys and values of past tokens lie: in one piece a sequence, or on pages.

Both kinds answer to the same names, so a layer does not ask which one it has:

    append(k=…, v=…)       write new tokens behind those stored, in place; nothing stored is moved or copied
    decode(q, …)           attention of the tokens just appended over everything stored, straight from the cache
    stored()               what is stored as plain tensors, for prefill and for looking
    seq_lens               tokens of each sequence, int32 [B], on the device
    n_bytes, bytes_used    allocated, and of it in use

A cache of heads holds 'k' and 'v', each (n_kv_heads, width) wide; the cache of latent attention 'latent' and 'k_rope', each one
row a token. With tensors in float64, which kernels do not take, the definitions of `kernels.reference` answer.

How long each sequence is, the host knows from its own count. It never asks the GPU, so a step waits for nothing.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor

import kernels
from kernels.decode import MAX_Q_LEN

from ..costs.checks import whole
from .pages import OutOfPages, PageAllocator

KINDS = (("k", "v"), ("latent", "k_rope"))
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
State = tuple[Tensor, Tensor]


def operations(dtype: torch.dtype) -> Any:
    """Who computes in this dtype: the kernels, or in float64 their definitions, which have the same names."""
    return kernels.reference if dtype == torch.float64 else kernels


class _Cache:
    """What both kinds share: tensors by name, and how they grow."""

    def __init__(self, widths: Mapping[str, tuple[int, int] | int], dtype: torch.dtype, device: torch.device | str) -> None:
        if dtype not in DTYPES:
            raise TypeError(f"dtype must be float16, bfloat16, float32 or float64, got {dtype}")
        self.widths = _checked(widths)
        self.dtype = dtype
        self.device = torch.device(device)
        self._tensors: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        """The memory of one tensor, in its own layout: k, v, latent or k_rope. Slots not in use may hold anything."""
        return self._tensors[name]

    @property
    def latent(self) -> bool:
        """Whether this is the cache of latent attention."""
        return "latent" in self.widths

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token leaves here."""
        return sum(math.prod(_row(width)) for width in self.widths.values()) * self.dtype.itemsize

    def _check_new(self, new: dict[str, Tensor]) -> int:
        """How many new tokens a sequence; the rows fit into the cache."""
        if set(new) != set(self.widths):
            raise TypeError(f"append wants {' and '.join(self.widths)}, got {', '.join(new) or 'nothing'}")
        tokens = None
        for name, width in self.widths.items():
            rows = new[name]
            if not isinstance(rows, Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(rows).__name__}")
            wanted = (len(self.lengths), tokens, *_row(width))
            same = rows.dim() == len(wanted) and all(w in (None, s) for w, s in zip(wanted, rows.shape, strict=True))
            if not same:
                shown = ", ".join("T" if size is None else str(size) for size in wanted)
                raise ValueError(f"{name} must have shape [{shown}], got {list(rows.shape)}")
            if rows.dtype != self.dtype or rows.device != self[name].device:
                raise TypeError(
                    f"{name} must be {self.dtype} on {self[name].device}, as the cache is, got {rows.dtype} on {rows.device}"
                )
            if torch.is_grad_enabled() and rows.requires_grad:
                raise kernels.Unsupported(
                    f"a cache has no backward and {name} requires a gradient: call under torch.no_grad() or detach"
                )
            tokens = rows.shape[1]
        return tokens

    def _check_queries(self, queries: tuple[Tensor, ...], seq_lens: Sequence[int]) -> None:
        wanted = 2 if self.latent else 1
        if len(queries) != wanted:
            names = "q_latent and q_rope" if self.latent else "q"
            raise TypeError(f"decode over this cache wants {names}, got {len(queries)} tensors")
        tokens = queries[0].shape[1] if queries[0].dim() == 4 else 1
        if tokens > min(seq_lens, default=tokens):
            raise ValueError(
                f"the {tokens} query tokens must be the last ones stored, but a sequence has {min(seq_lens)}: append them first"
            )

    def sequence(self, i: int) -> Self:
        """The cache of sequence i of the batch alone, in the same memory: what it appends, this cache has."""
        return self.select([i])


class ContiguousCache(_Cache):
    """Room for ``capacity`` tokens of every sequence from the start, in one piece each.

    Args:
        batch, capacity: sequences, and the tokens that each has room for.
        widths: {'k': (n_kv_heads, width), 'v': (n_kv_heads, width)}, or {'latent': width, 'k_rope': width}.

    The tensors are k and v [B, Hkv, capacity, width], or latent and k_rope [B, capacity, width].
    """

    def __init__(
        self,
        batch: int,
        capacity: int,
        widths: Mapping[str, tuple[int, int] | int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(widths, dtype, device)
        whole("batch", batch)
        self.capacity = whole("capacity", capacity)
        for name, width in self.widths.items():
            *heads, columns = _row(width)
            self._tensors[name] = torch.empty(batch, *heads, capacity, columns, dtype=dtype, device=device)
        self.seq_lens = torch.zeros(batch, dtype=torch.int32, device=device)
        self._counts = [_Count() for _ in range(batch)]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence, as the host knows them."""
        return [count.tokens for count in self._counts]

    @property
    def n_bytes(self) -> int:
        """Bytes allocated for these sequences."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    @property
    def bytes_used(self) -> int:
        """Bytes of the tokens stored."""
        return sum(self.lengths) * self.bytes_per_token

    def select(self, rows: Sequence[int]) -> Self:
        """A cache of some neighbouring sequences of the batch, in the same memory."""
        rows = list(rows)
        if not rows or rows != list(range(rows[0], rows[0] + len(rows))) or not 0 <= rows[0] <= rows[-1] < len(self._counts):
            raise ValueError(f"rows must be neighbours among 0 to {len(self._counts) - 1}, got {rows}")
        part, some = copy.copy(self), slice(rows[0], rows[-1] + 1)
        part._tensors = {name: tensor[some] for name, tensor in self._tensors.items()}
        part.seq_lens, part._counts = self.seq_lens[some], self._counts[some]
        return part

    def append(self, **new: Tensor) -> None:
        """Write T new tokens behind each sequence, in place.

        k and v [B, T, Hkv, width], or latent and k_rope [B, T, width]. ValueError, and nothing written, beyond the capacity.
        """
        tokens = self._check_new(new)
        longest = max(self.lengths)
        if longest + tokens > self.capacity:
            raise ValueError(f"capacity is {self.capacity} tokens: no room for {tokens} more behind {longest}")
        seq_lens = self.seq_lens + tokens
        names, of = self.widths, operations(self.dtype)
        function = of.mla_append if self.latent else of.append
        function(*(new[name] for name in names), *(self[name] for name in names), seq_lens)
        self.seq_lens.copy_(seq_lens)
        for count in self._counts:
            count.tokens += tokens

    def decode(self, *queries: Tensor, scale: float | None = None, **options: Any) -> State:
        """Attention of the last T tokens over all stored: (out, lse), read from the cache where it lies.

        q [B, T, Hq, Dqk], or for a latent cache q_latent [B, T, Hq, d_c] and q_rope [B, T, Hq, d_r]; T <= 8. ``scale`` and
        ``options`` as `kernels.decode` or `kernels.mla_decode` have them.
        """
        self._check_queries(queries, self.lengths)
        of = operations(self.dtype)
        function = of.mla_decode if self.latent else of.decode
        return function(*queries, *(self[name] for name in self.widths), self.seq_lens, scale=scale, **options)

    def stored(self) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """The stored tokens, as views: for sequences ``rows`` of one length N, {name: [rows, (Hkv,) N, width]}.

        All at once if the lengths are equal, else one sequence after the other.
        """
        for rows, length in _alike(self.lengths):
            yield rows, {name: tensor[rows].narrow(-2, 0, length) for name, tensor in self._tensors.items()}


class PagedCache(_Cache):
    """Pages that sequences take as they grow, share when they fork, and give back when they end.

    Args:
        allocator: who owns which page. One cache an allocator; several batches of its sequences may be looked at through `of`.
        batch: new sequences to begin with, 0 for none.
        widths: as `ContiguousCache` has them.

    The tensors are k and v [n_pages, page_size, Hkv, width], or latent and k_rope [n_pages, page_size, width].
    """

    def __init__(
        self,
        allocator: PageAllocator,
        batch: int,
        widths: Mapping[str, tuple[int, int] | int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(widths, dtype, device)
        whole("batch", batch, at_least=0)
        if not isinstance(allocator, PageAllocator):
            raise TypeError(f"allocator must be a PageAllocator, got {type(allocator).__name__}")
        if allocator.has_memory:  # a token appended here would count there too, where nothing was written
            raise ValueError("allocator must be new: this one serves a cache already; use that cache's `of`")
        self.allocator = allocator
        allocator.has_memory = True
        for name, width in self.widths.items():
            shape = (allocator.n_pages, allocator.page_size, *_row(width))
            self._tensors[name] = torch.empty(shape, dtype=dtype, device=device)
        self.sequences = tuple(allocator.allocate() for _ in range(batch))
        self._table: tuple[int, Tensor, Tensor] | None = None

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence, as the host knows them."""
        return [self.allocator.length(sequence) for sequence in self.sequences]

    @property
    def seq_lens(self) -> Tensor:
        """Tokens of each sequence, int32 [B]."""
        return self._on_device()[1]

    @property
    def block_table(self) -> Tensor:
        """The pages of each sequence, int32 [B, pages of the longest]."""
        return self._on_device()[0]

    def _on_device(self) -> tuple[Tensor, Tensor]:
        """Table and lengths, sent to the device once for each change of the allocator."""
        if self._table is None or self._table[0] != self.allocator.changes:
            table = self.allocator.block_table(self.sequences, device=self.device)
            lengths = self.allocator.seq_lens(self.sequences, device=self.device)
            self._table = self.allocator.changes, table, lengths
        return self._table[1:]

    @property
    def n_bytes(self) -> int:
        """Bytes allocated for all pages, taken or free."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors.values())

    @property
    def bytes_held(self) -> int:
        """Bytes of the pages that sequences hold, the unused ends of last pages included."""
        return (self.allocator.n_pages - self.allocator.n_free) * self.allocator.page_size * self.bytes_per_token

    @property
    def bytes_used(self) -> int:
        """Bytes of the tokens stored, of all the allocator's sequences; a shared token counts once."""
        return self.allocator.tokens_stored * self.bytes_per_token

    def of(self, sequences: Sequence[int]) -> Self:
        """The same pages for another batch: these sequences of the allocator, in this order."""
        sequences = tuple(sequences)
        if not sequences or len(set(sequences)) < len(sequences):
            raise ValueError(f"sequences must be different ones, at least one, got {list(sequences)}")
        for sequence in sequences:
            self.allocator.length(sequence)
        part = copy.copy(self)
        part.sequences, part._table = sequences, None
        return part

    def select(self, rows: Sequence[int]) -> Self:
        """A cache of some sequences of the batch, in the same memory."""
        rows = list(rows)
        if not all(0 <= row < len(self.sequences) for row in rows):
            raise ValueError(f"rows must lie between 0 and {len(self.sequences) - 1}, got {rows}")
        return self.of([self.sequences[row] for row in rows])

    def append(self, **new: Tensor) -> None:
        """Write T new tokens behind each sequence, in place, on pages taken as needed.

        k and v [B, T, Hkv, width], or latent and k_rope [B, T, width]. A page that others hold too is copied before it is
        written to. OutOfPages, and nothing written, where the free pages do not suffice.
        """
        tokens = self._check_new(new)
        needed = self.allocator.pages_needed(self.sequences, tokens)
        if needed > self.allocator.n_free:
            raise OutOfPages(f"{needed} pages are needed for {tokens} more tokens a sequence, {self.allocator.n_free} are free")
        for sequence in self.sequences:
            for source, target in self.allocator.append(sequence, tokens):
                for tensor in self._tensors.values():
                    tensor[target].copy_(tensor[source])
        names, of = self.widths, operations(self.dtype)
        function = of.paged_mla_append if self.latent else of.paged_append
        rows, pages = (new[name] for name in names), (self[name] for name in names)
        function(*rows, *pages, self.block_table, self.seq_lens)

    def decode(self, *queries: Tensor, scale: float | None = None, **options: Any) -> State:
        """As `ContiguousCache.decode`, through the block table (`kernels.paged_decode`, `kernels.paged_mla_decode`)."""
        self._check_queries(queries, self.lengths)
        of = operations(self.dtype)
        function = of.paged_mla_decode if self.latent else of.paged_decode
        pages = (self[name] for name in self.widths)
        return function(*queries, *pages, self.block_table, self.seq_lens, scale=scale, **options)

    def stored(self) -> Iterator[tuple[slice, dict[str, Tensor]]]:
        """The stored tokens: for sequences ``rows`` of one length N, {name: [rows, (Hkv,) N, width]}, gathered: a copy."""
        table = self.block_table.long()
        for rows, length in _alike(self.lengths):
            used = table[rows, : -(-length // self.allocator.page_size)]
            gathered = {name: pages[used].flatten(1, 2)[:, :length] for name, pages in self._tensors.items()}
            yield rows, gathered if self.latent else {name: tensor.transpose(1, 2) for name, tensor in gathered.items()}


class _Count:
    """Tokens of one sequence. An object of its own, so that a cache and its parts see the same count."""

    def __init__(self) -> None:
        self.tokens = 0


def _row(width: tuple[int, int] | int) -> tuple[int, ...]:
    """The axes of one token's row."""
    return width if isinstance(width, tuple) else (width,)


def _checked(widths: Mapping[str, tuple[int, int] | int]) -> dict[str, tuple[int, int] | int]:
    """The widths in the order in which kernels take them."""
    kind = next((kind for kind in KINDS if set(kind) == set(widths)), None)
    if kind is None:
        raise ValueError(f"widths must name k and v, or latent and k_rope, got {', '.join(map(str, widths)) or 'nothing'}")
    for name in kind:
        width = widths[name]
        if isinstance(width, tuple) is ("latent" in kind) or len(_row(width)) != (1 if "latent" in kind else 2):
            wanted = "a width" if "latent" in kind else "(n_kv_heads, width)"
            raise TypeError(f"widths[{name!r}] must be {wanted}, got {width!r}")
        for number in _row(width):
            whole(f"widths[{name!r}]", number)
    if "k" in kind and widths["k"][0] != widths["v"][0]:
        raise ValueError(f"widths must give k and v the same number of heads, got {widths['k'][0]} and {widths['v'][0]}")
    return {name: widths[name] for name in kind}


def _alike(lengths: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """All sequences at once if they have one length, else one after the other."""
    if len(set(lengths)) == 1:
        yield slice(0, len(lengths)), lengths[0]
    else:
        for row, length in enumerate(lengths):
            yield slice(row, row + 1), length


__all__ = ["MAX_Q_LEN", "ContiguousCache", "PagedCache", "operations"]
