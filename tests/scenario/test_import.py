# SPDX-License-Identifier: Apache-2.0
"""IMPORT and GET_INTO: a client's own memory as the place that values are written to."""
import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import threading

import pytest

import disk
from mounted import wait_for
from peers import value_of
from raw import HELLO_IMPORT, IMPORT_DROP, NO_AHEAD, NONBLOCK, Client, Refused, errno_of, key, show_token

PAGES = 16
KV, IX, STATE = 8192, 4500, 3000
LAYOUT = {"version": 1, "identity": {"model": "test/import"}, "world": 1, "page_tokens": 64,
          "memory": {"floor": 16 << 20},
          "classes": [{"name": "kv", "kind": "dense", "planes": [{"name": "k", "bytes": KV}]},
                      {"name": "ix", "kind": "dense", "planes": [{"name": "i", "bytes": IX}]},
                      {"name": "st", "kind": "state", "planes": [{"name": "s", "bytes": STATE}]}]}
ALL = 7


def keys_of(chain=1, pages=PAGES):
    return [key(chain, i) for i in range(pages)]


def kv(k):
    return value_of(k, KV)


def ix(k):
    return (k[::-1] * 200)[:IX]


def st(k):
    return (bytes(b ^ 0x3c for b in k) * 100)[:STATE]


