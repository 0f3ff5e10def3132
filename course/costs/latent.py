"""Multi-head latent attention as a layer: its widths, its parameters, and what its two forms cost.

`Attention.mla` is what a cache and an absorbed kernel see. This is the layer around it: one latent is projected up to a
key and a value for every head, either for each cached token (expanded) or, on the other side of the products, for each
query token (absorbed). Both forms compute the same numbers; they differ in FLOPs, and the number of query tokens decides.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

from .attention import Attention, attention_flops
from .checks import finite, whole
from .units import element_bytes, exact

FORMS = ("expanded", "absorbed")


@dataclass(frozen=True)
class LatentAttention:
    """The shape of one MLA layer. All widths in elements.

    d_model       width of the model
    n_heads       query heads, H_q; every one has a key and a value of its own once the latent is expanded
    nope_dim      width of a key's part without rotation, d_nope
    rope_dim      width of the rotary part, d_r; one for all heads on the key's side
    head_dim_v    width of a head's value, d_v
    latent_dim    width of the cached latent, d_c
    q_latent_dim  width of the query's latent, d_cq; None where queries are projected directly

    Raises TypeError for a width or count that is no whole number, ValueError for one that is not positive.
    Source: DeepSeek-V2 (2405.04434), section 2.1; the names follow its Hugging Face configuration.
    """

    d_model: int
    n_heads: int
    nope_dim: int
    rope_dim: int
    head_dim_v: int
    latent_dim: int
    q_latent_dim: int | None = None

    def __post_init__(self) -> None:
        """Check counts and widths."""
        for name in ("d_model", "n_heads", "nope_dim", "rope_dim", "head_dim_v", "latent_dim"):
            whole(name, getattr(self, name))
        if self.q_latent_dim is not None:
            whole("q_latent_dim", self.q_latent_dim)

    @property
    def head_dim_qk(self) -> int:
        """Width of a head's query and key before absorption: d_nope + d_r."""
        return self.nope_dim + self.rope_dim

    @property
    def expanded(self) -> Attention:
        """What the kernel sees in the expanded form: every head with its own key and value."""
        return Attention.gqa(self.n_heads, self.n_heads, self.head_dim_qk, self.head_dim_v)

    @property
    def absorbed(self) -> Attention:
        """What the kernel and the cache see in the absorbed form: one record for all heads."""
        return Attention.mla(self.n_heads, self.latent_dim, self.rope_dim)

    @property
    def elements_per_token(self) -> int:
        """Numbers one token leaves in the cache, whichever form reads it: d_c + d_r."""
        return self.absorbed.elements_per_token

    def equivalent_kv_heads(self, head_dim: int = 128) -> float:
        """KV heads of that width whose keys and values take as much cache."""
        return self.elements_per_token / (2 * whole("head_dim", head_dim))

    def softmax_scale(self, context_factor: float = 1.0, mscale: float = 1.0) -> float:
        """Factor of the scores: 1 / sqrt(d_nope + d_r), of the head before absorption.

        A context that was extended `context_factor` times multiplies it by (0.1 * mscale * ln(factor) + 1)^2, as
        DeepSeek-V3's inference code does (deepseek-ai/DeepSeek-V3, inference/model.py; YaRN, 2309.00071).
        """
        factor = finite("context_factor", context_factor)
        extension = 0.1 * finite("mscale", mscale) * math.log(factor) + 1 if factor > 1 else 1.0
        return self.head_dim_qk**-0.5 * extension**2

    @property
    def parameters(self) -> dict[str, int]:
        """Numbers in each projection matrix, by its name in the paper; norms are left out."""
        d_q = self.d_model if self.q_latent_dim is None else self.q_latent_dim
        return {
            **({} if self.q_latent_dim is None else {"W_DQ": self.d_model * self.q_latent_dim}),
            "W_UQ": d_q * self.n_heads * self.nope_dim,
            "W_QR": d_q * self.n_heads * self.rope_dim,
            "W_DKV": self.d_model * self.latent_dim,
            "W_KR": self.d_model * self.rope_dim,
            "W_UK": self.latent_dim * self.n_heads * self.nope_dim,
            "W_UV": self.latent_dim * self.n_heads * self.head_dim_v,
            "W_O": self.n_heads * self.head_dim_v * self.d_model,
        }

    @property
    def query_parameters(self) -> int:
        """Numbers in the matrices that make a query."""
        return sum(self.parameters.get(name, 0) for name in ("W_DQ", "W_UQ", "W_QR"))

    @property
    def kv_parameters(self) -> int:
        """Numbers in the matrices that make a key and a value."""
        return sum(self.parameters[name] for name in ("W_DKV", "W_KR", "W_UK", "W_UV"))

    @property
    def fused_parameters(self) -> dict[str, tuple[int, int]]:
        """Of one head: numbers in its two factors, and in their product, on the query's and on the output's side.

        The product needs no second step at run time. It is larger wherever the inner width is small.
        """
        d_q = self.d_model if self.q_latent_dim is None else self.q_latent_dim
        factors = {
            "query": (d_q, self.nope_dim, self.latent_dim),
            "output": (self.latent_dim, self.head_dim_v, self.d_model),
        }
        return {side: (rows * inner + inner * columns, rows * columns) for side, (rows, inner, columns) in factors.items()}

    @property
    def up_flops(self) -> int:
        """FLOPs of W^UK and W^UV for one token: 2 * H_q * d_c * (d_nope + d_v).

        The expanded form spends them on every *cached* token, the absorbed form on every *query* token.
        """
        return 2 * self.n_heads * self.latent_dim * (self.nope_dim + self.head_dim_v)

    def up_bytes(self, bytes_per_element: float | str = 2) -> int | float:
        """Bytes of W^UK and W^UV, which an absorbed decode step reads beside the cache."""
        return exact((self.parameters["W_UK"] + self.parameters["W_UV"]) * element_bytes(bytes_per_element))

    def flops(self, form: str, q_len: int, kv_len: int, *, batch: int = 1, causal: bool = True) -> int:
        """FLOPs of W^UK, W^UV and attention for `q_len` query tokens over `kv_len` keys, in one layer.

        `form` is 'expanded' or 'absorbed'; `kv_len` counts the new tokens too. The projections that both forms share
        (into the latents, of the query, W^O) are not in it.
        """
        if form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
        q_len, kv_len = whole("q_len", q_len, at_least=0), whole("kv_len", kv_len, at_least=0)
        tokens = kv_len if form == "expanded" else q_len
        pairs = attention_flops(getattr(self, form), q_len, kv_len, batch=batch, causal=causal)
        return batch * tokens * self.up_flops + pairs

    @property
    def crossover_limit(self) -> float:
        """Query tokens from which expanding needs fewer FLOPs, for a context much longer than that.

        With M query tokens over N keys expanding wins if 1/M - 1/N < 1/limit, where limit is
        d_c * (d_nope + d_v) / (2 * d_c - d_nope - d_v); the batch and the heads cancel. Infinite where an absorbed pair
        costs no more than an expanded one.
        """
        dearer = 2 * self.latent_dim - self.nope_dim - self.head_dim_v
        return self.latent_dim * (self.nope_dim + self.head_dim_v) / dearer if dearer > 0 else math.inf

    def crossover(self, kv_len: int, *, causal: bool = True) -> int:
        """Fewest query tokens, of `kv_len` keys, for which expanding needs no more FLOPs than absorbing.

        At most `kv_len`: with no cached prefix both forms project every token once, and expanded pairs are cheaper.
        """
        low, high = 1, whole("kv_len", kv_len)
        while low < high:
            middle = (low + high) // 2
            expanded, absorbed = (self.flops(form, middle, kv_len, causal=causal) for form in FORMS)
            low, high = (low, middle) if expanded <= absorbed else (middle + 1, high)
        return low

    def shard(self, n_gpus: int) -> Self:
        """What one of `n_gpus` holds under tensor parallelism: its share of the heads, and the whole latent."""
        if self.n_heads % whole("n_gpus", n_gpus):
            raise ValueError(f"n_gpus must divide n_heads, got {n_gpus} GPUs for {self.n_heads} heads")
        return replace(self, n_heads=self.n_heads // n_gpus)
