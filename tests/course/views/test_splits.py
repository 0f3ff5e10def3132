"""Pictures of chapter 5: their words are the arithmetic's, with a recording and without."""

import pytest

from course import costs, measure, views


def test_the_parts_of_a_split_step():
    made = views.split_merge_figure(context_len=12_000, num_splits=3, rows=2)
    assert "12,000 keys cut into 3 intervals of 4,000" in made.alt and "2 query heads and 3 splits" in made.caption
    with pytest.raises(ValueError, match="splits"):
        views.split_merge_figure(context_len=100, num_splits=3)
    with pytest.raises(ValueError, match="splits"):
        views.split_merge_figure(num_splits=8)


def test_waves_hold_every_program(without_recording):
    made = views.waves_figure(programs=(132, 270), sm_count=132)
    assert "132 programs, wave 1: 132 running" in made.alt
    assert "270 programs, wave 3: 6 running" in made.alt and "wave 4" not in made.alt
    assert "assumed" in made.caption and "recorded on" not in made.caption


def rows_of(recorded, splits, **more):
    return [recorded.row(num_splits=n, splits="given", slower=8 / n, **more) for n in splits]


@pytest.fixture
def sweep(recorded):
    """The synthetic recording with a sweep of splits for two contexts."""
    one = recorded.recording()
    rows = [row for n in (8192, 131_072) for row in rows_of(recorded, (1, 2, 4, 8, 16, 32), context_len=n)]
    return measure.Recording(one.kind, one.provenance, one.reads, rows)


def test_times_of_splits_with_a_recording(sweep):
    shapes = [(1, 32, 8, 8192)]
    made = views.split_times(sweep, shapes=shapes, model=measure.wave_model(sweep))
    floor = costs.floor(33_554_432, 0, "H200 SXM").seconds
    fastest = min(sweep.select(context_len=8192), key=lambda row: row["median_s"])
    assert f"floor {costs.format_seconds(floor)}" in made.alt
    assert f"fastest {costs.format_seconds(fastest['median_s'])} with 32 splits" in made.alt
    assert sweep.label in made.caption and "model of waves" in made.caption and "Filled" not in made.caption


def test_times_of_splits_without_a_recording():
    made = views.split_times(None)
    assert "Nothing is recorded" in made.caption and "recorded on" not in made.caption


def test_live_rows_are_drawn_and_named(recorded):
    live = rows_of(recorded, (1, 4))
    made = views.split_times(None, shapes=[(1, 32, 8, 8192)], live=live, live_label="live on a test")
    assert "live on a test" in made.caption and "live" in made.alt
    assert made.png != views.split_times(None, shapes=[(1, 32, 8, 8192)]).png


def test_the_explorer_says_which_constants_it_has(sweep, monkeypatch, without_recording):
    assert "constants are assumed" in views.split_sweep().sentence
    monkeypatch.setattr(measure, "recordings", lambda *args, **kwargs: [sweep])
    made = views.split_sweep()
    assert "read off the recorded points" in made.sentence and len(made.spec()["datasets"]["recorded"]) == 12


def test_the_explorer_s_tile_rule_is_the_kernel_s():
    from course.views.explorers import split_sweep

    gpu = costs.gpu("H200 SXM")
    for n_kv_heads in split_sweep.KV_HEADS:
        for context_len in (512, 8192, 131_072):
            for num_splits in (1, 2, 4, 17, 64, 256):
                row = {"batch": 1, "n_q_heads": 32, "n_kv_heads": n_kv_heads, "head_dim_qk": 128, "head_dim_v": 128,
                       "head_dim_shared": 0, "q_len": 1, "context_len": context_len, "num_splits": num_splits}  # fmt: skip
                row_tiles, short, long = split_sweep._tiling(gpu, n_kv_heads)
                launch = measure.split_launch(row, gpu)
                assert launch.programs_per_split == row_tiles
                assert launch.block_n == (long if context_len // num_splits >= split_sweep.LONG else short)


@pytest.mark.parametrize("name", [g.name for g in costs.gpus()])
def test_a_split_decode_is_bound_by_memory_on_every_gpu_of_the_explorer(name):
    gpu = costs.gpu(name)
    if "bfloat16" in gpu.peaks:
        assert gpu.ridge() > 32  # 32 query heads over one KV head: 32 FLOP a byte
