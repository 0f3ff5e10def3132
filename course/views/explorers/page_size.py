"""Page size against the sequences that fit, and against the recorded time of the kernel (chapter 6)."""

import json

import altair as alt

from ... import costs, measure
from ..measured_pages import page_sweep
from .base import (
    BLUE,
    GREY,
    ORANGE,
    Explorer,
    axis,
    chart,
    colour_scale,
    count,
    dashes,
    let,
    menu,
    power,
    source_of,
    table,
    vega_count,
    vega_sentence,
)

KV_HEADS = (1, 2, 4, 8, 16, 32)
N_LAYERS, HEAD_DIM = 32, 128
MEANS = (500, 1000, 2000, 4000)
KINDS = costs.paging.LENGTH_KINDS
PREFIXES = (0, 1024, 8192)
CAPACITIES = (32768, 131072)
PAGE_SIZES = tuple(2**i for i in range(9))
LINES = ("in pages", "reserved")
MARK = "speed of the kernel, recorded"

PAGE_SIZE = (
    "{budget} GiB of cache for {layers} layers of {n_kv_heads}, sequences of {mean} own tokens on average ({kind}){prefix}. "
    "Reserving {capacity} tokens for each, {reserved}. In pages of {page_size}, {paged}, {fewer} fewer than with pages of "
    "one token; a page is {page_bytes} KiB a layer. {recorded}"
)
PREFIX = " after a prefix of {prefix} that all share"
RECORDED = (
    "Recorded at this page size: {ratio} × the time over a contiguous cache (32 query heads over 8 KV heads, batch 16, "
    "8,192 tokens)."
)
UNRECORDED = "Nothing is recorded at this page size."


