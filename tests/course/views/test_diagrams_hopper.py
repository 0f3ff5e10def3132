"""The drawings of the kernels for Hopper name what stands in the kernels."""

import re
from pathlib import Path

import pytest

from course import costs, views
from course.views import diagrams_hopper
from course.views.diagrams_hopper import KERNELS

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("kernel", KERNELS)
def test_names_of_buffers_and_barriers_are_the_kernel_s(kernel):
    roles = KERNELS[kernel]
    text = (ROOT / roles.file).read_text(encoding="utf-8")
    for held in roles.held:
        for name in re.findall(r"[\w.]+", f"{held.full} {held.empty}"):
            assert re.search(rf"\b{re.escape(name)}\b", text), name
    words = re.findall(r"\b[A-Z0-9]+_[A-Z]+\b", roles.between)
    assert all(re.search(rf"\b{word}\b", text) for word in words)


@pytest.mark.parametrize("kernel", KERNELS)
def test_figures_say_what_the_model_says(kernel):
    picture = views.roles_figure(kernel)
    busy = diagrams_hopper.kernel_timeline(kernel).busy()
    assert f"the tensor cores work {busy:.0%} of the time" in picture.caption
    assert f"the tensor cores work {busy:.0%} of the time" in picture.alt
    faster = views.roles_figure(kernel, bandwidth=1e15)
    assert diagrams_hopper.kernel_timeline(kernel, bandwidth=1e15).busy() >= busy and faster.png != picture.png


def test_sizes_of_buffers_fit_and_are_those_of_the_tiles():
    per_block = costs.gpu("H200 SXM").shared_memory_per_block
    for roles in KERNELS.values():
        total = 0.0
        for held in roles.held:
            size = re.fullmatch(r"(?:(\d+) × )?(?:(\d+) × )?([\d.]+) KiB(?:, once)?", held.size)
            if size:
                first, second, each = (float(x or 1) for x in size.groups())
                total += first * second * each * 1024
        assert total <= per_block
    assert KERNELS["forward"].held[2].size == f"2 × {128 * 128 * 2 // 1024} KiB"
    assert KERNELS["mla"].held[0].size == f"{64 * 576 * 2 // 1024} KiB"


def test_an_unknown_kernel_is_an_error():
    with pytest.raises(ValueError, match="forward, backward, mla"):
        views.roles_figure("decode")
