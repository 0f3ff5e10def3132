"""Four plans over a shared prefix, against the layer's own arithmetic."""

import pytest

from course import costs
from course.grading.draw import Draw
from course.grading.properties import shared_prefix

V3 = costs.LatentAttention(7168, 128, 128, 64, 128, 512)


def test_one_user_alone_is_the_layer():
    plans = shared_prefix.plans(V3, 1, 5000, 300, 20)
    assert plans["expanded", "expanded"] == V3.flops("expanded", 20, 5300)
    assert plans["absorbed", "absorbed"] == V3.flops("absorbed", 20, 5300)


def test_a_prefix_without_own_tokens_crosses_at_users_times_new():
    """M* counts the query tokens of all users together, as if they were one chunk."""
    users = round(V3.crossover_limit)
    for more, wins in ((-5, "absorbed"), (5, "expanded")):
        plans = shared_prefix.plans(V3, users + more, 100_000, 100, 1)
        assert min(plans, key=plans.get) == (wins, "absorbed")


@pytest.mark.parametrize("seed", range(5))
def test_the_cases_ask_for_three_different_plans(seed):
    cases = shared_prefix._plan_cases(Draw(seed))
    best = []
    for widths, case in cases:
        plans = shared_prefix.plans(costs.LatentAttention(**widths), **case)
        first, second = sorted(plans.values())[:2]
        assert second > 1.002 * first
        best.append(min(plans, key=plans.get))
    assert set(best) == {("absorbed", "absorbed"), ("expanded", "absorbed"), ("expanded", "expanded")}
