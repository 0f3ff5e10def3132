"""Checks of arguments, made before any kernel starts: each error names the argument, what came and what was wanted."""

import functools
import os

import numpy as np
import torch
from torch.autograd import forward_ad

from ._mode import MODE, Unsupported

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
FP8 = torch.float8_e4m3fn
INTEGERS = (torch.int32, torch.int64)
# Kernels multiply scores by it in float32: larger ones leave that format, smaller ones are 0 in it.
LARGEST_SCALE = 1e30
SMALLEST_SCALE = torch.finfo(torch.float32).tiny
# Kernels count tokens in 32 bits, also a tile or two beyond the last, and where the splits of twice as many begin.
MOST_TOKENS = 2**30


def tensors(**named: torch.Tensor) -> None:
    """Floating tensors of one dtype on one device, where this process can run kernels."""
    first_name, first = next(iter(named.items()))
    for name, tensor in named.items():
        dense(name, tensor, FLOATS, "float16, bfloat16 or float32")
        if tensor.dtype != first.dtype:
            raise TypeError(f"{name} is {_short(tensor.dtype)} but {first_name} is {_short(first.dtype)}: one dtype is wanted")
        together(name, tensor, first_name, first)
    placed(first_name, first)


def plain(name: str, tensor: torch.Tensor, wanted: str = "a torch.Tensor") -> None:
    """A tensor whose elements lie in memory as they count."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be {wanted}, got {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.is_nested:
        came = "a nested tensor" if tensor.is_nested else f"layout {tensor.layout}"
        raise TypeError(f"{name} must be a dense (strided) tensor, got {came}")
    if not torch.compiler.is_compiling() and (tensor.is_neg() or tensor.is_conj()):  # compiled, torch resolves them
        raise ValueError(
            f"{name} is negated or conjugated when it is read, not in memory: call resolve_neg() or resolve_conj()"
        )


def dense(name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...], wanted: str) -> None:
    """A strided tensor of one of these dtypes, which ``wanted`` calls by name."""
    plain(name, tensor)
    if tensor.dtype not in dtypes:
        hint = " (kernels.reference computes in float64)" if tensor.dtype == torch.float64 else ""
        raise TypeError(f"{name} must be {wanted}, got {_short(tensor.dtype)}{hint}")


def together(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    """Both on one device."""
    if tensor.device != other.device:
        raise ValueError(f"{name} is on {tensor.device} but {other_name} is on {other.device}: one device is wanted")


def sequences(operation: str, causal: bool, allow_tf32: bool, **named: tuple[torch.Tensor, str]) -> dict[str, int]:
    """Tensors of whole sequences, each with the letters of its axes, and how attention runs over them: the sizes."""
    tensors(**{name: tensor for name, (tensor, _) in named.items()})
    sizes: dict[str, int] = {}
    for name, (tensor, letters) in named.items():
        shape(name, tensor, letters, sizes)
    heads(sizes["Hq"], sizes["Hkv"])
    widths(operation, sizes["Dqk"], sizes["Dv"], 256, 256)
    tokens(operation, "M", sizes["M"])
    tokens(operation, "N", sizes["N"])
    flag("causal", causal)
    flag("allow_tf32", allow_tf32)
    return sizes


def new_tokens(operation: str, limit: int, **named: tuple[torch.Tensor, str]) -> dict[str, int]:
    """Queries [B, Hq, …] or [B, T, Hq, …] of 1 to ``limit`` new tokens, each given with the letter of its width: the sizes."""
    tensors(**{name: tensor for name, (tensor, _) in named.items()})
    name, (first, letter) = next(iter(named.items()))
    if first.dim() not in (3, 4):
        raise ValueError(f"{name} must have shape [B, Hq, {letter}] or [B, T, Hq, {letter}], got {list(first.shape)}")
    sizes: dict[str, int] = {}
    for name, (tensor, letter) in named.items():
        shape(name, tensor, f"B Hq {letter}" if first.dim() == 3 else f"B T Hq {letter}", sizes)
    if sizes.get("T", 1) == 0:
        raise ValueError(f"{name} must hold at least one new token a sequence, got T = 0")
    if sizes.get("T", 1) > limit:
        raise Unsupported(f"{operation} takes 1 to {limit} new tokens a sequence, got T = {sizes['T']}: use attention for more")
    return sizes


def cache(
    named: dict[str, tuple[torch.Tensor, str]], q: torch.Tensor, sizes: dict[str, int], *, fp8: bool = True, q_name: str = "q"
) -> None:
    """Tensors of a cache, each with its letters, all in the dtype of q or, with ``fp8``, all in 8 bits."""
    first_name, (first, _) = next(iter(named.items()))
    for name, (tensor, letters) in named.items():
        dense(name, tensor, (*FLOATS, FP8), "float16, bfloat16, float32 or float8_e4m3fn")
        if tensor.dtype != q.dtype and not (fp8 and tensor.dtype == FP8):
            wanted = f"{_short(q.dtype)}{' or float8_e4m3fn' if fp8 else ''}"
            raise TypeError(f"{name} is {_short(tensor.dtype)} but {q_name} is {_short(q.dtype)}: {wanted} is wanted")
        if tensor.dtype != first.dtype:
            raise TypeError(f"{name} is {_short(tensor.dtype)} but {first_name} is {_short(first.dtype)}: one dtype is wanted")
        together(name, tensor, q_name, q)
        shape(name, tensor, letters, sizes)
        if tensor.dtype == FP8:
            byte_pairs(name, tensor)


def byte_pairs(name: str, tensor: torch.Tensor) -> None:
    """Kernels take 8-bit elements two by two: columns are dense, and every row begins and ends with a pair."""
    steps = [stride for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True) if size > 1]
    even = tensor.shape[-1] % 2 == 0 and all(stride % 2 == 0 for stride in steps)
    if tensor.numel() and (tensor.stride(-1) != 1 or not even):
        raise ValueError(
            f"{name} in float8_e4m3fn must have dense columns, an even number of them, and even strides, got shape "
            f"{list(tensor.shape)}, strides {list(tensor.stride())}"
        )


def even_address(tensor: torch.Tensor | None) -> None:
    """A tensor of 8 bits begins with a pair; asked at the launch, because only there it has an address."""
    if tensor is not None and tensor.dtype == FP8 and tensor.data_ptr() % 2:
        raise ValueError(f"a float8_e4m3fn cache must begin at an even address, got a view of offset {tensor.storage_offset()}")


def scales(named: dict[str, tuple[torch.Tensor | None, str]], cached: torch.Tensor, sizes: dict[str, int]) -> None:
    """Scales of an 8-bit cache: all of them with it, none without."""
    for name, (tensor, letters) in named.items():
        if cached.dtype != FP8:
            if tensor is not None:
                raise ValueError(
                    f"{name} belongs to a float8_e4m3fn cache, and this one is {_short(cached.dtype)}: None is wanted"
                )
            continue
        if tensor is None:
            raise ValueError(f"{name} is missing: a float8_e4m3fn cache needs float32 scales [{', '.join(letters.split())}]")
        dense(name, tensor, (torch.float32,), "float32")
        together(name, tensor, "the cache", cached)
        shape(name, tensor, letters, sizes)


def steering(
    operation: str, num_splits: int | None, workspace_: torch.Tensor | None, validate: bool, allow_tf32: bool,
    **named: torch.Tensor | None,
) -> None:  # fmt: skip
    """What every decode takes besides its data, and that nobody expects a derivative of the data."""
    given = {name: tensor for name, tensor in named.items() if tensor is not None}
    positive("num_splits", num_splits)
    flag("validate", validate)
    flag("allow_tf32", allow_tf32)
    workspace(workspace_, next(iter(given.values())).device)
    no_gradient(operation, **given, workspace=workspace_)
    no_tangent(operation, **given)


def placed(name: str, tensor: torch.Tensor) -> None:
    """The tensor lies where this process can run kernels."""
    if MODE == "compiled" and tensor.device.type != "cuda":
        raise ValueError(
            f"{name} is on {tensor.device}, but kernels run compiled on this machine's GPU: move the tensors there, "
            "or set TRITON_INTERPRET=1 before Python starts"
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name} is on {tensor.device}: a CPU or CUDA tensor is wanted")


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
    _widths(operation, head_dim_qk=(head_dim_qk, limit_qk), head_dim_v=(head_dim_v, limit_v))


def mla_widths(operation: str, latent_dim: int, rope_dim: int) -> None:
    """Widths of an MLA record that there are tiles for."""
    _widths(operation, latent_dim=(latent_dim, 512), rope_dim=(rope_dim, 64))


def _widths(operation: str, **named: tuple[int, int]) -> None:
    for name, (width, limit) in named.items():
        if width == 0:
            raise ValueError(f"{name} must be at least 1, got 0")
        if width > limit:
            raise Unsupported(f"{operation} goes up to {name} = {limit}, got {width}")


def tokens(operation: str, name: str, number: int) -> None:
    """Tokens of a sequence, or that a cache has room for: as many as kernels can count."""
    if number > MOST_TOKENS:
        raise Unsupported(f"{operation} goes up to 2**30 tokens a sequence, got {name} = {number}")


def softmax_scale(scale: float | None, head_dim_qk: int | None) -> float:
    """The factor of the scores: 1/sqrt(head_dim_qk) unless the model says otherwise. Without a width it has to be given."""
    if scale is None and head_dim_qk is not None:
        return head_dim_qk**-0.5
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"scale must be a number, got {type(scale).__name__}")
    if not -LARGEST_SCALE < scale < LARGEST_SCALE:  # a comparison, because math.isfinite would break a compiled graph
        raise ValueError(f"scale must be finite and below {LARGEST_SCALE:.3g} in size, got {scale}")
    return float(scale)


def positive_scale(q: torch.Tensor, scale: float) -> tuple[torch.Tensor, float]:
    """The same scores with a positive scale: the kernels multiply after they took the largest score."""
    if scale >= SMALLEST_SCALE:
        return q, scale
    return (-q, -scale) if scale <= -SMALLEST_SCALE else (q * 0.0, 1.0)


def flag(name: str, value: bool) -> None:
    """A plain True or False: a tensor here would ask the GPU."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {type(value).__name__}")


def positive(name: str, number: int | None) -> None:
    """A positive integer, or None where the choice is left to us."""
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"{name} must be an integer or None, got {type(number).__name__}")
    if not 1 <= number < 2**31:
        raise ValueError(f"{name} must be at least 1 and below 2**31, got {number}")


def lengths(seq_lens: torch.Tensor | None, batch: int, device: torch.device) -> None:
    """Lengths of the sequences, one integer each, on the device of the cache. Values are checked by ``length_values``."""
    if seq_lens is None:
        return
    plain("seq_lens", seq_lens, "an int32 tensor [B] or None")
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


def table(block_table: torch.Tensor, batch: int, device: torch.device) -> None:
    """Physical pages of each sequence, in order. Entries are checked by ``table_values``."""
    dense("block_table", block_table, INTEGERS, "an int32 (or int64) tensor [B, max_pages]")
    if block_table.dim() != 2 or block_table.shape[0] != batch:
        raise ValueError(f"block_table must have shape [B, max_pages] with B = {batch}, got {list(block_table.shape)}")
    if block_table.device != device:
        raise ValueError(f"block_table is on {block_table.device} but q is on {device}: one device is wanted")


def table_values(block_table: torch.Tensor | None, seq_lens: torch.Tensor, page_size: int, n_pages: int) -> None:
    """Every entry in use names a page. Reads the values, as ``length_values`` does; entries not in use are not looked at."""
    if block_table is None or block_table.numel() == 0:
        return
    used = torch.arange(block_table.shape[1], device=block_table.device) * page_size < seq_lens[:, None]
    wrong = used & ((block_table < 0) | (block_table >= n_pages))
    if wrong.any():
        sequence, entry = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"block_table must name pages 0 to {n_pages - 1} for the tokens in use, "
            f"got {block_table[sequence, entry].item()} at [{sequence}, {entry}]"
        )


