"""What is recorded: kinds of recording, each a plan of points that some chapters draw and the ledger lists.

Plans depend on nothing but the dtype, so a run that was broken off, or another machine, has the same one.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from .. import costs
from .contenders import BACKENDS, is_peer
from .shapes import FLOAT8, PORTABLE, Point, Shape
from .steps import VARIANTS

COPIED_CACHE_LIMIT = 10**9  # what copies its heads is measured up to this cache, to bound the time of a sweep
MATMUL_SIZE = 8192
BETWEEN = (3, 5, 6, 10, 12, 14, 15, 17, 18, 20, 24, 28, 33, 40, 48, 50)  # splits between the powers of two: where waves end
READS = tuple(mib * costs.MiB for mib in (32, 128, 512, 2048))


@dataclass(frozen=True)
class Limit:
    """What this GPU can do at most, besides cold reads: 'warm read', 'copy' (our kernel), 'torch copy', 'matmul burst' (a cool
    card) or 'matmul sustained' (a hot one). ``n_bytes``: read, copied, or of one factor."""

    operation: str
    n_bytes: int


MATMULS = tuple(Limit(name, 2 * MATMUL_SIZE**2) for name in ("matmul burst", "matmul sustained"))


@dataclass(frozen=True)
class Plan:
    """What a recording holds: sizes of cold reads in bytes, other limits, and points grouped by shape.

    ``method``: how its points are timed, as ``timing.prepare`` has it.
    """

    kind: str
    reads: tuple[int, ...]
    points: tuple[Point, ...]
    limits: tuple[Limit, ...] = ()
    method: str = field(default="auto", repr=False)

    @property
    def by_shape(self) -> dict[Shape, list[Point]]:
        shapes: dict[Shape, list[Point]] = {}
        for point in self.points:
            shapes.setdefault(point.shape, []).append(point)
        return shapes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()

    @property
    def estimate_s(self) -> float:
        """Seconds on an H200, roughly: allocation, check, capture, timing; and what FlexAttention compiles for each shape and
        FlashAttention for each form."""
        shapes = sum(point.operation == "flex" for point in self.points)
        by_form = (point.shape for point in self.points if point.operation == "flash_attn")
        forms = len({(s.direction, s.causal, s.group_size, s.head_dim_qk, s.head_dim_v) for s in by_form})
        return 0.3 * len(self.points) + 0.2 * (len(self.reads) + len(self.limits)) + 12 * shapes + 4 * forms

    def quick(self) -> "Plan":
        """Each contender once for each form of the work, at the first shape that has it: minutes become seconds."""
        chosen: dict[tuple, Point] = {}
        for point in self.points:
            s = point.shape
            heads, page = s.n_q_heads if s.head_dim_shared else 0, bool(s.page_size) if is_peer(point) else s.page_size
            form = (s.direction, s.causal, s.cache_dtype, s.lengths, page, heads, s.head_dim_qk, min(s.q_len, 9))
            chosen.setdefault((point.operation, point.backend, point.splits, *form), point)
        return replace(self, kind=f"quick-{self.kind}", reads=READS[:1] + READS[2:3], points=tuple(chosen.values()))


def ours(shape: Shape) -> Point:
    """Our kernel, its splits left to it."""
    return Point(shape, shape.operation)


def portable(shape: Shape) -> Point:
    """Our kernel in the form that every GPU runs, where a Hopper GPU has one of its own."""
    return Point(shape, PORTABLE + shape.operation)


def with_work_list(shape: Shape) -> Point:
    """Our kernel over a paged cache, the batch cut into equal shares."""
    return Point(shape, shape.operation, work_list=True)


def partial_sums(shape: Shape) -> Point:
    """Gradients of K and V for each query head, then their sum: all the partials, of which our backward pass makes few."""
    return Point(shape, "partials_then_sum")


def splits(shape: Shape) -> list[Point]:
    """The same with 1, 2, 4 … 128 splits given."""
    return [Point(shape, shape.operation, num_splits=2**i) for i in range(8)]


def flashinfer(shape: Shape, *backends: str) -> list[Point]:
    return [Point(shape, "flashinfer", backend) for backend in backends]


def flash_attn(shape: Shape) -> Point:
    """FlashAttention-4. What it compiles depends on widths, group and mask, not on lengths."""
    return Point(shape, "flash_attn", "fa4")


def latent_peers(shape: Shape) -> list[Point]:
    """Who else has a kernel for absorbed MLA, of 16 bits and for Hopper."""
    return [*flashinfer(shape, "fa3"), Point(shape, "flash_mla")]


def peers(shape: Shape) -> list[Point]:
    """What PyTorch offers for a decode step over a contiguous cache, and our full-sequence kernel at one query."""
    points = [Point(shape, "attention")]
    points += [Point(shape, "sdpa", backend) for backend in BACKENDS]
    if shape.group_size > 1:
        points += [Point(shape, "repeat_sdpa", backend) for backend in ("FLASH", "CUDNN")]
    return [point for point in points if not point.copies_heads or shape.cache_bytes <= COPIED_CACHE_LIMIT]


def _plan(kind: str, points: Iterable[Point], *, reads: Sequence[int] = READS, limits: Sequence[Limit] = ()) -> Plan:
    return Plan(kind, tuple(reads), tuple(dict.fromkeys(points)), tuple(limits))


def reads(dtype: str) -> Plan:
    """Cold and warm reads and copies from 64 KiB to 4 GiB, and a large matrix product, cool and hot: the primer's ridge."""
    sizes = [64 * costs.KiB * 2**i for i in range(17)]
    limits = [Limit(name, size) for name in ("warm read", "copy") for size in sizes]
    return _plan("reads", (), reads=sizes, limits=[*limits, Limit("torch copy", costs.GiB), *MATMULS])


