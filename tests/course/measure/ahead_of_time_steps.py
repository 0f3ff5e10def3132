"""Compiles the full-sequence kernel for Hopper with steps undone, and prints what its machine code shows, one JSON line each:
python ahead_of_time_steps.py VARIANT/WIDTH...

Runs in a process of its own, as `tests/kernels/ahead_of_time_hopper.py` does, and for the same reason.
"""

import concurrent.futures
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "kernels"))

import ahead_of_time_hopper

from course.measure import steps


def compiled(case):
    name, width = case.split("/")
    undone = steps.VARIANTS[name]
    shows = ahead_of_time_hopper.attention(
        "bf16", int(width), causal=True, counter="persistent" not in undone, forward=steps.load(undone).forward_hopper
    )
    return {"case": case, **shows}


if __name__ == "__main__":
    # Most of the work is done outside of Python, so threads share it.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for shows in pool.map(compiled, sys.argv[1:]):
            print(json.dumps(shows), flush=True)
