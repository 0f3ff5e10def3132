"""The bound that every result has to keep: error against float64, measured by what PyTorch does in the same dtype."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import kernels

COMPILED = kernels.MODE == "compiled"
# float32 and 16 bit take different tiles. On a GPU bfloat16 is a third path; the interpreter computes it in float32.
DTYPES = [torch.float32, torch.float16, *([torch.bfloat16] if COMPILED else [])]
FLOORS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def sdpa_math(q, k, v, mask=None, scale=None):
    """PyTorch's own unfused attention in the inputs' dtype: what that dtype can do on this device."""
    with sdpa_kernel(SDPBackend.MATH):
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def errors(got, wanted):
    """(max-abs, relative L2) against float64; a NaN on either side never passes."""
    got, wanted = got.double(), wanted.double()
    assert not torch.isnan(got).any(), "the result holds NaN"
    assert not torch.isnan(wanted).any(), "the definition holds NaN"
    difference = got - wanted
    norm = wanted.norm().clamp_min(1e-30)
    return difference.abs().max().item() if got.numel() else 0.0, (difference.norm() / norm).item()


def assert_accurate(got, wanted, peer=None, size=1.0):
    """Error against float64 at most twice that of SDPA's MATH backend in the same dtype, plus the dtype's floor.

    The floor is for sums of numbers about 1. ``size``: how many times larger those are that were added up here.
    """
    assert got.shape == wanted.shape
    ours = errors(got, wanted)
    theirs = errors(peer, wanted) if peer is not None else (0.0, 0.0)
    for name, mine, other in zip(("max-abs", "relative L2"), ours, theirs, strict=True):
        bound = 2 * other + FLOORS[got.dtype] * size
        assert mine <= bound, f"{name} error {mine:.3g} exceeds {bound:.3g}"


def assert_lse(got, wanted):
    """Log-sum-exps agree, -inf exactly where there is no key."""
    assert got.dtype == torch.float32 and got.shape == wanted.shape
    assert torch.equal(got == -torch.inf, wanted == -torch.inf)
    finite = wanted != -torch.inf
    torch.testing.assert_close(got.double()[finite], wanted[finite], atol=2e-5, rtol=2e-5)


def strides_beyond_31_bits(random, device, axis):
    """A [B, H, N, 64] half tensor of three along ``axis``, 2**30 + 64 elements apart, and its contiguous copy."""
    stride = 2**30 + 64
    buffer = torch.empty(2 * stride + 4096, dtype=torch.float16, device=device)
    sizes, strides = {
        "token": ((1, 1, 3, 64), (1, 1, stride, 1)),
        "head": ((1, 3, 3, 64), (1, stride, 64, 1)),
        "batch": ((3, 1, 3, 64), (stride, 1, 64, 1)),
    }[axis]
    far = buffer.as_strided(sizes, strides)
    far.copy_(random(*sizes, dtype=torch.float16))
    return far, far.clone()
