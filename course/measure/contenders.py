"""The contenders: our kernels and what people use today, on the same inputs.

A contender is made for a point and then takes copies of the inputs, one by one, to give a call that runs on each. A call
returns its results as tensors [B, heads, query tokens, D] (one, or three gradients) and, from our kernels, the log-sum-exp.
What a library does once for all layers of a step (plan, compile, lay the cache out its own way) happens before the call
exists and is not timed.

Peers are optional: one that is missing or refuses becomes a row that says why.
"""

import concurrent.futures
import functools
import os
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, bias, sdpa_kernel

import kernels

from . import steps
from .shapes import PORTABLE, Point, Shape

Inputs = dict[str, torch.Tensor]  # by the argument names of our kernels
Answer = tuple[tuple[torch.Tensor, ...], torch.Tensor | None]
Call = Callable[[], Answer]
Contender = Callable[[Inputs], Call]

OWN_PAGE = 64  # what a library that reads only pages gets a contiguous cache as
BACKENDS = {
    "FLASH": SDPBackend.FLASH_ATTENTION,
    "CUDNN": SDPBackend.CUDNN_ATTENTION,
    "EFFICIENT": SDPBackend.EFFICIENT_ATTENTION,
    "MATH": SDPBackend.MATH,
}


def calls_of(point: Point, copies: Sequence[Inputs]) -> list[Call]:
    """One call a copy of the inputs."""
    operation = point.operation.removeprefix(PORTABLE)
    contender = CONTENDERS.get(operation, ours)(replace(point, operation=operation))
    if point.shape.direction == "backward" and point.operation != "partials_then_sum":
        contender = functools.partial(differentiated, contender)
    if operation != point.operation:
        contender = functools.partial(portably, contender)
    return [contender(x) for x in copies]


def is_peer(point: Point) -> bool:
    return point.operation in PEERS | FORMS


COPIES: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {  # [B, Hkv, N, D] -> [B, Hq, N, D]
    "repeat_interleave": lambda x, group_size: x.repeat_interleave(group_size, dim=1),
    "expand": lambda x, group_size: x.unsqueeze(2).expand(-1, -1, group_size, -1, -1).reshape(x.shape[0], -1, *x.shape[2:]),
}


def queries(shape: Shape, x: Inputs) -> torch.Tensor:
    """q as [B, Hq, M, D]."""
    return by_head(shape, x["q"]) if shape.decodes else x["q"]


def by_head(shape: Shape, x: torch.Tensor) -> torch.Tensor:
    """A decode's [B, (T,) Hq, …] as [B, Hq, T, …]."""
    return x.transpose(1, 2) if shape.q_len > 1 else x.unsqueeze(2)


def lower_right(q_len: int, kv_len: int, device: torch.device) -> torch.Tensor:
    """The causal mask aligned bottom-right, bool [M, N]: query i sees key j when j <= i + N - M."""
    return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril(kv_len - q_len)


def differentiated(contender: Contender, x: Inputs) -> Call:
    """The gradients alone: the forward pass is done here and kept."""
    leaves = {name: x[name].detach().requires_grad_() for name in "qkv"}
    (out,), _ = contender(leaves)()
    return lambda: (torch.autograd.grad(out, list(leaves.values()), x["d_out"], retain_graph=True), None)


def portably(contender: Contender, x: Inputs) -> Call:
    """The same without the kernels for one kind of GPU."""
    with kernels.hopper.portable():
        call = contender(x)

    def portable_call() -> Answer:
        with kernels.hopper.portable():
            return call()

    return portable_call


def ours(point: Point) -> Contender:
    """The function of `kernels` that the point names."""
    shape = point.shape
    if point.operation == "attention":
        return lambda x: functools.partial(_attention, shape, queries(shape, x), x["k"], x["v"])
    function = getattr(kernels, point.operation)
    options = {"num_splits": point.num_splits} if point.num_splits else {}
    if shape.scale:
        options["scale"] = shape.scale

    def contender(x: Inputs) -> Call:
        work = {"work": work_list(shape, x)} if point.work_list else {}
        return lambda: _decoded(shape, *function(**x, **options, **work))

    return contender


def _attention(shape: Shape, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, package=kernels) -> Answer:
    out, lse = package.attention(q, k, v, causal=shape.causal and shape.q_len > 1)
    return (out,), lse


def with_steps_undone(point: Point) -> Contender:
    """Our full-sequence kernel for Hopper with steps undone. Raises ``kernels.Unsupported`` where it would not run."""
    package = steps.load(steps.VARIANTS[point.backend])

    def contender(x: Inputs) -> Call:
        q, k, v = x["q"], x["k"], x["v"]
        if not package.forward_hopper.faster(q, k, v):
            raise kernels.Unsupported("steps can be undone only where the kernel for Hopper runs")
        return functools.partial(_attention, point.shape, q, k, v, package)

    return contender


