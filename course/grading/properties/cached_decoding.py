"""What is true of decoding with a cache: the result of recomputing everything, for the work of one token.

Steps are functions (x [B, d_model], weights, k_cache [B, Hkv, C, d_qk], v_cache [B, Hkv, C, d_v], position) -> [B, d_model]
that write into the caches; loops are functions (weights, prompt [B, P], n_new) -> tokens [B, P + n_new] and logits
[B, n_new, n_words]. Everything is float64 on the CPU.
"""

from dataclasses import dataclass

import torch

from kernels import reference

from ... import costs
from ...layers.rope import rotate, rotation
from .. import judge
from ..answers import Answer, Observed
from ..draw import Draw
from ..judge import Wrong
from ..tasks import named

NAN = float("nan")


@dataclass(frozen=True)
class Shape:
    """Sizes of a layer and its batch."""

    batch: int
    d_model: int
    attention: costs.Attention

    def weights(self, draw: Draw) -> dict[str, torch.Tensor]:
        """Random weights, for rows multiplied from the left."""
        a, d = self.attention, self.d_model
        wide = {
            "w_q": (d, a.n_q_heads * a.head_dim_qk),
            "w_k": (d, a.n_kv_heads * a.head_dim_qk),
            "w_v": (d, a.n_kv_heads * a.head_dim_v),
            "w_o": (a.n_q_heads * a.head_dim_v, d),
        }
        return {name: draw.tensor(*shape, dtype=torch.float64, std=shape[0] ** -0.5).cpu() for name, shape in wide.items()}

    def step_flops(self, context_len: int) -> int:
        """FLOPs of one token of each sequence: its projections, and attention over everything stored."""
        a = self.attention
        columns = a.n_q_heads * (a.head_dim_qk + a.head_dim_v) + a.n_kv_heads * (a.head_dim_qk + a.head_dim_v)
        return 2 * self.batch * self.d_model * columns + costs.decode_flops(a, context_len, batch=self.batch)


