# SPDX-License-Identifier: Apache-2.0
"""The mount as people use it: ls, cat, stat, chmod, mkdir, rm."""
import errno
import json
import os
import re
import shutil
import stat
import subprocess
import time

import pytest

from mounted import PLAIN_LAYOUT, STATE_LAYOUT, wait_for
from raw import NONE64, Client, errno_of, key, name_of

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def shell(command, cwd, **more):
    return subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=30, check=False,
                          **more)


def chain(client, first, count, parent=None, before=0, plan=None, fill=None):
    """A record of @count pages; their keys."""
    keys = [key(first, i) for i in range(count)]
    client.put(plan or first, parent, (before + count) * 64, keys,
               [bytes([(fill or first + i) & 255]) * 8192 for i in range(count)])
    return keys


def test_root_has_what_the_readme_names(daemon):
    d = daemon()
    assert sorted(os.listdir(d.mount)) == ["README", "config", "events", "health", "metrics", "ns", "sessions", "tiers",
                                           "version"]
    assert d.read("health").splitlines()[0] == "ok"
    assert "memory bytes=67108864 used=0 state=ok" in d.read("tiers")
    config = dict(line.partition(" ")[::2] for line in d.read("config").splitlines())
    assert config["memory"] == str(64 << 20) and config["run_dir"] == d.run
    assert d.read("version").startswith("prefixfs ")
    for name in ("README", "config", "health", "tiers", "version"):
        text = d.read(name)
        assert text.endswith("\n")
        for command in (f"cat {name} | wc -c", f"wc -c < {name}", f"grep -c '' {name}", f"cp {name} /dev/stdout | wc -c"):
            r = shell(command, d.mount)
            assert r.returncode == 0 and r.stderr == "", (command, r)
            if name != "health":  # its uptime grows
                assert int(r.stdout) == (text.count("\n") if "grep" in command else len(text.encode())), command


def test_small_file_is_a_snapshot_of_its_opening(daemon):
    d = daemon()
    with open(d.path("tiers"), "rb", buffering=0) as f:
        first = f.read(6)
        d.namespace()
        with Client(d.path("ns/x/ctl")) as c:
            c.acknowledge()
            chain(c, 1, 4)
        rest = f.read()
    assert first + rest == b"memory bytes=67108864 used=0 state=ok floors=0 granted=0 free=67108864 owed=0\n"
    assert "used=32768" in d.read("tiers")


def test_layout_makes_a_namespace(daemon):
    d = daemon()
    ns = d.path("ns/x")
    os.mkdir(ns)
    assert sorted(os.listdir(ns)) == ["layout", "layout.error"]
    assert d.read("ns/x/layout") == "" and d.read("ns/x/layout.error") == ""
    r = shell("echo '{\"version\": 1}' > layout", ns)
    assert r.returncode == 1 and "Invalid argument" in r.stderr
    why = d.read("ns/x/layout.error")
    assert "identity" in why or "world" in why or "missing" in why, why
    r = shell("cat > layout", ns, input=json.dumps(PLAIN_LAYOUT, indent=1) + "\n")
    assert r.returncode == 0, r
    assert sorted(os.listdir(ns)) == ["checkpoints", "ctl", "funnel", "layout", "pages", "records", "segment", "stats"]
    text = d.read("ns/x/layout")
    assert json.loads(text)["identity"]["model"] == "test/plain"
    assert os.stat(d.path("ns/x/layout")).st_size == len(text)
    assert errno_of(open, d.path("ns/x/layout"), "w", encoding="ascii") == errno.EPERM
    assert errno_of(os.mkdir, ns) == errno.EEXIST
    assert "bytes: 67108864" in d.read("ns/x/segment")
    os.rmdir(ns)
    assert os.listdir(d.path("ns")) == []
    d.namespace()
    assert d.stats()["put_calls"] == "0"


