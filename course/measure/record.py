"""Record a sweep: correctness first, then time, one row a point, kept as it goes and sealed at the end.

Every finished row goes to ``<kind>.partial.jsonl`` at once. A run that is broken off keeps them; the next one goes on
from there if plan, kernels, GPU and versions are the same, and sets the old file aside otherwise. A complete file
becomes ``<kind>-<date>.json``, which nothing overwrites.
"""

import dataclasses
import gc
import hashlib
import json
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

import kernels

from .. import costs
from . import timing
from .contenders import BACKENDS, Bench, Point, Shape, automatic_splits, why_not
from .recordings import POINT_KEYS, RECORDED, check, load, slug

SECONDS_A_POINT = 0.1
SECONDS_A_ROW = 0.3  # with allocation, check and capture: for the estimate of --list only
COPIED_CACHE_LIMIT = 10**9  # what copies its heads is measured up to this cache, to bound the time of a sweep

METHOD = (
    "Each contender's output is compared with a float64 definition on fresh random input before it is timed; rows that "
    "differ carry no time. Time is the median over rounds of a CUDA graph replay divided by its calls ('graph'), or of "
    "eager calls between CUDA events where capture is refused ('events'), with the 20th and 80th percentile; a decode "
    "includes its merge. Calls go round over copies of the cache: together 0.9 GB and four times the L2, or more. "
    "Contenders of one shape are measured in turn, round by round; those that copy heads, by themselves. Reads: a "
    "kernel that loads a buffer once, rotated likewise."
)


class ContextLost(RuntimeError):
    """The GPU's context is broken after a crash: this process can measure nothing more."""


@dataclass(frozen=True)
class Plan:
    """What a recording holds: sizes of cold reads in bytes, and points grouped by shape."""

    kind: str
    reads: tuple[int, ...]
    points: tuple[Point, ...]

    @property
    def by_shape(self) -> dict[Shape, list[Point]]:
        shapes: dict[Shape, list[Point]] = {}
        for point in self.points:
            shapes.setdefault(point.shape, []).append(point)
        return shapes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()


@dataclass(frozen=True)
class Machine:
    """Where a sweep runs. Tests put their own ``prepare`` and ``measure`` in."""

    device: torch.device
    provenance: dict
    prepare: Callable = timing.prepare
    measure: Callable = timing.measure


def decode_plan(dtype: str = "bfloat16") -> Plan:
    """Heads against context at three batches, splits on a part of it, and eight workloads, with all contenders."""
    workloads = [
        Shape(batch, n_q_heads, n_kv_heads, context_len, dtype=dtype)
        for batch, n_q_heads, n_kv_heads, context_len in (
            (1, 32, 8, 8192),
            (1, 32, 8, 131072),
            (16, 32, 8, 8192),
            (64, 32, 8, 8192),
            (1, 64, 8, 32768),
            (32, 32, 32, 4096),
            (32, 32, 1, 8192),
            (128, 32, 8, 1024),
        )
    ]
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
        points.append(Point(shape, "decode"))
        if shape in split:
            points += [Point(shape, "decode", num_splits=2**i) for i in range(8)]
        if shape in workloads or shape in grid:
            points += peers(shape)
    return Plan("decode", tuple(mib * costs.MiB for mib in (32, 128, 512, 2048)), tuple(points))


def quick_plan(dtype: str = "bfloat16") -> Plan:
    """A handful of shapes, in seconds. A kind of its own: it does not stand in for a full recording."""
    shapes = [Shape(batch, 32, heads, 8192, dtype=dtype) for batch, heads in ((1, 8), (16, 8), (16, 1), (16, 32))]
    points = [point for shape in shapes for point in (Point(shape, "decode"), *peers(shape))]
    return Plan("quick", (32 * costs.MiB, 512 * costs.MiB), tuple(points))


def peers(shape: Shape) -> list[Point]:
    """What people use today for this step, and our full-sequence kernel at one query."""
    points = [Point(shape, "attention")]
    points += [Point(shape, "sdpa", backend) for backend in BACKENDS]
    if shape.group_size > 1:
        points += [Point(shape, "repeat_sdpa", backend) for backend in ("FLASH", "CUDNN")]
    return [point for point in points if not point.copies_heads or shape.cache_bytes <= COPIED_CACHE_LIMIT]


def row(point: Point, device: torch.device) -> dict:
    """The part of a row that is known before it is measured."""
    splits = None if point.operation != "decode" else "automatic" if point.num_splits is None else "given"
    return {
        "operation": point.operation,
        "backend": point.backend,
        **dataclasses.asdict(point.shape),
        "num_splits": automatic_splits(point.shape, device) if splits == "automatic" else point.num_splits,
        "splits": splits,
        "cache_bytes": point.shape.cache_bytes,
        "flops": point.shape.flops,
        "status": "ok",
        "reason": None,
        "median_s": None,
        "p20_s": None,
        "p80_s": None,
        "rounds": None,
        "method": None,
        "error": None,
    }


