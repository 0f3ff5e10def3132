"""Speed of whole sequences: the figure says what the rows say."""

import pytest

from course import views
from course.views import measured_full_sequence


@pytest.fixture
def whole(recorded):
    return recorded.full_sequence_recording()


def test_the_words_are_the_recording_s(whole):
    made = views.whole_sequence_speed(whole)
    assert "kernels.attention, recorded: 500 TFLOP/s at 1,024 tokens to 500 at 16,384." in made.alt
    assert "the kernel shown, recorded: 417" in made.alt and "kernels of its own" in made.caption
    assert "cuDNN, recorded: 556" in made.alt and whole.label in made.caption
    assert "FlashAttention-4, recorded: 455 TFLOP/s" in made.alt and "partials" not in made.alt


def test_backward_shows_the_partials(whole):
    made = views.whole_sequence_speed(whole, direction="backward")
    assert "partials, then their sum, recorded: 400 TFLOP/s" in made.alt and made.name == "backward-speed"


def test_without_a_recording_only_the_peak_is_drawn():
    made = views.whole_sequence_speed(None)
    assert "Nothing is recorded" in made.caption and "989 TFLOP/s" in made.alt


def test_live_rows_are_drawn_with_any_batch(whole, recorded):
    shape = measured_full_sequence.Shape(1, 32, 8, 2048, q_len=2048, dtype="float16")
    live = [recorded.full_sequence_row(shape, slower=10.0)]
    made = views.whole_sequence_speed(whole, live=live, live_label="live on a toy")
    assert "kernels.attention, live: 50 TFLOP/s at 2,048 tokens" in made.alt and "Filled marks: live on a toy." in made.caption


def test_the_floor_is_memory_where_a_call_computes_little(recorded):
    shape = measured_full_sequence.Shape(128, 32, 32, 16, q_len=16)
    row = recorded.full_sequence_row(shape)
    gpu = measured_full_sequence.costs.gpu("H200 SXM")
    n_bytes = 2 * 128 * 16 * (32 + 32) * 256
    assert measured_full_sequence._floor(row, gpu) == pytest.approx(n_bytes / gpu.bandwidth)


def test_an_unknown_direction_is_refused():
    with pytest.raises(ValueError, match="direction"):
        views.whole_sequence_speed(None, direction="sideways")