def workspace(tensor: torch.Tensor | None, device: torch.device) -> None:
    """Memory for partial results: float32, one axis, contiguous. Its size is checked when the splits are known."""
    if tensor is None:
        return
    plain("workspace", tensor, "a float32 tensor or None")
    if tensor.dtype != torch.float32:
        raise TypeError(f"workspace must be float32, got {_short(tensor.dtype)}")
    if tensor.dim() != 1 or not tensor.is_contiguous():
        raise ValueError(
            f"workspace must be contiguous with one axis, got shape {list(tensor.shape)}, strides {list(tensor.stride())}"
        )
    if tensor.device != device:
        raise ValueError(f"workspace is on {tensor.device} but q is on {device}: one device is wanted")


def workspace_size(tensor: torch.Tensor | None, elements: int) -> None:
    """The workspace holds the partial results of this many splits."""
    if tensor is not None and tensor.numel() < elements:
        raise ValueError(f"workspace must hold at least {elements} elements, got {tensor.numel()}")


def apart(names: str, tensors: tuple[torch.Tensor | None, ...], n_written: int) -> None:
    """No element of the first ``n_written`` tensors, which are written, lies where one of another tensor does.

    Asked at the launch, because only there tensors have addresses. Views of one storage may lie beside or between each other.
    """
    blocks = []
    for i, tensor in enumerate(tensors):
        if tensor is not None:
            storage = tensor.untyped_storage()
            start = storage.data_ptr()
            blocks.append((i, start, start + storage.nbytes()))
    for n, (i, start, end) in enumerate(blocks):
        if i >= n_written:
            break
        for j, other_start, other_end in blocks[n + 1 :]:
            if start < other_end and other_start < end and _meet(tensors[i], tensors[j]):
                written, other = names.split()[i], names.split()[j]
                raise ValueError(f"{written} and {other} share memory: what is written needs memory of its own")


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    between = other.data_ptr() - one.data_ptr()
    sizes = one.element_size(), other.element_size()
    return _share_bytes(between, one.shape, one.stride(), sizes[0], other.shape, other.stride(), sizes[1])


