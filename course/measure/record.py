"""Record a sweep: correctness first, then time, one row a point; kept as it goes and sealed at the end, see `files.py`."""

import dataclasses
import gc
import importlib
import importlib.metadata
import platform
import subprocess
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

import kernels

from .. import costs
from . import timing
from .bench import Bench
from .code import kernels_sha256
from .contenders import automatic_splits, compile_steps, is_peer, why_not
from .files import Partial, seal
from .plans import MATMUL_SIZE, Limit, Plan
from .recordings import POINT_KEYS, RECORDED, SCHEMA, check, load, slug
from .shapes import Point, Shape

SECONDS_A_POINT = 0.05
# From this many FLOPs for a byte of cache on, a kernel may be bound by arithmetic, whose speed depends on how hot the card is.
HOT_INTENSITY = 60
HEAT_S = 0.4
LONG_HEAT_S, COOLING_S = 2.0, 1.0
ROOM = 1 / 8  # of a GPU's memory, for the caches of what is timed together: contenders need memory too

METHOD = (
    "Each contender's output is compared with a float64 definition on fresh random input before it is timed; rows that "
    "differ carry no time. Time is the median over rounds of a CUDA graph replay divided by its calls ('graph'), or of "
    "eager calls between CUDA events where capture is refused ('events'), with the 20th and 80th percentile; a decode "
    "includes its merge. Calls go round over copies of the cache: together 0.9 GB and four times the L2, or more. "
    "Contenders of one shape, and of the same in pages, are measured round by round, each round in an order drawn anew; those "
    "that copy heads, by themselves. Reads: a "
    "kernel that loads a buffer once, rotated likewise. Of whole sequences the first KV head of the first sequence and the "
    "last one of the last are compared, with all of their query heads and tokens. Where arithmetic may be the bound "
    f"({HOT_INTENSITY} FLOP for a byte of cache and more) unmeasured rounds come first, so that all meet a hot card. "
    "Of a backward pass the gradients alone are timed, for all contenders with torch.autograd.grad between events. What a "
    "library plans or lays out once a step is not timed: FlashInfer's plan and FlashMLA's, their copies of a cache that they "
    "want to lie otherwise, our "
    "work list. An 8-bit cache counts with its scales; 'error' is against the cache as stored, 'cache_error' against it "
    "before rounding. Ragged lengths go from 512 tokens to context_len, evenly spaced on a log scale."
)
EAGERLY = " In this recording all calls are launched one by one from Python and timed by 'events'."


class ContextLost(RuntimeError):
    """The GPU's context is broken after a crash: this process can measure nothing more."""


class Failed(RuntimeError):
    """One of our own kernels raised what no contender may raise: a bug, so nothing is sealed."""


@dataclass(frozen=True)
class Machine:
    """Where a sweep runs. Tests put their own ``prepare`` and ``measure`` in."""

    device: torch.device
    provenance: dict
    prepare: Callable = timing.prepare
    measure: Callable = timing.measure


def row(point: Point, device: torch.device) -> dict:
    """The part of a row that is known before it is measured."""
    automatic = point.splits == "automatic"
    return {
        "operation": point.operation,
        "backend": point.backend,
        **dataclasses.asdict(point.shape),
        "num_splits": automatic_splits(point, device) if automatic else point.num_splits,
        "splits": point.splits,
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
        "cache_error": None,
    }