def test_stats_are_those_that_the_handbook_explains(daemon):
    """A counter that nobody counted stood in both."""
    d = daemon()
    d.namespace()
    with open(os.path.join(ROOT, "docs/operating.md"), encoding="utf-8") as f:
        section = f.read().split("\n## Counters\n")[1].split("\n## ")[0]
    assert [n for n in d.stats() if "." not in n] == re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_layout_in_pieces(daemon):
    d = daemon()
    os.mkdir(d.path("ns/x"))
    text = json.dumps(PLAIN_LAYOUT).encode()
    fd = os.open(d.path("ns/x/layout"), os.O_WRONLY | os.O_TRUNC)
    for i in range(0, len(text), 50):
        assert os.write(fd, text[i:i + 50]) == len(text[i:i + 50])
    assert os.write(fd, b"\n") == 1  # white space behind it
    assert errno_of(os.write, fd, b"x") == errno.EEXIST
    os.close(fd)
    assert "stats" in os.listdir(d.path("ns/x"))


def test_layout_error_says_that_the_text_is_incomplete(daemon):
    """It said nothing, or what had been wrong with the text before."""
    d = daemon()
    os.mkdir(d.path("ns/x"))
    fd = os.open(d.path("ns/x/layout"), os.O_WRONLY | os.O_TRUNC)
    assert errno_of(os.write, fd, b"} nonsense") == errno.EINVAL
    assert os.write(fd, b"{") == 1
    assert d.read("ns/x/layout.error") == "layout: the text is incomplete: 1 byte so far\n"
    assert os.write(fd, b'"version": ') == 11
    os.close(fd)
    assert d.read("ns/x/layout.error") == "layout: the text is incomplete: 12 bytes so far\n"
    fd = os.open(d.path("ns/x/layout"), os.O_WRONLY | os.O_TRUNC)
    assert d.read("ns/x/layout.error") == ""
    assert errno_of(os.write, fd, b"{}") == errno.EINVAL
    assert "incomplete" not in d.read("ns/x/layout.error") != ""
    assert os.write(fd, json.dumps(PLAIN_LAYOUT).encode()) > 0
    os.close(fd)
    assert "stats" in os.listdir(d.path("ns/x"))


def test_layout_refusals_are_errors_of_write(daemon):
    d = daemon()
    os.mkdir(d.path("ns/x"))
    fd = os.open(d.path("ns/x/layout"), os.O_WRONLY)
    assert errno_of(os.write, fd, b"} nonsense") == errno.EINVAL
    assert errno_of(os.pwrite, fd, b"x", 100) == errno.EINVAL
    assert "do not follow" in d.read("ns/x/layout.error")
    huge = b'{"version": "' + b"x" * (128 << 10)
    assert errno_of(os.write, fd, huge) in (errno.EFBIG, errno.EINVAL)
    os.close(fd)
    big = dict(PLAIN_LAYOUT, memory={"floor": 1 << 40})
    with open(d.path("ns/x/layout"), "wb", buffering=0) as f:
        assert errno_of(f.write, json.dumps(big).encode()) == errno.ENOSPC
    assert str(1 << 40) in d.read("ns/x/layout.error")
    assert sorted(os.listdir(d.path("ns/x"))) == ["layout", "layout.error"]
    os.rmdir(d.path("ns/x"))


@pytest.mark.parametrize("name,expected", [(".hidden", errno.EINVAL), ("a b", errno.EINVAL), ("x" * 65, errno.ENAMETOOLONG),
                                           ("\xe9", errno.EINVAL)])
def test_names_of_namespaces(daemon, name, expected):
    d = daemon()
    assert errno_of(os.mkdir, d.path("ns", name)) == expected