# The workloads of the ledger.


def decode_workloads(dtype: str) -> list[Shape]:
    sizes = (1, 32, 8, 8192), (1, 32, 8, 131072), (16, 32, 8, 8192), (64, 32, 8, 8192)
    sizes += (1, 64, 8, 32768), (32, 32, 32, 4096), (32, 32, 1, 8192), (128, 32, 8, 1024)
    return [Shape(*size, dtype=dtype) for size in sizes]


def paged_workloads(dtype: str) -> list[Shape]:
    sizes = (16, 8192, "equal"), (64, 8192, "equal"), (64, 32768, "ragged"), (1, 131072, "equal")
    return [
        Shape(batch, 32, 8, context_len, dtype=dtype, lengths=lengths, page_size=page_size)
        for batch, context_len, lengths in sizes
        for page_size in (16, 64)
    ]


def mla_workloads(n_heads: int, dtype: str) -> list[Shape]:
    sizes = (1, 8192), (1, 131072), (16, 8192), (64, 8192), (128, 4096)
    return [Shape.mla(batch, n_heads, context_len, dtype=dtype) for batch, context_len in sizes]


def ragged_mla_workloads(dtype: str) -> list[Shape]:
    return [Shape.mla(64, n_heads, 32768, dtype=dtype, page_size=64, lengths="ragged") for n_heads in (16, 128)]


def whole(batch: int, n_q_heads: int, n_kv_heads: int, context_len: int, **more) -> Shape:
    """All tokens of a sequence at once."""
    return Shape(batch, n_q_heads, n_kv_heads, context_len, **{"q_len": context_len} | more)


def prefill_workloads(direction: str, dtype: str) -> list[Shape]:
    """MHA, GQA and the expanded form of MLA."""
    sizes = (32, 32, 128), (32, 8, 128), (16, 16, 192)
    return [whole(2, q, kv, 8192, head_dim_qk=width, dtype=dtype, direction=direction) for q, kv, width in sizes]


