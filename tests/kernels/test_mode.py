"""The four modes, each in a process of its own, because a process has one."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]
NO_GPU = not torch.cuda.is_available()
WITHOUT_TRITON = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else find_spec(name, *rest)
sys.modules["triton"] = None  # importing it raises ImportError
"""


def run(code, **environment):
    inherited = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**inherited, **environment}, capture_output=True, text=True
    )


@pytest.mark.skipif(not NO_GPU, reason="a GPU is here: it would be used")
def test_without_a_gpu_the_interpreter_runs():
    done = run("import kernels, os; print(kernels.MODE, os.environ['TRITON_INTERPRET'])")
    assert done.stdout.split() == ["interpreter", "1"], done.stderr


@pytest.mark.skipif(not NO_GPU, reason="a GPU is here: it would be used")
def test_a_users_own_value_wins():
    done = run(
        "import kernels, torch\nprint(kernels.MODE)\nx = torch.ones(1, 1, 1, 16)\n"
        "try:\n    kernels.attention(x, x, x)\nexcept kernels.Unsupported as e:\n    print(e)",
        TRITON_INTERPRET="0",
    )
    assert done.stdout.startswith("compile-only\nno CUDA GPU here"), done.stdout + done.stderr


@pytest.mark.skipif(not NO_GPU, reason="a GPU is here: kernels run compiled")
def test_triton_imported_too_early_is_said():
    done = run("import triton, triton.language, kernels")
    assert "Triton was imported before `kernels`" in done.stderr and done.returncode == 1


def test_without_triton_the_definitions_answer():
    done = run(
        WITHOUT_TRITON + "import kernels, torch\nprint(kernels.MODE)\n"
        "q = torch.randn(2, 4, 3, 16).half(); k = torch.randn(2, 2, 5, 16).half()\n"
        "out, lse = kernels.attention(q, k, k, causal=True)\n"
        "want, _ = kernels.reference.attention(q, k, k, causal=True)\n"
        "print(out.dtype, torch.equal(out, want.half()), lse.dtype)\n"
        "out, _ = kernels.decode(q[:, :, 0], k, k, torch.tensor([3, 5]))\nprint(out.shape)\n"
        "merged, _ = kernels.merge(out[None], torch.zeros(1, 2, 4))\nprint(torch.equal(merged, out))\n"
        "try:\n    kernels.decode(q, k, k)\nexcept ValueError as e:\n    print('refused')\n"
        "from kernels.decode import decode_kernel\nprint(decode_kernel.__name__)"
    )
    assert done.stdout.split("\n")[:6] == [
        "reference",
        "torch.float16 True torch.float32",
        "torch.Size([2, 4, 16])",
        "True",
        "refused",
        "decode_kernel",
    ], done.stdout + done.stderr
    assert done.stderr.count("Triton is not installed") == 1


def test_without_triton_a_decoding_step_answers_too():
    """Append, then decode, in pages and latents; a length beyond the table is refused there as well."""
    done = run(
        WITHOUT_TRITON + "import kernels, torch\n"
        "pages = torch.zeros(6, 8, 2, 16); table = torch.arange(6).view(2, 3); n = torch.tensor([24, 3])\n"
        "new = torch.randn(2, 2, 16); kernels.paged_append(new, new, pages, pages.clone(), table, n)\n"
        "print(torch.equal(pages[2, 7], new[0]), torch.equal(pages[3, 2], new[1]))\n"
        "out, _ = kernels.paged_decode(torch.randn(2, 4, 16), pages, pages, table, n)\nprint(out.shape)\n"
        "latent, rope = pages[:, :, 0], pages[:, :, 1, :4]\n"
        "q, r = torch.randn(2, 3, 16), torch.randn(2, 3, 4)\n"
        "out, _ = kernels.paged_mla_decode(q, r, latent, rope, table, n, scale=0.2)\nprint(out.shape)\n"
        "for call in (lambda n: kernels.paged_decode(torch.randn(2, 4, 16), pages, pages, table, n),\n"
        "             lambda n: kernels.paged_mla_decode(q, r, latent, rope, table, n, scale=0.2)):\n"
        "    try:\n        call(torch.tensor([25, 3]))\n    except ValueError as e:\n        print('refused')\n"
    )
    wanted = ["True True", "torch.Size([2, 4, 16])", "torch.Size([2, 3, 16])", "refused", "refused"]
    assert done.stdout.split("\n")[:5] == wanted, done.stdout + done.stderr


def test_a_copy_of_the_package_is_a_package_of_its_own(tmp_path):
    """Exercises change a copy under another name; both must live in one process, below another package too."""
    shutil.copytree(ROOT / "kernels", tmp_path / "outer" / "kernels_copy", ignore=shutil.ignore_patterns("__pycache__"))
    done = run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport kernels, torch\nfrom outer import kernels_copy\n"
        "x = torch.randn(1, 2, 5, 16)\nif kernels.MODE == 'compiled': x = x.cuda()\n"
        "print(all(torch.equal(a, b) for a, b in zip(kernels.attention(x, x, x), kernels_copy.attention(x, x, x))))"
    )
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.skipif(not NO_GPU, reason="a GPU is here: it would be used")
@pytest.mark.parametrize(
    ("value", "mode"), [("", "interpreter"), ("1", "interpreter"), ("true", "interpreter"), ("off", "compile-only")]
)
def test_values_of_the_variable(value, mode):
    assert run("import kernels; print(kernels.MODE)", TRITON_INTERPRET=value).stdout.split() == [mode]


def test_the_mode_is_decided_before_others_import_triton():
    """torch._dynamo imports Triton itself: after ``kernels`` it finds the mode decided."""
    done = run("import kernels, torch._dynamo; print(kernels.MODE)")
    assert done.returncode == 0, done.stderr
