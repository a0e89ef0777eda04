# SPDX-License-Identifier: Apache-2.0
"""What no library would send: each refusal is an errno with a sentence that names the argument, and nothing stays of it."""
import ctypes
import errno
import os
import struct
import subprocess
import time

import pytest

from mounted import wait_for
from peers import transient, value_of
from raw import (COMMITTED, GROUP_ROOT, GROUP_ROW_ONLY, GROUP_WHOLE, NONE32, NONE64, OPERATIONS, TOOBIG, Call, Client,
                 Group, Probe, Refused, errno_name, ioc, key)

LAYOUT = {"version": 1, "identity": {"model": "test/hostile"}, "world": 2, "page_tokens": 64,
          "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": 4096}]},
                      {"name": "st", "kind": "state", "planes": [{"name": "S", "bytes": 4096}]}]}
PLAIN = dict(LAYOUT, world=1, classes=LAYOUT["classes"][:1])
BUFFER = 8 << 20
MAX_KEYS = MAX_GROUPS = 65536
KEYS = [key(1, i) for i in range(4)]

# Fields of a good call, on which each row below changes something. Groups at 0, keys at 1 MiB, the rest behind.
PUT = dict(plan=50, groups_offset=0, keys_offset=1 << 20, answers_offset=4 << 20, status_offset=7 << 20, groups=1, keys=4,
           class_mask=1)
GET = dict(handle=60, keys_offset=1 << 20, groups_offset=0, hits_offset=4 << 20, restorable_offset=5 << 20,
           missing_offset=6 << 20, missing_capacity=16, keys=4)
END = dict(plan=1, status_offset=7 << 20, groups=1)
MOVE = dict(handle=2, plan=61, boundary=256, to=256, offsets_offset=4 << 20, offsets_capacity=16, class_mask=1)
INTO = dict(handle=2, import_=1, boundary=256, to=256, stride=1 << 20, blocks_offset=NONE64, class_mask=1)
RELEASE = dict(plans_offset=0, status_offset=NONE64, count=1)
PROBE = dict(keys_offset=1 << 20, hits_offset=4 << 20, keys=4)
HAND = dict(keys_offset=1 << 20, keys=4)
ANSWERED = dict(HAND, answers_offset=4 << 20)
ATTACH = dict(abi_version=1, rank=0, node=NONE32, call_buffer_bytes=1 << 20)
HUGE = 0xFFFFFFFFFFFFFFF8
GOOD_GROUP = dict(consumed=256, keys=4, class_mask=1, flags=GROUP_ROOT)


def spans(operation, good, **fields):
    """An array at @field, with its elements' size: outside, beyond, across the end, wrapped around, misaligned."""
    for field, size in fields.items():
        across = BUFFER - size + 8 - size % 8 if size > 8 else BUFFER + 8
        for at in (BUFFER, across, 1 << 40, HUGE, HUGE - 8, 1 << 63, 12, 1, 7):
            yield operation, good, {field: at}, errno.EINVAL, field


TABLE = [
    *spans("PUT_START", PUT, groups_offset=64, keys_offset=128, answers_offset=32, status_offset=8),
    *spans("GET_START", GET, keys_offset=128, hits_offset=8, restorable_offset=8, missing_offset=64),
    *spans("GET_START", dict(GET, groups=4), groups_offset=16),
    *spans("PUT_COMMIT", END, status_offset=8),
    *spans("PUT_ABORT", END, status_offset=8),
    *spans("GET_TRANSFER", MOVE, offsets_offset=128),
    *spans("RELEASE", dict(RELEASE, status_offset=8), plans_offset=8, status_offset=8),
    *spans("PROBE", PROBE, keys_offset=128, hits_offset=8),
    *spans("TOUCH", HAND, keys_offset=128),
    *spans("REMOVE", ANSWERED, keys_offset=128, answers_offset=16),
    *spans("PIN", ANSWERED, keys_offset=128, answers_offset=16),
    *((name, ANSWERED if name != "TOUCH" else HAND, dict(keys=0), errno.EINVAL, "keys") for name in ("TOUCH", "REMOVE", "PIN")),
    *((name, ANSWERED if name != "TOUCH" else HAND, dict(keys=MAX_KEYS + 1), errno.E2BIG, "keys")
      for name in ("TOUCH", "REMOVE", "PIN")),
    ("TOUCH", HAND, dict(flags=1), errno.EINVAL, "flags"),
    ("TOUCH", HAND, dict(reserved=1), errno.EINVAL, "reserved"),
    ("REMOVE", ANSWERED, dict(class_mask=NONE32), errno.EINVAL, "class_mask"),
    ("REMOVE", ANSWERED, dict(reserved=1), errno.EINVAL, "reserved"),
    ("PIN", ANSWERED, dict(flags=4), errno.EINVAL, "flags"),
    ("DRAIN", {}, dict(reserved=1), errno.EINVAL, "reserved"),
    ("RESET", {}, dict(flags=1), errno.EINVAL, "flags"),
    *spans("SEGMENTS", dict(ranges_offset=0, capacity=4), ranges_offset=192),
    *spans("SEGMENTS_ACK", dict(acks_offset=0, count=4), acks_offset=32),
    *spans("STAT", dict(text_offset=0, capacity=100), text_offset=104),
    ("SEGMENTS", dict(ranges_offset=0), dict(capacity=NONE32), errno.EINVAL, "ranges_offset"),
    ("STAT", dict(text_offset=0), dict(capacity=NONE32), errno.EINVAL, "text_offset"),
    ("SEGMENTS_ACK", dict(acks_offset=0), dict(count=NONE32), errno.E2BIG, "count"),
    ("SEGMENTS_ACK", dict(acks_offset=0), dict(count=65537), errno.E2BIG, "count"),
    ("GET_START", GET, dict(missing_capacity=NONE32), errno.EINVAL, "missing_offset"),
    ("GET_TRANSFER", MOVE, dict(offsets_capacity=NONE32), errno.EINVAL, "offsets_offset"),
    ("GET_TRANSFER", MOVE, dict(offsets_capacity=0), errno.ENOSPC, "offsets"),
    ("GET_TRANSFER", MOVE, dict(offsets_capacity=3), errno.ENOSPC, "offsets"),
    # nothing at all, and too much
    ("PUT_START", PUT, dict(keys=0), errno.EINVAL, "keys"),
    ("PUT_START", PUT, dict(groups=0), errno.EINVAL, "groups"),
    ("PUT_START", PUT, dict(keys=MAX_KEYS + 1), errno.E2BIG, "keys"),
    ("PUT_START", PUT, dict(groups=MAX_GROUPS + 1), errno.E2BIG, "groups"),
    ("PUT_START", PUT, dict(keys=NONE32), errno.E2BIG, "keys"),
    ("PUT_START", PUT, dict(groups=NONE32), errno.E2BIG, "groups"),
    ("GET_START", GET, dict(keys=0), errno.EINVAL, "keys"),
    ("GET_START", GET, dict(keys=MAX_KEYS + 1), errno.E2BIG, "keys"),
    ("GET_START", GET, dict(groups=MAX_GROUPS + 1), errno.E2BIG, "groups"),
    ("PROBE", PROBE, dict(keys=0), errno.EINVAL, "keys"),
    ("PROBE", PROBE, dict(keys=MAX_KEYS + 1), errno.E2BIG, "keys"),
    ("RELEASE", RELEASE, dict(count=0), errno.EINVAL, "count"),
    ("RELEASE", RELEASE, dict(count=4097), errno.E2BIG, "count"),
    ("PUT_COMMIT", END, dict(groups=0), errno.EINVAL, "groups"),
    ("PUT_COMMIT", END, dict(groups=MAX_GROUPS + 1), errno.E2BIG, "groups"),
    ("PUT_COMMIT", END, dict(groups=2), errno.EINVAL, "groups"),
    ("PUT_COMMIT", END, dict(first_group=1), errno.EINVAL, "groups"),
    ("PUT_COMMIT", END, dict(first_group=NONE32), errno.EINVAL, "groups"),
    ("PUT_ABORT", END, dict(first_group=NONE32, groups=2), errno.EINVAL, "groups"),
    # ids
    ("PUT_START", PUT, dict(plan=0), errno.EINVAL, "plan"),
    ("PUT_START", PUT, dict(plan=1), errno.EEXIST, "plan 1"),
    ("PUT_START", PUT, dict(plan=3), errno.EEXIST, "plan 3"),  # a get plan has it
    ("PUT_START", PUT, dict(plan=4), errno.EALREADY, "plan 4"),
    ("PUT_COMMIT", END, dict(plan=0), errno.EINVAL, "plan"),
    ("PUT_COMMIT", END, dict(plan=99), errno.ENOENT, "99"),
    ("PUT_COMMIT", END, dict(plan=3), errno.EINVAL, "3 is a get plan"),
    ("PUT_ABORT", END, dict(plan=3), errno.EINVAL, "3 is a get plan"),
    ("PUT_COMMIT", END, dict(plan=4), errno.EALREADY, "put plan 4"),
    ("PUT_COMMIT", END, dict(plan=5), errno.EINVAL, "5 was a get plan"),
    ("PUT_COMMIT", END, dict(plan=71), errno.ENOENT, "71"),  # another session's
    ("GET_START", GET, dict(handle=0), errno.EINVAL, "handle"),
    ("GET_START", GET, dict(handle=2), errno.EEXIST, "handle 2"),
    ("GET_START", GET, dict(handle=6), errno.EALREADY, "handle 6"),
    ("GET_TRANSFER", MOVE, dict(handle=0), errno.EINVAL, "handle"),
    ("GET_TRANSFER", MOVE, dict(plan=0), errno.EINVAL, "plan"),
    ("GET_TRANSFER", MOVE, dict(handle=98), errno.ENOENT, "98"),
    ("GET_TRANSFER", MOVE, dict(handle=72), errno.ENOENT, "72"),  # another session's
    ("GET_TRANSFER", MOVE, dict(handle=6), errno.EALREADY, "handle 6"),
    ("GET_TRANSFER", MOVE, dict(plan=1), errno.EEXIST, "plan 1"),
    ("GET_TRANSFER", MOVE, dict(plan=4), errno.EALREADY, "plan 4"),
    ("GET_CANCEL", {}, dict(handle=0), errno.EINVAL, "handle"),
    ("GET_CANCEL", {}, dict(handle=97), errno.ENOENT, "97"),
    ("GET_CANCEL", {}, dict(handle=72), errno.ENOENT, "72"),
    ("GET_CANCEL", {}, dict(handle=6), errno.EALREADY, "handle 6"),
    # lengths
    ("GET_TRANSFER", MOVE, dict(boundary=255), errno.EINVAL, "boundary"),
    ("GET_TRANSFER", MOVE, dict(boundary=0), errno.EINVAL, "boundary"),
    ("GET_TRANSFER", MOVE, dict(boundary=320, to=320), errno.EINVAL, "boundary"),
    ("GET_TRANSFER", MOVE, dict(boundary=HUGE), errno.EINVAL, "boundary"),
    ("GET_TRANSFER", MOVE, dict(from_=1), errno.EINVAL, "from"),
    ("GET_TRANSFER", MOVE, dict(from_=256), errno.EINVAL, "to"),
    ("GET_TRANSFER", MOVE, dict(from_=HUGE - 56), errno.EINVAL, "to"),
    ("GET_TRANSFER", MOVE, dict(to=0), errno.EINVAL, "to"),
    ("GET_TRANSFER", MOVE, dict(to=65), errno.EINVAL, "to"),
    ("GET_TRANSFER", MOVE, dict(to=1 << 63), errno.EINVAL, "to"),
    ("GET_TRANSFER", MOVE, dict(class_mask=2), errno.EINVAL, "class mask"),
    ("GET_TRANSFER", MOVE, dict(class_mask=1 << 31), errno.EINVAL, "class mask"),
    ("GET_START", GET, dict(start=1), errno.EINVAL, "start"),
    ("GET_START", GET, dict(start=0xFFFFFFFFFFFFFFC0), errno.EINVAL, "start"),
    ("GET_START", GET, dict(start=128, have=64), errno.EINVAL, "have"),
    # classes, flags, policies, reserved fields
    ("PUT_START", PUT, dict(class_mask=0), errno.EINVAL, "class_mask"),
    ("PUT_START", PUT, dict(class_mask=4), errno.EINVAL, "class_mask"),
    ("PUT_START", PUT, dict(class_mask=1 << 31), errno.EINVAL, "class_mask"),
    ("PUT_START", PUT, dict(class_mask=2), errno.EINVAL, "class mask"),  # the group wants another
    ("PUT_START", PUT, dict(come_again=1), errno.EINVAL, "come_again"),
    ("GET_START", GET, dict(class_mask=4), errno.EINVAL, "class mask"),
    ("GET_START", GET, dict(class_mask=NONE32), errno.EINVAL, "class mask"),
    ("GET_START", GET, dict(flags=4), errno.EINVAL, "flags"),
    ("GET_START", GET, dict(policy=1), errno.EOPNOTSUPP, "policy"),
    ("GET_START", GET, dict(policy=2), errno.EOPNOTSUPP, "policy"),
    ("GET_START", GET, dict(policy=3), errno.EINVAL, "policy"),
    ("GET_START", GET, dict(policy=NONE32), errno.EINVAL, "policy"),
    ("GET_START", GET, dict(reserved=1), errno.EINVAL, "reserved"),
    ("PROBE", PROBE, dict(reserved=1), errno.EINVAL, "reserved"),
    ("IMPORT", {}, dict(import_=0), errno.EINVAL, "import"),
    ("IMPORT", {}, dict(import_=1, flags=2), errno.EINVAL, "flags"),
    ("IMPORT", {}, dict(import_=1, flags=NONE32), errno.EINVAL, "flags"),
    ("IMPORT", {}, dict(import_=1, flags=1), errno.ENOENT, "import 1"),
    ("GET_INTO", INTO, {}, errno.ENOENT, "import 1"),
    ("GET_INTO", INTO, dict(import_=0), errno.EINVAL, "import"),
    ("GET_INTO", INTO, dict(import_=NONE64), errno.ENOENT, "import"),
    ("GET_INTO", INTO, dict(handle=0), errno.EINVAL, "handle"),
    ("GET_INTO", INTO, dict(handle=72), errno.ENOENT, "handle 72"),
    ("GET_INTO", INTO, dict(handle=6), errno.EALREADY, "handle 6"),
    ("GET_INTO", INTO, dict(flags=1), errno.EINVAL, "flags"),
    ("GET_INTO", INTO, dict(boundary=0), errno.EINVAL, "boundary"),
    ("GET_INTO", INTO, dict(boundary=NONE64), errno.EINVAL, "boundary"),
    ("GET_INTO", INTO, dict(to=NONE64), errno.EINVAL, "to"),
    ("GET_INTO", INTO, dict(to=NONE64, blocks_offset=0), errno.EINVAL, "to"),
    ("GET_INTO", INTO, dict(to=0), errno.EINVAL, "to"),
    ("GET_INTO", INTO, dict(from_=255), errno.EINVAL, "from"),
    ("GET_INTO", INTO, dict(class_mask=2), errno.EINVAL, "class mask"),
    ("GET_INTO", INTO, dict(blocks_offset=4), errno.EINVAL, "blocks_offset"),
    ("GET_INTO", INTO, dict(blocks_offset=NONE64 - 15), errno.EINVAL, "blocks_offset"),
    ("ATTACH", ATTACH, {}, errno.EISCONN, "attached"),
    ("ATTACH", ATTACH, dict(abi_version=2), errno.EPROTONOSUPPORT, "abi_version"),
    ("ATTACH", ATTACH, dict(rank=2), errno.EINVAL, "rank"),
    ("ATTACH", ATTACH, dict(rank=NONE32 - 1), errno.EINVAL, "rank"),
    ("ATTACH", ATTACH, dict(flags=2), errno.EINVAL, "flags"),
    ("ATTACH", ATTACH, dict(call_buffer_bytes=65535), errno.EINVAL, "call_buffer_bytes"),
    ("ATTACH", ATTACH, dict(call_buffer_bytes=(64 << 20) + 1), errno.EINVAL, "call_buffer_bytes"),
    ("ATTACH", ATTACH, dict(call_buffer_bytes=NONE64), errno.EINVAL, "call_buffer_bytes"),
    ("ATTACH", ATTACH, dict(guard_pid=NONE32), errno.ESRCH, "guard_pid"),
    ("ATTACH", ATTACH, dict(reserved1=1), errno.EINVAL, "reserved1"),
]