def attempt(action: Callable, *args, refusals: type[Exception] = RuntimeError) -> tuple[object, dict]:
    """The result and {}, or None and the row's status and reason where memory, the backend or the GPU refuses."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            return action(*args), {}
        except refusals as error:
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


def _rotated(n_bytes: int, machine: Machine, copies: int | None = None) -> torch.Tensor:
    """Random int32 [copies, n_bytes / 4], beyond the L2 together unless ``copies`` is given."""
    copies = copies or timing.copies_beyond_cache(n_bytes, machine.provenance["l2_bytes"])
    return torch.randint(-(2**31), 2**31, (copies, n_bytes // 4), dtype=torch.int32, device=machine.device)


def read_rate(n_bytes: int, machine: Machine, *, warm: bool = False) -> dict:
    """Seconds to read ``n_bytes``, from memory, or again and again if ``warm``."""
    data = _rotated(n_bytes, machine, 1 if warm else None)
    if _xor(kernels.first.read(data[0])) != _xor(data[0]):
        raise RuntimeError(f"the read kernel did not read each of {n_bytes} bytes once")
    calls = [lambda x=x: kernels.first.read(x) for x in data]
    (result,) = machine.measure([machine.prepare(calls)], SECONDS_A_POINT)
    return {"bytes": n_bytes, "median_s": result.median_s, "p20_s": result.p20_s, "p80_s": result.p80_s}


def limit_rate(limit: Limit, machine: Machine) -> dict:
    """One of a GPU's other limits: 'bytes' are those that are moved, a copy's twice."""
    known = {"operation": limit.operation, "flops": 0}
    if limit.operation == "warm read":
        return known | read_rate(limit.n_bytes, machine, warm=True)
    if "copy" in limit.operation:
        copy = torch.clone if limit.operation == "torch copy" else kernels.first.copy
        data = _rotated(limit.n_bytes, machine)
        if not torch.equal(copy(data[0]), data[0]):
            raise RuntimeError(f"{limit.operation} did not copy {limit.n_bytes} bytes")
        kept = [None] * len(data)  # or all calls would write one buffer, which the L2 can hold
        calls = [lambda i=i: kept.__setitem__(i, copy(data[i])) for i in range(len(data))]
        (result,) = machine.measure([machine.prepare(calls)], SECONDS_A_POINT)
        n_bytes = 2 * limit.n_bytes
    else:
        size = MATMUL_SIZE
        a, b = torch.randn(2, size, size, device=machine.device).to(getattr(torch, usual_dtype()))
        sample = machine.prepare([lambda: torch.matmul(a, b)])
        if limit.operation == "matmul sustained":
            (result,) = machine.measure([sample], SECONDS_A_POINT, LONG_HEAT_S)
        else:
            time.sleep(COOLING_S)
            (result,) = machine.measure([sample], SECONDS_A_POINT / 10)
        n_bytes, known["flops"] = 3 * limit.n_bytes, 2 * size**3
    return known | {"bytes": n_bytes, "median_s": result.median_s, "p20_s": result.p20_s, "p80_s": result.p80_s}


def _xor(x: torch.Tensor) -> int:
    while x.numel() > 2**16:
        half = x.numel() // 2
        x = torch.cat([x[:half] ^ x[half : 2 * half], x[2 * half :]])
    return int(np.bitwise_xor.reduce(x.cpu().numpy()))


def timed_together(points: Sequence[Point], machine: Machine) -> Iterator[list[Point]]:
    """The points in groups: each of a shape and of the same in pages, so that a drifting clock does not enter their ratios.

    Pages whose caches find no room beside the others make a group of their own.
    """
    l2_bytes, room = machine.provenance["l2_bytes"], ROOM * machine.provenance["memory_bytes"]
    families: dict[Shape, dict[Shape, list[Point]]] = {}
    for point in points:
        families.setdefault(dataclasses.replace(point.shape, page_size=None), {}).setdefault(point.shape, []).append(point)
    for family in families.values():
        group, used = [], 0
        for shape, of_shape in family.items():
            n_bytes = shape.cache_bytes * timing.copies_beyond_cache(shape.cache_bytes, l2_bytes)
            if group and used + n_bytes > room:
                yield group
                group, used = [], 0
            group, used = group + of_shape, used + n_bytes
        yield group


def measure_shape(points: Sequence[Point], machine: Machine, method: str = "auto") -> Iterator[dict]:
    """Rows of points of one shape, or of shapes that differ in nothing but their pages.

    Raises ``ContextLost`` after the row of a point that broke the GPU's context. A row of status 'failed' is a bug of ours,
    with its traceback as reason; such a row belongs in no recording.
    """
    benches: dict[Shape, Bench] = {}
    for shape in dict.fromkeys(point.shape for point in points):
        bench, failure = attempt(Bench, shape, machine.device, machine.provenance["l2_bytes"])
        if failure:
            yield from ({**row(point, machine.device), **failure} for point in points if point.shape == shape)
        else:
            benches[shape] = bench
    points = [point for point in points if point.shape in benches]
    together = [point for point in points if not point.copies_heads]
    for group in ([together] if together else []) + [[point] for point in points if point.copies_heads]:
        yield from _measure_group(group, benches, machine, method)


def _measure_group(group: Sequence[Point], benches: Mapping[Shape, Bench], machine: Machine, method: str) -> Iterator[dict]:
    shape = group[0].shape  # what follows is the same for all
    if shape.direction == "backward":
        method = "events"
    ready: list[tuple[dict, object]] = []
    for point in group:
        result, bench = row(point, machine.device), benches[point.shape]
        refusals = Exception if is_peer(point) else RuntimeError
        try:
            checked, failure = attempt(bench.check, point, refusals=refusals)
            if not failure:
                errors, reason = checked
                result |= errors
                failure = {"status": "wrong", "reason": reason} if reason else {}
            if not failure:
                sample, failure = attempt(lambda b=bench, p=point: machine.prepare(b.calls(p), method), refusals=refusals)
        except ContextLost as lost:
            yield {**result, "status": "unsupported", "reason": str(lost)}
            raise
        except Exception:
            failure = {"status": "failed", "reason": traceback.format_exc()}
        if failure:
            yield {**result, **failure}
        else:
            ready.append((result, sample))
    heat = [HEAT_S] if shape.flops > HOT_INTENSITY * shape.cache_bytes else []
    timings, failure = attempt(machine.measure, [sample for _, sample in ready], SECONDS_A_POINT, *heat)
    if failure:
        yield from ({**result, **failure} for result, _ in ready)
    else:
        yield from ({**result, **dataclasses.asdict(t)} for (result, _), t in zip(ready, timings, strict=True))


def _key(values: dict) -> tuple:
    """What tells one row from another; the automatic number of splits is an outcome, not a choice."""
    given = values["num_splits"] if values["splits"] == "given" else None
    return (*(values[key] for key in POINT_KEYS), given)


def record(plan: Plan, folder: Path, machine: Machine, say: Callable[[str], None] = print) -> Path:
    """Run what the plan still lacks and seal it; returns the file. An interruption passes on, and its rows are kept.

    Raises ``Failed``, with the rows kept, if one of our kernels has a bug.
    """
    partial = Partial(folder / f"{plan.kind}.partial.jsonl", planned(plan, machine), say)
    try:
        _run(plan, partial, machine, say)
    finally:
        partial.close()
    done = {_key(r): r for r in partial.parts["row"]}
    reads = {r["bytes"]: r for r in partial.parts["read"]}
    path = seal(
        {
            "schema": SCHEMA,
            "kind": plan.kind,
            "provenance": partial.provenance,
            "reads": [reads[n_bytes] for n_bytes in plan.reads],
            "limits": partial.parts["limit"],
            "rows": [done[_key(row(point, machine.device))] for point in plan.points],
        },
        folder / f"{plan.kind}-{partial.provenance['date']}.json",
    )
    partial.path.unlink()
    say(f"sealed {path.name}: {len(plan.points)} rows")
    for problem in check(load(path)):
        say(f"PROBLEM {problem}")
    return path


def planned(plan: Plan, machine: Machine) -> dict:
    """The provenance of a recording of this plan."""
    known = machine.provenance
    return known | {"plan_sha256": plan.sha256, "method": known["method"] + (EAGERLY if plan.method == "events" else "")}


def _run(plan: Plan, partial: Partial, machine: Machine, say: Callable[[str], None]) -> None:
    for n_bytes in plan.reads[len(partial.parts["read"]) :]:
        rate = read_rate(n_bytes, machine)
        partial.append("read", rate)
        seconds = rate["median_s"]
        say(f"read {costs.format_bytes(n_bytes)}: {seconds * 1e6:.2f} us, {n_bytes / seconds / 1e12:.3f} TB/s")
        release()
    for limit in plan.limits[len(partial.parts["limit"]) :]:
        rate = limit_rate(limit, machine)
        partial.append("limit", rate)
        seconds, what = rate["median_s"], f"{limit.operation} {costs.format_bytes(limit.n_bytes)}"
        done, unit = (rate["flops"], "TFLOP/s") if rate["flops"] else (rate["bytes"], "TB/s")
        say(f"{what}: {seconds * 1e6:.2f} us, {done / seconds / 1e12:.3f} {unit}")
        release()
    done = {_key(r) for r in partial.parts["row"]}
    todo = [point for point in plan.points if _key(row(point, machine.device)) not in done]
    compile_steps(todo, machine.device)
    begin, finished, failed = time.monotonic(), 0, 0
    for points in timed_together(todo, machine):
        fresh = []
        for result in measure_shape(points, machine, plan.method):
            if result["status"] != "failed":
                partial.append("row", result)
            fresh.append(result)
        release()
        finished += len(fresh)
        failed += sum(r["status"] == "failed" for r in fresh)
        elapsed = time.monotonic() - begin
        left = elapsed / finished * (len(todo) - finished)
        say(f"[{finished}/{len(todo)} rows, {elapsed:.0f} s, about {left:.0f} s left] {points[0].shape}: {summary(fresh)}")
        for r in fresh:
            if r["status"] != "ok" and r["operation"] != "sdpa":
                say(f"    {name(r)}: {r['status']}: {r['reason']}")
    if failed:
        raise Failed(f"{failed} rows of kind {plan.kind!r} failed; the others are kept, nothing is sealed")


def name(r: dict) -> str:
    """'decode/16', 'sdpa/FLASH', 'paged_decode/page 64': who a row is about."""
    given = r["num_splits"] if r["splits"] == "given" else "work list" if r["splits"] == "work list" else None
    page = r["page_size"] and f"page {r['page_size']}"
    return "/".join(str(x) for x in (r["operation"], r["backend"], page, given) if x)


def summary(rows: Sequence[dict]) -> str:
    """One line for the terminal: microseconds, or why there are none."""
    parts = [f"{name(r)} {r['median_s'] * 1e6:.1f}" if r["status"] == "ok" else f"{name(r)} {r['status']}" for r in rows]
    return ", ".join(parts) + " us"


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
        "kernels_sha256": kernels_sha256(),
        "method": METHOD,
        "plan_sha256": None,
        "peers": {
            "FlashInfer": _flashinfer_version(),
            "FlashAttention": _package_version("flash-attn-4"),
            "FlashMLA of sglang-kernel": _package_version("sglang-kernel"),
            "cuDNN": _cudnn_version(),
        },
    }


def _flashinfer_version() -> str | None:
    """None if it is not there, or not in working order."""
    try:
        return importlib.import_module("flashinfer").__version__
    except Exception:
        return None


def _package_version(name: str) -> str | None:
    """Of a package whose modules need not be imported for it, or do not know it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cudnn_version() -> str | None:
    """Of the cuDNN that PyTorch uses: 91501 is 9.15.1."""
    number = torch.backends.cudnn.version()
    return number and f"{number // 10000}.{number // 100 % 100}.{number % 100}"


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
