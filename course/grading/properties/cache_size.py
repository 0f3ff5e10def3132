"""What is true of a counter of cache bytes. The answer is a package with the names of course/costs."""

from ... import costs
from .. import judge
from ..answers import Answer
from ..draw import Draw
from ..judge import Wrong
from ..tasks import named


def _same(got, expected: int, what: str, hint: str) -> None:
    value = judge.number(got, f"the bytes of {what}")
    if value != expected:
        raise Wrong(f"{what}: expected {expected:,} bytes, got {value:,.0f}, {value / expected:.3g} times as many. {hint}")


def _token(answer: Answer, make: str, shape: tuple, told: str, hint: str, bytes_per_element: float | str = 2) -> None:
    got = answer.get("Attention").get(make)(*shape).get("bytes_per_token")(bytes_per_element)
    expected = getattr(costs.Attention, make)(*shape).bytes_per_token(bytes_per_element)
    _same(got, expected, f"one token in one layer, {told}", hint)


def _heads(draw: Draw) -> tuple[int, int]:
    n_kv_heads = draw.choice((2, 3, 4, 8))
    return n_kv_heads * draw.choice((3, 4, 6)), n_kv_heads


@named("heads", "a token leaves its KV heads behind, whatever the number of query heads")
def heads(answer: Answer, draw: Draw) -> None:
    n_q_heads, n_kv_heads = _heads(draw)
    width, size = draw.choice((64, 96, 128)), draw.choice((1, 2, 4))
    told = f"{n_q_heads} query heads, {n_kv_heads} KV heads, {width} wide, {size} bytes a number"
    _token(answer, "gqa", (n_q_heads, n_kv_heads, width), told, "Which heads does a later token ask for?", size)


@named("widths", "keys and values may differ in width")
def widths(answer: Answer, draw: Draw) -> None:
    n_q_heads, n_kv_heads = _heads(draw)
    for keys, values in ((192, 128), (64, draw.choice((96, 256)))):
        told = f"{n_q_heads} query heads, {n_kv_heads} KV heads, keys {keys} and values {values} wide"
        _token(answer, "gqa", (n_q_heads, n_kv_heads, keys, values), told, "What is stored for each KV head?")


@named("latent attention", "the value of MLA lies inside its key and is stored once")
def latent(answer: Answer, draw: Draw) -> None:
    latent_dim, rope_dim = draw.choice((256, 512)), draw.choice((32, 64))
    told = f"MLA with a latent of {latent_dim} and a rotary part of {rope_dim}"
    _token(answer, "mla", (draw.choice((16, 128)), latent_dim, rope_dim), told, "How many numbers lie in memory?")


@named("configurations", "head_dim of a configuration counts where it is given")
def configurations(answer: Answer, draw: Draw) -> None:
    n_q_heads, n_kv_heads = _heads(draw)
    config = {"hidden_size": 64 * n_q_heads, "num_attention_heads": n_q_heads, "num_key_value_heads": n_kv_heads}
    for head_dim in (draw.choice((96, 128, 256)), None):
        given = config | {"head_dim": head_dim}
        got = answer.get("Attention").get("from_config")(given).get("bytes_per_token")(2)
        expected = costs.Attention.from_config(given).bytes_per_token(2)
        _same(got, expected, f"one token in one layer, from the configuration {given}", "Which width does it state?")


@named("batch, layers, window", "every sequence and layer has a cache, and a window bounds it")
def batch_and_window(answer: Answer, draw: Draw) -> None:
    n_q_heads, n_kv_heads = _heads(draw)
    shape, context_len = (n_q_heads, n_kv_heads, 128), draw.integer(3000, 9000)
    for options in (
        {"batch": draw.integer(2, 9), "n_layers": draw.integer(2, 40)},
        {"batch": 2, "window": draw.choice((512, 1024))},
        {"batch": 3, "window": draw.choice((16384, 32768))},
    ):
        got = answer.get("cache_bytes")(answer.get("Attention").get("gqa")(*shape), context_len, **options)
        expected = costs.cache_bytes(costs.Attention.gqa(*shape), context_len, **options)
        told = ", ".join(f"{key} {value}" for key, value in options.items())
        _same(got, expected, f"{context_len:,} tokens of {n_kv_heads} KV heads 128 wide, {told}", "How many tokens are kept?")


@named("real models", "published models, at lengths within and beyond their windows")
def real_models(answer: Answer, draw: Draw) -> None:
    for name in ("Llama 3 8B", draw.choice(("Mistral 7B v0.1", "Gemma 3 12B")), "DeepSeek-V3"):
        batch, context_len = draw.integer(2, 20), draw.choice((1000, 8192, 32_768))
        got = answer.get("model")(name).get("cache_bytes")(context_len, batch)
        _same(
            got, costs.model(name).cache_bytes(context_len, batch), f"{name}, {batch} sequences of {context_len:,} tokens", ""
        )
