"""Tensor parallelism: one layer's heads divided over several GPUs, and what each of them keeps.

Query heads can be divided as long as there are enough of them. KV heads can be divided until each GPU has one; beyond
that every further GPU needs a copy, because its query heads still need a key to meet. MLA has one record for all heads,
so it is copied from the second GPU on.
"""

import dataclasses

from .attention import Attention
from .checks import whole


def split_heads(attention: Attention, n_gpus: int) -> Attention:
    """The layer as one of `n_gpus` GPUs sees it: its share of the query heads, and the KV heads those need.

    Raises ValueError where the heads do not divide evenly: `n_gpus` must divide the query heads, and divide the KV
    heads or be a multiple of them.
    """
    if attention.n_q_heads % whole("n_gpus", n_gpus):
        raise ValueError(f"n_gpus must divide n_q_heads, got {n_gpus} GPUs for {attention.n_q_heads} query heads")
    n_kv_heads = attention.n_kv_heads
    if n_kv_heads % n_gpus and n_gpus % n_kv_heads:
        raise ValueError(f"n_gpus must divide n_kv_heads or be a multiple of it, got {n_gpus} GPUs for {n_kv_heads} KV heads")
    return dataclasses.replace(attention, n_q_heads=attention.n_q_heads // n_gpus, n_kv_heads=max(1, n_kv_heads // n_gpus))


def kv_copies(attention: Attention, n_gpus: int) -> int:
    """How many of `n_gpus` GPUs keep the same key: 1 until each has one KV head, then n_gpus / H_kv; in MLA n_gpus."""
    split_heads(attention, n_gpus)
    return max(1, n_gpus // attention.n_kv_heads)
