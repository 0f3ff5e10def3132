"""Units and how numbers are written."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course.costs import GiB, KiB, MiB, bytes_of, format_bytes, format_seconds
from course.costs.units import dtypes


def test_binary_multiples():
    assert (KiB, MiB, GiB) == (1024, 1024**2, 1024**3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_bytes_of_a_dtype_are_those_of_torch(dtype):
    name = str(dtype).removeprefix("torch.")
    assert bytes_of(dtype) == bytes_of(name) == torch.empty(0, dtype=dtype).element_size()


def test_dtypes_can_be_listed():
    assert all(bytes_of(dtype) for dtype in dtypes())
    assert "bfloat16" in dtypes()


@pytest.mark.parametrize(
    ("dtype", "error", "says"),
    [
        ("float61", ValueError, "unknown dtype 'float61'; nearest: float16"),
        ("", ValueError, "course.costs.units.dtypes() lists all"),
        (torch.complex64, ValueError, "unknown dtype 'complex64'"),
        (2, TypeError, "dtype must be given by name, got 2"),
        (["bf16"], TypeError, "dtype must be given by name, got ['bf16']"),
    ],
)
def test_unknown_dtypes(dtype, error, says):
    with pytest.raises(error) as caught:
        bytes_of(dtype)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("n_bytes", "binary", "text"),
    [
        (0, True, "0 B"),
        (656, True, "656 B"),
        (16 * GiB, True, "16 GiB"),
        (16 * GiB, False, "17.18 GB"),
        (131_072, True, "128 KiB"),
        (70_272, True, "68.62 KiB"),
        (1023, True, "1023 B"),
        (1024, True, "1 KiB"),
        (1000, False, "1 kB"),
        (999_960, False, "1 MB"),
        (1024 * KiB - 1, True, "1 MiB"),
        (618_475_290_624, False, "618.5 GB"),
        (3 * 1024 * 1024 * GiB, True, "3 PiB"),
    ],
)
def test_format_bytes(n_bytes, binary, text):
    assert format_bytes(n_bytes, binary=binary) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ns"),
        (6e-6, "6 µs"),
        (13.4e-6, "13.4 µs"),
        (2.75e-3, "2.75 ms"),
        (999.96e-6, "1 ms"),
        (0.99999, "1 s"),
        (12345.6, "12346 s"),
    ],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


_SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]


@given(st.integers(0, 2**59))
def test_a_written_size_reads_back(n_bytes):
    number, unit = format_bytes(n_bytes).split()
    assert float(number) * 1024 ** _SIZES.index(unit) == pytest.approx(n_bytes, rel=5.1e-4)
    assert float(number) < 1024


@given(st.floats(1e-9, 1e3))
def test_a_written_time_reads_back(seconds):
    number, unit = format_seconds(seconds).split()
    assert float(number) * {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1}[unit] == pytest.approx(seconds, rel=5.1e-4)


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf")])
@pytest.mark.parametrize("write", [format_bytes, format_seconds])
def test_no_size_or_time_that_cannot_be(write, bad):
    with pytest.raises(ValueError, match="must be a finite number of at least 0"):
        write(bad)


@pytest.mark.parametrize("bad", ["1", None, True])
@pytest.mark.parametrize("write", [format_bytes, format_seconds])
def test_no_size_or_time_that_is_no_number(write, bad):
    with pytest.raises(TypeError, match="must be a number"):
        write(bad)