class Memory:
    """A memory file that is full of one byte."""

    def __init__(self, size, fill=b"\xee"):
        self.fd = os.memfd_create("engine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.size, self.fill = size, fill
        os.pwrite(self.fd, fill * size, 0)

    def read(self, offset, n):
        return os.pread(self.fd, n, offset)

    def __enter__(self):
        return self

    def __exit__(self, *args):
        os.close(self.fd)


def put(d, chain=1, ns="x"):
    """A chain of all classes, with its row."""
    keys = keys_of(chain)
    with Client(d.path("ns", ns, "ctl")) as c:
        c.acknowledge()
        c.put_start(1, [(None, 64 * PAGES, keys)], ALL, answers=2 * PAGES + 1)
        values = [kv(k) for k in keys] + [ix(k) for k in keys] + [st(keys[-1])]
        for offset, value in zip(c.put_answers, values):
            c.segment[offset:offset + len(value)] = value
        c.put_end("PUT_COMMIT", 1)
    return keys


def whole(keys):
    """What a file with all pages at a stride of 13,000, `ix` behind `kv` and the row at 300,001 looks like."""
    to = bytearray(b"\xee" * (512 << 10))
    for i, k in enumerate(keys):
        to[i * 13000 + 1:i * 13000 + 1 + KV] = kv(k)
        to[i * 13000 + 8300:i * 13000 + 8300 + IX] = ix(k)
    to[300001:300001 + STATE] = st(keys[-1])
    return bytes(to)


PLACES = {"stride": 13000, "state_base": 300000, "class_offset": (1, 8300, 1)}


@pytest.fixture
def mount(daemon):
    d = daemon()
    d.namespace(layout=LAYOUT)
    return d


@pytest.fixture
def folder(tmp_path, build):
    path = disk.folder(tmp_path, build)
    yield path
    disk.remove(path)


def on_disk(d):
    """Everything of namespace x leaves memory."""
    with Client(d.path("ns/x/ctl")) as c:
        c.call("DRAIN", deadline_ms=20000)
    bytes_of = PAGES * (8192 + 8192) + 4096  # of slots
    fd = os.open(d.path("ns/x/ctl"), os.O_RDWR)
    try:
        os.write(fd, f"evict --bytes {bytes_of}\n".encode())
        answer = json.loads(os.read(fd, 65536))
    finally:
        os.close(fd)
    assert answer["values"] == 2 * PAGES + 1, answer


@pytest.fixture
def disked(daemon, folder):
    d = daemon("--disk", folder, "--disk-bytes", "256M")
    d.namespace(layout=LAYOUT)
    d.keys = put(d)
    on_disk(d)
    return d


def session_text(d, c):
    return d.read("sessions", str(c.attached.session))


def test_strides_classes_and_the_row(mount):
    keys = put(mount)
    with Client(mount.path("ns/x/ctl")) as c, Memory(512 << 10) as m:
        assert c.import_file(5, m.fd) == (0, "")
        assert c.get_start(1, keys).transferable_len == 64 * PAGES
        r = c.get_into(1, 5, 64 * PAGES, **PLACES)
        assert (r.delivered_len, r.values, r.handle_ended) == (64 * PAGES, 2 * PAGES + 1, 1)
        assert r.bytes == PAGES * (KV + IX) + STATE
        assert m.read(0, m.size) == whole(keys)
        stats = c.stats()
        assert (stats["values_imported"], stats["bytes_imported"], stats["values_given"]) == (str(r.values), str(r.bytes), "0")
        text = session_text(mount, c)
        assert f"imports: 1\nimport 5: bytes={m.size} written={r.bytes} requests=0\n" in text
        assert "get_plans: 0\nhandles: 0\n" in text and "pins: 0\n" in text


def test_a_range_a_class_and_blocks_in_any_order(mount):
    keys = put(mount)
    with Client(mount.path("ns/x/ctl")) as c, Memory(512 << 10) as m:
        c.import_file(5, m.fd)
        c.get_start(1, keys)
        blocks = [9, 0, 31, 4]
        r = c.get_into(1, 5, 64 * PAGES, 64 * 3, 64 * 7, blocks, base=17, stride=KV + 3, class_mask=1)
        assert (r.delivered_len, r.values, r.bytes, r.handle_ended) == (64 * 7, 4, 4 * KV, 0)
        expected = bytearray(b"\xee" * m.size)
        for block, k in zip(blocks, keys[3:]):
            at = 17 + block * (KV + 3)
            expected[at:at + KV] = kv(k)
        assert m.read(0, m.size) == expected
        r = c.get_into(1, 5, 64 * PAGES, 64 * 15, class_mask=4, state_base=m.size - STATE)
        assert (r.values, r.handle_ended) == (1, 1)
        assert m.read(m.size - STATE, STATE) == st(keys[-1])


def test_a_read_only_session_and_no_acknowledged_range(mount):
    keys = put(mount)
    with Client(mount.path("ns/x/ctl"), os.O_RDONLY) as c, Memory(512 << 10) as m:
        assert c.import_file(1, m.fd)[0] == 0
        c.get_start(1, keys)
        c.get_into(1, 1, 64 * PAGES, **PLACES)
        assert m.read(0, m.size) == whole(keys)


@pytest.mark.parametrize("how, error, said", [
    ("read-only", errno.EBADF, "not open for writing"), ("pipe", errno.EINVAL, "no file"),
    ("ctl", errno.EINVAL, "no file in memory"), ("holes", errno.EINVAL, "populate it first"),
    ("empty", errno.EINVAL, "empty"), ("sealed", errno.EPERM, "sealed against writing"), ("none", errno.EBADF, "none did"),
    ("two", errno.EBADF, "could not be received"), ("append", errno.EINVAL, "O_APPEND")])
def test_what_is_no_memory_file(mount, how, error, said):
    with Client(mount.path("ns/x/ctl")) as c, Memory(65536) as m:
        fds, own = [m.fd], []
        if how == "read-only":
            fds = own = [os.open(f"/proc/self/fd/{m.fd}", os.O_RDONLY)]
        elif how == "append":
            fcntl.fcntl(m.fd, fcntl.F_SETFL, os.O_APPEND)
        elif how == "pipe":
            own = list(os.pipe())
            fds = own[1:]
        elif how == "ctl":
            fds = [c.fd]
        elif how == "holes":
            os.ftruncate(m.fd, 1 << 20)
        elif how == "empty":
            os.ftruncate(m.fd, 0)
        elif how == "sealed":
            fcntl.fcntl(m.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        elif how == "none":
            fds = []
        elif how == "two":
            fds = [m.fd, m.fd]
        a = c.call("IMPORT", import_=1)
        path = c.attached.socket_path.decode()
        status, text, received = show_token(path, bytes(a.token), kind=HELLO_IMPORT, fds=fds)
        assert (status, received) == (-error, []) and said in text, text
        for fd in own:
            os.close(fd)
        assert "import 1: its descriptor has not come\n" in session_text(mount, c)
        with Memory(4096) as good:  # the same id again
            assert c.import_file(1, good.fd)[0] == 0


def test_ids_tokens_and_limits(mount):
    with Client(mount.path("ns/x/ctl")) as c, Memory(65536) as m:
        path = c.attached.socket_path.decode()
        assert errno_of(c.call, "IMPORT", import_=0) == errno.EINVAL
        assert errno_of(c.call, "IMPORT", import_=1, flags=2) == errno.EINVAL
        a = c.call("IMPORT", import_=1)
        assert a.token_ttl_ms > 0
        assert show_token(path, bytes(a.token))[0] == -errno.ENOENT, "no token of ATTACH"
        assert show_token(path, bytes(a.token), kind=2, fds=[m.fd])[:2] == (-errno.EINVAL, "hello: there is no kind 2")
        assert show_token(path, bytes(16), kind=HELLO_IMPORT, fds=[m.fd])[0] == -errno.ENOENT
        assert show_token(path, bytes(a.token), kind=HELLO_IMPORT, fds=[m.fd])[0] == 0
        assert show_token(path, bytes(a.token), kind=HELLO_IMPORT, fds=[m.fd])[0] == -errno.ENOENT
        assert errno_of(c.call, "IMPORT", import_=1) == errno.EEXIST
        for i in range(2, 17):
            assert c.import_file(i, m.fd)[0] == 0
        with pytest.raises(Refused, match="16, the most") as refused:
            c.call("IMPORT", import_=17)
        assert refused.value.errno == errno.EDQUOT
        c.call("IMPORT", import_=3, flags=IMPORT_DROP)
        assert errno_of(c.call, "IMPORT", import_=3, flags=IMPORT_DROP) == errno.ENOENT
        assert c.import_file(17, m.fd)[0] == 0
        assert c.last_error().text.decode() == "this session has no import 3"


def descriptors(d):
    folder = f"/proc/{d.serving()}/fd"
    links = []
    for name in os.listdir(folder):
        try:
            links.append(os.readlink(os.path.join(folder, name)))
        except FileNotFoundError:
            pass
    return sum("memfd:engine" in link for link in links)


def test_they_end_with_the_session(mount):
    with Memory(65536) as m:
        with Client(mount.path("ns/x/ctl")) as c:
            for i in range(1, 6):
                c.import_file(i, m.fd)
            assert descriptors(mount) == 5
            c.call("IMPORT", import_=1, flags=IMPORT_DROP)
            assert descriptors(mount) == 4
        wait_for(lambda: descriptors(mount) == 0, 10, "the end of the imports")


def test_places_outside_and_sentences(mount):
    keys = put(mount)
    with Client(mount.path("ns/x/ctl")) as c, Memory(65536) as m:
        c.import_file(1, m.fd)
        c.get_start(1, keys)

        def refused(error, said, handle=1, number=1, **fields):
            with pytest.raises(Refused) as e:
                c.get_into(handle, number, 64 * PAGES, **{"class_mask": 1, "stride": KV, **fields})
            assert e.value.errno == error and said in e.value.text, e.value
            assert e.value.reply.delivered_len == fields.get("start", 0)

        refused(errno.ERANGE, "class 0: a value would end at byte 73728 of import 1, which has 65536")
        refused(errno.ERANGE, "class 0", to=64, base=(1 << 64) - 1)
        refused(errno.ERANGE, "class 0", to=64, blocks=[0xffffffff], stride=1 << 40)
        refused(errno.ERANGE, "class 2", start=64 * 15, class_mask=4, state_base=65536 - STATE + 1)
        refused(errno.EINVAL, "stride: 8191 bytes", stride=KV - 1)
        refused(errno.EINVAL, "flags", flags=1)
        refused(errno.EINVAL, "handle", handle=0)
        refused(errno.EINVAL, "import", number=0)
        refused(errno.ENOENT, "no import 2", number=2)
        refused(errno.ENOENT, "no handle 7", handle=7)
        refused(errno.EINVAL, "from", start=3)
        c.call("IMPORT", import_=2)
        refused(errno.EINVAL, "has not come", number=2)
        assert m.read(0, m.size) == b"\xee" * m.size
        c.get_into(1, 1, 64 * PAGES, to=64 * 8, class_mask=1, stride=KV)
        assert m.read(0, m.size) == b"".join(kv(k) for k in keys[:8])


def test_a_file_that_gets_shorter(mount):
    keys = put(mount)
    with Client(mount.path("ns/x/ctl")) as c, Memory(512 << 10) as m:
        c.import_file(1, m.fd)
        c.get_start(1, keys)
        os.ftruncate(m.fd, 100)
        with pytest.raises(Refused, match="it had 524288 when it came") as e:
            c.get_into(1, 1, 64 * PAGES, **PLACES)
        assert e.value.errno == errno.EFAULT
        os.pwrite(m.fd, b"\xee" * m.size, 0)
        c.get_into(1, 1, 64 * PAGES, **PLACES)
        assert m.read(0, m.size) == whole(keys)


@pytest.mark.concurrency
def test_a_file_that_gets_shorter_and_longer_all_the_time(mount):
    """Errors, or the bytes; and the daemon lives."""
    keys = put(mount)
    over = threading.Event()

    def scissors(m):
        while not over.is_set():
            os.ftruncate(m.fd, 50000)
            os.pwrite(m.fd, b"\xee" * m.size, 0)

    serving = mount.serving()
    with Client(mount.path("ns/x/ctl")) as c, Memory(512 << 10) as m:
        c.import_file(1, m.fd)
        cutter = threading.Thread(target=scissors, args=(m,))
        cutter.start()
        try:
            for handle in range(1, 150):
                c.get_start(handle, keys)
                error = errno_of(c.get_into, handle, 1, 64 * PAGES, **PLACES)
                assert error in (0, errno.EFAULT)
                if error:
                    c.call("GET_CANCEL", handle=handle)
        finally:
            over.set()
            cutter.join()
        c.get_start(1000, keys)
        c.get_into(1000, 1, 64 * PAGES, **PLACES)
        assert m.read(8300, IX) == ix(keys[0])
    assert mount.serving() == serving


def test_from_disk_without_a_slot(disked):
    d = disked
    with Client(d.path("ns/x/ctl")) as c, Memory(512 << 10) as m:
        c.import_file(1, m.fd)
        g = c.get_start(1, d.keys, flags=NO_AHEAD)
        assert g.bytes[1] == PAGES * (KV + IX) + STATE and g.bytes[0] == 0
        free = c.stats()["slots_free"]
        r = c.get_into(1, 1, 64 * PAGES, **PLACES)
        assert (r.delivered_len, r.values, r.handle_ended) == (64 * PAGES, 2 * PAGES + 1, 1)
        assert m.read(0, m.size) == whole(d.keys)
        stats = c.stats()
        assert (stats["values_promoted"], stats["slots_free"]) == ("0", free)
        assert stats["keys_led"] == str(PAGES)


def test_nonblock_reads_no_disk(disked):
    d = disked
    with Client(d.path("ns/x/ctl")) as c, Memory(512 << 10) as m:
        c.import_file(1, m.fd)
        c.get_start(1, d.keys, flags=NO_AHEAD)
        with pytest.raises(Refused, match="is on disk, and NONBLOCK") as e:
            c.get_into(1, 1, 64 * PAGES, call_flags=NONBLOCK, **PLACES)
        assert e.value.errno == errno.EAGAIN
        assert m.read(0, m.size) == b"\xee" * m.size
        c.get_into(1, 1, 64 * PAGES, **PLACES)
        assert m.read(0, m.size) == whole(d.keys)


@pytest.mark.concurrency
def test_two_sessions_at_once(disked):
    d = disked
    wrong = []

    def engine(shift):
        with Client(d.path("ns/x/ctl")) as c, Memory(1 << 20) as m:
            c.import_file(1, m.fd)
            for handle in range(1, 31):
                c.get_start(handle, d.keys, flags=NO_AHEAD if handle % 2 else 0)
                places = {**PLACES, "base": shift * handle, "state_base": 600000}
                r = c.get_into(handle, 1, 64 * PAGES, **places)
                for i, k in enumerate(d.keys):
                    at = shift * handle + i * 13000
                    if m.read(at + 1, KV) != kv(k) or m.read(at + 8300, IX) != ix(k):
                        wrong.append((shift, handle, i))
                if r.delivered_len != 64 * PAGES or m.read(600001, STATE) != st(d.keys[-1]):
                    wrong.append((shift, handle))

    threads = [threading.Thread(target=engine, args=(shift,)) for shift in (1, 4096)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_a_faulty_disk(daemon, folder):
    d = daemon("--disk", folder, "--disk-bytes", "256M", "--disk-fault", "read:flip:=3")
    d.namespace(layout=LAYOUT)
    keys = put(d)
    on_disk(d)
    with Client(d.path("ns/x/ctl")) as c, Memory(512 << 10) as m:
        c.import_file(1, m.fd)
        delivered = set()
        for handle in range(1, 12):
            g = c.get_start(handle, keys, flags=NO_AHEAD, class_mask=3)
            if not g.handle_live:
                break
            r = c.get_into(handle, 1, g.transferable_len, class_mask=3, **PLACES)
            delivered.add(r.delivered_len)
            if not r.handle_ended:
                c.call("GET_CANCEL", handle=handle)
            for i, k in enumerate(keys[:r.delivered_len // 64]):
                assert m.read(i * 13000 + 1, KV) == kv(k) and m.read(i * 13000 + 8300, IX) == ix(k)
        assert delivered and min(delivered) < 64 * PAGES
        for i, k in enumerate(keys):  # right, or not written: never wrong
            assert m.read(i * 13000 + 1, KV) in (kv(k), b"\xee" * KV)


def test_a_session_killed_while_it_waits(daemon, folder, peer):
    d = daemon("--disk", folder, "--disk-bytes", "256M")
    d.namespace(layout=LAYOUT)
    put(d)
    on_disk(d)

    def engine(p, path):
        with Client(path) as c, Memory(512 << 10) as m:
            c.import_file(1, m.fd)
            p.tell("ready")
            for handle in range(1, 100000):
                c.get_start(handle, keys_of(), flags=NO_AHEAD)
                c.get_into(handle, 1, 64 * PAGES, **PLACES)

    for _ in range(5):
        e = peer(engine, d.path("ns/x/ctl"))
        assert e.hear() == "ready"
        before = int(d.stats()["values_imported"])
        wait_for(lambda before=before: int(d.stats()["values_imported"]) > before + 100, 10)
        e.kill()
        e.wait()
        wait_for(lambda: descriptors(d) == 0, 10, "the end of the imports")
        wait_for(lambda: d.stats()["sessions"] == "0" and d.stats()["pins"] == "0", 10)
    assert d.stats()["handles"] == "0" and d.stats()["slots_owed"] == "0"


def test_the_daemon_stops_in_the_middle(disked):
    d = disked
    errors = []

    def engine():
        with Client(d.path("ns/x/ctl")) as c, Memory(512 << 10) as m:
            c.import_file(1, m.fd)
            started.set()
            for handle in range(1, 1000000):
                try:
                    c.get_start(handle, d.keys, flags=NO_AHEAD)
                    c.get_into(handle, 1, 64 * PAGES, **PLACES)
                except OSError as e:
                    errors.append(e.errno)
                    return

    started = threading.Event()
    t = threading.Thread(target=engine)
    t.start()
    started.wait()
    wait_for(lambda: int(d.stats()["values_imported"]) > 100, 10)
    status, _ = d.stop()
    t.join()
    assert status == 0 and errors[0] in (errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED)


def test_a_descriptor_with_an_attach_is_let_go(mount):
    with Client(mount.path("ns/x/ctl"), attach=False) as c, Memory(4096) as m:
        a = c.ask_attach()
        path = a.socket_path.decode()
        assert show_token(path, bytes(16), fds=[m.fd])[0] == -errno.ENOENT
        assert show_token(path, bytes(16), kind=HELLO_IMPORT, fds=[m.fd])[0] == -errno.ENOENT
        status, _, received = show_token(path, bytes(a.token), fds=[m.fd])
        assert status == 0 and len(received) == 2
        assert descriptors(mount) == 0
        for fd in received:
            os.close(fd)


def test_the_library(mount, program):
    r = subprocess.run([program("tests/scenario/client_import"), mount.path("ns/x")], capture_output=True, text=True,
                       timeout=60, check=False)
    assert (r.returncode, r.stderr) == (0, "")


def test_the_library_brings_them_anew(mount, program):
    """The daemon dies between two transfers."""
    p = subprocess.Popen([program("tests/scenario/client_import"), mount.path("ns/x"), "wait"], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert p.stdout.readline() == "ready\n"
        old = mount.serving()
        os.kill(old, signal.SIGKILL)
        wait_for(lambda: mount.serving() not in (None, old), 20, "a new daemon")
        mount.wait_ready(2)
        out, said = p.communicate("go\n", timeout=30)
        assert p.returncode == 0
        assert re.fullmatch(r"prefixfs: .*/ns/x/ctl: attached anew after \d+ ms; memory kept; 0 plans lost\n", said), said
    finally:
        p.kill()
        p.wait()
