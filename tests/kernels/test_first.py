"""The reading kernel reads every element once."""

import pytest
import torch

import kernels


@pytest.mark.parametrize("numel", [1, 1023, 8192, 8193, 50001])
@pytest.mark.parametrize("programs", [None, 1, 3])
def test_every_element_is_read_once(device, numel, programs):
    x = torch.randint(-(2**31), 2**31 - 1, (numel,), dtype=torch.int32, device=device)
    wanted = 0
    for value in x.tolist():
        wanted ^= value
    got = 0
    for value in kernels.first.read(x, programs=programs).tolist():
        got ^= value
    assert got == wanted


def test_a_number_of_programs_is_positive(device):
    x = torch.ones(4, dtype=torch.int32, device=device)
    for error, programs in ((ValueError, 0), (ValueError, -1), (TypeError, 2.0)):
        with pytest.raises(error, match="programs"):
            kernels.first.read(x, programs=programs)


def test_refuses_what_it_cannot_read(device):
    for bad in ([1], torch.ones(4, device=device), torch.ones(4, 4, dtype=torch.int32, device=device).T[:, :2]):
        with pytest.raises(TypeError, match="contiguous int32"):
            kernels.first.read(bad)
