# SPDX-License-Identifier: Apache-2.0
"""An engine that knows what it was told, for deaths of the serving process: what it must find, what it may write to, what it reads.

Its chains have two groups of pages with two values each. It names nothing that another one names."""
import errno
import os
import select
import struct
import time

from peers import value_of
from raw import COMMITTED, GROUP_ROOT, NONE64, OK, U8, Client, Group, Refused, key

SIZES = (8192, 4096)  # of the two classes
LAYOUT = {"version": 1, "identity": {"model": "test/points"}, "world": 1, "page_tokens": 64,
          "classes": [{"name": n, "kind": "dense", "planes": [{"name": n, "bytes": size}]} for n, size in zip("kv", SIZES)]}
GROUPS = (3, 2)       # pages of each
PAGES = sum(GROUPS)
KEPT = 12             # chains of one engine: older ones are removed
OPEN = 2              # put plans that it leaves open
PATTERN = b"\xee" * max(SIZES)
LOST = (errno.ESTALE, errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ECONNRESET, errno.ECONNREFUSED, errno.EPIPE, errno.ENODEV)


def is_loss(e):
    return isinstance(e, struct.error) or (isinstance(e, OSError) and e.errno in LOST)  # a welcome that was cut off


class Engine:
    def __init__(self, ctl, number, patience=20):
        self.ctl, self.number, self.patience = ctl, number, patience
        self.id = (U8 * 16)(*[number] * 16)
        self.c, self.old = None, []       # clients of before are kept: their mappings stay
        self.sessions, self.chain, self.ids = [], 0, 0
        self.there = {}                   # chain -> pages that were committed, as an answer said
        self.going = set()                # chains that are removed, perhaps
        self.plans = {}                   # put plans that have not ended, as far as answers say: id -> (chain, its slots, may be committed, session)
        self.slots = []                   # of lost put plans: (offset, bytes); written to until the session of before is settled
        self.reads = []                   # of a get plan that is kept: (offset, value)

    def next(self):
        self.ids += 1
        return self.ids

    def keys(self, chain):
        return [key(self.number, chain, i) for i in range(PAGES)]

    # ---- connections

    def attach(self):
        """Again and again, until it is welcome."""
        if self.c:
            self.old.append(self.c)
        self.c, end = None, time.monotonic() + self.patience
        while True:
            c = None
            try:
                c = Client(self.ctl, attach=False)
                c.attach(client_id=self.id)
                c.acknowledge()
                break
            except (OSError, struct.error) as e:
                if not (is_loss(e) or e.errno == errno.ENOENT) or time.monotonic() > end:
                    raise
                if c:
                    c.close()
                time.sleep(0.005)
        assert not self.old or os.fstat(c.segment_fd).st_ino == os.fstat(self.old[-1].segment_fd).st_ino, "other memory"
        self.c = c
        self.sessions.append(c.attached.session)

    def through(self, f, *arguments):
        """f(), begun again on another connection where one is lost."""
        while True:
            try:
                return f(*arguments)
            except (OSError, struct.error) as e:
                if not is_loss(e):
                    raise
            self.attach()

    # ---- what it does

    def start(self, chain):
        """Its slots, one of each class for each page. Written as they are to be."""
        plan, keys, buffer = self.next(), self.keys(chain), self.c.buffer
        self.plans[plan] = (chain, [], False, self.sessions[-1])
        for i, (first, pages) in enumerate(((0, GROUPS[0]), (GROUPS[0], GROUPS[1]))):
            g = Group(consumed=64 * (first + pages), keys=pages, class_mask=3, flags=0 if i else GROUP_ROOT)
            g.parent[:] = list(keys[first - 1] if i else bytes(32))
            buffer[64 * i:64 * (i + 1)] = bytes(g)
        buffer[1 << 20:(1 << 20) + 32 * PAGES] = b"".join(keys)
        self.c.call("PUT_START", plan=plan, groups_offset=0, keys_offset=1 << 20, answers_offset=4 << 20, status_offset=7 << 20,
                    groups=2, keys=PAGES, class_mask=3)
        status = list(struct.unpack_from("<2I", buffer, 7 << 20))
        answers = struct.unpack_from(f"<{2 * PAGES}Q", buffer, 4 << 20)
        if status != [OK, OK]:
            self.c.put_end("PUT_ABORT", plan, 2)
            del self.plans[plan]
            return None
        assert max(answers) < NONE64 - 15, answers
        slots = [(offset, SIZES[i >= PAGES]) for i, offset in enumerate(answers)]
        self.plans[plan] = (chain, slots, False, self.sessions[-1])
        for i, (offset, size) in enumerate(slots):
            self.c.segment[offset:offset + size] = value_of(keys[i % PAGES], size)
        return plan

    def commit(self, plan):
        chain, slots, _, session = self.plans[plan]
        self.plans[plan] = (chain, slots, True, session)
        self.c.put_end("PUT_COMMIT", plan, 2)
        assert self.c.put_status == [COMMITTED] * 2
        del self.plans[plan]
        self.there[chain] = PAGES

    def put(self):
        self.chain += 1
        plan = self.start(self.chain)
        if plan:
            self.commit(plan)
        return plan is not None

    def abort(self):
        self.chain += 1
        plan = self.start(self.chain)
        self.plans[plan] = (self.chain, [], False, self.sessions[-1])  # it writes no more, as it says
        self.c.put_end("PUT_ABORT", plan, 2)
        del self.plans[plan]

    def leave_open(self):
        self.chain += 1
        self.start(self.chain)

    def transfer(self, chain, pages):
        """A get plan of what is to be there: its id, and what is read where. None: it is not there."""
        handle, plan, keys = self.next(), self.next(), self.keys(chain)[:pages]
        found = self.c.get_start(handle, keys, class_mask=3)
        if found.transferable_len < 64 * pages:
            if found.handle_live:
                self.c.call("GET_CANCEL", handle=handle)
            return None, []
        assert self.c.get_transfer(handle, plan, 64 * pages, class_mask=3, deadline_ms=60000).delivered_len == 64 * pages
        assert len(self.c.offsets) == 2 * pages
        return plan, [(offset, value_of(keys[i % pages], SIZES[i >= pages])) for i, offset in enumerate(self.c.offsets)]

    def check_bytes(self, reads, c=None):
        segment = (c or self.c).segment
        for offset, value in reads:
            assert segment[offset:offset + len(value)] == value, (self.number, offset, segment[offset:offset + 64])

    def get(self, chain, pages):
        plan, reads = self.transfer(chain, pages)
        self.check_bytes(reads)
        if plan:
            self.c.release([plan])
        return plan is not None

    def remove(self, chain):
        self.going.add(chain)
        del self.there[chain]
        self.c.remove(self.keys(chain))
        self.going.discard(chain)

    def round(self):
        """A bit of everything."""
        assert self.put()
        self.abort()
        chain = max(self.there)
        assert self.get(chain, self.there[chain])
        if len(self.plans) < OPEN:
            self.leave_open()
        if not self.reads:
            _, self.reads = self.transfer(chain, PAGES)
        if len(self.there) > KEPT:
            self.remove(min(self.there))

    # ---- after a death

    def outcomes(self):
        """What became of the plans that were lost: groups that were committed, by plan."""
        ret = {}
        for plan in self.plans:
            ret[plan] = 0
            try:
                self.c.put_end("PUT_COMMIT", plan, 2)
                raise AssertionError("a plan of before was committed")
            except Refused as e:
                assert e.errno in (errno.EALREADY, errno.ENOENT) or is_loss(e), e
                if is_loss(e):
                    raise
                if e.errno == errno.EALREADY:
                    status = struct.unpack_from("<2I", self.c.buffer, 7 << 20)
                    ret[plan] = sum(s == COMMITTED for s in status)
                    assert status[0] == COMMITTED or ret[plan] == 0  # published in this order
        return ret

    def look(self):
        """What was committed is there, what was not is not, and what is asked about says which."""
        for chain, pages in self.there.items():
            assert self.get(chain, pages), (self.number, chain)
        for plan, groups in self.outcomes().items():
            chain, _, may_be, _ = self.plans[plan]
            assert may_be or not groups
            pages = sum(GROUPS[:groups])
            assert self.c.probe(self.keys(chain)).prefix == pages, (self.number, plan, groups)
            assert not pages or self.get(chain, pages)
        for chain in self.going:
            self.get(chain, PAGES)  # there or not, whole or not

    def abort_live(self):
        for plan, (_, _, _, session) in list(self.plans.items()):
            if session == self.sessions[-1]:
                self.c.put_end("PUT_ABORT", plan, 2)
                del self.plans[plan]

    def take_stock(self):
        """What was lost is written to from now on."""
        self.through(self.abort_live)
        self.through(self.look)
        outcomes = self.through(self.outcomes)
        for plan, (chain, slots, _, _) in self.plans.items():
            done = sum(GROUPS[:outcomes[plan]])
            if done:
                self.there[chain] = done
            self.slots += [s for i, s in enumerate(slots) if i % PAGES >= done]
        self.plans = {}
        self.going = set()

    def scribble(self):
        """As an engine that has not heard of the death yet, or whose GPU is still at it."""
        for offset, size in self.slots:
            self.c.segment[offset:offset + size] = PATTERN[:size]
        self.check_bytes(self.reads)

    def settle(self):
        """All that sessions of before held has ended."""
        self.slots, self.reads = [], []
        self.through(self.settle_all)

    def settle_all(self):
        for session in self.sessions[:-1]:
            try:
                self.c.call("SETTLE", session=session)
            except Refused as e:
                if e.errno != errno.ENOENT:
                    raise

    def close(self):
        for c in self.old + [self.c]:
            if c:
                c.close()
        self.old, self.c = [], None


def engine(peer, ctl, number, most):
    """In a process of its own: rounds until it is told something else, in haste until so many were made."""
    e = Engine(ctl, number)
    e.attach()
    rounds = 0
    while not select.select([peer.ear], [], [], 0.005 if rounds > most else 0)[0]:
        try:
            e.round()
            rounds += 1
        except (OSError, struct.error) as error:
            if not is_loss(error):
                raise
            e.attach()
            e.take_stock()
        if rounds == most:
            peer.tell("loaded")
    while what := peer.listen():
        e.through(getattr(e, what))
        peer.tell([what, len(e.there), len(e.slots), len(e.reads), e.sessions])
