"""Explorers: what Vega computes equals course.costs for every setting, within the size that a page can carry."""

import base64
import functools
import html
import itertools
import json
import re

import pytest

from course import costs, views
from course.views.explorers import base, bytes_per_step

vl_convert = pytest.importorskip("vl_convert")

# Dataset whose rows, after the transforms of the first layer that uses it, are compared with Explorer.expected.
COMPARED = {
    "bytes_per_step": "steps",
    "roofline": "work",
    "decode_time": "lines",
    "programs_and_traffic": "launches",
    "tile_map": "tiles",
    "online_softmax": "keys",
    "forward_time": "lines",
    "backward_time": "lines",
    "gradient_bytes": "lines",
    "page_size": "fits",
    "split_sweep": "sweep",
    "calculator": "grid",
    "models_side_by_side": "bars",
    "latent_record": "records",
    "rotary_residual": "residuals",
    "mla_ridge": "point",
    "expand_or_absorb": "calls",
    "shared_bytes": "ways",
    "read_time": "read_lines",
    "memory_strip": "lanes",
    "rotation": "vectors",
    "pipeline_timeline": "slots",
}


@pytest.fixture(params=COMPARED)
def name(request):
    return request.param


made = functools.cache(lambda name: getattr(views, name)())


@pytest.fixture
def explorer(name, with_recording):
    """One explorer with recorded marks, made once for all tests: making it takes longer than most of them."""
    return made(name)


def texts(spec: dict) -> list[str]:
    svg = vl_convert.vegalite_to_svg(spec, vl_version="5.20")
    lines = re.findall(r"<text[^>]*>(.*?)</text>", svg, flags=re.S)
    return [html.unescape(re.sub(r"<[^>]+>", "\n", line)).strip("\n") for line in lines]


def with_settings(spec: dict, settings: dict) -> dict:
    spec = json.loads(json.dumps(spec))
    for parameter in spec["params"]:
        if parameter["name"] in settings:
            parameter["value"] = settings[parameter["name"]]
    return spec


