"""Recorded times over KV heads: the floors are those of course.costs, and every mark is a row."""

import pytest

from course import costs, views


def test_floors_and_recorded_times_are_told(with_recording):
    made = views.shared_heads_measured(with_recording, batch=16, context_len=8192)
    gpu = costs.gpu("H200 SXM")
    one = costs.cache_bytes(costs.Attention.gqa(32, 1, 128), 8192, batch=16)
    assert f"from {costs.format_seconds(one / gpu.bandwidth)} to {costs.format_seconds(32 * one / gpu.bandwidth)}" in made.alt
    assert costs.format_seconds(one * 65 / gpu.bandwidth) in made.alt
    row = with_recording.fastest(operation="decode", splits="automatic", batch=16, context_len=8192, n_kv_heads=1)
    assert f"grouped decode kernel: {costs.format_seconds(row['median_s'])} at 1" in made.alt
    fastest = with_recording.fastest(operation="sdpa", batch=16, context_len=8192, n_kv_heads=32)
    assert fastest["backend"] == "FLASH" and f"{costs.format_seconds(fastest['median_s'])} at 32" in made.alt
    assert "heads copied, then" not in made.alt  # the recording holds none
    assert "recorded on" in made.caption and "earlier version" in made.caption


@pytest.mark.parametrize("batch", [1, 2])
def test_without_a_row_only_lines_are_drawn(with_recording, batch):
    made = views.shared_heads_measured(None if batch == 1 else with_recording, batch=batch)
    assert "Nothing is recorded" in made.caption and "recorded on" not in made.caption
