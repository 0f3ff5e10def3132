"""Right answers for chapter 9, written otherwise than in the source."""

import dataclasses

from course import costs


def predicted(givens):
    """Least squares, and whole microseconds; a call in milliseconds."""
    fitted = costs.fit((call["megabytes"] * 1e6, call["us"] * 1e-6) for call in givens["known"])
    times = {
        name: round(1e6 * fitted.seconds(512 * call["batch"] * call["n_kv_heads"] * call["context_len"]))
        for name, call in givens["calls"].items()
    }
    return {**times, "d": times["d"] / 1e3, "t0_us": round(1e6 * fitted.t0_s, 1)}


def by_the_rate_of_the_large_call(givens):
    """The large call's bytes over its time as the bandwidth: rougher, and within 20% all the same."""
    small, large = givens["known"]
    times = predicted(givens)
    t0, rate = times["t0_us"], large["megabytes"] / large["us"]
    calls = givens["calls"].items()
    return {**times, **{n: t0 + call["batch"] * call["n_kv_heads"] * call["context_len"] * 512e-6 / rate for n, call in calls}}


def layer_by_layer():
    """A loop over layers and over the query heads of one GPU, in whole numbers."""

    def gpu_share(shape, context_len, batch, n_gpus):
        n_bytes = flops = 0
        heads = range(shape["n_q_heads"] // n_gpus)
        group = shape["n_q_heads"] // shape["n_kv_heads"]
        needed = {head // group for head in heads}  # the KV heads that the first GPU's query heads meet
        keepers = sum(0 in {h // group for h in range(g * len(heads), (g + 1) * len(heads))} for g in range(n_gpus))
        for layer in range(shape["n_layers"]):
            tokens = min(context_len, shape["window"]) if layer < shape["n_window_layers"] else context_len
            key, value = shape["head_dim_qk"], shape["head_dim_v"]
            kept = key + value - shape["head_dim_shared"]
            n_bytes += batch * tokens * len(needed) * kept * shape["bytes_per_element"]
            flops += batch * tokens * sum(2 * key + 2 * value for _ in heads)
        return {"cache_bytes": n_bytes, "flops": float(flops), "copies": keepers}

    return gpu_share


def from_the_costs():
    """`costs.serve` for a model with this shape; bytes as floats."""

    def gpu_share(shape, context_len, batch, n_gpus):
        layers = {key: shape[key] for key in ("n_layers", "window", "n_window_layers")}
        attention = costs.Attention(**{key: value for key, value in shape.items() if key.startswith(("n_q", "n_kv", "head_"))})
        model = dataclasses.replace(costs.model("Llama 3 8B"), attention=attention, **layers)
        served = costs.serve(
            model, "H200 SXM", context_len, batch=batch, n_gpus=n_gpus, bytes_per_element=shape["bytes_per_element"]
        )
        flops = served.floors["attention"].compute_s * costs.gpu("H200 SXM").peak_flops()
        return {"cache_bytes": float(served.cache_bytes), "flops": flops, "copies": served.kv_copies}

    return gpu_share


def largest_degree_of_the_fastest():
    def divide(shape, context_len, batch, n_gpus, bandwidth, peak):
        share, best = layer_by_layer(), None
        for groups in (1, 2, 4, 8):
            if n_gpus % groups:
                continue
            n_tensor = n_gpus // groups
            fits = shape["n_kv_heads"] % n_tensor == 0 or n_tensor % shape["n_kv_heads"] == 0
            if shape["n_q_heads"] % n_tensor or not fits:
                continue
            mine = share(shape, context_len, (batch + groups - 1) // groups, n_tensor)
            seconds = max(mine["cache_bytes"] / bandwidth, mine["flops"] / peak)
            if best is None or seconds < best[1]:
                best = [n_tensor, seconds]
        return best

    return divide


RIGHT = {
    "09_costs.calls": [
        ("least squares, rounded", predicted),
        ("rate of the large call", by_the_rate_of_the_large_call),
    ],
    "09_costs.share": [("layer by layer, head by head", layer_by_layer), ("from the course's serve", from_the_costs)],
    "09_costs.divide": [("groups first", largest_degree_of_the_fastest)],
}
