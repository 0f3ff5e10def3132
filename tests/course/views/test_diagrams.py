"""Drawings: the numbers in their words are those of kernels.plan, and only chapters that exist are named."""

import re

import pytest

from course import views
from course.views import diagrams
from kernels import plan


def test_the_path_names_every_question_and_only_written_chapters():
    made = views.token_path()
    for _, words, _ in diagrams.QUESTIONS:
        assert words.replace("\n", " ") in made.alt
    named = {int(n) for group in re.findall(r"\(chapter ([\d, ]+)\)", made.alt) for n in group.split(",")}
    asked = {n for _, _, numbers in diagrams.QUESTIONS for n in numbers}
    assert named == asked & diagrams.written_chapters()


def test_all_chapters_when_told():
    assert "which record? (chapter 2, 7)" in views.token_path(chapters=range(14)).alt


def test_a_chapter_s_part_is_lit():
    lit, other = views.token_path(4), views.token_path(5)
    assert "Lit here: who shares the tile?" in lit.caption
    assert "whose interval?; how do the intervals join?" in other.caption
    assert len({lit.name, other.name, views.token_path().name}) == 3
    assert lit.png != other.png


def test_every_lit_question_stays_on_the_sheet(monkeypatch):
    beyond = []
    finish = diagrams.figure

    def spy(fig, **words):
        fig.canvas.draw()
        edge = fig.get_figwidth() * fig.dpi
        beyond.extend(text.get_window_extent().x1 - edge for ax in fig.axes for text in ax.texts)
        return finish(fig, **words)

    monkeypatch.setattr(diagrams, "figure", spy)
    for chapter in {number for _, _, numbers in diagrams.QUESTIONS for number in numbers}:
        views.token_path(chapter, chapters=range(14))
    assert max(beyond) <= 0


def test_a_chapter_without_a_part_is_refused():
    with pytest.raises(ValueError, match="lit"):
        views.token_path(1)


@pytest.mark.parametrize(
    "shape", [(32, 8, 16, 1), (8, 8, 16, 1), (48, 1, 32, 1), (71, 1, 16, 1), (8, 2, 16, 3), (24, 2, 8, 1), (32, 32, 16, 8)]
)
def test_head_tiles_counts_are_the_plan_s(shape):
    n_q_heads, n_kv_heads, block_h, q_len = shape
    made = views.head_tiles_figure(n_q_heads, n_kv_heads, block_h, q_len=q_len)
    rows = n_q_heads // n_kv_heads * q_len
    tiles = plan.head_tiles(rows, 1, block_h=block_h)
    assert f"{tiles * block_h - rows} padded" in made.alt
    programs = plan.decode_programs(1, n_q_heads, n_kv_heads, block_h=block_h, q_len=q_len)
    assert f"In all {n_q_heads} programs against {programs}." in made.alt


@pytest.mark.parametrize("wrong", [(32, 5, 16), (0, 1, 16), (8, 2, 0)])
def test_head_tiles_refuses_impossible_shapes(wrong):
    with pytest.raises(ValueError, match="n_kv_heads"):
        views.head_tiles_figure(*wrong)


def test_decode_step_says_the_shapes():
    made = views.decode_step_figure(n_q_heads=8, n_kv_heads=2, head_dim=4, context_len=6)
    assert "q, 4 by 4" in made.alt and "4 by 6" in made.alt and "6 by 4" in made.alt
    with pytest.raises(ValueError, match="head_dim"):
        views.decode_step_figure(head_dim=128)


def test_no_letter_is_too_small_for_a_phone(monkeypatch):
    """At 360 pixels a figure of five inches has 72 pixels an inch: a point is a pixel."""
    sizes = []
    finish = diagrams.figure

    def spy(fig, **words):
        sizes.extend(text.get_fontsize() for ax in fig.axes for text in ax.texts)
        return finish(fig, **words)

    monkeypatch.setattr(diagrams, "figure", spy)
    views.token_path()
    views.head_tiles_figure()
    views.decode_step_figure()
    assert min(sizes) >= 9
