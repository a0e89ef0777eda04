# SPDX-License-Identifier: Apache-2.0
"""What must not touch each other: namespaces of one mount, and mounts of one host."""
import errno
import os
import signal
import subprocess

import pytest

from mounted import PLAIN_LAYOUT, alive, mounts_at, wait_for
from peers import transient, value_of
from raw import NONE64, Client, errno_of, key, name_of


def test_an_ending_daemon_leaves_other_mounts_alone(daemon, slower):
    """The number of a mount's device is used again at once: what was meant for the old mount must not reach the new."""
    for _ in range(20):
        a = daemon()
        minor = mounts_at(a.mount)
        a.process.send_signal(signal.SIGSTOP)
        subprocess.run(["umount", a.mount], check=True)
        wait_for(lambda: not alive(a.serving()), 10 * slower, "the end of the serving process")
        b = daemon()
        b.namespace()
        same = mounts_at(b.mount) == minor
        with Client(b.path("ns/x/ctl")) as c:
            c.acknowledge()
            c.put(1, None, 64, [key(1, 0)], [value_of(key(1, 0))])
            a.process.send_signal(signal.SIGCONT)
            assert a.process.wait(10 * slower) == 0
            assert c.probe([key(1, 0)]).hits == 1
        assert "restarts: 0" in b.read("health")
        if same:
            return
        b.stop()
    pytest.skip("the device number was never used again")


def identity(**fields):
    return dict(PLAIN_LAYOUT, identity={"model": "test/apart", "kv_dtype": "bf16", **fields}, memory={"floor": 2 << 20})


def hits(d, name, keys):
    with Client(d.path("ns", name, "ctl")) as c:
        return c.probe(keys).hits


def test_namespaces_do_not_see_each_others_keys(daemon, slower):
    d = daemon()
    for name in "xy":
        d.namespace(name, layout=identity())
    keys = [key(1, i) for i in range(3)]
    with Client(d.path("ns/x/ctl")) as x, Client(d.path("ns/y/ctl")) as y:
        for c in (x, y):
            c.acknowledge()
        x.put(1, None, 192, keys, [value_of(k) for k in keys])
        assert y.probe(keys).hits == 0
        assert y.get_start(1, keys).handle_live == 0
        assert os.listdir(d.path("ns/y/records")) == []
        # the same keys there are other values, and plans and handles are the session's alone
        y.put(1, None, 192, keys, [b"y" * 8192] * 3)
        x.get_start(5, keys)
        x.get_transfer(5, 6, 192)
        assert [bytes(x.segment[o:o + 8192]) for o in x.offsets] == [value_of(k) for k in keys]
        assert errno_of(y.release, [6]) == errno.ENOENT
        y.get_start(5, keys)
        y.get_transfer(5, 7, 192)
        assert [bytes(y.segment[o:o + 8192]) for o in y.offsets] == [b"y" * 8192] * 3
        record = d.path("ns/y/records", name_of(192, keys[-1]))
        assert errno_of(os.rmdir, record) == errno.EBUSY
        y.release([7])
        os.rmdir(record)
        assert y.probe(keys).hits == 0 and x.probe(keys).hits == 3
    for name in "xy":
        wait_for(lambda n=name: not transient(d.stats(n)), 10 * slower, "the base")


@pytest.mark.parametrize("field,other", [("kv_dtype", "fp8_e4m3"), ("adapters", "a"), ("isolation", "tenant-1"),
                                         ("execution", "tp2")])
def test_an_identity_that_differs_in_one_word_misses(daemon, field, other):
    """The same keys, the same geometry: but bf16 bytes must never be read as fp8."""
    d = daemon()
    d.namespace("a", layout=identity())
    d.namespace("b", layout=identity(**{field: other}))
    keys = [key(1, i) for i in range(3)]
    with Client(d.path("ns/a/ctl")) as a, Client(d.path("ns/b/ctl")) as b:
        assert bytes(a.attached.fingerprint) != bytes(b.attached.fingerprint)
        a.acknowledge()
        a.put(1, None, 192, keys, [value_of(k) for k in keys])
        r = b.get_start(1, keys)
        assert (r.hits, r.transferable_len, r.first_miss_index) == (0, 0, 0)
    d.namespace("c", layout=identity())
    with Client(d.path("ns/a/ctl")) as a, Client(d.path("ns/c/ctl")) as c:
        assert bytes(a.attached.fingerprint) == bytes(c.attached.fingerprint)
    assert hits(d, "c", keys) == 0


def test_a_removed_namespace_comes_back_empty(daemon, slower):
    d = daemon()
    d.namespace("x", layout=identity())
    keys = [key(1, i) for i in range(3)]
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 192, keys, [value_of(k) for k in keys])
        for _ in range(3):
            assert errno_of(os.rmdir, d.path("ns/x")) == errno.EBUSY
        assert c.probe(keys).hits == 3
    wait_for(lambda: errno_of(os.rmdir, d.path("ns/x")) == 0, 10 * slower, "the removal")
    d.namespace("x", layout=identity())
    with Client(d.path("ns/x/ctl")) as c:
        assert c.probe(keys).hits == 0
        c.acknowledge()
        c.put_start(1, [(None, 192, keys)])
        # memory that another namespace has written shows nothing of it
        assert all(bytes(c.segment[o:o + 8192]) == bytes(8192) for o in c.put_answers if o < NONE64 - 15)
