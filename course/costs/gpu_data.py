"""GPUs as data: `gpu('H200 SXM')`, `gpus()`. The rows are in gpus.json, each with its source and a grade.

Grades: A, read in the maker's own document or from the device. B, read in at least two compilations or configuration
files that agree. C, part of it derived, or the sources disagree: the row carries a `doubt`, is marked ‡ when printed,
and `gpus()` leaves it out unless asked.
"""

from dataclasses import dataclass, field
from functools import cache

from .table import Table
from .units import dtype_name


@dataclass(frozen=True)
class Gpu:
    """One GPU by its data sheet.

    memory_bytes             capacity, the data sheet's GB read as powers of ten (a device reports a little more)
    bandwidth                bytes a second of its memory
    peaks                    FLOP/s by dtype: dense (not the 2:4 sparse figure), accumulated in float32
    sm_count                 streaming multiprocessors
    l2_bytes                 L2 cache
    shared_memory_per_block  most bytes of shared memory one program can ask for
    capability               CUDA compute capability, such as (9, 0)
    source, read_in          where the figures come from first, and where they were read
    grade, doubt, note       see the module's text
    """

    name: str
    memory_bytes: int
    bandwidth: float
    peaks: dict[str, float] = field(hash=False)
    sm_count: int
    l2_bytes: int
    shared_memory_per_block: int
    capability: tuple[int, int]
    source: str
    read_in: str | None
    grade: str
    doubt: str | None = None
    note: str | None = None

    def __str__(self) -> str:
        """The name, followed by ‡ if the row is doubtful."""
        return f"{self.name} ‡" if self.doubt else self.name

    def peak_flops(self, dtype: object = "bfloat16") -> float:
        """FLOP/s of dense matrix products in `dtype`. ValueError if the GPU, or this table, has none."""
        dtype = dtype_name(dtype)
        if dtype in self.peaks:
            return self.peaks[dtype]
        version = ".".join(map(str, self.capability))
        needs = {"bfloat16": (8, 0), "float8": (8, 9)}.get(dtype)
        if needs and self.capability < needs:
            reason = f"has no {dtype} tensor cores (compute capability {version}, needs {needs[0]}.{needs[1]})"
        else:
            reason = f"has no {dtype} rate in this table"
        raise ValueError(f"{self.name} {reason}; it has {', '.join(self.peaks)}")

    @property
    def half(self) -> str:
        """Its 16-bit format for products: bfloat16, or float16 where there are no tensor cores for that (Turing)."""
        return "bfloat16" if "bfloat16" in self.peaks else "float16"

    def ridge(self, dtype: object = "bfloat16") -> float:
        """FLOPs per byte at which the memory time and the compute time of a kernel are equal."""
        return self.peak_flops(dtype) / self.bandwidth


@cache
def _table() -> Table:
    return Table("gpu", "gpus.json", lambda row: Gpu(**row | {"capability": tuple(row["capability"])}), also="reported_as")


def gpu(name: str) -> Gpu:
    """The GPU of that name: ours ('H200 SXM') or as torch reports it ('NVIDIA H200'); case and blanks don't count.

    Raises ValueError for an unknown one, with the nearest names.
    """
    return _table().find(name)


def gpus(*, doubtful: bool = False) -> list[Gpu]:
    """All GPUs of the table, without the doubtful ones unless asked."""
    return _table().rows(doubtful=doubtful)
