"""Attention as layers of a model: projections, rotation, caches that grow, and weights that come from elsewhere.

    rope       rotary positions, in both conventions of pairing
    gqa        the layer of MHA, GQA and MQA
    mla        the layer of latent attention, expanded and absorbed
    caches     contiguous and paged, written and read in place
    pages      who owns which page
    convert    fewer KV heads from more; checkpoints of Llama and DeepSeek

Plain torch modules around the kernels: nothing here is a kernel. In float64 the definitions answer.
"""

from .caches import ContiguousCache, PagedCache
from .convert import load_deepseek, load_llama, mha_to_gqa, pool_kv_heads
from .gqa import GQALayer
from .mla import MLALayer
from .pages import OutOfPages, PageAllocator
from .rope import rotate, rotation, to_halves, to_interleaved

__all__ = [
    "ContiguousCache",
    "GQALayer",
    "MLALayer",
    "OutOfPages",
    "PageAllocator",
    "PagedCache",
    "load_deepseek",
    "load_llama",
    "mha_to_gqa",
    "pool_kv_heads",
    "rotate",
    "rotation",
    "to_halves",
    "to_interleaved",
]
