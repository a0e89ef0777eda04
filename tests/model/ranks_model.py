#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain model of docs/ranks-and-classes.md: what each request must be answered, whatever the daemon does inside.

tests/model/ranks_model.py [--operations N] [--seed S] [--emit] [--deaths]   random work that checks itself; --emit: one JSON list a step,
                                                                             operation and answer, for who drives a daemon; --deaths: the
                                                                             serving process dies now and then, and another adopts

Integers only. Every page is a put group and so a record of its own: what pins a page pins its row. Nothing leaves for lack of room:
losses are operations. A key is a node of a prefix tree, or (node, tokens) of an endpoint inside the page behind it.
"""
import argparse
import json
import random
import sys
from itertools import count

DENSE, WINDOW, STATE = "dense", "window", "state"
COUNTERS = "requests dense hit checkpoint unrecoverable recorded repeated acted kept dropped evicted"

class Class:
    def __init__(self, kind, share_of_rank, every=1, sink=0, last=0, slot=4096):
        self.kind, self.map, self.every, self.sink, self.last, self.slot = kind, share_of_rank, every, sink, last, slot
        self.shares = max(share_of_rank) + 1
        assert set(share_of_rank) == set(range(self.shares)), "a share without a rank"

class Cache:
    """Pages of `page` tokens; a path is a list of nodes, whose i-th ends at (i + 1) * page."""
    def __init__(self, page, classes, interval=8192, fill_ttl=60):
        self.page, self.classes, self.fill_ttl, self.now, self.world = page, classes, fill_ttl, 0, len(classes[0].map)
        self.interval, self.all = -(-interval // page) * page, range(len(classes))
        self.named, self.parent, self.children = set(), {}, {}  # keys that were committed; the tree that nodes are of
        self.maker = {}  # key -> the plan that named it: it is being filled until that one ends
        self.values, self.pins, self.plans, self.noted, self.again = {}, {}, {}, {}, set()
        self.gone = {}  # key -> how many records of that name have gone: a pin is of the one that was there
        self.inner, self.demands = {}, {}  # node -> {key: tokens at it}; key -> its state
        self.count = dict.fromkeys(COUNTERS.split(), 0)

    # ---- what is there: a value is True (committed) or the plan that writes it
    def of(self, key, mask):
        return [v for v in ((key, c, s) for c in mask for s in range(self.classes[c].shares)) if v in self.values]
    def there(self, key, c):
        return all(self.values.get((key, c, s)) is True for s in range(self.classes[c].shares))
    def half(self, key, c):
        return not self.there(key, c) and self.live(key, [c])
    def live(self, key, mask):
        return any(self.values[v] is True for v in self.of(key, mask))
    def kinds(self, mask, *kinds):
        return [c for c in mask if self.classes[c].kind in kinds]
    def row(self, key, mask):
        states = self.kinds(mask, STATE)
        return bool(states) and all(self.there(key, c) for c in states)
    def due(self, c, tokens):
        return tokens % (self.classes[c].every * self.page) == 0
    def needs(self, mask, tokens):
        """Classes that the page which ends there needs whatever comes behind it."""
        return [c for c in self.kinds(mask, DENSE, WINDOW) if self.due(c, tokens) and (self.classes[c].kind == DENSE or
                tokens // (self.classes[c].every * self.page) <= self.classes[c].sink)]
    def ends(self, path):
        return zip(count(self.page, self.page), path)

    # ---- the gates, straight from their table, and to a fixpoint
    def gate(self, c, path, have, b):
        k, each = self.classes[c], self.classes[c].every * self.page
        return self.there(path[b // self.page - 1], c) if k.kind == STATE else b % each == 0 and all(self.there(path[v * k.every - 1], c) for v in range(1, b // each + 1) if v * each > have and
                                     (k.kind == DENSE or v <= k.sink or v > b // each - k.last))
    def fixpoint(self, mask, path, have, b):
        before = None
        while b > have and b != before:
            before = b
            for c in mask:
                while b > have and not self.gate(c, path, have, b):
                    b -= self.page
        return max(b, have)

    def one_pass(self, mask, path, have):
        """(boundary, all gates, all but states, dense run) for each, with counters, as the daemon does it."""
        run, intact = dict.fromkeys(self.kinds(mask, WINDOW), 0), True
        for b, key in self.ends(path):
            intact = intact and (b <= have or all(self.there(key, c) for c in self.needs(mask, b)))
            ok = intact and all(self.due(c, b) for c in self.kinds(mask, DENSE, WINDOW))
            for c in [c for c in run if self.due(c, b)]:
                run[c] = run[c] + 1 if b <= have or self.there(key, c) else 0
                ok = ok and run[c] >= min(self.classes[c].last, b // (self.classes[c].every * self.page))
            if b > have:
                yield b, ok and (not self.kinds(mask, STATE) or self.row(key, mask)), ok, intact

    def get(self, path, have=0, limit=0, mask=None, prompt=0, room=0):
        """What GET_START answers, and the keys that it pins."""
        mask, end, have = self.all if mask is None else mask, len(path) * self.page, have // self.page * self.page
        prompt, most, seen = prompt or end, limit or end, list(self.one_pass(mask, path, have))
        restorable = [b for b, ok, _, _ in seen if ok and b <= most]
        hit = max(restorable, default=have)
        would = max([b for b, _, ok, _ in seen if ok and b <= min(most, prompt - room)] + [hit])
        dense = max([b for b, _, _, ok in seen if ok and b <= most and self.kinds(mask, DENSE)] + [would])
        wants = self.kinds(mask, STATE) and self.interval
        demand = would if wants and would > hit else 0
        self.note((1, dense - have, hit - have, would - hit, dense - would), demand and path[demand // self.page - 1])
        for b, ok, _, _ in seen:  # first principles say the same
            assert ok == all(self.gate(c, path, have, b) for c in mask), (b, ok)
        assert hit == self.fixpoint(mask, path, have, min(most, end) // self.page * self.page)
        return {"restorable": restorable, "hit": hit, "demand": demand, "dense": dense,
                "hits": [all(self.there(key, c) for c in self.needs(mask, b) or [c for c in self.kinds(mask, WINDOW) if self.due(c, b)])
                         for b, key in self.ends(path)],
                "wanted": [b for b, key in self.ends(path) if wants and hit < b <= prompt - room and
                           (b % self.interval == 0 or key in self.demands) and not self.row(key, mask)],
                "candidates": [key for _, key in sorted(((-tokens, key) for b, _, ok, _ in seen if ok
                               for key, tokens in self.inner.get(path[b // self.page - 1], {}).items()
                               if hit < tokens and (not limit or tokens <= limit) and self.row(key, mask)), key=lambda c: (c[0], repr(c[1])))][:16]}, \
            [self.now_at(key) for b, key in self.ends(path) if have < b <= hit]

    # ---- the funnel
    def note(self, counts, demanded):
        assert counts[1] == sum(counts[2:]) and min(counts) >= 0
        for name, more in zip(COUNTERS.split(), counts):
            self.count[name] += more
        if demanded:
            self.count["repeated" if demanded in self.demands else "recorded"] += 1
            self.demands.setdefault(demanded, "open")
    def demand_is(self, key, state):
        was = self.demands.get(key)
        if was and (was, state) not in (("taking", "taking"), ("kept", "taking"), ("kept", "kept"), ("open", "dropped")):
            state = "evicted" if (was, state) == ("kept", "dropped") else state
            self.count[{"taking": "acted"}.get(state, state)] += 1
            self.demands.pop(key) if state in ("dropped", "evicted") else self.demands.update({key: state})
    def review(self, key):
        """Values of a row came or went."""
        if self.row(key, self.all):
            self.demand_is(key, "kept")
        elif self.demands.get(key) == "kept" or not self.of(key, self.kinds(self.all, STATE)):
            self.demand_is(key, "dropped")

    # ---- putting, removing, time
    def put_start(self, plan, rank, groups):
        """groups: (key, tokens at it, classes): a page, a page with its row, or with states alone a row."""
        new, pins, answers = [], [], []
        for key, tokens, mask in groups:
            pages, of = self.kinds(mask, DENSE, WINDOW), {}
            if not pages and tokens % self.page == 0 and not self.of(key, self.kinds(self.all, DENSE, WINDOW)):
                answers.append("NOPAGES")
                continue
            paged = any(self.due(c, tokens) for c in self.kinds(self.all, DENSE, WINDOW))
            records = {self.home(key, c) for c in mask if self.classes[c].kind == STATE or paged}
            live = any(m in self.named and self.maker.get(m) not in self.plans for m in records)
            for c in mask:
                v = (key, c, self.classes[c].map[rank])
                now = self.values.get(v)
                of[c] = ("NONE" if c in pages and not self.due(c, tokens) else "EXISTS" if now is True else
                         "NEW" if now is None else "DUPLICATE" if now == plan else "INFLIGHT")
                if of[c] == "NEW":
                    self.make(plan, key, c in pages)
                    self.values[v] = plan
                    new.append(v)
                    self.demand_is(None if c in pages else key, "taking")
                    self.inner.setdefault(key[0], {}).update({key: tokens}) if tokens % self.page else None
            pins += [self.now_at(key)] if live else []  # of the whole record that it names
            answers.append(of)
        self.plans[plan] = (new, pins)
        self.pin(pins, 1)
        return answers

    def put_end(self, plan, commit):
        new, pins = self.plans.pop(plan)
        for v in new:
            assert self.values.pop(v) == plan
            self.values.update({v: True} if commit else {})
            self.named |= {self.home(v[0], v[1])} if commit else set()
        for key in sorted({v[0] for v in new}, key=repr):
            if commit and any(self.half(key, v[1]) for v in new if v[0] == key):
                due = self.noted.setdefault(key, self.now + self.fill_ttl)
                self.again |= {key} if due < self.now + self.fill_ttl else set()  # in a later second
            self.review(key)
            self.left(key)
        self.pin(pins, -1)
    def now_at(self, key):
        return key, self.gone.get(key, 0)
    def pin(self, records, by):
        for key, which in records:
            self.pins[key, which] = self.pins.get((key, which), 0) + by
            assert self.pins[key, which] >= 0
            if which < self.gone.get(key, 0) and not self.pins[key, which]:  # it has no name, but hung off another until now
                self.left(key[0] if isinstance(key, tuple) else self.parent.get(key))
    def lingers(self, key):
        return any(self.pins.get((key, which)) for which in range(self.gone.get(key, 0)))
    def home(self, key, c):
        """The record of the values of class @c at @key, by a name."""
        return ("row", key) if self.classes[c].kind == STATE and ("row", key) in self.maker else key
    def make(self, plan, key, page):
        """A value of @key is begun: of a record that is there, or of one that this plan makes; a row without a page has its own."""
        none = not self.of(key, self.kinds(self.all, DENSE, WINDOW)) and key not in self.named
        if page and none:
            self.maker[key] = plan
        elif not page and not self.of(key, self.kinds(self.all, STATE)):
            self.maker.pop(("row", key), None)
            self.maker.update({("row", key): None if ("row", key) in self.named else plan} if none else {})
    def left(self, key):
        """A key without values keeps its name while something hangs off it."""
        hang = lambda key: any(c in self.named or self.of(c, self.all) or self.lingers(c)
                               for c in [*self.children.get(key, ()), *self.inner.get(key, ())])
        if key and not self.of(key, self.kinds(self.all, STATE)) and (key in self.named or not hang(key)):
            self.named.discard(("row", key))
        while key and not self.of(key, self.all) and not hang(key):
            self.named.discard(key)
            self.gone[key] = self.gone.get(key, 0) + 1
            key = key[0] if isinstance(key, tuple) else self.parent.get(key)
    def leaned_on(self, plan):
        """Others have put values to pages that it named. Would it give them up, their rows and pages parted: records of their own."""
        return any(plan in (self.maker.get(v[0]), self.maker.get(("row", v[0]))) and any(self.values[o] != plan for o in self.of(v[0], self.all))
                   for v in self.plans[plan][0])
    def busy(self, key, mask):
        mine = self.of(key, mask)
        made = {self.home(key, c) for _, c, _ in mine}
        return mine and (self.pins.get(self.now_at(key), 0) > 0 or any(self.maker.get(m) in self.plans for m in made) or any(self.values[v] is not True for v in mine))
    def remove(self, key, mask):
        mine = self.of(key, mask)
        if self.busy(key, mask):
            return "BUSY"
        for v in mine:
            del self.values[v]
        self.review(key)
        self.left(key)
        return "DONE" if mine else "ABSENT"
    def abandon(self, begun):
        """A put ticket has ended at its deadline: what is half there of these goes, places (key, is it its row)."""
        for key, row in sorted(begun, key=repr):
            for c in self.all:
                if (self.classes[c].kind == STATE) == row and self.half(key, c):
                    self.remove(key, [c])
    def die(self):
        """The serving process: plans are lost, and demands and counters; what is half there has fill_ttl from now on."""
        for plan in [*self.plans]:
            self.put_end(plan, False)
        self.demands, self.count, self.again = {}, dict.fromkeys(self.count, 0), set()
        self.noted = {key: self.now + self.fill_ttl for key, _, _ in self.values if any(self.half(key, c) for c in self.all)}
    def pass_time(self, seconds):
        for self.now in range(self.now + 1, self.now + seconds + 1):
            for key in sorted([k for k, at in self.noted.items() if at <= self.now], key=repr):
                halves, at = [c for c in self.all if self.half(key, c)], self.noted.pop(key)
                if halves and (key in self.again or "BUSY" in [self.remove(key, [c]) for c in halves]):
                    self.noted[key] = at + self.fill_ttl
                self.again.discard(key)

class Ticket:
    """One get of all ranks. An answer of None: the call waits."""
    def __init__(self, cache, question):
        self.cache, self.question, self.ranks = cache, question, set()
        self.decision, self.held = cache.get(**question)
        self.came, self.ranges, self.reports, self.outcome = {}, [], {}, None
        cache.pin(self.held, 1)
    def start(self, rank, question):
        if question != self.question or rank in self.ranks:
            return "EINVAL" if question != self.question else "EEXIST"
        self.ranks |= {rank} - {None}
        return self.decision["hit"] if self.outcome is None else 0
    def decide(self, outcome):
        if self.outcome is None:
            self.outcome = outcome
            self.cache.pin(self.held, -1)
    def transfer(self, rank, number, could):
        """Range `number`, of which the rank could deliver up to `could`."""
        if self.outcome is None and number == len(self.ranges):
            could = self.came.setdefault(rank, could)  # a call that waits has read what it has read
            if number == 0 and could <= self.question["have"] // self.cache.page * self.cache.page:
                self.decide(0)  # a read failed at the very beginning
            elif len(self.came) == self.cache.world:
                self.ranges.append(min(self.came.values()))
                self.came = {}
        return self.ranges[number] if number < len(self.ranges) else None if self.outcome is None else 0
    def confirm(self, rank, done):
        if not self.reports.setdefault(rank, done):
            self.decide(0)
        elif len(self.reports) == self.cache.world and self.outcome is None:
            end, dense = self.ranges[-1], all(k.kind == DENSE for k in self.cache.classes)
            self.decide(end if end == self.decision["hit"] else max([b for b in self.decision["restorable"] if b <= end and dense], default=0))
        return self.outcome
    def leave(self, rank):  # cancel, death, or its deadline
        return self.decide(0) if rank is not None or not self.ranks else None

def random_classes(r):
    world = r.choice((1, 1, 2, 3, 4))
    maps = [[*range(world)], [0] * world, [i * ((world + 1) // 2) // world for i in range(world)]]
    kinds = r.choice(([DENSE], [DENSE, STATE], [DENSE, WINDOW], [WINDOW], [DENSE, WINDOW, STATE], [DENSE, DENSE, STATE, STATE]))
    return [Class(k, r.choice(maps), 1 if k == STATE else r.choice((1, 1, 2)), r.randrange(3), r.randrange(1, 4)) for k in kinds]

def ticket_run(r, cache, path, emit):
    """Ranks and a scheduler in any order, each of which may die at any step."""
    q = {"path": path, "have": r.choice((0, 0, cache.page)), "room": r.randrange(2)}
    t, answers, outcomes, at = Ticket(cache, q), set(), set(), dict.fromkeys([None, *range(cache.world)], 0)
    ends = sorted({max(q["have"] + cache.page, t.decision["hit"] // 2 // cache.page * cache.page), t.decision["hit"]})
    asked = False
    while at:
        who, answer = r.choice([*at]), None
        step, what = at.pop(who), ["leave"]
        if r.random() < .03 and asked:
            if step:  # else it just never comes
                t.leave(who)
            what, step = what if step else ["none"], 4
        elif step == 0:
            assert t.start(who, dict(q, room=9)) == "EINVAL"
            answer, what, asked = t.start(who, q), ["start"], True
            answers |= {answer} if t.outcome is None else set()
            assert who is None or t.start(who, q) == "EEXIST"
            step = 4 if who is None or answer <= q["have"] else 1
        elif step in (1, 2):
            what = ["transfer", step - 1, ends[step - 1], ends[step - 1] - cache.page * (r.random() < .05)]
            answer = t.transfer(who, step - 1, what[3])
            step += 0 if answer is None else 1 if step < len(ends) else 3 - step
        else:
            what = ["confirm", r.random() > .03]
            answer = t.confirm(who, what[1])
            outcomes |= {answer} - {None}
            step += answer is not None
        emit("ticket", [q, who, *what], answer)
        at.update({who: step} if step < 4 else {})
    t.decide(0)  # nobody is left: handle_ttl
    emit("over", None, None)
    assert len(answers) <= 1 and outcomes <= {t.outcome} and (not t.outcome or [*t.reports.values()] == [True] * cache.world)

def random_world(r, most, emit, deaths):
    cache = Cache(r.choice((16, 64)), random_classes(r), r.choice((0, 64, 128)), fill_ttl=5)
    cache.parent = parent = {0: None}
    ids, every, named = count(1), [*cache.all], {}  # named: keys of each open plan
    def finish(plan):
        commit = r.random() < .85 or cache.leaned_on(plan)
        emit("end", [plan, commit], cache.put_end(plan, commit))
        del named[plan]
        return commit
    emit("layout", [cache.page, cache.interval, [vars(k) for k in cache.classes]], None)
    for _ in range(most):
        if deaths and r.random() < .03:
            while leaned := [p for p in cache.plans if cache.leaned_on(p)]:
                finish(leaned[0])
            cache.die()
            named.clear()
            emit("death", None, None)
        node, path, what = r.choice([*parent]), [], r.random()
        for _ in range(r.randrange(6) if len(parent) < 60 else 0):
            cache.children.setdefault(node, []).append(len(parent))
            parent[len(parent)], node = node, len(parent)
        while node:
            path, node = [node] + path, parent[node]
        if what < .35 and path:
            first, rank, states = r.choice((0, r.randrange(len(path)))), r.randrange(cache.world), cache.kinds(every, STATE)
            pages = [c for c in every if c not in states and r.random() < .9] or [0]
            whole = [c for c in every if c not in states]  # a row that comes before its page would have a record of its own
            groups = [(k, b, whole + states if states and r.random() < .3 else pages) for b, k in [*cache.ends(path)][first:]]
            if states and r.random() < .5:
                groups.append(r.choice((((path[-1], 7), len(path) * cache.page + 7, states), (path[0], cache.page, states))))
            joint = cache.world > 1 and r.random() < .2  # all of them, under a ticket; those behind `late` when it has ended
            ranks = r.sample(range(cache.world), cache.world) if joint else [rank]
            late = r.randrange(1, cache.world) if joint and r.random() < .3 else len(ranks)
            ticket, begun = next(ids) if joint else None, {}
            for rank in ranks[:late]:
                named[plan := next(ids)] = {key for key, _, _ in groups}
                emit("put", [plan, rank, groups, path, ticket], cache.put_start(plan, rank, groups))
                begun[plan] = {(key, c in states) for key, c, _ in cache.plans[plan][0]}
            if ranks[late:]:
                # Who aborts ends the ticket: at its deadline nothing is left to do, and what the others have committed has fill_ttl.
                whole = all([finish(p) for p in begun if r.random() < .6])
                emit("late", None, cache.abandon(set().union(*begun.values())) if whole else None)
            for rank in ranks[late:]:
                emit("put", [next(ids), rank, groups, path, ticket], ["NOROOM"] * len(groups))
        elif what < .65 and cache.plans:
            finish(r.choice([*cache.plans]))
        elif what < .75 and path:
            key, mask = r.choice(path), r.choice((every, [r.choice(every)]))
            # A plan may pin more or less of what it names than the model knows: asked then is what is being written.
            if not any(key in keys for keys in named.values()) or any(cache.values[v] is not True for v in cache.of(key, mask)):
                emit("remove", [key, mask], cache.remove(key, mask))
                assert cache.remove(key, mask) in ("ABSENT", "BUSY")
        elif what < .8:
            emit("time", 2, cache.pass_time(2))
        elif what < .9 and path:
            ticket_run(r, cache, path, emit)
        elif path:
            q = {"path": path, "have": r.randrange(end := len(path) * cache.page), "limit": r.randrange(end + 1), "room": r.randrange(40)}
            emit("get", q, cache.get(**q)[0])
        n, kept = cache.count, sum(cache.row(key, every) for key in cache.demands)
        assert n["recorded"] == len(cache.demands) + n["dropped"] + n["evicted"] and n["kept"] == kept + n["evicted"]
    emit("counts", None, cache.count)
    for plan in [*cache.plans]:
        cache.put_end(plan, False)
    cache.pass_time(3 * cache.fill_ttl)
    assert not (any(cache.pins.values()) or cache.noted or any(cache.half(key, c) for key, c, _ in cache.values)), "left behind"

if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--operations", type=int, default=20000)
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options.add_argument("--emit", action="store_true")
    options.add_argument("--deaths", action="store_true")
    o = options.parse_args()
    for done in range(0, o.operations, 250):
        random_world(random.Random(o.seed * 1000003 + done), min(250, o.operations - done),
                     (lambda *step: print(json.dumps(step))) if o.emit else lambda *step: None, o.deaths)
    print(f"{o.operations} operations, seed {o.seed}: the model agrees with itself", file=sys.stderr)
