"""Two vectors turned by their positions: the score knows the difference only (primer P3)."""

import math

import altair as alt
import torch

from ...layers import rope
from .base import BLUE, GREY, ORANGE, Explorer, axis, chart, colour_scale, dashes, let, menu, table, vega_sentence

HEAD_DIM, BASE = 128, 10_000.0
PAIRS = (0, 16, 32, 48)
Q, K = (1.0, 0.45), (0.7, -0.5)
VECTORS, STATES = ("query", "key"), ("as projected", "turned by its position")

ROTATION = (
    "Query at position {t}, key at position {j}; pair {pair} of a head {width} wide turns by {speed}° a position. The query "
    "turns by {q_turn}°, the key by {k_turn}°. Their part of the score is {score}, as wherever t − j is {distance}."
)


def speed(pair: int) -> float:
    """Radians a position."""
    return BASE ** (-2 * pair / HEAD_DIM)


def _signed(value: float, digits: int) -> str:
    """As Vega writes it, with a real minus sign."""
    value = round(value, digits) + 0.0
    return f"{value:.{digits}f}".replace("-", "−")


def rotation() -> Explorer:
    """Primer P3: one pair of a query and of a key, turned by their positions; their product follows t − j."""
    settings = {"t": 12, "j": 9, "shift": 0, "pair": 16}

    def slider(name: str, label: str, high: int) -> alt.Parameter:
        return alt.param(name=name, value=settings[name], bind=alt.binding_range(min=0, max=high, step=1, name=f"{label} "))

    parameters = [
        slider("t", "query's position t", 31),
        slider("j", "key's position j", 31),
        slider("shift", "added to both", 100),
        menu("pair", "pair of columns", PAIRS, settings["pair"]),
        table("speeds", {str(pair): speed(pair) for pair in PAIRS}),
        let("theta", "speeds[pair]"),
        let("q_angle", "(t + shift) * theta"),
        let("k_angle", "(j + shift) * theta"),
        let("q_x", f"{Q[0]} * cos(q_angle) - {Q[1]} * sin(q_angle)"),
        let("q_y", f"{Q[0]} * sin(q_angle) + {Q[1]} * cos(q_angle)"),
        let("k_x", f"{K[0]} * cos(k_angle) - {K[1]} * sin(k_angle)"),
        let("k_y", f"{K[0]} * sin(k_angle) + {K[1]} * cos(k_angle)"),
    ]
    degrees = "({} * 180 / PI)".format
    words = vega_sentence(
        ROTATION,
        t="t + shift",
        j="j + shift",
        pair="pair",
        width=str(HEAD_DIM),
        speed=f"format({degrees('theta')}, '.3~r')",
        q_turn=f"format({degrees('q_angle')}, ',.1f')",
        k_turn=f"format({degrees('k_angle')}, ',.1f')",
        score="format(q_x * k_x + q_y * k_y, '.3f')",
        distance="format(t - j, 'd')",
    )

    def turned(vector: tuple[float, float], position: int, pair: int) -> tuple[float, float]:
        """By the course's own rotation: the vector as one pair of an otherwise empty head."""
        head = torch.zeros(HEAD_DIM, dtype=torch.float64)
        head[2 * pair : 2 * pair + 2] = torch.tensor(vector, dtype=torch.float64)
        angles = rope.rotation(torch.tensor(position), HEAD_DIM, base=BASE, dtype=torch.float64)
        return tuple(rope.rotate(head, *angles, pairing="interleaved")[2 * pair : 2 * pair + 2].tolist())

    def expected(t: int, j: int, shift: int, pair: int) -> list[dict]:
        ends = (Q, turned(Q, t + shift, pair)), (K, turned(K, j + shift, pair))
        return [
            {"vector": vector, "state": state, "x": x, "y": y}
            for vector, both in zip(VECTORS, ends, strict=True)
            for state, (x, y) in zip(STATES, both, strict=True)
        ]

    def sentence(t: int, j: int, shift: int, pair: int) -> str:
        (q_x, q_y), (k_x, k_y) = turned(Q, t + shift, pair), turned(K, j + shift, pair)
        theta = math.degrees(speed(pair))
        return ROTATION.format(
            t=t + shift,
            j=j + shift,
            pair=pair,
            width=HEAD_DIM,
            speed=f"{float(f'{theta:.3g}'):g}",
            q_turn=f"{(t + shift) * theta:,.1f}",
            k_turn=f"{(j + shift) * theta:,.1f}",
            score=_signed(q_x * k_x + q_y * k_y, 3),
            distance=_signed(t - j, 0),
        )

    reach = 1.25
    # A circle has to look like one: the width of the plot decides how much of the x axis it shows.
    wide = f"{reach} * width / height"
    span = alt.Scale(domainMin=alt.expr(f"-{wide}"), domainMax=alt.expr(wide), nice=False, zero=False)
    x = alt.X("x:Q", title=None, scale=span, axis=axis(values=[-1, 0, 1]))
    y = alt.Y("y:Q", title=None, scale=alt.Scale(domain=[-reach, reach], nice=False), axis=axis(values=[-1, 0, 1]))
    vectors = alt.Chart(alt.NamedData("vectors")).transform_calculate(
        x=f"datum.state == '{STATES[0]}' ? datum.x0 : datum.vector == '{VECTORS[0]}' ? q_x : k_x",
        y=f"datum.state == '{STATES[0]}' ? datum.y0 : datum.vector == '{VECTORS[0]}' ? q_y : k_y",
        from_x="0",
        from_y="0",
    )
    colours = alt.Color("vector:N", **colour_scale(dict(zip(VECTORS, (BLUE, ORANGE), strict=True))))
    shown = [
        alt.Tooltip("vector:N"),
        alt.Tooltip("state:N"),
        alt.Tooltip("x:Q", format=".3f"),
        alt.Tooltip("y:Q", format=".3f"),
    ]
    circles = alt.Chart(alt.sequence(0, 65, as_="step"))
    layers = [
        *(
            circles.transform_calculate(
                x=f"{math.hypot(*vector)} * cos(datum.step * PI / 32)", y=f"{math.hypot(*vector)} * sin(datum.step * PI / 32)"
            )
            .mark_line(color=GREY, strokeWidth=1, opacity=0.5, interpolate="linear")
            .encode(x=x, y=y, order=alt.Order("step:Q"))
            for vector in (Q, K)
        ),
        vectors.mark_rule(strokeWidth=3).encode(
            x=x, y=y, x2="from_x:Q", y2="from_y:Q", color=colours,
            strokeDash=dashes("state:N", dict(zip(STATES, ([2, 3], [1, 0]), strict=True))), tooltip=shown,
        ),
        vectors.transform_filter(f"datum.state == '{STATES[1]}'").mark_point(filled=True, size=90, opacity=1).encode(
            x=x, y=y, color=colours, tooltip=shown
        ),
    ]  # fmt: skip
    return Explorer(
        name="rotation",
        chart=chart(
            "One pair of columns, turned by position", layers, parameters, words,
            datasets={
                "vectors": [
                    {"vector": vector, "state": state, "x0": x0, "y0": y0}
                    for vector, (x0, y0) in zip(VECTORS, (Q, K), strict=True)
                    for state in STATES
                ]
            },
        ),
        sentence=sentence(**settings),
        alt="Two arrows on circles around the origin, a query and a key, dotted as they were projected and solid after each "
        "has been turned by its position. Moving both positions turns both arrows and leaves the angle between them.",
        settings=settings,
        expected=expected,
        sentence_of=sentence,
    )  # fmt: skip
