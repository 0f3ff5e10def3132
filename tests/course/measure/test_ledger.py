"""course.measure.comparison and ledger: wins and losses from made-up recordings, and a page that is not behind them."""

import re

import pytest
import torch

from course import measure
from course.measure import comparison, ledger, record
from course.measure.comparison import GOALS, WORKLOADS
from course.measure.plans import KINDS
from course.measure.shapes import Shape

READ_RATE = 4.6e12
PRODUCTS = 6.5e14


def seconds(point) -> float:
    """Memory or arithmetic at full rate, and who is how much slower: ours as fast as that, peers by their names."""
    shape = point.shape
    slower = {"decode": 1.0, "flashinfer": 1.25, "sdpa": 1.1, "flex": 3.0, "repeat_sdpa": 20.0}.get(point.operation, 1.0)
    slower *= {"MATH": 9.0, "EFFICIENT": 1.5, "FLASH": 1.02}.get(point.backend, 1.0)
    if point.backend == "CUDNN" and shape.batch == 64:
        slower *= 0.95
    if shape.page_size and not (point.work_list and shape.lengths == "ragged"):
        slower *= 1.05
    return max(shape.cache_bytes / READ_RATE, shape.flops / PRODUCTS) * slower


@pytest.fixture
def recorded(data, write):
    """Writes a recording of a kind with made-up times; ``change`` may spoil a row."""

    def recorded(kind, change=lambda row: None, **provenance):
        plan = KINDS[kind]("bfloat16")
        rows = []
        for point in plan.points:
            t = seconds(point)
            row = record.row(point, torch.device("cpu")) | {
                **{"median_s": t, "p20_s": t, "p80_s": t, "rounds": 9, "method": "graph"},
                **{"error": {"max_abs": 1e-3, "relative_l2": 1e-3}},
                "cache_error": {"max_abs": 1e-2, "relative_l2": 0.0264} if point.shape.cache_dtype else None,
            }
            change(row)
            rows.append(row)
        times = {"median_s": 1e-3, "p20_s": 1e-3, "p80_s": 1e-3}
        reads = [{"bytes": n, **dict.fromkeys(times, n / READ_RATE)} for n in plan.reads]
        limits = [{"operation": limit.operation, "bytes": 8, "flops": int(PRODUCTS / 1e3), **times} for limit in plan.limits]
        content = {**data, "kind": kind, "reads": reads, "limits": limits, "rows": rows}
        content["provenance"] = {**data["provenance"], "peers": {"FlashInfer": "0.7.2", "cuDNN": None}, **provenance}
        return measure.load(write(content, f"{kind}-2026-11-29.json"))

    return recorded


def slower(batch, factor):
    def change(row):
        if row["operation"] == "decode" and row["batch"] == batch:
            row |= dict.fromkeys(("median_s", "p20_s", "p80_s"), factor * row["median_s"])

    return change


def refuse(*operations):
    def change(row):
        if row["operation"] in operations:
            row |= dict.fromkeys(("median_s", "p20_s", "p80_s", "rounds", "method", "error"))
            row |= {"status": "unsupported", "reason": "No module named 'flashinfer'"}

    return change


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def test_every_workload_is_in_its_plan(recorded):
    """Each row of the ledger finds what its kind records, and at least a peer where a peer is to be beaten."""
    for kind in KINDS:
        recording = recorded(kind)
        assert measure.check(recording) == []
        for workload in WORKLOADS.values():
            if workload.kind == kind:
                for entry in comparison.entries(workload, recording):
                    assert entry.ours, entry.shape
                    assert entry.peer or workload.bound == "bits", entry.shape


def test_every_goal_has_rows(recorded):
    recordings = {kind: recorded(kind) for kind in KINDS}
    for goal in GOALS:
        of = comparison.entries(WORKLOADS[goal.workload], recordings[WORKLOADS[goal.workload].kind])
        values = [goal.value(entry) for entry in of if goal.only(entry)]
        assert values and None not in values, goal.words


def test_wins_levels_and_losses(recorded, tmp_path):
    recorded("decode", slower(128, 1.104))
    text = ledger.render(folder=tmp_path)
    assert "| Decode, contiguous cache | 8 | 7 | 1 | 0 | 0 |" in text
    table = section(text, "Decode, contiguous cache")
    assert "| B16 32/8 L8192 | 116.7 µs | 128.4 µs SDPA CUDNN | win, 0.91 | 100% |" in table
    assert "level, 1.00" in table
    assert re.search(r"\| B64 32/8 L8192 \| SDPA CUDNN \| 487.[89] µs \| 1.0[45] \|", table)
    assert "| B16 32/8 L8192 | FlashInfer fa2 | 145.9 µs | 1.25 |" in table
    assert "| B16 32/8 L8192 | heads copied, SDPA FLASH |" in table
    assert "ours, full-sequence kernel" in table


