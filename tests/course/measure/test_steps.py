"""course.measure.steps: steps are undone by edits that apply; variants compile, do what their names say, and are right."""

import ast
import json
import os
import pathlib
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import kernels
from course import copies
from course.measure import contenders, plans, steps
from course.measure.shapes import Point, Shape
from kernels import hopper
from tests.kernels.roles import run_attention
from tests.kernels.test_forward import compare
from tests.kernels.test_hopper import on_hopper, tensors_of

SHIPPED = copies.shipped_text(steps.STEPS[0].file)
WIDE = ("bare", "without buffers", "without pairs")  # of those that are compiled for 192 too


def test_there_are_six_to_nine_steps_with_names_of_their_own():
    assert 6 <= len(steps.STEPS) <= 9 and len(set(steps.NAMES)) == len(steps.STEPS)
    assert {step.file for step in steps.STEPS} == {"kernels/forward_hopper.py"}
    for step in steps.STEPS:
        assert steps.step(step.name) is step and step.title and step.why.endswith(".")
    with pytest.raises(ValueError, match="there is no step 'pars'.*pairs"):
        steps.step("pars")


@pytest.mark.parametrize("name", steps.NAMES)
def test_a_step_is_undone_by_edits_that_apply(name):
    step = steps.step(name)
    for old, new in step.edits:
        assert SHIPPED.count(old) == 1 and old != new
    told = steps.diff(step).splitlines()
    assert any(line.startswith("+") for line in told[2:]) or any(line.startswith("-") for line in told[2:])
    assert told[:2] == [f"--- without {name}", f"+++ {step.file}"]
    assert steps.text([name]) != SHIPPED


def test_any_steps_can_be_undone_together():
    assert steps.text([]) == SHIPPED
    texts = {steps.text(undone) for undone in steps.VARIANTS.values()}
    assert len(texts) == len(steps.VARIANTS) and SHIPPED not in texts
    for text in texts:
        ast.parse(text)
    assert steps.text(steps.NAMES) == steps.text(steps.NAMES[::-1])


def test_variants_are_the_ladder_and_the_losses():
    n = len(steps.NAMES)
    assert [len(undone) for undone in steps.LADDER] == list(range(n, -1, -1))
    assert len(steps.VARIANTS) == n + n - 1  # one is both: the last rung but one, and the loss of the last step
    assert steps.variant(steps.LADDER[0]) == "bare" and steps.variant(steps.LADDER[2]) == f"up to {steps.NAMES[1]}"
    assert steps.variant(steps.LADDER[-2]) == f"without {steps.NAMES[-1]}" == steps.variant(steps.LOSSES[steps.NAMES[-1]])
    for undone in (frozenset(), frozenset(steps.NAMES[:2])):
        with pytest.raises(ValueError, match="undone must be a rung or one step"):
            steps.variant(undone)


def test_the_plan_holds_every_variant_on_every_shape():
    plan = plans.steps("bfloat16")
    assert list(plan.by_shape) == plans.step_workloads("bfloat16")
    for shape, points in plan.by_shape.items():
        assert shape.causal and shape.q_len == shape.context_len
        found = [(p.operation, p.backend) for p in points]
        ours = [("attention_steps", name) for name in steps.VARIANTS]
        assert found == [("portable_attention", None), *ours, ("attention", None), ("sdpa", "CUDNN")]
    assert {(s.head_dim_qk, s.group_size, s.context_len) for s in plan.by_shape} == {
        (128, 1, 8192), (128, 4, 1024), (192, 1, 8192)
    }  # fmt: skip


def inner_loops(shows):
    """Of one block each, whose two products are waited for one after the other."""
    return [loop for loop in shows["loops"] if loop["waits"] == 2 and loop["exponentials"] and loop["products"] <= 20]


@pytest.fixture(scope="module")
def compiled():
    program = pathlib.Path(__file__).with_name("ahead_of_time_steps.py")
    cases = [f"{name}/128" for name in steps.VARIANTS] + [f"{name}/192" for name in WIDE]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, program, *cases], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {shows["case"]: shows for shows in map(json.loads, done.stdout.splitlines())}
    assert list(found) == cases
    return found


@pytest.mark.skipif(hopper.VERSION not in hopper.TESTED, reason="needs a Triton that these kernels were tried with")
def test_machine_code(compiled):
    """What is undone is the step alone: inner loops keep all in registers, and no product is waited for by itself."""
    for case, shows in compiled.items():
        assert shows["shared"] <= shows["limit"], case
        assert shows["waits"] * 6 <= shows["products"], case
        assert inner_loops(shows) and not any(loop["spills"] for loop in inner_loops(shows)), case
        # Outside the loops, once a tile, some of them lack registers for the roles' own state, and for queries that are kept.
        lacking = {"without buffers/128": 16, "without buffers/192": 56, "without pairs/192": 16, "bare/192": 2}
        assert shows["spills"] <= lacking.get(case, 0), case


