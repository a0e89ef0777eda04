# SPDX-License-Identifier: Apache-2.0
"""Blobs through a mount: storing, replacing, pieces, eviction, who makes what is missing, ends of sessions, the text face."""
import errno
import hashlib
import json
import os
import threading
import time

import pytest

from mounted import PLAIN_LAYOUT, MiB, wait_for
from raw import (BLOB_ABORT, BLOB_END, BLOB_EXCLUSIVE, BLOB_FOUND, BLOB_LOCKED, BLOB_RELEASE, BLOB_RELEASED, NONBLOCK,
                 Client, Refused, errno_of, key)

LAYOUT = dict(PLAIN_LAYOUT, memory={"floor": 16 * MiB, "blobs": {"bytes": 8 * MiB, "count": 100}})


def bytes_of(n, length):
    return (bytes((n * 31 + i * 7) & 255 for i in range(251)) * (length // 251 + 1))[:length]


@pytest.fixture
def mounted(daemon):
    d = daemon()
    d.namespace(layout=LAYOUT)
    return d


@pytest.fixture
def client(mounted):
    with Client(mounted.path("ns/x/ctl")) as c:
        c.daemon = mounted
        yield c


def test_put_get_replace_remove(client):
    data = bytes_of(1, 10000)
    r = client.blob_put("images/cat.png", data, kind=7)
    name_key = hashlib.blake2b(b"images/cat.png", digest_size=32).digest()
    assert r.stored == 1 and bytes(r.key) == name_key
    g, got = client.blob_get("images/cat.png")
    assert got == data and (g.length, g.kind, g.version, bytes(g.key)) == (10000, 7, r.version, name_key)
    assert client.blob_get(name_key, offset=9990)[1] == data[9990:]
    assert client.blob_get(name_key, capacity=0)[0].length == 10000
    again = client.blob_put(name_key, b"short")
    assert again.version > r.version and client.blob_get(name_key)[1] == b"short"
    assert errno_of(client.blob_put, name_key, b"", flags=BLOB_EXCLUSIVE) == errno.EEXIST
    client.blob_put(key(5), b"")
    assert client.blob_get(key(5))[1] == b""
    client.blob("BLOB_REMOVE", name_key)
    assert errno_of(client.blob_get, name_key) == errno.ENOENT
    assert errno_of(client.blob, "BLOB_REMOVE", name_key) == errno.ENOENT
    stats = client.stats()
    assert (stats["blobs"], stats["blob_bytes"], stats["blob_limit_bytes"], stats["blobs_limit"]) == (
        "1", "0", str(8 * MiB), "100")
    client.blob_put(key(6), b"x")
    metrics = dict(line.rsplit(" ", 1) for line in client.daemon.read("metrics").splitlines() if line[0] != "#")
    assert metrics["prefixfs_host_used_bytes"] == "4096" and metrics["prefixfs_host_floors_bytes"] == str(24 * MiB)
    assert metrics['prefixfs_blob_limit_bytes{ns="x"}'] == str(8 * MiB)
    assert metrics['prefixfs_blob_hits_total{ns="x"}'] == "4"
    assert stats["blob_puts"] == "3" and stats["blobs_removed"] == "2" and stats["blob_misses"] == "1"


def test_the_same_number_is_the_same_request(client):
    a = client.blob_put(key(1), b"one", seq=50)
    client.blob_put(key(1), b"two", seq=51)
    b = client.blob_put(key(1), b"one", seq=50)
    assert a.version == b.version and client.blob_get(key(1), seq=52)[1] == b"two"
    client.seq = 60


def test_in_pieces(client):
    data = bytes_of(2, 3 * MiB + 5)
    for at in range(0, len(data), MiB):
        assert errno_of(client.blob_get, key(1)) == errno.ENOENT
        r = client.blob_put(key(1), data[at:at + MiB], write=9, offset=at, length=len(data))
    assert r.stored == 1
    got, ended = b"", 0
    while not ended:
        r, more = client.blob_get(key(1), capacity=MiB, read=3, offset=len(got))
        got, ended = got + more, r.ended
        client.blob_put(key(1), b"another")
    assert got == data
    client.blob_put(key(2), b"x", write=1, length=10)
    client.blob_put(key(2), b"", write=1, flags=BLOB_ABORT)
    assert client.blob_get(key(1), capacity=2, read=4, flags=BLOB_END)[0].ended == 1
    assert client.stats()["blob_transfers"] == "0" and client.stats()["blob_bytes"] == "4096"


def test_limits_and_sentences(client):
    def text_of(function, *arguments, **more):
        with pytest.raises(Refused) as refused:
            function(*arguments, **more)
        return refused.value.errno, refused.value.text

    assert text_of(client.blob_put, key(1), b"x", length=4 * MiB + 1, write=1) == (
        errno.EFBIG, f"length: {4 * MiB + 1} is over the limit of {4 * MiB}, half of what the namespace has for blobs")
    assert text_of(client.blob_put, key(1), b"x", length=5)[0] == errno.EINVAL
    assert text_of(client.blob_put, key(1), b"x", flags=8)[1] == "flags: 0x8 has unknown bits"
    assert text_of(client.blob_put, key(1), b"x", reserved=8)[0] == errno.EINVAL
    assert text_of(client.blob_put, "n" * 256, b"x")[1] == "name_bytes: 256 are over the limit of 255"
    assert text_of(client.blob_put, "a\0b", b"x")[1] == "name: byte 1 of its 3 is a NUL"
    assert text_of(client.blob, "BLOB_GET", key(1), data_offset=8 * MiB, capacity=1)[0] == errno.EINVAL
    client.blob_put(key(1), b"12")
    assert text_of(client.blob_get, key(1), offset=3)[1] == "offset: 3 is behind the end of the blob, which has 2 bytes"
    assert text_of(client.blob_lock, key(1), hold_ms=600001)[0] == errno.EINVAL
    with Client(client.daemon.path("ns/x/ctl"), os.O_RDONLY) as reader:
        assert reader.blob_get(key(1))[1] == b"12"
        for call in (lambda: reader.blob_put(key(1), b"x"), lambda: reader.blob("BLOB_REMOVE", key(1)),
                     lambda: reader.blob_lock(key(9))):
            assert errno_of(call) == errno.EROFS


def test_without_a_share_there_are_none(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        for call in (lambda: c.blob_put(key(1), b"x"), lambda: c.blob_get(key(1)), lambda: c.blob_lock(key(1))):
            assert errno_of(call) == errno.EOPNOTSUPP
        assert c.stats()["blob_limit_bytes"] == "0"


def test_the_coldest_go_and_pages_stay(client):
    client.acknowledge()
    keys = [key(1, i) for i in range(8)]
    client.put(1, None, 64 * 8, keys, [bytes_of(i, 8192) for i in range(8)])
    for i in range(40):
        client.blob_put(key(2, i), bytes_of(i, MiB))
        client.blob_get(key(2, 0), capacity=10)
    assert client.probe(keys).hits == 8 and client.stats()["values_evicted"] == "0"
    there = [i for i in range(40) if errno_of(client.blob_get, key(2, i)) == 0]
    assert there == [0] + list(range(33, 40))
    assert client.stats()["blob_bytes"] == str(8 * MiB) and client.stats()["blobs_evicted"] == "32"


def test_one_prepares_and_the_others_find_it(mounted):
    """The two steps of a prepared input: its source says what it is, what it is has the tensors."""
    prepared, lock, found = [], threading.Lock(), []

    def request(number):
        with Client(mounted.path("ns/x/ctl")) as c:
            r = c.blob_lock("source:cat.png", deadline_ms=60000)
            if r.answer == BLOB_LOCKED:
                with lock:
                    prepared.append(number)
                identity = key(77)
                assert c.blob_lock(identity).answer == BLOB_LOCKED
                c.blob_put(identity, bytes_of(7, 100000), kind=2)
                c.blob_put("source:cat.png", identity, kind=1)
            identity = c.blob_get("source:cat.png")[1]
            data = c.blob_get(identity)[1]
            with lock:
                found.append(data == bytes_of(7, 100000))

    threads = [threading.Thread(target=request, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len(prepared) == 1 and found == [True] * 8
    assert mounted.stats()["blob_locks"] == "0" and mounted.stats()["blob_locks_lost"] == "0"


def test_a_lock_waits_and_passes_on(client):
    d = client.daemon
    with Client(d.path("ns/x/ctl")) as other:
        assert client.blob_lock(key(1)).answer == BLOB_LOCKED
        assert client.blob_lock(key(1)).answer == BLOB_LOCKED
        assert errno_of(other.blob_lock, key(1), call_flags=NONBLOCK) == errno.EAGAIN
        with pytest.raises(Refused) as refused:
            other.blob_lock(key(1), deadline_ms=50)
        assert refused.value.errno == errno.ETIMEDOUT and 0 < refused.value.reply.left_ms <= 30000
        assert client.blob_lock(key(1), flags=BLOB_RELEASE).answer == BLOB_RELEASED
        assert errno_of(client.blob_lock, key(1), flags=BLOB_RELEASE) == errno.ENOENT
        assert other.blob_lock(key(1)).answer == BLOB_LOCKED
        # Its time is over while somebody waits: nothing else happens then.
        assert other.blob_lock(key(1), hold_ms=300).answer == BLOB_LOCKED
        began = time.monotonic()
        assert client.blob_lock(key(1), deadline_ms=60000).answer == BLOB_LOCKED
        assert time.monotonic() - began < 20
        # The holder goes while somebody waits.
        answers = []
        waiter = threading.Thread(target=lambda: answers.append(other.blob_lock(key(1), deadline_ms=60000).answer))
        waiter.start()
        wait_for(lambda: d.stats()["waiting"] == "1", 10)
        client.close()
        waiter.join(30)
        assert answers == [BLOB_LOCKED]
        other.blob_put(key(1), b"x")
        assert other.blob_lock(key(1)).answer == BLOB_FOUND
        assert d.stats()["blob_locks"] == "0" and d.stats()["waiting"] == "0"


def test_a_session_that_ends_leaves_nothing(mounted):
    with Client(mounted.path("ns/x/ctl")) as c:
        c.blob_put(key(1), bytes_of(1, 5000))
        c.blob_put(key(2), b"x", write=1, length=MiB)
        c.blob_get(key(1), capacity=10, read=2)
        c.blob_lock(key(3))
        stats = mounted.stats()
        assert (stats["blob_transfers"], stats["blob_locks"]) == ("2", "1")
    wait_for(lambda: mounted.stats()["blob_transfers"] == "0", 10)
    stats = mounted.stats()
    assert (stats["blob_locks"], stats["blob_bytes"], stats["blobs"]) == ("0", "8192", "1")


def test_a_reset_takes_them(client):
    client.blob_put(key(1), b"x")
    client.blob_put(key(2), b"x", write=1, length=2)
    client.reset()
    assert errno_of(client.blob_get, key(1)) == errno.ENOENT
    assert errno_of(client.blob_put, key(2), b"y", write=1, offset=1, length=2) == errno.ESTALE
    assert client.stats()["blobs"] == "0" and client.stats()["blob_bytes"] == "0"


def test_the_text_face(client):
    def say(line):
        fd = os.open(client.daemon.path("ns/x/ctl"), os.O_RDWR)
        try:
            os.write(fd, line.encode() + b"\n")
        except OSError:
            pass
        try:
            return json.loads(os.read(fd, 65536))
        finally:
            os.close(fd)

    for i in range(40):
        client.blob_put(f"name{i}" if i % 2 else key(i), b"x" * i, kind=i)
    first = say("blob list")
    second = say(f"blob list {first['next']}")
    assert len(first["blobs"]) == 32 and len(second["blobs"]) == 8 and "next" not in second
    assert {b["bytes"] for b in first["blobs"] + second["blobs"]} == set(range(40))
    one = say("blob stat name3")
    assert one["name"] == "name3" and one["bytes"] == 3 and say(f"blob stat {one['key']}") == one
    assert say("blob rm name3") == {} and say("blob rm name3")["errno"] == "ENOENT"
    assert say("blob nonsense")["errno"] == "EINVAL"
