# SPDX-License-Identifier: Apache-2.0
"""The control ABI by hand, without libprefixfs: structs, ioctls, the socket. For what a library would never send."""
import array
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import struct

U8, U32, U64, S32 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32
NONE32 = 0xFFFFFFFF
NONE64 = 0xFFFFFFFFFFFFFFFF
NONBLOCK = 1
WAIT_INFLIGHT = 1
NO_AHEAD = 2
HELLO_ATTACH, HELLO_IMPORT = range(2)
IMPORT_DROP = 1
WAIT_PREWARM = 1
ANSWERS = {NONE64: "none", NONE64 - 1: "exists", NONE64 - 2: "inflight", NONE64 - 3: "duplicate"}
GROUP_ROOT, GROUP_WHOLE, GROUP_ROW_ONLY, GROUP_RUNG = 1, 2, 4, 8
REMOVED, REMOVE_ABSENT, REMOVE_BUSY = range(3)
PIN_DONE, PIN_ABSENT, PIN_NOROOM = range(3)
PIN_RELEASE, PIN_ENDPOINTS = 1, 2
BLOB_EXCLUSIVE, BLOB_ABORT, BLOB_END, BLOB_RELEASE = 1, 2, 1, 1
BLOB_FOUND, BLOB_LOCKED, BLOB_RELEASED = 1, 2, 3
OK, NOROOM, TOOBIG, COMMITTED, PENDING, LOST, ABORTED, NOPAGES = range(8)
RANK_NONE = NONE32
CONFIRM_FAILED = 1


class Call(ctypes.Structure):
    _fields_ = [("size", U32), ("flags", U32), ("seq", U64), ("acked_seq", U64), ("deadline_ms", U32),
                ("cpu", U32)]


def struct_of(name, *fields):
    return type(name, (ctypes.Structure,), {"_fields_": [("call", Call)] + list(fields)})


Attach = struct_of("Attach", ("abi_version", U32), ("rank", U32), ("node", U32), ("flags", U32),
                   ("call_buffer_bytes", U64), ("client_id", U8 * 16), ("session", U64), ("segment_bytes", U64),
                   ("segment_page_bytes", U64), ("generation", U64), ("ranges_version", U64), ("world", U32),
                   ("page_tokens", U32), ("classes", U32), ("token_ttl_ms", U32), ("fingerprint", U8 * 16),
                   ("token", U8 * 16), ("read_only", U32), ("share", U32 * 16), ("state_mask", U32),
                   ("socket_path", ctypes.c_char * 104))
Segments = struct_of("Segments", ("ranges_offset", U64), ("first", U32), ("capacity", U32), ("count", U32),
                     ("total", U32), ("version", U64), ("generation", U64))
SegmentsAck = struct_of("SegmentsAck", ("acks_offset", U64), ("count", U32), ("accepted", U32), ("version", U64))
PutStart = struct_of("PutStart", ("plan", U64), ("groups_offset", U64), ("keys_offset", U64), ("answers_offset", U64),
                     ("status_offset", U64), ("groups", U32), ("keys", U32), ("class_mask", U32), ("new_values", U32),
                     ("groups_ok", U32), ("come_again", U32), ("ranges_version", U64))
PutEnd = struct_of("PutEnd", ("plan", U64), ("status_offset", U64), ("first_group", U32), ("groups", U32),
                   ("done", U32), ("outcome", U32))
GetStart = struct_of("GetStart", ("handle", U64), ("keys_offset", U64), ("groups_offset", U64), ("hits_offset", U64),
                     ("restorable_offset", U64), ("missing_offset", U64), ("start", U64), ("have", U64),
                     ("limit", U64), ("ticket", U8 * 16), ("keys", U32), ("groups", U32), ("policy", U32),
                     ("flags", U32), ("class_mask", U32), ("missing_capacity", U32), ("raw_prefix_hit_len", U64),
                     ("transferable_len", U64), ("prefix_hit_groups", U32), ("first_miss_index", U32),
                     ("first_miss_group_index", U32), ("all_hit", U32), ("hits", U32), ("missing", U32),
                     ("candidates", U32), ("wanted", U32), ("handle_live", U32), ("reserved", U32), ("demand", U64),
                     ("bytes", U64 * 4), ("estimate_us", U32 * 4), ("ranges_version", U64))
GetTransfer = struct_of("GetTransfer", ("handle", U64), ("plan", U64), ("boundary", U64), ("from_", U64), ("to", U64),
                        ("offsets_offset", U64), ("class_mask", U32), ("offsets_capacity", U32),
                        ("delivered_len", U64), ("values", U32), ("handle_ended", U32))