def attempt(action: Callable, *args) -> tuple[object, dict]:
    """The result and {}, or None and the row's status and reason where memory, the backend or the GPU refuses."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            return action(*args), {}
        except RuntimeError as error:
            out_of_memory = isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error).lower()
            failure = {"status": "out of memory" if out_of_memory else "unsupported", "reason": why_not(error, warned)}
    # Only now are the frames of the failed call gone, and with them what they held.
    if out_of_memory:
        gc.collect()
    try:
        release()
    except RuntimeError:
        raise ContextLost(f"crashed: {failure['reason']}") from None
    return None, failure


def release() -> None:
    """Give freed memory back, after whatever the GPU still does."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def read_rate(n_bytes: int, machine: Machine) -> dict:
    """Seconds to read ``n_bytes`` that are not in the L2."""
    copies = timing.copies_beyond_cache(n_bytes, machine.provenance["l2_bytes"])
    data = torch.randint(-(2**31), 2**31, (copies, n_bytes // 4), dtype=torch.int32, device=machine.device)
    if _xor(kernels.first.read(data[0])) != _xor(data[0]):
        raise RuntimeError(f"the read kernel did not read each of {n_bytes} bytes once")
    calls = [lambda x=x: kernels.first.read(x) for x in data]
    (result,) = machine.measure([machine.prepare(calls)], SECONDS_A_POINT)
    return {"bytes": n_bytes, "median_s": result.median_s, "p20_s": result.p20_s, "p80_s": result.p80_s}


def _xor(x: torch.Tensor) -> int:
    while x.numel() > 2**16:
        half = x.numel() // 2
        x = torch.cat([x[:half] ^ x[half : 2 * half], x[2 * half :]])
    return int(np.bitwise_xor.reduce(x.cpu().numpy()))


def measure_shape(points: Sequence[Point], machine: Machine) -> Iterator[dict]:
    """Rows of points of one shape. Raises ``ContextLost`` after the row of a point that broke the GPU's context."""
    bench, failure = attempt(Bench, points[0].shape, machine.device, machine.provenance["l2_bytes"])
    if failure:
        yield from ({**row(point, machine.device), **failure} for point in points)
        return
    together = [point for point in points if not point.copies_heads]
    for group in ([together] if together else []) + [[point] for point in points if point.copies_heads]:
        yield from _measure_group(group, bench, machine)


def _measure_group(group: Sequence[Point], bench: Bench, machine: Machine) -> Iterator[dict]:
    ready: list[tuple[dict, object]] = []
    for point in group:
        result = row(point, machine.device)
        try:
            checked, failure = attempt(bench.check, point)
            if not failure:
                result["error"], reason = checked
                failure = {"status": "wrong", "reason": reason} if reason else {}
            if not failure:
                sample, failure = attempt(machine.prepare, bench.calls(point))
        except ContextLost as lost:
            yield {**result, "status": "unsupported", "reason": str(lost)}
            raise
        if failure:
            yield {**result, **failure}
        else:
            ready.append((result, sample))
    timings, failure = attempt(machine.measure, [sample for _, sample in ready], SECONDS_A_POINT)
    if failure:
        yield from ({**result, **failure} for result, _ in ready)
    else:
        yield from ({**result, **dataclasses.asdict(t)} for (result, _), t in zip(ready, timings, strict=True))


class Partial:
    """The file of a run under way: a header line, then one line a read or row, each complete or (the last) cut off."""

    def __init__(self, path: Path, plan: Plan, provenance: dict, say: Callable[[str], None]):
        self.path = path
        self.reads: list[dict] = []
        self.rows: list[dict] = []
        self.provenance = provenance
        header = {"plan_sha256": plan.sha256, "provenance": provenance}
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _complete_lines(path)
        if lines and _comparable(lines[0]) == _comparable(header):
            self.provenance = lines[0]["provenance"]
            self.reads = [line["read"] for line in lines[1:] if "read" in line]
            self.rows = [line["row"] for line in lines[1:] if "row" in line]
            say(f"going on from {path.name}: {len(self.rows)} rows are there")
        elif path.exists():
            aside = _free_name(path, ".partial.jsonl")
            path.rename(aside)
            say(f"{path.name} belongs to another plan, kernels, GPU or versions: now {aside.name}; starting anew")
            lines = []
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in lines or [header]))
        os.replace(temporary, path)  # without the half line that a kill may have left
        self._file = path.open("a")

    def append(self, what: str, value: dict) -> None:
        (self.reads if what == "read" else self.rows).append(value)
        self._file.write(json.dumps({what: value}, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _comparable(header: dict) -> dict:
    """What has to agree for one run to go on from another: all but the day and the commit."""
    return {**header, "provenance": {**header["provenance"], "date": None, "commit": None}}


def _complete_lines(path: Path) -> list[dict]:
    """Parsed lines up to the first that is damaged: a killed run may leave half a line."""
    lines: list[dict] = []
    if path.exists():
        for text in path.read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                break
    return lines


def _free_name(path: Path, suffix: str) -> Path:
    """``path``, or with -2, -3, … before the suffix if it is taken."""
    stem, number = path.name.removesuffix(suffix), 2
    while path.exists():
        path = path.with_name(f"{stem}-{number}{suffix}")
        number += 1
    return path


def _key(values: dict) -> tuple:
    """What tells one row from another; the automatic number of splits is an outcome, not a choice."""
    given = values["num_splits"] if values["splits"] == "given" else None
    return (*(values[key] for key in POINT_KEYS), given)


def record(plan: Plan, folder: Path, machine: Machine, say: Callable[[str], None] = print) -> Path:
    """Run what the plan still lacks and seal it; returns the file. An interruption passes on, and its rows are kept."""
    partial = Partial(folder / f"{plan.kind}.partial.jsonl", plan, machine.provenance, say)
    try:
        _run(plan, partial, machine, say)
    finally:
        partial.close()
    done = {_key(r): r for r in partial.rows}
    reads = {r["bytes"]: r for r in partial.reads}
    path = seal(
        {
            "schema": 1,
            "kind": plan.kind,
            "provenance": partial.provenance,
            "reads": [reads[n_bytes] for n_bytes in plan.reads],
            "rows": [done[_key(row(point, machine.device))] for point in plan.points],
        },
        folder / f"{plan.kind}-{partial.provenance['date']}.json",
    )
    partial.path.unlink()
    say(f"sealed {path.name}: {len(plan.points)} rows")
    for problem in check(load(path)):
        say(f"PROBLEM {problem}")
    return path


def _run(plan: Plan, partial: Partial, machine: Machine, say: Callable[[str], None]) -> None:
    have = {r["bytes"] for r in partial.reads}
    for n_bytes in plan.reads:
        if n_bytes not in have:
            rate = read_rate(n_bytes, machine)
            partial.append("read", rate)
            seconds = rate["median_s"]
            say(f"read {costs.format_bytes(n_bytes)}: {seconds * 1e6:.2f} us, {n_bytes / seconds / 1e12:.3f} TB/s")
            release()
    done = {_key(r) for r in partial.rows}
    todo = [point for point in plan.points if _key(row(point, machine.device)) not in done]
    begin, finished = time.monotonic(), 0
    for shape, points in dataclasses.replace(plan, points=tuple(todo)).by_shape.items():
        fresh = []
        for result in measure_shape(points, machine):
            partial.append("row", result)
            fresh.append(result)
        release()
        finished += len(fresh)
        elapsed = time.monotonic() - begin
        left = elapsed / finished * (len(todo) - finished)
        say(f"[{finished}/{len(todo)} rows, {elapsed:.0f} s, about {left:.0f} s left] {shape}: {summary(fresh)}")


def summary(rows: Sequence[dict]) -> str:
    """One line for the terminal: microseconds, or why there are none."""
    parts = []
    for r in rows:
        name = "/".join(str(x) for x in (r["operation"], r["backend"], r["splits"] == "given" and r["num_splits"]) if x)
        parts.append(f"{name} {r['median_s'] * 1e6:.1f}" if r["status"] == "ok" else f"{name} {r['status']}")
    return ", ".join(parts) + " us"


def seal(data: dict, path: Path) -> Path:
    """Write the recording in one step, under a name that is free."""
    path = _free_name(path, ".json")
    temporary = path.with_name(path.name + ".tmp")
    # One line a row: readable, and a difference between two recordings shows where it is.
    head = json.dumps({key: data[key] for key in ("schema", "kind", "provenance")}, indent=2).removesuffix("\n}")
    reads, rows = (",\n    ".join(json.dumps(entry, allow_nan=False) for entry in data[part]) for part in ("reads", "rows"))
    temporary.write_text(f'{head},\n  "reads": [\n    {reads}\n  ],\n  "rows": [\n    {rows}\n  ]\n}}\n')
    os.replace(temporary, path)
    return path


def provenance(device: torch.device) -> dict:
    """What a reader needs to judge a number; no host name, no user, no path."""
    import triton

    properties = torch.cuda.get_device_properties(device)
    return {
        "gpu": properties.name,
        "sm_count": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"),
        "torch": str(torch.__version__),
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "kernels_sha256": kernels.digest(),
        "method": METHOD,
    }


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def _commit() -> str | None:
    """The commit, if what was measured is exactly it."""
    git = ("git", "-C", str(Path(__file__).parent))
    inside = _output(*git, "ls-files", "--error-unmatch", "record.py")
    changed = _output(*git, "status", "--porcelain", "--", ":/kernels", ":/course")
    return _output(*git, "rev-parse", "HEAD") if inside and not changed else None


def this_machine() -> Machine:
    device = torch.device("cuda", torch.cuda.current_device())
    return Machine(device, provenance(device))


def usual_dtype() -> str:
    """bfloat16 where the GPU multiplies it, else float16."""
    before_ampere = torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0)
    return "float16" if before_ampere else "bfloat16"


def default_folder(gpu: str) -> Path:
    return RECORDED / slug(gpu)
