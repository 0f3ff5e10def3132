"""The bench of one shape: fresh random inputs, the float64 answer, and how far each contender is from it.

Inputs are dictionaries whose keys are the argument names of our kernels. Whatever the layout of a cache, ``plain`` turns one
sequence of it into q, k and v, which is all that the definition and its yardstick need to know.
"""

import functools
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels import reference

from .contenders import Answer, Inputs, calls_of, lower_right
from .shapes import FLOAT8, MOST_NEW_TOKENS, Point, Shape
from .timing import copies_beyond_cache

# Accepted error: twice that of PyTorch's MATH backend in the same dtype, and this much more.
ALLOWANCE = {"bfloat16": 8e-3, "float16": 1e-3}
LSE_ALLOWANCE = 1e-3  # the log-sum-exp is float32 arithmetic over exact inputs
REFERENCE_BYTES = 2**30  # what the definition holds at a time, in float64

Part = tuple[int, slice, slice]  # a sequence, some of its KV heads, and their query heads


class Bench:
    """Inputs of one shape in as many copies as lie beyond the L2, and the right answer to the first.

    Raises ``torch.cuda.OutOfMemoryError`` where they do not fit.
    """

    def __init__(self, shape: Shape, device: torch.device, l2_bytes: int):
        self.shape = shape
        self._l2_bytes = l2_bytes
        self._generator = torch.Generator(device)
        self._generator.seed()
        self.inputs, self.exact = self._make(copies_beyond_cache(shape.cache_bytes, l2_bytes), device)

    def _make(self, copies: int, device: torch.device) -> tuple[list[Inputs], Inputs | None]:
        """All copies, and for an 8-bit cache the first one before it was rounded."""
        s = self.shape
        dtype = getattr(torch, s.dtype)

        def fresh(*size: int) -> torch.Tensor:
            return torch.empty(copies, *size, dtype=dtype, device=device).normal_(generator=self._generator)

        paged: Inputs = {}
        cache, heads_first = (s.batch, s.context_len), True
        if s.page_size:
            pages = [-(-n // s.page_size) for n in s.seq_lens]
            order = torch.randperm(sum(pages), generator=torch.Generator().manual_seed(0)).int()
            table = torch.zeros(s.batch, max(pages), dtype=torch.int32)
            for b, own in enumerate(order.split(pages)):
                table[b, : len(own)] = own
            lengths = torch.tensor(s.seq_lens, dtype=torch.int32)
            paged = {"block_table": table.to(device), "seq_lens": lengths.to(device)}
            cache, heads_first = (sum(pages), s.page_size), False
        suffix = "_pages" if paged else ""

        tokens = (s.q_len,) if s.q_len > 1 else ()
        if not s.decodes:
            queries = {"q": fresh(s.batch, s.n_q_heads, s.q_len, s.head_dim_qk)}
            if s.direction == "backward":
                queries["d_out"] = fresh(s.batch, s.n_q_heads, s.q_len, s.head_dim_v)
        elif s.head_dim_shared:
            rope_dim = s.head_dim_qk - s.head_dim_shared
            queries = {
                "q_latent": fresh(s.batch, *tokens, s.n_q_heads, s.head_dim_shared),
                "q_rope": fresh(s.batch, *tokens, s.n_q_heads, rope_dim),
            }
        else:
            queries = {"q": fresh(s.batch, *tokens, s.n_q_heads, s.head_dim_qk)}

        if s.head_dim_shared:
            cached = {f"latent{suffix}": fresh(*cache, s.head_dim_shared)}
            kept = {f"k_rope{suffix}": fresh(*cache, rope_dim)}  # 16 bits, whatever the latent has
        else:
            per_token = (s.n_kv_heads,)
            axes = (cache[0], *per_token, cache[1]) if heads_first else (*cache, *per_token)
            cached = {f"k{suffix}": fresh(*axes, s.head_dim_qk), f"v{suffix}": fresh(*axes, s.head_dim_v)}
            kept = {}

        exact = None
        if s.cache_dtype == FLOAT8:
            exact = {name: x[0] for name, x in (queries | cached | kept).items()} | paged
            cached = {
                stored: x
                for name, full in cached.items()
                for stored, x in zip((name, scale_name(name)), quantise(full), strict=True)
            }
        stacked = queries | cached | kept
        return [{name: x[i] for name, x in stacked.items()} | paged for i in range(copies)], exact

    def calls(self, point: Point) -> list[Callable[[], Answer]]:
        """One call a copy. What copies its heads sweeps the L2 by itself and needs fewer."""
        copies = min(len(self.inputs), copies_beyond_cache(point.bytes_moved, self._l2_bytes))
        return calls_of(point, self.inputs[:copies])

    def check(self, point: Point) -> tuple[dict, str | None]:
        """Run once and compare with the float64 definition: the fields of a row, and a reason if an error is too large.

        ``error`` is against the definition over the cache as it is stored; ``cache_error``, for an 8-bit cache, against the
        definition over the cache before it was rounded.
        """
        tensors, lse = calls_of(point, self.inputs[:1])[0]()
        copies = point.operation == "copy_heads"
        expected, limit = (self.copied, dict.fromkeys(self.limit, 0.0)) if copies else (self.expected[0], self.limit)
        error, reason = errors([self._parts_of(x) for x in tensors], expected), None
        for name, value in error.items():
            if not value <= limit[name]:  # a NaN is never below a limit
                reason = f"{name} {value:.3g} against float64, accepted {limit[name]:.3g}"
        if lse is not None:
            off = max((a - b).abs().max() for a, b in zip(self._parts_of(lse), self.expected[1], strict=True))
            if not off <= LSE_ALLOWANCE:
                reason = reason or f"log-sum-exp off by more than {LSE_ALLOWANCE:g}"
        against_exact = errors([self._parts_of(x) for x in tensors], self.before_rounding) if self.exact else None
        return {"error": finite(error), "cache_error": finite(against_exact)}, reason

    @functools.cached_property
    def parts(self) -> list[Part]:
        """What is compared: everything of a decode step; of whole sequences the first KV head of the first and the last."""
        s = self.shape
        if s.decodes:
            count = max(1, REFERENCE_BYTES // (8 * s.context_len * (s.head_dim_qk + s.head_dim_v)))
            firsts = range(0, s.n_kv_heads, count)
            wanted = [(b, first, min(first + count, s.n_kv_heads)) for b in range(s.batch) for first in firsts]
        else:
            wanted = sorted({(0, 0, 1), (s.batch - 1, s.n_kv_heads - 1, s.n_kv_heads)})
        return [(b, slice(a, z), slice(a * s.group_size, z * s.group_size)) for b, a, z in wanted]

    def _parts_of(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The compared parts of a result [B, heads, …], whose heads are query or KV heads."""
        ours = x.shape[1] == self.shape.n_q_heads
        return [x[b, q_heads if ours else kv_heads] for b, kv_heads, q_heads in self.parts]

    @property
    def copied(self) -> list[list[torch.Tensor]]:
        """K and V as each query head sees them, in their parts: what copying the heads must give, to the bit."""
        heads = [(b, torch.arange(q.start, q.stop) // self.shape.group_size) for b, _, q in self.parts]
        return [[self.inputs[0][name][b, kv_heads].double() for b, kv_heads in heads] for name in "kv"]

    @functools.cached_property
    def expected(self) -> tuple[list[list[torch.Tensor]], list[torch.Tensor] | None]:
        """By result its parts, in float64, and the log-sum-exps."""
        return self._answers(self.inputs[0])

    @functools.cached_property
    def before_rounding(self) -> list[list[torch.Tensor]]:
        return self._answers(self.exact)[0]

    def _answers(self, inputs: Inputs) -> tuple[list[list[torch.Tensor]], list[torch.Tensor] | None]:
        by_part = [self._answer(reference.attention, part, inputs) for part in self.parts]
        return [list(each) for each in zip(*(tensors for tensors, _ in by_part), strict=True)], [lse for _, lse in by_part]

    def _answer(self, attend: Callable, part: Part, inputs: Inputs) -> Answer:
        b, kv_heads, q_heads = part
        q, k, v = plain(self.shape, inputs, b)
        whole = q[q_heads], k[kv_heads], v[kv_heads]
        options = {"causal": self.shape.causal, "scale": self.shape.scale}
        if self.shape.direction == "backward":
            return gradients(attend, *whole, inputs["d_out"][b, q_heads], **options), None
        done = [(out, lse) for _, out, lse in pieces(attend, *whole, **options)]
        return (torch.cat([out for out, _ in done], 1),), None if done[0][1] is None else torch.cat([lse for _, lse in done], 1)

    @functools.cached_property
    def limit(self) -> dict[str, float]:
        """Largest error accepted, by the error of PyTorch's MATH backend on the first part."""
        yardstick = functools.partial(math_attention, dtype=getattr(torch, self.shape.dtype))
        tensors, _ = self._answer(yardstick, self.parts[0], self.inputs[0])
        found = errors([[x] for x in tensors], [parts[:1] for parts in self.expected[0]])
        return {name: 2 * value + ALLOWANCE[self.shape.dtype] for name, value in found.items()}


def scale_name(cached: str) -> str:
    """The argument that scales an 8-bit cache: 'k_pages' -> 'k_scale'."""
    return f"{cached.removesuffix('_pages')}_scale"


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [copies, …, D] in 8 bits and a scale for each row: its largest element becomes the largest that 8 bits hold."""
    stored, scale = torch.empty_like(x, dtype=torch.float8_e4m3fn), x.new_empty(x.shape[:-1], dtype=torch.float32)
    for i, one in enumerate(x):  # a copy at a time, for its float32 form is four times as large as the result
        stored[i], scale[i] = reference.quantise(one)
    return stored, scale


def plain(shape: Shape, inputs: Inputs, b: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sequence ``b`` as q [Hq, M, Dqk], k [Hkv, N, Dqk], v [Hkv, N, Dv]; an 8-bit cache is multiplied out in float32."""

    def of_sequence(x: torch.Tensor) -> torch.Tensor:
        if not shape.page_size:
            return x[b]
        j = torch.arange(shape.seq_lens[b], device=x.device)
        return x[inputs["block_table"][b].long()[j // shape.page_size], j % shape.page_size]

    def cached(name: str) -> torch.Tensor:
        name += "_pages" if shape.page_size else ""
        x, scale = of_sequence(inputs[name]), inputs.get(scale_name(name))
        return x if scale is None else x.float() * of_sequence(scale).unsqueeze(-1)

    if not shape.decodes:
        return tuple(inputs[name][b] for name in "qkv")
    if shape.head_dim_shared:
        q = torch.cat([inputs["q_latent"][b], inputs["q_rope"][b]], -1)
        latent = cached("latent")
        k, v = torch.cat([latent, cached("k_rope")], -1).unsqueeze(0), latent.unsqueeze(0)
    else:
        q, k, v = inputs["q"][b], cached("k"), cached("v")
        if shape.page_size:
            k, v = k.transpose(0, 1), v.transpose(0, 1)
    return (q.transpose(0, 1) if shape.q_len > 1 else q.unsqueeze(1)), k, v


def pieces(
    attend: Callable, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float | None
) -> Iterator[tuple[slice, torch.Tensor, torch.Tensor | None]]:
    """Attention of one sequence a few query rows at a time, so that its scores stay small: rows, out and lse of each piece."""
    (n_q_heads, q_len, head_dim_qk), (n_kv_heads, kv_len, head_dim_v) = q.shape, v.shape
    count = max(1, REFERENCE_BYTES // (8 * n_q_heads * kv_len)) if q_len > MOST_NEW_TOKENS else 1
    for first in range(0, q_len, count):
        rows = slice(first, min(first + count, q_len))
        seen = kv_len - q_len + rows.stop if causal else kv_len
        keys, values = k[None, :, :seen], v[None, :, :seen]
        if rows.stop - first > 1:
            out, lse = attend(q[None, :, rows], keys, values, causal=causal, scale=scale)
        else:
            # One query sees all of its keys, so the heads of a group may stand as rows, and no key is copied for each.
            out, lse = attend(q[:, first].reshape(1, n_kv_heads, -1, head_dim_qk), keys, values, causal=False, scale=scale)
            out = out.reshape(1, n_q_heads, 1, head_dim_v)
        yield rows, out[0], None if lse is None else lse.reshape(n_q_heads, -1)


def gradients(
    attend: Callable, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor, **options
) -> tuple[torch.Tensor, ...]:
    """dq, dk and dv of one sequence, summed over its pieces in float64."""
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    total = [torch.zeros_like(x) for x in leaves]
    for rows, out, _ in pieces(attend, *leaves, **options):
        for sum_, part in zip(total, torch.autograd.grad(out, leaves, d_out[:, rows].to(out.dtype)), strict=True):
            sum_ += part
    return tuple(total)


def math_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float | None, dtype: torch.dtype
) -> tuple[torch.Tensor, None]:
    """PyTorch's own arithmetic in ``dtype``, with the mask aligned bottom-right: the yardstick of what an error may be."""
    mask = lower_right(q.shape[2], k.shape[2], q.device) if causal else None
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(
            *(x.to(dtype) for x in (q, k, v)), attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    return out, None


def errors(found: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> dict[str, float]:
    """Largest difference and largest relative L2 error over the results (one, or three gradients), each in its parts."""
    largest, relative = [], []
    for tensors, right in zip(found, expected, strict=True):
        differences = [a.double() - b for a, b in zip(tensors, right, strict=True)]
        largest.append(torch.stack([d.abs().max() for d in differences]).max())
        off, size = (torch.stack([x.square().sum() for x in each]).sum() for each in (differences, right))
        relative.append((off / size).sqrt())
    # torch's max keeps a NaN, Python's may lose it.
    return {"max_abs": torch.stack(largest).max().item(), "relative_l2": torch.stack(relative).max().item()}


def finite(error: dict[str, float] | None) -> dict[str, float | None] | None:
    """JSON has no NaN."""
    return error and {name: value if math.isfinite(value) else None for name, value in error.items()}