def page_size() -> Explorer:
    """Chapter 6: capacity hardly moves up to pages of 64 tokens, so the kernel may have its say."""
    found = measure.recordings("NVIDIA H200", "paged")
    recording = found[0] if found and found[0].kind == "paged" else None
    sweep = page_sweep(recording.rows if recording else ())
    twin = sweep["contiguous"].get(0)
    ratios = {
        size: row["median_s"] / twin["median_s"] for size, row in sweep["this kernel"].items() if twin and size in PAGE_SIZES
    }
    settings = {
        "n_kv_heads": 8, "mean": 2000, "kind": "exponential", "shared_prefix": 0, "capacity": 32768,
        "log2_budget": 5, "log2_page": 4,
    }  # fmt: skip
    lengths = {(kind, mean): costs.lengths_like(kind, mean) for kind in KINDS for mean in MEANS}
    sequences = len(lengths[KINDS[0], MEANS[0]])
    own_pages = {
        f"{kind}/{mean}/{prefix}/{size}": sum(costs.pages_of(prefix + n, size) - prefix // size for n in its)
        for (kind, mean), its in lengths.items()
        for prefix in PREFIXES
        for size in PAGE_SIZES
    }
    one_head = costs.Attention.mqa(1, HEAD_DIM)
    phrases = {str(size): RECORDED.format(ratio=f"{ratio:.2f}") for size, ratio in ratios.items()}

    def fits(size: str) -> str:
        """Vega expression: sequences that fit in pages of ``size`` tokens."""
        own = f"own_pages[kind + '/' + mean + '/' + shared_prefix + '/' + {size}]"
        return f"max(0, floor((floor(budget_tokens / {size}) - floor(shared_prefix / {size})) * {sequences} / {own}))"

    parameters = [
        menu("n_kv_heads", "KV heads", KV_HEADS, settings["n_kv_heads"]),
        menu("mean", "own tokens, mean", MEANS, settings["mean"]),
        menu("kind", "lengths", KINDS, settings["kind"]),
        menu("shared_prefix", "shared prefix, tokens", PREFIXES, settings["shared_prefix"]),
        menu("capacity", "reserved, tokens", CAPACITIES, settings["capacity"]),
        power("log2_budget", "GiB of cache", 3, 8, settings["log2_budget"]),
        power("log2_page", "tokens of a page", 0, 8, settings["log2_page"]),
        table("bytes_of_a_head", costs.cache_bytes(one_head, 1)),
        table("own_pages", own_pages),
        table("phrases", phrases),
        let("page", "pow(2, log2_page)"),
        let("budget_tokens", f"floor(pow(2, log2_budget + 30) / ({N_LAYERS} * n_kv_heads * bytes_of_a_head))"),
        let("fit_reserved", "floor(budget_tokens / capacity)"),
        let("fit_single", fits("1")),
        let("fit_here", fits("page")),
    ]

    def fit_words(name: str) -> str:
        return f"({vega_count(name, 'sequence')} + ({name} == 1 ? ' fits' : ' fit'))"

    after_prefix = vega_sentence(PREFIX, prefix="format(shared_prefix, ',')")
    words = vega_sentence(
        PAGE_SIZE,
        budget="pow(2, log2_budget)",
        layers=str(N_LAYERS),
        n_kv_heads=vega_count("n_kv_heads", "KV head"),
        mean="format(mean, ',')",
        kind="kind",
        prefix=f"shared_prefix ? {after_prefix} : ''",
        capacity="format(capacity, ',')",
        reserved=f"fit_reserved ? {fit_words('fit_reserved')} : 'none fits'",
        page_size="page",
        paged=fit_words("fit_here"),
        fewer="format(fit_single - fit_here, ',')",
        page_bytes="format(page * n_kv_heads * bytes_of_a_head / 1024, '.4~r')",
        recorded=f"isDefined(phrases[page]) ? phrases[page] : {json.dumps(UNRECORDED)}",
    )

    def numbers(n_kv_heads: int, mean: int, kind: str, shared_prefix: int, capacity: int, log2_budget: int):
        """Sequences that fit reserved, and a function of the page size."""
        attention = costs.Attention.gqa(32, n_kv_heads, HEAD_DIM)
        budget = 2**log2_budget * costs.GiB // costs.cache_bytes(attention, 1, n_layers=N_LAYERS)
        its = [shared_prefix + n for n in lengths[kind, mean]]
        in_pages = {
            size: costs.sequences_that_fit(budget, its, page_size=size, shared_prefix=shared_prefix) for size in PAGE_SIZES
        }
        return costs.sequences_that_fit(budget, its, capacity=capacity), in_pages

    def expected(log2_page: int, **at) -> list[dict]:
        reserved, in_pages = numbers(**at)
        return [
            {"line": line, "page_size": size, "share": (in_pages[size] if line == LINES[0] else reserved) / in_pages[1]}
            for line in LINES
            for size in PAGE_SIZES
        ]

    def sentence(log2_page: int, **at) -> str:
        reserved, in_pages = numbers(**at)
        size = 2**log2_page
        attention = costs.Attention.gqa(32, at["n_kv_heads"], HEAD_DIM)
        prefix = at["shared_prefix"]
        fit = {n: f"{count(n, 'sequence')} fit{'s' * (n == 1)}" for n in (reserved, in_pages[size])}
        return PAGE_SIZE.format(
            budget=2 ** at["log2_budget"],
            layers=N_LAYERS,
            n_kv_heads=count(at["n_kv_heads"], "KV head"),
            mean=f"{at['mean']:,}",
            kind=at["kind"],
            prefix=PREFIX.format(prefix=f"{prefix:,}") if prefix else "",
            capacity=f"{at['capacity']:,}",
            reserved=fit[reserved] if reserved else "none fits",
            page_size=size,
            paged=fit[in_pages[size]],
            fewer=f"{in_pages[1] - in_pages[size]:,}",
            page_bytes=f"{costs.cache_bytes(attention, size) / costs.KiB:.4g}",
            recorded=phrases.get(str(size), UNRECORDED),
        )

    x = alt.X(
        "page_size:Q", title="tokens of a page", scale=alt.Scale(type="log", base=2, domain=[1, 256]),
        axis=axis(values=[1, 4, 16, 64, 256], format="d"),
    )  # fmt: skip
    y = alt.Y(
        "share:Q", title="share of the most possible", scale=alt.Scale(domain=[0, 1.05], nice=False),
        axis=axis(values=[0, 0.25, 0.5, 0.75, 1], format="%"),
    )  # fmt: skip
    names = {line: f"sequences that fit, {line}" for line in LINES}
    colours = colour_scale({names[LINES[0]]: BLUE, names[LINES[1]]: GREY, **({MARK: ORANGE} if ratios else {})})
    colour = alt.Color("label:N", **colours)
    dash = dashes("label:N", {names[LINES[0]]: [1, 0], names[LINES[1]]: [6, 3]}, 0)
    dash.legend = None
    lines = (
        alt.Chart(alt.NamedData("fits"))
        .transform_calculate(
            share=f"(datum.line == '{LINES[1]}' ? fit_reserved : {fits('datum.page_size')}) / fit_single",
            label=f"{json.dumps(names)}[datum.line]",
        )
    )  # fmt: skip
    layers = [
        lines.mark_line(strokeWidth=2.5).encode(x=x, y=y, color=colour, strokeDash=dash),
        lines.transform_filter("datum.page_size == page")
        .mark_point(filled=True, size=90, opacity=1)
        .encode(
            x=x,
            y=y,
            color=colour,
            tooltip=[alt.Tooltip("label:N", title="line"), alt.Tooltip("share:Q", title="is", format=".1%")],
        ),
        alt.Chart(alt.NamedData("recorded"))
        .mark_point(filled=False, strokeWidth=2, opacity=1, size=80)
        .encode(
            x=x,
            y=y,
            color=colour,
            tooltip=[
                alt.Tooltip("label:N", title="mark"),
                alt.Tooltip("page_size:Q", title="tokens of a page"),
                alt.Tooltip("share:Q", title="is", format=".1%"),
            ],
        ),
    ]
    source = f"hollow marks: {source_of(recording)}" if ratios else "no recording of pages is there yet"
    told = f"; recorded speeds go from {1 / max(ratios.values()):.0%} to {1 / min(ratios.values()):.0%}" if ratios else ""
    _, first = numbers(**{key: value for key, value in settings.items() if key != "log2_page"})
    return Explorer(
        name="page-size",
        chart=chart(
            "Page size: capacity and speed", layers, parameters, words,
            datasets={
                "fits": [{"line": line, "page_size": size} for line in LINES for size in PAGE_SIZES],
                "recorded": [{"label": MARK, "page_size": size, "share": 1 / ratio} for size, ratio in ratios.items()],
            },
        ),
        sentence=sentence(**settings) + f" Lines are computed, {HEAD_DIM}-wide heads in bfloat16; {source}.",
        alt="Percentages against tokens of a page, from 1 to 256: sequences that fit fall slowly, to "
        f"{first[64] / first[1]:.0%} at 64 tokens and {first[256] / first[1]:.0%} at 256; a flat line far below shows how many "
        f"fit with reserved blocks{told}.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip
