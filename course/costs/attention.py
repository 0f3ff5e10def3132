"""One attention layer as its cache sees it: elements a token, bytes of a cache, FLOPs, FLOPs per byte.

MHA, GQA, MQA and MLA differ in four numbers only: how many KV heads a token leaves behind, how wide a key is, how
wide a value is, and how much of the value is already stored inside the key. In MLA the value *is* the first 512
elements of the key, so it costs no further bytes; its products still have to be computed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from .checks import whole
from .units import element_bytes, exact

FP8_MLA = "fp8_mla"
"""Give this as `bytes_per_element` for the FP8 record that deployed MLA kernels keep.

The latent in FP8, one float32 scale for each 128 of it, the rotary part left in 16 bits: 512 + 16 + 128 = 656 bytes a
token and layer instead of 1,152. Source: FlashMLA (deepseek-ai/FlashMLA), its FP8 cache layout.
"""


@dataclass(frozen=True)
class Attention:
    """The shape of one attention layer. All widths in elements.

    n_q_heads        query heads, H_q
    n_kv_heads       key/value heads, H_kv; divides n_q_heads
    head_dim_qk      width of a query and of a key, d_qk
    head_dim_v       width of a value, d_v
    head_dim_shared  how many elements of the value are stored inside the key (0, except for MLA)

    Raises TypeError for a width or count that is no whole number, ValueError for one that is impossible.
    """

    n_q_heads: int
    n_kv_heads: int
    head_dim_qk: int
    head_dim_v: int
    head_dim_shared: int = 0

    def __post_init__(self) -> None:
        """Check counts and widths."""
        for name in ("n_q_heads", "n_kv_heads", "head_dim_qk", "head_dim_v"):
            whole(name, getattr(self, name))
        whole("head_dim_shared", self.head_dim_shared, at_least=0)
        if self.n_q_heads % self.n_kv_heads:
            raise ValueError(
                f"n_kv_heads must divide n_q_heads, got {self.n_kv_heads} KV heads for {self.n_q_heads} query heads"
            )
        if self.head_dim_shared > min(self.head_dim_qk, self.head_dim_v):
            raise ValueError(
                f"head_dim_shared must fit in the key and in the value ({self.head_dim_qk} and {self.head_dim_v} "
                f"wide), got {self.head_dim_shared}"
            )

    @classmethod
    def mha(cls, n_heads: int, head_dim: int) -> Self:
        """Multi-head attention: every query head has its own key and value head."""
        return cls(n_heads, n_heads, head_dim, head_dim)

    @classmethod
    def gqa(cls, n_q_heads: int, n_kv_heads: int, head_dim: int, head_dim_v: int | None = None) -> Self:
        """Grouped-query attention: n_q_heads / n_kv_heads query heads share a KV head. 'GQA-8' has 8 KV heads."""
        return cls(n_q_heads, n_kv_heads, head_dim, head_dim if head_dim_v is None else head_dim_v)

    @classmethod
    def mqa(cls, n_q_heads: int, head_dim: int) -> Self:
        """Multi-query attention: one KV head for all query heads."""
        return cls(n_q_heads, 1, head_dim, head_dim)

    @classmethod
    def mla(cls, n_q_heads: int, latent_dim: int = 512, rope_dim: int = 64) -> Self:
        """Multi-head latent attention, absorbed: one record of latent + rotary part, whose latent is the value too."""
        return cls(n_q_heads, 1, latent_dim + rope_dim, latent_dim, latent_dim)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The layer described by a Hugging Face `config.json`, given as a dict.

        `head_dim` counts where it is given; hidden_size / num_attention_heads is only the fall-back, since in many
        models (Qwen3, Gemma, gpt-oss) the two differ. Understands the keys of Llama-like and DeepSeek-like
        configurations, not older ones such as Falcon's `multi_query`. Raises ValueError if a needed key is missing.
        """
        try:
            n_q_heads = config["num_attention_heads"]
            if config.get("kv_lora_rank"):
                return cls.mla(n_q_heads, config["kv_lora_rank"], config["qk_rope_head_dim"])
            head_dim = config.get("head_dim") or config["hidden_size"] // n_q_heads
        except KeyError as missing:
            raise ValueError(f"config needs the key {missing} to say what a token leaves in the cache") from None
        n_kv_heads = config.get("num_key_value_heads") or n_q_heads
        return cls.gqa(n_q_heads, n_kv_heads, head_dim, config.get("v_head_dim") or head_dim)

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head, G = H_q / H_kv."""
        return self.n_q_heads // self.n_kv_heads

    @property
    def kind(self) -> str:
        """'MHA', 'GQA-8' (the number of KV heads), 'MQA' or 'MLA'."""
        if self.head_dim_shared:
            return "MLA"
        if self.n_kv_heads == self.n_q_heads:
            return "MHA"
        return "MQA" if self.n_kv_heads == 1 else f"GQA-{self.n_kv_heads}"

    @property
    def elements_per_token(self) -> int:
        """Numbers one token leaves in this layer's cache: H_kv * (d_qk + d_v - d_shared)."""
        return self.n_kv_heads * (self.head_dim_qk + self.head_dim_v - self.head_dim_shared)

    @property
    def flops_per_pair(self) -> int:
        """FLOPs of all query heads for one query and one key: 2 * H_q * (d_qk + d_v). A multiply-add is two FLOPs.

        The head count that matters is that of the queries, and a value inside the key is multiplied like any other.
        """
        return 2 * self.n_q_heads * (self.head_dim_qk + self.head_dim_v)

    def bytes_per_token(self, bytes_per_element: float | str = 2) -> int | float:
        """Bytes one token leaves in this layer's cache.

        bytes_per_element: a number (2; 0.75 for six bits), the name of a dtype ('float8'), or FP8_MLA.
        """
        if bytes_per_element == FP8_MLA:
            if not self.head_dim_shared:
                raise ValueError(f"bytes_per_element={FP8_MLA!r} is a layout for MLA, got {self.kind}")
            latent_dim, rope_dim = self.head_dim_shared, self.head_dim_qk - self.head_dim_shared
            return latent_dim + 4 * math.ceil(latent_dim / 128) + 2 * rope_dim
        return exact(self.elements_per_token * element_bytes(bytes_per_element))


