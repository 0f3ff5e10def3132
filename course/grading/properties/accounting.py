"""Bytes, FLOPs and floors of a decode step, of a whole model and of one GPU's share.

Shapes have H_kv other than H_q and 1, d_qk other than d_v, batches above 1 and, for times, both terms near the ridge: elsewhere
a forgotten value, batch or head count hides, and a sum is hardly more than the larger term.
"""

import dataclasses
import math
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

from ... import costs
from .. import judge
from ..answers import Answer
from ..draw import Draw
from ..judge import Wrong
from ..tasks import named

NEAR_THE_RIDGE = (
    ("DeepSeek-V3", "H100 SXM"),
    ("DeepSeek-V3", "H200 SXM"),
    ("DeepSeek-V2", "H200 SXM"),
    ("Kimi K2", "H100 SXM"),
)
DENSE = ("Llama 3 8B", "Llama 2 70B", "Llama 3.1 405B")


def _same(got, wanted: float, what: str, hint: str, within: float = 0.01) -> None:
    value = judge.number(got, what)
    if abs(value - wanted) > within * abs(wanted):
        raise Wrong(f"{what}: expected {wanted:,.6g}, got {value:,.6g}. {hint}")


# --- the time model: the package course.costs, or a copy with definitions replaced ---


def _floors(answer: Answer, model: str, gpu: str, context_len: int, batch: int) -> dict[str, Answer]:
    """The floors of a step by part, as the answer's `decode_floors` has them."""
    found = answer.get("decode_floors")(answer.get("model")(model), context_len, gpu, batch=batch)
    return {part: found.get("get")(part) for part in ("weights", "attention")}


def _times(floor: Answer) -> tuple[float, float]:
    return floor.get("memory_s"), floor.get("compute_s")


@named("inside a kernel", "a kernel's floor is the larger of its two times, and that one is named")
def time_inside(answer: Answer, draw: Draw) -> None:
    for model, gpu in draw.some(NEAR_THE_RIDGE, 2):
        floor = _floors(answer, model, gpu, draw.integer(8_000, 60_000), draw.integer(3, 12))["attention"]
        memory, compute = _times(floor)
        hint = f"Attention of {model} on an {gpu}: bytes take {1e3 * memory:.2f} ms, products {1e3 * compute:.2f} ms"
        _same(
            floor.get("seconds"), max(memory, compute), "seconds of one kernel", f"{hint}. Do they have to wait for each other?"
        )
        if floor.get("bound") != ("compute" if compute > memory else "memory"):
            raise Wrong(f"{hint}, and the kernel was called {floor.get('bound')}-bound")


@named("one after another", "kernels that run one after another take the sum of their floors")
def time_sum(answer: Answer, draw: Draw) -> None:
    one = answer.get("floor")
    for gpu in draw.some(("A100 80GB SXM", "H100 SXM", "H200 SXM"), 2):
        kernels = [one(draw.integer(50, 90) * 1e6, 1e9, gpu), one(1e6, draw.integer(20, 60) * 1e9, gpu)]
        wanted = sum(floor.get("seconds") for floor in kernels)
        hint = "One kernel was bound by bytes, the other, which starts when it has ended, by products"
        _same(answer.get("step_floor")(kernels), wanted, "the floor of two kernels", hint)


@named("batch", "every sequence brings its own cache and its own products; the weights are read once")
def time_batch(answer: Answer, draw: Draw) -> None:
    batch, context_len = draw.integer(3, 9), draw.integer(4_000, 30_000)
    for model in draw.some(DENSE, 2):
        one, many = (_floors(answer, model, "H100 SXM", context_len, b) for b in (1, batch))
        for part, grows in (("attention", (batch, batch)), ("weights", (1, batch))):
            for before, after, factor, what in zip(
                _times(one[part]), _times(many[part]), grows, ("bytes", "products"), strict=True
            ):
                hint = f"{model}: which of weights and caches does each of the {batch} sequences have for itself?"
                _same(after / before, factor, f"{part}: time of the {what}, batch {batch} over batch 1", hint)


