"""Counted tensors: which new ones a piece of PyTorch code makes, and how large they are.

PyTorch hands every operation that has to be carried out to a dispatcher, and there its results can be seen. A view lies in
memory that one of the operation's inputs has already, so it is not counted; a copy is, even where the code shows none.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Made:
    """A tensor that an operation put into memory of its own: 'clone', its shape, and the bytes of that memory."""

    operation: str
    shape: tuple[int, ...]
    n_bytes: int


class _Watch(TorchDispatchMode):
    """Keeps a list of results in memory that no input of their operation has."""

    def __init__(self):
        super().__init__()
        self.made: list[Made] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        there = {_address(x) for x in _tensors((args, kwargs))}
        for x in _tensors(result):
            if _address(x) not in there and x.untyped_storage().nbytes():
                name = function._schema.name.removeprefix("aten::")
                self.made.append(Made(name, tuple(x.shape), x.untyped_storage().nbytes()))
        return result


def _tensors(tree: object) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _address(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def tensors_made(function: Callable, *args, **kwargs) -> list[Made]:
    """The new tensors of ``function(*args, **kwargs)``, in the order they were made, the result's among them.

    It really runs, on whatever device the arguments are. What PyTorch carries out as one operation, such as a fused attention,
    shows what it returns and not what it holds meanwhile.
    """
    with _Watch() as watch:
        function(*args, **kwargs)
    return watch.made
