"""Rotary positions: pairs of a query's and of a key's elements are turned by an angle that grows with the position.

Pair i of a head turns by the angle t * base^(-2i / d) at position t. In rows, which the course uses, a pair becomes

    (a, b) R_t = (a cos - b sin, a sin + b cos),    so that    (q R_t)(k R_j)ᵀ = q R_(t - j) kᵀ:

a score knows the distance of two tokens and nothing else of their places. (Su et al. 2021, 2104.09864, section 3.2. With
columns, as papers write it, the same number is qᵀ R_(j - t) k.)

Which two elements make a pair is a convention, and a checkpoint is trained with one of them:

    interleaved    (0, 1), (2, 3), …             the paper, Meta's own Llama files, DeepSeek's checkpoints
    halves         (0, d/2), (1, d/2 + 1), …     Llama's checkpoints in the format of Hugging Face

They differ by a permutation of the elements. A score does not change when query and key are permuted alike, so permuting the
rows of the weights that make them converts a checkpoint from one convention to the other: `to_halves`, `to_interleaved`.
"""

import torch
from torch import Tensor

PAIRINGS = ("interleaved", "halves")


def rotation(
    positions: Tensor, rope_dim: int, *, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every pair's angle at these positions.

    Args:
        positions: whole numbers […], on the device that shall have the result.
        rope_dim: width that is rotated, even.
        base: the slowest pair turns about base times more slowly than the first, which turns by 1 radian a token.
        dtype: of the result. Angles are computed in float64: in float32 those near 100,000 are off by up to 0.008.

    Returns:
        cos and sin, each […, rope_dim / 2].
    """
    if not isinstance(positions, Tensor) or positions.dtype not in (torch.int32, torch.int64):
        came = f"a tensor of {positions.dtype}" if isinstance(positions, Tensor) else type(positions).__name__
        raise TypeError(f"positions must be a tensor of whole numbers (int32 or int64), got {came}")
    check_rotary("rope_dim", rope_dim)
    check_base("base", base)
    pair = torch.arange(rope_dim // 2, dtype=torch.float64, device=positions.device)
    angles = positions.double().unsqueeze(-1) * float(base) ** (-2 * pair / rope_dim)
    return torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, pairing: str = "interleaved") -> Tensor:
    """x […, d] with each pair of its last axis turned; cos and sin […, d / 2] broadcast against the axes before.

    Multiplied in the wider of the dtypes of x and cos; the result has the dtype and shape of x.
    """
    check_pairing(pairing)
    if x.shape[-1] != 2 * cos.shape[-1] or cos.shape != sin.shape:
        raise ValueError(
            f"cos and sin must have half the width of x, got {list(cos.shape)} and {list(sin.shape)} for x {list(x.shape)}"
        )
    a, b = (x[..., 0::2], x[..., 1::2]) if pairing == "interleaved" else x.chunk(2, -1)
    turned = a * cos - b * sin, a * sin + b * cos
    joined = torch.stack(turned, -1).flatten(-2) if pairing == "interleaved" else torch.cat(turned, -1)
    return joined.to(x.dtype)


def to_halves(w: Tensor, *, dim: int = -1) -> Tensor:
    """Reorder ``dim`` of activations or weights from interleaved pairs to halves: element 2i goes to i, 2i + 1 to i + d/2.

    For the rows of an ``nn.Linear`` weight that make one head, [d, d_model], that is ``dim=0``; for several heads view it as
    [heads, d, d_model] first.
    """
    axis = _axis(w, dim)
    return w.unflatten(axis, (-1, 2)).transpose(axis, axis + 1).flatten(axis, axis + 1)


def to_interleaved(w: Tensor, *, dim: int = -1) -> Tensor:
    """The inverse of `to_halves`: element i goes to 2i, i + d/2 to 2i + 1."""
    axis = _axis(w, dim)
    return w.unflatten(axis, (2, -1)).transpose(axis, axis + 1).flatten(axis, axis + 1)


def _axis(w: Tensor, dim: int) -> int:
    """``dim`` counted from the front; its width falls into pairs."""
    check_rotary("the width of w along dim", w.shape[dim])
    return dim % w.dim()


def check_pairing(pairing: str) -> None:
    """One of the two conventions."""
    if pairing not in PAIRINGS:
        raise ValueError(f"pairing must be one of {', '.join(PAIRINGS)}, got {pairing!r}")


def check_rotary(name: str, width: int) -> None:
    """A width that falls into pairs."""
    if isinstance(width, bool) or not isinstance(width, int):
        raise TypeError(f"{name} must be a whole number, got {width!r}")
    if width < 2 or width % 2:
        raise ValueError(f"{name} must be even and at least 2, because elements are rotated in pairs, got {width}")


def check_base(name: str, base: float) -> None:
    """A number above 1."""
    if isinstance(base, bool) or not isinstance(base, (int, float)):
        raise TypeError(f"{name} must be a number, got {base!r}")
    if not 1 < base < float("inf"):
        raise ValueError(f"{name} must be finite and above 1, got {base}")
