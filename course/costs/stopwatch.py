"""What a clock on the host reads around work that a GPU does on its own: a model of the queue and of the L2.

The host puts a kernel into a queue and goes on; the GPU takes one kernel after another out of it; a buffer that the L2 still
holds is read from there. No more is needed to see how a benchmark fools itself, on any machine and with the same answer each
time. Nothing runs here: times are added up.
"""

from .checks import finite, whole
from .gpu_data import Gpu
from .gpu_data import gpu as find_gpu


class SimulatedGpu:
    """A GPU that reads buffers, and the clock of its host.

    gpu         a Gpu or its name: bandwidth and size of the L2
    launch_s    seconds that the host needs to launch a kernel
    t0_s        fixed seconds of a kernel, to which its bytes over the bandwidth are added
    compile_s   seconds that the first launch takes longer
    l2_speedup  how many times faster than memory the L2 is read

    now         the host's clock in seconds; looking at it waits for nothing
    """

    def __init__(
        self,
        gpu: Gpu | str,
        *,
        launch_s: float = 4e-6,
        t0_s: float = 2e-6,
        compile_s: float = 0.5,
        l2_speedup: float = 2.0,
    ) -> None:
        self.gpu = gpu if isinstance(gpu, Gpu) else find_gpu(gpu)
        self.launch_s, self.t0_s = finite("launch_s", launch_s, zero=True), finite("t0_s", t0_s, zero=True)
        self.l2_speedup = finite("l2_speedup", l2_speedup)
        self.now = 0.0
        self._to_compile = finite("compile_s", compile_s, zero=True)
        self._idle_from = 0.0  # when the GPU will have done all that is in its queue
        self._in_l2: dict[int, int] = {}  # bytes by buffer, the one read longest ago first

    def read(self, buffer: int, n_bytes: int) -> None:
        """Launch a kernel that reads buffer number ``buffer`` of ``n_bytes``; returns as soon as it is in the queue."""
        whole("buffer", buffer, at_least=0)
        whole("n_bytes", n_bytes)
        self.now += self.launch_s + self._to_compile
        self._to_compile = 0.0
        rate = self.gpu.bandwidth * (self.l2_speedup if buffer in self._in_l2 else 1)
        self._idle_from = max(self._idle_from, self.now) + self.t0_s + n_bytes / rate
        self._in_l2.pop(buffer, None)
        self._in_l2[buffer] = n_bytes
        while sum(self._in_l2.values()) > self.gpu.l2_bytes:
            del self._in_l2[next(iter(self._in_l2))]

    def synchronize(self) -> None:
        """Wait until the GPU has done all that is in its queue."""
        self.now = max(self.now, self._idle_from)


def timed_read(machine: SimulatedGpu, n_bytes: int, *, copies: int, rounds: int = 3) -> float:
    """Seconds of one read of ``n_bytes``, by the host's clock.

    ``rounds`` times round over ``copies`` buffers (`course.measure.copies_beyond_cache` says how many a real GPU needs).
    """
    calls = whole("rounds", rounds) * whole("copies", copies)
    machine.read(0, n_bytes)
    machine.synchronize()
    begin = machine.now
    for call in range(calls):
        machine.read(call % copies, n_bytes)
    machine.synchronize()
    return (machine.now - begin) / calls