def cache_bytes(
    attention: Attention,
    context_len: int,
    *,
    batch: int = 1,
    n_layers: int = 1,
    bytes_per_element: float | str = 2,
    window: int | None = None,
) -> int | float:
    """Bytes of the cache of `batch` sequences of `context_len` tokens in `n_layers` equal layers.

    With `window` a layer keeps a rolling buffer of that many tokens, so its cache stops growing there. One decode
    step reads all of it once. See `Attention.bytes_per_token` for `bytes_per_element`.
    """
    tokens = whole("context_len", context_len, at_least=0)
    if window is not None:
        tokens = min(tokens, whole("window", window))
    sequences = whole("batch", batch, at_least=0)
    return exact(whole("n_layers", n_layers) * sequences * tokens * attention.bytes_per_token(bytes_per_element))


def attention_flops(attention: Attention, q_len: int, kv_len: int, *, batch: int = 1, causal: bool = False) -> int:
    """FLOPs of attention of `q_len` query tokens over `kv_len` keys, in one layer.

    With `causal` query i sees key j when j <= i + kv_len - q_len: the mask is aligned bottom-right, as it must be
    when a prefix is already cached. Pairs the mask hides are not counted.
    """
    q_len = whole("q_len", q_len, at_least=0)
    kv_len = whole("kv_len", kv_len, at_least=0)
    pairs = q_len * kv_len
    if causal:
        rows = min(q_len, kv_len)  # with more queries than keys the first ones see nothing
        pairs = rows * kv_len - rows * (rows - 1) // 2
    return whole("batch", batch, at_least=0) * pairs * attention.flops_per_pair


def decode_flops(attention: Attention, context_len: int, *, batch: int = 1, q_len: int = 1) -> int:
    """FLOPs of attention in one decode step of one layer: 2 * B * H_q * L * (d_qk + d_v) for one query token.

    `context_len` counts every cached token, the `q_len` new ones included; those are causal among themselves.
    """
    if whole("q_len", q_len) > whole("context_len", context_len):
        raise ValueError(f"q_len must not exceed context_len, which includes it, got {q_len} > {context_len}")
    return attention_flops(attention, q_len, context_len, batch=batch, causal=True)


def copy_passes(group_size: int, *, read_back: bool = True) -> int:
    """How many times the bytes of a cache move when each KV head is first written out for every query head of its group.

    One pass reads the cache, G write the copies, and G read them back in attention: 1 + 2G, where a kernel that shares
    its loads moves 1 and MHA of as many query heads G. Without `read_back` the copies alone: 1 + G. With G = 1 there
    is nothing to copy.
    """
    group_size = whole("group_size", group_size)
    if group_size == 1:
        return int(read_back)
    return 1 + (2 if read_back else 1) * group_size


def intensity(attention: Attention, *, q_len: int = 1, bytes_per_element: float | str = 2, shared_by: int = 1) -> float:
    """FLOPs of decode attention per byte of cache read. The batch is not in it: each sequence brings its own tokens.

    What raises it: query heads per KV head, a value stored inside the key, `q_len` query tokens a step (a small
    triangle among the new tokens is neglected), and a prefix `shared_by` several sequences that is read once.
    """
    rows = whole("q_len", q_len) * whole("shared_by", shared_by)
    return float(rows * attention.flops_per_pair / attention.bytes_per_token(bytes_per_element))


def linear_intensity(batch: int, d_in: int, d_out: int, *, bytes_per_element: float | str = 2) -> float:
    """FLOPs per byte of a linear layer on `batch` tokens: about 2 * batch / bytes_per_element while that is small.

    Bytes are the weights (d_in * d_out), read once for the whole batch, and the activations in and out.
    """
    batch, d_in, d_out = whole("batch", batch), whole("d_in", d_in), whole("d_out", d_out)
    elements = d_in * d_out + batch * (d_in + d_out)
    return float(2 * batch * d_in * d_out / (elements * element_bytes(bytes_per_element)))
