"""Runs the roles of a kernel written in Gluon as plain Python: barriers and control flow are real, numbers in tensors are not.

Gluon has no interpreter, and a wait that never ends holds a GPU for good. Without a GPU such a file is only text, in which
``gluon.jit`` changes nothing: its functions are called here with stand-ins for all that Gluon brings. Each role is a thread,
and so is the copy engine. One of them runs at a time, and at every copy, product and barrier it is drawn who goes on.

What is found: roles that wait for ever, a buffer that is written while a product or a copy still reads it, a product that is
missing or of the wrong blocks, a tile of the output that is missing, and a named barrier that is left half full. Fences are not
modelled: one that is left out is not found.
"""

import math
import random
import threading
import types
from collections import Counter

CONSUMERS = ("consumer 0", "consumer 1")
ENGINE = "copy engine"


class Deadlock(AssertionError):
    """Nobody can go on."""


class Number(int):
    """An integer in a kernel. What is computed with it is one too."""

    def to(self, kind: str) -> "Number":
        return Number((self + 2**31) % 2**32 - 2**31) if kind == "int32" else self


def _of_int(method: str):
    def operate(self, other):
        result = getattr(int, method)(self, other)
        return result if result is NotImplemented else Number(result)

    return operate


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift"):
    setattr(Number, f"__{_name}__", _of_int(f"__{_name}__"))


