"""Wrong versions for chapter 2: which head reads which, what is copied, what a conversion keeps."""

from . import Mutant

MUTANTS = (
    Mutant(
        name="heads-tiled",
        task="02_sharing_heads.heads",
        file="kernels/reference.py",
        old="    q, k, v = q.double(), k.double(), v.double()",
        new="    q, k, v = q.double(), *(x.double().repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))",
        story="KV heads were laid out 0, 1, 0, 1, … for query heads that wanted 0, 0, 1, 1, …: `tile`, or torch's "
        "`repeat`, does "
        "the former and `repeat_interleave` the latter. The shapes agree and nothing fails. A draft of ONNX's own "
        "definition of "
        "attention did it too, so whoever compared with the definition agreed with the fault.",
        source="ekzhang/jax-js pull request 180; onnx/onnx pull request 7274",
        given=True,
    ),
    Mutant(
        name="heads-come-out-by-member",
        task="02_sharing_heads.heads",
        file="kernels/reference.py",
        old="    return out.reshape(batch, n_q_heads, q_len, head_dim_v), lse.reshape(batch, n_q_heads, q_len)",
        new="    return out.transpose(1, 2).reshape(batch, n_q_heads, q_len, head_dim_v), lse.reshape(batch, n_q_heads, q_len)",
        story="The two axes (KV head, member of the group) are folded in the other order on the way out, so W_O "
        "multiplies heads "
        "with the rows of other heads. With one KV head, or as many as query heads, it is right.",
        source="no incident: what a reshape after the wrong transpose does",
        given=True,
    ),
    Mutant(
        name="groups-interleaved",
        task="02_sharing_heads.conversion",
        file="course/layers/convert.py",
        old="    heads = weight.detach().unflatten(0, (n_kv_heads, n_heads // n_kv_heads, -1))",
        new="    heads = weight.detach().unflatten(0, (n_heads // n_kv_heads, n_kv_heads, -1)).transpose(0, 1)",
        story="Heads 0, 2, 4, … are averaged into the first new head, and heads 1, 3, 5, … into the second. The kernels let "
        "neighbours share. A conversion for Megatron that averaged groups was reported as working badly; its report "
        "does not say "
        "why, and the grouping is the first thing to look at.",
        source="NVIDIA/Megatron-LM issue 480 (the report; the fault here is a plausible one)",
        given=True,
    ),
    Mutant(
        name="pooling-keeps-the-first-heads",
        task="02_sharing_heads.conversion",
        file="course/layers/convert.py",
        old="        pooled = wide.mean(1)",
        new="        pooled = heads.flatten(0, 1)[:n_kv_heads].to(wide.dtype)",
        story="The first H_kv heads of the checkpoint are kept and the others dropped. Ainslie et al. compare this "
        "with the mean: "
        "it starts worse, and the keys that most groups lose are simply gone.",
        source="Ainslie et al. 2023 (2305.13245), section 3.3, as a wrong version",
        given=True,
    ),
    Mutant(
        name="biases-left-behind",
        task="02_sharing_heads.conversion",
        file="course/layers/convert.py",
        old="            for name, value in many.named_parameters():",
        new='            for name, value in (("weight", many.weight),):',
        story="The weights are pooled and the biases keep their fresh random numbers. Llama has no biases, so the conversion "
        "passes its tests; Qwen2 has them on q, k and v.",
        source="no incident: chapter 2, 'Loading a checkpoint', on biases that go unnoticed",
        given=True,
    ),
    Mutant(
        name="values-from-keys",
        task="02_sharing_heads.conversion",
        file="course/layers/convert.py",
        old="((layer.w_k, few.w_k), (layer.w_v, few.w_v))",
        new="((layer.w_k, few.w_k), (layer.w_k, few.w_v))",
        story="A line was copied for V and one name in it not changed. Shapes agree because keys and values are equally wide.",
        source="no incident: the commonest slip of a copied line",
    ),
    Mutant(
        name="definition-top-left",
        task="02_sharing_heads.heads",
        file="kernels/reference.py",
        old="j > i + kv_len - q_len, -torch.inf",
        new="j > i, -torch.inf",
        story="The mask starts at the top left, so with a cached prefix a new token sees the first keys only. PyTorch's "
        "`is_causal=True` is aligned so, and users who had a cache were surprised.",
        source="pytorch/pytorch issue 108108; Dao-AILab/flash-attention issue 282",
        given=True,
    ),
)
