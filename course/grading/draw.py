"""Fresh input from a seed: the numbers of a task, its tensors, its shapes.

Whoever knows the seed can draw the same again; a property gets a stream of its own, so adding one moves no other.
"""

import hashlib
import random
from collections.abc import Sequence

import torch

import kernels


class Draw:
    """Random values from a seed and a path of names under it. ``givens`` are the values that stand in the released task."""

    def __init__(self, seed: str | int, *path: str | int, givens: dict | None = None):
        digest = hashlib.sha256("\0".join(map(str, (seed, *path))).encode()).digest()
        self.givens = dict(givens or {})
        self._path = (seed, *path)
        self._random = random.Random(digest)
        self._generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)

    def of(self, name: str | int) -> "Draw":
        """A stream of its own under this one."""
        return Draw(*self._path, name, givens=self.givens)

    @property
    def device(self) -> str:
        """Where the kernels run: the GPU where they are compiled, else the CPU."""
        return "cuda" if kernels.MODE == "compiled" else "cpu"

    def integer(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return self._random.randint(low, high)

    def choice(self, options: Sequence):
        """One of the options."""
        return self._random.choice(list(options))

    def some(self, options: Sequence, n: int) -> list:
        """n different ones of the options, in random order."""
        return self._random.sample(list(options), n)

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32, std: float = 1.0) -> torch.Tensor:
        """Normally distributed numbers."""
        values = torch.randn(shape, generator=self._generator, dtype=torch.float64) * std
        return values.to(dtype).to(self.device)

    def permutation(self, n: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """The numbers 0 to n - 1 in random order, [n]."""
        return torch.randperm(n, generator=self._generator).to(dtype).to(self.device)