class Tensor:
    """In registers: whatever is done with it gives another."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Tensor()

    def __iter__(self):
        return iter((Tensor(), Tensor()))  # what comes in parts comes in two

    def _another(self, *_, **__):
        return Tensor()

    __call__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _another
    __floordiv__ = __mod__ = __getitem__ = __lt__ = __gt__ = __eq__ = _another
    __hash__ = None


class Loaded(Tensor):
    """What was loaded from shared memory, as long as nothing is done with it: a product knows what it multiplies."""

    def __init__(self, content):
        self.content = content


def number_or_tensor(function):
    def apply(*values):
        return Number(function(*values)) if all(isinstance(value, int) for value in values) else Tensor()

    return apply


class Barrier:
    """In shared memory: its phase ends when all have arrived and all bytes are there."""

    def __init__(self):
        self.count, self.arrived, self.n_bytes, self.phase = 1, 0, 0, 0

    def change(self, arrived: int = 0, n_bytes: int = 0) -> None:
        self.arrived += arrived
        self.n_bytes += n_bytes
        assert self.arrived <= self.count, "a barrier sees more arrivals than it counts"
        if self.arrived == self.count and self.n_bytes == 0:
            self.arrived, self.phase = 0, self.phase + 1


class Pointer:
    """Into a list of integers in global memory."""

    def __init__(self, numbers, at: int = 0):
        self.numbers, self.at = numbers, at

    def __add__(self, steps: int) -> "Pointer":
        return Pointer(self.numbers, self.at + steps)


def _load(pointer, mask=True, other=None):
    return Number(pointer.numbers[pointer.at] if mask else other)


class Slot:
    """64 columns of a buffer in shared memory, or a narrower buffer, or a barrier."""

    def __init__(self, name: str, stored: Counter):
        self.name, self.stored, self.content, self.barrier = name, stored, None, Barrier()
        self.loaded_by: str | None = None


class Memory:
    """An allocation in shared memory, or a part of one."""

    def __init__(self, program, buffers: list[list[Slot]], shape):
        self.program, self.buffers, self.shape, self.dtype = program, buffers, list(shape), None
        self.type = types.SimpleNamespace(shape=shape, layout=None)

    def index(self, i: int) -> "Memory":
        assert 0 <= i < len(self.buffers), f"{self.slots[0].name} has no buffer {i}"
        return Memory(self.program, [self.buffers[i]], self.shape[1:])

    def reshape(self, shape) -> "Memory":
        return Memory(self.program, self.buffers, shape)

    def _reinterpret(self, _, shape, __) -> "Memory":
        """Each 64 columns as a buffer of their own."""
        assert shape[0] == sum(map(len, self.buffers)), "only columns are cut, 64 at a time"
        return Memory(self.program, [[slot] for buffer in self.buffers for slot in buffer], shape)

    def permute(self, order) -> "Memory":
        return Memory(self.program, self.buffers, [self.shape[axis] for axis in order])

    def slice(self, start: int, length: int, dim: int) -> "Memory":
        """Of columns; a slice of rows must be all of them."""
        shape = [length if axis == dim else size for axis, size in enumerate(self.shape)]
        if length == self.shape[dim]:
            return self
        assert dim == len(shape) - 1 and start % 64 == length % 64 == 0, "only columns are cut, 64 at a time"
        return Memory(self.program, [self.slots[start // 64 : (start + length) // 64]], shape)

    @property
    def slots(self) -> list[Slot]:
        return self.buffers[0]

    @property
    def barrier(self) -> Barrier:
        return self.slots[0].barrier

    @property
    def content(self):
        """Of the first columns, when the others belong to it."""
        first = self.slots[0].content
        for i, slot in enumerate(self.slots):
            assert slot.content == beside(first, i), f"{slot.name} holds {slot.content} beside {first}"
        return first

    def store(self, value) -> None:
        """A tensor is known afterwards by who stored it, and by how many that role had stored in this allocation before.

        What the role itself has loaded from here, and stores again, is what it was.
        """
        program, role, stored = self.program, self.program.here.role, self.slots[0].stored
        program.pause()
        again = self.slots[0].loaded_by == role
        if not isinstance(value, int) and not again:
            stored[role] += 1
            value = ("stored", role, stored[role] - 1)
        for slot in self.slots:
            program.write(slot, slot.content if again else value)

    def load(self, *_):
        program = self.program
        program.pause()
        assert self.content is not None, f"{self.slots[0].name} is loaded before it is written"
        if isinstance(self.content, int):
            return self.content
        program.products[program.here.role, (("load", *self.content[1:]),)] += 1
        for slot in self.slots:
            slot.loaded_by = program.here.role
        return Loaded(self.content)


def beside(content, i: int):
    """What stands i times 64 columns beside a content."""
    if not isinstance(content, tuple) or content[0] == "stored":
        return content
    return (*content[:-1], content[-1] + 64 * i)


class Program:
    """One program of a launch: its roles, who of them may go on, and what they did."""

    def __init__(self, index: int, programs: int, counter: list[int] | None, draw: random.Random):
        self.index, self.programs, self.counter, self.draw = index, programs, counter, draw
        self.lock = threading.Condition()
        self.waiting: dict[str, tuple] = {}  # role -> (condition, what for)
        self.running: str | None = None
        self.error: BaseException | None = None
        self.here = threading.local()
        self.named: dict[int, types.SimpleNamespace] = {}
        self.queue: list[tuple] = []
        self.threads: dict[str, int] = {}  # of each role
        self.reads: dict[str, list[tuple[Slot, object]]] = {}
        self.products: Counter = Counter()
        self.output: Counter = Counter()

    # Who goes on

    def start(self, roles, warps, *_) -> None:
        names = (*CONSUMERS, *(f"producer {i}" for i in range(len(roles) - 2)))
        self.threads = {name: 32 * n for name, n in zip(names, (4, *warps), strict=True)}
        self.reads = {name: [] for name in names}
        work = {name: lambda f=function, a=arguments: f(*a) for name, (function, arguments) in zip(names, roles, strict=True)}
        work[ENGINE] = self._engine
        threads = [threading.Thread(target=self._run, args=item, daemon=True) for item in work.items()]
        self.waiting = dict.fromkeys(work, (lambda: True, "begin"))
        with self.lock:
            self._next()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.error:
            raise self.error
        for name, barrier in self.named.items():
            assert barrier.threads == 0, f"named barrier {name} is left half full"

    def _run(self, name: str, work) -> None:
        self.here.role, self.here.groups = name, []
        try:
            self.pause()
            work()
        except BaseException as error:
            self.error = self.error or error
        with self.lock:
            del self.waiting[name]
            self._next()

    def _next(self) -> None:
        able = [name for name, (condition, _) in self.waiting.items() if condition()]
        self.running = self.draw.choice(able) if able else None
        if self.waiting and not able and not self.error:
            self.error = Deadlock("; ".join(f"{name} waits for {what}" for name, (_, what) in self.waiting.items()))
        self.lock.notify_all()

    def pause(self, condition=lambda: True, what: str = "its turn") -> None:
        """Let somebody go on. Comes back when it is this role's turn again and the condition holds."""
        name = self.here.role
        with self.lock:
            begun = self.waiting[name][1] != "begin"
            self.waiting[name] = (condition, what)
            if begun:
                self._next()
            self.lock.wait_for(lambda: self.running == name or self.error)
            if self.error:
                raise RuntimeError("another role failed")

    def _engine(self) -> None:
        """Copies arrive in any order."""
        while True:
            self.pause(lambda: self.queue or len(self.waiting) == 1, "a copy")
            if not self.queue:
                return
            slots, content, barrier, n_bytes = self.queue.pop(self.draw.randrange(len(self.queue)))
            for i, slot in enumerate(slots):
                self.write(slot, beside(content, i))
            barrier.change(n_bytes=-n_bytes)

    def write(self, slot: Slot, content) -> None:
        for role, reads in self.reads.items():
            for read, of in reads:
                assert read is not slot, f"{slot.name} is written while {role} still reads {of}"
        slot.content, slot.loaded_by = content, None

    # What stands in for Gluon

    def allocate(self, kind, shape, _):
        stored, cut = Counter(), max(1, shape[-1] // 64)
        buffers = [[Slot(f"buffer {i} of {shape}", stored) for _ in range(cut)] for i in range(shape[0])]
        return Memory(self, buffers, shape)

    def init(self, memory, count):
        memory.barrier.count = count

    def wait(self, memory, phase):
        barrier = memory.barrier
        self.pause(lambda: barrier.phase % 2 != phase, f"phase {phase} of a barrier")

    def arrive(self, memory):
        self.pause()
        memory.barrier.change(arrived=1)

    def expect(self, memory, n_bytes):
        self.pause()
        memory.barrier.change(arrived=1, n_bytes=n_bytes)

    def copy_in(self, descriptor, place, barrier, to):
        self.pause()
        n_bytes = descriptor.block_type.nbytes
        self.queue.append((to.slots, (descriptor.name, *map(int, place)), barrier.barrier, n_bytes))

    def copy_out(self, descriptor, place, source):
        self.pause()
        self.output[(descriptor.name, *map(int, place))] += 1
        self.reads[self.here.role] += [(slot, "for the output") for slot in source.slots]

    def store_wait(self, _):
        self.pause()
        reads = self.reads[self.here.role]
        reads[:] = [read for read in reads if read[1] != "for the output"]

    def come(self, name, threads):
        """To a named barrier; the number of the round that began when this one is over, and its state."""
        role = self.here.role
        barrier = self.named.setdefault(int(name), types.SimpleNamespace(threads=0, roles=set(), rounds=0))
        assert role not in barrier.roles, f"{role} comes to named barrier {name} twice in a round"
        barrier.threads += self.threads[role]
        barrier.roles.add(role)
        assert barrier.threads <= threads, f"named barrier {name} sees more threads than it counts"
        this_round = barrier.rounds
        if barrier.threads == threads:
            barrier.threads, barrier.roles, barrier.rounds = 0, set(), barrier.rounds + 1
        return lambda: barrier.rounds > this_round

    def arrive_named(self, name, threads):
        self.pause()
        self.come(name, threads)

    def wait_named(self, name, threads):
        self.pause()
        self.pause(self.come(name, threads), f"named barrier {name}")

    def multiply(self, a, b, accumulator, use_acc=True, is_async=False):
        self.pause()
        operands = [x for x in (a, b) if isinstance(x, (Memory, Loaded))]
        self.products[self.here.role, tuple(x.content for x in operands)] += 1
        reads = [(slot, slot.content) for x in operands if isinstance(x, Memory) for slot in x.slots]
        self.here.groups.append(reads)
        self.reads[self.here.role] += reads
        return Tensor()

    def wait_for_products(self, pending, deps):
        self.pause()
        groups = self.here.groups
        done = len(groups) - pending
        for slot, content in (read for group in groups[: max(0, done)] for read in group):
            self.reads[self.here.role].remove((slot, content))
        del groups[: max(0, done)]
        return tuple(deps) if len(deps) > 1 else deps[0]

    def take_number(self, counter):
        self.pause()
        counter[0] += 1
        return Number(counter[0] - 1)

    def names(self) -> dict:
        """By the names under which a kernel's file has them."""
        anything = Tensor()
        gl = types.SimpleNamespace(
            int32="int32", int64="int64", float32=None, float16=None, bfloat16=None, constexpr=lambda value: value,
            program_id=lambda _: Number(self.index), num_programs=lambda _: Number(self.programs), static_range=range,
            minimum=number_or_tensor(min), maximum=number_or_tensor(max),
            max=lambda x, _: x if isinstance(x, int) else Tensor(),
            full=lambda shape, value, *_, **__: Number(value) if shape == [1] else Tensor(),
            allocate_shared_memory=self.allocate, warp_specialize=self.start, load=_load, to_tensor=lambda x: x,
            cdiv=number_or_tensor(lambda a, b: -(-a // b)),
            where=lambda condition, a, b: (a if condition else b) if isinstance(condition, bool) else Tensor(),
            **dict.fromkeys(("exp2", "log2", "expand_dims", "convert_layout", "arange", "zeros_like"), anything),
            **dict.fromkeys(("sum", "split", "join", "reshape", "permute", "store", "inline_asm_elementwise"), anything),
            **dict.fromkeys(("SliceLayout", "DotOperandLayout", "BlockedLayout", "SwizzledSharedLayout"), anything),
            NVMMADistributedLayout=anything, DistributedLinearLayout=anything,
        )  # fmt: skip
        return {
            "gl": gl,
            "mbarrier": types.SimpleNamespace(
                MBarrierLayout=lambda: None, init=self.init, wait=self.wait, arrive=self.arrive, expect=self.expect
            ),
            "tma": types.SimpleNamespace(
                async_copy_global_to_shared=self.copy_in, async_copy_shared_to_global=self.copy_out, store_wait=self.store_wait
            ),
            "barrier": lambda: None,
            "arrive_named": self.arrive_named, "wait_named": self.wait_named, "fence_async_shared": lambda: None,
            "warpgroup_mma": self.multiply, "warpgroup_mma_wait": self.wait_for_products,
            "tma_add": self.copy_out, "draw": self.take_number, "drawn": lambda ticket: ticket,
            # All boxes are whole blocks, which the first lane knows of.
            "lane_id": lambda: Number(0), "from_lane": lambda value, lane: value,
        }  # fmt: skip


def descriptor(name: str, *block: int):
    return types.SimpleNamespace(
        name=name,
        block_shape=list(block),
        layout=None,
        dtype=None,
        block_type=types.SimpleNamespace(nbytes=2 * math.prod(block)),
    )


def run(package, file: str, call, *, programs: int, counter: list[int] | None = None, seed: int) -> tuple[Counter, Counter]:
    """Products and output of all programs of a launch, one after the other; ``call`` calls the kernel of the module it gets."""
    module, draw = getattr(package, file), random.Random(seed)
    products, output = Counter(), Counter()
    for index in range(programs):
        program = Program(index, programs, counter, draw)
        for name, value in program.names().items():
            for changed in (module, package.forward_hopper, package.hopper):
                if hasattr(changed, name):
                    setattr(changed, name, value)
        call(module)
        products += program.products
        output += program.output
    return products, output


def run_attention(package, s, *, programs: int, counter: bool, section: int, seed: int, n_paired: int = 0) -> None:
    """The full-sequence kernel of a copy of our package (`course.copies`), on a `Shape` of one sequence.

    programs: of the launch. counter: whether tiles are drawn from one, and then the first program has all. n_paired: heads
    whose tiles go in pairs, without a counter. AssertionError for a fault.
    """
    tail = s.head_dim_qk - 128
    n_row_tiles = -(-s.q_len // 128)
    drawn = [0] if counter else None

    def call(module):
        module.attention_kernel(
            descriptor("q", 1, 1, 64, 128), descriptor("q tail", 1, 1, 64, tail) if tail else None,
            descriptor("k", 1, 1, 128, 128), descriptor("k tail", 1, 1, 128, tail) if tail else None,
            descriptor("v", 1, 1, 128, 128), descriptor("out", 1, 64, 128), Tensor(), drawn, Tensor(),
            *map(Number, (s.n_q_heads, s.group_size, s.q_len, s.context_len)),
            *map(Number, (s.n_q_heads, s.n_q_heads * n_row_tiles, n_paired, section)),
            CAUSAL=s.causal, Q_BUFFERS=module.QUERY_BUFFERS[s.head_dim_qk, 128],
        )  # fmt: skip

    products, output = run(package, "forward_hopper", call, programs=programs, counter=drawn, seed=seed)
    wanted = expected_of_attention(s)
    values = {key: count for key, count in products.items() if len(key[1]) == 1}
    assert values == {key: count for key, count in wanted.items() if len(key[1]) == 1}, "weights meet the wrong values"
    # A program that has no next tile may multiply what lies there, and does not look at it.
    assert not wanted - products, f"products are missing: {list((wanted - products).items())[:3]}"
    tiles = {(head, row) for head in range(s.n_q_heads) for row in range(0, 128 * n_row_tiles, 64)}
    assert {place[1:3] for place in output} == tiles, "tiles of the output are missing"
    assert max(output.values()) == 1, "a tile of the output comes twice"


def expected_of_attention(s) -> Counter:
    """Each consumer's products, by what they read."""
    found = Counter()
    for head in range(s.n_q_heads):
        kv_head = head // s.group_size
        for first in range(0, s.q_len, 128):
            stop = s.context_len + (min(first + 128, s.q_len) - s.q_len if s.causal else 0)
            for key in range(0, max(stop, 1), 128):
                for part in (0, 1):
                    for end, column in (("", 0), (" tail", 128))[: 1 + (s.head_dim_qk > 128)]:
                        q = (f"q{end}", 0, head, first + 64 * part, column)
                        found[f"consumer {part}", (q, (f"k{end}", 0, kv_head, key, column))] += 1
                    found[f"consumer {part}", (("v", 0, kv_head, key, 0),)] += 1
            if s.causal and s.head_dim_qk > 128:
                for part in (0, 1):
                    found[f"consumer {part}", (("load", 0, head, first + 64 * part, 128),)] += 1
    return found


def run_gradients(package, s, *, seed: int) -> None:
    """The kernel of the gradients, likewise, with a program for each tile of keys and KV head."""
    tail = s.head_dim_qk - 128

    def call(module):
        module.gradients_kernel(
            descriptor("q", 1, 1, 64, 128), descriptor("q tail", 1, 1, 64, tail) if tail else None,
            descriptor("k", 1, 1, 64, 64), descriptor("v", 1, 1, 64, 128), descriptor("d_out", 1, 1, 64, 128),
            descriptor("lse", 1, 1, 64), descriptor("delta", 1, 1, 64), descriptor("dq", 16, 256),
            descriptor("dk", 1, 1, 64, 128), descriptor("dk tail", 1, 1, 64, tail) if tail else None,
            descriptor("dv", 1, 1, 64, 128), None, None, Tensor(),
            *map(Number, (s.n_kv_heads, s.n_kv_heads, s.group_size, 1, s.q_len, s.context_len, 4)),
            CAUSAL=s.causal, SPLIT=False,
        )  # fmt: skip

    programs = s.n_kv_heads * -(-s.context_len // 128)
    products, output = run(package, "backward_hopper", call, programs=programs, seed=seed)
    wanted, sums = expected_of_gradients(s)
    difference = list(((products - wanted) + (wanted - products)).items())
    assert not difference, f"products are of the wrong blocks: {difference[:3]}"
    assert output == sums, "what is added up or written is not what it should be"


def expected_of_gradients(s) -> tuple[Counter, Counter]:
    """Each consumer's products and loads by what they read, and the places that are written or added to."""
    found, output = Counter(), Counter()
    wide = s.head_dim_qk > 128
    stop = -(-s.q_len // 64)
    padding = stop * 64 - s.q_len
    for kv_head in range(s.n_kv_heads):
        for tile in range(-(-s.context_len // 128)):
            first = max(tile * 128 + stop * 64 - s.context_len, padding) if s.causal else padding
            k = [[("k", 0, kv_head, 128 * tile + 64 * i, 64 * half) for half in range(2 + wide)] for i in (0, 1)]
            turns = [(kv_head * s.group_size + m, block) for m in range(s.group_size) for block in range(first // 64, stop)]
            for part in (0, 1):
                me = f"consumer {part}"
                for n, (head, block) in enumerate(turns):
                    row = block * 64 - padding
                    q, d_out = ("q", 0, head, row, 0), ("d_out", 0, head, row, 0)
                    q_tail = ("q tail", 0, head, row, 128)
                    ds = [("stored", f"consumer {i}", n) for i in (0, 1)]
                    v = ("v", 0, kv_head, 128 * tile + 64 * part, 0)
                    reads = [(k[part][0], q), (k[part][1], beside(q, 1)), (v, d_out), (d_out,), (q,)]
                    reads += [(ds[i], k[i][part]) for i in (0, 1)]
                    reads += [(("load", 0, head, block * 64),)] * 2
                    first_sums = (head * stop + block) * (2 + wide)  # a tile of 64 columns each, in 16 lines
                    output["dq", 16 * (first_sums + part), 0] += 1
                    if wide:
                        reads += [(k[part][2], q_tail), (q_tail,)]
                        if (n + part) % 2 == 0:
                            reads += [(ds[i], k[i][2]) for i in (0, 1)]
                            output["dq", 16 * (first_sums + 2), 0] += 1
                    for read in reads:
                        found[me, read] += 1
                for name, column in (("dk", 0), ("dv", 0), *[("dk tail", 128)] * wide):
                    output[name, 0, kv_head, 128 * tile + 64 * part, column] += 1
    return found, output


def run_mla(package, lengths: list[int], *, n_q_heads: int, num_splits: int | None, seed: int) -> None:
    """The kernel of absorbed MLA over a contiguous cache, with splits, or if there are None, as one share of a work list."""
    bounds = None if num_splits else [0, 0, len(lengths) - 1, lengths[-1]]
    n_tiles = -(-n_q_heads // 64)

    def call(module):
        module.mla_kernel(
            descriptor("q latent", 1, 64, 256), descriptor("q rope", 1, 64, 64),
            descriptor("latent", 1, 64, 64), descriptor("k rope", 1, 64, 64), None, Number(0), Number(0),
            Pointer(lengths), Number(1), bounds and Pointer(bounds), Tensor(), Tensor(), Tensor(),
            *map(Number, (len(lengths), max(lengths), n_q_heads, n_q_heads, 1, num_splits or 1)), PAGE=0, BOX=64,
        )  # fmt: skip

    programs = n_tiles * (num_splits * len(lengths) if num_splits else 1)
    products, _ = run(package, "mla_hopper", call, programs=programs, seed=seed)
    wanted = Counter()
    for row0 in range(0, n_q_heads, 64):
        if num_splits:
            for sequence, kv_len in enumerate(lengths):
                length = -(-kv_len // 128 // num_splits) * 128
                for start in range(0, length * num_splits, length):
                    pairs = -(-max(0, min(start + length, kv_len) - start) // 128)
                    wanted += expected_of_mla([(sequence, kv_len, start, pairs)], row0)
        else:
            wanted += expected_of_mla([(b, n, 0, -(-n // 128)) for b, n in enumerate(lengths) if n], row0)
    difference = list(((products - wanted) + (wanted - products)).items())
    assert not difference, f"products are of the wrong blocks: {difference[:3]}"


def expected_of_mla(pieces: list[tuple[int, int, int, int]], row0: int) -> Counter:
    """Products and loads of a program. Pieces: sequence, its tokens, the first token of the piece, and its pairs of blocks."""
    found = Counter()
    pairs_before = 0
    for piece, (sequence, kv_len, start, pairs) in enumerate(pieces):
        for j in range(pairs):
            tokens = [start + 128 * j + 64 * block for block in (0, 1)]
            places = [(sequence if token < kv_len else -1, token) for token in tokens]
            n = pairs_before + j
            for side, (me, other) in enumerate((CONSUMERS, CONSUMERS[::-1])):
                reads = [
                    (("q latent", sequence, row0, column), ("latent", *places[side], column)) for column in range(0, 512, 64)
                ]
                reads.append((("q rope", sequence, row0, 0), ("k rope", *places[side], 0)))
                values = [("latent", *place, 256 * side) for place in places]
                reads += [(values[side],), (("stored", other, n), values[1 - side])]
                reads.append((("load", other, n),))  # the other's maximum
                dead = [place for place, token in zip(places, tokens, strict=True) if token + 64 > kv_len]
                reads += [(("load", *place, 256 * side + column),) for place in dead for column in range(0, 256, 64)]
                for read in reads:
                    found[me, read] += 1
        for me, other in (CONSUMERS, CONSUMERS[::-1]):
            found[me, (("load", other, piece),)] += 1
        pairs_before += pairs
    return found


def run_decode(
    package, lengths: list[int], *, n_q_heads: int, n_kv_heads: int, q_len: int, num_splits: int | None, seed: int
) -> None:
    """The decode kernel for many rows, likewise; new tokens and heads such that a consumer's queries are one box."""
    bounds = None if num_splits else [0, 0, len(lengths) - 1, lengths[-1]]
    group_size = n_q_heads // n_kv_heads
    n_rows = group_size * q_len
    n_tiles = -(-n_rows // 128)

    def call(module):
        module.many_rows_kernel(
            descriptor("q", 1, *module.query_box(group_size), 64),
            descriptor("k", 1, 1, 128, 64), descriptor("v", 1, 1, 128, 64), None, Number(0), Number(0),
            Pointer(lengths), Number(1), bounds and Pointer(bounds), Tensor(), Tensor(), Tensor(),
            *map(Number, (len(lengths), max(lengths), n_kv_heads, n_q_heads, group_size, q_len, n_rows, num_splits or 1)),
            PAGE=0, BOX=128,
        )  # fmt: skip

    programs = n_tiles * n_kv_heads * (num_splits * len(lengths) if num_splits else 1)
    products, _ = run(package, "decode_hopper", call, programs=programs, seed=seed)
    wanted = Counter()
    for kv_head in range(n_kv_heads):
        for first in range(0, n_rows, 64):
            me = CONSUMERS[first // 64 % 2]
            token, head = first // group_size, kv_head * group_size + first % group_size
            for sequence, kv_len in enumerate(lengths):
                all_blocks = -(-kv_len // 128)
                length = -(-all_blocks // (num_splits or 1))
                for split in range(num_splits or 1):
                    blocks = list(range(split * length, min((split + 1) * length, all_blocks)))
                    if num_splits:
                        blocks = blocks or [split * length]  # a split without tokens
                    for block in blocks:
                        place = (kv_head, 128 * block)
                        of = sequence if 128 * block < kv_len else -1
                        wanted[me, (("q", sequence, token, head, 0), ("k", of, *place, 0))] += 1
                        wanted[me, (("v", of, *place, 0),)] += 1
    # What is loaded to be cleared: by each consumer half of the columns, also by one that has no rows.
    loads = {key for key in products if key[1][0][0] == "load"}
    values = Counter({key: count for key, count in products.items() if key not in loads})
    difference = list(((values - wanted) + (wanted - values)).items())
    assert not difference, f"products are of the wrong blocks: {difference[:3]}"
    cleared = Counter(key[0] for key in loads)
    assert cleared[CONSUMERS[0]] == cleared[CONSUMERS[1]], "half of a block is not cleared"
