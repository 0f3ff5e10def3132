"""How many programs one SM holds at a time, and what decides it.

An SM keeps the registers and the shared memory of every program that lives on it, so that changing from one warp to another
costs nothing. What a program asks for therefore limits how many live there together. The limits are those of the CUDA C++
Programming Guide, table 'Technical Specifications per Compute Capability'.
"""

from dataclasses import dataclass

from .checks import whole
from .gpu_data import Gpu
from .gpu_data import gpu as find_gpu
from .units import KiB

WARP = 32  # threads
REGISTERS = 64 * KiB  # of 32 bits, in an SM of any of these GPUs
REGISTERS_A_WARP = 256  # a warp's registers are handed out in pieces of so many
RESERVED = KiB  # shared memory that each program loses to the system, from compute capability 8.0 on

# Compute capability: warps, programs, and bytes of shared memory that one SM can hold.
LIMITS = {
    (7, 5): (32, 16, 64 * KiB),
    (8, 0): (64, 32, 164 * KiB),
    (8, 6): (48, 16, 100 * KiB),
    (8, 9): (48, 24, 100 * KiB),
    (9, 0): (64, 32, 228 * KiB),
    (10, 0): (64, 32, 228 * KiB),
    (12, 0): (48, 24, 100 * KiB),
}


@dataclass(frozen=True)
class Residency:
    """What one SM holds of a kernel: ``programs`` at a time, which is what ``limit`` ('warps', 'programs', 'registers' or
    'shared memory') allows, and ``warps`` of the ``max_warps`` that it could hold."""

    programs: int
    limit: str
    warps: int
    max_warps: int

    @property
    def occupancy(self) -> float:
        """Resident warps over the most there can be."""
        return self.warps / self.max_warps


def resident(gpu: Gpu | str, *, warps: int, registers: int = 32, shared_bytes: int = 0) -> Residency:
    """Programs of ``warps`` warps, ``registers`` a thread and ``shared_bytes`` of shared memory that an SM of ``gpu`` holds.

    ValueError if not even one fits, or if the GPU's compute capability has no limits here.
    """
    gpu = gpu if isinstance(gpu, Gpu) else find_gpu(gpu)
    if gpu.capability not in LIMITS:
        raise ValueError(f"no limits are known for compute capability {gpu.capability[0]}.{gpu.capability[1]} of {gpu.name}")
    max_warps, max_programs, shared = LIMITS[gpu.capability]
    own_registers = -(-whole("registers", registers) * WARP // REGISTERS_A_WARP) * REGISTERS_A_WARP * whole("warps", warps)
    own_shared = whole("shared_bytes", shared_bytes, at_least=0) + (RESERVED if gpu.capability >= (8, 0) else 0)
    fits = {
        "warps": max_warps // warps,
        "registers": REGISTERS // own_registers,
        "shared memory": shared // own_shared if own_shared else max_programs,
        "programs": max_programs,
    }
    limit = min(fits, key=fits.get)
    if fits[limit] < 1:
        raise ValueError(f"one such program needs more {limit} than an SM of {gpu.name} has")
    return Residency(fits[limit], limit, fits[limit] * warps, max_warps)


def n_waves(programs: int, places: int) -> int:
    """Turns in which ``programs`` run on ``places``: SMs times resident programs. The last may be far from full."""
    return -(-whole("programs", programs) // whole("places", places))
