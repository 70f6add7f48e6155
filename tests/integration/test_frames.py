"""The codec: one encoding per message, and every other byte string refused in one clear line."""

import json
import os
import random
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InputError, PeerError
from tacit.training.cut import RECORD_BYTES, Embedding, Gradient
from tacit.wire.protocol.codec import decode, encode
from tacit.wire.protocol.forms import Kind, kind_of
from tacit.wire.protocol.header import HEADER_BYTES, Limits
from tacit.wire.protocol.messages import (
    Align,
    Bye,
    CheckpointMessage,
    Evaluate,
    Heartbeat,
    Hello,
    Predict,
    Records,
    Refuse,
    Upload,
)
from tacit.wire.protocol.state_machine import Protocol, State

FUZZ = int(os.environ.get("TACIT_FUZZ", "6000"))
DIGEST = "ab" * 32
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
HEADER = struct.Struct("<4sHHHBBIq4iq")
FIELDS = [
    "magic",
    "version",
    "kind",
    "flags",
    "dtype",
    "dims",
    "zero",
    "step",
    "a",
    "b",
    "c",
    "d",
    "length",
]


def values(*shape, dtype=torch.float32):
    return torch.linspace(-1, 2, torch.Size(shape).numel()).reshape(shape).to(dtype)


def train(step=3, of=None):
    return Embedding(step=step, values=values(1, 2) if of is None else of)


def release(step=3, of=None, record=None):
    of = values(1, 2) if of is None else of
    return Gradient(step=step, values=of, record=record)


RECORD = bytes(range(RECORD_BYTES))


def records(count=9, many=2):
    return Records(
        count=count, values=torch.frombuffer(bytearray(RECORD * many), dtype=torch.uint8)
    )


HELLO = Hello(versions=(1,), party="clinic", plan_digest=DIGEST, resume_point=41)
EXAMPLES = {
    "hello": HELLO,
    "hello, fresh": Hello(versions=(1, 2), party="bank", plan_digest=DIGEST),
    "hello, one of several": Hello(versions=(2,), party="b", plan_digest=DIGEST, number=7),
    "align, count": Align(count=512),
    "align, texts": Align(count=2, ids=("a", "ü")),
    "align, numbers": Align(count=2, ids=torch.tensor([7, -1])),
    "align, sealed": Align(sealed=torch.tensor([0, 255, 7], dtype=torch.uint8)),
    "align, held": Align(held="0123456789abcdef" * 4),
    "train": train(),
    "release": release(),
    "release, recorded": release(record=RECORD),
    "evaluate": Evaluate(part=1, values=values(1, 2)),
    "evaluate, receipt": Evaluate(part=1),
    "evaluate, note": Evaluate(part=1, note="test auc 0.70"),
    "evaluate, record": Evaluate(part=1, record=RECORD),
    "evaluate, both": Evaluate(part=1, note="ü", record=RECORD),
    "records": records(many=1),
    "records, count": Records(count=9),
    "predict": Predict(part=0, values=values(1, 2)),
    "predict, receipt": Predict(part=0),
    "upload": Upload(part=2, values=values(2, 3)),
    "upload, codes": Upload(part=2, codes=torch.tensor([[7, 255]], dtype=torch.uint8)),
    "upload, bottom": Upload(part=0, bottom=DIGEST),
    "upload, answer": Upload(part=3),
    "checkpoint": CheckpointMessage(step=9),
    "heartbeat": Heartbeat(),
    "refuse": Refuse(reason="no"),
    "bye": Bye(),
}


def content(message):
    """Return what a message says, comparable: tensors as type, shape and bytes."""
    if isinstance(message, torch.Tensor):
        raw = message.contiguous().view(-1).view(torch.uint8)
        return message.dtype, tuple(message.shape), bytes(raw.tolist())
    if hasattr(message, "__dataclass_fields__"):
        return type(message), {name: content(value) for name, value in vars(message).items()}
    return message