@pytest.mark.skipif(hopper.VERSION not in hopper.TESTED, reason="needs a Triton that these kernels were tried with")
def test_what_the_softmax_runs_under(compiled):
    """Between the two waits of an inner loop only the product of the values is in flight: there the exponentials belong.

    With the softmax moved up but no branch, the compiler moves the second wait above most of it.
    """
    for case, shows in compiled.items():
        undone = steps.VARIANTS[case.split("/")[0]]
        # The loop that takes most blocks, in the code of either consumer: the shorter ones, because they have no mask.
        often = sorted(inner_loops(shows), key=lambda loop: loop["instructions"])[:2]
        shares = [loop["under_products"] / loop["exponentials"] for loop in often]
        if "overlap" in undone:
            assert max(shares) == 0, case
        elif "branch" in undone:
            assert max(shares) < 0.5, case
        else:
            assert min(shares) > 0.9, case


@pytest.mark.skipif(kernels.MODE == "compiled", reason="kernels are text only where no GPU compiles them")
@pytest.mark.parametrize("head_dim_qk", [128, 192])
@pytest.mark.parametrize("name", steps.VARIANTS)
def test_roles_still_meet(name, head_dim_qk):
    """A variant that waits for ever would hold whichever GPU records it."""
    undone = steps.VARIANTS[name]
    package = copies.with_text(steps.STEPS[0].file, steps.text(undone))
    for shape in (Shape(1, 3, 3, 515, q_len=300), Shape(1, 2, 1, 640, q_len=640)):
        shape = replace(shape, head_dim_qk=head_dim_qk)
        stays = "persistent" not in undone
        programs = 1 if stays else shape.n_q_heads * -(-shape.q_len // 128)
        for seed in range(2):
            run_attention(package, shape, programs=programs, counter=stays, section=shape.n_q_heads, seed=seed)


def random(*shape, dtype):
    return torch.randn(shape, device="cuda" if kernels.MODE == "compiled" else "cpu").to(dtype)


def test_only_what_the_kernel_for_hopper_takes():
    """64 queries are few: the portable form answers them, on every GPU."""
    q, k, v = tensors_of(random, 1, 2, 2, 64, 64, 128, torch.float16)
    point = Point(Shape(1, 2, 2, 64, q_len=64, dtype="float16"), "attention_steps", "without sums")
    with pytest.raises(kernels.Unsupported, match="only where the kernel for Hopper runs"):
        contenders.calls_of(point, [{"q": q, "k": k, "v": v}])


def test_each_variant_is_compiled_once_for_each_width(monkeypatch):
    ran = []
    monkeypatch.setattr(contenders, "with_steps_undone", lambda point: lambda x: lambda: ran.append((point, x)))
    shapes = [Shape(1, 2, 1, 130, q_len=130, head_dim_qk=width) for width in (128, 192)]
    shapes.append(Shape(2, 2, 2, 130, q_len=130))
    points = [Point(s, "attention_steps", name) for s in shapes for name in ("bare", "without sums")]
    contenders.compile_steps([*points, Point(shapes[0], "attention")], torch.device("cpu"))
    assert sorted((point.backend, x["q"].shape[-1]) for point, x in ran) == [
        (name, width) for name in ("bare", "without sums") for width in (128, 192)
    ]
    assert all(x["k"].shape == (point.shape.batch, point.shape.n_kv_heads, 130, point.shape.head_dim_qk) for point, x in ran)


def test_what_fails_to_compile_is_left_to_the_measuring(monkeypatch):
    def fails(point):
        raise RuntimeError

    monkeypatch.setattr(contenders, "with_steps_undone", fails)
    shape = Shape(1, 1, 1, 130, q_len=130)
    contenders.compile_steps([Point(shape, "attention_steps", "bare")], torch.device("cpu"))


# More tiles than are given out in a fixed order, the last of each row not full; of the second, rows without keys.
WHOLE = (Shape(2, 36, 4, 1333, q_len=1111), Shape(2, 136, 4, 77, q_len=150))
CASES = [(name, shape) for name in steps.VARIANTS for shape in WHOLE]
CASES += [(name, replace(WHOLE[0], head_dim_qk=192)) for name in WIDE]


@pytest.fixture(scope="module")
def together():
    """All that is compiled here, over all cores."""
    contenders.compile_steps([Point(shape, "attention_steps", name) for name, shape in CASES], torch.device("cuda"))


@on_hopper
@pytest.mark.parametrize(("name", "shape"), CASES, ids=str)
def test_every_variant_is_right(together, name, shape):
    package = steps.load(steps.VARIANTS[name])
    sizes = (shape.batch, shape.n_q_heads, shape.n_kv_heads, shape.q_len, shape.context_len, shape.head_dim_qk)
    q, k, v = tensors_of(random, *sizes, torch.bfloat16)
    assert package.forward_hopper.faster(q, k, v)
    compare(q, k, v, causal=True, package=package)
