"""What the kernel tests share: the device of this mode and fresh random tensors on it."""

import pytest
import torch

import kernels


@pytest.fixture(scope="session")
def device():
    return "cuda" if kernels.MODE == "compiled" else "cpu"


@pytest.fixture
def generator(device):
    return torch.Generator(device).manual_seed(20261129)


@pytest.fixture
def random(device, generator):
    """Standard normal tensors of any shape, dtype float32 unless asked otherwise."""

    def make(*shape, dtype=torch.float32):
        return torch.randn(shape, device=device, generator=generator).to(dtype)

    return make