GROUPS = [  # one group as it stands in the call buffer
    (dict(keys=0), errno.EINVAL, "group 0"),
    (dict(keys=3), errno.EINVAL, "3 pages"),
    (dict(keys=5, consumed=320), errno.EINVAL, "5 keys"),
    (dict(keys=NONE32, consumed=NONE32 * 64), errno.EINVAL, "keys"),
    (dict(class_mask=0), errno.EINVAL, "class mask"),
    (dict(class_mask=2), errno.EINVAL, "class mask"),
    (dict(class_mask=NONE32), errno.EINVAL, "class mask"),
    (dict(flags=8 | GROUP_ROOT), errno.EINVAL, "RUNG"),
    (dict(flags=16 | GROUP_ROOT), errno.EINVAL, "flags"),
    (dict(flags=1 << 31), errno.EINVAL, "flags"),
    (dict(flags=0), errno.EINVAL, "ROOT"),
    (dict(flags=GROUP_ROW_ONLY), errno.EINVAL, "ROW_ONLY"),
    (dict(reserved=1), errno.EINVAL, "reserved"),
    (dict(consumed=0), errno.EINVAL, "group 0"),
    (dict(consumed=255), errno.EINVAL, "group 0"),
    (dict(consumed=192), errno.EINVAL, "group 0"),
    (dict(consumed=320), errno.EINVAL, "group 0"),
    (dict(consumed=NONE64), errno.EINVAL, "group 0"),
]


