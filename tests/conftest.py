"""Imports ``kernels`` before any test module can import Triton, so that Triton starts in the mode this machine needs."""

import os

os.environ.setdefault("MPLBACKEND", "Agg")

import kernels  # noqa: F401