# --- one encoding per message ---


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_message_survives_the_round_trip(name, kind):
    frame = encode(EXAMPLES[name])
    assert content(decode(kind(frame))) == content(EXAMPLES[name])
    assert encode(decode(frame)) == frame


def test_the_examples_cover_every_kind():
    assert {kind_of(type(message)) for message in EXAMPLES.values()} == set(Kind)


texts = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=30)
shapes = st.lists(st.integers(1, 5), min_size=2, max_size=4).map(tuple)
steps = st.integers(0, 2**63 - 1)
record = st.binary(min_size=RECORD_BYTES, max_size=RECORD_BYTES)


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(FLOATS))
    shape = draw(shapes)
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scale = 10.0 ** draw(st.integers(-7, 3))
    return (scale * torch.randn(shape, generator=rng, dtype=torch.float64)).to(dtype)


messages = st.one_of(
    st.builds(
        Hello,
        versions=st.sets(st.integers(1, 65535), min_size=1, max_size=16).map(sorted).map(tuple),
        party=texts,
        plan_digest=st.binary(min_size=32, max_size=32).map(bytes.hex),
        resume_point=st.none() | steps,
    ),
    st.builds(Align, count=steps),
    st.lists(texts, min_size=1).map(lambda ids: Align(count=len(ids), ids=tuple(ids))),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1).map(
        lambda ids: Align(count=len(ids), ids=torch.tensor(ids, dtype=torch.int64))
    ),
    st.builds(train, steps, tensors()),
    st.builds(release, steps, tensors(), st.none() | record),
    st.builds(Evaluate, part=steps, values=st.none() | tensors()),
    st.builds(Evaluate, part=steps, note=st.none() | texts, record=st.none() | record),
    st.builds(records, steps, st.integers(1, 5)),
    st.builds(Records, count=steps),
    st.builds(
        Upload, part=steps, bottom=st.none() | st.binary(min_size=32, max_size=32).map(bytes.hex)
    ),
    st.builds(Predict, part=steps, values=st.none() | tensors()),
    st.builds(
        Upload, part=steps, values=st.none() | tensors().filter(lambda values: values.dim() == 2)
    ),
    st.builds(CheckpointMessage, step=steps),
    st.builds(Refuse, reason=texts),
    st.sampled_from([Heartbeat(), Bye()]),
)


@settings(max_examples=300, deadline=None)
@given(messages)
def test_any_message_survives_the_round_trip(message):
    frame = encode(message)
    assert content(decode(frame)) == content(message)
    assert encode(decode(frame)) == frame


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (2, 3, 4), (2, 1, 3, 2)])
def test_every_dtype_and_rank_survives(dtype, shape):
    message = release(of=values(*shape, dtype=dtype))
    assert content(decode(encode(message))) == content(message)


def test_strided_and_tracked_values_are_sent_as_their_numbers():
    strided = values(4, 6).t()[::2].requires_grad_()
    got = decode(encode(train(of=strided))).values
    assert torch.equal(got, strided.detach())
    assert not got.requires_grad


def test_a_decoded_tensor_owns_its_memory():
    frame = bytearray(encode(train()))
    got = decode(frame).values
    frame[HEADER_BYTES:] = bytes(len(frame) - HEADER_BYTES)
    assert torch.equal(got, values(1, 2))
    got.zero_()


@pytest.mark.parametrize("make", [train, release, lambda of: Evaluate(part=0, values=of)])
def test_narrowing_halves_the_body_and_rounds_to_bfloat16(make):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    frame, plain = encode(make(of=x), narrow=True), encode(make(of=x))
    assert len(frame) - HEADER_BYTES == (len(plain) - HEADER_BYTES) // 2
    got = decode(frame)
    assert content(got) == content(make(of=x.bfloat16().float()))
    assert encode(got, narrow=True) == frame