def test_losses_are_named(recorded, tmp_path):
    recorded("decode", slower(64, 1.2))
    text = ledger.render(folder=tmp_path)
    assert "| Decode, contiguous cache | 8 | 7 | 0 | 1 | 0 |" in text
    assert "loss, 1.15" in text
    goals = section(text, "Goals")
    assert "| Decode: no slower than the best peer | 7 of 8 | B64 32/8 L8192: 1.15 |" in goals
    assert "| Decode, 2 GB: 98% of a read of that size | 1 of 2 | B64 32/8 L8192: 83.3% |" in goals
    assert "| Decode, 34 MB: 75% of a read of that size | yes, 1 of 1 |  |" in goals


def test_pages_show_the_faster_form_and_arithmetic_its_rate(recorded, tmp_path):
    recorded("paged")
    recorded("mla")
    recorded("prefill")
    text = ledger.render(folder=tmp_path)
    ragged = section(text, "Decode, paged cache")
    assert "| B64 32/8 ragged L32768 page 16 | ours, work list |" in ragged
    assert "win, 0.76" in ragged
    many = section(text, "MLA, 128 heads")
    assert "650 (100%)" in many and "TFLOP/s (of product)" in many
    assert "multiplied large matrices at 650 TFLOP/s, hot" in many
    assert "ours, partial sums" in section(text, "Whole sequences, backward")
    assert "| MLA, 16 heads: pages of 64 within 5% of contiguous | yes, 5 of 5 |" in section(text, "Goals")


def test_eight_bits_beside_sixteen(recorded, tmp_path):
    recorded("fp8")
    text = ledger.render(folder=tmp_path)
    assert "A cache in 8 bits |" not in section(text, "In short")
    assert "| B16 32/8 L8192 FP8 | 116.7 µs | 60.18 µs | 1.94 × | 100% | 2.6% |" in section(text, "A cache in 8 bits")
    assert "| GQA cache in 8 bits, 0.5 GB in 16: 1.8 times as fast | yes, 9 of 9 |" in section(text, "Goals")


def test_a_missing_peer_is_no_victory(recorded, tmp_path):
    recorded("paged", refuse("flashinfer"))
    text = ledger.render(folder=tmp_path)
    assert "| Decode, paged cache | 8 | 0 | 0 | 0 | 8 |" in text
    assert "no peer" in section(text, "Decode, paged cache")
    assert "| FlashInfer fa2 | unsupported | – |" in text
    assert "| Paged: no slower than FlashInfer | 0 of 8 |" in text and "not measured" in text


def test_a_wrong_answer_has_no_time(recorded, tmp_path):
    def wrong(row):
        if row["operation"] == "decode":
            refuse("decode")(row)
            row["status"] = "wrong"

    recorded("decode", wrong)
    text = ledger.render(folder=tmp_path)
    assert "| Decode, contiguous cache | 8 | 0 | 0 | 0 | 8 |" in text
    assert "no time of ours" in text and "| ours | wrong | – |" in text


def test_where_the_numbers_are_from(recorded, tmp_path, present_digest):
    recorded("decode", kernels_sha256=present_digest)
    recorded("paged")
    text = ledger.render(folder=tmp_path)
    line = "Recorded on an NVIDIA H200, driver 1.2.3, torch 2.11.0, Triton 3.6.0, 2026-11-29, FlashInfer 0.7.2, no cuDNN."
    assert line in section(text, "Decode, contiguous cache")
    assert "earlier version" not in section(text, "Decode, contiguous cache")
    assert "**Recorded with an earlier version of the kernels.**" in section(text, "Decode, paged cache")
    assert "Not recorded yet." in section(text, "MLA, 16 heads")


def test_tables_are_whole_and_narrow(recorded, tmp_path):
    for kind in KINDS:
        recorded(kind)
    widths = []
    for line in ledger.render(folder=tmp_path).splitlines():
        if line.startswith("|"):
            widths.append(line.count("|") - 1)
            assert max(map(len, re.split(r"[ |]", line))) < 20  # what cannot wrap fits a phone
        elif widths:
            assert len(set(widths)) == 1 and 3 <= widths[0] <= 6
            widths = []