def compile_steps(points: Sequence[Point], device: torch.device) -> None:
    """Compile the variants among the points over all cores: one after the other they would take minutes.

    What fails here fails again when it is measured, and is told there.
    """
    # By width: what is compiled depends on nothing else of a shape.
    needed = {(p.backend, p.shape.head_dim_qk): p for p in points if p.operation == "attention_steps"}

    def zeros(n_heads: int, tokens: int, width: int, shape: Shape) -> torch.Tensor:
        return torch.zeros(shape.batch, n_heads, tokens, width, dtype=getattr(torch, shape.dtype), device=device)

    inputs = {
        s: {
            "q": zeros(s.n_q_heads, s.q_len, s.head_dim_qk, s),
            "k": zeros(s.n_kv_heads, s.context_len, s.head_dim_qk, s),
            "v": zeros(s.n_kv_heads, s.context_len, s.head_dim_v, s),
        }
        for s in dict.fromkeys(point.shape for point in needed.values())
    }
    for point in needed.values():
        steps.load(steps.VARIANTS[point.backend])  # before the threads: two of them want the same package
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        pool.map(lambda point: with_steps_undone(point)(inputs[point.shape])(), needed.values())


def _decoded(shape: Shape, out: torch.Tensor, lse: torch.Tensor) -> Answer:
    return (by_head(shape, out),), by_head(shape, lse)


def partial_sums(point: Point) -> Contender:
    """Our gradients with a dK and dV for each query head, summed over the group afterwards."""
    causal = point.shape.causal

    def contender(x: Inputs) -> Call:
        q, k, v = x["q"], x["k"], x["v"]
        out, lse = kernels.attention(q, k, v, causal=causal)
        return lambda: (kernels.backward.partials_then_sum(q, k, v, out, lse, x["d_out"], causal=causal), None)

    return contender


def work_list(shape: Shape, x: Inputs) -> object:
    """What ``kernels.plan_work`` makes of the lengths, once a step."""
    dtype = getattr(torch, shape.cache_dtype or shape.dtype)
    return kernels.plan_work(
        x["seq_lens"], shape.n_q_heads, shape.n_kv_heads, shape.head_dim_v, dtype,
        capacity=x["block_table"].shape[1] * shape.page_size, q_len=shape.q_len,
    )  # fmt: skip


def sdpa(point: Point) -> Contender:
    """PyTorch's scaled_dot_product_attention with one backend; 'repeat_sdpa' writes the heads of a group out first."""
    shape, backend = point.shape, BACKENDS[point.backend]
    q_len, kv_len = shape.q_len, shape.context_len
    repeat = shape.group_size if point.operation == "repeat_sdpa" else 1

    def contender(x: Inputs) -> Call:
        q, k, v = queries(shape, x), x["k"], x["v"]
        options = {"is_causal": shape.causal and q_len == kv_len}
        if shape.causal and 1 < q_len < kv_len:  # is_causal would align the mask top-left
            flash = point.backend == "FLASH"  # it takes no mask, but this form of one
            aligned = bias.causal_lower_right(q_len, kv_len) if flash else lower_right(q_len, kv_len, q.device)
            options = {"attn_mask": aligned}

        def call() -> Answer:
            keys, values = (t if repeat == 1 else t.repeat_interleave(repeat, dim=1) for t in (k, v))
            with sdpa_kernel(backend):
                out = F.scaled_dot_product_attention(q, keys, values, enable_gqa=q.shape[1] != keys.shape[1], **options)
            return (out,), None

        return call

    return contender


def copy_heads(point: Point) -> Contender:
    """Nothing but the copies that 'repeat_sdpa' makes: K and V with each KV head once for every query head of its group."""
    copy, group_size = COPIES[point.backend], point.shape.group_size
    return lambda x: lambda: (tuple(copy(x[name], group_size) for name in "kv"), None)


def matmul(point: Point) -> Contender:
    """Attention of one query token in three lines of PyTorch: the heads of a group copied, broadcast, or folded into rows."""
    shape = point.shape
    n_kv_heads, group_size, scale = shape.n_kv_heads, shape.group_size, shape.head_dim_qk**-0.5

    def contender(x: Inputs) -> Call:
        q, k, v = x["q"], x["k"], x["v"]

        def call() -> Answer:
            if point.backend == "rows":
                q_rows, keys, values = q.unflatten(1, (n_kv_heads, group_size)), k, v  # [B, Hkv, G, D]
            elif point.backend == "broadcast":
                q_rows = q.unflatten(1, (n_kv_heads, group_size)).unsqueeze(3)  # [B, Hkv, G, 1, D]
                keys, values = k.unsqueeze(2), v.unsqueeze(2)
            else:
                q_rows = q.unsqueeze(2)  # [B, Hq, 1, D]
                keys, values = (COPIES[point.backend](t, group_size) for t in (k, v))
            weights = ((q_rows * scale) @ keys.transpose(-1, -2)).softmax(-1)
            return ((weights @ values).reshape(*q.shape[:2], 1, -1),), None

        return call

    return contender