def test_narrowing_touches_float32_only():
    for message in (train(of=values(2, 2, dtype=torch.float64)), Bye(), EXAMPLES["align, numbers"]):
        assert encode(message, narrow=True) == encode(message)


def test_narrowing_to_infinity_is_refused():
    with pytest.raises(InputError, match="finite"):
        encode(train(of=torch.full((1, 1), 3.4e38)), narrow=True)


# --- version 2 on the wire, byte by byte ---

# Groups: kind, flags, dtype and dims, zero, step, shape, body length, body.
HEAD = "544143540200"  # magic and version
GOLDEN = {
    "hello": (
        "0100 0000 0000 00000000 0000000000000000 00000000000000000000000000000000 8400000000000000"
        " 7b227061727479223a22636c696e6963222c22706c616e5f646967657374223a226162616261"
        "6261626162616261626162616261626162616261626162616261626162616261626162616261"
        "626162616261626162616261626162616261626162222c22726573756d655f706f696e74223a"
        "34312c2276657273696f6e73223a5b315d7d"
    ),
    "hello, fresh": (
        "0100 0000 0000 00000000 0000000000000000 00000000000000000000000000000000 8600000000000000"
        " 7b227061727479223a2262616e6b222c22706c616e5f646967657374223a2261626162616261"
        "6261626162616261626162616261626162616261626162616261626162616261626162616261"
        "62616261626162616261626162616261626162222c22726573756d655f706f696e74223a6e75"
        "6c6c2c2276657273696f6e73223a5b312c325d7d"
    ),
    "hello, one of several": (
        "0100 0000 0000 00000000 0000000000000000 00000000000000000000000000000000 8c00000000000000"
        " 7b226e756d626572223a372c227061727479223a2262222c22706c616e5f646967657374223a"
        "2261626162616261626162616261626162616261626162616261626162616261626162616261"
        "626162616261626162616261626162616261626162616261626162222c22726573756d655f70"
        "6f696e74223a6e756c6c2c2276657273696f6e73223a5b325d7d"
    ),
    "align, count": (
        "0200 0000 0000 00000000 0000000000000000 00000000000000000000000000000000 0d00000000000000"
        " 7b22636f756e74223a3531327d"
    ),
    "align, texts": (
        "0200 0000 0000 00000000 0000000000000000 00000000000000000000000000000000 1200000000000000"
        " 7b22696473223a5b2261222c22c3bc225d7d"
    ),
    "align, numbers": (
        "0200 0000 0501 00000000 0000000000000000 02000000000000000000000000000000 1000000000000000"
        " 0700000000000000ffffffffffffffff"
    ),
    "train": (
        "0300 0000 0102 00000000 0300000000000000 01000000020000000000000000000000 0800000000000000"
        " 000080bf00000040"
    ),
    "release": (
        "0400 0000 0102 00000000 0300000000000000 01000000020000000000000000000000 0800000000000000"
        " 000080bf00000040"
    ),
    "evaluate": (
        "0500 0000 0102 00000000 0100000000000000 01000000020000000000000000000000 0800000000000000"
        " 000080bf00000040"
    ),
    "evaluate, receipt": (
        "0500 0000 0000 00000000 0100000000000000 00000000000000000000000000000000 0000000000000000"
    ),
    "predict": (
        "0600 0000 0102 00000000 0000000000000000 01000000020000000000000000000000 0800000000000000"
        " 000080bf00000040"
    ),
    "upload": (
        "0c00 0000 0102 00000000 0200000000000000 02000000 03000000 00000000 00000000"
        " 1800000000000000 000080bf ccccccbe d0cc4c3e cccc4c3f 3333b33f 00000040"
    ),
    "upload, codes": (
        "0c00 0000 0602 00000000 0200000000000000 01000000 02000000 00000000 00000000"
        " 0200000000000000 07ff"
    ),
    "upload, answer": (
        "0c00 0000 0000 00000000 0300000000000000 00000000 00000000 00000000 00000000"
        " 0000000000000000"
    ),
    "upload, bottom": (
        "0c00 0000 0000 00000000 0000000000000000 00000000 00000000 00000000 00000000"
        " 4d00000000000000 7b22626f74746f6d223a22616261626162616261626162616261626162"
        "6162616261626162616261626162616261626162616261626162616261626162616261626162"
        "6162616261626162227d"
    ),
    "predict, receipt": (
        "0600 0000 0000 00000000 0000000000000000 00000000000000000000000000000000 0000000000000000"
    ),
    "checkpoint": (
        "0700 0000 0000 00000000 0900000000000000 00000000000000000000000000000000 0000000000000000"
    ),
    "align, sealed": (
        "0200 0000 0601 00000000 0000000000000000 03000000000000000000000000000000 0300000000000000"
        " 00ff07"
    ),
    "align, held": (
        "0200 0000 0000 00000000 0000000000000000 00000000000000000000000000000000 4b00000000000000"
        " 7b2268656c64223a2230313233343536373839616263646566303132333435363738396162636465"
        "663031323334353637383961626364656630313233343536373839616263646566227d"
    ),
    "heartbeat": (
        "0800 0000 0000 00000000 0000000000000000 00000000000000000000000000000000 0000000000000000"
    ),
    "refuse": (
        "0900 0000 0000 00000000 0000000000000000 00000000000000000000000000000000 0f00000000000000"
        " 7b22726561736f6e223a226e6f227d"
    ),
    "release, recorded": (
        "0400 0200 0102 00000000 0300000000000000 01000000020000000000000000000000 7800000000000000"
        f" 000080bf00000040 {RECORD.hex()}"
    ),
    "evaluate, note": (
        "0500 0000 0000 00000000 0100000000000000 00000000000000000000000000000000 1800000000000000"
        " 7b226e6f7465223a22746573742061756320302e3730227d"
    ),
    "evaluate, record": (
        "0500 0000 0000 00000000 0100000000000000 00000000000000000000000000000000 ed00000000000000"
        f" 7b227265636f7264223a22 {RECORD.hex().encode().hex()} 227d"
    ),
    "evaluate, both": (
        "0500 0000 0000 00000000 0100000000000000 00000000000000000000000000000000 f900000000000000"
        f" 7b226e6f7465223a22c3bc222c 227265636f7264223a22 {RECORD.hex().encode().hex()} 227d"
    ),
    "records": (
        "0b00 0000 0601 00000000 0900000000000000 70000000000000000000000000000000 7000000000000000"
        f" {RECORD.hex()}"
    ),
    "records, count": (
        "0b00 0000 0000 00000000 0900000000000000 00000000000000000000000000000000 0000000000000000"
    ),
    "bye": (
        "0a00 0000 0000 00000000 0000000000000000 00000000000000000000000000000000 0000000000000000"
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_bytes_of_version_2(name):
    assert encode(EXAMPLES[name]).hex() == HEAD + GOLDEN[name].replace(" ", "")
    assert content(decode(bytes.fromhex(HEAD + GOLDEN[name]))) == content(EXAMPLES[name])


def test_golden_bytes_of_a_narrowed_frame():
    golden = HEAD + (
        "0300 0100 0102 00000000 0300000000000000 01000000 02000000 00000000 00000000"
        " 0400000000000000 80bf 0040"
    )
    assert encode(train(), narrow=True) == bytes.fromhex(golden)


# --- limits ---


@pytest.mark.parametrize(
    ("message", "limits", "says"),
    [
        (train(of=values(5, 2)), Limits(max_rows=4), "at most 4 rows, got 5"),
        (train(of=values(2, 3, 2)), Limits(max_width=5), "at most 5 values per row, got 6"),
        (train(of=values(8, 8)), Limits(max_bytes=256), "at most 256 bytes, got 304"),
        (Align(count=5, ids=torch.arange(5)), Limits(max_rows=4), "at most 4 rows, got 5"),
        (Align(count=9, ids=("x",) * 9), Limits(max_text=40), "1 to 40 bytes, got 45"),
    ],
)
def test_limits_hold_on_both_sides(message, limits, says):
    with pytest.raises(InputError, match=says):
        encode(message, limits=limits)
    with pytest.raises(PeerError, match=says):
        decode(encode(message), limits=limits)


def test_the_largest_that_is_allowed_passes():
    limits = Limits(max_rows=4, max_width=6, max_bytes=HEADER_BYTES + 4 * 6 * 4)
    sent = values(4, 2, 3)
    found = decode(encode(train(of=sent), limits=limits), limits=limits)
    assert torch.equal(found.values, sent)


def test_limits_must_be_positive():
    with pytest.raises(InputError, match="max_rows must be a whole number from 1"):
        Limits(max_rows=0)


def test_a_huge_claim_allocates_nothing(monkeypatch):
    frame = changed(train(), a=2**31 - 1, b=2**31 - 1, length=2**63 - 1)
    monkeypatch.setattr(torch, "frombuffer", None)  # would raise TypeError
    with pytest.raises(PeerError, match="at most"):
        decode(frame)


# --- every malformed case by name ---


def changed(message, body=None, **fields):
    """Return a message's frame with other header fields or another body of the right length."""
    frame = encode(message)
    header = dict(zip(FIELDS, HEADER.unpack_from(frame), strict=True))
    body = frame[HEADER_BYTES:] if body is None else body
    header.update({"length": len(body), **fields})
    return HEADER.pack(*header.values()) + body


def floats(*numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


def said(body):
    return changed(HELLO, body if isinstance(body, bytes) else body.encode())


def hello(**fields):
    """Return a hello with some of its fields replaced, canonical but maybe wrong."""
    whole = {"party": "clinic", "plan_digest": DIGEST, "resume_point": 41, "versions": [1]}
    return said(json.dumps({**whole, **fields}, sort_keys=True, separators=(",", ":")))


NAN, INF = float("nan"), float("inf")
GOOD = encode(HELLO)[HEADER_BYTES:].decode()
MALFORMED = {
    "empty": (b"", "cut short"),
    "half a header": (encode(Bye())[:20], "cut short"),
    "truncated body": (encode(train())[:-1], "must have 8 bytes, got 7"),
    "trailing bytes": (encode(train()) + b"\0", "must have 8 bytes, got 9"),
    "trailing bytes after nothing": (encode(Bye()) + b"\0", "must have 0 bytes, got 1"),
    "wrong magic": (changed(Bye(), magic=b"HTTP"), "begins with b'TACT', got b'HTTP'"),
    "a pickle": (b"\x80\x04\x95" + bytes(60), "begins with"),
    "version 1": (changed(Bye(), version=1), "version must be 2, got 1"),
    "future version": (changed(Bye(), version=3), "version must be 2, got 3"),
    "kind 0": (changed(Bye(), kind=0), "kind must be 1 to 12, got 0"),
    "unknown kind": (changed(Bye(), kind=13), "kind must be 1 to 12, got 13"),
    "unknown flag": (changed(train(), flags=4), "unknown flags"),
    "spare bytes used": (changed(Bye(), zero=1), "unknown flags"),
    "unknown dtype": (changed(train(), dtype=7), "dtype code must be 0 to 6, got 7"),
    "int64 embedding": (
        changed(train(of=values(1, 1, dtype=torch.float64)), dtype=5),
        "in train values must be float32 or .*, got torch.int64",
    ),
    "float ids": (
        changed(EXAMPLES["align, numbers"], dtype=2),
        "ids must be int64, sealed must be uint8, got",
    ),
    "five dimensions": (changed(train(), dims=5), "at most 4 dimensions, got 5"),
    "one dimension": (changed(train(), dims=1, b=0), "cannot carry a tensor of shape"),
    "no dimensions": (changed(train(), dims=0, a=0, b=0), "cannot carry a tensor of shape"),
    "hidden dimension": (changed(train(), c=1), "unused dimensions must be 0"),
    "zero rows": (changed(train(), b"", a=0), "must be 1 or more"),
    "negative rows": (changed(train(), a=-1), "must be 1 or more"),
    "two negatives": (changed(train(), a=-1, b=-2), "must be 1 or more"),
    "too many rows": (changed(train(), a=2**31 - 1), "rows, got 2147483647"),
    "overflowing shape": (changed(train(), dims=4, a=65536, b=65536, c=65536, d=65536), "per row"),
    "shape and length disagree": (changed(train(), a=2), "body length must be 16, got 8"),
    "negative length": (changed(train(), length=-8), "body length must be 8, got -8"),
    "huge length": (changed(train(), length=2**62), "at most 67108864 bytes"),
    "negative step": (changed(train(), step=-1), "a step must be a whole number from 0"),
    "a step where none belongs": (changed(Bye(), step=1), "a step must be .* 0 to 0, got 1"),
    "a body where none belongs": (changed(Bye(), b"{}"), "tensor or nothing, got 2 bytes"),
    "a tensor where none belongs": (changed(train(), kind=10, step=0), "cannot carry a tensor"),
    "no tensor in train": (changed(CheckpointMessage(step=1), kind=3), "must carry a tensor"),
    "a shape without a dtype": (changed(Bye(), dims=1, a=1), "without a dtype"),
    "a record after an embedding": (
        changed(train(), floats(1, 1) + RECORD, flags=2),
        "carries no record",
    ),
    "a release without its record": (changed(release(), flags=2), "length must be 120, got 8"),
    "half a record after a release": (
        changed(release(record=RECORD), floats(1, 1) + RECORD[:-1]),
        "length must be 120, got 119",
    ),
    "half a record": (
        changed(Records(count=1), RECORD[:-1], dtype=6, dims=1, a=111),
        "1 to 4096 records of 112 bytes, got 111",
    ),
    "too many records": (
        changed(Records(count=1), RECORD * 4097, dtype=6, dims=1, a=4097 * 112),
        "1 to 4096 records",
    ),
    "records as numbers": (
        changed(Records(count=1), bytes(8), dtype=5, dims=1, a=1),
        "in records values must be uint8, got torch.int64",
    ),
    "records as text": (changed(Records(count=1), b"{}"), "must carry a tensor or nothing"),
    "a negative count of records": (changed(Records(count=1), step=-1), "a step must be"),
    "a note that is none": (
        changed(Evaluate(part=1, note="x"), b'{"note":null}'),
        "a note must be text",
    ),
    "a record in capitals": (
        changed(Evaluate(part=1, note="x"), b'{"record":"AB"}'),
        "must be hexadecimal",
    ),
    "a record too short": (
        changed(Evaluate(part=1, note="x"), b'{"record":"ab"}'),
        "a record has 112 bytes",
    ),
    "a receipt with more": (changed(Evaluate(part=1, note="x"), b'{"labels":"1"}'), "has the keys"),
    "narrowed text": (changed(HELLO, flags=1), "without a dtype has a shape or flags"),
    "narrowed float64": (
        changed(train(of=values(1, 2, dtype=torch.float64)), flags=1),
        "only float32",
    ),
    "NaN in an embedding": (changed(train(), floats(1, NAN)), "must be finite, got nan"),
    "infinity in a gradient": (changed(release(), floats(-INF, 1)), "finite, got -inf to 1"),
    "NaN in an evaluation": (changed(EXAMPLES["evaluate"], floats(NAN, 1)), "must be finite"),
    "narrowed infinity": (changed(train(), b"\x80\x7f\0\0", flags=1), "must be finite"),
    "no JSON": (said("hello"), "canonical JSON"),
    "no UTF-8": (said(b'{"party":"\xff"}'), "canonical JSON"),
    "a byte order mark": (said("\ufeff" + GOOD), "canonical JSON"),
    "empty text": (said(""), "1 to 1048576 bytes, got 0"),
    "a list": (said("[1]"), "one canonical JSON object"),
    "a number": (said("1"), "one canonical JSON object"),
    "spaces": (said(GOOD.replace(":", ": ")), "one canonical JSON object"),
    "unsorted keys": (said('{"versions":[1],"party":"a"}'), "one canonical JSON object"),
    "an escaped letter": (said(GOOD.replace("clinic", "\\u0063linic")), "one canonical JSON"),
    "minus zero": (said(GOOD.replace("41", "-0")), "one canonical JSON object"),
    "half a surrogate": (hello(party="\ud800"), "canonical JSON"),
    "duplicate keys": (said('{"a":1,"a":1}'), "a JSON key must appear once"),
    "nested duplicate keys": (said('{"a":{"b":1,"b":1}}'), "a JSON key must appear once"),
    "deep JSON": (said("[" * 100_000 + "]" * 100_000), "canonical JSON"),
    "deep objects": (said('{"a":' * 100_000 + "1" + "}" * 100_000), "canonical JSON"),
    "a fraction": (said(GOOD.replace("41", "4.5")), "must be whole, got '4.5'"),
    "a NaN": (said(GOOD.replace("41", "NaN")), "must be whole, got 'NaN'"),
    "a number of 10,000 digits": (said(GOOD.replace("41", "4" * 10_000)), "canonical JSON"),
    "a missing key": (said('{"party":"a"}'), "a body has the keys"),
    "an extra key": (hello(labels=[1]), "a body has the keys"),
    "a truth value as a step": (hello(resume_point=True), "resume_point must be a whole number"),
    "a step as text": (hello(resume_point="41"), "resume_point must be a whole number"),
    "a huge step": (hello(resume_point=2**63), "resume_point must be a whole number"),
    "no versions": (hello(versions=[]), "versions must be 1 to 16 numbers"),
    "many versions": (hello(versions=list(range(1, 18))), "versions must be 1 to 16 numbers"),
    "versions go down": (hello(versions=[2, 1]), "versions must go up"),
    "version zero": (hello(versions=[0]), "a version must be"),
    "versions no list": (hello(versions="1"), "versions must be a list"),
    "an upper-case digest": (hello(plan_digest="AB" * 32), "64 hexadecimal digits"),
    "a digest and a newline": (hello(plan_digest=DIGEST + "\n"), "64 hexadecimal digits"),
    "a digest of numbers": (hello(plan_digest=[1]), "64 hexadecimal digits"),
    "an empty name": (hello(party=""), "a party's name must be 1 to 64 printable"),
    "a long name": (hello(party="x" * 65), "a party's name must be 1 to 64 printable"),
    "a terminal escape in a reason": (
        changed(Refuse(reason="no"), b'{"reason":"\\u001b[2J"}'),
        "a reason must be 1 to 500 printable",
    ),
    "ids and count": (changed(Align(count=1), b'{"count":1,"ids":["a"]}'), "has the keys"),
    "no ids": (changed(Align(count=1), b'{"ids":[]}'), "at least one, got 0"),
    "numbers as text ids": (changed(Align(count=1), b'{"ids":[1]}'), "an id must be"),
    "a digest too short": (changed(Align(count=1), b'{"held":"00"}'), "64 hexadecimal digits"),
    "a negative count": (changed(Align(count=1), b'{"count":-1}'), "count must be"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_frames_are_refused_in_one_line(name):
    frame, says = MALFORMED[name]
    with pytest.raises(PeerError, match=says) as caught:
        decode(frame)
    text = str(caught.value)
    assert "\n" not in text
    assert text.isprintable()
    assert len(text) < 400


def test_every_cut_of_every_example_is_refused():
    for message in EXAMPLES.values():
        frame = encode(message)
        for length in range(len(frame)):
            with pytest.raises(PeerError):
                decode(frame[:length])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: encode(train(of=values(1, 2) * NAN)), "finite"),
        (lambda: encode(train(of=values(2))), "cannot carry a tensor of shape"),
        (lambda: encode(train(of=values(1, 1, 1, 1, 1))), "cannot carry a tensor of shape"),
        (lambda: encode(train(of=torch.ones(1, 1, dtype=torch.int64))), "values must be float32"),
        (lambda: encode(train(of=torch.ones(1, 1, dtype=torch.bool))), "must be one of"),
        (lambda: encode(train(of=torch.ones(0, 2))), "1 or more"),
        (lambda: train(step=-1), "a step must be"),
        (lambda: Refuse(reason="two\nlines"), "printable"),
        (lambda: Align(count=1, ids=torch.ones(1)), "int64 in one dimension"),
        (lambda: Align(count=3, ids=("a",)), "there must be 3 ids"),
    ],
)
def test_what_must_not_be_sent_is_the_callers_mistake(make, says):
    with pytest.raises(InputError, match=says):
        make()


# --- fuzz ---


def mutated(rng, frames):
    """Return a frame after one to four random edits, or random bytes."""
    frame = bytearray(rng.choice(frames))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(frame)) if frame else 0
        edit = rng.randrange(6)
        if edit == 0 and frame:
            frame[at] ^= 1 << rng.randrange(8)
        elif edit == 1 and frame:
            frame[at] = rng.choice([0, 1, 2, 127, 128, 255, rng.randrange(256)])
        elif edit == 2:
            frame[at:at] = rng.randbytes(rng.randint(1, 9))
        elif edit == 3:
            del frame[at : at + rng.randint(1, 9)]
        elif edit == 4:
            other = rng.choice(frames)
            frame[at:] = other[at:]
        elif len(frame) >= HEADER_BYTES:  # get past the length check: the body as it is now
            struct.pack_into("<q", frame, HEADER_BYTES - 8, len(frame) - HEADER_BYTES)
    return rng.randbytes(rng.randrange(120)) if rng.random() < 0.02 else bytes(frame)


def conversation(rng):
    """Return a protocol of a random role somewhere in a conversation."""
    fresh = {"versions": (1,), "plan_digest": DIGEST}
    said = [
        Hello(party="a", **fresh),
        Hello(party="b", **fresh),
        Align(count=1),
        Align(count=1),
        train(0),
        release(0),
        train(1),
    ]
    role = rng.choice(["feature", "label"])
    protocol = Protocol(role)
    for turn, message in enumerate(said[: rng.randrange(len(said) + 1)]):
        sends = (turn % 2 == 0) == (role == "feature")
        (protocol.send if sends else protocol.receive)(message)
    return protocol


def test_fuzzed_frames_raise_nothing_but_peer_errors():
    rng = random.Random(FUZZ)  # noqa: S311 - a longer run is also another one
    frames = [encode(m) for m in EXAMPLES.values()] + [encode(train(), narrow=True)]
    decoded = heard = 0
    unclear = False
    for _ in range(FUZZ):
        frame = mutated(rng, frames)
        try:
            message = decode(frame)
        except PeerError as error:
            unclear |= not str(error).isprintable()
            continue
        decoded += 1
        narrow = struct.unpack_from("<H", frame, 8)[0] == 1
        assert encode(message, narrow=narrow) == frame
        protocol = conversation(rng)
        try:
            protocol.receive(message)
            heard += 1
        except PeerError:
            assert protocol.state in {State.BROKEN, State.CLOSED}
    assert decoded > FUZZ // 50, "the mutations are too coarse to reach the protocol"
    assert heard
    assert not unclear, "a refusal must be one printable line"
    print(f"\n{FUZZ} frames, {decoded} decoded, {heard} accepted")  # noqa: T201