@named("record", "a token leaves KV heads times the widths of key and value, less what the value shares with the key")
def time_record(answer: Answer, draw: Draw) -> None:
    made = answer.get("Attention")
    n_q_heads, n_kv_heads, group = draw.choice(((24, 8, 3), (40, 8, 5), (48, 4, 12)))
    for attention, words in (
        (
            made.get("gqa")(n_q_heads, n_kv_heads, 192, 128),
            f"{n_q_heads} query heads over {n_kv_heads} KV heads, 192 and 128 wide",
        ),
        (made.get("gqa")(n_q_heads, n_kv_heads, 96), f"{n_q_heads} query heads in groups of {group}, 96 wide"),
        (made.get("mla")(n_q_heads, 512, 64), "a latent of 512, which is the value too, and a rotary key of 64"),
    ):
        shape = costs.Attention(*(attention.get(field.name) for field in dataclasses.fields(costs.Attention)))
        hint = f"{words}, {{}}. Which heads leave something behind, and how much?"
        _same(attention.get("elements_per_token"), shape.elements_per_token, "numbers a token", hint.format("one layer"))
        _same(
            attention.get("flops_per_pair"), shape.flops_per_pair, "FLOPs of a pair", hint.format("every query head multiplies")
        )
        got = answer.get("cache_bytes")(attention, 1000, batch=3, bytes_per_element=2)
        _same(got, costs.cache_bytes(shape, 1000, batch=3), "bytes of 3 sequences of 1,000 tokens", hint.format("bf16"))


@named("windows", "a layer with a window stops growing there, and the others do not")
def time_windows(answer: Answer, draw: Draw) -> None:
    for name in ("Gemma 3 27B", "Mistral 7B v0.1"):
        short, long = 512, draw.integer(20_000, 90_000)
        model = costs.model(name)
        times = [_times(_floors(answer, name, "H200 SXM", tokens, 1)["attention"]) for tokens in (short, long)]
        rights = (model.cache_bytes(long) / model.cache_bytes(short), model.decode_flops(long) / model.decode_flops(short))
        for before, after, right, what in zip(*times, rights, ("bytes", "products"), strict=True):
            hint = "Which layers see all tokens, and how many are there?"
            _same(after / before, right, f"{name}: time of the {what} at {long:,} tokens over that at {short}", hint)


# --- one GPU's share: a function of a shape ---

KEYS = ("n_layers", "n_q_heads", "n_kv_heads", "head_dim_qk", "head_dim_v", "head_dim_shared", "window", "n_window_layers")


def share_of(package: ModuleType) -> Callable:
    """The share of one GPU by a package ``course``, as the function that chapter 9 asks for."""

    def gpu_share(shape, context_len, batch, n_gpus):
        arithmetic = package.costs
        heads = {key: shape[key] for key in KEYS[1:6]}
        whole = arithmetic.Attention(**heads)
        layers = {key: shape[key] for key in ("n_layers", "window", "n_window_layers")}
        part = dataclasses.replace(
            arithmetic.model("Llama 3 8B"), attention=arithmetic.split_heads(whole, n_gpus), **layers
        )  # any model: every field that counts is replaced
        return {
            "cache_bytes": part.cache_bytes(context_len, batch, shape["bytes_per_element"]),
            "flops": part.decode_flops(context_len, batch),
            "copies": arithmetic.kv_copies(whole, n_gpus),
        }

    return gpu_share


RIGHT_SHARE = share_of(SimpleNamespace(costs=costs))


def _shape(draw: Draw, n_q_heads: int, n_kv_heads: int, latent: bool = False, **other) -> dict:
    head_dim_qk, head_dim_v, head_dim_shared = 128, 128, 0
    if latent:
        head_dim_v, rope_dim = draw.choice(((512, 64), (256, 32), (448, 64)))
        head_dim_qk, head_dim_shared = head_dim_v + rope_dim, head_dim_v
    return {
        "n_layers": draw.integer(24, 60),
        "n_q_heads": n_q_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim_qk": head_dim_qk,
        "head_dim_v": head_dim_v,
        "head_dim_shared": head_dim_shared,
        "window": None,
        "n_window_layers": 0,
        "bytes_per_element": draw.choice((1, 2)),
        **other,
    }