@functools.lru_cache(maxsize=1024)  # a cache is asked about at every step, and lies as it lay
def _share_bytes(between: int, shape, strides, itemsize: int, other_shape, other_strides, other_itemsize: int) -> bool:
    """Whether two tensors, the other one so many bytes behind the first, have a byte in common."""
    if 0 in shape or 0 in other_shape:
        return False
    length = (1 + _reach(shape, strides)) * itemsize
    other_length = (1 + _reach(other_shape, other_strides)) * other_itemsize
    if between >= length or between + other_length <= 0:
        return False
    # NumPy solves it exactly. It gets addresses that nobody follows.
    start = max(0, -between) + 1
    one = _Places(start, shape, strides, itemsize)
    other = _Places(start + between, other_shape, other_strides, other_itemsize)
    return np.shares_memory(np.asarray(one), np.asarray(other))


def _reach(shape: torch.Size, strides: tuple[int, ...]) -> int:
    """Elements from the first one to the last."""
    return sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


class _Places:
    """The places of a tensor's elements, as NumPy takes them."""

    def __init__(self, start: int, shape: torch.Size, strides: tuple[int, ...], itemsize: int):
        self.__array_interface__ = {
            "version": 3, "typestr": f"|V{itemsize}", "data": (start, True),
            "shape": tuple(shape), "strides": tuple(step * itemsize for step in strides),
        }  # fmt: skip


def own_memory(name: str, tensor: torch.Tensor) -> None:
    """Each element of a tensor that is written has memory of its own."""
    nested = _nested.__wrapped__ if torch.compiler.is_compiling() else _nested
    if not nested(tensor.shape, tensor.stride()):
        raise ValueError(
            f"{name} has elements in one place (shape {list(tensor.shape)}, strides {list(tensor.stride())}): "
            "a row to be written needs memory of its own"
        )


@functools.lru_cache(maxsize=1024)
def _nested(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    """Each axis steps over all that the narrower ones reach. (Strides that interlock, as 2 and 3, are not told apart.)"""
    axes = [(step, size) for size, step in zip(shape, strides, strict=True) if size > 1]
    for i, (step, _) in enumerate(axes):
        narrower = [(s, n) for j, (s, n) in enumerate(axes) if s < step or (s == step and j < i)]
        if step <= sum((n - 1) * s for s, n in narrower):
            return 0 in shape
    return True


def launchable(programs: int) -> None:
    """A launch has one axis, of up to 2**31 - 1 programs."""
    if programs >= 2**31:
        raise Unsupported(f"a launch has at most {2**31 - 1} programs, this one would have {programs}")


def runnable(dtype: torch.dtype, capability: tuple[int, int]) -> None:
    """This mode launches kernels, and this GPU multiplies this number format."""
    if MODE == "compile-only":
        value = os.environ.get("TRITON_INTERPRET")
        raise Unsupported(
            f"no CUDA GPU here, and TRITON_INTERPRET={value} keeps the interpreter off: kernels can be compiled, not run"
        )
    if dtype == FP8 and capability < (8, 9):
        raise Unsupported(f"float8_e4m3fn needs compute capability 8.9, this GPU has {capability[0]}.{capability[1]}")
    if dtype == torch.bfloat16 and capability < (8, 0):
        raise Unsupported(f"bfloat16 needs compute capability 8.0, this GPU has {capability[0]}.{capability[1]}: use float16")


def no_tangent(operation: str, **named: torch.Tensor) -> None:
    """No kernel has a forward-mode derivative, and torch would answer with a tangent of zero."""
    if torch.compiler.is_compiling():
        return
    for name, tensor in named.items():
        if forward_ad.unpack_dual(tensor).tangent is not None:
            raise Unsupported(f"{operation} has no forward-mode derivative, and {name} carries a tangent")


def no_gradient(operation: str, **named: torch.Tensor | None) -> None:
    """Decoding has no backward; refusing beats returning a result that silently is not part of the graph."""
    if torch.is_grad_enabled():
        for name, tensor in named.items():
            if tensor is not None and tensor.requires_grad:
                raise Unsupported(
                    f"{operation} has no backward and {name} requires a gradient: call it under torch.no_grad() or detach"
                )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