def test_what_the_tree_cannot_do(daemon):
    d = daemon()
    d.namespace()
    assert errno_of(os.mkdir, d.path("new")) == errno.EROFS
    assert errno_of(os.mkdir, d.path("ns/x/records/new")) == errno.EROFS
    assert errno_of(open, d.path("ns/x/new"), "w", encoding="ascii") == errno.EROFS
    assert errno_of(os.symlink, "a", d.path("ns/link")) == errno.EROFS
    assert errno_of(os.rename, d.path("ns/x"), d.path("ns/y")) == errno.EROFS
    assert errno_of(os.link, d.path("version"), d.path("other")) == errno.EROFS
    assert errno_of(os.unlink, d.path("version")) == errno.EPERM
    assert errno_of(os.unlink, d.path("ns/x/stats")) == errno.EPERM
    assert errno_of(os.rmdir, d.path("ns/x/records")) == errno.EPERM
    assert errno_of(os.rmdir, d.path("ns")) == errno.EPERM
    assert errno_of(os.rmdir, d.path("ns/none")) == errno.ENOENT
    assert errno_of(os.chmod, d.path("version"), 0o777) == errno.EPERM
    assert errno_of(os.utime, d.path("version")) == errno.EPERM
    assert errno_of(os.truncate, d.path("version"), 0) == errno.EPERM
    assert errno_of(open, d.path("version"), "w", encoding="ascii") == errno.EPERM
    assert errno_of(os.getxattr, d.path("version"), "user.x") in (errno.EOPNOTSUPP, errno.ENODATA)
    assert errno_of(os.stat, d.path("nothing")) == errno.ENOENT
    assert errno_of(os.listdir, d.path("version")) == errno.ENOTDIR


