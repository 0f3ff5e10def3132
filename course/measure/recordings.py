"""Read recordings back, labelled: what was measured, on which GPU, with what, when.

A recording is a JSON file under book/recorded/<gpu>/ that ``python -m course.measure`` writes. Its numbers are never
shown without ``Recording.label``.
"""

import difflib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import costs
from .code import is_current
from .steps import VARIANTS

SCHEMA = 2
RECORDED = Path(__file__).resolve().parents[2] / "book" / "recorded"

NUMBER, WHOLE, TEXT = (int, float), (int,), (str,)
PROVENANCE = {
    "gpu": TEXT,
    "sm_count": WHOLE,
    "l2_bytes": WHOLE,
    "capability": TEXT,
    "memory_bytes": WHOLE,
    "driver": (str, type(None)),
    "torch": TEXT,
    "triton": TEXT,
    "cuda": TEXT,
    "python": TEXT,
    "date": TEXT,
    "commit": (str, type(None)),
    "kernels_sha256": TEXT,
    "method": TEXT,
    "plan_sha256": (str, type(None)),
    "peers": (dict,),
}
READ = {"bytes": WHOLE, "median_s": NUMBER, "p20_s": NUMBER, "p80_s": NUMBER}
LIMIT = {"operation": TEXT, **READ, "flops": WHOLE}
POINT_KEYS = (
    "operation",
    "backend",
    "dtype",
    "batch",
    "n_q_heads",
    "n_kv_heads",
    "head_dim_qk",
    "head_dim_v",
    "context_len",
    "head_dim_shared",
    "q_len",
    "causal",
    "direction",
    "cache_dtype",
    "page_size",
    "lengths",
    "splits",
)
ROW = {
    "operation": TEXT,
    "backend": (str, type(None)),
    "dtype": TEXT,
    "batch": WHOLE,
    "n_q_heads": WHOLE,
    "n_kv_heads": WHOLE,
    "head_dim_qk": WHOLE,
    "head_dim_v": WHOLE,
    "context_len": WHOLE,
    "head_dim_shared": WHOLE,
    "q_len": WHOLE,
    "causal": (bool,),
    "direction": TEXT,
    "cache_dtype": (str, type(None)),
    "page_size": (int, type(None)),
    "lengths": TEXT,
    "num_splits": (int, type(None)),
    "splits": (str, type(None)),
    "cache_bytes": WHOLE,
    "flops": WHOLE,
    "status": TEXT,
    "reason": (str, type(None)),
    "median_s": (int, float, type(None)),
    "p20_s": (int, float, type(None)),
    "p80_s": (int, float, type(None)),
    "rounds": (int, type(None)),
    "method": (str, type(None)),
    "error": (dict, type(None)),
    "cache_error": (dict, type(None)),
}
# Schema 1 knew decode steps of one token over a contiguous cache in q's dtype, and no more.
SINCE_2 = {
    "head_dim_shared": 0,
    "q_len": 1,
    "causal": True,
    "direction": "forward",
    "cache_dtype": None,
    "page_size": None,
    "lengths": "equal",
    "cache_error": None,
}
CHOICES = {
    "operation": (
        *("decode", "paged_decode", "mla_decode", "paged_mla_decode", "attention", "partials_then_sum"),
        *("portable_decode", "portable_mla_decode", "portable_paged_mla_decode", "portable_attention"),
        *("sdpa", "repeat_sdpa", "flex", "flashinfer", "flash_attn", "flash_mla"),
        *("copy_heads", "matmul", "attention_steps"),
    ),
    "backend": (
        *(None, "FLASH", "CUDNN", "EFFICIENT", "MATH", "fa2", "fa3", "fa4", "CUDA cores"),
        *("repeat_interleave", "expand", "broadcast", "rows", *VARIANTS),
    ),
    "direction": ("forward", "backward"),
    "cache_dtype": (None, "float8_e4m3fn"),
    "lengths": ("equal", "ragged"),
    "splits": (None, "automatic", "given", "work list"),
    "status": ("ok", "out of memory", "unsupported", "wrong"),
    "method": (None, "graph", "events"),
}
TIMES = ("p20_s", "median_s", "p80_s")


