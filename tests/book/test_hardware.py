"""The hardware page shows what `course.costs` computes with.

python -m tests.book.test_hardware      writes the tables into the page
"""

from pathlib import Path

from course import costs

PAGE = Path(__file__).resolve().parents[2] / "book" / "hardware.md"
BEGIN, END = "\n% begin tables\n", "\n% end tables\n"


def parts() -> list[str]:
    """The page before the tables, the tables, and the page after them."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return [before, *rest.split(END)]


def table(heading: str, columns: list[str], rows: list[list[str]]) -> str:
    """A heading and a table in Markdown; every column but the first is aligned right unless it holds words."""
    numeric = [all(row[i][:1].isdigit() or row[i] in ("", "–") for row in rows) for i in range(len(columns))]
    lines = [columns, ["---:" if right else "---" for right in numeric], *rows]
    return f"## {heading}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def tables() -> str:
    """The three tables of the page."""
    speeds, sizes, sources = [], [], []
    for gpu in costs.gpus(doubtful=True):
        dtype = "bfloat16" if "bfloat16" in gpu.peaks else "float16"
        fp8 = f"{gpu.peaks['float8'] / 1e12:,.1f}" if "float8" in gpu.peaks else "–"
        speeds.append([str(gpu), f"{gpu.memory_bytes / 1e9:.0f}", f"{gpu.bandwidth / 1e12:.3f}",
                       f"{gpu.peak_flops(dtype) / 1e12:,.1f}", fp8, f"{gpu.ridge(dtype):.0f}"])  # fmt: skip
        sizes.append([str(gpu), ".".join(map(str, gpu.capability)), str(gpu.sm_count),
                      f"{gpu.l2_bytes / costs.MiB:.0f}", f"{gpu.shared_memory_per_block / costs.KiB:.0f}"])  # fmt: skip
        remarks = "; ".join(text for text in (gpu.doubt, gpu.note) if text)
        sources.append([str(gpu), gpu.grade, gpu.source, gpu.read_in or "there", remarks])
    return "\n".join([
        table("Speeds", ["GPU", "memory, GB", "TB/s", "16-bit TFLOP/s", "FP8 TFLOP/s", "ridge, FLOP/B"], speeds),
        table("Sizes", ["GPU", "compute capability", "SMs", "L2, MiB", "shared memory, KiB"], sizes),
        table("Sources and doubts", ["GPU", "grade", "first source", "read in", "doubts and remarks"], sources),
    ])  # fmt: skip


def test_page_shows_the_data():
    shown = parts()[1].strip("\n")
    assert shown == tables().strip("\n"), "the page is behind the data; write it: python -m tests.book.test_hardware"


if __name__ == "__main__":
    before, _, after = parts()
    PAGE.write_text(f"{before}{BEGIN}\n{tables()}{END}{after}", encoding="utf-8")
