"""Ours against the best peer, workload by workload, and the goals that this version set out to reach."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter

from . import plans
from .recordings import Recording, fastest
from .shapes import Shape

DTYPE = "bfloat16"
LEVEL = 0.005  # a ratio that prints as 1.00 is neither won nor lost
PEERS = {
    "sdpa": "SDPA",
    "repeat_sdpa": "heads copied, SDPA",
    "flex": "FlexAttention",
    "flashinfer": "FlashInfer",
    "flash_attn": "FlashAttention",
    "flash_mla": "FlashMLA",
}


@dataclass(frozen=True)
class Entry:
    """One shape of a workload: our fastest row, everybody's rows, and the recording they are from."""

    shape: Shape
    recording: Recording
    rows: list[dict]  # of this shape, those apart whose number of splits was imposed

    @property
    def ours(self) -> dict | None:
        return fastest(row for row in self.rows if row["operation"] == self.shape.operation)

    @property
    def peer(self) -> dict | None:
        return fastest(row for row in self.rows if row["operation"] in PEERS)

    @property
    def result(self) -> str:
        """'win, 0.97', 'level, 1.00', 'loss, 1.04': in words, with our time over the best peer's."""
        if not self.ours or not self.peer:
            return "no peer" if self.ours else "no time of ours"
        ratio = self.ours["median_s"] / self.peer["median_s"]
        word = "level" if abs(ratio - 1) < LEVEL else "win" if ratio < 1 else "loss"
        return f"{word}, {ratio:.2f}"

    @property
    def read_share(self) -> float | None:
        """Bytes over our time, as a share of the read rate of the same recording."""
        return self.ours and self.ours["cache_bytes"] / self.ours["median_s"] / self.recording.read_bandwidth

    @property
    def sized_read_share(self) -> float | None:
        """The time of a plain read of the same size over our time: a small cache cannot be read at the full rate."""
        return self.ours and self.recording.read_seconds(self.ours["cache_bytes"]) / self.ours["median_s"]

    @property
    def flop_rate(self) -> float | None:
        return self.ours and self.ours["flops"] / self.ours["median_s"]

    @property
    def product_share(self) -> float | None:
        """Our FLOP/s as a share of a large matrix product's on a hot card, in the same recording."""
        return self.ours and self.flop_rate / self.recording.limit("matmul sustained", "flops")

    @property
    def sixteen(self) -> dict | None:
        """Our row over the same cache in 16 bits."""
        return entry(replace(self.shape, cache_dtype=None), self.recording).ours

    @property
    def speed_up(self) -> float | None:
        return self.sixteen["median_s"] / self.ours["median_s"] if self.ours and self.sixteen else None

    def peer_ratio(self, **fields: object) -> float | None:
        """Our time over that of the fastest peer with these fields, as it is printed."""
        rows = (row for row in self.rows if row["operation"] in PEERS and all(row[key] == v for key, v in fields.items()))
        peer = fastest(rows)
        return round(self.ours["median_s"] / peer["median_s"], 2) if self.ours and peer else None


@dataclass(frozen=True)
class Workload:
    """A table of the ledger. ``bound``: 'memory' shows the share of a read, 'arithmetic' that of a matrix product, 'bits' the
    same cache in 16 and in 8 bits."""

    title: str
    kind: str
    bound: str
    shapes: Sequence[Shape]
    words: str


def _other_lengths(direction: str) -> list[Shape]:
    known = plans.prefill_workloads(direction, DTYPE)
    return [shape for shape in plans.length_workloads(direction, DTYPE) if shape not in known]


WORKLOADS = {
    "decode": Workload(
        "Decode, contiguous cache", "decode", "memory", plans.decode_workloads(DTYPE),
        "Rows name the batch, query heads over KV heads, and the tokens of a sequence.",
    ),
    "paged": Workload(
        "Decode, paged cache", "paged", "memory", plans.paged_workloads(DTYPE),
        "Ragged: 64 sequences of 512 to 32,768 tokens. Ours is the faster of even splits and the work list.",
    ),
    "mla16": Workload(
        "MLA, 16 heads", "mla", "memory", plans.mla_workloads(16, DTYPE),
        "Absorbed decode over records of 512 + 64. FlashInfer and FlashMLA read the same cache as pages of 64.",
    ),
    "mla128": Workload(
        "MLA, 128 heads", "mla", "arithmetic", plans.mla_workloads(128, DTYPE),
        "The same with as many heads as DeepSeek-V3 has on one GPU: bound by arithmetic.",
    ),
    "ragged_mla": Workload(
        "MLA, ragged lengths", "mla", "memory", plans.ragged_mla_workloads(DTYPE),
        "64 sequences of 512 to 32,768 tokens in pages of 64, with 16 and with 128 heads.",
    ),
    "tokens": Workload(
        "Several new tokens", "tokens", "memory", [s for s in plans.token_workloads(DTYPE) if s.q_len in (4, 8)],
        "A step that verifies drafts: M new tokens a sequence, causal among themselves.",
    ),
    "many_rows": Workload(
        "Many rows a KV head", "tokens", "arithmetic", [s for s in plans.many_row_workloads(DTYPE) if s.q_len in (4, 8)],
        "The same over one KV head, or four with 16 query heads each: 64 to 1,024 rows share their keys.",
    ),
    "forward": Workload(
        "Whole sequences, forward", "prefill", "arithmetic", plans.prefill_workloads("forward", DTYPE),
        "Causal. 192/128 is the expanded form of MLA: keys of 192, values of 128.",
    ),
    "backward": Workload(
        "Whole sequences, backward", "prefill", "arithmetic", plans.prefill_workloads("backward", DTYPE),
        "The gradients alone; five products where the forward pass has two.",
    ),
    "forward_lengths": Workload(
        "Forward, other lengths", "prefill", "arithmetic", _other_lengths("forward"),
        "16,384 tokens in all, in sequences of 512 to 16,384, causal or not.",
    ),
    "backward_lengths": Workload(
        "Backward, other lengths", "prefill", "arithmetic", _other_lengths("backward"),
        "16,384 tokens in all, in sequences of 1,024 to 4,096.",
    ),
    "chunks": Workload(
        "A chunk of a prompt", "prefill", "arithmetic", plans.chunk_workloads(DTYPE),
        "M new tokens over a cache that holds 8,192 with theirs.",
    ),
    "bits": Workload(
        "A cache in 8 bits", "fp8", "bits", [s for s in plans.fp8(DTYPE).by_shape if s.cache_dtype],
        "Ours alone, with a scale for each token and head, so the bytes allow 1.94 times the speed, MLA's 1.79. Rounding is "
        "the relative error that the stored cache brings into the result: of random numbers, not of a model's.",
    ),
}  # fmt: skip