@pytest.fixture
def scene(daemon, slower):
    """A session with: put plan 1 open, handle 2 over four pages, get plan 3, put plan 4 ended (committed), get plan 5 and
    handle 6 ended; another session with put plan 71 and handle 72. Afterwards: the base."""
    d = daemon()
    d.namespace(layout=LAYOUT)
    with Client(d.path("ns/x/ctl")) as c, Client(d.path("ns/x/ctl"), rank=1) as other:
        for each in (c, other):
            each.acknowledge()
        for n, each in enumerate((c, other)):  # both ranks' shares: the pages are complete
            each.put_start(4, [(None, 256, KEYS)])
            assert each.put_end("PUT_COMMIT", 4).outcome == COMMITTED, n
        c.put_start(1, [(None, 64, [key(2, 0)])])
        c.get_start(6, KEYS, class_mask=1)
        c.get_transfer(6, 3, 256, class_mask=1)
        c.get_start(2, KEYS, class_mask=1)
        c.get_start(7, KEYS, class_mask=1)
        c.get_transfer(7, 5, 256, class_mask=1)
        c.release([5])
        other.put_start(71, [(None, 64, [key(3, 0)])])
        other.get_start(72, KEYS, class_mask=1)
        before = transient(d.stats())
        assert before == {"sessions": 2, "put_plans": 2, "get_plans": 1, "handles": 2, "pins": 3, "slots_prepared": 2,
                          "groups_open": 4}
        yield c
        after = transient(d.stats())
        assert after.pop("groups_open") <= before.pop("groups_open")
        assert after == before
        c.put_end("PUT_COMMIT", 1)
        other.put_end("PUT_COMMIT", 71)
        assert c.probe(KEYS).hits == 4
    wait_for(lambda: not transient(d.stats()), 10 * slower, "the base")


def lay_out(c, **group):
    s = Group(**{**GOOD_GROUP, **group})
    c.buffer[0:64] = bytes(s)
    c.buffer[1 << 20:(1 << 20) + 128] = b"".join(KEYS)


def refused(c, operation, fields, expected, word, **more):
    """The errno, and LAST_ERROR about exactly this call."""
    with pytest.raises(Refused) as e:
        c.call(operation, **fields, **more)
    row = f"{operation} {fields}: {e.value}"
    assert errno_name(e.value.errno) == errno_name(expected), row
    assert word in e.value.text, row
    last = c.last_error()
    assert (last.failed_op, last.error) == (OPERATIONS[operation][0], expected), row
    return e.value


def test_every_bad_argument_is_named(scene):
    for operation, good, change, expected, word in TABLE:
        lay_out(scene)
        e = refused(scene, operation, {**good, **change}, expected, word)
        assert scene.last_error().failed_seq == scene.seq, (operation, change)
        if operation == "PUT_COMMIT" and change == {"plan": 4}:
            assert e.reply.outcome == COMMITTED


def test_every_bad_group_is_named(scene):
    for change, expected, word in GROUPS:
        lay_out(scene, **change)
        refused(scene, "PUT_START", PUT, expected, word)
    lay_out(scene)
    second = Group(consumed=64, keys=1, class_mask=1, flags=GROUP_ROOT, reserved=7)
    scene.buffer[64:128] = bytes(second)
    refused(scene, "PUT_START", dict(PUT, groups=2, keys=5), errno.EINVAL, "group 1")
    # lengths that sum to the number of keys only modulo 2^32
    for i, n in enumerate((4, NONE32, 1)):
        scene.buffer[64 * i:64 * i + 64] = bytes(Group(consumed=(NONE32 + 1) * 64, keys=n, class_mask=1))
    refused(scene, "PUT_START", dict(PUT, groups=3, keys=4), errno.EINVAL, "keys")
    struct.pack_into("<3I", scene.buffer, 0, 4, NONE32, 1)
    refused(scene, "GET_START", dict(GET, groups=3), errno.EINVAL, "keys")
    struct.pack_into("<3I", scene.buffer, 0, 4, 0, 0)
    refused(scene, "GET_START", dict(GET, groups=3), errno.EINVAL, "group 1")


def test_a_group_that_cannot_fit_is_no_error(scene):
    keys = [key(9, i) for i in range(5000)]
    scene.put_start(90, [(None, 5000 * 64, keys, {"flags": GROUP_WHOLE})])
    assert scene.put_status == [TOOBIG]
    assert set(scene.put_answers) == {NONE64}
    with pytest.raises(Refused) as e:  # a plan without a group that is OK ended at once
        scene.put_end("PUT_COMMIT", 90)
    assert e.value.errno == errno.EALREADY


def test_release_does_what_it_can(scene):
    """One bad id among good ones costs only itself."""
    scene.get_start(10, KEYS, class_mask=1)
    for plan, page in ((11, 0), (12, 64), (13, 128)):
        scene.get_transfer(10, plan, 256, start=page, to=page + 64, class_mask=1)
    scene.call("GET_CANCEL", handle=10)
    ids = [11, 99, 12, 1, 12, 71, 13, 5, 0]
    struct.pack_into(f"<{len(ids)}Q", scene.buffer, 0, *ids)
    e = refused(scene, "RELEASE", dict(plans_offset=0, status_offset=1 << 20, count=len(ids)), errno.ENOENT, "99")
    assert e.reply.released == 3 and "plan 1 of 9" in e.text
    assert list(struct.unpack_from("<9i", scene.buffer, 1 << 20)) == [
        0, -errno.ENOENT, 0, -errno.EINVAL, -errno.EALREADY, -errno.ENOENT, 0, -errno.EALREADY, -errno.ENOENT]


