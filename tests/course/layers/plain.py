"""The layers written again in another way, as a judge: complex rotation, masks, one head at a time, no kernel, no cache."""

import torch

import kernels
from course.layers import PageAllocator

BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}


def turned(x, positions, base, pairing):
    """x [B, M, ..., d] turned by positions [B, M], as complex numbers."""
    width = x.shape[-1]
    if pairing == "interleaved":
        numbers = torch.complex(x[..., 0::2], x[..., 1::2])
    else:
        numbers = torch.complex(x[..., : width // 2], x[..., width // 2 :])
    angles = torch.stack([positions.double() / base ** (2 * i / width) for i in range(width // 2)], -1)
    angles = angles.reshape(*positions.shape, *[1] * (x.dim() - 3), width // 2)
    numbers = numbers * torch.polar(torch.ones_like(angles), angles)
    pair = (numbers.real, numbers.imag)
    return torch.stack(pair, -1).reshape(x.shape) if pairing == "interleaved" else torch.cat(pair, -1)


def one_head(q, k, v, scale):
    """q, k [B, M, d], v [B, M, dv] -> [B, M, dv], causal."""
    scores = scale * q @ k.transpose(1, 2)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v


def linear(module, x):
    """x Wᵀ + b in float64."""
    out = x @ module.weight.detach().double().T
    return out if module.bias is None else out + module.bias.detach().double()


def norm(module, x):
    """RMSNorm in float64."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + module.eps) * module.weight.detach().double()


def gqa(layer, x, positions=None):
    """What a GQALayer has to return for x [B, M, d_model], in float64."""
    x = x.double()
    positions = default(x, positions)
    q = linear(layer.w_q, x).unflatten(-1, (layer.n_q_heads, -1))
    k = linear(layer.w_k, x).unflatten(-1, (layer.n_kv_heads, -1))
    v = linear(layer.w_v, x).unflatten(-1, (layer.n_kv_heads, -1))
    if layer.rope_base is not None:
        q, k = (turned(rows, positions, layer.rope_base, layer.pairing) for rows in (q, k))
    group = layer.n_q_heads // layer.n_kv_heads
    heads = [one_head(q[:, :, r], k[:, :, r // group], v[:, :, r // group], layer.scale) for r in range(layer.n_q_heads)]
    return linear(layer.w_o, torch.cat(heads, -1))


def mla(layer, x, positions=None):
    """What an MLALayer has to return for x [B, M, d_model], in float64, with every head's own keys and values."""
    x = x.double()
    positions = default(x, positions)
    source = x if layer.w_dq is None else norm(layer.q_norm, linear(layer.w_dq, x))
    q_nope = linear(layer.w_uq, source).unflatten(-1, (layer.n_heads, -1))
    q_rope = turned(linear(layer.w_qr, source).unflatten(-1, (layer.n_heads, -1)), positions, layer.rope_base, layer.pairing)
    latent = norm(layer.kv_norm, linear(layer.w_dkv, x))
    k_rope = turned(linear(layer.w_kr, x), positions, layer.rope_base, layer.pairing)
    heads = []
    for r in range(layer.n_heads):
        k = torch.cat([latent @ layer.w_uk[r].detach().double(), k_rope], -1)
        q = torch.cat([q_nope[:, :, r], q_rope[:, :, r]], -1)
        heads.append(one_head(q, k, latent @ layer.w_uv[r].detach().double(), layer.scale))
    return linear(layer.w_o, torch.cat(heads, -1))


def default(x, positions):
    """Positions [B, M]."""
    if positions is None:
        positions = torch.arange(x.shape[1], device=x.device)
    return positions.expand(x.shape[0], -1)


def in_pieces(layer, x, cache, sizes, **options):
    """The layer's output for x, given to it piece by piece with a cache; the last piece takes what is left."""
    parts, first = [], 0
    with torch.no_grad():
        for size in [*sizes, x.shape[1]]:
            last = min(first + size, x.shape[1])
            if last > first:
                parts.append(layer(x[:, first:last], cache, **options))
            first = last
    return torch.cat(parts, 1)


def poison(cache):
    """NaN in every slot: what is read without having been written shows."""
    for name in cache.widths:
        cache[name].fill_(torch.nan)
    return cache


def caches(layer, batch, capacity, page_size=3):
    """A cache of each kind, full of NaN."""
    allocator = PageAllocator(batch * -(-capacity // page_size), page_size)
    return [poison(layer.new_cache(batch, capacity)), poison(layer.new_paged_cache(allocator, batch))]


def record_calls(monkeypatch, *names):
    """A list that fills with (name, query tokens) of each kernel called, which then answers by its definition in float32."""
    called = []
    for name in names:
        definition = getattr(kernels.reference, name)

        def answer(*args, name=name, definition=definition, **options):
            called.append((name, args[0].shape[1 if name != "attention" else 2]))
            out, lse = definition(*args, **options)
            return out.float(), lse.float()

        monkeypatch.setattr(kernels, name, answer)
    return called


def assert_gradients(layer, twin, x):
    """The layer's gradients of x and of its parameters are those of its float64 twin, which takes the same parameters."""
    weight = torch.randn_like(x)
    (layer(x) * weight).sum().backward()
    twin.load_state_dict(layer.state_dict())
    exact = x.detach().double().requires_grad_()
    (twin(exact) * weight).sum().backward()
    torch.testing.assert_close(x.grad.double(), exact.grad, atol=1e-5, rtol=1e-4)
    for (name, got), wanted in zip(layer.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got.grad.double(), wanted.grad, atol=1e-4, rtol=1e-4, msg=name)


def assert_close(got, wanted, dtype=torch.float64):
    """Equal up to the rounding of the dtype that was computed in."""
    assert got.dtype == dtype and got.shape == wanted.shape
    torch.testing.assert_close(got.double(), wanted, atol=BOUNDS[dtype], rtol=BOUNDS[dtype])
