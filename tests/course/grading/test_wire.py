"""What the answering process says is checked; what the grader sends arrives as it was."""

import json
import socket
import threading
import time

import pytest
import torch

from course.grading import wire


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def sent(pair, value):
    ours, theirs = pair
    thread = threading.Thread(target=wire.send, args=(theirs, value))
    thread.start()
    try:
        return wire.receive(ours, 1 << 24, time.monotonic() + 10)
    finally:
        thread.join()


def test_data_comes_back_as_it_was(pair):
    value = {
        "a": [1, 2.5, None, True, "é"],
        3: (float("inf"), -1),
        "t": torch.arange(6).reshape(2, 3),
        "h": wire.Handle(4, "f"),
    }
    got = sent(pair, value)
    assert torch.equal(got.pop("t"), value.pop("t")) and got.pop("h").number == value.pop("h").number
    assert got == value


@pytest.mark.parametrize("dtype", wire.DTYPES.values())
def test_tensors_keep_their_type_and_strides(pair, dtype):
    base = torch.arange(24).reshape(4, 6).to(dtype)
    got = sent(pair, [base.T[1:, ::2], base[2], torch.empty(0, 3, dtype=dtype), base[:1].expand(5, 6)])
    for have, want in zip(got, [base.T[1:, ::2], base[2], torch.empty(0, 3, dtype=dtype), base[:1].expand(5, 6)], strict=True):
        assert have.stride() == want.stride() and have.dtype == want.dtype and have.storage_offset() == want.storage_offset()
        assert torch.equal(have.to(torch.complex128), want.to(torch.complex128))
    assert got[0].untyped_storage().data_ptr() == got[1].untyped_storage().data_ptr()


def test_the_grader_sends_strides_and_shared_memory(pair):
    base = torch.randn(4, 6)
    wire.send_trusted(pair[0], {"args": (base[:, 1:3], base)})
    first, second = wire.receive_trusted(pair[1])["args"]
    assert first.stride() == (6, 1) and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def header(tree, storages=(), raw=b"", length=None) -> bytes:
    text = json.dumps({"tree": tree, "storages": list(storages)}).encode()
    return wire.LENGTH.pack(len(text) if length is None else length) + text + raw


def tensor(**other):
    return {"tensor": 0, "dtype": "torch.float32", "shape": [2], "stride": [1], "at": 0, **other}


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x80\x04pickle",
        header(1, length=10**6),
        header(tensor()),
        header(tensor(), [4], b"1234"),
        header(tensor(at=1), [8], b"12345678"),
        header(tensor(stride=[3]), [8], b"12345678"),
        header(tensor(stride=[-1]), [8], b"12345678"),
        header(tensor(shape=[1 << 40], stride=[0]), [8], b"12345678"),
        header(tensor(shape=[2.0]), [8], b"12345678"),
        header(tensor(shape=[True]), [8], b"12345678"),
        header(tensor(shape=[1] * 20, stride=[1] * 20), [8], b"12345678"),
        header(tensor(dtype="torch.load"), [8], b"12345678"),
        header(tensor(), [-8], b"12345678"),
        header(tensor(), [1 << 60], b"12345678"),
        header({"object": -1, "type": "f"}),
        header({"tuple": [1], "fields": ["__class__"]}),
        header({"tuple": [1], "fields": ["a", "b"]}),
        header({"dict": [[{"list": []}, 1]]}),
        header({"dict": [[1, 2, 3]]}),
        header({"what": 1}),
        wire.LENGTH.pack(200_000) + b"[" * 200_000,
    ],
)
def test_messages_that_break_the_rules_are_refused(pair, frame):
    wire.send_bytes(pair[1], frame)
    with pytest.raises(wire.Refused):
        wire.receive(pair[0], 1 << 24, time.monotonic() + 10)


def test_a_message_may_be_too_long_late_or_cut(pair):
    ours, theirs = pair
    theirs.sendall(wire.LENGTH.pack(1 << 50))
    with pytest.raises(wire.Refused, match="at most"):
        wire.receive(ours, 100)
    with pytest.raises(wire.Late):
        wire.receive(ours, 100, time.monotonic() + 0.01)
    theirs.sendall(wire.LENGTH.pack(10) + b"abc")
    theirs.close()
    with pytest.raises(wire.Closed):
        wire.receive(ours, 100)


def test_what_is_no_data_is_not_sent(pair):
    with pytest.raises(TypeError):
        wire.send(pair[1], {"a": object()})
    with pytest.raises(TypeError):
        wire.send(pair[1], torch.eye(2).to_sparse())
