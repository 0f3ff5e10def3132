"""How kernels run on this machine, decided once, before Triton is imported.

=================  ====================================================  =============================================
mode               when                                                  what a public operation does
=================  ====================================================  =============================================
``compiled``       a CUDA GPU is present                                 launches the compiled kernel
``interpreter``    no GPU, or ``TRITON_INTERPRET=1``                     runs the kernel's own lines in NumPy, slowly
``compile-only``   no GPU and ``TRITON_INTERPRET=0``                     refuses: kernels can be compiled, not run
``reference``      Triton is not installed                               computes the float64 definition, casts back
=================  ====================================================  =============================================

Triton builds its own library for one of the two worlds while it is being imported, so the choice has to come first: import
``kernels`` before anything that imports Triton (``torch._dynamo`` and some optimisers do).
"""

import functools
import importlib.util
import os
import threading
import types
import warnings
from dataclasses import dataclass

import torch


class Unsupported(RuntimeError):
    """The operation is well formed, but this GPU or this mode cannot run it. The message names the bound."""


if importlib.util.find_spec("triton") is None:
    MODE = "reference"
    # Kernel files still have to import, so that their text can be read and shown.
    triton = types.SimpleNamespace(jit=lambda function=None, **_: function or (lambda f: f))
    tl = types.SimpleNamespace(constexpr=lambda value: value)
    warnings.warn(
        "Triton is not installed: every operation computes its float64 definition and casts the result back.",
        stacklevel=3,
    )
else:
    if not torch.cuda.is_available() and not os.environ.get("TRITON_INTERPRET"):
        os.environ["TRITON_INTERPRET"] = "1"  # a user's own value wins
    import triton
    import triton.language as tl

    _interpret = triton.knobs.runtime.interpret
    MODE = "interpreter" if _interpret else "compiled" if torch.cuda.is_available() else "compile-only"
    if _interpret and type(tl.zeros).__name__ != "InterpretedFunction":
        raise ImportError(
            "Triton was imported before `kernels`, without its interpreter, and this process needs the interpreter "
            "(no CUDA GPU, or TRITON_INTERPRET=1). Restart Python and import `kernels` first, or set TRITON_INTERPRET=1 "
            "in the environment before Python starts."
        )


# For the one thing that the interpreter cannot do, which is assembly.
INTERPRETED = tl.constexpr(MODE == "interpreter")


@dataclass(frozen=True)
class Device:
    """What the choice of tiles and splits asks of a device."""

    capability: tuple[int, int]
    sm_count: int
    shared_memory: int  # bytes one program may use


# The interpreter takes the row tiles of an H200, so that what is counted there is requested here. Programs run one after the
# other in it, so cutting a sequence gains nothing: one SM.
IN_INTERPRETER = Device(capability=(9, 0), sm_count=1, shared_memory=227 * 1024)


@functools.lru_cache
def _cuda_device(index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    return Device(
        (properties.major, properties.minor), properties.multi_processor_count, properties.shared_memory_per_block_optin
    )


def device_of(tensor: torch.Tensor) -> Device:
    """The device facts that a launch over ``tensor`` has to respect."""
    return _cuda_device(tensor.device.index) if MODE == "compiled" else IN_INTERPRETER


def launching(tensor: torch.Tensor):
    """Context of a launch over ``tensor``: its own GPU, whichever is current; in the interpreter, one thread at a time.

    The interpreter keeps the program's index in variables of its module, so two threads in it would mix their programs.
    """
    return torch.cuda.device(tensor.device) if MODE == "compiled" else _one_at_a_time


# It belongs to Triton, because copies of this package share that module.
_one_at_a_time = triton.__dict__.setdefault("_mha_to_mla_lock", threading.RLock())


def to_kernel(*tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """The tensors as a kernel may take them.

    The interpreter keeps bfloat16 as bare bits and multiplies the bits, so there a float32 copy goes in and torch rounds the
    result; no kernel carries a flag for it.
    """
    if MODE == "interpreter":
        return [t.float() if t is not None and t.dtype == torch.bfloat16 else t for t in tensors]
    return list(tensors)
