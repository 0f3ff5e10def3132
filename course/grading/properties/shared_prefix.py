"""Latent attention over a prefix that several users share: which part to expand, which to absorb, and what that costs."""

from collections.abc import Callable
from types import ModuleType

from ... import costs
from .. import judge
from ..answers import Answer
from ..draw import Draw
from ..judge import Wrong
from ..tasks import named

FORMS = ("expanded", "absorbed")


def plans(shape: costs.LatentAttention, users: int, shared: int, own: int, new: int) -> dict[tuple[str, str], int]:
    """FLOPs of a step by (form over the shared prefix, form over each user's own tokens, of which ``new`` are new)."""
    found = {}
    for over_shared in FORMS:
        for over_own in FORMS:
            pairs = costs.attention_flops(getattr(shape, over_shared), new, shared, batch=users)
            pairs += costs.attention_flops(getattr(shape, over_own), new, own, batch=users, causal=True)
            up = shared * (over_shared == "expanded") + users * own * (over_own == "expanded")
            up += users * new * ("absorbed" in (over_shared, over_own))
            found[over_shared, over_own] = pairs + up * shape.up_flops
    return found


def cheapest_plan(package: ModuleType) -> Callable:
    """Our own answer, of a package ``course``."""

    def plan(widths, users, shared, own, new):
        found = plans(package.costs.LatentAttention(**widths), users, shared, own, new)
        return *min(found, key=found.get), min(found.values())

    return plan


def _plan_cases(draw: Draw) -> list[tuple[dict, dict]]:
    cases = []
    for nope_dim, rope_dim, head_dim_v, latent_dim in draw.some(
        ((128, 64, 128, 512), (192, 64, 256, 512), (64, 32, 64, 256)), 2
    ):
        widths = {"d_model": 2048, "n_heads": draw.choice((16, 40)), "nope_dim": nope_dim, "rope_dim": rope_dim}
        widths |= {"head_dim_v": head_dim_v, "latent_dim": latent_dim}
        long = draw.integer(900, 1500)
        cases += [
            (
                widths,
                {"users": 1, "shared": draw.integer(2000, 9000), "own": draw.integer(300, 700), "new": draw.integer(1, 8)},
            ),
            (
                widths,
                {"users": draw.integer(600, 900), "shared": draw.integer(4000, 9000), "own": 300, "new": draw.integer(1, 4)},
            ),
            (widths, {"users": draw.integer(1, 3), "shared": draw.integer(2000, 9000), "own": long, "new": long}),
        ]
    return cases


def _planned(answer: Answer, widths: dict, case: dict) -> tuple[tuple[str, str], float, dict]:
    over_shared, over_own, flops = judge.parts(answer(widths, **case), 3, "form over the prefix, form over own tokens, FLOPs")
    if over_shared not in FORMS or over_own not in FORMS:
        raise Wrong(f"a form is 'expanded' or 'absorbed', got {over_shared!r:.40} and {over_own!r:.40}")
    return (over_shared, over_own), judge.number(flops, "FLOPs"), plans(costs.LatentAttention(**widths), **case)


@named("FLOPs of the plan", "the FLOPs returned are those of the forms returned")
def plan_flops(answer: Answer, draw: Draw) -> None:
    for widths, case in _plan_cases(draw):
        forms, flops, found = _planned(answer, widths, case)
        if abs(flops / found[forms] - 1) > 1e-3:
            raise Wrong(
                f"for {case} the prefix {forms[0]} and own tokens {forms[1]} need other FLOPs: {flops / found[forms]:.3f} "
                "times as many came. A prefix is expanded once for all users, a query token is projected once or not at all"
            )


@named("cheapest", "no other choice of forms needs fewer FLOPs")
def plan_cheapest(answer: Answer, draw: Draw) -> None:
    for widths, case in _plan_cases(draw):
        forms, _, found = _planned(answer, widths, case)
        if found[forms] > 1.001 * min(found.values()):
            raise Wrong(f"for {case} another choice of forms needs {1 - min(found.values()) / found[forms]:.1%} fewer FLOPs")