def _share(answer: Answer, shape: dict, context_len: int, batch: int, n_gpus: int) -> dict[str, float]:
    keys = ("cache_bytes", "flops", "copies")
    got = answer(shape, context_len, batch, n_gpus)
    if got is None:
        raise NotImplementedError
    if not isinstance(got, dict) or not set(keys) <= set(got):
        raise Wrong(f"the function must return a dictionary with the entries {', '.join(keys)}")
    return {key: judge.number(got[key], key) for key in keys}


def _shared_out(answer: Answer, draw: Draw, shape: dict, n_gpus: int, hint: str) -> None:
    """One GPU's share, over the answer's own for a GPU that has all heads: what else may be wrong in it cancels."""
    context_len, batch = draw.integer(5_000, 90_000), draw.integer(3, 40)
    alone, part = (_share(answer, shape, context_len, batch, n) for n in (1, n_gpus))
    right_alone, right_part = (RIGHT_SHARE(shape, context_len, batch, n) for n in (1, n_gpus))
    words = f"of one of {n_gpus} GPUs, {shape['n_q_heads']} query heads over {shape['n_kv_heads']} KV heads"
    for key in ("cache_bytes", "flops"):
        _same(
            part[key] / (alone[key] or math.inf), right_part[key] / right_alone[key],
            f"{key} {words}, over {key} of a GPU alone", hint,
        )  # fmt: skip
    _same(part["copies"], right_part["copies"], f"copies {words}", hint)


@named("one GPU", "on one GPU: all KV heads, keys and values of their own widths, every sequence, every layer")
def share_whole(answer: Answer, draw: Draw) -> None:
    for n_q_heads, n_kv_heads in draw.some(((32, 8), (48, 4), (40, 40), (64, 2)), 2):
        head_dim_qk, head_dim_v = draw.choice(((192, 128), (96, 80), (128, 112)))
        shape = _shape(draw, n_q_heads, n_kv_heads, head_dim_qk=head_dim_qk, head_dim_v=head_dim_v)
        context_len, batch = draw.integer(5_000, 90_000), draw.integer(3, 40)
        got, wanted = _share(answer, shape, context_len, batch, 1), RIGHT_SHARE(shape, context_len, batch, 1)
        for key, hint in (
            ("cache_bytes", "KV heads are kept, a key and a value each"),
            ("flops", "Every query head multiplies"),
        ):
            _same(got[key], wanted[key], f"{key} of {batch} sequences of {context_len:,} tokens, {shape}", hint)


@named("divided heads", "up to H_kv GPUs divide the KV heads, and none is kept twice")
def share_divided(answer: Answer, draw: Draw) -> None:
    for n_q_heads, n_kv_heads, n_gpus in draw.some(((32, 8, 2), (64, 8, 8), (48, 4, 4), (40, 8, 4)), 2):
        hint = "Which KV heads do the query heads of this GPU need?"
        _shared_out(answer, draw, _shape(draw, n_q_heads, n_kv_heads), n_gpus, hint)


@named("copies", "beyond H_kv GPUs each keeps one KV head, and several keep the same")
def share_copies(answer: Answer, draw: Draw) -> None:
    for n_q_heads, n_kv_heads, n_gpus in draw.some(((32, 2, 8), (64, 4, 16), (48, 1, 4), (32, 4, 8)), 2):
        hint = "Can a GPU keep less than one KV head, if its query heads have to meet a key?"
        _shared_out(answer, draw, _shape(draw, n_q_heads, n_kv_heads), n_gpus, hint)


@named("latent", "a latent is key and value at once, and every GPU keeps all of it")
def share_latent(answer: Answer, draw: Draw) -> None:
    for n_q_heads, n_gpus in draw.some(((128, 8), (64, 4), (32, 2), (96, 16)), 2):
        shape = _shape(draw, n_q_heads, 1, latent=True)
        _shared_out(answer, draw, shape, n_gpus, "One record serves all heads: what of it could a GPU do without?")
        got, wanted = _share(answer, shape, 1000, 1, 1), RIGHT_SHARE(shape, 1000, 1, 1)
        words = "FLOPs a byte, value inside the key"
        hint = "What lies inside the key is multiplied like any value. Is it kept a second time?"
        _same(got["flops"] / (got["cache_bytes"] or math.inf), wanted["flops"] / wanted["cache_bytes"], words, hint)


@named("windows", "layers with a window keep and read no more than that, and the others all tokens")
def share_windows(answer: Answer, draw: Draw) -> None:
    n_layers = draw.integer(24, 60)
    windows = {"window": draw.choice((512, 1024, 4096)), "n_window_layers": draw.integer(5, n_layers - 5)}
    shape = _shape(draw, 32, 8, n_layers=n_layers)
    for context_len in (draw.integer(20_000, 90_000), draw.integer(100, 400)):
        with_windows, without = (_share(answer, {**shape, **more}, context_len, 3, 1) for more in (windows, {}))
        right, right_without = (RIGHT_SHARE({**shape, **more}, context_len, 3, 1) for more in (windows, {}))
        words = f"of {context_len:,} tokens, {n_layers} layers, {windows}, over that without windows"
        hint = "How many tokens does a layer with a window hold, of a long context and of a short one?"
        for key in ("cache_bytes", "flops"):
            got = with_windows[key] / (without[key] or math.inf)
            _same(got, right[key] / right_without[key], f"{key} {words}", hint)


# --- sequences against heads: how to divide attention over GPUs ---


def divisions(shape: dict, context_len: int, batch: int, n_gpus: int, bandwidth: float, peak: float) -> dict[int, float]:
    """Floor in seconds of attention by tensor-parallel degree, the other factor of n_gpus dividing the sequences."""
    found = {}
    for n_tensor in range(1, n_gpus + 1):
        heads = shape["n_kv_heads"] % n_tensor == 0 or n_tensor % shape["n_kv_heads"] == 0
        if n_gpus % n_tensor == 0 and shape["n_q_heads"] % n_tensor == 0 and heads:
            sequences = -(-batch // (n_gpus // n_tensor))  # the fullest group decides
            share = RIGHT_SHARE(shape, context_len, sequences, n_tensor)
            found[n_tensor] = max(share["cache_bytes"] / bandwidth, share["flops"] / peak)
    return found


def _division_cases(draw: Draw) -> list[dict]:
    gpu = costs.gpu(draw.choice(("H100 SXM", "H200 SXM", "B200 SXM")))
    rates = {"bandwidth": gpu.bandwidth, "peak": gpu.peak_flops()}
    shapes = (
        (_shape(draw, 128, 1, latent=True), draw.integer(16, 60)),
        (_shape(draw, 128, 1, latent=True), 1),
        (_shape(draw, 64, 8), draw.integer(1, 5)),
        (_shape(draw, 48, 2), draw.integer(3, 5)),
        (_shape(draw, 24, 3), draw.integer(9, 20)),
    )
    return [
        {"shape": shape, "context_len": draw.integer(20_000, 60_000), "batch": batch, "n_gpus": draw.choice((4, 8)), **rates}
        for shape, batch in shapes
    ]


def _divided(answer: Answer, case: dict) -> tuple[int, float, dict[int, float]]:
    degree, seconds = judge.parts(answer(**case), 2, "GPUs that share the heads, seconds")
    found = divisions(**case)
    degree = judge.number(degree, "the number of GPUs that share the heads")
    if degree not in found:
        raise Wrong(f"{degree:g} of {case['n_gpus']} GPUs cannot share the heads of {case['shape']}")
    return int(degree), judge.number(seconds, "the seconds"), found


@named("time of the choice", "the seconds are the floor of attention on the fullest GPU")
def divide_seconds(answer: Answer, draw: Draw) -> None:
    for case in _division_cases(draw):
        degree, seconds, found = _divided(answer, case)
        words = f"microseconds with {degree} of {case['n_gpus']} GPUs sharing heads, {case['batch']} sequences, {case['shape']}"
        _same(
            1e6 * seconds, 1e6 * found[degree], words, "Which GPU has the most sequences? Which of its two times is the larger?"
        )


@named("fastest", "no other division is faster")
def divide_fastest(answer: Answer, draw: Draw) -> None:
    for case in _division_cases(draw):
        degree, _, found = _divided(answer, case)
        if found[degree] > 1.001 * min(found.values()):
            raise Wrong(
                f"{degree} of {case['n_gpus']} GPUs sharing heads is not the fastest for {case['batch']} sequences and "
                f"{case['shape']}: another division takes {min(found.values()) / found[degree]:.2f} of its time"
            )
