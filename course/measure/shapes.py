"""What is measured: the shape of one attention call and who answers it. Plain numbers, from `course.costs`.

One notion covers every workload: a decode step over a contiguous or a paged cache, of GQA or of MLA, in 16 or 8 bits, one
or several new tokens, equal or ragged lengths, and whole sequences, forward or backward.
"""

import functools
from dataclasses import dataclass

from .. import costs

MOST_NEW_TOKENS = 8  # a decode step takes that many query tokens a sequence; more are a matter for the full-sequence kernel
FLOAT8 = "float8_e4m3fn"
PORTABLE = "portable_"
"""What a function of ours is called in a recording when it runs in its portable form, on a GPU that has a faster one."""
SCALE_BYTES = 4  # an 8-bit cache brings a float32 scale for each token and head, in MLA one for each token's latent
SHORTEST_RAGGED = 512


@dataclass(frozen=True)
class Shape:
    """One attention call over ``batch`` sequences.

    context_len      tokens of a sequence, the newest included; of the longest one if lengths are ragged
    head_dim_shared  how much of the value is stored inside the key: MLA's latent (512), else 0
    q_len            query tokens a sequence: 1 in a decode step, up to 8 with drafts, more in a full-sequence call
    causal           aligned bottom-right; without meaning for one query token
    direction        'forward', or 'backward': the gradients alone, after a forward pass that is not timed
    cache_dtype      of the cache where it is not ``dtype``: 'float8_e4m3fn', with scales
    page_size        tokens of a page, None for a contiguous cache
    lengths          'equal' or 'ragged': from 512 to context_len, evenly spaced on a log scale, in a fixed shuffled order
    """

    batch: int
    n_q_heads: int
    n_kv_heads: int
    context_len: int
    head_dim_qk: int = 128
    head_dim_v: int = 128
    dtype: str = "bfloat16"
    head_dim_shared: int = 0
    q_len: int = 1
    causal: bool = True
    direction: str = "forward"
    cache_dtype: str | None = None
    page_size: int | None = None
    lengths: str = "equal"

    @classmethod
    def mla(cls, batch: int, n_q_heads: int, context_len: int, **more) -> "Shape":
        """A decode step of absorbed MLA: a latent of 512, which is the value too, and 64 rotary elements a token."""
        return cls(batch, n_q_heads, 1, context_len, head_dim_qk=576, head_dim_v=512, head_dim_shared=512, **more)

    @property
    def attention(self) -> costs.Attention:
        return costs.Attention(self.n_q_heads, self.n_kv_heads, self.head_dim_qk, self.head_dim_v, self.head_dim_shared)

    @property
    def group_size(self) -> int:
        return self.n_q_heads // self.n_kv_heads

    @property
    def scale(self) -> float | None:
        """Factor of the scores where their width does not say it: MLA's comes from the head before absorption, 128 + 64."""
        return 192**-0.5 if self.head_dim_shared else None

    @property
    def decodes(self) -> bool:
        """Whether a decode kernel is for it."""
        return self.q_len <= MOST_NEW_TOKENS

    @property
    def operation(self) -> str:
        """The function of `kernels` that answers it."""
        if not self.decodes:
            return "attention"
        return f"{'paged_' if self.page_size else ''}{'mla_' if self.head_dim_shared else ''}decode"

    @functools.cached_property
    def seq_lens(self) -> list[int]:
        """Tokens of each sequence."""
        if self.lengths == "equal":
            return [self.context_len] * self.batch
        growth = (self.context_len / SHORTEST_RAGGED) ** (1 / max(1, self.batch - 1))
        # 29 has no factor in common with a power of two, so every step of the ladder comes once.
        return [round(SHORTEST_RAGGED * growth ** (29 * i % self.batch)) for i in range(self.batch)]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that a token leaves in the cache, scales included."""
        if self.cache_dtype is None:
            return self.attention.bytes_per_token(self.dtype)
        if self.head_dim_shared:
            rope_dim = self.head_dim_qk - self.head_dim_shared
            return self.head_dim_shared * costs.bytes_of(self.cache_dtype) + SCALE_BYTES + rope_dim * costs.bytes_of(self.dtype)
        return self.attention.bytes_per_token(self.cache_dtype) + 2 * self.n_kv_heads * SCALE_BYTES

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values, each once."""
        return sum(self.seq_lens) * self.bytes_per_token

    @property
    def flops(self) -> int:
        """FLOPs of the products that the result needs; the backward pass has three of a key's width and two of a value's."""
        count = costs.attention_flops if self.direction == "forward" else costs.backward_flops
        return sum(count(self.attention, self.q_len, n, causal=self.causal) for n in self.seq_lens)

    def __str__(self) -> str:
        a = self.attention
        widths = "" if a.kind == "MLA" or (a.head_dim_qk, a.head_dim_v) == (128, 128) else f" {a.head_dim_qk}/{a.head_dim_v}"
        parts = [
            f"B{self.batch}",
            (f"MLA {self.n_q_heads}" if a.kind == "MLA" else f"{self.n_q_heads}/{self.n_kv_heads}") + widths,
            f"{'ragged ' if self.lengths == 'ragged' else ''}L{self.context_len}",
        ]
        if self.q_len > 1:
            parts.append("whole" if self.q_len == self.context_len else f"M{self.q_len}")
        if not self.causal:
            parts.append("not causal")
        if self.page_size:
            parts.append(f"page {self.page_size}")
        if self.cache_dtype:
            parts.append("FP8")
        elif self.dtype != "bfloat16":
            parts.append(self.dtype)
        if self.direction == "backward":
            parts.append("backward")
        return " ".join(parts)


@dataclass(frozen=True)
class Point:
    """One row of a recording before it is measured.

    ``operation``: a function of `kernels`, or a peer: 'sdpa' (PyTorch's, grouped), 'repeat_sdpa' (heads copied first), 'flex',
    'flashinfer', 'flash_attn', 'flash_mla'; or what people write themselves: 'matmul' (two products and a softmax),
    'copy_heads' (the copies alone). 'portable_attention' is our function kept from the kernels for Hopper, and likewise for
    the others; 'attention_steps' has steps of its kernel for Hopper undone. ``backend`` names the peer's own variant, what
    becomes of the heads of a group, or which steps are done (`steps.VARIANTS`). ``num_splits`` None leaves the choice to the
    kernel, ``work_list`` cuts the batch into equal shares instead.
    """

    shape: Shape
    operation: str
    backend: str | None = None
    num_splits: int | None = None
    work_list: bool = False

    @property
    def splits(self) -> str | None:
        """Who chose how the sequences are cut; None where nobody says."""
        if self.work_list:
            return "work list"
        if self.num_splits is not None:
            return "given"
        return "automatic" if self.operation.endswith("decode") else None

    @property
    def copies_heads(self) -> bool:
        """Whether each KV head is written out once for every query head of its group; MATH does so inside, and so does a
        matrix product that broadcasts."""
        return self.operation in ("repeat_sdpa", "copy_heads") or self.backend in ("MATH", "broadcast", "repeat_interleave")

    @property
    def bytes_moved(self) -> int:
        """Cache bytes that a call moves at least: copying the heads reads them, writes G copies and reads those."""
        if not self.copies_heads:
            return self.shape.cache_bytes
        return self.shape.cache_bytes * costs.copy_passes(self.shape.group_size, read_back=self.operation != "copy_heads")

    def __str__(self) -> str:
        parts = (self.operation, self.backend, self.num_splits, "work list" if self.work_list else None)
        return "/".join(str(part) for part in parts if part is not None)
