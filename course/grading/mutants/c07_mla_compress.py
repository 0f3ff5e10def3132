"""Wrong versions for chapter 7."""

from . import Mutant

LAYER, REFERENCE = "course/layers/mla.py", "kernels/reference.py"

MUTANTS = (
    Mutant(
        name="mla-without-rotary-part",
        task="07_mla_compress.repair",
        file=REFERENCE,
        old="""    shared = k_rope.double()[:, None].expand(-1, n_q_heads, -1, -1)
    q = torch.cat([q_nope, q_rope], -1)
    return attention(q, torch.cat([keys, shared], -1), values, causal=causal, scale=scale)""",
        new="""    return attention(q_nope, keys, values, causal=causal, scale=scale)""",
        story="'MLA caches the latent' is how people put it, and 512 is a rounder number than 576. Nothing crashes: every "
        "token just forgets where the others stand.",
        source="the course's list of plausible wrong answers (a cache that forgets the rotary part, 512 for 576)",
        given=True,
    ),
    Mutant(
        name="mla-scale-of-the-content",
        task="07_mla_compress.repair",
        file=REFERENCE,
        old="return attention(q, torch.cat([keys, shared], -1), values, causal=causal, scale=scale)",
        new="return attention(q, torch.cat([keys, shared], -1), values, causal=causal, scale=keys.shape[-1] ** -0.5)",
        story="A factor taken from a width that happened to be at hand: from the content part alone, or from hidden size over "
        "heads. The model answers a little worse, or begins to repeat itself; no error is raised.",
        source="AI-Hypercomputer/maxtext issue 1370; NVIDIA/Megatron-LM issues 1429 and 1501",
        given=True,
    ),
    Mutant(
        name="mla-scale-of-the-record",
        task="07_mla_compress.repair",
        file=REFERENCE,
        old="""    q = torch.cat([q_nope, q_rope], -1)
    return attention(q, torch.cat([keys, shared], -1), values, causal=causal, scale=scale)""",
        new="""    q = torch.cat([q_nope, q_rope], -1)
    scale = (latent.shape[-1] + k_rope.shape[-1]) ** -0.5
    return attention(q, torch.cat([keys, shared], -1), values, causal=causal, scale=scale)""",
        story="The absorbed width, 576 at DeepSeek's sizes, where the un-absorbed head's 192 belongs: scores come out 1.73 "
        "times too small and every softmax too flat.",
        source="ollama/ollama PR 13893 (merged)",
        given=True,
    ),
    Mutant(
        name="mla-rotary-key-unturned",
        task="07_mla_compress.layer",
        file=LAYER,
        old="self._turn(self.w_kr(x), positions, per_head=False)",
        new="self.w_kr(x)",
        story="The query is rotated and the cached key is not, so scores depend on more than the distance.",
        source="a plausible slip: the key is written to the cache before the rotation that was meant to happen on the way out",
    ),
    Mutant(
        name="mla-latent-before-its-norm",
        task="07_mla_compress.layer",
        file=LAYER,
        old="return self.kv_norm(self.w_dkv(x)), self._turn",
        new="return self.w_dkv(x), self._turn",
        story="Deployed models normalise the latent and keep it after the norm. Whoever reads the paper's equations alone "
        "leaves the norm out, and a checkpoint then speaks nonsense.",
        source="DeepSeek-V3's inference code beside equations 9 to 19 of DeepSeek-V2 (2405.04434), which show no norm",
    ),
    Mutant(
        name="mla-layer-scale-of-the-content",
        task="07_mla_compress.layer",
        file=LAYER,
        old="softmax_scale(scale, nope_dim + rope_dim)",
        new="softmax_scale(scale, nope_dim)",
        story="The layer's default factor comes from the content part: the rotary part of the head was added later and the "
        "width under the root was not.",
        source="NVIDIA/TensorRT-LLM PR 19112; AI-Hypercomputer/maxtext issue 1370 (scales from other widths)",
    ),
    Mutant(
        name="mla-positions-from-zero",
        task="07_mla_compress.layer",
        file="course/layers/gqa.py",
        old="return new if cache is None else cache.seq_lens.long()[:, None] + new",
        new="return new",
        story="Each chunk of a prompt counts its positions from zero again. A prompt in one piece is right.",
        source="a plausible slip: chunked prefill added to code that had only seen whole prompts",
    ),
    Mutant(
        name="mla-values-of-other-tokens",
        task="07_mla_compress.layer",
        file=LAYER,
        old='v = torch.einsum("bnc,hcd->bhnd", latent, self.w_uv)',
        new='v = torch.einsum("bnc,hcd->bhnd", latent.flip(1), self.w_uv)',
        story="Keys and values of different tokens are paired. Weights are right and each meets another token's value.",
        source="a plausible slip in code that stores the cache newest first",
    ),
)