def test_stale_acknowledgements(scene):
    ranges = scene.ranges()
    bad = [(ranges[0].id, ranges[0].generation), (ranges[0].id, ranges[0].generation + 1), (4000, 1), (NONE32, NONE32),
           (ranges[1].id, ranges[1].generation)]
    for i, (number, generation) in enumerate(bad):
        struct.pack_into("<II", scene.buffer, 8 * i, number, generation)
    e = refused(scene, "SEGMENTS_ACK", dict(acks_offset=0, count=len(bad)), errno.ESTALE, "ack ")
    assert e.reply.accepted == 2


def test_numbers_of_requests(scene):
    call = Call(ctypes.sizeof(Probe), 0, 0, 0, 0, 0)
    for change, word in ((dict(seq=0), "seq"), (dict(size=8), "size"), (dict(size=ctypes.sizeof(Probe) + 8), "size"),
                         (dict(flags=2), "flags"), (dict(deadline_ms=600001), "deadline_ms")):
        fields = {"size": ctypes.sizeof(Probe), "seq": 7777, **change}
        for name, value in fields.items():
            setattr(call, name, value)
        code, _ = scene.raw(ioc(11, ctypes.sizeof(Probe)), bytes(Probe(call=call, **PROBE)))
        last = scene.last_error()
        assert (code, last.failed_op, last.failed_seq) == (errno.EINVAL, 11, fields["seq"]), word
        assert word in last.text.decode()
        call = Call()


def test_the_same_number_is_the_same_request(scene):
    """An answer that was lost on its way is asked for again: the same answer, and nothing happens twice."""
    calls = scene.stats()["put_calls"]
    lay_out(scene)
    first = scene.call("PUT_START", seq=5000, **PUT)
    again = scene.call("PUT_START", seq=5000, **PUT)
    assert bytes(first) == bytes(again) and first.new_values == 0 and first.groups_ok == 1
    assert int(scene.stats()["put_calls"]) == int(calls) + 1
    refused(scene, "PUT_COMMIT", dict(END, plan=50), errno.EINVAL, "seq", seq=5000)  # another operation
    done = scene.call("PUT_COMMIT", seq=5001, **dict(END, plan=50))
    assert scene.call("PUT_COMMIT", seq=5001, **dict(END, plan=50)).outcome == done.outcome == COMMITTED
    with pytest.raises(Refused):
        scene.call("GET_CANCEL", seq=5002, handle=96)
    with pytest.raises(Refused) as e:
        scene.call("GET_CANCEL", seq=5002, handle=2)  # the number decides, not what it carries
    assert e.value.errno == errno.ENOENT
    # outcomes that the client has are forgotten: nothing is kept for them
    probe = Probe(call=Call(ctypes.sizeof(Probe), 0, 6000, 5002, 0, 0), **PROBE)
    scene.seq = 6000
    assert scene.raw(ioc(11, ctypes.sizeof(Probe)), bytes(probe))[0] == 0
    assert scene.stats()["groups_open"] == "3"  # the plan 1, the other session's two


def test_unknown_ioctls(scene):
    for nr in (20, 21, *range(30, 32)):
        for size in (0, 32, 512):
            code, _ = scene.raw(ioc(nr, size) if size else ioc(nr, 0, 0), bytes(512))
            assert code == errno.EOPNOTSUPP, (nr, size, errno_name(code))
            last = scene.last_error()
            assert (last.failed_op, last.error) == (nr, errno.EOPNOTSUPP) and str(nr) in last.text.decode()
    for nr in (0, 32, 33, 100, 255):
        code, _ = scene.raw(ioc(nr, 32), bytes(512))
        assert errno_name(code) == "ENOTTY", nr
        assert scene.last_error().failed_op == nr
    for kind in (0, ord("T"), 0xF4, 0xF6):
        assert errno_name(scene.raw(ioc(11, ctypes.sizeof(Probe), kind=kind), bytes(512))[0]) == "ENOTTY", kind
    for name, (nr, kind) in OPERATIONS.items():  # the right number with another size or direction
        size = ctypes.sizeof(kind)
        for request in (ioc(nr, size - 4), ioc(nr, size + 4), ioc(nr, size, 1), ioc(nr, size, 2), ioc(nr, 0, 0)):
            code, _ = scene.raw(request, bytes(1024))
            assert errno_name(code) == "EINVAL", (name, hex(request))
            assert name in scene.last_error().text.decode()


