"""Wrong versions for chapter 3: the mask's corner, the running softmax, the base of lse, tiles that need not be read."""

from . import Mutant

_TASK = "03_full_sequence.kernel"

MUTANTS = (
    Mutant(
        name="kernel-top-left",
        task=_TASK,
        file="kernels/forward.py",
        old="    # Bottom-right alignment: the last query sees the last key, so a cached prefix (kv_len > q_len) is "
        "seen by all.\n"
        "    if CAUSAL:\n"
        "        visible = tl.minimum(rows + 1 + kv_len - q_len, kv_len)",
        new="    if CAUSAL:\n        visible = tl.minimum(rows + 1, kv_len)",
        story="The triangle hangs from the top left corner. For M = N it is the same, so square tests pass; a decoded "
        "token over a "
        "cache then sees the first key only. FlashAttention was aligned so until version 2.1, PyTorch's "
        "`is_causal=True` still is.",
        source="Dao-AILab/flash-attention issue 282; pytorch/pytorch issue 108108",
        given=True,
    ),
    Mutant(
        name="lse-in-base-2",
        task=_TASK,
        file="kernels/online_softmax.py",
        old='lse = tl.where(empty, float("-inf"), (m + tl.log2(total)) * LN_2)',
        new='lse = tl.where(empty, float("-inf"), m + tl.log2(total))',
        story="Exponentials are taken in base 2 inside, and lse left the kernel without its factor ln 2. Outputs are "
        "right. What "
        "merges partial results by lse is then off by up to a tenth, without an error anywhere.",
        source="vllm-project/vllm pull request 28840; flashinfer-ai/flashinfer issue 2113",
        given=True,
    ),
    Mutant(
        name="empty-row-is-nan",
        task=_TASK,
        file="kernels/online_softmax.py",
        old="    # A row that still has no key keeps m = -inf; shifting by it would compute -inf - -inf.\n"
        '    shift = tl.where(m_new == float("-inf"), 0.0, m_new)',
        new="    shift = m_new",
        story="A row that has seen no key yet has m = -inf, and -inf - (-inf) is NaN: with more queries than keys, "
        "gradients and "
        "outputs of the first rows were NaN. (Others return something finite there, which is no better for a merge.)",
        source="Dao-AILab/flash-attention issue 443; flashinfer-ai/flashinfer issue 4452",
        given=True,
    ),
    Mutant(
        name="kernel-head-by-modulo",
        task=_TASK,
        file="kernels/forward.py",
        old="    kv_head = head // group_size",
        new="    kv_head = head % (n_q_heads // group_size)",
        story="Query heads take KV heads in turn, 0, 1, 0, 1, …, where the checkpoint lets neighbours share. Right for "
        "MHA and for "
        "MQA, which is what a port is tried with first.",
        source="ekzhang/jax-js pull request 180; onnx/onnx pull request 7274 (there as `tile` for `repeat`)",
        given=True,
    ),
    Mutant(
        name="hidden-tiles-loaded",
        task=_TASK,
        file="kernels/forward.py",
        old="        stop = tl.minimum(all_visible + ROWS - 1, kv_len)",
        new="        stop = kv_len",
        story="The walk goes to the last key and the mask hides what it should not have loaded. The result is right "
        "and the work "
        "nearly twice as much; no test of outputs finds it.",
        source="no incident: what chapter 3 measures as a factor of 1.97 at 8,192 tokens",
        given=True,
    ),
    Mutant(
        name="accumulator-not-rescaled",
        task=_TASK,
        file="kernels/attend.py",
        old="acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)",
        new="acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)",
        story="A larger score in a later tile shifts the reference point, and the old accumulator was not shifted "
        "along. With one "
        "tile, or with the largest score in the first, nothing shows.",
        source="no incident: the line of Milakov and Gimelshein 2018, section 3, that is easiest to forget",
        given=True,
    ),
    Mutant(
        name="sum-not-rescaled",
        task=_TASK,
        file="kernels/online_softmax.py",
        old="    return m_new, l * rescale + tl.sum(p, 1), rescale, p",
        new="    return m_new, l + tl.sum(p, 1), rescale, p",
        story="The same for the sum of the weights: rows no longer add up to 1 once a later tile holds the largest score.",
        source="no incident: as above",
    ),
    Mutant(
        name="tail-of-the-keys-forgotten",
        task=_TASK,
        file="kernels/attend.py",
        old="        scores = tl.dot(q_tail, tl.trans(k_tail), scores, input_precision=PRECISION)",
        new="        scores = scores",
        story="A width that is no power of two lies in two blocks of columns, and only the first is scored. Kernels "
        "that silently "
        "used the first 64 columns of a wider head existed.",
        source="triton-lang/triton issue 621",
    ),
)
