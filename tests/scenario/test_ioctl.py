# SPDX-License-Identifier: Apache-2.0
"""The control file under requests that a good client would not send, and under those that wait."""
import ctypes
import errno
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import threading
import time

import pytest

from mounted import PLAIN_LAYOUT, STATE_LAYOUT, alive, wait_for
from raw import (COMMITTED, EMPTY, NONBLOCK, NONE32, NONE64, OPERATIONS, WAIT_INFLIGHT, Call, Client, GetStart, Probe,
                 Refused, errno_of, ioc, key, show_token, ticket)

BIG = 1 << 62
# A good request of each operation, as far as an empty namespace goes, and the error that it has there.
GOOD = {
    "SEGMENTS": ({"ranges_offset": 0, "capacity": 8}, 0),
    "SEGMENTS_ACK": ({"acks_offset": 0, "count": 0}, 0),
    "PUT_START": ({"plan": 1, "groups_offset": 0, "keys_offset": 4096, "answers_offset": 8192, "status_offset": 12288,
                   "groups": 1, "keys": 1, "class_mask": 1}, errno.EINVAL),
    "PUT_COMMIT": ({"plan": 9, "status_offset": 0, "groups": 1}, errno.ENOENT),
    "PUT_ABORT": ({"plan": 9, "status_offset": 0, "groups": 1}, errno.ENOENT),
    "GET_START": ({"handle": 1, "keys_offset": 0, "keys": 4, "hits_offset": 4096, "restorable_offset": 8192,
                   "missing_offset": 12288, "missing_capacity": 4}, 0),
    "GET_TRANSFER": ({"handle": 9, "plan": 1, "boundary": 64, "to": 64, "offsets_offset": 0, "offsets_capacity": 8},
                     errno.ENOENT),
    "IMPORT": ({"import_": 1}, 0),
    "GET_INTO": ({"handle": 9, "import_": 1, "boundary": 64, "to": 64, "stride": 8192, "blocks_offset": 4096},
                 errno.ENOENT),
    "GET_CONFIRM": ({"ticket": ticket(9)}, errno.ENOENT),
    "GET_CANCEL": ({"handle": 9}, errno.ENOENT),
    "RELEASE": ({"plans_offset": 0, "status_offset": 4096, "count": 1}, errno.ENOENT),
    "PROBE": ({"keys_offset": 0, "hits_offset": 4096, "keys": 4}, 0),
    "STAT": ({"text_offset": 0, "capacity": 4096}, 0),
    "TOUCH": ({"keys_offset": 0, "keys": 4}, 0),
    "REMOVE": ({"keys_offset": 0, "keys": 4, "answers_offset": 4096}, 0),
    "PIN": ({"keys_offset": 0, "keys": 4, "answers_offset": 4096}, 0),
    "DRAIN": ({}, 0),
    "RESET": ({}, 0),
}
SPANS = [("SEGMENTS", "ranges_offset"), ("SEGMENTS_ACK", "acks_offset"), ("PUT_START", "groups_offset"),
         ("PUT_START", "keys_offset"), ("PUT_START", "answers_offset"), ("PUT_START", "status_offset"),
         ("PUT_COMMIT", "status_offset"), ("PUT_ABORT", "status_offset"), ("GET_START", "keys_offset"),
         ("GET_START", "hits_offset"), ("GET_START", "restorable_offset"), ("GET_START", "missing_offset"),
         ("GET_START", "groups_offset"), ("GET_TRANSFER", "offsets_offset"), ("GET_INTO", "blocks_offset"), ("RELEASE", "plans_offset"),
         ("RELEASE", "status_offset"), ("PROBE", "keys_offset"), ("PROBE", "hits_offset"), ("STAT", "text_offset"),
         ("TOUCH", "keys_offset"), ("REMOVE", "keys_offset"), ("REMOVE", "answers_offset"), ("PIN", "keys_offset"),
         ("PIN", "answers_offset")]