def test_records_show_what_was_put(daemon):
    d = daemon()
    d.namespace(layout=STATE_LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        a = chain(c, 1, 3)
        b = chain(c, 50, 2, parent=a[-1], before=3)
        names = {name_of(192, a[-1]), name_of(320, b[-1])}
        assert set(os.listdir(d.path("ns/x/records"))) == names
        first, second = name_of(192, a[-1]), name_of(320, b[-1])
        assert sorted(os.listdir(d.path("ns/x/records", first))) == ["header", "pages"]
        assert sorted(os.listdir(d.path("ns/x/records", second))) == ["header", "pages", "parent"]
        header = dict(line.split(": ", 1) for line in d.read("ns/x/records", first, "header").splitlines())
        assert header["key"] == a[-1].hex() and header["consumed"] == "192" and header["pages"] == "3"
        assert header["values"] == "3" and header["absent"] == "0" and header["children"] == "1"
        assert header["root"] == "yes" and header["tiers"] == "memory" and header["row_values"] == "0"
        pages = d.path("ns/x/records", first, "pages")
        assert os.stat(pages).st_size == 3 * 8192
        with open(pages, "rb") as f:
            assert f.read() == b"".join(bytes([1 + i]) * 8192 for i in range(3))
            assert os.pread(f.fileno(), 10, 8190) == b"\1\1" + b"\2" * 8
            assert os.pread(f.fileno(), 10, 3 * 8192) == b""
        assert os.readlink(d.path("ns/x/records", second, "parent")) == "../" + first
        assert os.path.samefile(d.path("ns/x/records", second, "parent"), d.path("ns/x/records", first))
        assert os.stat(d.path("ns/x/records", first)).st_ino != os.stat(d.path("ns/x/records", second)).st_ino
        usage = os.statvfs(d.mount)
        assert usage.f_blocks * usage.f_frsize == 64 << 20 and usage.f_files - usage.f_ffree == 2
        assert (usage.f_blocks - usage.f_bfree) * usage.f_frsize == 5 * 8192


def test_row_and_absent_values(daemon):
    d = daemon()
    d.namespace(layout=STATE_LAYOUT)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        keys = [key(7, i) for i in range(2)]
        c.put_start(1, [(None, 128, keys, {"class_mask": 3})], class_mask=3, answers=3)
        assert all(a < NONE64 - 15 for a in c.put_answers)
        for offset, value in zip(c.put_answers, (b"a" * 8192, b"b" * 8192, b"s" * 5000)):
            c.segment[offset:offset + len(value)] = value
        c.put_end("PUT_COMMIT", 1)
        c.put_start(2, [(None, 40, [key(8, 0)], {"class_mask": 2, "flags": 4})], class_mask=2, answers=1)
        row_only = c.put_status
        offset = c.put_answers[0]
        c.segment[offset:offset + 5000] = b"t" * 5000
        c.put_end("PUT_COMMIT", 2)
    assert row_only == [0]
    record = name_of(128, keys[-1])
    with open(d.path("ns/x/records", record, "row"), "rb") as f:
        assert f.read() == b"s" * 5000 + bytes(8192 - 5000)
    other = name_of(40, key(8, 0))
    assert os.stat(d.path("ns/x/records", other, "pages")).st_size == 0
    with open(d.path("ns/x/records", other, "row"), "rb") as f:
        assert f.read(5000) == b"t" * 5000


def test_absent_value_is_enodata(daemon):
    """A page that lacks a class keeps that value's place in `pages`, and reading there says so."""
    layout = dict(PLAIN_LAYOUT, classes=PLAIN_LAYOUT["classes"] + [
        {"name": "index", "kind": "dense", "planes": [{"name": "I", "bytes": 100}]}])
    d = daemon()
    d.namespace(layout=layout)
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        c.put(1, None, 128, [key(1), key(2)], [b"a" * 8192, b"b" * 8192], class_mask=1)
    record = d.path("ns/x/records", name_of(128, key(2)))
    assert os.stat(os.path.join(record, "pages")).st_size == 2 * (8192 + 4096)
    header = dict(line.split(": ", 1) for line in d.read(record, "header").splitlines())
    assert header["values"] == "2" and header["absent"] == "2"
    with open(os.path.join(record, "pages"), "rb") as f:
        assert os.pread(f.fileno(), 8192, 0) == b"a" * 8192
        assert errno_of(os.pread, f.fileno(), 10, 8192) == errno.ENODATA
        assert os.pread(f.fileno(), 9000, 8192 + 4096) == b"b" * 8192
        assert os.pread(f.fileno(), 100, 2 * (8192 + 4096)) == b""


def test_failed_read_of_memory_is_an_error(daemon):
    d = daemon("--memory-fault", "read:EIO:1")
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        a = chain(c, 1, 3)
    with open(d.path("ns/x/records", name_of(192, a[-1]), "pages"), "rb") as f:
        assert errno_of(f.read) == errno.EIO
    assert d.read("health").startswith("degraded: ")
    assert d.stats()["pins"] == "0"


def test_rm_r_evicts_whole_or_not_at_all(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        a = chain(c, 1, 3)
        b = chain(c, 50, 2, parent=a[-1], before=3)
        parent, child = (d.path("ns/x/records", n) for n in (name_of(192, a[-1]), name_of(320, b[-1])))
        r = shell(f"rm -r {parent}", d.mount)
        assert r.returncode == 1 and "not empty" in r.stderr
        assert d.read(parent, "header")
        c.get_start(1, b, start=192)
        r = shell(f"rm -r {child}", d.mount)
        assert r.returncode == 1 and "busy" in r.stderr, r
        assert sorted(os.listdir(child)) == ["header", "pages", "parent"]
        c.call("GET_CANCEL", handle=1)
        r = shell(f"rm -r {child}", d.mount)
        assert r.returncode == 0 and r.stderr == ""
        assert not os.path.exists(child)
        shutil.rmtree(parent)
        assert os.listdir(d.path("ns/x/records")) == []
        assert c.probe(a + b).hits == 0
    usage = os.statvfs(d.mount)
    assert usage.f_blocks == usage.f_bfree


def test_namespace_is_not_removed_under_a_session(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        chain(c, 1, 2)
        assert errno_of(os.rmdir, d.path("ns/x")) == errno.EBUSY
    wait_for(lambda: errno_of(os.rmdir, d.path("ns/x")) == 0, 2)  # the kernel tells of a close in its own time
    assert os.listdir(d.path("ns")) == []


def test_evicted_name_is_gone_at_once(daemon):
    """The kernel remembers names for a second; it is told when one goes."""
    d = daemon("--memory", "16M")
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        a = chain(c, 1, 100)
        path = d.path("ns/x/records", name_of(6400, a[-1]))
        os.stat(path)
        os.stat(os.path.join(path, "header"))
        for i in range(2, 2000):  # over the budget
            c.put_start(i, [(None, 6400, [key(i, n) for n in range(100)])])
            if c.put_status == [0]:
                c.put_end("PUT_COMMIT", i)
            c.acknowledge()
            if c.probe(a[-1:]).hits == 0:
                break
            time.sleep(0.002)
        else:
            pytest.fail("nothing was evicted")
        time.sleep(0.1)
        assert errno_of(os.stat, path) == errno.ENOENT


def test_sessions_show_who_is_there(daemon):
    d = daemon()
    d.namespace()
    assert os.listdir(d.path("sessions")) == []
    with Client(d.path("ns/x/ctl")) as c:
        assert os.listdir(d.path("sessions")) == [str(c.attached.session)]
        text = dict(line.split(": ", 1) for line in d.read("sessions", str(c.attached.session)).splitlines())
        assert text["namespace"] == "x" and text["attached"] == "yes" and text["pid"] == str(os.getpid())
        errno_of(c.call, "GET_CANCEL", handle=77)
        assert "77" in d.read("sessions", str(c.attached.session)).split("last error: ")[1]
    assert os.listdir(d.path("sessions")) == []
    assert errno_of(os.stat, d.path("sessions/4096x")) == errno.ENOENT


def as_user(uid, function, *arguments, **more):
    """The errno of a call made with another uid, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        os._exit(errno_of(function, *arguments, **more))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_permissions_are_the_namespaces(daemon):
    d = daemon("--mode", "0755")
    d.namespace(mode=0o750)
    ns = d.path("ns/x")
    with Client(os.path.join(ns, "ctl")) as c:
        c.acknowledge()
        a = chain(c, 1, 2)
    record = os.path.join(ns, "records", name_of(128, a[-1]))
    assert as_user(1234, os.listdir, ns) == errno.EACCES
    assert as_user(1234, os.mkdir, d.path("ns/y")) == errno.EACCES
    os.chmod(ns, 0o755)
    assert as_user(1234, os.chmod, ns, 0o777) == errno.EPERM
    assert stat.S_IMODE(os.stat(ns).st_mode) == 0o755
    assert as_user(1234, os.listdir, record) == 0
    assert as_user(1234, os.open, os.path.join(record, "pages"), os.O_RDONLY) == 0
    assert as_user(1234, os.open, os.path.join(ns, "ctl"), os.O_RDWR) == errno.EACCES
    assert as_user(1234, os.rmdir, record) == errno.EACCES
    assert as_user(1234, Client, os.path.join(ns, "ctl"), os.O_RDWR) == errno.EACCES
    assert as_user(1234, Client, os.path.join(ns, "ctl"), os.O_RDONLY) == 0
    os.chown(ns, 1234, 1234)
    assert as_user(1234, Client, os.path.join(ns, "ctl"), os.O_RDWR) == 0
    assert as_user(1234, os.chmod, ns, 0o700) == 0
    assert as_user(1235, os.listdir, ns) == errno.EACCES
    assert as_user(1234, os.rmdir, record) == 0
    assert as_user(1234, os.rmdir, ns) == errno.EACCES  # that is ns/'s owner's


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_maker_owns_a_namespace(daemon):
    d = daemon("--mode", "1777")
    old = os.umask(0o027)
    assert as_user(1234, os.mkdir, d.path("ns/mine")) == 0
    os.umask(old)
    st = os.stat(d.path("ns/mine"))
    assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (1234, 1234, 0o750)
    assert as_user(1235, os.rmdir, d.path("ns/mine")) == errno.EPERM  # sticky
    assert as_user(1234, os.rmdir, d.path("ns/mine")) == 0


def test_many_records_are_listed_while_they_come_and_go(daemon):
    d = daemon()
    d.namespace()
    with Client(d.path("ns/x/ctl")) as c:
        c.acknowledge()
        for n in range(8):
            groups = [(None, 64, [key(n, i)]) for i in range(250)]
            c.put_start(n + 1, groups)
            c.put_end("PUT_COMMIT", n + 1, groups=250)
            c.acknowledge()
        names = os.listdir(d.path("ns/x/records"))
        assert len(names) == len(set(names)) == 2000
        seen = set()
        with os.scandir(d.path("ns/x/records")) as entries:
            for i, e in enumerate(entries):
                assert e.is_dir(follow_symlinks=False)
                seen.add(e.name)
                if i == 100:
                    for n in range(250):
                        os.rmdir(d.path("ns/x/records", name_of(64, key(7, n))))
        kept = {name_of(64, key(n, i)) for n in range(7) for i in range(250)}
        assert kept <= seen
        assert set(os.listdir(d.path("ns/x/records"))) == kept