def evaluate(spec: dict, settings: dict, expressions: dict[str, str], data: dict, transform: list) -> list[dict]:
    """Values of Vega expressions, one row for each row of ``data`` after ``transform``, from the runtime that draws."""
    spec = with_settings(spec, settings)
    drawn = {key: spec[key] for key in ("$schema", "params", "datasets", "width", "height") if key in spec}
    drawn["params"] = [p for p in drawn["params"] if p["name"] != "sentence_lines"]
    if "name" in data:  # a dozen rows from end to end are enough
        rows = drawn["datasets"][data["name"]]
        drawn["datasets"] = {data["name"]: rows[:: max(1, len(rows) // 12)] + rows[-1:]}
    written = [*transform]
    for i, (key, expression) in enumerate(expressions.items()):
        written.append({"calculate": f"'@' + '{key}=' + ({expression})", "as": f"w{i}"})
    joined = " + ".join(f"datum.w{i}" for i in range(len(expressions)))
    written.append({"calculate": joined, "as": "written"})
    # Marks described by what is written, not texts: measuring long ones takes nearly all the time.
    drawn |= {"data": data, "transform": written, "mark": "point"}
    drawn["encoding"] = {"description": {"field": "written", "type": "nominal"}}
    svg = vl_convert.vegalite_to_svg(drawn, vl_version="5.20")
    lines = [html.unescape(line) for line in re.findall(r'aria-label="(@.*?)"', svg, flags=re.S)]
    return [dict(part.split("=", 1) for part in line.split("@")[1:]) for line in lines]


def some(explorer, spec: dict, limit: int) -> list[dict]:
    """Settings over the whole range of every control: each value once at least, and corners."""
    values = {}
    for parameter in spec["params"]:
        bind = parameter.get("bind")
        if bind:
            span = range(bind["min"], bind["max"] + 1, bind["step"]) if bind["input"] == "range" else bind["options"]
            values[parameter["name"]] = list(span)
    chosen = [explorer.settings | {key: value} for key, span in values.items() for value in span]
    corners = itertools.product(*((span[0], span[-1]) for span in values.values()))
    chosen += [dict(zip(values, corner, strict=True)) for corner in itertools.islice(corners, 0, None, 3)]
    unique = {json.dumps(c, sort_keys=True): c for c in chosen}
    step = -(-len(unique) // limit)
    return list(unique.values())[::step]


def test_size(explorer):
    for width in ("container", base.NOTEBOOK_WIDTH):
        spec = explorer.spec(width)
        assert len(json.dumps(spec, ensure_ascii=False)) < 150_000
        assert sum(len(rows) for rows in spec["datasets"].values()) <= 2_000


def test_every_control_is_bound_and_named(explorer):
    bound = {p["name"]: p for p in explorer.spec()["params"] if "bind" in p}
    assert {name: p["value"] for name, p in bound.items()} == explorer.settings
    assert all(p["bind"]["name"].strip() for p in bound.values())
    for p in bound.values():
        if p["bind"]["input"] == "select":
            assert p["value"] in p["bind"]["options"]


def test_names_are_not_vega_s_own(explorer):
    names = [p["name"] for p in explorer.spec()["params"]]
    assert len(set(names)) == len(names)
    assert not set(names) & {
        "width",
        "height",
        "padding",
        "autosize",
        "background",
        "style",
        "parent",
        "datum",
        "event",
        "item",
    }


def test_vega_agrees_with_costs_over_the_range(name, explorer):
    spec = explorer.spec(560)
    layer = next(
        layer for layer in spec["layer"] if COMPARED[name] in json.dumps(layer.get("data", "")) and "transform" in layer
    )
    transform = []
    for step in layer["transform"]:
        if "fold" in step:
            break
        transform.append(step)
    keys = list(explorer.expected(**explorer.settings)[0])
    read = {key: f"datum.{key}" for key in keys} | {"sentence": "sentence"}
    for settings in some(explorer, spec, 24):
        got = evaluate(spec, settings, read, {"name": COMPARED[name]}, transform)
        assert got[0]["sentence"] == explorer.sentence_of(**settings), settings
        want = explorer.expected(**settings)
        # A row is known by its words and by its place on the x axis.
        places = ("users", "context_len", "page_size")
        by = [key for key in keys if isinstance(want[0][key], str) or key in places or key.endswith("_of_row")]
        where = {tuple(str(row[key]) for key in by): row for row in want}
        assert len({tuple(row[key] for key in by) for row in got}) >= min(len(want), 9)
        for row in got:
            right = where[tuple(row[key] for key in by)]
            for key in keys:
                if key not in by:
                    assert float(row[key]) == pytest.approx(right[key], rel=1e-9), (settings, key)


def test_the_chart_says_the_sentence(explorer):
    said = max((line for line in texts(explorer.spec(560)) if "\n" in line), key=len)  # ticks may have two lines
    assert " ".join(said.split()) == explorer.sentence_of(**explorer.settings)


def test_the_sentence_fits_a_phone(explorer):
    said = max((line for line in texts(explorer.spec(320)) if "\n" in line), key=len)
    assert max(len(line) for line in said.split("\n")) * base.LETTER <= 320


def test_html_holds_spec_picture_and_sentence(explorer):
    page = explorer.html()
    assert page.count("<div") == 1 and page.startswith(f'<div class="explorer" id="explorer-{explorer.name}">')
    spec = re.search(r'class="explorer-spec">(.*?)</script>', page, flags=re.S)[1]
    assert json.loads(spec) == explorer.spec()
    assert "<" not in spec
    assert f'<img alt="{html.escape(explorer.alt)}"' in page and len(explorer.alt) > 40
    assert len(base64.b64decode(re.search(r'src="data:image/png;base64,([^"]+)"', page)[1])) < 120_000
    assert html.escape(explorer.sentence) in page
    assert explorer.sentence.startswith(explorer.sentence_of(**explorer.settings))
    assert page.count("cdn.jsdelivr.net") == 1  # inside the loader, which the site's marker stops
    assert page == explorer.html()


def test_the_mime_bundle(explorer, monkeypatch):
    monkeypatch.setattr(base.Explorer, "still", lambda self: None)  # drawing takes long, and other tests look at it
    monkeypatch.delenv("MHA_TO_MLA_PAGE", raising=False)
    assert set(explorer._repr_mimebundle_()) == {"application/vnd.vegalite.v5+json", "text/plain"}
    monkeypatch.setenv("MHA_TO_MLA_PAGE", "1")
    bundle = explorer._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.vegalite.v5+json", "text/html", "text/plain"}
    assert bundle["application/vnd.vegalite.v5+json"]["$schema"].split("/")[-1].startswith("v5.")
    assert isinstance(bundle["application/vnd.vegalite.v5+json"]["width"], int)


def test_without_vl_convert_there_is_no_picture_and_no_error(explorer, monkeypatch):
    monkeypatch.setattr(base, "find_spec", lambda module: None)
    page = explorer.html()
    assert "<img" not in page and "explorer-sentence" in page


def test_without_a_recording(name, without_recording):
    one = getattr(views, name)()
    said = " ".join(texts(one.spec(560)))
    assert "undefined" not in said and "NaN" not in said and "null" not in said
    assert "recorded on" not in one.sentence
    if name == "decode_time":
        assert "Nothing is recorded" in one.sentence


def test_recorded_points_are_the_recording_s(with_recording, recorded):
    rows = views.decode_time().spec()["datasets"]["recorded"]
    best = {(r["mark"], r["n_kv_heads"], r["batch"], r["context_len"]): r["seconds"] for r in rows}
    assert len(rows) == len(best) == 3 * 2 * 3 * 3
    one = recorded.row(context_len=131072)["median_s"]
    assert best["grouped kernel", 8, 1, 131072] == one
    assert best["PyTorch SDPA, fastest backend", 8, 1, 131072] == pytest.approx(1.2 * one)


def test_the_picture_turns_over():
    rows = {row["users"]: row["cache"] / (row["cache"] + row["weights"]) for row in _share()}
    assert round(rows[1], 2) == 0.07 and round(rows[32], 2) == 0.71
    assert bytes_per_step._equal_at(costs.model("Llama 2 70B"), 32768) == 13


def _share():
    explorer = views.bytes_per_step()
    return explorer.expected(**explorer.settings)


@pytest.mark.parametrize("name_of_model", bytes_per_step.MODELS)
@pytest.mark.parametrize("context_len", [512, 131072])
def test_equal_at_is_the_closest_number_of_users(name_of_model, context_len):
    model = costs.model(name_of_model)
    users = bytes_per_step._equal_at(model, context_len)

    def gap(n):
        return abs(model.weight_bytes_read(n) - model.cache_bytes(context_len, n))

    assert gap(users) <= gap(users + 1) and (users == 1 or gap(users) <= gap(users - 1))


@pytest.mark.parametrize("writer, plain, values", [
    (base.vega_bytes, lambda x: costs.format_bytes(x, binary=False), [1e3, 999.96e3, 343.6e9, 140e9, 2.75e12, 5.369e8]),
    (lambda x: base.vega_bytes(x, binary=True), costs.format_bytes, [2**10, 1023.4 * 2**10, 1023.6 * 2**20, 2.3e9, 2**41]),
    (base.vega_seconds, costs.format_seconds, [4.369e-7, 1.118e-4, 9.9996e-4, 0.1444, 1.5, 2e-6, 9.99951e-7]),
    (lambda x: base.vega_count(x, "user"), lambda x: base.count(x, "user"), [1, 2, 1024]),
])  # fmt: skip
def test_numbers_are_written_as_in_python(writer, plain, values):
    spec = {"$schema": "https://vega.github.io/schema/vega-lite/v5.20.1.json", "params": []}
    data = {"values": [{"x": value} for value in values]}
    got = evaluate(spec, {}, {"is": writer("datum.x")}, data, [])
    assert [row["is"] for row in got] == [plain(value) for value in values]


def test_a_sentence_is_the_same_template_in_both():
    expression = base.vega_sentence('a "quoted" {x}, {y}', x="1 + 1", y="'z'")
    spec = {"$schema": "https://vega.github.io/schema/vega-lite/v5.20.1.json", "params": []}
    assert evaluate(spec, {}, {"is": expression}, {"values": [{}]}, [])[0]["is"] == 'a "quoted" 2, z'


def test_gradients_say_which_kernels_the_recorded_times_are_of(with_recording):
    sentence = made("gradient_bytes").sentence_of
    assert "Recorded, both in plain Triton" in sentence(n_q_heads=32, n_kv_heads=8, batch=2)
    assert "another kernel, the one for Hopper" in sentence(n_q_heads=32, n_kv_heads=1, batch=2)