@pytest.fixture
def client(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl"), call_buffer_bytes=8 << 20) as c:
        c.daemon = d
        c.acknowledge()
        yield c


def refused(c, expected, name, *words, **fields):
    """The request is refused with this errno, and the sentence says so and names what is wrong."""
    c.seq += 1
    seq = fields.pop("seq", c.seq)
    with pytest.raises(Refused) as e:
        c.call(name, seq=seq, **fields)
    assert e.value.errno == expected, str(e.value)
    last = c.last_error()
    assert last.error == expected and last.failed_op == OPERATIONS[name][0] and last.failed_seq == seq, e.value.text
    assert len(e.value.text) > 8 and e.value.text == last.text.decode()
    for word in words:
        assert word in e.value.text, e.value.text
    return e.value


def test_good_requests_have_their_answer(client):
    for name, (fields, expected) in GOOD.items():
        assert errno_of(client.call, name, **fields) == expected, name


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_call_header_is_checked(client, name):
    nr, kind = OPERATIONS[name]
    size = ctypes.sizeof(kind)
    fields = GOOD.get(name, ({}, 0))[0]
    request = ioc(nr, size)

    def sent(cmd=request, length=size, **head):
        s = kind(call=Call(size, 0, 1 << 40, 0, 0, 0))
        for k, v in fields.items():
            setattr(s, k, v)
        for k, v in head.items():
            setattr(s.call, k, v)
        return client.raw(cmd, bytes(s).ljust(length, b"\0")[:length])[0]

    assert sent(size=size - 1) == errno.EINVAL
    assert sent(size=0) == errno.EINVAL
    assert sent(flags=6) == errno.EINVAL
    assert sent(seq=0) == errno.EINVAL
    assert sent(deadline_ms=600001) == errno.EINVAL
    for length in (0, 8, size - 4, size + 4, 4096, 16383):
        if length:
            assert sent(cmd=ioc(nr, length), length=length) == errno.EINVAL, length
    assert sent(cmd=ioc(nr, size, direction=1)) == errno.EINVAL  # no way back
    assert sent(cmd=ioc(nr, size, direction=2)) == errno.EINVAL  # no way there
    assert sent(cmd=ioc(nr, 0, direction=0)) == errno.EINVAL
    assert client.probe([key(1)]).hits == 0


def in_version(c, second, make, *arguments, **fields):
    """A request in the first or second version of its struct: the answer's fields that both have, but its number and ids."""
    c.seq += (c.seq + 1) % 2 != second  # raw.py sends every other one in each
    r = make(*arguments, **fields)
    name = type(r).__name__
    assert name.endswith("2") == second and r.call.size == ctypes.sizeof(r) == ctypes.sizeof(type(r))
    kind = OPERATIONS[{"Put": "PUT_START", "GetS": "GET_START", "GetT": "GET_TRANSFER"}[name[:4 if name[0] == "G" else 3]]][1]
    return [bytes(v) if hasattr(v := getattr(r, field), "__len__") else v for field, _ in kind._fields_
            if field not in ("call", "plan", "handle")]


@pytest.mark.parametrize("numbered", [0, 3])
def test_a_client_of_the_first_version_is_answered_alike(client, numbered):
    """With a ticket too, which the first version of GET_START has."""
    c, told = client, {}
    for second in (False, True):
        keys = [key(40 + second, i) for i in range(5)]
        put = in_version(c, second, c.put_start, 100 + second, [(None, 320, keys)])
        assert c.put_status == [0] and len(set(c.put_answers)) == 5 and max(c.put_answers) < NONE64 - 15
        c.put_end("PUT_COMMIT", 100 + second)
        handle = 200 + second
        got = in_version(c, second, c.get_start, handle, keys, ticket=ticket(numbered and numbered + second))
        moved = [in_version(c, second, c.get_transfer, handle, plan + second, 320, *ends) for plan, ends in ((300, (0, 128)), (310, (128, 320)))]
        assert len(c.offsets) == 3
        if numbered:
            assert c.call("GET_CONFIRM", ticket=ticket(numbered + second)).restored == 320
        c.release([300 + second, 310 + second])
        told[second] = put, [v for v in got if not isinstance(v, bytes) or not numbered or len(v) != 16], moved
    assert told[False] == told[True]


def test_numbers_that_are_no_operation(client):
    for nr in (20, 21, *range(30, 32)):
        assert client.raw(ioc(nr, 64), bytes(64))[0] == errno.EOPNOTSUPP
        assert client.last_error().failed_op == nr
    for nr in (0, 32, 100, 255):
        assert client.raw(ioc(nr, 64), bytes(64))[0] == errno.ENOTTY
    assert client.raw(0x5401, bytes(64))[0] == errno.ENOTTY  # TCGETS, which cat and Python send
    assert client.raw(ioc(4, 64, kind=0x70), bytes(64))[0] == errno.ENOTTY
    assert client.raw(EMPTY, b"")[0] == 0
    with open(client.daemon.path("version"), "rb") as f:
        assert errno_of(fcntl.ioctl, f.fileno(), EMPTY) == 0  # it asks nothing of a session
        assert errno_of(fcntl.ioctl, f.fileno(), ioc(11, ctypes.sizeof(Probe)), bytes(56)) in (errno.ENOTTY, errno.ESTALE)


@pytest.mark.parametrize("name,span", SPANS)
def test_spans_lie_in_the_call_buffer(client, name, span):
    fields = dict(GOOD[name][0])
    if span == "acks_offset":
        fields["count"] = 1
    if span == "groups_offset" and name == "GET_START":
        fields["groups"] = 1
    size = client.attached.call_buffer_bytes
    for offset in (size, size - 1, size + 8, 4, 1, BIG, NONE64 - 7, NONE64 - 1, 1 << 63):
        refused(client, errno.EINVAL, name, span, **dict(fields, **{span: offset}))


def test_counts_have_limits(client):
    r = refused
    r(client, errno.EINVAL, "PUT_START", "groups", **dict(GOOD["PUT_START"][0], groups=0))
    r(client, errno.EINVAL, "PUT_START", "keys", **dict(GOOD["PUT_START"][0], keys=0))
    r(client, errno.E2BIG, "PUT_START", "65536", **dict(GOOD["PUT_START"][0], groups=65537))
    r(client, errno.E2BIG, "PUT_START", "65536", **dict(GOOD["PUT_START"][0], keys=0xffffffff))
    r(client, errno.EINVAL, "PUT_START", "class_mask", **dict(GOOD["PUT_START"][0], class_mask=0))
    r(client, errno.EINVAL, "PUT_START", "class_mask", **dict(GOOD["PUT_START"][0], class_mask=2))
    r(client, errno.EINVAL, "PUT_START", "plan", **dict(GOOD["PUT_START"][0], plan=0))
    r(client, errno.EINVAL, "PUT_START", "reserved", **dict(GOOD["PUT_START"][0], reserved=1))
    r(client, errno.EINVAL, "PUT_COMMIT", "groups", **dict(GOOD["PUT_COMMIT"][0], groups=0))
    r(client, errno.E2BIG, "PUT_COMMIT", "65536", **dict(GOOD["PUT_COMMIT"][0], groups=1 << 31))
    r(client, errno.EINVAL, "PUT_ABORT", "plan", **dict(GOOD["PUT_ABORT"][0], plan=0))
    r(client, errno.EINVAL, "GET_START", "keys", **dict(GOOD["GET_START"][0], keys=0))
    r(client, errno.E2BIG, "GET_START", "65536", **dict(GOOD["GET_START"][0], keys=65537))
    r(client, errno.E2BIG, "GET_START", "65536", **dict(GOOD["GET_START"][0], groups=65537))
    r(client, errno.EINVAL, "GET_START", "handle", **dict(GOOD["GET_START"][0], handle=0))
    r(client, errno.EINVAL, "GET_START", "flags", **dict(GOOD["GET_START"][0], flags=4))
    r(client, errno.EOPNOTSUPP, "GET_START", "policy", **dict(GOOD["GET_START"][0], policy=1))
    r(client, errno.EOPNOTSUPP, "GET_START", "policy", **dict(GOOD["GET_START"][0], policy=2))
    r(client, errno.EINVAL, "GET_START", "policy", **dict(GOOD["GET_START"][0], policy=3))
    r(client, errno.EINVAL, "GET_START", "reserved", **dict(GOOD["GET_START"][0], reserved=3))
    r(client, errno.EINVAL, "GET_START", **dict(GOOD["GET_START"][0], class_mask=2))
    r(client, errno.EINVAL, "GET_START", **dict(GOOD["GET_START"][0], start=63))
    r(client, errno.EINVAL, "GET_TRANSFER", "handle", **dict(GOOD["GET_TRANSFER"][0], handle=0))
    r(client, errno.EINVAL, "GET_TRANSFER", "plan", **dict(GOOD["GET_TRANSFER"][0], plan=0))
    r(client, errno.ENOENT, "GET_TRANSFER", **GOOD["GET_TRANSFER"][0])
    r(client, errno.EINVAL, "RELEASE", "count", **dict(GOOD["RELEASE"][0], count=0))
    r(client, errno.E2BIG, "RELEASE", "4096", **dict(GOOD["RELEASE"][0], count=4097))
    r(client, errno.EINVAL, "PROBE", "keys", **dict(GOOD["PROBE"][0], keys=0))
    r(client, errno.E2BIG, "PROBE", "65536", **dict(GOOD["PROBE"][0], keys=65537))
    r(client, errno.EINVAL, "PROBE", "reserved", **dict(GOOD["PROBE"][0], reserved=1))
    for name in ("TOUCH", "REMOVE", "PIN"):
        r(client, errno.EINVAL, name, "keys", **dict(GOOD[name][0], keys=0))
        r(client, errno.E2BIG, name, "65536", **dict(GOOD[name][0], keys=65537))
    r(client, errno.EINVAL, "TOUCH", "flags", **dict(GOOD["TOUCH"][0], flags=1))
    r(client, errno.EINVAL, "TOUCH", "reserved", **dict(GOOD["TOUCH"][0], reserved=1))
    r(client, errno.EINVAL, "REMOVE", "reserved", **dict(GOOD["REMOVE"][0], reserved=1))
    r(client, errno.EINVAL, "REMOVE", "class_mask", "1 classes", **dict(GOOD["REMOVE"][0], class_mask=2))
    r(client, errno.EINVAL, "PIN", "flags", **dict(GOOD["PIN"][0], flags=4))
    r(client, errno.EINVAL, "DRAIN", "reserved", reserved=1)
    r(client, errno.EINVAL, "RESET", "flags", flags=1)
    r(client, errno.E2BIG, "SEGMENTS_ACK", "65536", **dict(GOOD["SEGMENTS_ACK"][0], count=65537))
    r(client, errno.EISCONN, "ATTACH", "attached", abi_version=1, rank=0, call_buffer_bytes=65536)


def test_groups_are_checked(client):
    def start(**more):
        client.seq += 1
        with pytest.raises(Refused) as e:
            client.put_start(5, [(None, 64, [key(1)], more)])
        return e.value

    assert start(reserved=1).errno == errno.EINVAL
    assert "reserved" in client.last_error().text.decode()
    assert start(flags=8).errno == errno.EINVAL
    assert start(class_mask=3).errno == errno.EINVAL
    assert start(class_mask=0).errno == errno.EINVAL
    client.put(6, None, 64, [key(1)], [b"x" * 8192])
    assert client.stats()["slots_prepared"] == "0"


def test_stale_acknowledgement(client):
    struct.pack_into("<IIII", client.buffer, 0, client.ranges()[0].id, client.ranges()[0].generation, 3000, 1)
    r = client.ranges()
    struct.pack_into("<IIII", client.buffer, 0, r[0].id, r[0].generation, 3000, 1)
    e = refused(client, errno.ESTALE, "SEGMENTS_ACK", "3000", acks_offset=0, count=2)
    assert e.reply.accepted == 1  # an error brings its struct along


def test_before_attach(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl"), attach=False) as c:
        for name in sorted(GOOD):
            refused(c, errno.ENOTCONN, name, "ATTACH", **GOOD[name][0])
        refused(c, errno.EPROTONOSUPPORT, "ATTACH", abi_version=2, call_buffer_bytes=65536)
        refused(c, errno.EINVAL, "ATTACH", "rank", abi_version=1, rank=1, call_buffer_bytes=65536)
        refused(c, errno.EINVAL, "ATTACH", "call_buffer_bytes", abi_version=1, call_buffer_bytes=65535)
        refused(c, errno.EINVAL, "ATTACH", "call_buffer_bytes", abi_version=1, call_buffer_bytes=(64 << 20) + 1)
        refused(c, errno.EINVAL, "ATTACH", "flags", abi_version=1, call_buffer_bytes=65536, flags=2)
        c.attach(65536)
        assert c.probe if c.attached.call_buffer_bytes >= 65536 else False


@pytest.mark.parametrize("layout, mask", [(PLAIN_LAYOUT, 0), (STATE_LAYOUT, 2)])
def test_attach_says_which_classes_are_state_classes(daemon, layout, mask):
    """A client lays out its arrays by them: it used to read them from the text of the layout."""
    d = daemon()
    d.namespace(layout=layout)
    with Client(d.path("ns/x/ctl"), rank=NONE32, state_mask=NONE32) as c:
        assert c.attached.state_mask == mask and c.attached.classes == len(layout["classes"])


UNEVEN_LAYOUT = {"version": 1, "identity": {"model": "test/uneven"}, "world": 2, "page_tokens": 64,
                 "classes": [{"name": "kv", "kind": "dense", "share_of_rank": [1, 0],
                              "share_planes": [[{"name": "K", "bytes": 8000}], [{"name": "K", "count": 3, "bytes": 1000}]]},
                             {"name": "st", "kind": "state", "share_of_rank": [0, 0], "planes": [{"name": "S", "bytes": 5000}]}]}


def test_attach_says_the_bytes_of_this_ranks_values(daemon):
    """Without padding: a client that copies whole slots would read, and write, what is not its value's."""
    d = daemon()
    d.namespace(layout=UNEVEN_LAYOUT)
    for rank, told in ((0, [3000, 5000]), (1, [8000, 5000]), (NONE32, [])):
        with Client(d.path("ns/x/ctl"), attach=False) as c:
            a = c.ask_attach(rank=rank, value_bytes=(ctypes.c_uint64 * 16)(*range(16)))
            assert list(a.value_bytes) == told + [0] * (16 - len(told)), rank


def test_a_client_of_the_first_attach_is_answered_alike(daemon):
    d = daemon()
    d.namespace(layout=UNEVEN_LAYOUT)
    told = []
    for first in (0, 1):  # raw.py sends every other one in each version
        with Client(d.path("ns/x/ctl"), attach=False) as c:
            c.seq = first
            a = c.attach(rank=0)
            assert ctypes.sizeof(a) == (336 if first else 472)
            c.acknowledge()
            c.put_start(1, [(None, 64, [key(first)])])
            c.put_end("PUT_COMMIT", 1)
            told.append([bytes(v) if hasattr(v := getattr(a, field), "__len__") else v for field, _ in OPERATIONS["ATTACH"][1]._fields_
                         if field not in ("call", "client_id", "session", "token", "ranges_version")])
    assert told[0] == told[1]


def test_token_works_once_and_for_this_version(daemon):
    d = daemon("--token-ttl-ms", "500", "--hello-ms", "300")
    d.namespace()
    path = os.path.join(d.folder(), "sock")
    with Client(d.path("ns/x/ctl"), attach=False) as c:
        assert show_token(path, os.urandom(16))[0] == -errno.ENOENT
        a = c.ask_attach()
        assert a.socket_path.decode() == path
        token = bytes(a.token)
        assert show_token(path, token, abi_version=2)[0] == -errno.EPROTONOSUPPORT
        assert show_token(path, token, message=b"short")[0] == -errno.EINVAL
        assert show_token(path, token, message=bytes(200))[0] == -errno.EINVAL
        status, text, fds = show_token(path, token)
        assert status == 0 and len(fds) == 2
        status, text, more = show_token(path, token)
        assert status == -errno.ENOENT and text and not more
        for fd in fds:
            os.close(fd)
    with Client(d.path("ns/x/ctl"), attach=False) as c:
        a = c.ask_attach()
        time.sleep(0.7)
        assert show_token(path, bytes(a.token))[0] == -errno.ENOENT
        c.attach()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:  # says nothing
        s.connect(path)
        s.settimeout(5)
        assert struct.unpack_from("<i", s.recv(128))[0] == -errno.ETIMEDOUT
        assert s.recv(1) == b""


def test_silent_connections_are_bounded(daemon):
    d = daemon("--max-connections", "4", "--hello-ms", "60000")
    d.namespace()
    path = os.path.join(d.folder(), "sock")
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(4)]
    for s in silent:
        s.connect(path)
    for n in range(4):  # whoever speaks is served, and the one that was silent longest makes room
        assert show_token(path, bytes(16))[0] == -errno.ENOENT
    assert struct.unpack_from("<i", silent[0].recv(128))[0] == -errno.EBUSY
    silent[3].send(struct.pack("<II", 1, 0) + bytes(16))
    assert struct.unpack_from("<i", silent[3].recv(128))[0] == -errno.ENOENT
    for s in silent:
        s.close()


def test_read_only_session(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as w:
        w.acknowledge()
        w.put(1, None, 64, [key(1)], [b"v" * 8192])
    with Client(d.path("ns/x/ctl"), os.O_RDONLY) as c:
        assert c.attached.read_only == 1
        assert errno_of(mmap.mmap, c.segment_fd, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE) == errno.EACCES
        assert errno_of(os.pwrite, c.segment_fd, b"x", 0) == errno.EBADF
        c.acknowledge()
        assert errno_of(c.put_start, 1, [(None, 64, [key(1)])]) == errno.EROFS
        assert "read" in c.last_error().text.decode()
        for name in ("REMOVE", "PIN", "DRAIN", "RESET"):
            refused(c, errno.EROFS, name, "read", **GOOD[name][0])
        assert c.touch([key(1), key(2)]).touched == 1
        assert c.get_start(1, [key(1)]).transferable_len == 64
        c.get_transfer(1, 2, 64)
        assert c.segment[c.offsets[0]:c.offsets[0] + 8192] == b"v" * 8192
        assert c.release([2]).released == 1


def test_descriptors_are_sealed(client):
    for fd in (client.segment_fd, client.buffer_fd):
        assert errno_of(os.ftruncate, fd, 0) == errno.EPERM
        assert errno_of(os.ftruncate, fd, 1 << 40) == errno.EPERM
        assert os.fstat(fd).st_mode & 0o777 == 0o600


def test_same_number_is_same_answer(client):
    client.buffer[1 << 20:(1 << 20) + 32] = key(1)
    fields = {"plan": 1, "groups_offset": 0, "keys_offset": 1 << 20, "answers_offset": 4 << 20,
              "status_offset": 7 << 20, "groups": 1, "keys": 1, "class_mask": 1}
    client.put_start(1, [(None, 64, [key(1)])])
    seq = client.seq
    again = client.call("PUT_START", seq=seq, **fields)
    assert again.new_values == 1 and again.groups_ok == 1
    assert client.stats()["put_calls"] == "1"
    refused(client, errno.EINVAL, "PROBE", "seq", seq=seq, keys=1, hits_offset=NONE64)
    first = client.put_end("PUT_COMMIT", 1)
    commit = client.seq
    again = client.call("PUT_COMMIT", seq=commit, plan=1, status_offset=7 << 20, groups=1)
    assert (again.done, again.outcome) == (first.done, first.outcome) == (1, COMMITTED)
    # A new number on an ended plan says so, with its outcome.
    e = refused(client, errno.EALREADY, "PUT_COMMIT", plan=1, status_offset=7 << 20, groups=1)
    assert e.reply.outcome == COMMITTED
    # An error is an answer, too.
    e = refused(client, errno.ENOENT, "GET_CANCEL", handle=77)
    assert errno_of(client.call, "GET_CANCEL", seq=client.seq, handle=77) == errno.ENOENT


def in_process(function):
    """Runs it in a forked process: its exit status is what the function returns."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(function())
        finally:
            os._exit(99)
    return pid


def test_wait_inflight_is_woken_by_the_commit(client):
    client.put_start(1, [(None, 64, [key(1)])])
    done = {}

    def get():
        done["r"] = client.call("GET_START", seq=1000, handle=1, keys_offset=2 << 20, keys=1, hits_offset=NONE64,
                                restorable_offset=NONE64, flags=WAIT_INFLIGHT, deadline_ms=20000)
        done["at"] = time.monotonic()

    client.buffer[2 << 20:(2 << 20) + 32] = key(1)
    t = threading.Thread(target=get)
    t.start()
    wait_for(lambda: client.stats()["waiting"] == "1", 5, "the wait")
    assert "r" not in done
    assert errno_of(client.call, "GET_CANCEL", seq=1000, handle=1) in (errno.EBUSY, errno.EINVAL)
    assert errno_of(client.call, "GET_START", seq=1000, handle=1) == errno.EBUSY
    at = time.monotonic()
    client.put_end("PUT_COMMIT", 1)
    t.join(10)
    assert done["r"].transferable_len == 64 and done["at"] - at < 5
    assert client.stats()["waiting"] == "0"


def test_wait_ends_at_its_deadline(client):
    client.put_start(1, [(None, 64, [key(1)])])
    at = time.monotonic()
    r = client.get_start(1, [key(1)], flags=WAIT_INFLIGHT, deadline_ms=300)
    assert r.transferable_len == 0 and r.first_miss_index == 0
    assert 0.29 < time.monotonic() - at < 5


def test_wait_is_interrupted(client):
    """SIGUSR1 to the waiter: EINTR, everything undone, and the daemon goes on."""
    client.put_start(1, [(None, 64, [key(1)])])

    def waiter():
        signal.signal(signal.SIGUSR1, lambda *_: (_ for _ in ()).throw(InterruptedError(errno.EINTR, "")))
        return errno_of(client.get_start, 1, [key(1)], flags=WAIT_INFLIGHT, deadline_ms=60000)

    for _ in range(20):
        pid = in_process(waiter)
        wait_for(lambda: client.stats()["waiting"] == "1", 5)
        os.kill(pid, signal.SIGUSR1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == errno.EINTR
        assert client.stats()["waiting"] == "0" and client.stats()["handles"] == "0"


def test_killed_waiter_is_gone_at_once(client):
    client.put_start(1, [(None, 64, [key(1)])])
    for _ in range(20):
        pid = in_process(lambda: errno_of(client.get_start, 1, [key(1)], flags=WAIT_INFLIGHT, deadline_ms=60000))
        wait_for(lambda: client.stats()["waiting"] == "1", 5)
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert time.monotonic() - at < 5
    wait_for(lambda: client.stats()["waiting"] == "0", 5)
    assert client.put_end("PUT_COMMIT", 1).done == 1


def test_session_ends_with_its_process_though_a_copy_lives(daemon):
    """The attaching process dies; a fork of it still holds ctl and waits: it is told, and the plan is lost."""
    d = daemon()
    d.namespace()
    reader, writer = os.pipe()

    def parent():
        c = Client(d.path("ns/x/ctl"))
        c.acknowledge()
        c.put_start(1, [(None, 64, [key(1)])])
        child = in_process(lambda: errno_of(c.get_start, 1, [key(1)], flags=WAIT_INFLIGHT, deadline_ms=60000))
        os.write(writer, struct.pack("<I", child))
        wait_for(lambda: c.stats()["waiting"] == "1", 5)
        return 0

    pid = in_process(parent)
    child = struct.unpack("<I", os.read(reader, 4))[0]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    wait_for(lambda: not alive(child), 5, "the end of the copy's wait")
    wait_for(lambda: d.stats()["slots_prepared"] == "0" and d.stats()["slots_quarantined"] == "0", 5)
    assert d.stats()["groups_lost"] == "1"
    assert d.stats()["sessions"] == "0"


def test_nonblock_and_poll(client):
    client.put_start(1, [(None, 64, [key(1)])])
    p = select.poll()
    p.register(client.fd, select.POLLIN)
    with pytest.raises(Refused) as e:
        client.get_start(1, [key(1)], flags=WAIT_INFLIGHT, call_flags=NONBLOCK)
    assert e.value.errno == errno.EAGAIN
    assert client.stats()["waiting"] == "0" and client.stats()["handles"] == "0"
    assert p.poll(0) == []
    woken = []
    t = threading.Thread(target=lambda: woken.extend(p.poll(10000)))
    with pytest.raises(Refused):
        client.get_start(1, [key(1)], flags=WAIT_INFLIGHT, call_flags=NONBLOCK)
    t.start()
    time.sleep(0.2)
    assert not woken
    client.put_end("PUT_COMMIT", 1)
    # The commit itself was a request of this open: what it changed is known. Another session's commit is news.
    with Client(client.daemon.path("ns/x/ctl")) as other:
        other.acknowledge()
        other.put_start(7, [(None, 64, [key(2)])])
        errno_of(client.get_start, 5, [key(2)], flags=WAIT_INFLIGHT, call_flags=NONBLOCK)
        other.put_end("PUT_COMMIT", 7)
    t.join(10)
    assert woken and woken[0][1] & select.POLLIN
    assert client.get_start(6, [key(2)], flags=WAIT_INFLIGHT, call_flags=NONBLOCK).transferable_len == 64


def test_poll_tells_of_new_ranges(client):
    p = select.poll()
    p.register(client.fd, select.POLLIN)
    plan = 0
    for _ in range(200):
        plan += 1
        client.put_start(plan, [(None, 64 * 200, [key(plan, i) for i in range(200)])])
        if client.put_status == [1]:
            break
        client.put_end("PUT_COMMIT", plan)
    assert client.put_status == [1]
    ranges = client.attached.ranges_version
    until = time.monotonic() + 10
    while client.call("SEGMENTS", ranges_offset=0, capacity=0).version <= ranges:  # other news may come first
        assert p.poll(max(0, (until - time.monotonic()) * 1000)), "no news of a range"


@pytest.mark.concurrency
def test_probe_beside_long_batches(client, slower):
    """One key beside batches of 10,000: it waits for a step, not for a batch."""
    keys = [key(3, i) for i in range(10000)]
    path = client.daemon.path("ns/x/ctl")
    stop = time.monotonic() + 2

    def batches():
        with Client(path) as c:
            n = 0
            while time.monotonic() < stop:
                n += 1
                if c.probe(keys).hits != 0:
                    return 1
        return 0 if n > 3 else 2

    pids = [in_process(batches) for _ in range(4)]
    time.sleep(0.3)
    client.buffer[1 << 20:(1 << 20) + 32] = key(3, 5)
    times = []
    while time.monotonic() < stop - 0.2:
        at = time.monotonic()
        client.call("PROBE", keys_offset=1 << 20, hits_offset=NONE64, keys=1)
        times.append(time.monotonic() - at)
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    times.sort()
    print("probe beside 4 x 10,000 keys: p50 %.3f ms, p99 %.3f ms, of %d" % (
        times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3, len(times)))
    assert times[len(times) // 2] < 0.02 * slower


@pytest.mark.concurrency
def test_many_clients_at_once(daemon, slower):
    """Puts, gets, probes, waits and deaths together; afterwards nothing is left open."""
    d = daemon("--memory", "64M")
    d.namespace()

    def work(seed):
        with Client(d.path("ns/x/ctl")) as c:
            c.acknowledge()
            for n in range(60):
                keys = [key(seed % 3, n, i) for i in range(20)]
                c.put_start(n + 1, [(None, 64 * 20, keys)])
                if c.put_status == [0]:
                    c.put_end("PUT_COMMIT" if n % 5 else "PUT_ABORT", n + 1)
                else:
                    c.acknowledge()
                r = c.get_start(n + 1, keys, flags=WAIT_INFLIGHT, deadline_ms=50)
                if r.handle_live and r.missing == 0:
                    if c.get_transfer(n + 1, 1000 + n, r.transferable_len).values and n % 7:
                        c.release([1000 + n])
                elif r.handle_live:
                    c.call("GET_CANCEL", handle=n + 1)
                if n == 30 and seed % 4 == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
        return 0

    pids = [in_process(lambda s=s: work(s)) for s in range(8)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert sorted(codes) == [-9, -9, 0, 0, 0, 0, 0, 0]

    def quiet():
        s = d.stats()
        return all(s[n] == "0" for n in ("sessions", "put_plans", "get_plans", "handles", "pins", "slots_prepared",
                                         "slots_quarantined", "waiting"))
    wait_for(quiet, 10 * slower)
    assert os.listdir(d.path("sessions")) == []
    assert d.stop()[0] == 0


@pytest.mark.concurrency
def test_stop_under_load(daemon, slower):
    d = daemon()
    d.namespace()

    def work():
        c = Client(d.path("ns/x/ctl"))
        keys = [key(1, i) for i in range(5000)]
        try:
            while True:
                c.probe(keys)
                c.get_start(c.seq, keys)
        except OSError as e:
            return 0 if e.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV) else e.errno

    pids = [in_process(work) for _ in range(4)]
    time.sleep(0.5)
    status, seconds = d.stop()
    assert status == 0 and seconds < 1 * slower, d.log()
    for pid in pids:
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