@functools.cache
def _compiled_flex() -> Callable:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flex(point: Point) -> Contender:
    """PyTorch's FlexAttention, compiled for the shape, with a causal block mask where there is more than one query token."""
    from torch.nn.attention.flex_attention import create_block_mask

    shape, attend = point.shape, _compiled_flex()
    offset = shape.context_len - shape.q_len

    def contender(x: Inputs) -> Call:
        q, mask = queries(shape, x), None
        if shape.causal and shape.q_len > 1:
            mask = create_block_mask(
                lambda b, h, i, j: j <= i + offset, None, None, shape.q_len, shape.context_len, device=q.device
            )
        return lambda: ((attend(q, x["k"], x["v"], block_mask=mask, enable_gqa=shape.group_size > 1),), None)

    return contender


def flashinfer(point: Point) -> Contender:
    """FlashInfer's kernel for the shape, if the library is there."""
    from .flashinfer_peer import planned

    return planned(point)


def flash_attn(point: Point) -> Contender:
    """FlashAttention's kernel for whole sequences, if the library is there: 'fa4', which is compiled at its first call.

    It is token-major, but takes any strides whose last is 1: ours are handed over as they lie.
    """
    from flash_attn.cute import flash_attn_func

    causal = point.shape.causal

    def contender(x: Inputs) -> Call:
        q, k, v = (x[name].transpose(1, 2) for name in "qkv")
        return lambda: ((flash_attn_func(q, k, v, causal=causal)[0].transpose(1, 2),), None)

    return contender


def flash_mla(point: Point) -> Contender:
    """FlashMLA's kernel for absorbed decode on Hopper, if SGLang's package of kernels is there, which brings it as a wheel.

    It reads pages of 64 tokens, the latent and the rotary part of a token side by side: ours are copied so, once. Which part
    of the batch goes to which program it writes into a tensor, once a step.
    """
    from sgl_kernel.flash_mla import flash_mla_with_kvcache, get_mla_metadata

    shape = point.shape
    options = {"softmax_scale": shape.scale, "causal": shape.q_len > 1}

    def contender(x: Inputs) -> Call:
        suffix = "_pages" if shape.page_size else ""
        q = torch.cat([x["q_latent"], x["q_rope"]], -1).reshape(shape.batch, shape.q_len, shape.n_q_heads, -1)
        cache = torch.cat([x[f"latent{suffix}"], x[f"k_rope{suffix}"]], -1)  # [pages, tokens, 576], or [B, N, 576]
        if shape.page_size:
            pages, lengths = x["block_table"], x["seq_lens"]
        else:
            cache = cache.unflatten(1, (-1, OWN_PAGE)).flatten(0, 1)
            pages = torch.arange(len(cache), dtype=torch.int32, device=q.device).reshape(shape.batch, -1)
            lengths = torch.tensor(shape.seq_lens, dtype=torch.int32, device=q.device)
        cache = cache.unsqueeze(2)
        plan = get_mla_metadata(lengths, shape.q_len * shape.n_q_heads, 1)
        asked = q, cache, pages, lengths, shape.head_dim_v, *plan
        return lambda: ((flash_mla_with_kvcache(*asked, **options)[0].transpose(1, 2),), None)

    return contender


PEERS = {
    "sdpa": sdpa,
    "repeat_sdpa": sdpa,
    "flex": flex,
    "flashinfer": flashinfer,
    "flash_attn": flash_attn,
    "flash_mla": flash_mla,
}
FORMS = {"copy_heads": copy_heads, "matmul": matmul}  # what people write, to learn from; no peer
CONTENDERS = PEERS | FORMS | {"partials_then_sum": partial_sums, "attention_steps": with_steps_undone}


def why_not(error: Exception, warned: Sequence[warnings.WarningMessage] = ()) -> str:
    """First line of the reason, without paths. PyTorch's backends warn of it; their error only that they refuse."""
    said = [str(w.message).split(" (Triggered internally")[0] for w in warned]
    said = [line for line in said if not line.rstrip(": ").endswith("not used because")]
    first = (said or [str(error)])[0].strip().split("\n")[0] or type(error).__name__
    return re.sub(r"(?:/[\w.+~-]+){2,}", "…", first)[:200]


def automatic_splits(point: Point, device: torch.device) -> int:
    """What our decode chooses for this shape on the device, in this form."""
    shape = point.shape
    cache = torch.empty(0, dtype=getattr(torch, shape.cache_dtype or shape.dtype), device=device)
    capacity = -(-shape.context_len // (shape.page_size or 1)) * (shape.page_size or 1)
    return kernels.plan_decode(
        shape.batch, shape.n_q_heads, shape.n_kv_heads, capacity, shape.head_dim_qk, shape.head_dim_v, cache.element_size(),
        kernels.device_of(cache), q_len=shape.q_len, shared_width=shape.head_dim_shared, page_size=shape.page_size,
        portable=point.operation.startswith(PORTABLE),
    ).num_splits  # fmt: skip
