"""The model of who works when: hand-worked walks, and what holds for every choice of durations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course import costs
from course.costs import pipeline
from course.costs.pipeline import COPIES, STRUCTURES, TENSOR, WARPS, Task, attention_walk, timeline

H200 = costs.gpu("H200 SXM")
cycles = st.integers(0, 64).map(lambda n: 64 * n)
walks = {"n_blocks": st.integers(1, 9), "load": cycles, "product": cycles, "softmax": cycles, "stages": st.integers(1, 4)}


def run(structure, **walk):
    return timeline(attention_walk(structure, **walk))


def test_cycles_of_a_block_on_an_h200():
    assert pipeline.sm_clock(H200) == pytest.approx(1.83e9, rel=1e-3)
    assert pipeline.product_cycles(128, 128, 128) == 1024
    assert pipeline.exponential_cycles(128 * 128) == 1024
    # 64 KiB at 4.8 TB/s over 132 SMs
    assert pipeline.copy_cycles(64 * 1024, H200) == pytest.approx(65536 / (4.8e12 / 132) * 1.83e9, rel=1e-3)
    assert pipeline.copy_cycles(64 * 1024, H200, 2 * H200.bandwidth) == pytest.approx(pipeline.copy_cycles(32 * 1024, H200))


def test_rates_are_those_of_the_data_sheet():
    """3.9 T exponentials a second, as FlashAttention-3 counts them for the same SM."""
    assert pipeline.EXPONENTIALS * H200.sm_count * pipeline.sm_clock(H200) == pytest.approx(3.9e12, rel=0.02)
    with pytest.raises(ValueError, match="9.0"):
        pipeline.sm_clock(costs.gpu("A100 80GB SXM"))


def test_one_after_the_other_adds_up():
    walk = run(STRUCTURES[0], n_blocks=3, load=100, product=200, softmax=50)
    assert max(walk.ends) == 3 * 350
    assert walk.products == 3 * 350 - 100  # the first load comes before
    assert [name for _, name in sorted(zip(walk.ends, (task.name for task in walk.tasks), strict=True))[:5]] == [
        "K0", "V0", "S0", "P0", "O0",
    ]  # fmt: skip


def test_products_that_alternate_with_a_softmax_as_long_reach_half():
    for stages in (2, 3, 4):
        assert run(STRUCTURES[1], n_blocks=6, load=512, product=2048, softmax=2048, stages=stages).busy() == 0.5


def test_two_consumers_fill_each_other_s_gaps():
    at = {"n_blocks": 64, "load": 512, "product": 2048, "softmax": 2048}
    busy = [run(structure, **at).busy() for structure in STRUCTURES]
    assert busy[0] < busy[1] == 0.5 and busy[2] == pytest.approx(2 / 3, abs=0.01) and min(busy[3:]) > 0.97


@given(st.sampled_from(STRUCTURES), st.fixed_dictionaries(walks))
def test_no_unit_does_two_things_at_once(structure, walk):
    walk = run(structure, **walk)
    for unit in (COPIES, TENSOR, WARPS):
        spans = sorted((s, e) for task, s, e in zip(walk.tasks, walk.starts, walk.ends, strict=True) if task.unit == unit)
        assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert 0 <= walk.busy() <= 1


@given(st.sampled_from(STRUCTURES), st.fixed_dictionaries(walks))
def test_everything_waits_for_what_it_needs(structure, walk):
    walk = run(structure, **walk)
    at = {task.name: place for place, task in enumerate(walk.tasks)}
    for task, start in zip(walk.tasks, walk.starts, strict=True):
        assert all(walk.ends[at[name]] <= start for name in task.after)


@given(st.sampled_from(STRUCTURES[1:]), st.fixed_dictionaries(walks))
def test_more_stages_are_never_slower(structure, walk):
    few = run(structure, **walk)
    more = run(structure, **walk | {"stages": walk["stages"] + 1})
    assert max(more.ends) <= max(few.ends) and more.busy() >= few.busy() - 1e-12


@given(st.fixed_dictionaries(walks))
def test_a_buffer_is_not_filled_before_it_is_read(walk):
    stages = walk["stages"]
    for structure in STRUCTURES[1:]:
        done = run(structure, **walk)
        at = {task.name: place for place, task in enumerate(done.tasks)}
        for block in range(stages, walk["n_blocks"]):
            for what, reader in (("K", "S"), ("V", "O")):
                readers = [place for name, place in at.items() if name.rstrip("ab") == f"{reader}{block - stages}"]
                assert readers and done.starts[at[f"{what}{block}"]] >= max(done.ends[place] for place in readers)


@given(st.fixed_dictionaries(walks))
def test_later_structures_do_the_same_work(walk):
    totals = set()
    for structure in STRUCTURES:
        tasks = attention_walk(structure, **walk)
        totals.add(tuple(sum(task.cycles for task in tasks if task.unit == unit) for unit in (COPIES, TENSOR, WARPS)))
    assert len(totals) == 1


@given(st.fixed_dictionaries(walks))
def test_without_a_softmax_loads_or_products_decide(walk):
    walk = walk | {"softmax": 0, "stages": max(2, walk["stages"])}
    for structure in STRUCTURES[1:]:
        done = run(structure, **walk)
        bound = max(walk["n_blocks"] * walk["load"], walk["n_blocks"] * walk["product"])
        assert bound <= max(done.ends) <= bound + walk["load"] + walk["product"]


@pytest.mark.parametrize("walk", [pipeline.backward_walk, pipeline.mla_walk])
@given(n=st.integers(1, 6), load=cycles)
def test_walks_of_the_other_kernels(walk, n, load):
    done = timeline(walk(n, load=load))
    assert 0 < done.busy() <= 1 + 1e-12
    assert sum(task.cycles for task in done.tasks if task.unit == COPIES) == pytest.approx(n * load)
    assert max(timeline(walk(n, load=load + 64)).ends) >= max(done.ends)


def test_products_of_the_other_kernels_are_counted_whole():
    backward, mla = (timeline(walk(4, load=0)) for walk in (pipeline.backward_walk, pipeline.mla_walk))
    work = [sum(task.cycles for task in done.tasks if task.unit == TENSOR) / 4 for done in (backward, mla)]
    # Five products of 64 rows, 128 keys and 128 columns; and for 64 rows and 128 tokens, 576 columns of scores, 512 of values.
    assert work == [5 * 2 * 64 * 128 * 128 / 4096, 2 * 64 * 128 * (576 + 512) / 4096]
    assert work[1] == 4352  # as the head of mla_hopper.py says


def test_an_order_in_which_nobody_begins_is_an_error():
    crossed = [
        Task("V0", COPIES, "producer", 1, ("S0",)), Task("K0", COPIES, "producer", 1), Task("S0", TENSOR, "all", 1, ("K0",)),
    ]  # fmt: skip
    with pytest.raises(
        ValueError, match="nobody can begin: .*S0 waits for K0.*V0 waits for S0|V0 waits for S0.*S0 waits for K0"
    ):
        timeline(crossed)
    with pytest.raises(ValueError, match="2 tasks have 1 names"):
        timeline([Task("K1", COPIES, "producer", 1)] * 2)
    with pytest.raises(ValueError, match="K1 waits for S0, which is no task"):
        timeline([Task("K1", COPIES, "producer", 1, ("S0",))])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"structure": "two consumer"}, "two consumers"), ({"load": -1}, "load"), ({"stages": 0}, "stages"),
     ({"softmax": float("nan")}, "softmax"), ({"n_blocks": 0}, "n_blocks")],
)  # fmt: skip
def test_bad_arguments(wrong, said):
    with pytest.raises(ValueError, match=said):
        attention_walk(**{"structure": "loads ahead", "load": 1, "product": 1, "softmax": 1} | wrong)
