"""Benchmarks that fool themselves."""

from . import Mutant

_FILE = "course/costs/stopwatch.py"
_LOOP = """    for call in range(calls):
        machine.read(call % copies, n_bytes)
    machine.synchronize()
"""

MUTANTS = (
    Mutant(
        name="clock_without_waiting",
        task="p1_gpu.timing",
        file=_FILE,
        old=_LOOP,
        new=_LOOP.replace("    machine.synchronize()\n", ""),
        story="A benchmark stopped its clock when the launches had returned. After the repair, which waits for the GPU, its "
        "linear layer took 34 times longer.",
        source="TristanBilot/mlx-benchmark PR 21",
        given=True,
    ),
    Mutant(
        name="same_buffer_again",
        task="p1_gpu.timing",
        file=_FILE,
        old="        machine.read(call % copies, n_bytes)\n",
        new="        machine.read(0, n_bytes)\n",
        story="A replayed benchmark read one buffer over and over. It stayed in the L2, and the report said 5.0 TB/s on a card "
        "whose memory has 1.8.",
        source="NVIDIA/TileGym issue 82",
        given=True,
    ),
    Mutant(
        name="wait_at_every_turn",
        task="p1_gpu.timing",
        file=_FILE,
        old=_LOOP,
        new=_LOOP.replace("    machine.synchronize()\n", "        machine.synchronize()\n"),
        story="The host waited for the GPU after each launch, so each turn counted a launch and an idle GPU: a kernel of 4 µs "
        "was reported as 51.",
        source="flashinfer-ai/flashinfer-bench issue 195",
        given=True,
    ),
    Mutant(
        name="compiling_is_timed",
        task="p1_gpu.timing",
        file=_FILE,
        old="    machine.read(0, n_bytes)\n    machine.synchronize()\n    begin = machine.now\n",
        new="    begin = machine.now\n    machine.read(0, n_bytes)\n    machine.synchronize()\n",
        story="The clock starts before the first call, and that one compiles. A plausible slip that every tutorial on "
        "benchmarks warns of; no incident is meant.",
        source="Triton's tutorials, which warm up before they measure",
    ),
    Mutant(
        name="turns_in_the_wrong_order",
        task="p1_gpu.timing",
        file=_FILE,
        old="call % copies",
        new="call // rounds",
        story="There are enough copies, but each is read several times before the next has its turn, so most of these reads "
        "come from the L2. A plausible slip; no incident is meant.",
        source="the same trap as NVIDIA/TileGym issue 82",
    ),
    Mutant(
        name="warm_up_still_running",
        task="p1_gpu.timing",
        file=_FILE,
        old="    machine.synchronize()\n    begin = machine.now\n",
        new="    begin = machine.now\n",
        story="The warm-up is launched and not waited for, so the interval holds its kernel too. With few rounds of a long "
        "kernel that shows. A plausible slip; no incident is meant.",
        source="a milder form of TristanBilot/mlx-benchmark PR 21",
    ),
)
