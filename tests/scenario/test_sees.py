# SPDX-License-Identifier: Apache-2.0
"""Who sees what outside a namespace's own folder; what a session shows; what the kernel may remember of it."""
import errno
import json
import os
import re
import time

import pytest

from mounted import PLAIN_LAYOUT, STATE_LAYOUT, wait_for
from raw import NONE64, WAIT_INFLIGHT, Client, errno_of, key, name_of

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")


def as_user(uid, function, groups=(), gid=None):
    """What function() answers as another user, in a process of its own; an OSError as its errno's name."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(list(groups))
            os.setgid(uid if gid is None else gid)
            os.setuid(uid)
            answer = function()
        except OSError as e:
            answer = errno.errorcode[e.errno]
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as f:
        answer = json.loads(f.read())
    os.waitpid(pid, 0)
    return answer


def names_in(text):
    return set(re.findall(r"^(?:namespace|grants) ([^\s:]+)", text, re.M))


@root_only
def test_namespaces_are_for_those_who_may_read_them(daemon):
    d = daemon()
    for name, mode, group in (("open", 0o755, 0), ("closed", 0o700, 0), ("group", 0o750, 4321), ("not4321", 0o705, 4321)):
        d.namespace(name, layout=dict(PLAIN_LAYOUT, memory={"floor": 2 << 20}))
        os.chown(d.path("ns", name), 0, group)
        os.chmod(d.path("ns", name), mode)
    os.mkdir(d.path("ns/pending"), 0o700)
    everything = {"open", "closed", "group", "not4321", "pending"}
    cases = [(0, 0, [], everything), (1234, 1234, [], {"open", "not4321"}), (1234, 4321, [], {"open", "group"}),
             (1234, 1234, [99, 4321], {"open", "group"})]
    clients = {n: Client(d.path("ns", n, "ctl")) for n in everything - {"pending"}}
    numbers = {str(c.attached.session): n for n, c in clients.items()}
    for uid, gid, groups, seen in cases:
        def ask(function):
            return as_user(uid, function, groups, gid)
        assert set(ask(lambda: os.listdir(d.path("ns")))) == seen
        assert names_in(ask(lambda: d.read("health"))) == seen
        assert names_in(ask(lambda: d.read("tiers"))) == seen - {"pending"}
        assert {numbers[n] for n in ask(lambda: os.listdir(d.path("sessions")))} == seen - {"pending"}
        for number, name in numbers.items():
            text = ask(lambda n=number: d.read("sessions", n))
            assert (f"namespace: {name}\n" in text) if name in seen else text == "ENOENT", (uid, name, text)
            here = ask(lambda n=number: os.stat(d.path("sessions", n)).st_size)
            assert here == (0 if name in seen else "ENOENT")
        assert "memory bytes=67108864" in ask(lambda: d.read("tiers"))
        assert ask(lambda: os.statvfs(d.mount).f_blocks) == (64 << 20) // 4096
    assert as_user(1234, lambda: os.listdir(d.path("ns/closed"))) == "EACCES"  # who guesses the name
    number = next(n for n, name in numbers.items() if name == "closed")
    os.chmod(d.path("ns/closed"), 0o755)  # counts at once
    assert "closed" in as_user(1234, lambda: os.listdir(d.path("ns")))
    assert number in as_user(1234, lambda: os.listdir(d.path("sessions")))
    os.chmod(d.path("ns/closed"), 0o700)
    assert as_user(1234, lambda: os.stat(d.path("sessions", number)).st_size) == "ENOENT"
    for c in clients.values():
        c.close()


@root_only
def test_trouble_of_a_namespace_is_told_without_its_name(daemon):
    d = daemon("--memory-fault", "read:EIO:1")
    d.namespace("secret", mode=0o700)
    with Client(d.path("ns/secret/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64, [key(1)], [b"a" * 8192])
    with open(d.path("ns/secret/records", name_of(64, key(1)), "pages"), "rb") as f:
        assert errno_of(f.read) == errno.EIO
    assert d.read("health").startswith("degraded: 1 reads of namespace secret failed")
    text = as_user(1234, lambda: d.read("health"))
    assert text.startswith("degraded: a namespace that is not yours to see is not well\n") and "secret" not in text


@root_only
def test_a_changed_mode_counts_at_once(daemon):
    """Also for what lies below the namespace's folder and was just looked at."""
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64, [key(1)], [b"a" * 8192])
    paths = [d.path("ns/x", p) for p in ("records", "checkpoints", "pages", "records/" + name_of(64, key(1)), "stats")]
    for mode, expected in ((0o755, 0), (0o700, "EACCES"), (0o755, 0)) * 3:
        os.chmod(d.path("ns/x"), mode)
        for path in paths:
            assert as_user(1234, lambda p=path: os.close(os.open(p, os.O_RDONLY)) or 0) == expected, (mode, path)
    folder = os.open(d.path("ns/x/records"), os.O_RDONLY)
    os.fstat(folder)
    os.chmod(d.path("ns/x"), 0o711)
    wait_for(lambda: os.fstat(folder).st_mode & 0o777 == 0o711, 0.5, "the kernel's hearing of it", exactly=True)
    os.close(folder)