@dataclass(frozen=True)
class Recording:
    """One sealed recording. ``rows``, ``reads`` (cold, by size) and ``limits`` (what else this GPU can do at most) are as in
    the file; times are in seconds, sizes in bytes."""

    kind: str
    provenance: dict
    reads: list[dict]
    rows: list[dict]
    limits: list[dict] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The words that go with every number of this recording."""
        p = self.provenance
        article = "an" if p["gpu"][0] in "AEFHILMNORSX" and p["gpu"].split()[0].isupper() else "a"
        driver = f"driver {p['driver']}, " if p["driver"] else ""
        return f"recorded on {article} {p['gpu']}, {driver}torch {p['torch']}, Triton {p['triton']}, {p['date']}"

    @property
    def current(self) -> bool:
        """Whether the kernels that were measured are the ones that are here now."""
        return is_current(self.provenance)

    @property
    def read_bandwidth(self) -> float:
        """Bytes a second of the largest cold read: what this GPU's memory gave in this recording."""
        if not self.reads:
            raise ValueError("this recording holds no reads")
        largest = max(self.reads, key=lambda read: read["bytes"])
        return largest["bytes"] / largest["median_s"]

    @property
    def l2_bandwidth(self) -> float | None:
        """Bytes a second by which warm reads grow beyond their fixed time: what the L2 gave. None where too few are recorded.

        From 4 MiB to six tenths of the cache; of what is larger it may not hold all.
        """
        sizes = range(4 << 20, self.provenance["l2_bytes"] * 6 // 10)
        warm = [row for row in self.limits if row["operation"] == "warm read" and row["bytes"] in sizes]
        return costs.fit((row["bytes"], row["median_s"]) for row in warm).bandwidth if len(warm) > 1 else None

    @property
    def product_rate(self) -> float | None:
        """FLOP/s of a large matrix product on a hot card; None where it is not recorded."""
        recorded = any(limit["operation"] == "matmul sustained" for limit in self.limits)
        return self.limit("matmul sustained", "flops") if recorded else None

    def read_seconds(self, n_bytes: float) -> float:
        """Seconds of a cold read of that size, between the sizes that were recorded, beyond them at the nearest one's rate."""
        reads = sorted(self.reads, key=lambda read: read["bytes"])
        sizes, times = [read["bytes"] for read in reads], [read["median_s"] for read in reads]
        if n_bytes <= sizes[0] or n_bytes >= sizes[-1]:
            end = 0 if n_bytes <= sizes[0] else -1
            return n_bytes * times[end] / sizes[end]
        return float(np.interp(n_bytes, sizes, times))

    def limit(self, operation: str, key: str = "bytes") -> float:
        """Bytes (or with key='flops' FLOPs) a second of the largest 'copy', 'warm read', 'matmul sustained', … recorded.

        Raises LookupError if there is none.
        """
        found = [limit for limit in self.limits if limit["operation"] == operation]
        if not found:
            names = ", ".join(dict.fromkeys(limit["operation"] for limit in self.limits)) or "none"
            raise LookupError(f"this recording of kind {self.kind!r} holds no {operation!r} (there are: {names})")
        largest = max(found, key=lambda limit: limit["bytes"])
        return largest[key] / largest["median_s"]

    def fastest(self, **equal: object) -> dict | None:
        """The fastest row that succeeded among those with these fields; None if there is none. Fields as in ``select``."""
        return fastest(self.select(**equal))

    def select(self, **equal: object) -> list[dict]:
        """Rows whose fields equal the given values, e.g. ``select(operation='decode', batch=1, status='ok')``.

        Raises ValueError for a field that rows do not have.
        """
        for key in equal:
            if key not in ROW:
                nearest = difflib.get_close_matches(key, ROW, 1)
                raise ValueError(
                    f"rows have no field {key!r}{f'; did you mean {nearest[0]!r}?' if nearest else ''} "
                    f"(fields: {', '.join(ROW)})"
                )
        return [row for row in self.rows if all(row[key] == value for key, value in equal.items())]


def fastest(rows: Iterable[dict]) -> dict | None:
    """The fastest of the rows that succeeded; None if none did."""
    return min((row for row in rows if row["status"] == "ok"), key=lambda row: row["median_s"], default=None)


def load(path: str | Path) -> Recording:
    """Read and validate one file. Raises ValueError that names the file, the place and what is wrong with it."""
    path = Path(path)
    try:
        data = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is damaged or cut off: {error}") from None
    try:
        _validate(data)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    return Recording(data["kind"], data["provenance"], data["reads"], data["rows"], data["limits"])


def recordings(gpu: str | None = None, kind: str = "decode", *, folder: Path | None = None) -> list[Recording]:
    """All recordings of a kind, newest first; of one GPU if named as torch names it ('NVIDIA H200')."""
    found = [(load(path), path.name) for path in (folder or RECORDED).glob(f"*/{kind}-*.json")]
    # Of one day the later name is the newer: no number, then -2, -3, … -10.
    found.sort(key=lambda pair: (pair[0].provenance["date"], len(pair[1]), pair[1]), reverse=True)
    return [recording for recording, _ in found if recording.kind == kind and gpu in (None, recording.provenance["gpu"])]


def latest(gpu: str = "NVIDIA H200", kind: str = "decode", *, folder: Path | None = None) -> Recording:
    """The newest recording of a GPU. Raises LookupError that says which GPUs there are."""
    found = recordings(gpu, kind, folder=folder)
    if not found:
        names = sorted({recording.provenance["gpu"] for recording in recordings(None, kind, folder=folder)})
        nearest = difflib.get_close_matches(gpu, names, 1)
        raise LookupError(
            f"no {kind} recording of {gpu!r}{f'; did you mean {nearest[0]!r}?' if nearest else ''} "
            f"(there are: {', '.join(names) or 'none'}). `python -m course.measure` makes one on a CUDA GPU."
        )
    return found[0]


def check(recording: Recording) -> list[str]:
    """What cannot be true: points faster than the data sheet allows. Empty if ``costs.gpu`` does not know the GPU."""
    try:
        gpu = costs.gpu(recording.provenance["gpu"])
    except ValueError:
        return []
    problems = []
    for read in recording.reads:
        if read["median_s"] < read["bytes"] / gpu.bandwidth:
            problems.append(f"read of {read['bytes']} bytes: {read['median_s']:.3g} s is above 100% of the data sheet")
    for limit in recording.limits:
        n_bytes = limit["bytes"] if "copy" in limit["operation"] else 0  # a warm read need not reach the memory
        if limit["median_s"] < (least := costs.floor(n_bytes, limit["flops"], gpu, dtype=gpu.half).seconds):
            problems.append(f"{limit['operation']}: {limit['median_s']:.3g} s is above 100% of the data sheet ({least:.3g} s)")
    for row in recording.select(status="ok"):
        least = costs.floor(row["cache_bytes"], row["flops"], gpu, dtype=row["dtype"]).seconds
        if row["median_s"] < least:
            where = ", ".join(f"{key}={row[key]}" for key in (*POINT_KEYS, "num_splits") if row[key] is not None)
            problems.append(f"{where}: {row['median_s']:.3g} s is above 100% of the data sheet ({least:.3g} s)")
    return problems


def slug(gpu: str) -> str:
    """Folder name of a GPU: 'NVIDIA H200' -> 'nvidia-h200'."""
    return "-".join("".join(c if c.isalnum() else " " for c in gpu.lower()).split())


def _validate(data: object) -> None:
    top = {"schema": WHOLE, "kind": TEXT, "provenance": (dict,), "reads": (list,), "rows": (list,)}
    fields("recording", data, top)
    if data["schema"] == 1:
        data["provenance"] = {"plan_sha256": None, "peers": {}} | data["provenance"]
        data["rows"] = [SINCE_2 | row if isinstance(row, dict) else row for row in data["rows"]]
        data["limits"] = []
    elif data["schema"] != SCHEMA:
        raise ValueError(f"schema is {data['schema']}, and this course reads schemas 1 and {SCHEMA}")
    fields("recording", data, {"limits": (list,)})
    fields("provenance", data["provenance"], PROVENANCE)
    for i, limit in enumerate(data["limits"]):
        fields(f"limits[{i}]", limit, LIMIT)
        _times(f"limits[{i}]", limit)
    for i, read in enumerate(data["reads"]):
        fields(f"reads[{i}]", read, READ)
        _times(f"reads[{i}]", read)
        _positive(f"reads[{i}].bytes", read["bytes"])
    for i, row in enumerate(data["rows"]):
        _row(f"rows[{i}]", row)


def _row(where: str, row: object) -> None:
    fields(where, row, ROW)
    for key, choices in CHOICES.items():
        if row[key] not in choices:
            raise ValueError(f"{where}.{key} is {row[key]!r}, not one of {', '.join(map(repr, choices))}")
    for key, kinds in ROW.items():
        if kinds == WHOLE and key != "head_dim_shared":
            _positive(f"{where}.{key}", row[key])
    if row["status"] == "ok":
        _times(where, row)
        if row["rounds"] is None or row["method"] is None or row["error"] is None:
            raise ValueError(f"{where} is ok and has no rounds, method or error")
        for key in ("error", "cache_error") if row["cache_dtype"] else ("error",):
            fields(f"{where}.{key}", row[key], {"max_abs": NUMBER, "relative_l2": NUMBER})
    else:
        if any(row[key] is not None for key in TIMES):
            raise ValueError(f"{where} has status {row['status']!r} and a time all the same")
        if row["reason"] is None:
            raise ValueError(f"{where} has status {row['status']!r} and no reason")


def fields(where: str, value: object, wanted: dict[str, tuple[type, ...]]) -> None:
    """Hold the fields of an object against their types. Raises ValueError that names the field, and ``where`` it is."""
    if not isinstance(value, dict):
        raise ValueError(f"{where} is a {type(value).__name__}, not an object")
    for key, kinds in wanted.items():
        if key not in value:
            raise ValueError(f"{where}.{key} is missing")
        # bool is a kind of int in Python, and a NaN a kind of float: neither is a number here. Where a bool is wanted it is.
        entry = value[key]
        finite = not isinstance(entry, float) or math.isfinite(entry)
        if not isinstance(entry, kinds) or (isinstance(entry, bool) and bool not in kinds) or not finite:
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise ValueError(f"{where}.{key} is {entry!r}, not {names}")


def _times(where: str, value: dict) -> None:
    for key in TIMES:
        if value[key] is None:
            raise ValueError(f"{where}.{key} is null")
        _positive(f"{where}.{key}", value[key])
    if not value["p20_s"] <= value["median_s"] <= value["p80_s"]:
        raise ValueError(f"{where}: the median is not between the 20th and the 80th percentile")


def _positive(where: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{where} is {value}, not above 0")
