"""Wrong versions for chapter 3b: gradients of a group, strides, the two numbers of a row."""

from . import Mutant

_TASK = "03b_backward.kernel"
_FILE = "kernels/backward.py"

MUTANTS = (
    Mutant(
        name="dk-of-the-last-part",
        task=_TASK,
        file=_FILE,
        old="            out.copy_(parts.sum(2))",
        new="            out.copy_(parts[:, :, -1])",
        story="Of the programs that share a group the last one's partial is what remains, so a shared key learns from some of "
        "its G readers only. With one head a group it is right, and the old tests pass. Levanter's port to shared heads lacked "
        "the sum over the group in another way, and found it by its shapes.",
        source="marin-community/levanter pull request 449 (the missing sum); chapter 3b for the overwriting",
        given=True,
    ),
    Mutant(
        name="strides-of-o-for-do",
        task=_TASK,
        file=_FILE,
        old="            _strides(out), _strides(d_out), d_lse.stride(),",
        new="            _strides(out), _strides(out), d_lse.stride(),",
        story="dO is read with the strides of O. The gradient of out.sum() is one number with strides of 0, that of a "
        "transposed "
        "output lies transposed: the kernel reads what happens to lie there.",
        source="Dao-AILab/flash-attention issue 355; ROCm/aotriton issue 236",
        given=True,
    ),
    Mutant(
        name="gradients-by-modulo",
        task=_TASK,
        file=_FILE,
        old="        head = (part * members + member).to(tl.int64)",
        new="        head = (part % splits * members + member) * (n_parts // splits) + kv_head",
        story="The forward pass lets neighbours share a KV head, the backward pass takes every H_kv-th head. A "
        "sparse-attention "
        "kernel disagreed with itself like this: its dK/dV kernel split the head's number by another count than the other two.",
        source="XunhaoLai/native-sparse-attention-triton issue 27",
        given=True,
    ),
    Mutant(
        name="delta-forgotten",
        task=_TASK,
        file=_FILE,
        old="    return p, p * (dp - delta)",
        new="    return p, p * dp",
        story="The softmax's gradient without the term that makes a row's entries add up to 0.",
        source="no incident: equation 3b's bracket, forgotten",
        given=True,
    ),
    Mutant(
        name="gradient-of-lse-added",
        task=_TASK,
        file=_FILE,
        old="tl.sum(do.to(tl.float32) * o.to(tl.float32), 1) - tl.load(d_lse",
        new="tl.sum(do.to(tl.float32) * o.to(tl.float32), 1) + tl.load(d_lse",
        story="lse is hardly ever differentiated, so a wrong sign in front of its gradient lives long: only who trains "
        "through a "
        "merge of partial results meets it.",
        source="no incident: the sign of chapter 3b's last derivation",
        given=True,
    ),
    Mutant(
        name="dk-scale-in-base-2",
        task=_TASK,
        file=_FILE,
        old="    scale = scale_log2 * LN_2\n    store_blocks(dk, slot",
        new="    scale = scale_log2\n    store_blocks(dk, slot",
        story="log2(e) is folded into the scale for the exponentials, and was left in dK, which is 1.44 times too "
        "large in every "
        "element. An optimiser that normalises gradients hides a constant factor.",
        source="no incident: the same mixed bases as in vllm-project/vllm pull request 28840, in the backward pass",
    ),
    Mutant(
        name="gradients-top-left",
        task=_TASK,
        file=_FILE,
        old="        return tl.minimum(rows + 1 + kv_len - q_len, kv_len)",
        new="        return tl.minimum(rows + 1, kv_len)",
        story="The forward pass was moved to the bottom right and the backward pass forgotten, or the other way round.",
        source="Dao-AILab/flash-attention issue 282 (the move); no incident for the half-done one",
    ),
)
