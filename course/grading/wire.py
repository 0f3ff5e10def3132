"""Messages between the grader and the process that runs a learner's code.

The grader is trusted, so what it sends may be any object (`send_trusted`, pickled by torch, which keeps strides and offsets).
What comes back is not: `send` writes JSON and the bytes of tensors, and `receive` believes no length, type or stride in it.
"""

import collections
import io
import json
import keyword
import math
import socket
import struct
import time

import torch

LENGTH = struct.Struct(">Q")
DTYPES = {
    str(dtype): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.complex64, torch.complex128),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
    )
}
MOST_ELEMENTS = 1 << 26
MOST_AXES = 16


class Refused(Exception):
    """A message breaks the rules of the wire: it is too long, or is not what it says it is."""


class Closed(Exception):
    """The other side has gone."""


class Late(Exception):
    """No whole message came in time."""


class Handle:
    """An object that stays on the answering side, by its number."""

    def __init__(self, number: int, type_name: str = ""):
        self.number, self.type_name = number, type_name


# ---- bytes ----


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise Late
    return left


def send_bytes(sock: socket.socket, data: bytes, deadline: float | None = None) -> None:
    """Send one frame. Raises `Late`, or `Closed`."""
    try:
        for part in (LENGTH.pack(len(data)), data):
            sock.settimeout(_left(deadline))
            sock.sendall(part)
    except TimeoutError:
        raise Late from None
    except OSError:
        raise Closed from None


def _exactly(sock: socket.socket, n: int, deadline: float | None) -> bytearray:
    data, at = bytearray(n), 0
    view = memoryview(data)
    while at < n:
        sock.settimeout(_left(deadline))
        try:
            got = sock.recv_into(view[at:])
        except TimeoutError:
            raise Late from None
        except OSError:
            raise Closed from None
        if got == 0:
            raise Closed
        at += got
    return data


def receive_bytes(sock: socket.socket, most: int, deadline: float | None = None) -> bytearray:
    """Receive one frame of at most ``most`` bytes. Raises `Late`, `Closed` or `Refused`."""
    (length,) = LENGTH.unpack(_exactly(sock, LENGTH.size, deadline))
    if length > most:
        raise Refused(f"a message of {length} bytes, {most} at most are taken")
    return _exactly(sock, length, deadline)


# ---- from the grader ----


def send_trusted(sock: socket.socket, message: dict, deadline: float | None = None) -> None:
    """Send any objects, tensors with their strides."""
    buffer = io.BytesIO()
    torch.save(message, buffer)
    send_bytes(sock, buffer.getbuffer(), deadline)


def receive_trusted(sock: socket.socket) -> dict:
    """The other end of `send_trusted`. Only the answering process calls it: it unpickles."""
    return torch.load(io.BytesIO(receive_bytes(sock, 1 << 40)), weights_only=False)


# ---- to the grader ----


class _Writer:
    def __init__(self):
        self.storages, self.places = [], {}

    def tree(self, value):
        if isinstance(value, Handle):
            return {"object": value.number, "type": value.type_name}
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, torch.Tensor):
            return self.tensor(value.detach())
        if isinstance(value, tuple):
            return {"tuple": [self.tree(v) for v in value], "fields": list(getattr(value, "_fields", ()))}
        if isinstance(value, list):
            return {"list": [self.tree(v) for v in value]}
        if isinstance(value, dict):
            return {"dict": [[self.tree(k), self.tree(v)] for k, v in value.items()]}
        raise TypeError(f"{type(value).__name__} is no data")

    def tensor(self, value: torch.Tensor) -> dict:
        if str(value.dtype) not in DTYPES or value.layout != torch.strided:
            raise TypeError(f"a tensor of {value.dtype}, {value.layout} cannot be handed over")
        value = value.cpu().resolve_conj().resolve_neg()
        storage = value.untyped_storage()
        # Views of one tensor stay views of one tensor: whether something was copied may be the question.
        place = self.places.setdefault(storage.data_ptr() or id(storage), len(self.storages))
        if place == len(self.storages):
            self.storages.append(storage)
        shape, stride = list(value.shape), list(value.stride())
        return {"tensor": place, "dtype": str(value.dtype), "shape": shape, "stride": stride, "at": value.storage_offset()}


def send(sock: socket.socket, value) -> None:
    """Send data (see `answers.is_plain`) and handles. Raises TypeError for anything else."""
    writer = _Writer()
    tree = writer.tree(value)
    raw = [bytes(_bytes(storage)) for storage in writer.storages]
    header = json.dumps({"tree": tree, "storages": [len(r) for r in raw]}).encode()
    send_bytes(sock, b"".join([LENGTH.pack(len(header)), header, *raw]))


def _bytes(storage: torch.UntypedStorage) -> bytes:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


def receive(sock: socket.socket, most: int, deadline: float | None = None):
    """Receive what `send` sends from a side that is not trusted. Raises `Late`, `Closed` or `Refused`."""
    frame = receive_bytes(sock, most, deadline)
    try:
        return _read(frame)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, struct.error, RuntimeError) as error:
        raise Refused(f"a message that cannot be read ({type(error).__name__})") from None


def _read(frame: bytearray):
    view = memoryview(frame)
    (length,) = LENGTH.unpack(view[: LENGTH.size])
    start = LENGTH.size + length
    if start > len(frame):
        raise ValueError("header")
    header = json.loads(bytes(view[LENGTH.size : start]))
    storages = []
    for size in header["storages"]:
        size = _count(size)
        if start + size > len(frame):
            raise ValueError("storage")
        own = torch.empty(size, dtype=torch.uint8)
        if size:
            own.copy_(torch.frombuffer(view[start : start + size], dtype=torch.uint8))
        storages.append(own.untyped_storage())
        start += size
    return _value(header["tree"], storages)


def _count(value) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("count")
    return value


def _value(tree, storages):
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    if "tensor" in tree:
        return _tensor(tree, storages)
    if "list" in tree:
        return [_value(v, storages) for v in tree["list"]]
    if "tuple" in tree:
        values, fields = tuple(_value(v, storages) for v in tree["tuple"]), tree["fields"]
        if not fields:
            return values
        if len(fields) != len(values) or not all(type(f) is str and f.isidentifier() and f[0] != "_" for f in fields):
            raise ValueError("fields")
        if any(map(keyword.iskeyword, fields)):
            raise ValueError("fields")
        return collections.namedtuple("Result", fields)(*values)
    if "dict" in tree:
        return {_value(k, storages): _value(v, storages) for k, v in tree["dict"]}
    return Handle(_count(tree["object"]), str(tree["type"])[:80])


def _tensor(tree: dict, storages: list) -> torch.Tensor:
    dtype, storage = DTYPES[tree["dtype"]], storages[_count(tree["tensor"])]
    shape, stride = [_count(n) for n in tree["shape"]], [_count(n) for n in tree["stride"]]
    at, size = _count(tree["at"]), dtype.itemsize
    if len(shape) != len(stride) or len(shape) > MOST_AXES or math.prod(shape) > MOST_ELEMENTS:
        raise ValueError("shape")
    last = at + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1 if math.prod(shape) else 0
    if last * size > storage.nbytes() or at * size > storage.nbytes():
        raise ValueError("beyond the storage")
    return torch.empty(0, dtype=dtype).set_(storage, at, shape, stride)
