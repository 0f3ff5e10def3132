"""Units: binary multiples for memory sizes, bytes of a dtype, and numbers written for people.

KiB, MiB and GiB are powers of two, used for what is stored. kB, MB, GB and TB/s are powers of ten, used for what is
moved per second. A table uses one family.
"""

from .checks import finite, unknown

KiB = 2**10
MiB = 2**20
GiB = 2**30

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1}
_ALSO = {
    "fp32": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
    "float8_e4m3fn": "float8",
    "float8_e5m2": "float8",
}
_SIZES = {True: ("B", "KiB", "MiB", "GiB", "TiB", "PiB"), False: ("B", "kB", "MB", "GB", "TB", "PB")}


def dtype_name(dtype: object) -> str:
    """The name used here for a dtype: 'bf16', 'bfloat16' and torch.bfloat16 are all 'bfloat16'.

    Raises ValueError (or TypeError for something that is no dtype) with the nearest name.
    """
    # A torch dtype prints as 'torch.bfloat16'; this folder never imports torch.
    name = str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype
    name = _ALSO.get(name, name) if isinstance(name, str) else name
    if not isinstance(name, str) or name not in _BYTES:
        raise unknown("dtype", name, [*_BYTES, *_ALSO], "course.costs.units.dtypes()")
    return name


def dtypes() -> list[str]:
    """The dtypes known here."""
    return list(_BYTES)


def bytes_of(dtype: object) -> int:
    """Bytes of one element, for a name or a torch dtype: bytes_of('bfloat16') is 2."""
    return _BYTES[dtype_name(dtype)]


def element_bytes(bytes_per_element: object) -> float:
    """`bytes_per_element` as every function here takes it: a number above 0 (0.75 for six bits) or a dtype."""
    if isinstance(bytes_per_element, str) or type(bytes_per_element).__module__ == "torch":
        return bytes_of(bytes_per_element)
    return finite("bytes_per_element", bytes_per_element)


def exact(n_bytes: float) -> int | float:
    """A whole number of bytes as an int, so that it compares and prints exactly."""
    return int(n_bytes) if n_bytes == int(n_bytes) else float(n_bytes)


def format_bytes(n_bytes: float, binary: bool = True) -> str:
    """A size with four significant digits: '16 GiB', or '17.18 GB' with binary=False. `n_bytes` is at least 0."""
    return _scaled(finite("n_bytes", n_bytes, zero=True), 1024 if binary else 1000, _SIZES[binary])


def format_seconds(seconds: float) -> str:
    """A time with four significant digits in s, ms, µs or ns: '2.75 ms'. `seconds` is at least 0."""
    if finite("seconds", seconds, zero=True) >= 1:
        return f"{_digits(seconds)} s"
    return _scaled(seconds * 1e9, 1000, ("ns", "µs", "ms", "s"))


def _scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    value, place = float(value), 0
    while place < len(units) - 1 and float(_digits(value)) >= step:  # 999.96 kB is written as 1 MB, not 1000 kB
        value, place = value / step, place + 1
    return f"{_digits(value)} {units[place]}"


def _digits(value: float) -> str:
    # 'g' would write 12345 as 1.234e+04; from 1,000 on the digits before the point are enough.
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
