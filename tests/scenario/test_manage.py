# SPDX-License-Identifier: Apache-2.0
"""What operators and engines do to a namespace by hand: TOUCH, REMOVE, PIN, DRAIN, RESET, and attributes of records."""
import errno
import os
import threading
import time

import pytest

from mounted import STATE_LAYOUT, wait_for
from peers import transient, value_of, victims_add_up
from raw import (ABORTED, COMMITTED, GROUP_ROW_ONLY, GROUP_WHOLE, LOST, NONE64, PENDING, PIN_ABSENT, PIN_DONE,
                 PIN_ENDPOINTS, PIN_NOROOM, PIN_RELEASE, REMOVE_ABSENT, REMOVE_BUSY, REMOVED, WAIT_INFLIGHT, Client,
                 Refused, errno_of, key, name_of)

PIN, ROW, TIERS, HITS = ("user.prefixfs." + n for n in ("pin", "row", "tiers", "hits"))


def pages(chain, n):
    return [key(chain, i) for i in range(n)]


def store(c, plan, chain, n=4, **more):
    keys = pages(chain, n)
    c.put(plan, None, 64 * n, keys, [value_of(k) for k in keys], **more)
    return keys


def record_path(d, chain, n=4):
    return d.path("ns/x/records", name_of(64 * n, key(chain, n - 1)))


