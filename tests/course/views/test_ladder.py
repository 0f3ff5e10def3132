"""The ladder of kernels: lines are those of the source, times those of the recordings."""

from course import measure, views
from course.views import ladder
from course.views.source import show
from kernels.forward import attention_kernel
from kernels.interval import attend_interval


def test_lines_are_those_that_show_marks(without_recording):
    made = {row[0]: row for row in views.kernel_ladder().rows}
    signs = show(attend_interval, against=attention_kernel).signs
    assert made["head tile"][2] == f"{sum(s in '+~' for s in signs)} of {len(signs)}"
    assert [row[0] for row in views.kernel_ladder().rows][0] == "copy" and len(made) == len(ladder.RUNGS)


def test_without_a_recording_no_speed_is_claimed(without_recording):
    made = views.kernel_ladder()
    assert {cell for row in made.rows for cell in row[3:]} == {"–", ladder.MISSING}
    assert "nothing is recorded yet" in repr(made) and "nothing is recorded yet" in made._repr_html_()


def test_times_are_the_recording_s(recorded, monkeypatch):
    made = recorded.recording()
    monkeypatch.setattr(measure, "recordings", lambda gpu, kind: [made] if kind == "decode" else [])
    rows = {row[0]: row for row in views.kernel_ladder().rows}
    one = recorded.row(context_len=8192)
    share = one["cache_bytes"] / one["median_s"] / recorded.READ_RATE
    assert rows["split and merge"][3] == f"{one['median_s'] * 1e6:.4g} µs ({share:.0%})"
    assert rows["page"][3] == ladder.MISSING
    assert "recorded on an NVIDIA H200" in repr(views.kernel_ladder())
    assert "earlier version of the kernels: query tile, head tile, split and merge." in repr(views.kernel_ladder())