GetConfirm = struct_of("GetConfirm", ("ticket", U8 * 16), ("flags", U32), ("reserved", U32), ("restored", U64))
Import = struct_of("Import", ("import_", U64), ("flags", U32), ("token_ttl_ms", U32), ("token", U8 * 16))
GetInto = struct_of("GetInto", ("handle", U64), ("boundary", U64), ("from_", U64), ("to", U64), ("import_", U64),
                    ("base", U64), ("stride", U64), ("blocks_offset", U64), ("state_base", U64),
                    ("class_offset", U64 * 16), ("class_mask", U32), ("flags", U32), ("delivered_len", U64),
                    ("bytes", U64), ("values", U32), ("handle_ended", U32))
GetCancel = struct_of("GetCancel", ("handle", U64))
Release = struct_of("Release", ("plans_offset", U64), ("status_offset", U64), ("count", U32), ("released", U32))
Probe = struct_of("Probe", ("keys_offset", U64), ("hits_offset", U64), ("keys", U32), ("hits", U32), ("prefix", U32),
                  ("reserved", U32))
Stat = struct_of("Stat", ("text_offset", U64), ("capacity", U32), ("bytes", U32))
LastError = struct_of("LastError", ("failed_seq", U64), ("failed_op", U32), ("error", S32), ("text", ctypes.c_char * 480))

Touch = struct_of("Touch", ("keys_offset", U64), ("keys", U32), ("flags", U32), ("priority", U32), ("pause_ms", U32),
                  ("touched", U32), ("reserved", U32))
Remove = struct_of("Remove", ("keys_offset", U64), ("answers_offset", U64), ("keys", U32), ("class_mask", U32),
                   ("removed", U32), ("absent", U32), ("busy", U32), ("reserved", U32), ("values", U64))
Pin = struct_of("Pin", ("keys_offset", U64), ("answers_offset", U64), ("keys", U32), ("flags", U32), ("changed", U32),
                ("absent", U32), ("pinned_bytes", U64), ("limit_bytes", U64))
Drain = struct_of("Drain", ("values", U64), ("bytes", U64), ("disk", U32), ("reserved", U32))
Reset = struct_of("Reset", ("flags", U32), ("held", U32), ("generation", U64), ("values", U64))

BlobPut = struct_of("BlobPut", ("key", U8 * 32), ("name_offset", U64), ("data_offset", U64), ("write", U64),
                    ("offset", U64), ("length", U64), ("version", U64), ("bytes", U32), ("name_bytes", U32),
                    ("flags", U32), ("kind", U32), ("stored", U32), ("reserved", U32))
BlobGet = struct_of("BlobGet", ("key", U8 * 32), ("name_offset", U64), ("data_offset", U64), ("read", U64),
                    ("offset", U64), ("length", U64), ("version", U64), ("created_s", U64), ("used_s", U64),
                    ("capacity", U32), ("name_bytes", U32), ("flags", U32), ("kind", U32), ("bytes", U32),
                    ("ended", U32))
BlobRemove = struct_of("BlobRemove", ("key", U8 * 32), ("name_offset", U64), ("name_bytes", U32), ("reserved", U32))
BlobLock = struct_of("BlobLock", ("key", U8 * 32), ("name_offset", U64), ("name_bytes", U32), ("flags", U32),
                     ("hold_ms", U32), ("answer", U32), ("length", U64), ("version", U64), ("kind", U32),
                     ("left_ms", U32))

Settle = struct_of("Settle", ("session", U64))

OPERATIONS = {"ATTACH": (1, Attach), "SEGMENTS": (2, Segments), "SEGMENTS_ACK": (3, SegmentsAck),
              "PUT_START": (4, PutStart), "PUT_COMMIT": (5, PutEnd), "PUT_ABORT": (6, PutEnd),
              "GET_START": (7, GetStart), "GET_TRANSFER": (8, GetTransfer), "GET_CANCEL": (9, GetCancel),
              "RELEASE": (10, Release), "PROBE": (11, Probe), "STAT": (12, Stat), "LAST_ERROR": (13, LastError), "TOUCH": (17, Touch), "REMOVE": (18, Remove), "PIN": (19, Pin),
              "DRAIN": (22, Drain), "RESET": (23, Reset), "BLOB_PUT": (24, BlobPut), "BLOB_GET": (25, BlobGet),
              "BLOB_REMOVE": (26, BlobRemove), "BLOB_LOCK": (27, BlobLock),
              "IMPORT": (15, Import), "GET_CONFIRM": (16, GetConfirm), "GET_INTO": (28, GetInto), "SETTLE": (29, Settle)}