def test_before_the_token_nothing_goes(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl"), attach=False) as c:
        for _ in range(2):
            for name, (nr, kind) in OPERATIONS.items():
                if name in ("ATTACH", "LAST_ERROR"):
                    continue
                with pytest.raises(Refused) as e:
                    c.call(name)
                assert errno_name(e.value.errno) == "ENOTCONN" and "ATTACH" in e.value.text, name
            c.ask_attach()
        refused(c, "ATTACH", dict(ATTACH, rank=1), errno.EINVAL, "rank")


def test_without_rank_or_right_to_write(daemon):
    d = daemon()
    d.namespace(layout=PLAIN)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 256, KEYS, [value_of(k, 4096) for k in KEYS])
    with Client(d.path("ns/x/ctl"), rank=NONE32) as c:
        c.acknowledge()
        lay_out(c)
        refused(c, "PUT_START", PUT, errno.EPERM, "rank")
        assert c.probe(KEYS).hits == 4
        c.get_start(2, KEYS)
        refused(c, "GET_TRANSFER", MOVE, errno.EPERM, "rank")
    with Client(d.path("ns/x/ctl"), os.O_RDONLY) as c:
        c.acknowledge()
        lay_out(c)
        refused(c, "PUT_START", PUT, errno.EROFS, "read-only")
        refused(c, "PUT_COMMIT", END, errno.EROFS, "read-only")
        for name, fields in (("REMOVE", ANSWERED), ("PIN", ANSWERED), ("DRAIN", {}), ("RESET", {})):
            refused(c, name, fields, errno.EROFS, "read-only")
        c.get_start(2, KEYS)
        c.get_transfer(2, 3, 256)
        assert [bytes(c.segment[o:o + 4096]) for o in c.offsets] == [value_of(k, 4096) for k in KEYS]


def test_a_session_holds_4096_plans_and_handles(daemon, slower):
    d = daemon()
    d.namespace(layout=PLAIN)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 256, KEYS, [value_of(k, 4096) for k in KEYS])
        for n in range(2000):
            c.get_start(1000 + n, KEYS)
        for n in range(1000):
            c.get_transfer(1000 + n, 10000 + n, 256)
        for n in range(2096):
            c.put_start(20000 + n, [(None, 64, [key(5, n)])])
            assert c.put_status == [0]
        s = d.stats()
        assert (s["handles"], s["get_plans"], s["put_plans"]) == ("1000", "1000", "2096")
        lay_out(c)
        refused(c, "PUT_START", PUT, errno.EDQUOT, "4096")
        refused(c, "GET_START", GET, errno.EDQUOT, "4096")
        refused(c, "GET_TRANSFER", dict(MOVE, handle=2010), errno.EDQUOT, "4096")
        c.release([10000 + n for n in range(1000)])
        c.get_start(60, KEYS)
        for n in range(2096):
            c.put_end("PUT_ABORT", 20000 + n)
        assert d.stats()["put_plans"] == "0"
    wait_for(lambda: not transient(d.stats()), 10 * slower, "the base")


def test_chains_that_make_no_sense_leave_like_others(daemon, slower):
    """Keys of zeroes, repeated keys, parents that are their own children, lengths at the end of the numbers."""
    top = 0xFFFFFFFFFFFFFFC0
    d = daemon("--memory", "16M")
    d.namespace(layout=dict(PLAIN, memory={"floor": 16 << 20}))
    chains = [  # each a plan: groups of (parent, tokens at the end, keys)
        [(None, 64, [bytes(32)])],
        [(None, 320, [key(9, 0)] * 5)],
        [(key(7, 7), top, [key(8, i) for i in range(4)])],
        [(key(10, 0), 128, [key(10, 0)])],
        [(key(11, 1), 128, [key(11, 0)]), (key(11, 0), 192, [key(11, 1)])],
        [(key(12, 2), 128, [key(12, 0)])], [(key(12, 0), 192, [key(12, 1)])], [(key(12, 1), 256, [key(12, 2)])],
        [(key(13, 2), 256, [key(13, i) for i in range(3)])],
        [(None, 64, [key(14, 0)])], [(key(14, 0), 6400, [key(14, 1)])],
    ]
    every = sorted({k for plan in chains for group in plan for k in group[2]})
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        for n, groups in enumerate(chains):
            c.put_start(1 + n, groups)
            assert set(c.put_status) == {0}, groups
            assert c.put_end("PUT_COMMIT", 1 + n, groups=len(groups)).outcome == COMMITTED
        assert c.probe(every).hits == len(every) == 17
        assert c.get_start(1, [key(8, i) for i in range(4)], start=top - 256).transferable_len == top
        c.call("GET_CANCEL", handle=1)
        for name in os.listdir(d.path("ns/x/records")):
            with open(d.path("ns/x/records", name, "header"), encoding="ascii") as f:
                assert int(name[:16], 16) == int(dict(line.strip().split(": ") for line in f)["consumed"])
        for n in range(4 * 4096):
            c.put_start(1000 + n, [(None, 64, [key(99, n)])])
            assert c.put_status == [0], n
            c.put_end("PUT_COMMIT", 1000 + n)
            if n > 4096 and not c.probe(every).hits:
                break
        else:
            pytest.fail("something of them cannot be evicted")
    wait_for(lambda: not transient(d.stats()), 10 * slower, "the base")
    assert "restarts: 0" in d.read("health")


