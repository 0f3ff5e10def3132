"""Residency: what limits the programs of an SM, and the turns they take."""

import pytest

from course import costs


@pytest.mark.parametrize("asked, programs, limit", [
    ({"warps": 4}, 16, "warps"),
    ({"warps": 4, "registers": 255}, 2, "registers"),
    ({"warps": 1}, 32, "programs"),
    ({"warps": 4, "shared_bytes": 96 * costs.KiB}, 2, "shared memory"),
    ({"warps": 8, "registers": 253, "shared_bytes": 227 * costs.KiB}, 1, "registers"),
])  # fmt: skip
def test_an_h200(asked, programs, limit):
    got = costs.resident("H200 SXM", **asked)
    assert (got.programs, got.limit) == (programs, limit)
    assert got.warps == programs * asked["warps"] and got.max_warps == 64
    assert got.occupancy == got.warps / 64


def test_every_gpu_of_the_table_has_limits_and_holds_what_one_program_may_ask_for():
    for gpu in costs.gpus(doubtful=True):
        most = costs.resident(gpu, warps=4, shared_bytes=gpu.shared_memory_per_block)
        assert most.programs == 1 and most.limit == "shared memory"
        assert costs.resident(gpu, warps=1).programs >= 16


def test_registers_are_handed_out_in_pieces():
    assert (
        costs.resident("H200 SXM", warps=4, registers=33).programs == costs.resident("H200 SXM", warps=4, registers=40).programs
    )
    assert costs.resident("H200 SXM", warps=4, registers=40).programs == 12


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="shared memory"):
        costs.resident("T4", warps=4, shared_bytes=100 * costs.KiB)
    with pytest.raises(ValueError, match="registers"):
        costs.resident("T4", warps=16, registers=255)


@pytest.mark.parametrize("programs, places, turns", [(1, 132, 1), (132, 132, 1), (133, 132, 2), (264, 132, 2), (265, 132, 3)])
def test_waves(programs, places, turns):
    assert costs.n_waves(programs, places) == turns
