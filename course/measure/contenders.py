"""The contenders of a decode step at one shape: our kernels and what people use today, on the same inputs."""

import functools
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernels
from kernels import reference

from .. import costs
from .timing import copies_beyond_cache

BACKENDS = {
    "FLASH": SDPBackend.FLASH_ATTENTION,
    "CUDNN": SDPBackend.CUDNN_ATTENTION,
    "EFFICIENT": SDPBackend.EFFICIENT_ATTENTION,
    "MATH": SDPBackend.MATH,
}
# Accepted error: twice that of PyTorch's MATH backend in the same dtype, and this much more.
ALLOWANCE = {"bfloat16": 8e-3, "float16": 1e-3}
LSE_ALLOWANCE = 1e-3  # the log-sum-exp is float32 arithmetic over exact inputs
REFERENCE_BYTES = 2**30  # float64 keys and values that the reference holds at a time


@dataclass(frozen=True)
class Shape:
    """One decode step: one new token for each of ``batch`` sequences with ``context_len`` cached tokens."""

    batch: int
    n_q_heads: int
    n_kv_heads: int
    context_len: int
    head_dim_qk: int = 128
    head_dim_v: int = 128
    dtype: str = "bfloat16"

    @property
    def attention(self) -> costs.Attention:
        return costs.Attention.gqa(self.n_q_heads, self.n_kv_heads, self.head_dim_qk, self.head_dim_v)

    @property
    def group_size(self) -> int:
        return self.n_q_heads // self.n_kv_heads

    @property
    def cache_bytes(self) -> int:
        size = costs.bytes_of(self.dtype)
        return costs.cache_bytes(self.attention, self.context_len, batch=self.batch, bytes_per_element=size)

    @property
    def flops(self) -> int:
        return costs.decode_flops(self.attention, self.context_len, batch=self.batch)

    def __str__(self) -> str:
        return f"B{self.batch} {self.n_q_heads}/{self.n_kv_heads} L{self.context_len}"


@dataclass(frozen=True)
class Point:
    """One row of a recording before it is measured.

    ``operation``: 'decode' (ours, grouped), 'attention' (our full-sequence kernel at one query), 'sdpa' (PyTorch's,
    grouped) or 'repeat_sdpa' (heads copied first). ``num_splits`` None leaves the choice to the kernel.
    """

    shape: Shape
    operation: str
    backend: str | None = None
    num_splits: int | None = None

    @property
    def copies_heads(self) -> bool:
        """Whether each KV head is written out once for every query head of its group; MATH does so inside."""
        return self.operation == "repeat_sdpa" or self.backend == "MATH"

    @property
    def bytes_moved(self) -> int:
        """Cache bytes that a call moves at least: copying the heads reads them, writes G copies and reads those."""
        return self.shape.cache_bytes * (1 + 2 * self.shape.group_size if self.copies_heads else 1)

    def __str__(self) -> str:
        return "/".join(str(part) for part in (self.operation, self.backend, self.num_splits) if part is not None)


