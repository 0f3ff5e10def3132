"""Weights that come from elsewhere: more KV heads turned into fewer, and the checkpoints of Llama and DeepSeek.

**Fewer KV heads.** Each group of heads becomes one: their mean, the first of them, or a new random head. Pooling does not
preserve the function. In the paper's comparison the mean loses least, and some further training brings most of it back.
(Ainslie et al. 2023, 2305.13245, sections 2.1 and 3.3.) Heads of a group are neighbours, because query head r reads KV head
r // G.

**Checkpoints.** An `nn.Linear` keeps its weight as [out, in], heads one after the other along ``out``. Llama's files in the
format of Hugging Face have rotary pairs in halves, DeepSeek's interleaved; a layer that pairs in the other way gets its rows
reordered, which changes no score. An entry that the layer has no place for is an error, like one that is missing: a bias left
out would go unnoticed.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..costs.checks import whole
from .gqa import GQALayer
from .mla import MLALayer
from .rope import check_pairing, to_halves, to_interleaved

POOLINGS = ("mean", "first", "random")


def pool_kv_heads(
    weight: Tensor, n_heads: int, n_kv_heads: int, how: str = "mean", generator: torch.Generator | None = None
) -> Tensor:
    """The rows of ``n_heads`` heads as those of ``n_kv_heads``.

    Args:
        weight: of W_K or W_V as `nn.Linear` keeps it, [n_heads * d, d_model], or its bias, [n_heads * d].
        n_heads, n_kv_heads: KV heads before and after; the latter divides the former.
        how: 'mean' of each group, 'first' of each group, or 'random': normal numbers with the root mean square of ``weight``.
        generator: for 'random', on the device of ``weight``.

    Returns:
        [n_kv_heads * d, …], in the dtype of ``weight``; a mean is formed in float32, or float64 where that comes in.
    """
    if how not in POOLINGS:
        raise ValueError(f"how must be one of {', '.join(POOLINGS)}, got {how!r}")
    if whole("n_heads", n_heads) % whole("n_kv_heads", n_kv_heads):
        raise ValueError(f"n_kv_heads must divide n_heads, got {n_kv_heads} and {n_heads}")
    if not isinstance(weight, Tensor) or weight.dim() not in (1, 2) or weight.shape[0] % n_heads:
        came = list(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"weight must have shape [n_heads * d, d_model] or [n_heads * d] with n_heads = {n_heads}, got {came}")
    if how == "random" and n_kv_heads == n_heads:
        raise ValueError(f"how='random' would replace all heads though none has to go: n_kv_heads is n_heads, {n_heads}")
    heads = weight.detach().unflatten(0, (n_kv_heads, n_heads // n_kv_heads, -1))  # [n_kv_heads, G, d, …]
    wide = heads.double() if weight.dtype == torch.float64 else heads.float()
    if how == "mean":
        pooled = wide.mean(1)
    elif how == "first":
        pooled = wide[:, 0]
    else:
        pooled = torch.randn(wide[:, 0].shape, dtype=wide.dtype, device=wide.device, generator=generator)
        pooled = pooled * wide.square().mean().sqrt()
    return pooled.flatten(0, 1).to(weight.dtype).clone()


def mha_to_gqa(layer: GQALayer, n_kv_heads: int, how: str = "mean", generator: torch.Generator | None = None) -> GQALayer:
    """A copy of ``layer`` with fewer KV heads; W_Q and W_O are kept, W_K, W_V and their biases pooled.

    The heads of ``layer`` need not be as many as its queries: GQA-8 becomes GQA-2 in the same way. ``how`` and ``generator`` as
    in `pool_kv_heads`.
    """
    if not isinstance(layer, GQALayer):
        raise TypeError(f"layer must be a GQALayer, got {type(layer).__name__}")
    weight = layer.w_k.weight
    few = GQALayer(
        layer.d_model, layer.n_q_heads, n_kv_heads, layer.head_dim,
        head_dim_v=layer.head_dim_v, rope_base=layer.rope_base, pairing=layer.pairing, scale=layer.scale,
        bias=layer.w_k.bias is not None, out_bias=layer.w_o.bias is not None,
    ).to(weight.device, weight.dtype)  # fmt: skip
    few.w_q, few.w_o = copy.deepcopy(layer.w_q), copy.deepcopy(layer.w_o)
    with torch.no_grad():
        for many, one in ((layer.w_k, few.w_k), (layer.w_v, few.w_v)):
            for name, value in many.named_parameters():
                getattr(one, name).copy_(pool_kv_heads(value, layer.n_kv_heads, n_kv_heads, how, generator))
    return few.train(layer.training)


def load_llama(layer: GQALayer, state_dict: Mapping[str, Tensor], prefix: str = "", *, pairing: str = "halves") -> GQALayer:
    """Fill the layer from a Llama-like checkpoint: q_proj, k_proj, v_proj, o_proj, each with weight and perhaps bias.

    Args:
        layer: filled in place, in its own dtype, and returned. Nothing is written if anything does not fit. The base of the
            rotation is not in a checkpoint: the layer has to have that of the model's config. A context extension that changes
            single frequencies (Llama 3.1) is not known here.
        state_dict, prefix: entries are found at ``prefix`` + name; it ends with a full stop: 'model.layers.0.self_attn.'.
        pairing: the checkpoint's.

    Raises:
        TypeError, KeyError, ValueError: naming the entry that is missing, left over or of another shape.
    """
    source = _Checkpoint(layer, GQALayer, state_dict, prefix, pairing)
    for linear, name, heads in (
        (layer.w_q, "q_proj", layer.n_q_heads),
        (layer.w_k, "k_proj", layer.n_kv_heads),
        (layer.w_v, "v_proj", None),
        (layer.w_o, "o_proj", None),
    ):
        for part, value in linear.named_parameters():
            rows = source.take(f"{name}.{part}", value.shape)
            if heads is not None and layer.rope_base is not None:
                rows = source.paired(rows.unflatten(0, (heads, -1)), 1).flatten(0, 1)
            source.put(value, rows)
    source.finish()
    return layer


def load_deepseek(
    layer: MLALayer, state_dict: Mapping[str, Tensor], prefix: str = "", *, pairing: str = "interleaved"
) -> MLALayer:
    """Fill the layer from a checkpoint of DeepSeek-V2 or V3, or of a model with their attention.

    The entries are kv_a_proj_with_mqa, kv_a_layernorm, kv_b_proj, o_proj, and q_proj or q_a_proj, q_a_layernorm, q_b_proj. Each
    head of q holds its rotary part last, kv_a the shared rotary key last, each head of kv_b first W_UK, then W_UV. A checkpoint
    in 8-bit blocks has to be multiplied by its scales first.

    Args:
        layer: filled in place, in its own dtype, and returned. Nothing is written if anything does not fit. Neither the base of
            the rotation nor the scale of the scores is in a checkpoint: the layer has to have those of the model's config. A
            context extension that changes single frequencies (YaRN) is not known here.
        state_dict, prefix: entries are found at ``prefix`` + name; it ends with a full stop: 'model.layers.0.self_attn.'.
        pairing: the checkpoint's; 'halves' where its config says ``rope_interleave: false``.

    Raises:
        TypeError, KeyError, ValueError: naming the entry that is missing, left over or of another shape.
    """
    source, heads = _Checkpoint(layer, MLALayer, state_dict, prefix, pairing), layer.n_heads
    q_name, q_in = "q_proj", layer.d_model
    if layer.w_dq is not None:
        q_name, q_in = "q_b_proj", layer.q_latent_dim
        source.fill(layer.w_dq, "q_a_proj")
        source.fill(layer.q_norm, "q_a_layernorm")
    head_dim = layer.nope_dim + layer.rope_dim
    by_head = source.take(f"{q_name}.weight", (heads * head_dim, q_in)).unflatten(0, (heads, head_dim))
    q_nope, q_rope = by_head.split([layer.nope_dim, layer.rope_dim], 1)
    source.put(layer.w_uq.weight, q_nope.flatten(0, 1))
    source.put(layer.w_qr.weight, source.paired(q_rope, 1).flatten(0, 1))

    for part, latent in layer.w_dkv.named_parameters():
        shape = (layer.latent_dim + layer.rope_dim, *latent.shape[1:])
        rows = source.take(f"kv_a_proj_with_mqa.{part}", shape).split([layer.latent_dim, layer.rope_dim])
        source.put(latent, rows[0])
        source.put(getattr(layer.w_kr, part), source.paired(rows[1], 0))
    source.fill(layer.kv_norm, "kv_a_layernorm")
    width = layer.nope_dim + layer.head_dim_v
    by_head = source.take("kv_b_proj.weight", (heads * width, layer.latent_dim)).unflatten(0, (heads, width))
    w_uk, w_uv = by_head.transpose(1, 2).split([layer.nope_dim, layer.head_dim_v], 2)  # [H, d_c, …]
    source.put(layer.w_uk, w_uk)
    source.put(layer.w_uv, w_uv)
    source.fill(layer.w_o, "o_proj")
    source.finish()
    return layer


class _Checkpoint:
    """The entries below a prefix, taken one by one with their shapes checked; written when none is missing or left over."""

    def __init__(self, layer: nn.Module, wanted: type, state_dict: Mapping[str, Tensor], prefix: str, pairing: str) -> None:
        if not isinstance(layer, wanted):
            raise TypeError(f"layer must be a {wanted.__name__}, got {type(layer).__name__}")
        if prefix and not prefix.endswith("."):
            raise ValueError(f"prefix must end with a full stop, or layer 1 would also mean layer 10, got {prefix!r}")
        check_pairing(pairing)
        self.entries, self.prefix = state_dict, prefix
        self.change = {
            ("halves", "interleaved"): to_interleaved,
            ("interleaved", "halves"): to_halves,
        }.get((pairing, layer.pairing))
        # Tables of frequencies, which old checkpoints hold, follow from the layer's base.
        self.left = {key for key in state_dict if key.startswith(prefix) and not key.endswith("rotary_emb.inv_freq")}
        self.writes: list[tuple[Tensor, Tensor]] = []

    def paired(self, rows: Tensor, dim: int) -> Tensor:
        """Rotary rows as the layer pairs them."""
        return rows if self.change is None else self.change(rows, dim=dim)

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        key = self.prefix + name
        if key not in self.entries:
            there = ", ".join(sorted(self.left)[:6]) or "nothing"
            raise KeyError(
                f"state_dict has no {key!r}, which this layer needs; under the prefix {self.prefix!r} it has {there}"
            )
        self.left.discard(key)
        value = self.entries[key].detach()
        if tuple(value.shape) != tuple(shape):
            raise ValueError(f"{key} must have shape {list(shape)} for this layer, got {list(value.shape)}")
        if value.dtype.itemsize < 2:
            raise ValueError(f"{key} is {value.dtype}: multiply it by its scales first")
        return value

    def put(self, parameter: nn.Parameter, value: Tensor) -> None:
        self.writes.append((parameter, value))

    def fill(self, module: nn.Module, name: str) -> None:
        """All parameters of a module whose layout is the checkpoint's."""
        for part, value in module.named_parameters():
            self.put(value, self.take(f"{name}.{part}", value.shape))

    def finish(self) -> None:
        if self.left:
            raise ValueError(f"state_dict has entries that this layer has no place for: {', '.join(sorted(self.left))}")
        with torch.no_grad():
            for parameter, value in self.writes:
                parameter.copy_(value)