def test_a_removed_namespace_is_gone_at_once(daemon):
    d = daemon()
    for n in range(5):
        d.namespace("x", layout=STATE_LAYOUT if n % 2 else PLAIN_LAYOUT)
        with Client(d.path("ns/x/ctl")) as c:
            c.acknowledge()
            c.put(1, None, 64, [key(n)], [b"a" * 8192])
        for path in ("records", "checkpoints", "pages", "records/" + name_of(64, key(n)), "pages/" + key(n).hex()):
            os.stat(d.path("ns/x", path))
        before = os.stat(d.path("ns/x")).st_ino
        wait_for(lambda: errno_of(os.rmdir, d.path("ns/x")) == 0, 5, "the removal")
        assert errno_of(os.stat, d.path("ns/x/records")) == errno.ENOENT
        os.mkdir(d.path("ns/x"))
        assert os.listdir(d.path("ns/x")) == ["layout", "layout.error"] and os.stat(d.path("ns/x")).st_ino != before
        os.rmdir(d.path("ns/x"))


def text_of(d, c):
    text = d.read("sessions", str(c.attached.session))
    return text, dict(line.split(": ", 1) for line in text.splitlines())


def test_a_session_in_full(daemon):
    d = daemon()
    d.namespace(layout=STATE_LAYOUT)
    with Client(d.path("ns/x/ctl"), attach=False) as c:
        c.attached = None
        number = os.listdir(d.path("sessions"))[0]
        lines = dict(line.split(": ", 1) for line in d.read("sessions", number).splitlines())
        assert lines["attached"] == "no" and lines["client"] == "none" and lines["call_buffer_bytes"] == "0"
        assert lines["rank"] == lines["node"] == "none"
    with Client(d.path("ns/x/ctl"), node=0) as c:
        text, lines = text_of(d, c)
        assert lines["namespace"] == "x" and lines["pid"] == str(os.getpid()) and lines["attached"] == "yes"
        with open("/proc/self/comm", encoding="utf-8") as f:
            assert lines["process"] == f.read().strip()
        assert lines["uid"] == str(os.getuid()) and lines["gid"] == str(os.getgid())
        assert lines["rank"] == "0" and lines["node"] == "0" and lines["read_only"] == "no"
        assert re.fullmatch("[0-9a-f]{32}", lines["client"]) and lines["call_buffer_bytes"] == str(8 << 20)
        assert lines["last error"] == "none" and lines["requests"] == "0" and lines["quarantined_slots"] == "0"
        assert lines["ranges"].startswith("0 of ")
        c.acknowledge()
        done, all_ = text_of(d, c)[1]["ranges"].split()[0::2]
        assert done == all_ != "0"
        keys = [key(1, i) for i in range(3)]
        c.put(1, None, 192, keys, [b"a" * 8192] * 3)
        c.put_start(7, [(None, 128, [key(2, 0), key(2, 1)], {"class_mask": 3})], class_mask=3, answers=3)
        c.get_start(8, keys, class_mask=1)
        c.get_start(9, keys, class_mask=1)
        c.get_transfer(9, 10, 192)
        text, lines = text_of(d, c)
        assert re.search(r"^put 7: age_ms=\d+ values=3 bytes=24576$", text, re.M), text
        assert re.search(r"^handle 8: age_ms=\d+ values=3 bytes=24576$", text, re.M), text
        assert re.search(r"^get 10: age_ms=\d+ values=3 bytes=24576$", text, re.M), text
        assert lines["prepared_bytes"] == "24576" and lines["listed"] == "3, the oldest; not listed: 0"
        assert (lines["put_plans"], lines["get_plans"], lines["handles"]) == ("1", "1", "1")
        errno_of(c.call, "GET_CANCEL", handle=77)
        assert re.search(r"^last error: .*77.* \(GET_CANCEL, request \d+, \d+ ms ago\)$", text_of(d, c)[0], re.M)
        c.put_end("PUT_COMMIT", 7)
        c.release([10])
        c.call("GET_CANCEL", handle=8)
        text, lines = text_of(d, c)
        assert lines["listed"] == "0, the oldest; not listed: 0" and lines["prepared_bytes"] == lines["pins"] == "0"


