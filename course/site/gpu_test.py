"""Run on this machine's GPU what a GPU changes: tests of kernels, layers and measurement, and the notebooks' checks.

    python -m course.site gpu-test [--report [FOLDER]] [arguments of pytest]

Needs torch, triton, numpy, pytest, hypothesis and matplotlib; with pytest-xdist it uses the cores there are, mostly to compile.
Without what the notebooks need besides, they are left out, and the report says so. Tests that time something come last, in one
process, because they want the GPU to themselves.

``--report`` keeps what came of it, as ``gpu-test-<date>.json`` beside the recordings of this GPU or in FOLDER.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from . import BUILD, test

AT_ONCE = ("tests/kernels", "tests/course/layers")
TIMED = ("tests/course/measure",)
NO_TESTS = 5  # pytest's exit status where its arguments chose none


def parts() -> tuple[list[list[str]], list[str]]:
    """pytest's arguments, one list for each time that it runs; and what is left out, with the reason."""
    at_once, left_out = [*AT_ONCE], []
    lacking = test.missing(test.NOTEBOOK_PACKAGES)
    if lacking:
        left_out.append(f"notebooks: this Python lacks {', '.join(lacking)}")
    else:
        at_once += ["tests/notebooks", *test.notebook_arguments("--nbval-lax")]
    return [[*at_once, *test.spread()], [*TIMED]], left_out


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python3 -m course.site gpu-test")
    parser.add_argument("--report", nargs="?", const="", metavar="FOLDER", help="keep a report, see above")
    options, chosen = parser.parse_known_args(arguments)
    if options.report is not None and chosen:
        sys.exit(f"--report keeps the outcome of all tests; leave out {' '.join(chosen)}")
    mode = test.mode()
    if mode != "compiled":
        sys.exit(f"gpu-test needs a CUDA GPU and Triton; here kernels are in mode '{mode}'. `make test` runs everything else.")
    runs, left_out = parts()
    for what in left_out:
        print(f"Left out: {what}", flush=True)
    results = [Path(BUILD, f"gpu-test-{number}.xml") for number in range(len(runs))]
    start, statuses = time.monotonic(), []
    for run, result in zip(runs, results, strict=True):
        result.unlink(missing_ok=True)
        statuses.append(test.run_pytest([*run, *chosen], result))
    if options.report is not None:
        keep(results, left_out, time.monotonic() - start, options.report and Path(options.report))
    if set(statuses) == {NO_TESTS}:
        sys.exit(NO_TESTS)
    sys.exit(next((status for status in statuses if status not in (0, NO_TESTS)), 0))


def keep(results: list[Path], left_out: list[str], seconds: float, folder: Path | None) -> None:
    """Write the report and say where it is."""
    from course.measure import gpu_tests, record

    report = gpu_tests.Report(record.this_machine().provenance, left_out, round(seconds), gpu_tests.count(results))
    path = gpu_tests.write(report, folder or None)
    counts = ", ".join(f"{report.total(outcome)} {outcome}" for outcome in gpu_tests.OUTCOMES)
    print(f"{counts} in {report.seconds} s: {os.path.relpath(path)}")


if __name__ == "__main__":
    main(sys.argv[1:])
