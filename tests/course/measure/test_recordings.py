"""course.measure.recordings: labelled numbers, and clear words for every kind of damage."""

import copy
import json

import pytest

from course import costs, measure
from course.measure import gpu_tests
from course.measure.recordings import PROVENANCE, RECORDED, ROW, SINCE_2, TIMES, slug


def test_label_rows_and_read_rate(data, write):
    recording = measure.load(write(data))
    assert recording.label == "recorded on an NVIDIA H200, driver 1.2.3, torch 2.11.0, Triton 3.6.0, 2026-11-29"
    assert recording.read_bandwidth == 2**31 / 4.6e-4
    assert len(recording.rows) == 3
    assert recording.provenance["sm_count"] == 132


def test_label_without_driver_and_with_another_article(data, write):
    data["provenance"] |= {"gpu": "Tesla T4", "driver": None}
    assert measure.load(write(data)).label.startswith("recorded on a Tesla T4, torch 2.11.0")


def test_select(data, write):
    recording = measure.load(write(data))
    assert [row["batch"] for row in recording.select(operation="decode")] == [1, 16]
    assert recording.select(operation="decode", batch=16)[0]["median_s"] == 1.2e-4
    assert recording.select(batch=3) == []
    assert len(recording.select()) == 3
    with pytest.raises(ValueError, match=r"no field 'context'; did you mean 'context_len'\? \(fields: operation"):
        recording.select(context=8192)


def test_current_follows_the_kernels(data, write, present_digest):
    assert not measure.load(write(data)).current
    data["provenance"]["kernels_sha256"] = present_digest
    assert measure.load(write(data)).current


def test_newest_first_and_by_gpu(data, write, tmp_path):
    def dated(date, name, gpu="NVIDIA H200", torch="2.11.0"):
        changed = copy.deepcopy(data)
        changed["provenance"] |= {"date": date, "gpu": gpu, "torch": torch}
        write(changed, name, slug(gpu))

    dated("2026-11-28", "decode-2026-11-28.json")
    dated("2026-11-29", "decode-2026-11-29.json", torch="first")
    dated("2026-11-29", "decode-2026-11-29-2.json", torch="second")
    dated("2026-11-29", "decode-2026-11-29-10.json", torch="tenth")
    dated("2026-12-01", "decode-2026-12-01.json", gpu="NVIDIA L4")
    dated("2026-12-01", "quick-2026-12-01.json")
    found = measure.recordings("NVIDIA H200", folder=tmp_path)
    assert [r.provenance["torch"] for r in found] == ["tenth", "second", "first", "2.11.0"]
    assert measure.latest(folder=tmp_path).provenance["torch"] == "tenth"
    assert measure.recordings(folder=tmp_path)[0].provenance["gpu"] == "NVIDIA L4"
    with pytest.raises(LookupError, match=r"'NVIDIA H20'; did you mean 'NVIDIA H200'\? \(there are: NVIDIA H200, NVIDIA L4\)"):
        measure.latest("NVIDIA H20", folder=tmp_path)
    with pytest.raises(LookupError, match=r"there are: none\).*python -m course.measure"):
        measure.latest(kind="prefill", folder=tmp_path)


def test_no_reads_no_read_rate(data, write):
    data["reads"] = []
    with pytest.raises(ValueError, match="holds no reads"):
        _ = measure.load(write(data)).read_bandwidth


def test_rate_of_the_l2_is_that_of_warm_reads_that_fit(data, write):
    assert measure.load(write(data)).l2_bandwidth is None
    for mib, more in ((1, 9e-6), (4, 0), (16, 0), (32, 0), (64, 9e-6)):  # too few bytes, and more than it holds, are no help
        seconds = 2e-6 + mib * 2**20 / 8e12 + more
        data["limits"].append({"operation": "warm read", "bytes": mib * 2**20, "flops": 0} | dict.fromkeys(TIMES, seconds))
    assert measure.load(write(data)).l2_bandwidth == pytest.approx(8e12)


def test_cut_off_anywhere_is_damage(data, write):
    text = json.dumps(data)
    for end in range(0, len(text), 97):
        with pytest.raises(ValueError, match="decode-2026-11-29.json is damaged or cut off"):
            measure.load(write(text[:end]))


@pytest.mark.parametrize("part", ["schema", "kind", "provenance", "reads", "limits", "rows"])
def test_missing_parts(data, write, part):
    del data[part]
    with pytest.raises(ValueError, match=f"json: recording.{part} is missing"):
        measure.load(write(data))


@pytest.mark.parametrize("field", PROVENANCE)
def test_missing_provenance(data, write, field):
    del data["provenance"][field]
    with pytest.raises(ValueError, match=f"provenance.{field} is missing"):
        measure.load(write(data))


@pytest.mark.parametrize("field", ROW)
def test_missing_and_mistyped_row_fields(data, write, field):
    good = data["rows"][1].pop(field)
    with pytest.raises(ValueError, match=rf"rows\[1\].{field} is missing"):
        measure.load(write(data))
    for bad in ([], 1 if field == "causal" else True):
        data["rows"][1][field] = bad
        with pytest.raises(ValueError, match=rf"rows\[1\].{field} is {bad!r}".replace("[]", r"\[\]")):
            measure.load(write(data))
    data["rows"][1][field] = good
    measure.load(write(data))


