"""Run on this machine's GPU what a GPU changes: tests of kernels and measurement, and the notebooks with their checks compared.

    python -m course.site gpu-test [arguments of pytest]

Needs torch, triton, numpy, pytest, hypothesis and matplotlib. Without what the notebooks need besides, they are left out.
One process: tests that time something want the GPU to themselves.
"""

import sys

from . import test

FOLDERS = ("tests/kernels", "tests/course/measure")


def main(arguments: list[str]) -> None:
    mode = test.mode()
    if mode != "compiled":
        sys.exit(f"gpu-test needs a CUDA GPU and Triton; here kernels are in mode '{mode}'. `make test` runs everything else.")
    chosen = list(FOLDERS)
    lacking = test.missing(test.NOTEBOOK_PACKAGES)
    if lacking:
        print(f"The notebooks are not run: this Python lacks {', '.join(lacking)}.", flush=True)
    else:
        chosen += ["tests/notebooks", *test.notebook_arguments("--nbval-lax")]
    test.run_pytest([*chosen, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