def length_workloads(direction: str, dtype: str) -> list[Shape]:
    """The same number of tokens in shorter and longer sequences; the forward pass with and without a mask."""

    def of(context_len: int, *sizes: int, **more) -> Shape:
        return whole(16384 // context_len, *sizes, context_len, dtype=dtype, direction=direction, **more)

    if direction == "backward":
        return [of(context_len, 32, 8) for context_len in (1024, 2048, 4096)]
    return [
        shape
        for n in (512, 1024, 2048, 4096, 8192, 16384)
        for shape in (of(n, 32, 8), of(n, 32, 8, causal=False), of(n, 32, 32), of(n, 16, 16, head_dim_qk=192))
    ]


def chunk_workloads(dtype: str) -> list[Shape]:
    """A chunk of a prompt over what is cached already."""
    return [whole(2, 32, 8, 8192, q_len=q_len, dtype=dtype) for q_len in (16, 32, 64, 256, 1024, 4096)]


def token_workloads(dtype: str) -> list[Shape]:
    sizes = (1, 32768), (16, 8192), (64, 8192)
    return [Shape(batch, 32, 8, n, q_len=q_len, dtype=dtype) for q_len in range(1, 9) for batch, n in sizes]


def many_row_workloads(dtype: str) -> list[Shape]:
    """So many rows share a KV head that arithmetic counts: MQA with 32 and with 128 heads, groups of 16."""
    sizes = (64, 32, 1, 8192), (16, 128, 1, 8192), (64, 64, 4, 8192)
    return [Shape(*size, q_len=q_len, dtype=dtype) for size in sizes for q_len in range(1, 9)]


def decode(dtype: str) -> Plan:
    """Heads against context at three batches, splits on a part of it, and eight workloads, with all contenders."""
    workloads = decode_workloads(dtype)
    grid = [
        Shape(batch, 32, n_kv_heads, context_len, dtype=dtype)
        for batch in (1, 16, 64)
        for context_len in (512, 2048, 8192, 32768, 131072)
        for n_kv_heads in (1, 2, 4, 8, 16, 32)
    ]
    split = [
        Shape(batch, 32, n_kv_heads, context_len, dtype=dtype)
        for batch in (1, 4, 16)
        for context_len in (8192, 131072)
        for n_kv_heads in (1, 8, 32)
    ]
    points: list[Point] = []
    for shape in dict.fromkeys(workloads + grid + split):
        points.append(ours(shape))
        if shape in split:
            points += splits(shape)
        if shape in workloads or shape in grid:
            points += peers(shape)
        if shape in workloads:
            points += flashinfer(shape, "fa2", "CUDA cores")
        if shape in (workloads[0], workloads[1]):
            points += [Point(shape, "decode", num_splits=n) for n in BETWEEN]
        if shape in workloads[2:4]:  # each shape is compiled for itself, which takes long
            points.append(Point(shape, "flex"))
    return _plan("decode", points)


def paged(dtype: str) -> Plan:
    """Two page sizes at equal and ragged lengths against FlashInfer, the contiguous twins, and page sizes from 1 to 256."""
    points: list[Point] = []
    for shape in paged_workloads(dtype):
        points += [ours(shape), with_work_list(shape), *flashinfer(shape, "fa2", "CUDA cores")]
        if shape.lengths == "equal":
            points.append(ours(replace(shape, page_size=None)))
    pages = Shape(16, 32, 8, 8192, dtype=dtype)
    points += [ours(replace(pages, page_size=size)) for size in (1, 2, 4, 8, 16, 32, 48, 64, 128, 256)]
    for size in (1, 16, 64, 256):
        shape = replace(pages, page_size=size)
        points += flashinfer(shape, "fa2")
        points += [ours(replace(shape, dtype="float16")), ours(replace(shape, cache_dtype=FLOAT8))]
    return _plan("paged", points)


def mla(dtype: str) -> Plan:
    """Absorbed MLA: 16 and 128 heads against FlashInfer and FlashMLA, contiguous and paged; more heads; context; splits."""
    points: list[Point] = []
    for n_heads in (128, 16):
        for shape in mla_workloads(n_heads, dtype):
            pages = replace(shape, page_size=64)
            points += [ours(shape), *flashinfer(shape, "fa2"), *latent_peers(shape)]
            points += [ours(pages), with_work_list(pages), ours(replace(shape, page_size=16)), portable(shape), portable(pages)]
    for shape in ragged_mla_workloads(dtype):
        points += [ours(shape), with_work_list(shape), *flashinfer(shape, "fa2"), *latent_peers(shape)]
    for n_heads in (16, 32, 64, 96, 128):
        for batch, context_len in ((16, 8192), (64, 8192), (1, 131072)):
            shape = Shape.mla(batch, n_heads, context_len, dtype=dtype)
            points += [ours(shape), portable(shape), *latent_peers(shape)]
    for n_heads in (16, 128):
        for batch in (1, 16, 64):
            points += [ours(Shape.mla(batch, n_heads, n, dtype=dtype)) for n in (512, 2048, 8192, 32768)]
        for batch, context_len in ((1, 8192), (1, 131072), (16, 8192)):
            points += splits(Shape.mla(batch, n_heads, context_len, dtype=dtype))
    return _plan("mla", points, limits=MATMULS)


def prefill(dtype: str) -> Plan:
    """Whole sequences, forward and backward: MHA, GQA and MLA's expanded form; lengths, masks, chunks, partial gradients."""

    def against(shape: Shape, *backends: str) -> list[Point]:
        return [ours(shape), portable(shape), *(Point(shape, "sdpa", backend) for backend in backends)]

    points: list[Point] = []
    everybody = ("FLASH", "CUDNN", "EFFICIENT")
    for shape in prefill_workloads("forward", dtype):
        points += [*against(shape, *everybody), *flashinfer(shape, "fa2", "fa3"), flash_attn(shape)]
    for shape in prefill_workloads("backward", dtype):
        points += [*against(shape, *everybody), flash_attn(shape)]
        if shape.group_size > 1:
            points += [Point(replace(shape, direction="forward"), "flex"), Point(shape, "flex"), partial_sums(shape)]
    for shape in length_workloads("forward", dtype):
        points += against(shape, *(("CUDNN",) if shape.head_dim_qk == 192 else ("FLASH", "CUDNN")))
        if shape.causal and shape.group_size > 1:
            points.append(flash_attn(shape))
    for shape in length_workloads("backward", dtype):
        points += [*against(shape, "FLASH", "CUDNN"), flash_attn(shape), partial_sums(shape)]
    for n_kv_heads in (1, 2, 16):  # partial gradients grow with the group
        shape = whole(2, 32, n_kv_heads, 8192, direction="backward", dtype=dtype)
        points += [ours(shape), portable(shape), partial_sums(shape)]
    for shape in chunk_workloads(dtype):
        points += against(shape, "FLASH", "CUDNN")
    return _plan("prefill", points, limits=MATMULS)


def fp8(dtype: str) -> Plan:
    """A cache in 8 bits beside the same in 16: GQA and MLA, contiguous and paged, small and large."""
    gqa = [
        Shape(batch, 32, n_kv_heads, context_len, dtype=dtype)
        for batch, n_kv_heads, context_len in (
            (1, 8, 8192),
            (1, 8, 131072),
            (16, 8, 8192),
            (64, 8, 8192),
            (32, 32, 4096),
            (32, 1, 8192),
            (64, 1, 32768),
        )
    ]
    latent = [*mla_workloads(16, dtype), *mla_workloads(128, dtype)]
    pages = [replace(shape, page_size=size) for shape in (gqa[2], gqa[3]) for size in (16, 64)]
    pages += [replace(shape, page_size=64) for shape in latent if shape.batch == 64]
    shapes = gqa + latent + pages
    points = [ours(replace(shape, cache_dtype=cache_dtype)) for shape in shapes for cache_dtype in (None, FLOAT8)]
    return _plan("fp8", points, limits=MATMULS[1:])


def tokens(dtype: str) -> Plan:
    """One to eight new tokens a sequence, as drafts are verified: GQA, many rows a KV head, MLA with 16 and 128 heads."""
    points: list[Point] = []
    for shape in token_workloads(dtype):
        points.append(ours(shape))
        if shape.q_len in (1, 4, 8):
            points += [Point(shape, "sdpa", backend) for backend in ("FLASH", "CUDNN")] + flashinfer(shape, "fa2")
    for shape in many_row_workloads(dtype):
        points.append(ours(shape))
        if shape.group_size * shape.q_len > 32:
            points.append(portable(shape))
        if shape.q_len in (1, 4, 8):
            points += flashinfer(shape, "fa2", *(() if shape.q_len == 1 else ("fa3",)))
    for q_len in range(1, 9):
        for n_heads in (16, 128):
            shape = Shape.mla(16, n_heads, 8192, q_len=q_len, dtype=dtype)
            points.append(ours(shape))
            if q_len in (1, 4, 8):
                points += flashinfer(shape, "fa3")
    return _plan("tokens", points, limits=MATMULS[1:])


def sharing(dtype: str) -> Plan:
    """What becomes of shared heads in PyTorch: copied, broadcast, folded into rows, handed to a backend; the copies alone."""
    points: list[Point] = []
    for batch, context_len in ((1, 8192), (16, 2048), (16, 8192)):
        for n_kv_heads in (32, 8, 1):
            shape = Shape(batch, 32, n_kv_heads, context_len, dtype=dtype)
            points += [ours(shape), Point(shape, "matmul", "rows")]
            points += [Point(shape, "sdpa", backend) for backend in ("FLASH", "CUDNN")]
            if shape.group_size > 1:
                points.append(Point(shape, "copy_heads", "repeat_interleave"))
                if n_kv_heads > 1:  # one head, expanded, is reshaped without a copy
                    points.append(Point(shape, "copy_heads", "expand"))
                points += [Point(shape, "repeat_sdpa", backend) for backend in ("FLASH", "CUDNN")]
                points += [Point(shape, "matmul", form) for form in ("broadcast", "repeat_interleave")]
    return _plan("sharing", points, limits=[Limit("torch copy", costs.GiB)])


def eager(dtype: str) -> Plan:
    """Short calls launched one by one from Python, as in a model without CUDA graphs: who waits for whom."""
    points: list[Point] = []
    for context_len in (512, 2048, 8192):
        for n_kv_heads in (32, 8):
            shape = Shape(1, 32, n_kv_heads, context_len, dtype=dtype)
            points += [ours(shape), Point(shape, "sdpa", "FLASH"), Point(shape, "sdpa", "CUDNN")]
            if shape.group_size > 1:
                points += [Point(shape, "repeat_sdpa", "FLASH"), Point(shape, "copy_heads", "repeat_interleave")]
            points.append(Point(shape, "matmul", "rows"))
    return replace(_plan("eager", points), method="events")


def step_workloads(dtype: str) -> list[Shape]:
    """Long sequences, short ones with heads that share, and the expanded form of MLA."""
    mha, _, mla = prefill_workloads("forward", dtype)
    return [mha, whole(16, 32, 8, 1024, dtype=dtype), mla]


def steps(dtype: str) -> Plan:
    """What each step of the full-sequence kernel for Hopper brings: a ladder of them, and all but one."""
    points: list[Point] = []
    for shape in step_workloads(dtype):
        points += [portable(shape), *(Point(shape, "attention_steps", variant) for variant in VARIANTS), ours(shape)]
        points.append(Point(shape, "sdpa", "CUDNN"))
    return _plan("steps", points, reads=READS[-1:], limits=MATMULS[1:])


KINDS = {plan.__name__: plan for plan in (reads, decode, paged, mla, prefill, fp8, tokens, sharing, eager, steps)}
