"""Record this GPU: ``python -m course.measure [--quick] [--list] [--out DIR]``."""

import argparse
import sys
from pathlib import Path

import torch

from .. import costs
from . import record
from .recordings import check, load


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course.measure",
        description="Measure decode attention on this machine's GPU, ours and what people use today, and record it. "
        "A run that was broken off goes on where it stopped.",
    )
    parser.add_argument("--quick", action="store_true", help="a handful of shapes, recorded as kind 'quick'")
    parser.add_argument("--list", action="store_true", help="print what would be measured; needs no GPU")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to record into (default: book/recorded/<gpu>)")
    options = parser.parse_args(arguments)

    plan = (record.quick_plan if options.quick else record.decode_plan)(record.usual_dtype())
    if options.list:
        for shape, points in plan.by_shape.items():
            print(f"{shape} ({costs.format_bytes(shape.cache_bytes)}): {', '.join(map(str, points))}")
        counts = f"{len(plan.by_shape)} shapes, {len(plan.points)} rows, {len(plan.reads)} reads"
        print(f"{counts}: about {len(plan.points) * record.SECONDS_A_ROW / 60:.1f} minutes on an H200")
        return 0
    if not torch.cuda.is_available():
        print("No CUDA GPU here, and only a GPU's own time is recorded. (--list shows the plan.)", file=sys.stderr)
        return 2
    machine = record.this_machine()
    folder = options.out or record.default_folder(machine.provenance["gpu"])
    try:
        path = record.record(plan, folder, machine, lambda text: print(text, flush=True))
    except KeyboardInterrupt:
        print(f"\nBroken off. The rows so far are in {folder}; run again to go on.", file=sys.stderr)
        return 130
    except record.ContextLost as lost:
        print(f"The GPU's context is broken ({lost}). The rows so far are kept; run again to go on.", file=sys.stderr)
        return 3
    return 1 if check(load(path)) else 0


if __name__ == "__main__":
    sys.exit(main())