def entries(workload: Workload, recording: Recording) -> list[Entry]:
    """The workload's shapes as they are in the recording."""
    return [entry(shape, recording) for shape in workload.shapes]


def entry(shape: Shape, recording: Recording) -> Entry:
    rows = recording.select(**asdict(shape))
    return Entry(shape, recording, [row for row in rows if row["splits"] != "given"])


# --- goals


@dataclass(frozen=True)
class Goal:
    """A bound on a value of every entry: at least or at most ``bound``."""

    words: str
    workload: str
    value: Callable[[Entry], float | None]
    bound: float
    at_least: bool = False
    only: Callable[[Entry], bool] = lambda entry: True
    shown: str = ".2f"

    def met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound


def _between(low: float, high: float) -> Callable[[Entry], bool]:
    return lambda e: low <= e.shape.cache_bytes < high


def _large_gqa(e: Entry) -> bool:
    return not e.shape.head_dim_shared and replace(e.shape, cache_dtype=None).cache_bytes >= 5e8


def _against(**fields: object) -> Callable[[Entry], float | None]:
    return lambda e: e.peer_ratio(**fields)


def _paged_over_contiguous(e: Entry) -> float | None:
    pages = entry(replace(e.shape, page_size=64), e.recording).ours
    return pages["median_s"] / e.ours["median_s"] if pages and e.ours else None


def _wide(width: int) -> Callable[[Entry], bool]:
    return lambda e: e.shape.head_dim_qk == width


def _batched(e: Entry) -> bool:
    return e.shape.batch > 1


SIZED, READ = attrgetter("sized_read_share"), attrgetter("read_share")
FA3, CUDNN = _against(backend="fa3"), _against(backend="CUDNN")
GOALS = (
    Goal("Decode: no slower than the best peer", "decode", _against(), 1.0),
    Goal("Decode, 2 GB: 98% of a read of that size", "decode", SIZED, 0.98, True, _between(2e9, 3e9), ".1%"),
    Goal("Decode, 0.5 GB: 95% of a read of that size", "decode", SIZED, 0.95, True, _between(5e8, 1e9), ".1%"),
    Goal("Decode, 34 MB: 75% of a read of that size", "decode", SIZED, 0.75, True, _between(3e7, 4e7), ".1%"),
    Goal("Paged: no slower than FlashInfer", "paged", _against(operation="flashinfer"), 1.0),
    Goal("Paged, ragged: 90% of the read rate", "paged", READ, 0.9, True, lambda e: e.shape.lengths == "ragged", ".1%"),
    Goal("MLA, 16 heads: no slower than FlashInfer", "mla16", _against(operation="flashinfer"), 1.0),
    Goal("MLA, 16 heads, 0.6 GB: 90% of the read rate", "mla16", READ, 0.9, True, _between(6e8, 1e9), ".1%"),
    Goal("MLA, 16 heads: pages of 64 within 5% of contiguous", "mla16", _paged_over_contiguous, 1.05),
    Goal("MLA, 128 heads, batch 16 and more: 15% faster than FlashInfer's fa3", "mla128", FA3, 0.87, only=_batched),
    Goal("MLA, 128 heads, batch 1: 25% faster than FlashInfer's fa3", "mla128", FA3, 0.8, only=lambda e: e.shape.batch == 1),
    Goal("MLA, 128 heads: pages of 64 within 5% of contiguous", "mla128", _paged_over_contiguous, 1.05),
    Goal("GQA cache in 8 bits, 0.5 GB in 16: 1.8 times as fast", "bits", attrgetter("speed_up"), 1.8, True, _large_gqa),
    Goal("Forward, width 128: 1.10 times as fast as cuDNN", "forward", CUDNN, 0.91, only=_wide(128)),
    Goal("Forward, 192/128: 1.22 times as fast as cuDNN", "forward", CUDNN, 0.82, only=_wide(192)),
    Goal("Forward, other lengths: 1.05 times as fast as cuDNN", "forward_lengths", CUDNN, 0.95),
    Goal("Backward: 1.05 times as fast as cuDNN", "backward", CUDNN, 0.95),
    Goal("Backward, other lengths: 1.05 times as fast as cuDNN", "backward_lengths", CUDNN, 0.95),
)
