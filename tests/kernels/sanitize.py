"""Runs the kernels for Hopper under NVIDIA's compute-sanitizer, beside small kernels that hand data over rightly or wrongly.

python tests/kernels/sanitize.py [--tool racecheck] [--sanitizer PATH]     needs a Hopper GPU and the CUDA toolkit's program

racecheck follows shared memory and knows a list of ways in which threads wait for each other. What is not on its list it
reports as a race, or passes over. So it runs here over pairs, too: a hand-over as our kernels make it, and the same with the
reader looking before it waits. A way that is reported in both says nothing about a kernel; one that is in neither, likewise.
`book/contributing.md` says what came out.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import torch

import kernels
from kernels import Device, forward_hopper, hopper
from kernels.forward_hopper import announce, next_tile
from kernels.hopper import arrive_named, describe, fence_async_shared, gl, gluon, mbarrier, tma, wait_named
from kernels.mla_hopper import new_barrier

FULL, EMPTY = gl.constexpr(8), gl.constexpr(9)  # named barriers
READER_AND_WRITER = gl.constexpr(128 + 32)
WORDS = gl.constexpr(1024)
IN_ALL = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))  # a number that every thread of a warpgroup has
IN_WARP = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))


class Word(NamedTuple):
    """A word in shared memory, as ``forward_hopper.Shared`` has it, and a barrier that says when it is there."""

    tile: object
    full: object


# The tile of `forward_hopper.py`: named barriers both ways, two readers.


@gluon.jit
def announce_words(word, out, turns, WAITS: gl.constexpr):
    for turn in range(turns):
        announce(word, turn, turn + 1)
    for part in gl.static_range(2):
        wait_named(forward_hopper.TILE_EMPTY + part, READER_AND_WRITER)


@gluon.jit
def read_words(word, out, turns, PART: gl.constexpr, WAITS: gl.constexpr):
    total = 0
    for _ in range(turns):
        if not WAITS:
            total += gl.max(word.tile.load(IN_ALL), 0).to(gl.int32)
        _, tile = next_tile(word, PART)
        if WAITS:
            total += tile
    gl.store(out + PART * 128 + gl.arange(0, 128, layout=IN_ALL), gl.full([128], total, gl.int32, layout=IN_ALL))


@gluon.jit(repr=lambda it: f"named_{'right' if it.constants['WAITS'] else 'wrong'}")
def named_kernel(out, turns, WAITS: gl.constexpr):
    """The sum of 1 to ``turns``, in each of out [256], int32."""
    word = Word(gl.allocate_shared_memory(gl.int64, [1], gl.SwizzledSharedLayout(1, 1, 1, [0])), None)
    gl.warp_specialize(
        [
            (read_words, (word, out, turns, 0, WAITS)),
            (read_words, (word, out, turns, 1, WAITS)),
            (announce_words, (word, out, turns, WAITS)),
        ],
        [4, 1],
        [120, 24],
    )


# The same through an mbarrier, at which one thread of the writing warp arrives for all.


@gluon.jit
def write_word(word, out, WAITS: gl.constexpr):
    word.tile.store(gl.full([1], 1, gl.int64, layout=IN_WARP))
    mbarrier.arrive(word.full)


@gluon.jit
def read_word(word, out, WAITS: gl.constexpr):
    if WAITS:
        mbarrier.wait(word.full, 0)
    value = gl.max(word.tile.load(IN_ALL), 0).to(gl.int32)
    if not WAITS:
        mbarrier.wait(word.full, 0)
    gl.store(out + gl.arange(0, 128, layout=IN_ALL), gl.full([128], value, gl.int32, layout=IN_ALL))


@gluon.jit(repr=lambda it: f"mbarrier_{'right' if it.constants['WAITS'] else 'wrong'}")
def mbarrier_kernel(out, WAITS: gl.constexpr):
    """1 in each of out [128], int32."""
    word = Word(gl.allocate_shared_memory(gl.int64, [1], gl.SwizzledSharedLayout(1, 1, 1, [0])), new_barrier())
    fence_async_shared()
    gl.warp_specialize([(read_word, (word, out, WAITS)), (write_word, (word, out, WAITS))], [1], [24])


# A buffer that the copy engine fills, threads read and give back through a named barrier: keys and values.


@gluon.jit
def fill(source, out, buffer, full, turns, WAITS: gl.constexpr):
    for turn in range(turns):
        if turn > 0:
            wait_named(EMPTY, READER_AND_WRITER)
        mbarrier.expect(full, source.block_type.nbytes)
        tma.async_copy_global_to_shared(source, [turn * WORDS], full, buffer)
    wait_named(EMPTY, READER_AND_WRITER)


@gluon.jit
def drain(source, out, buffer, full, turns, WAITS: gl.constexpr):
    total = gl.full([WORDS], 0, gl.int32, layout=IN_ALL)
    for turn in range(turns):
        mbarrier.wait(full, turn & 1)
        if WAITS:
            total += buffer.load(IN_ALL)
            arrive_named(EMPTY, READER_AND_WRITER)
        else:
            arrive_named(EMPTY, READER_AND_WRITER)
            total += buffer.load(IN_ALL)
    gl.store(out + gl.arange(0, WORDS, layout=IN_ALL), total)


@gluon.jit(repr=lambda it: f"copy_in_{'right' if it.constants['WAITS'] else 'wrong'}")
def copy_in_kernel(source, out, turns, WAITS: gl.constexpr):
    """The sum of ``turns`` stretches of source, a descriptor of [turns * WORDS] int32, in out [WORDS]."""
    buffer = gl.allocate_shared_memory(gl.int32, [WORDS], source.layout)
    full = new_barrier()
    fence_async_shared()
    gl.warp_specialize(
        [(drain, (source, out, buffer, full, turns, WAITS)), (fill, (source, out, buffer, full, turns, WAITS))], [1], [24]
    )


# A buffer that threads fill and the copy engine reads: the output.


@gluon.jit(repr=lambda it: f"copy_out_{'right' if it.constants['WAITS'] else 'wrong'}")
def copy_out_kernel(out, turns, WAITS: gl.constexpr):
    """Number ``turn`` into each of WORDS numbers of out, a descriptor of [turns * WORDS] int32."""
    buffer = gl.allocate_shared_memory(gl.int32, [WORDS], out.layout)
    for turn in range(turns):
        buffer.store(gl.full([WORDS], turn, gl.int32, layout=IN_ALL))
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [turn * WORDS], buffer)
        if WAITS:
            tma.store_wait(0)
    tma.store_wait(0)


def run_hand_overs():
    """Each hand-over, right and wrong. Only what the right ones compute is looked at."""
    turns = 2
    for waits in (True, False):
        out = torch.zeros(256, dtype=torch.int32, device="cuda")
        named_kernel[(1,)](out, turns, WAITS=waits, num_warps=4)
        assert not waits or (out == 3).all()
        out = torch.zeros(128, dtype=torch.int32, device="cuda")
        mbarrier_kernel[(1,)](out, WAITS=waits, num_warps=4)
        assert not waits or (out == 1).all()
        source = torch.randint(100, (turns, WORDS.value), dtype=torch.int32, device="cuda")
        out = torch.zeros(WORDS.value, dtype=torch.int32, device="cuda")
        copy_in_kernel[(1,)](describe(source.view(-1), WORDS.value), out, turns, WAITS=waits, num_warps=4)
        assert not waits or torch.equal(out, source.sum(0, dtype=torch.int32))
        out = torch.zeros(turns, WORDS.value, dtype=torch.int32, device="cuda")
        copy_out_kernel[(1,)](describe(out.view(-1), WORDS.value), turns, WAITS=waits, num_warps=4)
        assert not waits or (out == torch.arange(turns, device="cuda")[:, None]).all()


def run_kernels():
    """The kernels for Hopper on small shapes, each program with several tiles."""

    def random(*shape):
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    forward_hopper.device_of = lambda tensor: Device((9, 0), 2, 227 * 1024)  # two programs for all tiles
    for q_len, width in ((300, 128), (700, 128), (300, 192)):
        q, k, v = random(1, 2, q_len, width), random(1, 1, q_len, width), random(1, 1, q_len, 128)
        assert forward_hopper.faster(q, k, v)
        kernels.attention(q, k, v, causal=True)
    q, k, v = (random(1, 2, 300, 128).requires_grad_() for _ in range(3))
    out, _ = kernels.attention(q, k, v, causal=True)
    out.backward(random(*out.shape))
    k = random(1, 1, 300, 128)
    for q_len in (1, 3):  # one consumer with rows, and two
        kernels.decode(random(1, q_len, 64, 128), k, k, num_splits=2)
    for batch, num_splits in ((1, 1), (1, 2)):
        latent, rope = random(batch, 300, 512), random(batch, 300, 64)
        kernels.mla_decode(random(batch, 64, 512), random(batch, 64, 64), latent, rope, scale=0.1, num_splits=num_splits)


RACE = re.compile(
    r"(Error|Warning|Info): Race reported between (\w+) access at (\w+).*? in (\S+?)(?:\s|$)(.*?)(?=\n=+ *\n)", re.S
)
OTHER = re.compile(r"and (\w+) access at \w+.*? in (\S+).*?\[(\d+) hazards?\]")


def summary(report: str) -> list[str]:
    """The pairs of accesses that racecheck names, a line each, with how often."""
    lines = collections.Counter()
    for level, first, kernel, place, rest in RACE.findall(report):
        for second, other, count in OTHER.findall(rest):
            lines[f"{kernel:16} {level:8} {first} {place} / {second} {other}"] += int(count)
    return [f"{line}: {count}" for line, count in sorted(lines.items())]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="racecheck", choices=("racecheck", "memcheck", "synccheck", "initcheck"))
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="the program, if it is not on the path")
    parser.add_argument("--option", action="append", default=[], help="handed to it, as --option=--print-limit=0")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not hopper.present():
        sys.exit("This needs a Hopper GPU, and a Triton that the kernels were tried with.")
    if arguments.inside:
        run_hand_overs()
        run_kernels()
        torch.cuda.synchronize()
        return
    inside = [sys.executable, __file__, "--inside"]
    subprocess.run(inside, check=True)  # compiles everything and looks at the results
    command = [arguments.sanitizer, "--tool", arguments.tool, *arguments.option, *inside]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="\n")
    print(*summary(done.stdout), sep="\n")
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
