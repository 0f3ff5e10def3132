"""Operations of torch: what ``torch.compile``, export, autograd, vmap and fake tensors see of a kernel.

They have to see one operation, with tensors in and out, whose inside is none of their business. Torch's bookkeeping around an
operation written in Python (defaults filled in, results compared with arguments for shared memory) takes the host longer than a
short kernel takes the GPU. So where nobody looks, the function is called as it is.
"""

import functools
import inspect
import re

import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

# Registered under the package's own name, so that a copy of the package is a package of its own.
NAMESPACE = "mha_to_mla_" + re.sub(r"\W", "_", __package__)


def operation(name: str, mutates_args: tuple[str, ...] = ()):
    """Decorator: register a function, which then takes its arguments by position, as an operation of torch.

    ``mutates_args`` are the tensors that it writes into. Gives the function with ``register_fake`` and ``register_autograd`` of
    ``torch.library.custom_op``.
    """

    def register(function):
        registered = torch.library.custom_op(f"{NAMESPACE}::{name}", mutates_args=mutates_args)(function)
        written = [i for i, argument in enumerate(inspect.signature(function).parameters) if argument in mutates_args]

        @functools.wraps(function)
        def call(*arguments):
            if torch.compiler.is_compiling() or _somebody_looks(arguments):
                return registered(*arguments)
            for tensor in (arguments[i] for i in written):
                if tensor is not None and not tensor.is_inference():
                    torch.autograd.graph.increment_version(tensor)  # autograd has to know what was overwritten
            return function(*arguments)

        call.register_fake, call.register_autograd = registered.register_fake, registered.register_autograd
        return call

    return register


def _somebody_looks(arguments: tuple) -> bool:
    """Whether a gradient, a trace or a batch is wanted of these, or one of them is no plain tensor."""
    if torch.jit.is_tracing() or is_in_torch_dispatch_mode() or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    wanted = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return wanted or any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)