def test_more_than_is_listed_is_counted(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 64, [key(1)], [b"a" * 8192])
        for h in range(300):
            c.get_start(1000 + h, [key(1)])
        text, lines = text_of(d, c)
        assert lines["handles"] == "300" and lines["listed"] == "64, the oldest; not listed: 236"
        assert sorted(re.findall(r"^handle (\d+):", text, re.M)) == [str(1000 + h) for h in range(64)]
        assert len(text) < 20000


@pytest.mark.concurrency
def test_requests_under_way(daemon, peer):
    d = daemon()
    d.namespace()

    def waiter(p, ctl):
        with Client(ctl) as c:
            c.acknowledge()
            p.tell(c.attached.session)
            p.listen()
            c.get_start(1, [key(1)], flags=WAIT_INFLIGHT, deadline_ms=60000)
            p.tell("done")
            p.listen()

    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put_start(5, [(None, 64, [key(1)])])
        p = peer(waiter, d.path("ns/x/ctl"))
        number = str(p.hear())
        p.say("go")
        wait_for(lambda: "requests: 1\n" in d.read("sessions", number), 5, "the request")
        time.sleep(0.1)
        age = re.search(r"^request \d+: GET_START age_ms=(\d+)$", d.read("sessions", number), re.M)
        assert age and 90 <= int(age.group(1)) < 60000
        c.put_end("PUT_COMMIT", 5)
        assert p.hear() == "done"
        assert "requests: 0\n" in d.read("sessions", number)
        p.say("end")


def test_known_names_that_go_are_told(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put_start(1, [(None, 64, [key(i)]) for i in range(1000)])
        c.put_end("PUT_COMMIT", 1, groups=1000)

        def health(line):
            return int(re.search(rf"^notices {line}: (\d+)$", d.read("health"), re.M).group(1))
        folder = d.path("ns/x/records")
        assert len(os.listdir(folder)) == 1000  # listing is not knowing
        for i in range(300):
            os.stat(os.path.join(folder, name_of(64, key(i))))
        before = health("told")
        for i in range(1000):
            os.rmdir(os.path.join(folder, name_of(64, key(i))))  # looks each up first
        wait_for(lambda: health("pending") == 0 and health("told") - before == 1000, 10, "the notices")
        assert health("dropped") == 0