def run(point: Point, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """q [B, Hq, Dqk], k [B, Hkv, L, Dqk], v [B, Hkv, L, Dv] -> out [B, Hq, Dv] and, from our kernels, lse [B, Hq]."""
    if point.operation == "decode":
        return kernels.decode(q, k, v, num_splits=point.num_splits)
    if point.operation == "attention":
        out, lse = kernels.attention(q.unsqueeze(2), k, v)
        return out.squeeze(2), lse.squeeze(2)
    group_size = q.shape[1] // k.shape[1]
    if point.operation == "repeat_sdpa":
        k, v = (heads.repeat_interleave(group_size, dim=1) for heads in (k, v))
    with sdpa_kernel(BACKENDS[point.backend]):
        out = F.scaled_dot_product_attention(q.unsqueeze(2), k, v, enable_gqa=q.shape[1] != k.shape[1])
    return out.squeeze(2), None


def why_not(error: Exception, warned: Sequence[warnings.WarningMessage] = ()) -> str:
    """First line of the reason, without paths. PyTorch's backends warn of it; their error only that they refuse."""
    said = [str(w.message).split(" (Triggered internally")[0] for w in warned]
    said = [line for line in said if not line.rstrip(": ").endswith("not used because")]
    first = (said or [str(error)])[0].strip().split("\n")[0] or type(error).__name__
    return re.sub(r"(?:/[\w.+~-]+){2,}", "…", first)[:200]


class Bench:
    """Fresh random inputs of one shape, in as many copies as lie beyond the L2, and the right answer to the first.

    Raises ``torch.cuda.OutOfMemoryError`` where they do not fit.
    """

    def __init__(self, shape: Shape, device: torch.device, l2_bytes: int):
        self.shape = shape
        self.copies = copies_beyond_cache(shape.cache_bytes, l2_bytes)
        self._l2_bytes = l2_bytes
        generator = torch.Generator(device)
        generator.seed()

        def fresh(*size: int) -> torch.Tensor:
            empty = torch.empty(self.copies, shape.batch, *size, dtype=getattr(torch, shape.dtype), device=device)
            return empty.normal_(generator=generator)

        self.q = fresh(shape.n_q_heads, shape.head_dim_qk)
        self.k = fresh(shape.n_kv_heads, shape.context_len, shape.head_dim_qk)
        self.v = fresh(shape.n_kv_heads, shape.context_len, shape.head_dim_v)

    def calls(self, point: Point) -> list[Callable[[], object]]:
        """One call a copy. What copies its heads sweeps the L2 by itself and needs fewer."""
        copies = min(self.copies, copies_beyond_cache(point.bytes_moved, self._l2_bytes))
        return [functools.partial(run, point, self.q[i], self.k[i], self.v[i]) for i in range(copies)]

    def check(self, point: Point) -> tuple[dict[str, float | None], str | None]:
        """Run once and compare with the float64 definition: the error, and a reason if it is too large."""
        out, lse = run(point, self.q[0], self.k[0], self.v[0])
        expected, expected_lse = self.expected
        error, limit = errors(out, expected), self.limit
        reason = None
        for name, value in error.items():
            if not value <= limit[name]:  # a NaN is never below a limit
                reason = f"{name} {value:.3g} against float64, accepted {limit[name]:.3g}"
        if lse is not None and not (lse - expected_lse).abs().max() <= LSE_ALLOWANCE:
            reason = reason or f"log-sum-exp off by more than {LSE_ALLOWANCE:g}"
        return {name: value if math.isfinite(value) else None for name, value in error.items()}, reason

    @functools.cached_property
    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The definition, a few KV heads of one sequence at a time, so that its float64 copies stay small."""
        s = self.shape
        q, k, v = self.q[0], self.k[0], self.v[0]
        out = torch.empty(s.batch, s.n_q_heads, s.head_dim_v, dtype=torch.float64, device=q.device)
        lse = torch.empty(s.batch, s.n_q_heads, dtype=torch.float64, device=q.device)
        # Its product with the values writes them out once a query head.
        heads = max(1, REFERENCE_BYTES // (8 * s.context_len * (s.head_dim_qk + s.group_size * s.head_dim_v)))
        for b in range(s.batch):
            for head in range(0, s.n_kv_heads, heads):
                rows = slice(head * s.group_size, (head + heads) * s.group_size)
                kv = slice(head, head + heads)
                out[b : b + 1, rows], lse[b : b + 1, rows] = reference.decode(
                    q[b : b + 1, rows], k[b : b + 1, kv], v[b : b + 1, kv]
                )
        return out, lse

    @functools.cached_property
    def limit(self) -> dict[str, float]:
        """Largest error accepted, by the error of PyTorch's MATH backend on the first sequence."""
        math_point = Point(self.shape, "sdpa", "MATH")
        out, _ = run(math_point, self.q[0, :1], self.k[0, :1], self.v[0, :1])
        allowance = ALLOWANCE[self.shape.dtype]
        return {name: 2 * value + allowance for name, value in errors(out, self.expected[0][:1]).items()}


def errors(out: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    difference = out.double() - expected
    return {
        "max_abs": difference.abs().max().item(),
        "relative_l2": (difference.norm() / expected.norm()).item(),
    }


def automatic_splits(shape: Shape, device: torch.device) -> int:
    """What ``kernels.decode`` chooses for this shape on the device."""
    cache = torch.empty(0, dtype=getattr(torch, shape.dtype), device=device)
    return kernels.plan_decode(
        shape.batch,
        shape.n_q_heads,
        shape.n_kv_heads,
        shape.context_len,
        shape.head_dim_qk,
        shape.head_dim_v,
        cache.element_size(),
        kernels.device_of(cache),
    ).num_splits
