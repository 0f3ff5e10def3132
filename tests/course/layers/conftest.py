"""Where the layers' tests run: on the device of this mode, from a fixed seed, and as if without Triton where asked."""

import sys

import pytest
import torch

import kernels


@pytest.fixture(scope="session")
def device():
    return "cuda" if kernels.MODE == "compiled" else "cpu"


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(20261130)


@pytest.fixture(params=["this machine's mode", "without Triton"])
def mode(request, monkeypatch):
    """Every operation as this machine runs it, and again as it is answered where Triton is not installed."""
    if request.param == "without Triton":
        for module in ("append", "decode", "forward", "mla", "paged"):
            monkeypatch.setattr(sys.modules[f"kernels.{module}"], "MODE", "reference")
    return request.param
