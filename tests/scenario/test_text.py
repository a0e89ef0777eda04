# SPDX-License-Identifier: Apache-2.0
"""The text face of ctl: what operators type, and what others do with it."""
import errno
import fcntl
import json
import os
import select
import signal
import subprocess
import threading
import time

import pytest

from mounted import STATE_LAYOUT, wait_for
from peers import transient, value_of
from raw import Client, Refused, errno_of, ioc, key, name_of

ANSWER_MAX, UNREAD_MAX, LINE = 16384, 65536, 4096


def pages(chain, n, first=0):
    return [key(chain, i) for i in range(first, first + n)]


def store(c, plan, chain, n=4, first=0):
    keys = pages(chain, n, first)
    c.put(plan, key(chain, first - 1) if first else None, 64 * (first + n), keys, [value_of(k) for k in keys])
    return keys


def record(chain, n=4):
    return name_of(64 * n, key(chain, n - 1))


@pytest.fixture
def client(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.daemon = d
        c.acknowledge()
        yield c


class Face:
    def __init__(self, path, flags=os.O_RDWR):
        self.fd = os.open(path, flags | os.O_CLOEXEC)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        os.close(self.fd)

    def write(self, text):
        return os.write(self.fd, text if isinstance(text, bytes) else text.encode())

    def answers(self, size=65536):
        data = b""
        while True:
            piece = os.read(self.fd, size)
            if not piece:
                return [json.loads(line) for line in data.decode().splitlines()]
            data += piece

    def ask(self, line):
        assert self.write(line + "\n") == len(line) + 1
        answers = self.answers()
        assert len(answers) == 1
        return answers[0]

    def refused(self, line, end="\n"):
        """The errno of write(2), and the answer."""
        error = errno_of(self.write, line + end if isinstance(line, str) else line)
        answers = self.answers()
        assert error and answers[-1]["errno"] == errno.errorcode[error] and answers[-1]["error"], (error, answers)
        return error, answers[-1]


@pytest.fixture
def face(client):
    with Face(client.daemon.path("ns/x/ctl")) as f:
        yield f


def bash(d, script, **more):
    return subprocess.run(["bash", "-c", script], cwd=d.path("ns/x"), capture_output=True, text=True, check=False,
                          timeout=60, **more)


# ---- as an operator types


def test_probe_as_in_the_manual(client):
    d = client.daemon
    keys = store(client, 1, 1)
    r = bash(d, f"exec 3<>ctl; echo 'probe {keys[0].hex()} {key(9).hex()}' >&3; cat <&3")
    assert r.returncode == 0 and r.stderr == ""
    assert json.loads(r.stdout) == {"hits": 1, "prefix": 1, "present": [1, 0]}


def test_the_shell_reads_answer_by_answer(client):
    r = bash(client.daemon, "exec 3<>ctl; printf 'drain\\nplan\\nhelp\\n' >&3; read -r -u 3 a; read -r -u 3 b; "
             "echo \"$a\"; echo \"$b\"; cat <&3; echo end; cat <&3")
    lines = r.stdout.splitlines()
    assert r.stderr == "" and len(lines) == 4 and lines[3] == "end"
    assert json.loads(lines[0]) == {"drained": 0, "note": "no disk tier"}
    assert json.loads(lines[1])["handles"] == 0 and "probe KEY..." in json.loads(lines[2])["commands"]


def test_only_written(client):
    """`echo ... > ctl` opens with O_WRONLY and O_TRUNC; nobody reads the answer, the status tells."""
    d = client.daemon
    store(client, 1, 1)
    store(client, 2, 2)
    assert bash(d, "echo stat > ctl && echo stat >> ctl && printf 'stat\\n' | tee ctl > /dev/null").returncode == 0
    r = bash(d, f"echo 'evict {record(1)}' > ctl; echo $?; echo 'evict {record(1)}' > ctl; echo $?")
    assert r.stdout.split() == ["0", "1"] and "No such file" in r.stderr
    assert bash(d, "dd if=<(printf 'evict --all\\n') of=ctl bs=4k conv=notrunc 2>&1").returncode == 0
    assert os.listdir(d.path("ns/x/records")) == [] and os.stat(d.path("ns/x/ctl")).st_size == 0


def test_a_failed_command_fails_the_write(client):
    r = bash(client.daemon, "exec 3<>ctl; echo 'pin nonsense' >&3 || echo failed; cat <&3")
    failed, answer = r.stdout.splitlines()
    assert failed == "failed" and "Invalid argument" in r.stderr
    assert json.loads(answer)["errno"] == "EINVAL" and "nonsense" in json.loads(answer)["error"]


# ---- each command


def test_help_names_all(face):
    commands = face.ask("help")["commands"]
    assert [c.split()[0] for c in commands] == ["help", "stat", "probe", "plan", "pin", "unpin", "touch", "evict", "blob",
                                                "drain", "fsck", "reset"]
    for c in commands:
        word = c.split()[0]
        assert face.refused(word + " x" * 127)[0] == errno.EINVAL
        if "..." in c or "RECORD" in c:
            assert face.refused(word)[0] == errno.EINVAL
            assert face.refused(word + " zz")[0] == errno.EINVAL
    for line in ("halp", "Help", "help\\", "\"help\"", "probe,", "x" * LINE):
        assert face.refused(line)[0] == errno.EINVAL
    assert face.refused("help" + " x" * 128)[0] == errno.E2BIG


def test_stat_has_the_counters_of_stats(client, face):
    store(client, 1, 1)
    told, file = face.ask("stat"), client.daemon.stats()
    assert list(told) == list(file) and told["pages"] == 4
    same = [n for n in told if str(told[n]) == file[n]]
    assert len(same) > len(file) - 5


def test_probe_takes_many_keys(client, face):
    keys = store(client, 1, 1, 60)
    present = [1] * 30 + [0] + [1] * 30
    asked = keys[:30] + [key(9)] + keys[30:]
    assert face.ask("probe " + " ".join(k.hex() for k in asked)) == {"hits": 60, "prefix": 30, "present": present}
    for bad in ("00", "0" * 63, "0" * 65, "g" * 64, "A" * 64, record(1)):
        error, answer = face.refused(f"probe {keys[0].hex()} {bad}")
        assert error == errno.EINVAL and "argument 2" in answer["error"] and bad[:40] in answer["error"]


def test_plan_is_of_this_session(client):
    keys = store(client, 1, 1)
    client.get_start(1, keys)
    client.get_start(2, keys)
    client.get_transfer(2, 3, 256)
    client.put_start(4, [(None, 64, [key(5)])])
    os.write(client.fd, b"plan\n")
    told = json.loads(os.read(client.fd, 4096))
    assert told["session"] == client.attached.session and told["pins"] == 2 and told["prepared_bytes"] == 8192
    assert (told["put_plans"], told["get_plans"], told["handles"]) == (1, 1, 1) and told["oldest_ms"] < 60000
    with Face(client.daemon.path("ns/x/ctl")) as other:
        told = other.ask("plan")
    assert (told["put_plans"], told["get_plans"], told["handles"], told["pins"]) == (0, 0, 0, 0)


def test_pin_and_unpin(client, face):
    d = client.daemon
    store(client, 1, 1)
    store(client, 2, 2, 250)
    limit = int(d.stats()["floor_bytes"]) // 10
    assert face.ask(f"pin {record(1)}") == {"changed": 1, "pinned_bytes": 4 * 8192, "limit_bytes": limit}
    assert face.ask(f"pin {record(1)}")["changed"] == 0
    assert errno_of(os.rmdir, d.path("ns/x/records", record(1))) == errno.EBUSY
    error, answer = face.refused(f"pin {record(2, 250)}")
    assert error == errno.ENOSPC and answer["pinned_bytes"] == 4 * 8192 and str(limit) in answer["error"]
    error, answer = face.refused(f"evict {record(1)}")
    assert error == errno.EBUSY and answer["refusals"][0]["record"] == record(1)
    assert face.refused(f"pin {record(3)}")[0] == face.refused(f"unpin {record(3)}")[0] == errno.ENOENT
    other_tokens = name_of(255, key(1, 3))
    assert face.refused(f"pin {other_tokens}")[0] == errno.ENOENT
    assert face.ask(f"unpin {record(1)}") == {"changed": 1, "pinned_bytes": 0, "limit_bytes": limit}
    assert face.ask(f"unpin {record(1)}")["changed"] == 0
    assert face.refused(f"pin {record(1)} {record(2, 250)}")[0] == errno.EINVAL


def test_touch_makes_leave_later(client, face):
    store(client, 1, 1)
    store(client, 2, 2)
    assert face.ask(f"touch {record(1)} {record(7)}") == {"touched": 1, "absent": 1}
    assert face.ask(f"touch {record(7)}") == {"touched": 0, "absent": 1}
    assert face.ask("evict --bytes 4")["values"] == 1
    assert client.probe(pages(1, 4)).hits == 4 and client.probe(pages(2, 4)).hits == 3


def test_evict_by_name_in_any_order(client, face):
    for n in range(3):
        store(client, n + 1, 1, 4, 4 * n)
    store(client, 9, 2)
    a, b, c = (record(1, 4 * n) for n in (1, 2, 3))
    error, answer = face.refused(f"evict {a} {b}")
    assert error == errno.ENOTEMPTY and answer["evicted"] == 0 and answer["refused"] == 2
    assert [r["record"] for r in answer["refusals"]] == [b, a] and answer["refusals"][0]["errno"] == "ENOTEMPTY"
    assert face.ask(f"evict {a} {b} {c}") == {"evicted": 3, "values": 12, "bytes": 12 * 8192, "refused": 0}
    error, answer = face.refused(f"evict {record(2)} {a}")
    assert error == errno.ENOENT and (answer["evicted"], answer["values"], answer["refused"]) == (1, 4, 1)
    assert client.stats()["records"] == "0"


def test_evict_bytes(client, face):
    for n in range(1, 6):
        store(client, n, n, 100)
    assert face.ask("evict --bytes 1M") == {"evicted": 1, "values": 128, "bytes": 1 << 20, "refused": 0}
    assert client.probe(pages(5, 100)).hits == 100 and client.probe(pages(1, 100)).hits == 0
    error, answer = face.refused("evict --bytes 1G")
    assert error == errno.ENODATA and answer["values"] == 372 and str(1 << 30) in answer["error"]
    store(client, 7, 7)
    face.ask(f"pin {record(7)}")
    assert face.refused("evict --bytes 1")[0] == errno.EBUSY
    for bad in ("", " 0", " -1", " x", " 1Q", " 1 2", " 99999999999999999999", " 18446744073709551615"):
        assert face.refused("evict --bytes" + bad)[0] == errno.EINVAL
    for bad in ("--all x", "--All", "-a", "--all --bytes 1", f"{record(7)} --all"):
        assert face.refused("evict " + bad)[0] == errno.EINVAL


def test_evict_all_names_what_stays(client, face):
    for n in range(1, 31):
        store(client, n, n)
    keys = pages(3, 4)
    client.get_start(1, keys)
    face.ask(f"pin {record(4)}")
    answer = face.ask("evict --all")
    assert (answer["evicted"], answer["values"], answer["bytes"], answer["refused"]) == (28, 112, 112 * 8192, 2)
    assert sorted(r["record"] for r in answer["refusals"]) == sorted([record(3), record(4)])
    assert {r["errno"] for r in answer["refusals"]} == {"EBUSY"}
    client.call("GET_CANCEL", handle=1)
    for n in range(101, 131):
        client.get_start(n, store(client, n, n))
    answer = face.ask("evict --all")
    assert answer["evicted"] == 1 and answer["refused"] == 31 and len(answer["refusals"]) == 16


def test_drain_and_reset(client, face):
    keys = store(client, 1, 1)
    client.get_start(1, keys)
    assert face.ask("drain") == {"drained": 0, "note": "no disk tier"}
    assert face.ask("reset") == {"generation": 2, "values": 0, "held_records": 1}
    assert client.probe(keys).hits == 0
    client.call("GET_CANCEL", handle=1)
    store(client, 2, 2)
    assert face.ask("reset") == {"generation": 3, "values": 4, "held_records": 0}
    assert not transient({**client.daemon.stats(), "sessions": "0", "groups_open": "0"})


def test_rows_go_with_their_records(daemon):
    d = daemon()
    d.namespace(layout=STATE_LAYOUT)
    with Client(d.path("ns/x/ctl")) as c, Face(d.path("ns/x/ctl")) as f:
        c.acknowledge()
        c.put_start(1, [(None, 256, pages(1, 4))], class_mask=3, answers=5)
        c.put_end("PUT_COMMIT", 1)
        assert f.ask("evict --all") == {"evicted": 1, "values": 5, "bytes": 5 * 8192, "refused": 0}


# ---- lines and answers


def test_lines_however_they_are_cut(face):
    for byte in b"# a comment\n\n  \t\ndrain\r\n":
        face.write(bytes([byte]))
    assert len(face.answers()) == 1
    face.write("dra")
    assert face.answers() == []
    face.write("in\ndrain\nhel")
    assert len(face.answers()) == 2
    face.write("p\n")
    assert "commands" in face.answers(size=7)[0]


def test_a_failed_write_drops_what_follows(client, face):
    error, _ = face.refused("nonsense\nreset\nres")
    assert error == errno.EINVAL and client.daemon.stats()["resets"] == "0"
    face.write("drain\n")  # begins anew: the unfinished line went with the write
    assert len(face.answers()) == 1
    assert errno_of(face.write, "drain\nnonsense\ndrain\n") == errno.EINVAL
    assert [("errno" in a) for a in face.answers()] == [False, True]


def test_bytes_that_no_line_has(face):
    for bad in (b"drain\0\n", b"\0", b"dra\x1bin\n", b"dr\x7f\n", b"dr\xc3\xa9\n", b"dr\xff\n", b"dr\rain\n"):
        assert face.refused(bad)[0] == errno.EINVAL
    assert len(face.answers()) == 0


def test_the_longest_line(face):
    face.write("#" * LINE + "\ndrain\n")
    assert len(face.answers()) == 1
    assert face.refused("#" * (LINE + 1))[0] == errno.EMSGSIZE
    face.write("#" * LINE)
    assert face.refused("#", "")[0] == errno.EMSGSIZE
    assert face.ask("drain")["drained"] == 0


def test_answers_that_nobody_reads(client, face, slower):
    n = 0
    while True:
        try:
            face.write("help\n")
            n += 1
        except BlockingIOError:
            break
    assert UNREAD_MAX - ANSWER_MAX < n * 800 and n < 200
    assert select.select([face.fd], [face.fd], [], 0) == ([face.fd], [], [])
    assert errno_of(face.write, "help\n") == errno.EAGAIN
    assert "wait to be read" in client.daemon.read("sessions", str(session_of(client.daemon, face)))
    # Others are not kept from anything, and what is full goes on where it stopped.
    with Face(client.daemon.path("ns/x/ctl")) as other:
        assert other.ask("drain")["drained"] == 0
    room = []
    t = threading.Thread(target=lambda: room.append(select.select([], [face.fd], [], 20 * slower)[1]))
    t.start()
    time.sleep(0.1)
    assert len(face.answers()) == n
    t.join(30 * slower)
    assert room == [[face.fd]]
    many = "help\n" * 200
    done = face.write(many)
    assert 0 < done < len(many) and done % 5 == 0 and len(face.answers()) == done // 5


def session_of(d, face):
    """The number of its session: the newest one."""
    return max(int(n) for n in os.listdir(d.path("sessions")))


def test_many_lines_in_one_write(face):
    text = "# nothing\n" * 20000
    done = 0
    while done < len(text):
        n = face.write(text[done:])
        assert 0 < n <= 65536
        done += n
    assert face.answers() == []
    assert face.ask("drain")["drained"] == 0


def test_poll_tells_of_answers(client, face):
    poll = select.poll()
    poll.register(face.fd, select.POLLIN | select.POLLOUT)
    face.write("drain\n")
    assert poll.poll(0) == [(face.fd, select.POLLIN | select.POLLOUT)]
    face.answers()
    assert poll.poll(0) == [(face.fd, select.POLLOUT)]
    poll.modify(face.fd, select.POLLIN)
    assert poll.poll(50) == []
    woken = []
    t = threading.Thread(target=lambda: woken.extend(poll.poll(20000)))
    t.start()
    time.sleep(0.2)
    face.write("drain\n")
    t.join(25)
    assert woken == [(face.fd, select.POLLIN)]


def test_it_is_a_stream(face):
    assert errno_of(os.lseek, face.fd, 0, os.SEEK_SET) == errno.ESPIPE
    assert errno_of(os.pread, face.fd, 10, 0) == errno.ESPIPE
    assert errno_of(os.pwrite, face.fd, b"drain\n", 0) == errno.ESPIPE
    assert os.read(face.fd, 10) == b""
    assert os.write(face.fd, b"") == 0


# ---- who may


def test_a_read_only_open(client):
    d = client.daemon
    with Face(d.path("ns/x/ctl"), os.O_RDONLY) as f:
        assert errno_of(f.write, "help\n") == errno.EBADF
        assert os.read(f.fd, 100) == b""
    with Face(d.path("ns/x/ctl"), os.O_WRONLY) as f:
        f.write("stat\n")
        assert errno_of(os.read, f.fd, 100) == errno.EBADF


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become other users")
def test_another_user(client):
    d = client.daemon
    os.chmod(d.path("ns/x"), 0o755)
    become = {"user": 4003, "group": 4003, "extra_groups": []}
    r = bash(d, "echo reset > ctl", **become)
    assert r.returncode != 0 and "Permission denied" in r.stderr
    assert bash(d, "exec 3<ctl; cat <&3", **become).returncode == 0
    os.chmod(d.path("ns/x"), 0o777)
    time.sleep(1.1)
    r = bash(d, "exec 3<>ctl; echo reset >&3; cat <&3", **become)
    assert json.loads(r.stdout)["generation"] == 2


def test_foreign_ioctls(face):
    for request in (0x5401, 0x5413, ioc(1, 8, 3, 0xF6)):
        assert errno_of(fcntl.ioctl, face.fd, request, bytearray(64)) == errno.ENOTTY
    assert not os.isatty(face.fd)


def test_the_last_error_is_known(client):
    d = client.daemon
    assert errno_of(os.write, client.fd, b"frobnicate\n") == errno.EINVAL
    told = client.last_error()
    assert (told.failed_seq, told.failed_op, told.error) == (0, 0, errno.EINVAL) and b"frobnicate" in told.text
    assert "frobnicate" in d.read("sessions", str(client.attached.session))


def test_after_the_process_of_the_session_is_gone(client, peer):
    """The descriptor lives on in another process; the session does not."""
    reader, writer = os.pipe()

    def attach(p):
        os.dup2(client_fd[0], 100)
        c = Client.__new__(Client)
        c.fd, c.seq, c.pid, c.buffer, c.segment, c.segment_fd, c.buffer_fd = 100, 0, os.getpid(), None, None, -1, -1
        c.attach()
        p.tell("attached")
        p.rest()

    client_fd = [os.open(client.daemon.path("ns/x/ctl"), os.O_RDWR)]
    p = peer(attach)
    p.hear()
    os.write(client_fd[0], b"drain\n")
    p.kill()
    wait_for(lambda: client.daemon.stats()["sessions"] == "1", 5)
    assert errno_of(os.write, client_fd[0], b"drain\n") == errno.ESHUTDOWN
    for _ in range(2000):
        assert errno_of(os.write, client_fd[0], b"drain\n") == errno.ESHUTDOWN
    for fd in (client_fd[0], reader, writer):
        os.close(fd)


# ---- long commands


def many_records(c, records, pages_each=1):
    """So many short records, by few calls."""
    n = 0
    while n < records:
        groups = [(None, 64 * pages_each, pages(n + i, pages_each)) for i in range(min(1000, records - n))]
        c.put_start(n + 1, groups)
        assert set(c.put_status) == {0}, "room"
        c.put_end("PUT_COMMIT", n + 1, groups=len(groups))
        n += len(groups)


SMALL = {"version": 1, "identity": {"model": "test/small"}, "world": 1, "page_tokens": 64,
         "memory": {"floor": 400 << 20},
         "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "K", "bytes": 4096}]}]}


@pytest.mark.limit(240)
def test_evict_all_of_many_blocks_nobody(daemon, slower):
    d = daemon("--memory", "512M", "--loop-threads", "1", "--populate=false")
    d.namespace(layout=SMALL)
    count = 60000
    with Client(d.path("ns/x/ctl")) as c, Face(d.path("ns/x/ctl")) as f:
        c.acknowledge()
        many_records(c, count)
        done, waits = [], []
        t = threading.Thread(target=lambda: done.append(f.ask("evict --all")))
        t.start()
        while t.is_alive():
            began = time.monotonic()
            c.probe([key(1, 0)])
            waits.append(time.monotonic() - began)
        t.join()
        assert done[0]["evicted"] == count and done[0]["refused"] == 0
        assert max(waits) < 0.5 * slower
        assert c.stats()["slots_free"] == c.stats()["slots"]


@pytest.mark.limit(240)
def test_a_signal_ends_it(daemon, peer, slower):
    d = daemon("--memory", "512M", "--loop-threads", "1", "--populate=false")
    d.namespace(layout=SMALL)
    count = 60000
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        many_records(c, count)

        def evict(p):
            class Stopped(Exception):
                pass

            def stop(number, frame):
                raise Stopped

            signal.signal(signal.SIGUSR1, stop)
            fd = os.open(d.path("ns/x/ctl"), os.O_RDWR)
            p.tell("begin")
            try:
                os.write(fd, b"evict --all\n")
                p.tell("whole")
            except Stopped:
                p.tell(json.loads(os.read(fd, 4096)))

        p = peer(evict)
        p.hear()
        wait_for(lambda: int(c.stats()["records"]) < count, 10, "the first steps", pause=0)
        os.kill(p.pid, signal.SIGUSR1)
        told = p.hear(30 * slower)
        assert p.wait() == 0
        if told != "whole" and "errno" in told:  # it may have been faster than the signal
            assert told["errno"] == "EINTR" and 0 < told["evicted"] == count - int(c.stats()["records"]) < count
        # A descriptor that is closed, or a process killed, while a command runs.
        p = peer(lambda q: (q.tell("begin"), os.write(os.open(d.path("ns/x/ctl"), os.O_RDWR), b"evict --all\n")))
        p.hear()
        p.kill()
        wait_for(lambda: len(os.listdir(d.path("sessions"))) == 1, 30 * slower)
    assert d.stop()[0] == 0


@pytest.mark.concurrency
def test_many_faces_at_once(daemon, peer, slower):
    """Clients put while others type: every answer is whole, nothing is left over."""
    d = daemon("--memory", "64M")
    d.namespace()
    until = time.monotonic() + 4

    def put(p, seed):
        n = 0
        with Client(d.path("ns/x/ctl")) as c:
            c.acknowledge()
            while time.monotonic() < until:
                n += 1
                keys = pages(seed * 1000 + n, 40)
                try:
                    c.put_start(n, [(None, 64 * 40, keys)])
                    if c.put_status == [0]:
                        c.put_end("PUT_COMMIT", n)
                    else:
                        c.acknowledge()
                except Refused as e:
                    assert e.errno == errno.ESTALE
        p.tell(n)

    def type_(p, seed):
        n = 0
        commands = ["stat", "evict --bytes 300K", "evict --all", "plan", "reset", "touch " + record(seed * 1000 + 1, 40)]
        with Face(d.path("ns/x/ctl")) as f:
            while time.monotonic() < until:
                try:
                    f.write(commands[(n + seed) % len(commands)] + "\n")
                except OSError as e:
                    assert e.errno in (errno.ENODATA, errno.EBUSY)
                assert len(f.answers()) == 1
                n += 1
        p.tell(n)

    workers = [peer(put, i) for i in range(2)] + [peer(type_, i) for i in range(3)]
    told = [w.hear(60 * slower) for w in workers]
    assert all(w.wait() == 0 for w in workers), told
    assert min(told) > 3
    with Client(d.path("ns/x/ctl")) as c:
        c.reset()
    wait_for(lambda: not transient(d.stats()), 10 * slower)
    stats = d.stats()
    assert stats["records"] == stats["pages"] == "0" and stats["slots_free"] == stats["slots"]
    assert d.stop()[0] == 0
