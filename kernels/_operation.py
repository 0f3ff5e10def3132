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

from ._mode import Unsupported

# Registered under the package's own name, so that a copy of the package is a package of its own.
NAMESPACE = "mha_to_mla_" + re.sub(r"\W", "_", __package__)
# The transform of torch.func that is under way, or None. It is private. What is public, ``torch.func.debug_unwrap``, tells of a
# tensor whether it belongs to one, but under ``grad`` the tensors that a function makes from plain ones do too, and finding
# that out takes an operation more for every call. Without it every call goes through torch: slower, and as right.
_functorch = getattr(torch._C, "_functorch", None)
_transform = getattr(_functorch, "peek_interpreter_stack", lambda: True)
# ``torch.autograd.grad(is_grads_batched=True)`` hands a backward pass tensors of another kind, of which nothing public tells.
_is_batch = getattr(_functorch, "is_legacy_batchedtensor", lambda tensor: True)


def operation(name: str, mutates_args: tuple[str, ...] = ()):
    """Decorator: register a function, which then takes its arguments by position, as an operation of torch.

    ``mutates_args`` are the tensors that it writes into. Gives the function with ``register_fake`` and ``register_autograd`` of
    ``torch.library.custom_op``; ``torch.vmap`` calls it for one element after the other.
    """

    def register(function):
        registered = torch.library.custom_op(f"{NAMESPACE}::{name}", mutates_args=mutates_args)(function)
        parameters = list(inspect.signature(function).parameters)
        written = [i for i, argument in enumerate(parameters) if argument in mutates_args]
        differentiable = None

        @functools.wraps(function)
        def call(*arguments):
            if torch.compiler.is_compiling():
                return registered(*arguments)
            if _somebody_looks(arguments) or differentiable is not None and any(map(_is_batch, _tensors(arguments))):
                if differentiable is not None and _transform() is not None and _gradient_wanted(_tensors(arguments)):
                    return differentiable.apply(*arguments)
                return registered(*arguments)
            for tensor in (arguments[i] for i in written):
                if tensor is not None and not tensor.is_inference():
                    torch.autograd.graph.increment_version(tensor)  # autograd has to know what was overwritten
            return function(*arguments)

        def no_tangent(ctx, *tangents):
            raise Unsupported(f"{name} has no forward-mode derivative")

        def register_autograd(backward, *, setup_context=None):
            registered.register_autograd(backward, setup_context=setup_context)
            # What custom_op makes of these is no function that torch.func can transform; this one is.
            nonlocal differentiable
            keep = setup_context or (lambda ctx, inputs, output: None)
            parts = {"forward": call, "setup_context": keep, "backward": backward, "jvp": no_tangent}
            methods = {part: staticmethod(method) for part, method in parts.items()}
            differentiable = type(name, (torch.autograd.Function,), methods | {"generate_vmap_rule": True})

        @registered.register_vmap
        def element_by_element(info, axes, *arguments):
            for i in written:
                if arguments[i] is not None and axes[i] is None:
                    raise Unsupported(
                        f"{name} under torch.vmap writes into {parameters[i]} for every element, so it has to be mapped as well"
                    )
            if info.batch_size == 0:
                raise Unsupported(f"{name} under torch.vmap needs at least one element, got a mapped axis of 0")
            results = [
                call(*(a if axis is None else a.select(axis, i) for a, axis in zip(arguments, axes, strict=True)))
                for i in range(info.batch_size)
            ]
            if results[0] is None:
                return None, None
            if isinstance(results[0], torch.Tensor):
                return torch.stack(results), 0
            return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0,) * len(results[0])

        call.register_fake, call.register_autograd = registered.register_fake, register_autograd
        return call

    return register


def _tensors(arguments: tuple) -> list[torch.Tensor]:
    return [argument for argument in arguments if isinstance(argument, torch.Tensor)]


def _gradient_wanted(tensors: list[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _somebody_looks(arguments: tuple) -> bool:
    """Whether a gradient, a trace or a batch is wanted of these, or one of them is no plain tensor."""
    if torch.jit.is_tracing() or is_in_torch_dispatch_mode() or _transform() is not None:
        return True
    tensors = _tensors(arguments)
    return _gradient_wanted(tensors) or any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)