@pytest.fixture
def client(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.daemon = d
        c.acknowledge()
        yield c


def test_remove_answers_each_key(client):
    a, b = store(client, 1, 1), store(client, 2, 2)
    client.get_start(1, b)
    r = client.remove(a[:2] + [key(9)] + b)
    assert client.answers == [REMOVED] * 2 + [REMOVE_ABSENT] + [REMOVE_BUSY] * 4
    assert (r.removed, r.absent, r.busy, r.values) == (2, 1, 4, 2)
    assert client.probe(a).hits == 2 and client.probe(b).hits == 4
    client.call("GET_CANCEL", handle=1)
    r = client.remove(a + b)
    assert client.answers == [REMOVE_ABSENT] * 2 + [REMOVED] * 6 and r.values == 6
    assert client.probe(a + b).hits == 0 and client.stats()["records"] == "0"
    assert os.listdir(client.daemon.path("ns/x/records")) == []
    assert client.remove(a, class_mask=1).absent == 4


def test_remove_without_answers_and_of_many_keys(client):
    keys = store(client, 1, 1, 2000)
    client.buffer[1 << 20:(1 << 20) + 32 * 2000] = b"".join(keys)
    r = client.call("REMOVE", keys_offset=1 << 20, keys=2000, answers_offset=NONE64)
    assert (r.removed, r.values) == (2000, 2000)
    assert client.stats()["slots_free"] == client.stats()["slots"]


def test_remove_lets_a_whole_group_go_whole(client):
    keys = pages(1, 4)
    client.put_start(1, [(None, 256, keys, {"flags": GROUP_WHOLE})])
    client.put_end("PUT_COMMIT", 1)
    r = client.remove(keys[2:])
    assert client.answers == [REMOVED, REMOVE_ABSENT] and r.values == 4
    assert client.probe(keys).hits == 0


def test_touch_makes_leave_later(client):
    keys = store(client, 1, 1)
    n = 1
    while int(client.stats()["values_evicted"]) < 3000:
        n += 1
        client.acknowledge()
        assert client.touch(keys + [key(99)], priority=3, pause_ms=1000).touched == 4
        client.put_start(n, [(None, 64 * 100, pages(n, 100))])
        if client.put_status == [0]:
            client.put_end("PUT_COMMIT", n)
    assert client.probe(keys).hits == 4


def test_pin_is_bounded_and_seen(client):
    d = client.daemon
    keys = store(client, 1, 1)
    r = client.pin([keys[1], key(9)])
    assert client.answers == [PIN_DONE, PIN_ABSENT] and (r.changed, r.absent) == (1, 1)
    limit = int(d.stats()["floor_bytes"]) // 10
    assert (r.pinned_bytes, r.limit_bytes) == (4 * 8192, limit)
    assert d.stats()["pinned_bytes"] == str(4 * 8192) and d.stats()["pinned_limit_bytes"] == str(limit)
    path = record_path(d, 1)
    assert os.getxattr(path, PIN) == b"1" and "pinned: yes" in d.read(path, "header")
    assert errno_of(os.rmdir, path) == errno.EBUSY
    client.remove(keys)
    assert client.answers == [REMOVE_BUSY] * 4
    big = store(client, 2, 2, 250)
    with pytest.raises(Refused) as e:
        client.pin([big[0], keys[0]])
    assert e.value.errno == errno.ENOSPC and client.answers == [PIN_NOROOM, PIN_DONE]
    for number in (250 * 8192, 4 * 8192, limit):
        assert str(number) in e.value.text
    assert e.value.reply.pinned_bytes == 4 * 8192
    r = client.pin(keys, flags=PIN_RELEASE | PIN_ENDPOINTS)
    assert client.answers == [PIN_ABSENT] * 3 + [PIN_DONE] and r.changed == 1 and r.pinned_bytes == 0
    assert os.getxattr(path, PIN) == b"0"
    client.remove(keys)
    assert client.answers == [REMOVED] * 4


def test_a_pin_outlives_the_session(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl"), rank=0xffffffff) as c:  # no rank: who manages has no share
        with Client(d.path("ns/x/ctl")) as w:
            w.acknowledge()
            keys = store(w, 1, 1)
        assert c.pin(keys[:1]).changed == 1
    wait_for(lambda: d.stats()["sessions"] == "0", 5)
    assert os.getxattr(record_path(d, 1), PIN) == b"1"


def test_drain_has_nothing_to_do(client):
    store(client, 1, 1)
    r = client.call("DRAIN")
    assert (r.values, r.bytes, r.disk) == (0, 0, 0)


# ---- RESET


def test_reset_hides_all_and_keeps_what_is_read(client):
    d = client.daemon
    keys, other = store(client, 1, 1), store(client, 2, 2)
    assert client.attached.generation == 1
    assert client.get_start(1, keys).transferable_len == 256
    client.get_transfer(1, 5, 256, to=128)
    places = client.offsets
    path = record_path(d, 1)
    os.stat(path)
    ranges = [(r.id, r.generation, r.offset) for r in client.ranges()]
    r = client.reset()
    assert (r.generation, r.values, r.held) == (2, 4, 1)
    assert client.probe(keys + other).hits == 0
    assert os.listdir(d.path("ns/x/records")) == []
    wait_for(lambda: errno_of(os.stat, path) == errno.ENOENT, 0.9, "the kernel's forgetting", exactly=True)  # it is told, though held
    again = client.call("SEGMENTS", ranges_offset=0, capacity=256)
    assert again.generation == 2 and [(r.id, r.generation, r.offset) for r in client.ranges()] == ranges
    assert "generation: 2" in d.read("ns/x/segment")
    # The same keys again, with other bytes, beside the old ones.
    client.put(6, None, 256, keys, [b"new!" * 2048] * 4)
    for place, k in zip(places, keys):
        assert client.segment[place:place + 8192] == value_of(k)
    assert client.get_transfer(1, 7, 256, start=128).handle_ended == 1
    for place, k in zip(client.offsets, keys[2:]):
        assert client.segment[place:place + 8192] == value_of(k)
    client.release([5, 7])
    client.get_start(8, keys)
    client.get_transfer(8, 9, 256)
    for place in client.offsets:
        assert client.segment[place:place + 8192] == b"new!" * 2048
    client.release([9])
    stats = d.stats()
    assert stats["hidden_records"] == "0" and stats["records"] == "1" and stats["resets"] == "1"
    with Client(d.path("ns/x/ctl")) as c:
        assert c.attached.generation == 2


def test_open_puts_are_stale_after_a_reset(client):
    d = client.daemon
    client.put_start(1, [(None, 64, [key(1)]), (None, 64, [key(2)]), (None, 64, [key(3)])])
    client.put_end("PUT_COMMIT", 1)
    with Client(d.path("ns/x/ctl")) as other:
        other.acknowledge()
        other.put_start(1, [(None, 128, [key(2), key(2, 1)], {"flags": GROUP_WHOLE})])
        other.put_end("PUT_COMMIT", 1)
        assert other.put_status == [PENDING]
        assert client.reset().generation == 2
        with pytest.raises(Refused) as e:
            other.put_end("PUT_COMMIT", 1)
        assert e.value.errno == errno.ESTALE and e.value.reply.outcome == LOST and "generation 2" in e.value.text
        with pytest.raises(Refused) as e:
            other.put_end("PUT_COMMIT", 1)
        assert e.value.errno == errno.EALREADY and e.value.reply.outcome == LOST
    assert d.stats()["slots_prepared"] == "2"  # they rest until their client has spoken
    with pytest.raises(Refused) as e:
        client.put_end("PUT_COMMIT", 1, groups=2)
    assert e.value.errno == errno.ESTALE and e.value.reply.outcome == 0 and e.value.reply.done == 1
    assert list(client.buffer[7 << 20:(7 << 20) + 8:4]) == [COMMITTED, LOST]
    client.put_end("PUT_ABORT", 1, first=2)
    assert client.put_status == [ABORTED]
    assert d.stats()["slots_prepared"] == "0"
    assert client.probe([key(1), key(2), key(3)]).hits == 0
    assert d.stats()["slots_free"] == d.stats()["slots"]


def test_reset_wakes_who_waits(client):
    client.put_start(1, [(None, 64, [key(1)])])
    done = {}

    def get():
        done["r"] = client.call("GET_START", seq=1000, handle=1, keys_offset=2 << 20, keys=1, hits_offset=NONE64,
                                restorable_offset=NONE64, flags=WAIT_INFLIGHT, deadline_ms=20000)

    client.buffer[2 << 20:(2 << 20) + 32] = key(1)
    t = threading.Thread(target=get)
    t.start()
    wait_for(lambda: client.stats()["waiting"] == "1", 5)
    client.reset()
    t.join(5)
    assert done["r"].transferable_len == 0 and done["r"].first_miss_index == 0
    assert client.stats()["waiting"] == "0"


def test_a_dead_client_after_a_reset(client, peer):
    """Its plan's slots go through quarantine, its pins let go."""
    d = client.daemon

    def hold(p):
        c = Client(d.path("ns/x/ctl"))
        c.acknowledge()
        keys = store(c, 1, 1)
        c.get_start(1, keys)
        c.put_start(2, [(None, 64, [key(5)])])
        p.tell("holding")
        p.rest()

    p = peer(hold)
    p.hear()
    assert client.reset().held == 2
    assert d.stats()["slots_prepared"] == "1"
    p.kill()
    wait_for(lambda: d.stats()["sessions"] == "1" and d.stats()["hidden_records"] == "0", 5)
    wait_for(lambda: d.stats()["slots_free"] == d.stats()["slots"], 5)


@pytest.mark.concurrency
@pytest.mark.limit(180)
def test_reset_under_load(daemon, peer, slower):
    """Clients put, get, check every byte, remove, pin and touch while one resets: no wrong byte, nothing left over."""
    d = daemon("--memory", "64M")
    d.namespace()
    until = time.monotonic() + 6

    def work(p, seed):
        done = {"hits": 0, "stale": 0, "put": 0, "busy": 0, "lost": 0}
        with Client(d.path("ns/x/ctl")) as c:
            c.acknowledge()
            n = 0
            while time.monotonic() < until:
                n += 1
                keys = pages((seed + n) % 7, 30 + n % 3 * 300)
                try:
                    c.put_start(2 * n, [(None, 64 * len(keys), keys)])
                    if c.put_status == [0]:
                        for place, k in zip(c.put_answers, keys):
                            if place < NONE64 - 15:
                                c.segment[place:place + 8192] = value_of(k)
                        c.put_end("PUT_COMMIT", 2 * n)
                        done["put"] += c.put_status == [COMMITTED]
                    else:
                        c.acknowledge()
                except Refused as e:
                    if e.errno != errno.ESTALE:
                        raise
                    done["stale"] += 1
                r = c.get_start(n, keys)
                if r.handle_live and r.missing:
                    c.acknowledge()
                if r.handle_live:
                    c.get_transfer(n, 2 * n + 1, r.transferable_len)
                    for place, k in zip(c.offsets, keys):
                        assert c.segment[place:place + 8192] == value_of(k), (n, place)
                    done["hits"] += len(c.offsets)
                    if n % 5 == 0:
                        time.sleep(0.02)
                        for place, k in zip(c.offsets, keys):
                            assert c.segment[place:place + 8192] == value_of(k), (n, place)
                    c.release([2 * n + 1])
                if n % 4 == 0:
                    done["busy"] += c.remove(keys[:20]).busy
                if n % 6 == 0:
                    errno_of(c.pin, keys[:1])
                if n % 9 == 0:
                    c.touch(keys)
        p.tell(done)

    workers = [peer(work, seed) for seed in range(4)]
    generation = 1
    mine = pages(100, 40)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        while time.monotonic() < until:
            try:
                c.put_start(generation, [(None, 64 * 40, mine)])
                if c.put_status == [0]:
                    c.put_end("PUT_COMMIT", generation)
            except Refused as e:
                assert e.errno == errno.ESTALE
            r = c.reset()
            generation += 1
            assert r.generation == generation
            assert c.probe(mine).hits == 0
            time.sleep(0.01)
    told = [w.hear(60 * slower) for w in workers]
    print(told, generation)
    assert sum(t["hits"] for t in told) > 100 and sum(t["put"] for t in told) > 20 and generation > 20
    assert all(w.wait() == 0 for w in workers)
    with Client(d.path("ns/x/ctl")) as c:
        c.reset()
    wait_for(lambda: not transient(d.stats()), 10 * slower)
    stats = d.stats()
    assert stats["records"] == stats["pages"] == stats["hidden_records"] == stats["pinned_bytes"] == "0"
    assert stats["slots_free"] == stats["slots"] and victims_add_up(stats)
    assert d.stop()[0] == 0


# ---- attributes


def test_attributes_of_a_record(client):
    d = client.daemon
    keys = store(client, 1, 1)
    path = record_path(d, 1)
    assert sorted(os.listxattr(path)) == sorted([PIN, ROW, TIERS, HITS])
    assert [os.getxattr(path, n) for n in (PIN, ROW, TIERS, HITS)] == [b"0", b"absent", b"memory", b"0"]
    for n in range(3):
        client.get_start(n + 1, keys)
        client.call("GET_CANCEL", handle=n + 1)
    assert os.getxattr(path, HITS) == b"3" and "hits: 3" in d.read(path, "header")
    os.setxattr(path, PIN, b"1")
    assert os.getxattr(path, PIN) == b"1" and errno_of(os.rmdir, path) == errno.EBUSY
    os.setxattr(path, PIN, b"1")
    os.removexattr(path, PIN)
    assert os.getxattr(path, PIN) == b"0"
    os.setxattr(path, PIN, b"1", os.XATTR_REPLACE)
    os.setxattr(path, PIN, b"0")
    for value in (b"", b"2", b"10", b"yes", b"1\n"):
        assert errno_of(os.setxattr, path, PIN, value) == errno.EINVAL
    assert errno_of(os.setxattr, path, PIN, b"1", os.XATTR_CREATE) == errno.EEXIST
    assert errno_of(os.setxattr, path, ROW, b"drop") == errno.ENODATA
    assert errno_of(os.setxattr, path, ROW, b"keep") == errno.EINVAL
    for name in (TIERS, HITS):
        assert errno_of(os.setxattr, path, name, b"1") == errno.EPERM
    for name in (ROW, TIERS, HITS):
        assert errno_of(os.removexattr, path, name) == errno.EPERM
    assert errno_of(os.getxattr, path, "user.other") == errno.ENODATA
    assert errno_of(os.setxattr, path, "user.other", b"1") == errno.EOPNOTSUPP
    assert errno_of(os.removexattr, path, "user.other") == errno.ENODATA
    for other in ("ns/x/records", "ns/x", "ns/x/stats"):
        assert os.listxattr(d.path(other)) == []
        assert errno_of(os.getxattr, d.path(other), PIN) == errno.ENODATA
        assert errno_of(os.setxattr, d.path(other), PIN, b"1") == errno.EOPNOTSUPP
    os.rmdir(path)
    assert errno_of(os.getxattr, path, PIN) == errno.ENOENT


def test_a_pin_by_attribute_is_bounded(client):
    store(client, 1, 1, 250)
    path = record_path(client.daemon, 1, 250)
    assert errno_of(os.setxattr, path, PIN, b"1") == errno.ENOSPC
    assert os.getxattr(path, PIN) == b"0"
    wait_for(lambda: "tenth" in client.daemon.log(), 10 * client.daemon.slower, "the reason in the log")  # behind the answer


def test_a_row_is_dropped_alone(daemon):
    d = daemon()
    d.namespace(layout=STATE_LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        keys = pages(1, 4)
        c.put_start(1, [(None, 256, keys)], class_mask=3, answers=5)
        c.put_end("PUT_COMMIT", 1)
        path = record_path(d, 1)
        assert os.getxattr(path, ROW) == b"present" and os.path.exists(os.path.join(path, "row"))
        c.get_start(1, keys)
        assert errno_of(os.setxattr, path, ROW, b"drop") == errno.EBUSY
        c.call("GET_CANCEL", handle=1)
        os.setxattr(path, PIN, b"1")
        assert errno_of(os.setxattr, path, ROW, b"drop") == errno.EBUSY
        os.setxattr(path, PIN, b"0")
        os.setxattr(path, ROW, b"drop")
        assert os.getxattr(path, ROW) == b"absent" and "row" not in os.listdir(path)
        assert errno_of(os.setxattr, path, ROW, b"drop") == errno.ENODATA
        assert c.get_start(2, keys, class_mask=1).transferable_len == 256
        assert c.get_start(3, keys).transferable_len == 0
        # A row alone: the record goes with it.
        c.put_start(4, [(keys[3], 300, [key(7)], {"flags": GROUP_ROW_ONLY, "class_mask": 2})], class_mask=2, answers=1)
        c.put_end("PUT_COMMIT", 4)
        path = d.path("ns/x/records", name_of(300, key(7)))
        os.setxattr(path, ROW, b"drop")
        assert errno_of(os.stat, path) == errno.ENOENT
        # REMOVE by class: rows alone.
        c.put_start(5, [(None, 256, pages(2, 4))], class_mask=3, answers=5)
        c.put_end("PUT_COMMIT", 5)
        r = c.remove(pages(2, 4), class_mask=2)
        assert c.answers == [REMOVE_ABSENT] * 3 + [REMOVED] and r.values == 1
        assert c.get_start(6, pages(2, 4), class_mask=1).transferable_len == 256


def test_a_row_stays_when_its_page_s_values_are_removed(daemon):
    """Classes go apart. Nothing leads to the row then; it leads again when the page is put again."""
    d = daemon()
    d.namespace("x", STATE_LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        keys = pages(1, 4)
        c.put_start(1, [(None, 256, keys)], class_mask=3, answers=5)
        c.put_end("PUT_COMMIT", 1)
        assert c.get_start(1, keys).transferable_len == 256
        c.call("GET_CANCEL", handle=1)
        assert (c.remove(keys[3:], class_mask=1).values, c.answers) == (1, [REMOVED])
        assert c.get_start(2, keys).transferable_len == 0 and c.get_start(3, keys, class_mask=1).transferable_len == 192
        c.call("GET_CANCEL", handle=3)
        assert c.remove(keys[3:], class_mask=1).values == 0 and c.answers == [REMOVE_ABSENT]
        c.put_start(2, [(keys[2], 256, keys[3:])], answers=1)
        c.put_end("PUT_COMMIT", 2)
        assert c.get_start(4, keys).transferable_len == 256
        c.call("GET_CANCEL", handle=4)
        assert c.remove(keys[3:]).values == 2


def as_user(uid, gid, groups, function):
    """What function returns as another user, in a process of its own."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            os.write(writer, str(function()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as f:
        text = f.read()
    os.waitpid(pid, 0)
    return int(text)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")
def test_who_may_set_attributes(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        store(c, 1, 1)
    path = record_path(d, 1)
    os.chown(d.path("ns/x"), 4001, 4002)
    cases = [  # mode, uid, gid, groups, get, set
        (0o755, 4001, 1, [], 0, 0), (0o755, 4003, 4002, [], 0, errno.EACCES), (0o775, 4003, 1, [4002], 0, 0),
        (0o775, 4003, 1, [], 0, errno.EACCES), (0o777, 4003, 1, [], 0, 0), (0o077, 4001, 4002, [], errno.EACCES, errno.EACCES),
        (0o711, 4003, 1, [], errno.EACCES, errno.EACCES)]
    for mode, uid, gid, groups, get, put in cases:
        os.chmod(d.path("ns/x"), mode)
        time.sleep(1.1)  # the kernel may remember the mode of the record's folder for so long
        assert as_user(uid, gid, groups, lambda: errno_of(os.getxattr, path, PIN)) == get, oct(mode)
        for value in (b"1", b"0"):
            assert as_user(uid, gid, groups, lambda v=value: errno_of(os.setxattr, path, PIN, v)) == put, oct(mode)
        assert as_user(uid, gid, groups, lambda: errno_of(os.removexattr, path, PIN)) == put, oct(mode)
    # At once, though the kernel remembers: what changes something is checked with the mode of the moment.
    os.chmod(d.path("ns/x"), 0o777)
    time.sleep(1.1)
    assert as_user(4003, 1, [], lambda: errno_of(os.setxattr, path, PIN, b"0")) == 0
    os.chmod(d.path("ns/x"), 0o755)
    assert as_user(4003, 1, [], lambda: errno_of(os.setxattr, path, PIN, b"1")) == errno.EACCES
