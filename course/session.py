"""What the bootstrap cell of a notebook imports: decides how kernels run here, and says so.

``kernels`` comes first because Triton has to learn, before anything imports it, whether its interpreter is wanted.
"""

import importlib
import logging
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import interpreter

ROOT = Path(__file__).resolve().parents[1]


def our_kernels():
    """The course's package ``kernels``, and Triton's interpreter, where it runs them, without what it does for nothing.

    ImportError where the name means another package (there is one on PyPI).
    """
    with warnings.catch_warnings():
        if "ipykernel" in sys.modules:  # the summary says that Triton is missing, once
            warnings.filterwarnings("ignore", "Triton is not installed")
            logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)
        kernels = importlib.import_module("kernels")
    place = getattr(kernels, "__file__", None)
    if place is None or Path(place).resolve().parent != ROOT / "kernels":
        raise ImportError(
            f"`import kernels` found another package of that name, in {place and Path(place).parent}. The course's own has "
            "to be imported first: restart the kernel and run the first cell of the notebook before any other."
        )
    if kernels.MODE == "interpreter":
        interpreter.patch_once()
    return kernels


def versions() -> str:
    """Python and the packages that decide what kernels do, in one line."""
    found = [f"Python {platform.python_version()}"]
    for name, package in (("PyTorch", "torch"), ("Triton", "triton"), ("NumPy", "numpy")):
        try:
            found.append(f"{name} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def summary() -> str:
    """Two or three lines: how kernels run on this machine, what that means, and with which versions."""
    kernels = our_kernels()
    if kernels.MODE == "compiled":
        import torch

        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        mode = (
            f"{device.name}: kernels are compiled for this GPU. Results and times are its own.\n"
            f"Compute capability {device.major}.{device.minor}, {device.multi_processor_count} SMs, "
            f"{device.total_memory / 2**30:.0f} GiB."
        )
    else:
        mode = {
            "interpreter": "No CUDA GPU in use: kernels run in Triton's interpreter, on the CPU.\n"
            "Results are right. Its time is not a GPU's: times shown are recorded or computed.",
            "compile-only": "No CUDA GPU here and TRITON_INTERPRET=0: kernels can be compiled, but not run.\n"
            "Unset TRITON_INTERPRET and restart the kernel to run them in the interpreter.",
            "reference": "Triton is not installed: each operation is answered by its float64 definition.\n"
            "Results are right; times shown are recorded or computed.",
        }[kernels.MODE]
    return f"{mode}\n{versions()}"


our_kernels()
if "ipykernel" in sys.modules:
    print(summary())