def test_only_the_part_between_the_marks_is_written(recorded, tmp_path):
    recorded("decode")
    page = tmp_path / "ledger.md"
    page.write_text("by hand\n\n% begin ledger\n\nold\n\n% end ledger\n\nby hand, too\n")
    ledger.write(page, tmp_path)
    text = page.read_text()
    assert text.startswith("by hand\n\n% begin ledger\n\n## In short") and text.endswith("% end ledger\n\nby hand, too\n")
    assert "\nold\n" not in text
    ledger.write(page, tmp_path)
    assert page.read_text() == text


def test_the_page_is_not_behind_the_recordings():
    _, shown, _ = ledger.marked(ledger.PAGE, "ledger")
    assert shown.strip("\n") == ledger.render().strip("\n"), "write it: python -m course.measure --ledger"


def test_the_figures_of_the_last_section_are_the_recordings():
    found = {name: comparison.entries(w, measure.latest("NVIDIA H200", w.kind)) for name, w in WORKLOADS.items()}

    def portable(e) -> float:
        """Seconds of the form that every GPU runs."""
        return next(row["median_s"] for row in e.rows if row["operation"].startswith("portable_"))

    def slower(e) -> float:
        return portable(e) / e.ours["median_s"]

    def fa3(e) -> float:
        return next(row["median_s"] for row in e.rows if row["backend"] == "fa3")

    def lost(name: str, backend: str) -> list[float]:
        """Our time over the best peer's where that is a loss; the peer is ``backend`` in all of them."""
        losses = [e for e in found[name] if e.result.startswith("loss")]
        assert {e.peer["backend"] for e in losses} == {backend}, name
        return [e.peer_ratio() for e in losses]

    def span(values, digits: int = 2) -> str:
        low, *_, high = sorted(values)
        return f"{low:.{digits}f} to {high:.{digits}f}"

    many, forward, backward = found["mla128"], found["forward"], found["backward"]
    ratios, others = [e.ours["median_s"] / fa3(e) for e in many], [portable(e) / fa3(e) for e in many]
    rates = [e.flop_rate / 1e12 for e in many][1:]
    stops = max(e.ours["flops"] / portable(e) / 1e12 for e in many)
    (shared, wide), (long,) = lost("forward", "fa4"), lost("forward_lengths", "fa4")
    contiguous, paged = lost("decode", "CUDNN"), lost("paged", "fa2")
    full, (few, ragged) = lost("mla128", None), lost("ragged_mla", None)  # to FlashMLA, which has no variants
    bits = [e.speed_up for e in found["bits"] if e.shape.n_q_heads == 128 and e.shape.head_dim_shared]

    def between(batch: int, n_heads: int, operation: str) -> float:
        return comparison.entry(Shape.mla(batch, n_heads, 8192), many[0].recording).peer_ratio(operation=operation)

    words = (
        f"portable form takes {span(map(slower, many))} times as long",
        f"a ratio of {span(ratios)} where the portable form has {span(others)}",
        f"at {span(rates, 0)} TFLOP/s where it stops at {stops:.0f}",
        f"takes {span(map(slower, forward))} times as long forward, and {span(map(slower, backward))} times backward",
        f"fill the GPU: {span(full)} of FlashMLA's time, and {ragged:.2f} where lengths are ragged; with 16 heads and ragged "
        f"lengths {few:.2f}",
        f"With 96 heads, which are not among the rows above, 64 sequences of 8,192 tokens take "
        f"{between(64, 96, 'flash_mla'):.2f}",
        f"Forward: {shared:.2f} of FlashAttention-4's time with 8 KV heads, {long:.2f} for one sequence of 16,384 tokens, "
        f"and {wide:.2f} at 192/128",
        f"{min(contiguous) - 1:.0%} to {max(contiguous) - 1:.0%} to cuDNN in {len(contiguous)} of {len(found['decode'])} rows",
        f"{max(paged) - 1:.0%} to FlashInfer in {len(paged)} of {len(found['paged'])} rows",
        f"32 heads, which are not among the rows above: {between(16, 32, 'flashinfer'):.2f} of FlashInfer's time for 16",
        f"though {between(64, 32, 'flashinfer'):.2f} for 64 of them",
        f"8 bits: {span(bits)} of the speed",
    )
    text = ledger.PAGE.read_text(encoding="utf-8").split("## What is lost, and why")[1]
    assert [said for said in words if said not in text] == []
    losing = {name for name in found if any(e.result.startswith("loss") for e in found[name])}
    assert losing == {"decode", "paged", "mla128", "ragged_mla", "forward", "forward_lengths"}  # none goes without a line
