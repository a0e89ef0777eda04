# SPDX-License-Identifier: Apache-2.0
"""Ranks of one request, each a process, under one ticket: they are answered alike, whichever of them is killed, and when."""
import errno
import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mounted import wait_for
from peers import transient
from raw import (COMMITTED, CONFIRM_FAILED, GROUP_ROW_ONLY, NONBLOCK, NONE64, NOPAGES, OK, RANK_NONE, U8, Candidate, Client, Refused,
                 errno_of, key, ticket)

WORLD, PAGES = 3, 10
END = 64 * PAGES
SIZES = (8192, 5000)
LAYOUT = {"version": 1, "identity": {"model": "test/ranks"}, "world": WORLD, "page_tokens": 64,
          "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": SIZES[0]}]},
                      {"name": "st", "kind": "state", "planes": [{"name": "S", "bytes": SIZES[1]}]}]}
DENSE = {**LAYOUT, "classes": LAYOUT["classes"][:1]}
KEYS = [key(i) for i in range(PAGES)]
OTHERS = [key(500, i) for i in range(4)]
SHORT = 500  # ms
PROMPT = 5   # s: of what is to come at once


def value(k, rank, size):
    word = hashlib.blake2b(k + bytes([rank]), digest_size=32).digest()
    return (word * (size // 32 + 1))[:size]


class Rank:
    """What a rank does, in its own process."""

    def __init__(self, ctl, rank, states):
        self.c, self.rank, self.states = Client(ctl, rank=rank), rank, states
        self.c.acknowledge()

    def put(self, plan):
        mask = 3 if self.states else 1
        self.c.put_start(plan, [(None, END, KEYS)], mask, answers=PAGES + self.states)
        assert self.c.put_status == [OK], self.c.put_status
        for i, offset in enumerate(self.c.put_answers):
            if offset < NONE64 - 15:
                v = value(KEYS[min(i, PAGES - 1)], self.rank, SIZES[i >= PAGES])
                self.c.segment[offset:offset + len(v)] = v
        self.c.put_end("PUT_COMMIT", plan)
        return "put"

    def begin_put(self, plan, number, **fields):
        """Under a ticket, of OTHERS and their row: how many values it got room for."""
        r = self.c.put_start(plan, [(None, 64 * len(OTHERS), OTHERS)], 3, answers=len(OTHERS) + 1, ticket=ticket(number), **fields)
        return [self.c.put_status[0], r.new_values]

    def commit_put(self, plan):
        self.c.put_end("PUT_COMMIT", plan)
        return self.c.put_status[0]

    def start(self, handle, number, keys=PAGES, **fields):
        r = self.c.get_start(handle, KEYS[:keys], ticket=ticket(number), **fields)
        return [r.raw_prefix_hit_len, r.transferable_len, r.hits, r.handle_live]

    def transfer(self, handle, plan, start=0, to=END, **fields):
        """Until where it was delivered, whether the handle has ended, and whether all bytes are this rank's."""
        r = self.c.get_transfer(handle, plan, END, start, to, **fields)
        first, end = start // 64, r.delivered_len // 64
        pages = self.c.offsets[:end - first]
        good = all(self.c.segment[at:at + SIZES[0]] == value(KEYS[first + i], self.rank, SIZES[0]) for i, at in enumerate(pages))
        if self.states and r.delivered_len == END:
            at = self.c.offsets[-1]
            good = good and self.c.segment[at:at + SIZES[1]] == value(KEYS[-1], self.rank, SIZES[1])
        return [r.delivered_len, r.handle_ended, good]

    def into(self, handle, start=0, to=END, **fields):
        memory = os.memfd_create("pool")
        os.posix_fallocate(memory, 0, (PAGES + 1) * SIZES[0])
        number = self.c.seq + 1
        self.c.import_file(number, memory)
        r = self.c.get_into(handle, number, END, start, to, stride=SIZES[0], state_base=PAGES * SIZES[0], **fields)
        data = os.pread(memory, (PAGES + 1) * SIZES[0], 0)
        first, end = start // 64, r.delivered_len // 64
        good = all(data[i * SIZES[0]:(i + 1) * SIZES[0]] == value(KEYS[first + i], self.rank, SIZES[0]) for i in range(end - first))
        os.close(memory)
        return [r.delivered_len, r.handle_ended, good]

    def confirm(self, number, flags=0, **fields):
        return self.c.call("GET_CONFIRM", ticket=ticket(number), flags=flags, **fields).restored

    def cancel(self, handle):
        self.c.call("GET_CANCEL", handle=handle)

    def release(self, plans):
        return self.c.release(plans).released


def rank_process(peer, ctl, rank, states):
    r = Rank(ctl, rank, states)
    peer.tell("here")
    while line := peer.listen():
        name, arguments, fields = json.loads(line)
        try:
            peer.tell(getattr(r, name)(*arguments, **fields))
        except Refused as e:
            peer.tell([e.errno, e.text])


class World:
    def __init__(self, daemon, peer, layout, *options):
        self.d = daemon(*options)
        self.d.namespace(layout=layout)
        states = layout is LAYOUT
        self.ranks = [peer(rank_process, self.d.path("ns/x/ctl"), i, states) for i in range(WORLD)]
        for p in self.ranks:
            assert p.hear() == "here"
        self.scheduler = Client(self.d.path("ns/x/ctl"), rank=RANK_NONE)
        assert self.all("put", 1) == ["put"] * WORLD

    def begin(self, i, name, *arguments, **fields):
        self.ranks[i].say(json.dumps([name, arguments, fields]))

    def end(self, i):
        return self.ranks[i].hear()

    def one(self, i, name, *arguments, **fields):
        self.begin(i, name, *arguments, **fields)
        return self.end(i)

    def all(self, name, *arguments, ranks=range(WORLD), **fields):
        for i in ranks:
            self.begin(i, name, *arguments, **fields)
        return [self.end(i) for i in ranks]

    def waiting(self, n):
        wait_for(lambda: int(self.scheduler.stats()["waiting"]) == n, 30, f"{n} waiting")

    def kill(self, i):
        self.ranks[i].kill()
        assert self.ranks[i].wait() == -9

    def settled(self, sessions, **counters):
        """Nothing is left of tickets, and of what there was this many."""
        def base():
            stats = self.scheduler.stats()
            left = {**transient(stats), **{name: int(stats[name]) for name in ("tickets", "ticket_pins", "ticket_slots") if int(stats[name])}}
            left.pop("groups_open", None)  # of the puts: these clients acknowledge nothing
            assert left == {"sessions": sessions} or time.monotonic() < end, left
            return left == {"sessions": sessions} and stats
        end = time.monotonic() + PROMPT
        stats = wait_for(base, 2 * PROMPT, "the end of all that was under way")
        for name, n in counters.items():
            assert int(stats[name]) == n, (name, stats[name])


@pytest.fixture
def world(daemon, peer):
    return World(daemon, peer, LAYOUT)


@pytest.fixture
def dense_world(daemon, peer):
    return World(daemon, peer, DENSE)


FOUND = [END, END, PAGES, 1]


def test_all_ranks_restore(world):
    r = world.scheduler.get_start(1, KEYS, ticket=ticket(7))
    assert (r.transferable_len, r.handle_live) == (END, 1)
    assert world.all("start", 1, 7) == [FOUND] * WORLD
    assert int(world.scheduler.stats()["ticket_pins"]) == 2  # the record's, and its row's
    assert world.all("transfer", 1, 2, 0, 320) == [[320, 0, True]] * WORLD
    assert world.all("transfer", 1, 3, 320) == [[END, 1, True]] * WORLD
    assert world.all("confirm", 7) == [END] * WORLD
    assert world.all("confirm", 7) == [END] * WORLD  # as often as they like
    assert world.all("release", [2, 3]) == [2] * WORLD
    world.scheduler.call("GET_CANCEL", handle=1)
    assert world.all("start", 4, 7) == [[0, 0, 0, 0]] * WORLD  # it is over
    world.settled(WORLD + 1, tickets_restored=1, tickets_failed=0, tickets_joined=WORLD)


def test_straight_into_memory(world):
    assert world.all("start", 1, 7, flags=2) == [FOUND] * WORLD
    assert world.all("into", 1, 0, 320) == [[320, 0, True]] * WORLD
    assert world.all("into", 1, 320) == [[END, 1, True]] * WORLD
    assert world.all("confirm", 7) == [END] * WORLD
    world.settled(WORLD + 1, tickets_restored=1)


def seconds(f):
    begin = time.monotonic()
    value_of_f = f()
    return value_of_f, time.monotonic() - begin


STEPS = ["before", "started", "waits_to_deliver", "others_wait_to_deliver", "delivered", "waits_to_confirm", "others_wait_to_confirm",
         "restored"]


@pytest.mark.parametrize("step", STEPS)
def test_a_rank_is_killed(world, step):
    victim, others = WORLD - 1, range(WORLD - 1)
    here = others if step == "before" else range(WORLD)
    if step == "before":
        world.kill(victim)
    assert world.all("start", 1, 7, ranks=here) == [FOUND] * len(here)
    if step == "started":
        world.kill(victim)
    if step == "waits_to_deliver":
        world.begin(victim, "transfer", 1, 2)
        world.waiting(1)
        world.kill(victim)
    if step == "others_wait_to_deliver":
        for i in others:
            world.begin(i, "transfer", 1, 2)
        world.waiting(len(others))
        world.kill(victim)
        assert [world.end(i) for i in others] == [[0, 1, True]] * len(others)
    elif step in STEPS[:3]:
        answers, took = seconds(lambda: world.all("transfer", 1, 2, ranks=others, deadline_ms=SHORT if step == "before" else 0))
        assert answers == [[0, 1, True]] * len(others) and took < PROMPT
    else:
        assert world.all("transfer", 1, 2) == [[END, 1, True]] * WORLD
    if step == "delivered":
        world.kill(victim)
    if step == "waits_to_confirm":
        world.begin(victim, "confirm", 7)
        world.waiting(1)
        world.kill(victim)
    if step == "others_wait_to_confirm":
        for i in others:
            world.begin(i, "confirm", 7)
        world.waiting(len(others))
        world.kill(victim)
        assert [world.end(i) for i in others] == [0] * len(others)
    if step == "restored":
        assert world.all("confirm", 7) == [END] * WORLD
        world.kill(victim)
    whole = step == "restored"
    answers, took = seconds(lambda: world.all("confirm", 7, ranks=others))
    assert answers == [END * whole] * len(others) and took < PROMPT
    if step in STEPS[4:]:
        assert world.all("release", [2], ranks=others) == [1] * len(others)
    world.settled(WORLD, tickets_restored=int(whole), tickets_failed=int(not whole))


def test_what_one_rank_does_ends_it_for_all(world):
    assert world.all("start", 1, 7) == [FOUND] * WORLD
    world.one(1, "cancel", 1)
    assert world.all("transfer", 1, 2, ranks=[0, 2]) == [[0, 1, True]] * 2
    assert world.all("confirm", 7) == [0] * WORLD

    assert world.all("start", 2, 8) == [FOUND] * WORLD
    assert world.all("transfer", 2, 3) == [[END, 1, True]] * WORLD
    world.begin(0, "confirm", 8)
    world.waiting(1)
    assert world.one(1, "confirm", 8, CONFIRM_FAILED) == 0
    assert world.end(0) == 0
    assert world.one(2, "confirm", 8) == 0
    assert world.all("release", [3]) == [1] * WORLD
    world.settled(WORLD + 1, tickets_failed=2)


def test_deadlines_and_nonblock(world):
    assert world.all("start", 1, 7) == [FOUND] * WORLD
    assert world.one(0, "transfer", 1, 2, call_flags=NONBLOCK)[0] == errno.EAGAIN
    assert world.all("transfer", 1, 3) == [[END, 1, True]] * WORLD
    assert world.one(0, "confirm", 7, call_flags=NONBLOCK)[0] == errno.EAGAIN  # the report stands
    assert world.one(1, "confirm", 7, call_flags=NONBLOCK)[0] == errno.EAGAIN
    assert world.one(2, "confirm", 7) == END
    assert world.all("confirm", 7, call_flags=NONBLOCK) == [END] * WORLD

    assert world.all("start", 2, 8) == [FOUND] * WORLD
    assert world.all("transfer", 2, 4) == [[END, 1, True]] * WORLD
    answer, took = seconds(lambda: world.one(0, "confirm", 8, deadline_ms=SHORT))
    assert answer == 0 and SHORT / 1000 <= took < PROMPT
    assert world.all("confirm", 8, ranks=[1, 2]) == [0, 0]
    assert world.all("release", [3, 4]) == [2] * WORLD
    world.settled(WORLD + 1, tickets_restored=1, tickets_failed=1, tickets_late=1)


def test_part_is_restored_where_all_is_dense(dense_world):
    w = dense_world
    assert w.all("start", 1, 7) == [FOUND] * WORLD
    assert w.all("transfer", 1, 2, 0, 448) == [[448, 0, True]] * WORLD
    assert w.all("confirm", 7) == [448] * WORLD
    assert w.all("release", [2]) == [1] * WORLD
    w.all("cancel", 1)  # their handles are over with the ticket, and still theirs
    w.settled(WORLD + 1, tickets_restored=1)


@pytest.mark.parametrize("fields,word", [({"keys": PAGES - 1}, "number of keys"), ({"limit": 320}, "limit"), ({"have": 64}, "have"),
                                         ({"class_mask": 1}, "class mask"), ({"prompt_len": 900}, "prompt_len"),
                                         ({"room": 3}, "room"), ({"start": 64}, "start")])
def test_another_question_is_refused(world, fields, word):
    assert world.one(0, "start", 1, 7) == FOUND
    error, text = world.one(1, "start", 1, 7, **fields)
    assert error == errno.EINVAL and "ticket" in text and word in text
    assert world.one(1, "start", 2, 7) == FOUND  # nothing came of it
    error, text = world.one(1, "start", 3, 7)
    assert error == errno.EEXIST and "rank 1" in text


def test_bad_confirms(world):
    assert world.one(0, "confirm", 0)[0] == errno.EINVAL
    assert world.one(0, "confirm", 7)[0] == errno.ENOENT
    assert world.one(0, "confirm", 7, 2)[0] == errno.EINVAL
    assert world.one(0, "start", 1, 7) == FOUND
    assert world.one(1, "confirm", 7)[0] == errno.EPERM
    with pytest.raises(Refused) as e:
        world.scheduler.call("GET_CONFIRM", ticket=ticket(7))
    assert e.value.errno == errno.EPERM
    with pytest.raises(Refused) as e:
        world.scheduler.call("GET_CONFIRM", ticket=ticket(7), reserved=1)
    assert e.value.errno == errno.EINVAL and "reserved" in e.value.text


def test_ranges_must_be_the_same(world):
    assert world.all("start", 1, 7) == [FOUND] * WORLD
    world.begin(0, "transfer", 1, 2, 0, 320)
    world.waiting(1)
    error, text = world.one(1, "transfer", 1, 2, 0, 384)
    assert error == errno.EINVAL and "ticket: to: it is 384 here and 320" in text
    assert world.all("transfer", 1, 2, 0, 320, ranks=[1, 2]) == [[320, 0, True]] * 2
    assert world.end(0) == [320, 0, True]
    error, text = world.one(0, "transfer", 1, 3, 320, candidate=1)
    assert error == errno.EINVAL and "candidate" in text


# ---- put tickets, candidates, rows ---------------------------------------------------------------------------------------


def test_room_for_all_ranks(world):
    keys = [key(100, i) for i in range(4)]
    clients = [Client(world.d.path("ns/x/ctl"), rank=i) for i in range(WORLD)]
    for c in clients:
        c.acknowledge()
    for i, c in enumerate(clients):
        c.put_start(5, [(None, 256, keys)], 3, answers=5, ticket=ticket(3))
        assert c.put_status == [OK] and max(c.put_answers) < NONE64 - 15
        assert int(c.stats()["ticket_slots"]) == (WORLD - 1 - i) * 5
    with pytest.raises(Refused) as e:
        clients[0].put_start(6, [(None, 256, keys)], 3, answers=5, ticket=ticket(4))
        clients[0].put_start(7, [(None, 256, keys)], 3, answers=5, ticket=ticket(4))
    assert e.value.errno == errno.EEXIST
    with pytest.raises(Refused) as e:
        clients[1].put_start(7, [(None, 192, keys[:3])], 3, answers=4, ticket=ticket(4))
    assert e.value.errno == errno.EINVAL and "groups, keys or masks" in e.value.text
    for c in reversed(clients):
        c.put_end("PUT_COMMIT", 5)
        assert c.put_status == [COMMITTED]
    r = clients[0].get_start(9, keys)
    assert r.transferable_len == 256
    clients[0].call("GET_CANCEL", handle=9)
    for c in clients:
        c.close()


@pytest.mark.parametrize("step", ["before", "first_has_begun", "last_has_begun", "one_has_committed", "all_have_committed"])
def test_a_rank_that_puts_is_killed(daemon, peer, tmp_path, step):
    """Who does not come takes with it, at the ticket's deadline, what the others have committed; who came, after fill_ttl. No slot is lost."""
    (tmp_path / "config").write_text(json.dumps({} if step == "before" else {"fill_ttl_ms": 1500}))  # a minute without it
    world = World(daemon, peer, LAYOUT, "--config", str(tmp_path / "config"))
    scheduler, each = world.scheduler, len(OTHERS) + 1
    free = int(scheduler.stats()["slots_free"])
    victim = 0 if step == "first_has_begun" else WORLD - 1
    others = [i for i in range(WORLD) if i != victim]
    if step == "before":
        world.kill(victim)
    for i in [victim] * (step == "first_has_begun") + others + [victim] * (step not in ("before", "first_has_begun")):
        assert world.one(i, "begin_put", 5, 3, deadline_ms=SHORT if step == "before" else 60000) == [OK, each]
        if i == victim == 0:
            world.kill(victim)
    if step == "last_has_begun":
        world.kill(victim)
    if step == "one_has_committed":
        assert world.one(others[0], "commit_put", 5) == COMMITTED
        world.kill(victim)
    if step == "all_have_committed":
        assert world.one(victim, "commit_put", 5) == COMMITTED
        world.kill(victim)
    for i in others[step == "one_has_committed":]:
        assert world.one(i, "commit_put", 5) == COMMITTED
    whole = step == "all_have_committed"
    kept = (WORLD if whole else 0) * each
    wait_for(lambda: int(scheduler.stats()["slots_free"]) == free - kept, 10, "what is half there to go")
    world.settled(WORLD, put_tickets=1, put_tickets_short=int(step == "before"), values_abandoned=0 if whole else len(others) * each)
    assert scheduler.get_start(9, OTHERS).transferable_len == 64 * len(OTHERS) * whole


def test_rows_need_their_page(world):
    for i in range(WORLD):
        with Client(world.d.path("ns/x/ctl"), rank=i) as c:
            c.acknowledge()
            c.put_start(5, [(key(200), 128, [key(201)], {"flags": GROUP_ROW_ONLY, "class_mask": 2})], 2, answers=1)
            assert c.put_status == [NOPAGES] and c.put_answers == [NONE64]


def test_an_endpoint_within_a_page(world):
    """A state at 700 tokens, which ten pages and part of the next lead to."""
    clients = [Client(world.d.path("ns/x/ctl"), rank=i) for i in range(WORLD)]
    inner = key(300)
    for i, c in enumerate(clients):
        c.acknowledge()
        c.put_start(5, [(KEYS[-1], 700, [inner], {"flags": GROUP_ROW_ONLY, "class_mask": 2})], 2, answers=1)
        assert c.put_status == [OK]
        v = value(inner, i, SIZES[1])
        c.segment[c.put_answers[0]:c.put_answers[0] + len(v)] = v
        c.put_end("PUT_COMMIT", 5)
    c = clients[1]
    r = c.get_start(9, KEYS, candidates_offset=2 << 20, candidates_capacity=16, wanted_offset=3 << 20, wanted_capacity=16)
    assert (r.transferable_len, r.candidates, r.dense_len, r.interval) == (END, 1, END, 8192)
    found = Candidate.from_buffer_copy(c.buffer[2 << 20:(2 << 20) + 48])
    assert (bytes(found.key), found.consumed, found.bytes) == (inner, 700, PAGES * SIZES[0] + SIZES[1])
    for fields, word in (({"candidate": 2}, "candidate"), ({"candidate": 1, "boundary": END}, "boundary"), ({"candidate": 1, "start": END}, "from")):
        with pytest.raises(Refused) as e:
            c.get_transfer(9, 10, **{"boundary": 700, **fields})
        assert e.value.errno == errno.EINVAL and word in e.value.text
    r = c.get_transfer(9, 10, 700, 0, 320, candidate=1)
    assert (r.delivered_len, r.values, r.handle_ended) == (320, 5, 0)
    r = c.get_transfer(9, 11, 700, 320, candidate=1)
    assert (r.delivered_len, r.values, r.handle_ended) == (700, 6, 1)
    at = c.offsets[5]
    assert c.segment[at:at + SIZES[1]] == value(inner, 1, SIZES[1])
    c.release([10, 11])
    for c in clients:
        c.close()


# ---- the daemon dies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["ticket_decided:1", "ticket_range:1", "ticket_outcome:1", "put_kept:5"])
def test_the_daemon_is_killed(daemon, rule):
    """Its successor knows no ticket: what was not told is a miss, and no slot is lost."""
    d = daemon("--deaths=1000", f"--crash-at={rule}")
    if "after a death: the mount stays" not in d.read("health"):
        pytest.skip("this kernel does not send requests again: Linux 6.9 does")
    d.namespace(layout=DENSE)
    ctl = d.path("ns/x/ctl")
    keys = [key(400, i) for i in range(4)]

    def attach():
        clients = [Client(ctl, rank=i, client_id=(U8 * 16)(*[i + 1] * 16)) for i in range(WORLD)]
        for c in clients:
            c.acknowledge()
        return clients

    clients = attach()
    free = d.stats()["slots_free"]

    def work(number):
        for c in clients:
            c.put_start(number, [(None, 256, keys)], ticket=ticket(number))
            assert c.put_status == [OK]
        for c in clients:
            c.put_end("PUT_COMMIT", number)
        for c in clients:
            assert c.get_start(number, keys, ticket=ticket(number)).transferable_len == 256
        with ThreadPoolExecutor(WORLD) as pool:
            assert [r.delivered_len for r in pool.map(lambda c: c.get_transfer(number, 1000 + number, 256), clients)] == [256] * WORLD
        with ThreadPoolExecutor(WORLD) as pool:
            done = pool.map(lambda c: c.call("GET_CONFIRM", ticket=ticket(number)).restored, clients)
            assert list(done) == [256] * WORLD

    with pytest.raises((OSError, Refused)):
        work(1)
    wait_for(lambda: f"killed at {rule.split(':')[0]}" in d.log(), 30, "the death")
    for c in clients:
        c.close()
    before = [c.attached.session for c in clients]
    clients = wait_for(lambda: again(attach), 30, "the successor")
    for c, session in zip(clients, before):
        errno_of(c.call, "SETTLE", session=session)  # some of them held nothing
    with pytest.raises(Refused) as e:
        clients[0].call("GET_CONFIRM", ticket=ticket(1))
    assert e.value.errno == errno.ENOENT
    work(2)
    for c in clients:
        c.release([1002])
    for c in clients:
        c.buffer[1 << 20:(1 << 20) + 128] = b"".join(keys)
        c.call("REMOVE", keys_offset=1 << 20, keys=4, answers_offset=NONE64)
    for c in clients:
        c.close()
    wait_for(lambda: transient(d.stats()) == {}, PROMPT, "the end of all")
    assert d.stats()["slots_free"] == free


def again(attach):
    try:
        return attach()
    except OSError:
        return None
