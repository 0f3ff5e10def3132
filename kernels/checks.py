"""Checks of arguments, made before any kernel starts: each error names the argument, what came and what was wanted."""

import math

import torch

from ._mode import MODE, Unsupported

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
INTEGERS = (torch.int32, torch.int64)


def tensors(**named: torch.Tensor) -> None:
    """Floating tensors of one dtype on one device, where this process can run kernels."""
    first_name, first = next(iter(named.items()))
    for name, tensor in named.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.layout != torch.strided:
            raise TypeError(f"{name} must be a dense (strided) tensor, got layout {tensor.layout}")
        if tensor.dtype not in FLOATS:
            raise TypeError(
                f"{name} must be float16, bfloat16 or float32, got {_short(tensor.dtype)} "
                "(kernels.reference computes in float64)"
            )
        if tensor.dtype != first.dtype:
            raise TypeError(f"{name} is {_short(tensor.dtype)} but {first_name} is {_short(first.dtype)}: one dtype is wanted")
        if tensor.device != first.device:
            raise ValueError(f"{name} is on {tensor.device} but {first_name} is on {first.device}: one device is wanted")
    if MODE == "compiled" and first.device.type != "cuda":
        raise ValueError(
            f"{first_name} is on {first.device}, but kernels run compiled on this machine's GPU: move the tensors there, "
            "or set TRITON_INTERPRET=1 before Python starts"
        )
    if MODE != "compiled" and first.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{first_name} is on {first.device}: a CPU or CUDA tensor is wanted")


def shape(name: str, tensor: torch.Tensor, letters: str, sizes: dict[str, int]) -> None:
    """``tensor`` must have one axis per word of ``letters``; sizes met before must agree, new ones are written down."""
    wanted = letters.split()
    if tensor.dim() != len(wanted):
        raise ValueError(f"{name} must have shape [{', '.join(wanted)}], got {list(tensor.shape)}")
    for letter, size in zip(wanted, tensor.shape, strict=True):
        if sizes.setdefault(letter, size) != size:
            raise ValueError(
                f"{name} must have shape [{', '.join(wanted)}] with {letter} = {sizes[letter]}, got {list(tensor.shape)}"
            )


def heads(n_q_heads: int, n_kv_heads: int) -> None:
    """Every KV head serves the same number of query heads, at least one."""
    if n_kv_heads == 0 or n_q_heads == 0 or n_q_heads % n_kv_heads:
        raise ValueError(
            f"the query heads must be a multiple of the KV heads, got n_q_heads = {n_q_heads}, n_kv_heads = {n_kv_heads}"
        )


def widths(operation: str, head_dim_qk: int, head_dim_v: int, limit_qk: int, limit_v: int) -> None:
    """Head widths that this operation has tiles for."""
    for name, width, limit in (("head_dim_qk", head_dim_qk, limit_qk), ("head_dim_v", head_dim_v, limit_v)):
        if width == 0:
            raise ValueError(f"{name} must be at least 1, got 0")
        if width > limit:
            raise Unsupported(f"{operation} goes up to {name} = {limit}, got {width}")


def softmax_scale(scale: float | None, head_dim_qk: int) -> float:
    """The factor of the scores: 1/sqrt(head_dim_qk) unless the model says otherwise."""
    if scale is None:
        return head_dim_qk**-0.5
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale must be a number, got {type(scale).__name__}")
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    return float(scale)


def flag(name: str, value: bool) -> None:
    """A plain True or False: a tensor here would ask the GPU."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")


def split_count(num_splits: int | None) -> None:
    """A given number of splits: a positive integer."""
    if num_splits is None:
        return
    if isinstance(num_splits, bool) or not isinstance(num_splits, int):
        raise TypeError(f"num_splits must be an integer or None, got {type(num_splits).__name__}")
    if not 1 <= num_splits <= 65535:
        raise ValueError(f"num_splits must be between 1 and 65535, got {num_splits}")


def lengths(seq_lens: torch.Tensor | None, batch: int, device: torch.device) -> None:
    """Lengths of the sequences, one integer each, on the device of the cache. Values are checked by ``length_values``."""
    if seq_lens is None:
        return
    if not isinstance(seq_lens, torch.Tensor):
        raise TypeError(f"seq_lens must be an int32 tensor [B] or None, got {type(seq_lens).__name__}")
    if seq_lens.dtype not in INTEGERS:
        raise TypeError(f"seq_lens must be int32 (or int64), got {_short(seq_lens.dtype)}")
    if tuple(seq_lens.shape) != (batch,):
        raise ValueError(f"seq_lens must have shape [B] = [{batch}], got {list(seq_lens.shape)}")
    if seq_lens.device != device:
        raise ValueError(f"seq_lens is on {seq_lens.device} but the cache is on {device}: one device is wanted")


def length_values(seq_lens: torch.Tensor | None, capacity: int) -> None:
    """Every length lies in the cache. Reads the values: on a GPU this waits for it, so there it is asked for, not usual."""
    if seq_lens is None or seq_lens.numel() == 0:
        return
    shortest, longest = int(seq_lens.min()), int(seq_lens.max())
    if shortest < 0 or longest > capacity:
        raise ValueError(
            f"seq_lens must lie between 0 and the cache's {capacity} tokens, got values from {shortest} to {longest}"
        )


def workspace(tensor: torch.Tensor | None, elements: int, device: torch.device) -> None:
    """Memory for partial results: float32, contiguous, large enough."""
    if tensor is None:
        return
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"workspace must be a float32 tensor or None, got {type(tensor).__name__}")
    if tensor.dtype != torch.float32:
        raise TypeError(f"workspace must be float32, got {_short(tensor.dtype)}")
    if not tensor.is_contiguous() or tensor.device != device:
        raise ValueError(f"workspace must be contiguous and on {device}, got strides {tensor.stride()} on {tensor.device}")
    if tensor.numel() < elements:
        raise ValueError(f"workspace must hold at least {elements} elements, got {tensor.numel()}")


def runnable(dtype: torch.dtype, capability: tuple[int, int]) -> None:
    """This mode launches kernels, and this GPU multiplies this number format."""
    if MODE == "compile-only":
        raise Unsupported(
            "no CUDA GPU here, and TRITON_INTERPRET=0 turned the interpreter off: kernels can be compiled, not run"
        )
    if dtype == torch.bfloat16 and capability < (8, 0):
        raise Unsupported(f"bfloat16 needs compute capability 8.0, this GPU has {capability[0]}.{capability[1]}: use float16")


def no_gradient(operation: str, **named: torch.Tensor) -> None:
    """Decoding has no backward; refusing beats returning a result that silently is not part of the graph."""
    if torch.is_grad_enabled():
        for name, tensor in named.items():
            if tensor.requires_grad:
                raise Unsupported(
                    f"{operation} has no backward and {name} requires a gradient: call it under torch.no_grad() or detach"
                )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