def _projected(shape: Shape, weights: dict, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rotated q [B, Hq, T, d_qk], rotated k [B, Hkv, T, d_qk] and v [B, Hkv, T, d_v] of x [B, T, d_model]."""
    a = shape.attention
    q, k, v = (
        (x @ weights[name]).unflatten(-1, (-1, width)).transpose(1, 2)
        for name, width in (("w_q", a.head_dim_qk), ("w_k", a.head_dim_qk), ("w_v", a.head_dim_v))
    )
    cos, sin = rotation(torch.arange(x.shape[1]), a.head_dim_qk, dtype=torch.float64)
    return rotate(q, cos, sin), rotate(k, cos, sin), v


def _uncached(shape: Shape, weights: dict, x: torch.Tensor) -> torch.Tensor:
    """The layer over all tokens x [B, T, d_model] at once, causal."""
    out, _ = reference.attention(*_projected(shape, weights, x), causal=True)
    return out.transpose(1, 2).flatten(2) @ weights["w_o"]


def _layer(draw: Draw, *, uneven: bool = False) -> Shape:
    n_kv_heads = draw.choice((2, 3))
    width = draw.choice((4, 6))
    attention = costs.Attention.gqa(n_kv_heads * draw.choice((2, 3)), n_kv_heads, width, 8 if uneven else width)
    return Shape(draw.integer(2, 3), draw.choice((10, 14)), attention)


class _Run:
    """A layer that is fed token by token, and what was seen of each step."""

    def __init__(self, answer: Answer, draw: Draw, *, tokens: int, capacity: int, uneven: bool = False):
        self.shape, self.tokens = _layer(draw, uneven=uneven), tokens
        a = self.shape.attention
        self.weights = self.shape.weights(draw)
        self.x = draw.tensor(self.shape.batch, tokens, self.shape.d_model, dtype=torch.float64).cpu()
        room = (self.shape.batch, a.n_kv_heads, capacity)
        # What no token has written yet is NaN: whoever reads it will know.
        caches = tuple(torch.full((*room, width), NAN, dtype=torch.float64) for width in (a.head_dim_qk, a.head_dim_v))
        self.steps: list[Observed] = []
        for t in range(tokens):
            seen = answer.observe(self.x[:, t], self.weights, *caches, t)
            caches = seen.arguments[2:4]
            self.steps.append(seen)
        self.caches = caches

    def check_outputs(self) -> None:
        shape, wanted = self.shape, _uncached(self.shape, self.weights, self.x)
        a = shape.attention
        told = f"{a.n_q_heads} query heads, {a.n_kv_heads} KV heads, keys {a.head_dim_qk} and values {a.head_dim_v} wide"
        got = [judge.tensor(seen.result, (shape.batch, shape.d_model), "the output of a step") for seen in self.steps]
        hint = f"({told}.) Is position 0 right, where there is one key? And position 1?"
        judge.close(torch.stack(got, 1), wanted, ["sequence", "position", "column"], "the output", 1e-9, hint=hint)


@named("same as without a cache", "step by step, the output is that of causal attention over the whole text")
def same(answer: Answer, draw: Draw) -> None:
    _Run(answer, draw, tokens=7, capacity=9).check_outputs()


@named("other shapes", "values wider than keys, and a cache that is filled to its end")
def other_shapes(answer: Answer, draw: Draw) -> None:
    _Run(answer, draw, tokens=5, capacity=5, uneven=True).check_outputs()


@named("what is stored", "each step writes its own row: the key, turned by its position, and the value")
def stored(answer: Answer, draw: Draw) -> None:
    run = _Run(answer, draw, tokens=6, capacity=10)
    _, keys, values = _projected(run.shape, run.weights, run.x)
    for name, cache, wanted in zip(("k_cache", "v_cache"), run.caches, (keys, values), strict=True):
        hint = "A key is stored as it will be used; the query is turned by its own position." if name == "k_cache" else ""
        filled = cache[:, :, :6]
        judge.close(filled, wanted, ["sequence", "KV head", "position", "column"], name, 1e-9, hint=hint)
        if not cache[:, :, 6:].isnan().all():
            raise Wrong(f"{name} was written beyond the 6 tokens that there are")


@named("work of one token", "a step projects one token, attends to what is stored, and moves nothing that is stored")
def work(answer: Answer, draw: Draw) -> None:
    run = _Run(answer, draw, tokens=5, capacity=120)
    for t, seen in enumerate(run.steps):
        most = 1.2 * run.shape.step_flops(t + 1)
        if seen.flops > most:
            raise Wrong(
                f"the step at position {t} took {seen.flops:,} FLOPs; projections of one token and attention over {t + 1} "
                f"stored ones are {run.shape.step_flops(t + 1):,}. What else is multiplied?"
            )
        room = min(cache.numel() for cache in run.caches)
        if seen.largest >= room:
            raise Wrong(
                f"the step at position {t} made a tensor of {seen.largest:,} elements, as large as a whole cache ({room:,}): "
                "write into the cache that is there, and read the part of it that is filled"
            )


def _decoder(draw: Draw) -> tuple[Shape, dict, torch.Tensor]:
    shape, n_words = _layer(draw), 23
    weights = {
        "embed": draw.tensor(n_words, shape.d_model, dtype=torch.float64).cpu(),
        "layers": [shape.weights(draw.of(i)) for i in range(2)],
        "unembed": draw.tensor(shape.d_model, n_words, dtype=torch.float64).cpu(),
        "n_kv_heads": shape.attention.n_kv_heads,
        "head_dim": shape.attention.head_dim_qk,
    }
    prompt = torch.tensor([[draw.integer(0, n_words - 1) for _ in range(3)] for _ in range(shape.batch)])
    return shape, weights, prompt


def _logits(shape: Shape, weights: dict, tokens: torch.Tensor) -> torch.Tensor:
    x = weights["embed"][tokens]
    for layer in weights["layers"]:
        x = x + _uncached(shape, layer, x)
    return x @ weights["unembed"]


N_NEW = 5


def _generated(answer: Answer, draw: Draw) -> tuple[Shape, dict, torch.Tensor, Observed]:
    shape, weights, prompt = _decoder(draw)
    return shape, weights, prompt, answer.observe(weights, prompt, N_NEW)


@named("same text", "the loop writes what recomputing everything would write, with the same logits")
def same_text(answer: Answer, draw: Draw) -> None:
    shape, weights, prompt, seen = _generated(answer, draw)
    tokens, logits = judge.parts(seen.result, 2, "tokens and logits")
    tokens = judge.tensor(tokens, (shape.batch, prompt.shape[1] + N_NEW), "tokens", torch.int64)
    n_words = weights["unembed"].shape[1]
    logits = judge.tensor(logits, (shape.batch, N_NEW, n_words), "logits")
    if not torch.equal(tokens[:, : prompt.shape[1]], prompt):
        raise Wrong("the tokens do not begin with the prompt")
    if tokens.min() < 0 or tokens.max() >= n_words:
        raise Wrong(f"tokens must be words 0 to {n_words - 1}, got {int(tokens.min())} to {int(tokens.max())}")
    wanted = _logits(shape, weights, tokens)[:, prompt.shape[1] - 1 : -1]
    hint = "The first new word follows from the last word of the prompt. Does each layer have a cache of its own?"
    judge.close(logits, wanted, ["sequence", "new word", "word"], "logits", 1e-9, hint=hint)
    if not torch.equal(tokens[:, prompt.shape[1] :], wanted.argmax(-1)):
        raise Wrong("the logits are right, but the words are not those with the largest ones")


@named("rows through W_K", "every token passes through each layer once")
def rows(answer: Answer, draw: Draw) -> None:
    shape, weights, prompt, seen = _generated(answer, draw)
    judge.parts(seen.result, 2, "tokens and logits")
    passed = prompt.shape[1] + N_NEW - 1  # nobody asks what follows the last word
    vocabulary = 2 * shape.batch * shape.d_model * weights["unembed"].shape[1] * (passed + 1)
    needed = vocabulary + 2 * sum(shape.step_flops(t + 1) for t in range(passed + 1))
    if seen.flops > 1.2 * needed:
        raise Wrong(
            f"{prompt.shape[1]} words of a prompt and {N_NEW} new ones through two layers take {needed:,} FLOPs, yours "
            f"{seen.flops:,}, {seen.flops / needed:.1f} times as many: how often does a word pass through W_K?"
        )
    if seen.flops < 0.3 * needed:
        raise Wrong(f"only {seen.flops:,} FLOPs were seen, of {needed:,} that the words need: use matrix products of PyTorch")