# ---- a call buffer that changes under the daemon's eyes ----------------------------------------------------------------

@pytest.mark.concurrency
@pytest.mark.parametrize("what,offset,length", [("groups", 0, 8 * 64), ("keys", 1 << 20, 3000 * 32),
                                                ("answers", 4 << 20, 1 << 20)])
def test_a_call_buffer_that_ticks(daemon, program, slower, what, offset, length):
    """Another thread of the client rewrites the buffer all the while: clean answers or errnos, and the base at the end."""
    scribbler = program("tests/scenario/scribbler")
    d = daemon()
    d.namespace(layout=PLAIN)
    allowed = {errno.EINVAL, errno.E2BIG, errno.ENOENT, errno.EALREADY, errno.EBUSY, errno.ESTALE, errno.EEXIST,
               errno.ENOSPC}
    keys = [key(6, i) for i in range(3000)]
    lengths = [1, 2, 997, 1000, 500, 300, 100, 100]
    assert sum(lengths) == 3000
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 256, KEYS, [value_of(k, 4096) for k in KEYS])
        for i, n in enumerate(lengths):
            c.buffer[64 * i:64 * i + 64] = bytes(Group(consumed=64 * n, keys=n, class_mask=1, flags=GROUP_ROOT))
        c.buffer[1 << 20:(1 << 20) + 32 * 3000] = b"".join(keys)
        os.set_inheritable(c.buffer_fd, True)
        with subprocess.Popen([scribbler, str(c.buffer_fd), str(offset), str(length), "1"], close_fds=False,
                              stdout=subprocess.PIPE, text=True) as ticking:
            assert ticking.stdout.readline() == "there\n"
            end, turn, refusals = time.monotonic() + 3 * min(slower, 2), 100, 0
            while time.monotonic() < end or turn < 130:
                turn += 1
                for operation, fields in (
                        ("PUT_START", dict(PUT, plan=turn, groups=8, keys=3000)),
                        ("PUT_COMMIT" if turn % 3 else "PUT_ABORT", dict(plan=turn, status_offset=4 << 20, groups=8)),
                        ("PUT_ABORT", dict(plan=turn, status_offset=7 << 20, groups=8)),
                        ("GET_START", dict(GET, handle=turn, keys=3000, groups=8 if turn % 2 else 0)),
                        ("GET_TRANSFER", dict(MOVE, handle=turn, plan=turn + (1 << 32), boundary=64, to=64)),
                        ("GET_CANCEL", dict(handle=turn)),
                        ("PROBE", dict(PROBE, keys=3000)),
                        ("TOUCH", dict(HAND, keys=3000)),
                        ("PIN", dict(ANSWERED, keys=3000, flags=turn % 4)),
                        ("REMOVE", dict(ANSWERED, keys=3000)),
                        *([("RESET", {})] if turn % 10 == 0 else []),
                        ("SEGMENTS", dict(ranges_offset=offset, capacity=8)),
                        ("SEGMENTS_ACK", dict(acks_offset=offset, count=32)),
                        ("RELEASE", dict(plans_offset=offset, status_offset=4 << 20, count=32)),
                        ("RELEASE", dict(plans_offset=(7 << 20) + 4096, status_offset=NONE64, count=1)),
                        ("STAT", dict(text_offset=offset, capacity=length))):
                    if operation == "RELEASE":
                        struct.pack_into("<Q", c.buffer, (7 << 20) + 4096, turn + (1 << 32))
                    try:
                        c.call(operation, **fields)
                    except Refused as e:
                        assert e.errno in allowed, e
                        assert e.text, e
                        refusals += 1
            ticking.kill()
        assert refusals > 30
        s = transient(d.stats())
        assert set(s) <= {"sessions", "groups_open"}, s
        c.acknowledge()
        assert 0 <= c.probe(KEYS).hits <= 4  # a ticking batch may have had to evict them, the last first
    wait_for(lambda: not transient(d.stats()), 10 * slower, "the base")
    assert "restarts: 0" in d.read("health")
