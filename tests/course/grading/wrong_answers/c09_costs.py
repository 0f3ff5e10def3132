"""Plausible wrong answers for chapter 9 that are no edit of shipped code."""

from course import costs
from tests.course.grading.right_answers import c09_costs as right


def _predicted(n_bytes, t0=None):
    def answer(givens):
        fitted = costs.fit((call["megabytes"] * 1e6, call["us"] * 1e-6) for call in givens["known"])
        times = {name: 1e6 * fitted.seconds(n_bytes(call)) for name, call in givens["calls"].items()}
        return {**times, "t0_us": 1e6 * fitted.t0_s if t0 is None else t0(givens)}

    return answer


def _bytes(call):
    return 512 * call["batch"] * call["n_kv_heads"] * call["context_len"]


def _share(**slips):
    def gpu_share(shape, context_len, batch, n_gpus):
        shape = {**shape, **{key: slip(shape) for key, slip in slips.items() if key in shape}}
        found = right.layer_by_layer()(shape, context_len, 1 if "batch" in slips else batch, n_gpus)
        return {**found, **{key: slips[key](found, shape, n_gpus) for key in found if key in slips}}

    return lambda: gpu_share


def _divide(choose, time=max):
    def divide(shape, context_len, batch, n_gpus, bandwidth, peak):
        n_tensor = choose(shape, n_gpus)
        share = right.layer_by_layer()(shape, context_len, -(-batch * n_tensor // n_gpus), n_tensor)
        return n_tensor, time((share["cache_bytes"] / bandwidth, share["flops"] / peak))

    return lambda: divide


WRONG = {
    "09_costs.calls": [
        ("keys alone", _predicted(lambda call: _bytes(call) / 2)),
        ("query heads", _predicted(lambda call: _bytes(call) * call["n_q_heads"] / call["n_kv_heads"])),
        ("one sequence", _predicted(lambda call: _bytes(call) / call["batch"])),
        ("float32", _predicted(lambda call: 2 * _bytes(call))),
        ("the small call's time as the fixed one", _predicted(_bytes, lambda g: g["known"][0]["us"])),
    ],
    "09_costs.share": [
        ("MHA for every model", _share(n_kv_heads=lambda shape: shape["n_q_heads"])),
        ("no value", _share(head_dim_v=lambda shape: 0)),
        ("value inside the key counted twice", _share(head_dim_shared=lambda shape: 0)),
        ("shared part not multiplied", _share(flops=lambda found, shape, n: found["flops"] / 2)),
        ("no windows", _share(n_window_layers=lambda shape: 0)),
        ("a window in every layer", _share(n_window_layers=lambda shape: shape["n_layers"] if shape["window"] else 0)),
        ("no batch", _share(batch=None)),
        ("two bytes always", _share(bytes_per_element=lambda shape: 2)),
        ("bytes divided by the GPUs", _share(cache_bytes=lambda found, shape, n: found["cache_bytes"] / found["copies"])),
        ("copies on every GPU", _share(copies=lambda found, shape, n: n)),
        ("never a copy", _share(copies=lambda found, shape, n: 1)),
    ],
    "09_costs.divide": [
        (
            "heads as far as they go",
            _divide(lambda shape, n: n if n % shape["n_kv_heads"] == 0 or shape["n_kv_heads"] % n == 0 else 1),
        ),
        ("sequences always", _divide(lambda shape, n: 1)),
        ("the two times added", _divide(lambda shape, n: 1, sum)),
    ],
}