@pytest.mark.parametrize(
    ("where", "change", "message"),
    [
        ("rows", {"median_s": -1.0}, r"rows\[0\].median_s is -1.0, not above 0"),
        ("rows", {"median_s": 0.0}, "not above 0"),
        ("rows", {"p20_s": 1.0}, "not between the 20th and the 80th"),
        ("rows", {"median_s": None}, "median_s is null"),
        ("rows", {"error": {"max_abs": 1e-3}}, "error.relative_l2 is missing"),
        ("rows", {"error": None}, "no rounds, method or error"),
        ("rows", {"status": "fine"}, "status is 'fine', not one of 'ok'"),
        ("rows", {"operation": "mla"}, "operation is 'mla'"),
        ("rows", {"lengths": "odd"}, "lengths is 'odd'"),
        ("rows", {"causal": 1}, "causal is 1, not bool"),
        ("rows", {"cache_dtype": "float8_e4m3fn"}, "cache_error is a NoneType, not an object"),
        ("limits", {"p20_s": 1.0}, r"limits\[0\]: the median is not between"),
        ("rows", {"context_len": 0}, "context_len is 0, not above 0"),
        ("rows", {"batch": 1.5}, "batch is 1.5, not int"),
        ("rows", {"status": "wrong", "reason": "off"}, "status 'wrong' and a time all the same"),
        ("reads", {"bytes": -5}, r"reads\[0\].bytes is -5"),
        ("reads", {"p80_s": 1e-9}, "not between"),
    ],
)
def test_impossible_values(data, write, where, change, message):
    data[where][0] |= change
    with pytest.raises(ValueError, match=message):
        measure.load(write(data))


def test_refusals_need_a_reason_and_nan_is_no_number(data, write):
    data["rows"][2]["reason"] = None
    with pytest.raises(ValueError, match=r"rows\[2\] has status 'unsupported' and no reason"):
        measure.load(write(data))
    data["rows"][2]["reason"] = "no"
    data["rows"][0]["median_s"] = float("nan")
    with pytest.raises(ValueError, match="median_s is nan, not int or float or null"):
        measure.load(write(data))


def test_other_schema_and_other_json(data, write):
    with pytest.raises(ValueError, match="schema is 3, and this course reads schemas 1 and 2"):
        measure.load(write({**data, "schema": 3}))
    with pytest.raises(ValueError, match="recording is a list, not an object"):
        measure.load(write("[]"))
    with pytest.raises(ValueError, match=r"rows\[0\] is a int, not an object"):
        measure.load(write({**data, "rows": [3]}))


def test_faster_than_the_data_sheet_is_an_error(data, write):
    assert measure.check(measure.load(write(data))) == []
    least = 33554432 / costs.gpu("NVIDIA H200").bandwidth
    data["rows"][0] |= {"median_s": 0.99 * least, "p20_s": 0.99 * least, "p80_s": 0.99 * least}
    data["reads"][1] |= {"median_s": 4e-4, "p20_s": 4e-4, "p80_s": 4e-4}
    data["limits"] += [
        {**data["limits"][0], "median_s": 4e-4, "p20_s": 4e-4, "p80_s": 4e-4},
        {**data["limits"][0], "operation": "warm read", "median_s": 1e-4, "p20_s": 1e-4, "p80_s": 1e-4},
        {**data["limits"][0], "operation": "matmul burst", "flops": 10**12, "median_s": 1e-3, "p20_s": 1e-3, "p80_s": 1e-3},
    ]
    read, copied, product, row = measure.check(measure.load(write(data)))
    assert "read of 2147483648 bytes" in read
    assert "copy" in copied and "matmul burst" in product
    assert "operation=decode" in row
    assert "above 100% of the data sheet" in row
    data["provenance"]["gpu"] = "Unheard Of 9000"
    assert measure.check(measure.load(write(data))) == []


def test_limits_read_backwards_in_time(data, write):
    """Schema 1 had no limits, and its rows are decode steps of one token over a contiguous 16-bit cache."""
    new = measure.load(write(data))
    for row in data["rows"]:
        for key in SINCE_2:
            del row[key]
    del data["limits"], data["provenance"]["plan_sha256"], data["provenance"]["peers"]
    old = measure.load(write({**data, "schema": 1}))
    assert (old.rows, old.reads, old.limits) == (new.rows, new.reads, [])
    assert old.select(page_size=None, q_len=1) == old.rows


def test_what_a_gpu_can_do_at_most(data, write):
    recording = measure.load(write(data))
    assert recording.limit("copy") == 2**31 / 5e-4
    with pytest.raises(LookupError, match=r"kind 'decode' holds no 'matmul burst' \(there are: copy\)"):
        recording.limit("matmul burst", "flops")
    # Cold reads of sizes between the recorded ones lie between their times, beyond them at the nearest rate.
    assert recording.read_seconds(2**25) == 1e-5
    assert recording.read_seconds(2**24) == 5e-6
    assert recording.read_seconds(2**32) == pytest.approx(9.2e-4)
    assert recording.read_seconds((2**25 + 2**31) / 2) == pytest.approx(2.35e-4)


def test_fastest(data, write):
    recording = measure.load(write(data))
    assert recording.fastest(operation="decode")["batch"] == 1
    assert recording.fastest(operation="sdpa") is None
    with pytest.raises(ValueError, match="did you mean"):
        recording.fastest(operations="sdpa")


def test_slug():
    assert slug("NVIDIA H200") == "nvidia-h200"
    assert slug("NVIDIA GeForce RTX 4090 / D") == "nvidia-geforce-rtx-4090-d"


COMMITTED = sorted(path for path in RECORDED.glob("*/*.json") if not path.name.startswith(gpu_tests.KIND))


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_committed_recordings_are_whole_and_possible(path):
    recording = measure.load(path)
    assert measure.check(recording) == []
    assert path.parent.name == slug(recording.provenance["gpu"])
    assert path.name.startswith(f"{recording.kind}-{recording.provenance['date']}")
    text = path.read_text()
    assert "/home/" not in text
    assert "/work" not in text
