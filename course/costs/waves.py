"""Time of a split decode call: programs run in waves, each program reads at its own speed, and partial results cost bytes.

Bytes over bandwidth is the floor of a GPU that is full. A GPU with too few programs does not reach it: each program keeps only
its own tiles on the way and reads at `program_rate` whatever the others do. So with few programs the time is that of the
longest program, with many it is that of the memory, and a last wave of a few programs costs as much as a full one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from .attention import Attention
from .checks import finite, whole


def partial_bytes(attention: Attention, num_splits: int, *, batch: int = 1, q_len: int = 1) -> int:
    """Bytes of the partial results of `num_splits` splits: d_v + 1 float32 numbers for each query head; 0 for one split.

    Stage 1 writes them once and the merge reads them once. They don't depend on the context.
    """
    if whole("num_splits", num_splits) == 1:
        return 0
    rows = whole("batch", batch) * whole("q_len", q_len) * attention.n_q_heads
    return 4 * num_splits * rows * (attention.head_dim_v + 1)


def tokens_worth_a_split(attention: Attention, *, bytes_per_element: float | str = 2) -> float:
    """Tokens whose cache is as many bytes as one split's partial results: a shorter split writes more than it reads."""
    return partial_bytes(attention, 2) / 2 / attention.bytes_per_token(bytes_per_element)


def split_tokens(context_len: int, num_splits: int, block_n: int) -> tuple[int, int]:
    """Tokens of the longest split, and how many splits have any: a split is a whole number of tiles of `block_n` keys."""
    blocks = -(-whole("context_len", context_len) // whole("block_n", block_n))
    blocks_per_split = -(-blocks // whole("num_splits", num_splits))
    return min(blocks_per_split * block_n, context_len), -(-blocks // blocks_per_split)


@dataclass(frozen=True)
class SplitLaunch:
    """One split decode call.

    programs_per_split  sequences times row tiles: the programs that one split of every sequence is
    bytes_per_token     bytes that one program reads for one token: K and V of its KV head
    partial_bytes       bytes of partial results, as `partial_bytes` gives them
    block_n             tokens of a tile
    """

    context_len: int
    num_splits: int
    programs_per_split: int
    bytes_per_token: float
    partial_bytes: float
    block_n: int

    @property
    def programs(self) -> int:
        """Programs that have tokens."""
        return self.programs_per_split * split_tokens(self.context_len, self.num_splits, self.block_n)[1]

    def waves(self, sm_count: int) -> tuple[int, int]:
        """Full waves of one program an SM, and the programs of a last wave that is not full."""
        return divmod(self.programs, whole("sm_count", sm_count))

    def efficiency(self, sm_count: int) -> float:
        """Share of the places of all waves that hold a program."""
        full, rest = self.waves(sm_count)
        return self.programs / (sm_count * (full + (rest > 0)))


@dataclass(frozen=True)
class WaveModel:
    """Constants of one GPU and kernel; times in seconds, rates in bytes a second.

    bandwidth     what the memory gives to a full GPU
    program_rate  what one program reads, while there are few
    t0_s          fixed time of a call with one split
    wave_s        what each further wave costs before its bytes flow
    merge_s       fixed time of the merge, another launch
    """

    bandwidth: float
    program_rate: float
    t0_s: float
    wave_s: float
    merge_s: float

    def __post_init__(self) -> None:
        """Check the constants."""
        for name in ("bandwidth", "program_rate"):
            finite(name, getattr(self, name))
        for name in ("t0_s", "wave_s", "merge_s"):
            finite(name, getattr(self, name), zero=True)

    def streaming(self, launch: SplitLaunch, sm_count: int) -> float:
        """Seconds in which bytes flow: wave after wave, then the partial results, written and read."""
        tokens, _ = split_tokens(launch.context_len, launch.num_splits, launch.block_n)
        n_bytes = tokens * launch.bytes_per_token
        full, rest = launch.waves(sm_count)
        slowest = n_bytes / self.program_rate
        seconds = full * max(slowest, sm_count * n_bytes / self.bandwidth)
        if rest:
            seconds += max(slowest, rest * n_bytes / self.bandwidth)
        return seconds + 2 * launch.partial_bytes / self.bandwidth

    def without_waves(self, launch: SplitLaunch) -> float:
        """Time by a simpler rule: programs read at their own speed until the bandwidth is used up, and nothing else costs."""
        n_bytes = launch.programs_per_split * launch.context_len * launch.bytes_per_token
        rate = launch.programs_per_split * launch.num_splits * self.program_rate
        return self.t0_s + n_bytes / min(rate, self.bandwidth)

    def seconds(self, launch: SplitLaunch, sm_count: int) -> float:
        """Predicted time of the call."""
        full, rest = launch.waves(sm_count)
        further = full + (rest > 0) - 1
        merge = self.merge_s if launch.num_splits > 1 else 0.0
        return self.t0_s + self.streaming(launch, sm_count) + further * self.wave_s + merge


def fit_waves(
    points: Iterable[tuple[SplitLaunch, float]], *, bandwidth: float, program_rate: float, t0_s: float, sm_count: int
) -> WaveModel:
    """The two overheads that come closest to `points` = (launch, seconds), by least squares of the relative errors.

    The other constants are given: bandwidth from a read of memory, rate and fixed time from calls with one split
    (`prediction.fit`). An overhead cannot be negative. ValueError where the points don't tell the two apart.
    """
    bare = WaveModel(bandwidth, program_rate, t0_s, 0.0, 0.0)
    aa = ab = bb = ay = by = 0.0
    for launch, seconds in points:
        full, rest = launch.waves(sm_count)
        a = (full + (rest > 0) - 1) / finite("seconds", seconds)
        b = (launch.num_splits > 1) / seconds
        y = (seconds - bare.seconds(launch, sm_count)) / seconds
        aa, ab, bb, ay, by = aa + a * a, ab + a * b, bb + b * b, ay + a * y, by + b * y
    determinant = aa * bb - ab * ab
    if determinant <= 1e-9 * aa * bb:
        raise ValueError("points must hold split calls of one wave and of several to tell a wave's cost from the merge's")
    wave_s, merge_s = (ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant
    if wave_s < 0:
        wave_s, merge_s = 0.0, by / bb
    elif merge_s < 0:
        wave_s, merge_s = ay / aa, 0.0
    return WaveModel(bandwidth, program_rate, t0_s, max(wave_s, 0.0), max(merge_s, 0.0))
