"""Chapter 3b: what partial gradients cost, a backward kernel repaired, the sum over a group inside a program."""

from ... import costs
from ..draw import Draw
from ..properties import gradients
from ..properties.predictions import number
from ..tasks import Assignment, Task


def givens(draw: Draw) -> dict:
    """A layer with keys wider than values, as MLA's expanded form has them, and several sequences."""
    n_q_heads, n_kv_heads = draw.choice([(32, 8), (32, 4), (48, 8), (40, 8), (28, 4), (64, 4)])
    head_dim_qk, head_dim_v = draw.choice([(192, 128), (96, 64), (128, 64)])
    return {
        "n_q_heads": n_q_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim_qk": head_dim_qk,
        "head_dim_v": head_dim_v,
        "n_tokens": draw.choice([4096, 6144, 8192]),
        "batch": draw.choice([3, 9, 11]),
    }


def _layer(given: dict) -> costs.Attention:
    return costs.Attention.gqa(given["n_q_heads"], given["n_kv_heads"], given["head_dim_qk"], given["head_dim_v"])


def _bytes(given: dict, **also) -> float:
    return costs.gradient_bytes(_layer(given), given["n_tokens"], batch=given["batch"], **also)


def _partial(given: dict) -> float:
    return _bytes(given, per_query_head=True)


def _result(given: dict) -> float:
    return _bytes(given, bytes_per_element=2)


def _products(given: dict) -> float:
    n = given["n_tokens"]
    return costs.backward_flops(_layer(given), n, n) / costs.attention_flops(_layer(given), n, n)


def _widths(given: dict) -> tuple[int, int]:
    return given["head_dim_qk"], given["head_dim_v"]


_WRITTEN_AND = (
    "partials are written: what happens to them then? And has an element of theirs as many bytes as one of the result's?"
)
_UNITS = {"KiB": costs.KiB, "MiB": costs.MiB, "GiB": costs.GiB, "MB": 1e6, "GB": 1e9}

PREDICTED = (
    number(
        "partial_bytes", "bytes of dK and dV for every query head, float32", right=_partial, unit="bytes", other_units=_UNITS,
        traps={
            "one for each query head: how many heads did you count?": _bytes,
            "did you count dV as well?": lambda g: _partial(g) * g["head_dim_qk"] / sum(_widths(g)),
            "is dV as wide as dK?": lambda g: _partial(g) * 2 * g["head_dim_qk"] / sum(_widths(g)),
            "for how many sequences?": lambda g: _partial(g) / g["batch"],
            "partials are float32": lambda g: _partial(g) / 2,
        },
    ),
    number(
        "result_bytes", "bytes of dK and dV, in 16 bits", right=_result, unit="bytes", other_units=_UNITS,
        traps={
            "an element of 16 bits is how many bytes?": _bytes,
            "how many heads do keys have?": lambda g: _partial(g) / 2,
            "for how many sequences?": lambda g: _result(g) / g["batch"],
        },
    ),
    number(
        "traffic", "bytes moved with partials, over the bytes of the result",
        right=lambda g: (2 * _partial(g) + _result(g)) / _result(g), tolerance=0,
        traps={
            _WRITTEN_AND: lambda g: (_partial(g) + _result(g)) / _result(g),
            "and the result, is it not written?": lambda g: 2 * _partial(g) / _result(g),
            "this is the group size": lambda g: g["n_q_heads"] / g["n_kv_heads"],
        },
    ),
    number(
        "products", "FLOPs of the five products of the backward pass, over those of the forward pass", right=_products,
        traps={
            "that is so where keys and values are equally wide": lambda g: 2.5,
            "the question is for the five products; a kernel may do some of them twice":
                lambda g: (4 * _widths(g)[0] + 3 * _widths(g)[1]) / sum(_widths(g)),
            "which of the five are as wide as a key, and which as a value?":
                lambda g: (2 * _widths(g)[0] + 3 * _widths(g)[1]) / sum(_widths(g)),
        },
    ),
)  # fmt: skip

ASSIGNMENT = Assignment(
    name="03b_backward",
    title="Backward",
    minutes=75,
    objectives=(
        "compute the bytes that partial gradients of shared heads cost",
        "find a fault in a backward kernel by groups larger than one, strides that differ and a gradient of lse",
        "sum the gradients of a group inside one program, and show that nothing large is put into memory",
        "derive the gradients of attention from two numbers a row",
    ),
    tasks=(
        Task("predict", "predict", "Predict: partial gradients", "predicted", tuple((each, 1) for each in PREDICTED)),
        Task(
            "kernel",
            "fix",
            "Mend the backward pass",
            "mended.backward.attention_backward",
            (
                (gradients.group_sum(gradients.all_three), 1),
                (
                    gradients.definition(
                        "definition",
                        "widths that differ, more keys than queries and fewer",
                        gradients.all_three,
                        lengths=((5, 17), (17, 9), (9, 5)),
                        widths=((16, 24), (24, 16)),
                    ),
                    1,
                ),
                (gradients.strides, 1),
                (gradients.through_lse(gradients.all_three), 1),
            ),
            shipped=lambda kernels: kernels.backward.attention_backward,
        ),
        Task(
            "group",
            "build",
            "The sum inside the program",
            "dk_dv",
            (
                (gradients.group_sum(gradients.keys_and_values, n=2), 2),
                (
                    gradients.nothing_large(
                        gradients.keys_and_values, "no partials", "no tensor of H_q x N x d elements is put into memory"
                    ),
                    2,
                ),
                (
                    gradients.definition(
                        "other lengths",
                        "lengths that fill no tile, and rows that see no key",
                        gradients.keys_and_values,
                        lengths=((5, 18), (9, 5), (1, 17)),
                    ),
                    1,
                ),
            ),
            hidden=("other lengths",),
        ),
        Task(
            "gradients",
            "stretch",
            "All gradients, and no attention matrix",
            "gradients",
            (
                (
                    gradients.definition(
                        "definition",
                        "dq, dk and dv are those of automatic differentiation",
                        gradients.in_torch,
                        lengths=((7, 12), (12, 7)),
                        widths=((16, 24), (24, 16)),
                    ),
                    1,
                ),
                (gradients.through_lse(gradients.in_torch), 1),
                (
                    gradients.nothing_large(
                        gradients.in_torch, "no attention matrix", "nothing of H_q x M x N elements is made"
                    ),
                    2,
                ),
            ),
        ),
    ),
    givens=givens,
    rubric=(
        (1, "counts programs of both ways for the case, and says which leaves SMs idle"),
        (1, "says why programs of a causal call are unequally long"),
        (1, "compares the traffic that the sum inside saves with the time of the products"),
        (1, "weighs memory, and the same bits on every run, against the time"),
    ),
)
