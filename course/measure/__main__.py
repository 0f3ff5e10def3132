"""Record this GPU, judge recordings, write the pages made of them: ``python -m course.measure --help`` says how."""

import argparse
import sys
from pathlib import Path

import torch

from .. import costs
from . import gallery, ledger, record, validate
from .files import up_to_date
from .plans import KINDS, Plan
from .recordings import RECORDED, check, load


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course.measure",
        description="Measure our kernels and what people use today on this machine's GPU, and record it by kind. "
        "A kind that is recorded already with these kernels and versions is left as it is, and a run that was broken off goes "
        "on where it stopped. At the end the ledger and the page of recorded GPUs are written from what is recorded.",
    )
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--quick", action="store_true", help="each contender once, recorded as kinds 'quick-…'")
    parser.add_argument("--again", action="store_true", help="record anew what is recorded already")
    parser.add_argument("--list", action="store_true", help="print what would be measured; needs no GPU")
    parser.add_argument("--ledger", action="store_true", help="only write the pages made of recordings; needs no GPU")
    parser.add_argument("--validate", nargs="+", type=Path, metavar="PATH", help="only judge recordings, or folders of them")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to record into (default: book/recorded/<gpu>)")
    options = parser.parse_args(arguments)

    if options.validate:
        return judge(options.validate)
    if options.ledger:
        write_pages()
        return 0
    plans = [KINDS[kind](record.usual_dtype()) for kind in options.only]
    if options.quick:
        plans = [plan.quick() for plan in plans]
    if options.list:
        show(plans, shapes=len(plans) == 1)
        return 0
    if not torch.cuda.is_available():
        print("No CUDA GPU here, and only a GPU's own time is recorded. (--list shows the plan.)", file=sys.stderr)
        return 2
    machine = record.this_machine()
    folder = options.out or record.default_folder(machine.provenance["gpu"])
    status = run(plans, folder, machine, options.again)
    if folder.parent == RECORDED and status in (0, 1):
        write_pages()
    return status


def write_pages() -> None:
    """The two pages of the book that are made of its recordings."""
    ledger.write()
    gallery.write()


def judge(paths: list[Path]) -> int:
    """Print what keeps recordings out of the book; the exit status of the command."""
    try:
        files = validate.files(paths)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    bad = 0
    for file in files:
        faults = validate.faults(file)
        for line in faults or validate.remarks(file) or [f"{file.name}: good"]:
            print(line)
        bad += bool(faults)
    print(f"{len(files) - bad} of {len(files)} can go into the book")
    return 1 if bad else 0


def show(plans: list[Plan], shapes: bool) -> None:
    """A line for each kind and its seconds, or for each shape."""
    for plan in plans:
        for shape, points in plan.by_shape.items() if shapes else ():
            print(f"{shape} ({costs.format_bytes(shape.cache_bytes)}): {', '.join(map(str, points))}")
        counts = f"{len(plan.by_shape)} shapes, {len(plan.points)} rows, {len(plan.reads)} reads, {len(plan.limits)} limits"
        print(f"{plan.kind}: {counts}: about {plan.estimate_s / 60:.1f} minutes on an H200")
    if len(plans) > 1:
        print(f"together about {sum(plan.estimate_s for plan in plans) / 60:.0f} minutes")


def run(plans: list[Plan], folder: Path, machine: record.Machine, again: bool) -> int:
    """Record the plans one after another; the exit status of the command."""
    status = 0
    for plan in plans:
        there = None if again else up_to_date(plan.kind, folder, record.planned(plan, machine))
        if there:
            print(f"{plan.kind}: {there} has it (--again records it anew)")
            continue
        print(f"{plan.kind}: {len(plan.points)} rows", flush=True)
        try:
            path = record.record(plan, folder, machine, lambda text: print(text, flush=True))
        except KeyboardInterrupt:
            print(f"\nBroken off. The rows so far are in {folder}; run again to go on.", file=sys.stderr)
            return 130
        except record.ContextLost as lost:
            print(f"The GPU's context is broken ({lost}). The rows so far are kept; run again to go on.", file=sys.stderr)
            return 3
        except record.Failed as failed:
            print(failed, file=sys.stderr)
            status = 1
        else:
            status = 1 if check(load(path)) else status
    return status


if __name__ == "__main__":
    sys.exit(main())
