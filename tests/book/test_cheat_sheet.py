"""The figures of the cheat sheet are those that `course.costs` computes and the recordings hold.

python -m tests.book.test_cheat_sheet      writes them into the page
"""

from pathlib import Path

from course import costs, measure

PAGE = Path(__file__).resolve().parents[2] / "book" / "cheat_sheet.md"
BEGIN, END = "% begin figures\n", "% end figures\n"
GPUS = ("T4", "A100 80GB SXM", "RTX 4090", "H100 SXM", "H200 SXM", "B200 SXM")


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def gpus() -> str:
    rows = []
    for name in GPUS:
        gpu = costs.gpu(name)
        dtype = "bfloat16" if "bfloat16" in gpu.peaks else "float16"
        rows.append([str(gpu), f"{gpu.memory_bytes / 1e9:.0f}", f"{gpu.bandwidth / 1e12:.2f}",
                     f"{gpu.peak_flops(dtype) / 1e12:,.0f}", f"{gpu.ridge(dtype):.0f}", f"{gpu.sm_count}"])  # fmt: skip
    return table(["GPU (data sheet)", "memory, GB", "TB/s", "16-bit TFLOP/s", "ridge, FLOP/B", "SMs"], rows)


def fixed_time() -> str:
    """Fixed time of the grouped decode kernel on an H200, from the two calls of chapter 9."""
    recording = measure.latest("NVIDIA H200")
    call = {"operation": "decode", "splits": "automatic", "n_q_heads": 32, "n_kv_heads": 8, "dtype": "bfloat16"}
    rows = [recording.fastest(**call, batch=batch, context_len=8192) for batch in (1, 64)]
    t0 = costs.fit((row["cache_bytes"], row["median_s"]) for row in rows).t0_s
    return f"{t0 * 1e6:.0f} µs"


def numbers() -> str:
    kib = {name: costs.model(name).bytes_per_token() / costs.KiB for name in
           ("Llama 2 7B", "Llama 2 70B", "Llama 3 8B", "DeepSeek-V3")}  # fmt: skip
    v3 = costs.model("DeepSeek-V3").attention
    layer = costs.LatentAttention(7168, 128, 128, 64, 128, 512, q_latent_dim=1536)
    rows = [
        (f"{kib['Llama 2 7B'] / 1024:g} MiB", "a token of Llama 2 7B: MHA, 16-bit"),
        (f"{kib['Llama 2 70B']:.0f} and {kib['Llama 3 8B']:.0f} KiB", "a token of a 70B and of an 8B with 8 KV heads"),
        (f"{kib['DeepSeek-V3']:.1f} KiB", "a token of DeepSeek-V3"),
        (f"{v3.elements_per_token}", "numbers of its record in a layer, 512 + 64"),
        (f"{layer.equivalent_kv_heads():g}", "KV heads of 128 that take as much"),
        (f"1/√{layer.head_dim_qk}", "V3's softmax scale, of the head before absorption"),
        (f"{costs.intensity(v3):.1f} FLOP/B", "V3's intensity with 128 heads on one GPU, 16-bit"),
        (f"{round(layer.crossover_limit)}", "new tokens from which expanding beats absorbing"),
        (fixed_time(), "fixed time of our decode kernel on an H200, recorded"),
        ("1 + 2*G*", "times the cache moves when heads are copied first"),
    ]
    half = len(rows) // 2
    pairs = [[*left, *right] for left, right in zip(rows[:half], rows[half:], strict=True)]
    lines = [["number", "what it is", "number", "what it is"], ["---:", "---", "---:", "---"], *pairs]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figures() -> str:
    return f"\n{gpus()}\n\n{numbers()}\n\n"


def test_page_shows_the_figures():
    shown = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    assert shown == figures(), "the page is behind the data; write it: python -m tests.book.test_cheat_sheet"


def test_the_formulas_figures_are_computed():
    text = PAGE.read_text(encoding="utf-8")
    v3 = costs.model("DeepSeek-V3").attention
    assert f"{costs.intensity(v3) / v3.n_q_heads:.3f}" == "1.889" and "1.889" in text
    assert v3.head_dim_shared == 512 and "= 512 in MLA" in text
    assert costs.intensity(costs.Attention.gqa(32, 8, 128), q_len=3) == 4 * 3  # G times M


def test_code_of_the_page_exists():
    import kernels

    for name in ("decode_flops", "intensity", "floor", "step_floor", "fit", "split_heads", "experts_read"):
        assert hasattr(costs, name)
    for name in ("merge", "paged_decode", "mla_decode"):
        assert hasattr(kernels, name)


if __name__ == "__main__":
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    PAGE.write_text(before + BEGIN + figures() + END + rest.split(END)[1], encoding="utf-8")