def grown(kind, *fields):
    """The second version of a struct."""
    return type(kind.__name__ + "2", (ctypes.Structure,), {"_fields_": kind._fields_ + list(fields)})


# Of these every other request is sent as it was built before they grew, unless it names what is new.
GROWN = {"ATTACH": grown(Attach, ("guard_pid", U32), ("reserved1", U32), ("value_bytes", U64 * 16)),
         "PUT_START": grown(PutStart, ("ticket", U8 * 16)),
         "GET_START": grown(GetStart, ("candidates_offset", U64), ("wanted_offset", U64), ("prompt_len", U64), ("dense_len", U64),
                            ("would_len", U64), ("room", U32), ("candidates_capacity", U32), ("wanted_capacity", U32),
                            ("interval", U32)),
         "GET_TRANSFER": grown(GetTransfer, ("candidate", U32), ("reserved", U32))}


class Candidate(ctypes.Structure):
    _fields_ = [("key", U8 * 32), ("consumed", U64), ("bytes", U64)]


def ticket(number):
    return (U8 * 16)(*number.to_bytes(16, "little"))


class Group(ctypes.Structure):
    _fields_ = [("parent", U8 * 32), ("consumed", U64), ("keys", U32), ("class_mask", U32), ("flags", U32),
                ("priority", U32), ("pause_ms", U32), ("reserved", U32)]


class Range(ctypes.Structure):
    _fields_ = [("offset", U64), ("length", U64), ("slot_bytes", U64), ("id", U32), ("generation", U32),
                ("class_index", U32), ("share", U32), ("node", U32), ("reserved", U32)]


def ioc(nr, size, direction=3, kind=0xF5):
    return direction << 30 | size << 16 | kind << 8 | nr


EMPTY = ioc(14, 0, 0)


class Refused(OSError):
    """An ioctl that failed, with the sentence of LAST_ERROR and the struct as it came back."""

    def __init__(self, error, name, text, reply):
        super().__init__(error, f"{name}: {os.strerror(error)}: {text}")
        self.text = text
        self.reply = reply


