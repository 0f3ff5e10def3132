"""Drawings of a GPU: their numbers are the table's and the recording's."""

import dataclasses

import pytest

from course import costs, views
from course.views import diagrams_machine


@pytest.mark.parametrize("gpu", costs.gpus(doubtful=True), ids=lambda gpu: gpu.name)
def test_the_levels_are_those_of_the_table(gpu):
    made = views.gpu_figure(gpu.name)
    assert f"{gpu.sm_count} small squares" in made.alt
    assert costs.format_bytes(gpu.l2_bytes) in made.alt
    assert f"{costs.format_bytes(gpu.shared_memory_per_block)} for one program" in made.alt
    assert f"{gpu.memory_bytes / 1e9:.0f} GB" in made.alt


@pytest.mark.parametrize(
    "programs, sms, waves, used", [(9, 8, 2, "56%"), (8, 8, 1, "100%"), (1, 8, 1, "12%"), (17, 8, 3, "71%")]
)
def test_waves(programs, sms, waves, used):
    made = views.turns_figure(programs, sms)
    assert f"take {waves} wave" in made.caption and f"{used} are used" in made.caption
    left = programs - (waves - 1) * sms
    assert (f"a last wave in which {left} of {sms} SMs" in made.alt) == (left < sms)


@pytest.mark.parametrize("wrong", [(0, 8), (9, 0), (33, 8), (5, 13)])
def test_waves_that_cannot_be_drawn(wrong):
    with pytest.raises(ValueError, match="waves"):
        views.turns_figure(*wrong)


def test_rates_are_the_recording_s(with_recording, recorded):
    rows = [
        recorded.row(
            context_len=131072, head_dim_shared=0, q_len=1, batch=batch, splits="given", num_splits=splits, slower=slower
        )
        for batch, splits, slower in ((1, 1, 9.0), (1, 4, 2.5), (16, 1, 1.0))
    ]
    recording = dataclasses.replace(with_recording, rows=rows)
    made = views.programs_rate(recording)
    first = rows[0]["cache_bytes"] / rows[0]["median_s"] / 1e12
    last = rows[-1]["cache_bytes"] / rows[-1]["median_s"] / 1e12
    assert f"from 8 programs, {first:.2f} TB/s" in made.alt and f"level off near {last:.1f} TB/s" in made.alt
    assert with_recording.label in made.caption


def test_without_a_recording_no_rate_is_claimed():
    made = views.programs_rate(None)
    assert "nothing is recorded" in made.alt and "recorded on" not in made.caption


def test_no_letter_is_too_small_for_a_phone(monkeypatch):
    sizes = []
    finish = diagrams_machine.figure

    def spy(fig, **words):
        sizes.extend(text.get_fontsize() for ax in fig.axes for text in ax.texts)
        return finish(fig, **words)

    monkeypatch.setattr(diagrams_machine, "figure", spy)
    views.gpu_figure()
    views.turns_figure()
    assert min(sizes) >= 9
