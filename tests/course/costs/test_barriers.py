"""The model of barriers: a right program gives one answer under every seed, and each missing barrier shows."""

import pytest

from course.costs.barriers import (
    Barrier,
    Buffer,
    NamedBarrier,
    arrive,
    copy,
    finish,
    multiply,
    run,
    store,
    verdicts,
    wait,
    wait_named,
)

BLOCKS = 6
SEEDS = 120


def ring(
    buffers=2, consumers=2, *, waits=True, releases=True, early=False, count=None, waits_for_full=True,
    parity=lambda turn, buffers: turn // buffers % 2,
):  # fmt: skip
    """The loop of the kernels: a producer, and consumers who give a buffer back."""

    def program():
        k = [Buffer(f"K{i}") for i in range(buffers)]
        full = [Barrier(f"full{i}") for i in range(buffers)]
        empty = [Barrier(f"empty{i}", count or consumers) for i in range(buffers)]

        def producer():
            for turn in range(BLOCKS):
                slot = turn % buffers
                if waits:
                    yield wait(empty[slot], turn // buffers % 2 ^ 1)
                yield copy(turn, k[slot], full[slot])

        def consumer():
            read = []
            for turn in range(BLOCKS):
                slot = turn % buffers
                if waits_for_full:
                    yield wait(full[slot], parity(turn, buffers))
                product = yield multiply(k[slot])
                if early:
                    yield arrive(empty[slot])
                read.append((yield finish(product)))
                if releases and not early:
                    yield arrive(empty[slot])
            return read

        return {"producer": producer()} | {f"consumer {i}": consumer() for i in range(consumers)}

    return program


def found(program, consumers=2):
    return verdicts(program, {f"consumer {i}": list(range(BLOCKS)) for i in range(consumers)}, SEEDS)


@pytest.mark.parametrize("buffers", [1, 2, 3, 4])
@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_the_right_program_is_right_under_every_seed(buffers, consumers):
    assert found(ring(buffers, consumers), consumers) == {"right": SEEDS}


@pytest.mark.parametrize("fault", [{"early": True}, {"waits_for_full": False}])
def test_a_race_shows_as_answers_that_differ(fault):
    answers = {str(run(ring(**fault), seed).returned) for seed in range(SEEDS)}
    assert found(ring(**fault))["wrong"] > 0.1 * SEEDS and len(answers) > 2


@pytest.mark.parametrize("fault", [{"waits": False}, {"count": 1}])
def test_a_producer_that_does_not_wait_overtakes_the_phases(fault):
    """A parity cannot tell a phase from the next but one: who comes late may wait for ever."""
    bad = found(ring(**fault))
    assert bad["right"] < 0.1 * SEEDS and bad["deadlock"] > 0.5 * SEEDS


def test_a_buffer_that_is_never_given_back_is_a_deadlock():
    outcome = run(ring(releases=False), 0)
    assert outcome.deadlock and found(ring(releases=False)) == {"deadlock": SEEDS}
    assert "empty" in outcome.waiting["producer"] and "0 of 2 arrivals" in outcome.waiting["producer"]
    assert "full" in outcome.waiting["consumer 0"]


def test_a_phase_that_counts_turns_instead_of_uses_goes_wrong():
    bad = found(ring(parity=lambda turn, buffers: turn % 2))
    assert bad["right"] == 0 and sum(bad.values()) == SEEDS


def test_the_same_seed_gives_the_same_order():
    first, again = (run(ring(waits=False), 7) for _ in range(2))
    assert first == again and first.steps > 2 * BLOCKS


def handing_over(freed: bool):
    """One warp hands values to another through a buffer, by named barriers."""

    def program():
        p, ready, read = Buffer("P"), NamedBarrier("READY", 2), NamedBarrier("READ", 2)

        def left():
            for turn in range(BLOCKS):
                yield store(turn, p)
                yield arrive(ready)
                if freed:
                    yield wait_named(read)

        def right():
            seen = []
            for _ in range(BLOCKS):
                yield wait_named(ready)
                seen.append((yield finish((yield multiply(p)))))
                if freed:
                    yield arrive(read)
            return seen

        return {"left": left(), "right": right()}

    return program


def test_named_barriers():
    assert verdicts(handing_over(True), {"right": list(range(BLOCKS))}, SEEDS) == {"right": SEEDS}
    bad = verdicts(handing_over(False), {"right": list(range(BLOCKS))}, SEEDS)
    # Without phases an arrival too many counts for the others: it may even leave somebody waiting.
    assert bad["wrong"] > 0 and bad["wrong"] + bad["deadlock"] > 0.8 * SEEDS


def exchange(guarded: bool):
    """Two warps hand each other values, as the consumers of `mla_hopper.py` do: one barrier guards what the other has read."""

    def program():
        p0, p1 = Buffer("P0"), Buffer("P1")
        p0_ready, p1_ready, p0_read = (NamedBarrier(name, 2) for name in ("P0_READY", "P1_READY", "P0_READ"))

        def left():
            seen = []
            for pair in range(BLOCKS):
                yield store(pair, p0)
                yield arrive(p0_ready)
                yield wait_named(p1_ready)
                seen.append((yield finish((yield multiply(p1)))))
                if guarded:
                    yield wait_named(p0_read)
            return seen

        def right():
            seen = []
            for pair in range(BLOCKS):
                yield wait_named(p0_ready)
                product = yield multiply(p0)
                yield store(-pair, p1)
                yield arrive(p1_ready)
                seen.append((yield finish(product)))
                if guarded:
                    yield arrive(p0_read)
            return seen

        return {"left": left(), "right": right()}

    return program


def test_one_barrier_too_few_in_an_exchange_is_a_race_and_no_deadlock():
    right = {"left": [-pair for pair in range(BLOCKS)], "right": list(range(BLOCKS))}
    assert verdicts(exchange(True), right, SEEDS) == {"right": SEEDS}
    bad = verdicts(exchange(False), right, SEEDS)
    assert bad["deadlock"] == 0 < bad["wrong"] < bad["right"]  # rare, as races are


def test_bad_arguments():
    with pytest.raises(ValueError, match="count"):
        Barrier("empty", 0)
    with pytest.raises(ValueError, match="count"):
        NamedBarrier("READY", 0)

    def wrong():
        yield "K0"

    with pytest.raises(TypeError, match="'producer' must yield wait"):
        run(lambda: {"producer": wrong()}, 0)

    def endless():
        bar = Barrier("b")
        while True:
            yield arrive(bar)

    with pytest.raises(RuntimeError, match="not ended after 50 steps"):
        run(lambda: {"producer": endless()}, 0, 50)