class Client:
    """A session on a ctl file. The call buffer is laid out by whoever uses it."""

    def __init__(self, ctl, flags=os.O_RDWR, attach=True, call_buffer_bytes=8 << 20, **fields):
        self.fd = os.open(ctl, flags | os.O_CLOEXEC)
        self.seq, self.pid = 0, os.getpid()
        self.buffer = self.segment = None
        self.segment_fd = self.buffer_fd = -1
        if attach:
            self.attach(call_buffer_bytes, **fields)

    def close(self):
        for m in (self.buffer, self.segment):
            if m is not None:
                m.close()
        self.buffer = self.segment = None
        for fd in (self.fd, self.segment_fd, self.buffer_fd):
            if fd >= 0:
                os.close(fd)
        self.fd = self.segment_fd = self.buffer_fd = -1

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.close()

    def raw(self, request, data):
        """The ioctl as it is; the errno (0 = none) and what came back."""
        try:
            data = bytearray(data)
            fcntl.ioctl(self.fd, request, data, True)
            return 0, bytes(data)
        except OSError as e:
            return e.errno, bytes(data)

    def call(self, name, call_flags=0, seq=None, deadline_ms=0, **fields):
        nr, kind = OPERATIONS[name]
        if self.pid != os.getpid():  # a forked copy numbers its requests for itself
            self.pid = os.getpid()
            self.seq = self.pid << 32
        if seq is None:
            self.seq += 1
            seq = self.seq
        second = GROWN.get(name)
        if second and (seq % 2 or any(not hasattr(kind, field) for field in fields)):
            kind = second
        s = kind(call=Call(ctypes.sizeof(kind), call_flags, seq, 0, deadline_ms, 0))
        for k, v in fields.items():
            setattr(s, k, v)
        data = bytearray(bytes(s))
        try:
            fcntl.ioctl(self.fd, ioc(nr, ctypes.sizeof(kind)), data, True)
        except OSError as e:
            raise Refused(e.errno, name, self.last_error().text.decode(), kind.from_buffer_copy(data)) from None
        return kind.from_buffer_copy(data)

    def last_error(self):
        s = LastError(call=Call(ctypes.sizeof(LastError), 0, 1, 0, 0, 0))
        data = bytearray(bytes(s))
        fcntl.ioctl(self.fd, ioc(13, ctypes.sizeof(LastError)), data, True)
        return LastError.from_buffer_copy(data)

    def ask_attach(self, call_buffer_bytes=8 << 20, **fields):
        fields = {"abi_version": 1, "rank": 0, "node": NONE32, "call_buffer_bytes": call_buffer_bytes,
                  "client_id": (U8 * 16)(*os.urandom(16)), "flags": WAIT_PREWARM, **fields}
        return self.call("ATTACH", **fields)

    def attach(self, call_buffer_bytes=8 << 20, **fields):
        a = self.attached = self.ask_attach(call_buffer_bytes, **fields)
        status, text, fds = show_token(a.socket_path.decode(), bytes(a.token))
        if status:
            raise OSError(-status, text)
        self.segment_fd, self.buffer_fd = fds
        protection = mmap.PROT_READ | (0 if a.read_only else mmap.PROT_WRITE)
        self.segment = mmap.mmap(self.segment_fd, a.segment_bytes, mmap.MAP_SHARED, protection)
        self.buffer = mmap.mmap(self.buffer_fd, a.call_buffer_bytes, mmap.MAP_SHARED)
        return a

    def ranges(self):
        s = self.call("SEGMENTS", ranges_offset=0, capacity=256)
        size = ctypes.sizeof(Range)
        return [Range.from_buffer_copy(self.buffer[i * size:(i + 1) * size]) for i in range(s.count)]

    def acknowledge(self):
        ranges = self.ranges()
        for i, r in enumerate(ranges):
            struct.pack_into("<II", self.buffer, i * 8, r.id, r.generation)
        return self.call("SEGMENTS_ACK", acks_offset=0, count=len(ranges)).accepted

    # Layout of the call buffer here: groups at 0, keys at 1 MiB, results at 4 MiB, status at 7 MiB.
    def put_start(self, plan, groups, class_mask=1, answers=None, **fields):
        """groups: (parent or None, consumed, keys, more fields of the group). Answers and status."""
        keys = b"".join(k for g in groups for k in g[2])
        for i, g in enumerate(groups):
            more = dict(g[3]) if len(g) > 3 else {}
            flags = more.pop("flags", 0) | (GROUP_ROOT if g[0] is None else 0)
            s = Group(consumed=g[1], keys=len(g[2]), class_mask=more.pop("class_mask", class_mask), flags=flags, **more)
            s.parent[:] = list(g[0] or bytes(32))
            self.buffer[i * 64:(i + 1) * 64] = bytes(s)
        self.buffer[1 << 20:(1 << 20) + len(keys)] = keys
        n = len(keys) // 32
        r = self.call("PUT_START", plan=plan, groups_offset=0, keys_offset=1 << 20, answers_offset=4 << 20,
                      status_offset=7 << 20, groups=len(groups), keys=n, class_mask=class_mask, **fields)
        count = answers if answers is not None else n
        self.put_answers = list(struct.unpack_from(f"<{count}Q", self.buffer, 4 << 20))
        self.put_status = list(struct.unpack_from(f"<{len(groups)}I", self.buffer, 7 << 20))
        return r

    def put_end(self, name, plan, groups=1, first=0):
        r = self.call(name, plan=plan, status_offset=7 << 20, first_group=first, groups=groups)
        self.put_status = list(struct.unpack_from(f"<{groups}I", self.buffer, 7 << 20))
        return r

    def put(self, plan, parent, consumed, keys, values, class_mask=1):
        """One group of one class, whole: start, write, commit."""
        self.put_start(plan, [(parent, consumed, keys)], class_mask)
        assert self.put_status == [OK], self.put_status
        for offset, value in zip(self.put_answers, values):
            if offset < NONE64 - 15:
                self.segment[offset:offset + len(value)] = value
        r = self.put_end("PUT_COMMIT", plan)
        assert self.put_status == [COMMITTED], self.put_status
        return r

    def get_start(self, handle, keys, **fields):
        self.buffer[1 << 20:(1 << 20) + 32 * len(keys)] = b"".join(keys)
        fields = {"hits_offset": 4 << 20, "restorable_offset": 5 << 20, "missing_offset": 6 << 20,
                  "missing_capacity": 256, **fields}
        return self.call("GET_START", handle=handle, keys_offset=1 << 20, keys=len(keys), **fields)

    def get_transfer(self, handle, plan, boundary, start=0, to=None, capacity=4096, **fields):
        r = self.call("GET_TRANSFER", handle=handle, plan=plan, boundary=boundary, from_=start,
                      to=boundary if to is None else to, offsets_offset=4 << 20, offsets_capacity=capacity, **fields)
        self.offsets = list(struct.unpack_from(f"<{r.values}Q", self.buffer, 4 << 20))
        return r

    def import_file(self, number, fd):
        """Status and text of the welcome."""
        a = self.call("IMPORT", import_=number)
        return show_token(self.attached.socket_path.decode(), bytes(a.token), kind=HELLO_IMPORT, fds=[fd])[:2]

    def get_into(self, handle, number, boundary, start=0, to=None, blocks=None, class_offset=(), **fields):
        to = boundary if to is None else to
        if blocks is not None:
            struct.pack_into(f"<{len(blocks)}I", self.buffer, 4 << 20, *blocks)
        offsets = (U64 * 16)(*class_offset)
        return self.call("GET_INTO", handle=handle, import_=number, boundary=boundary, from_=start, to=to,
                         blocks_offset=NONE64 if blocks is None else 4 << 20, class_offset=offsets, **fields)

    def release(self, plans):
        struct.pack_into(f"<{len(plans)}Q", self.buffer, 0, *plans)
        return self.call("RELEASE", plans_offset=0, status_offset=NONE64, count=len(plans))

    def probe(self, keys):
        self.buffer[1 << 20:(1 << 20) + 32 * len(keys)] = b"".join(keys)
        return self.call("PROBE", keys_offset=1 << 20, hits_offset=4 << 20, keys=len(keys))

    def touch(self, keys, **fields):
        self.buffer[1 << 20:(1 << 20) + 32 * len(keys)] = b"".join(keys)
        return self.call("TOUCH", keys_offset=1 << 20, keys=len(keys), **fields)

    def with_answers(self, name, keys, fields):
        self.buffer[1 << 20:(1 << 20) + 32 * len(keys)] = b"".join(keys)
        try:
            return self.call(name, keys_offset=1 << 20, keys=len(keys), answers_offset=4 << 20, **fields)
        finally:
            self.answers = list(struct.unpack_from(f"<{len(keys)}I", self.buffer, 4 << 20))

    def remove(self, keys, **fields):
        return self.with_answers("REMOVE", keys, fields)

    def pin(self, keys, **fields):
        return self.with_answers("PIN", keys, fields)

    def reset(self):
        return self.call("RESET")

    # Blobs: names at 0, bytes at 4 MiB of the call buffer. @which is a key's 32 bytes, or a name.
    def blob(self, name, which, **fields):
        if isinstance(which, bytes):
            return self.call(name, key=(U8 * 32)(*which), **fields)
        which = which.encode()
        self.buffer[:len(which)] = which
        return self.call(name, name_offset=0, name_bytes=len(which), **fields)

    def blob_put(self, which, data, **fields):
        self.buffer[4 << 20:(4 << 20) + len(data)] = data
        return self.blob("BLOB_PUT", which, data_offset=4 << 20, bytes=len(data), **{"length": len(data), **fields})

    def blob_get(self, which, capacity=4 << 20, **fields):
        """The struct, and the bytes."""
        r = self.blob("BLOB_GET", which, data_offset=4 << 20, capacity=capacity, **fields)
        return r, bytes(self.buffer[4 << 20:(4 << 20) + r.bytes])

    def blob_lock(self, which, **fields):
        return self.blob("BLOB_LOCK", which, **fields)

    def stats(self):
        r = self.call("STAT", text_offset=0, capacity=65536)
        return dict(line.split(" ", 1) for line in self.buffer[:r.bytes].decode().splitlines())


def show_token(path, token, abi_version=1, message=None, timeout=10, kind=HELLO_ATTACH, fds=()):
    """Status, text, descriptors."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.settimeout(timeout)
        s.connect(path)
        hello = struct.pack("<II", abi_version, kind) + token if message is None else message
        s.sendmsg([hello], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else [])
        data, control, _, _ = s.recvmsg(128, socket.CMSG_SPACE(8))
    status, _ = struct.unpack_from("<iI", data)
    received = array.array("i")
    for _, what, body in control:
        if what == socket.SCM_RIGHTS:
            received.frombytes(body[:len(body) // 4 * 4])
    return status, data[8:].split(b"\0")[0].decode(), list(received)


def key(*parts):
    """A key that differs wherever the parts do."""
    return b"".join(struct.pack("<Q", p) for p in parts).ljust(32, b"\xa5")


def name_of(consumed, k):
    return f"{consumed:016x}-{k.hex()}"


def errno_of(function, *arguments, **more):
    """The errno that a call fails with, 0 when it does not."""
    try:
        function(*arguments, **more)
    except OSError as e:
        return e.errno
    return 0


def errno_name(number):
    return errno.errorcode.get(number, str(number))
