"""The table of GPUs: figures, names as torch reports them, and what a GPU lacks."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course.costs import gpu, gpus

EVERY = gpus(doubtful=True)
ids = [each.name for each in EVERY]


def test_the_measured_gpu():
    # 132 SMs, 60 MB of L2, 227 KiB of shared memory, as the device reports them
    h200 = gpu("H200 SXM")
    assert (h200.sm_count, h200.l2_bytes, h200.shared_memory_per_block) == (132, 60 * 2**20, 227 * 2**10)
    assert (h200.bandwidth, h200.capability, h200.memory_bytes) == (4.8e12, (9, 0), 141 * 10**9)


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB SXM"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA B200", "B200 SXM"),
    ],
)
def test_names_as_torch_reports_them(reported, name):
    assert gpu(reported) is gpu(name)


@pytest.mark.parametrize("one", EVERY, ids=ids)
def test_found_by_name_in_any_spelling(one):
    assert gpu(one.name) is one
    assert gpu(one.name.lower().replace(" ", "-")) is one


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("H200 SMX", ValueError, "unknown gpu 'H200 SMX'; nearest: H200 SXM"),
        ("NVIDIA A100 80GB PCIe", ValueError, "nearest: "),  # slower memory than the SXM card: must not be taken for it
        ("NVIDIA A10G", ValueError, "nearest: "),
        ("???", ValueError, "course.costs.gpus(doubtful=True) lists all"),
        (0, TypeError, "gpu must be given by name, got 0"),
    ],
)
def test_unknown_names(name, error, says):
    with pytest.raises(error) as caught:
        gpu(name)
    assert says in str(caught.value)


def test_dtypes_by_any_name():
    h200 = gpu("H200 SXM")
    assert h200.peak_flops() == h200.peak_flops("bf16") == h200.peak_flops(torch.bfloat16) == 989.4e12
    assert h200.peak_flops(torch.float8_e4m3fn) == h200.peak_flops("fp8") == 1978.9e12
    assert h200.ridge("fp8") == pytest.approx(2 * h200.ridge(), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "dtype", "says"),
    [
        ("T4", "bfloat16", "T4 has no bfloat16 tensor cores (compute capability 7.5, needs 8.0); it has float16"),
        ("A100 80GB SXM", "fp8", "has no float8 tensor cores (compute capability 8.0, needs 8.9); it has float16, bf"),
        ("A100 40GB SXM", torch.float8_e5m2, "has no float8 tensor cores"),
        ("RTX 3090", "float8", "(compute capability 8.6, needs 8.9)"),
        ("H200 SXM", "float32", "H200 SXM has no float32 rate in this table"),
        ("H200 SXM", "int8", "H200 SXM has no int8 rate in this table"),
        ("H200 SXM", "bfloat61", "unknown dtype 'bfloat61'; nearest: bfloat16"),
    ],
)
def test_a_dtype_the_gpu_lacks(name, dtype, says):
    with pytest.raises(ValueError) as caught:
        gpu(name).peak_flops(dtype)
    assert says in str(caught.value)


def test_a_dtype_that_is_none():
    with pytest.raises(TypeError, match="dtype must be given by name, got 16"):
        gpu("H200 SXM").peak_flops(16)


@pytest.mark.parametrize("one", EVERY, ids=ids)
def test_peaks_follow_the_compute_capability(one):
    assert ("bfloat16" in one.peaks) == (one.capability >= (8, 0))
    assert one.half == ("bfloat16" if one.capability >= (8, 0) else "float16")
    assert ("float8" in one.peaks) == (one.capability >= (8, 9))
    if "float8" in one.peaks:
        assert one.peaks["float8"] == pytest.approx(2 * one.peaks["float16"], rel=0.02)
    # 227 KiB from Hopper on, 163 on the A100, 99 on consumer cards, 64 on a T4
    kib = {(7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}
    assert one.shared_memory_per_block == kib[one.capability] * 2**10


def test_every_row_says_where_it_comes_from():
    for one in EVERY:
        assert one.source and one.grade in {"A", "B", "C"}, one.name
        assert (one.grade == "C") == bool(one.doubt), one.name
        assert not re.search(r"/work|/home|/tmp|facts|from memory", repr(one)), one.name


def test_doubtful_rows_are_left_out_and_marked():
    doubtful = {"A10", "RTX 3090", "RTX 5090", "H800 SXM", "B200 SXM"}
    assert {each.name for each in EVERY} - {each.name for each in gpus()} == doubtful
    assert (f"{gpu('B200 SXM')}", f"{gpu('H200 SXM')}") == ("B200 SXM ‡", "H200 SXM")


def test_importing_the_costs_brings_in_nothing_but_the_standard_library():
    code = (
        "import sys; import course.costs; "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'triton', 'altair', 'matplotlib')])"
    )
    root = Path(__file__).parents[3]
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
