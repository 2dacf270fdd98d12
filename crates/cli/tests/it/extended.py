"""Extended headers, by a client of its own: neither Debian's libnbd nor its qemu speaks them yet.

Usage: extended.py SOCKET VOLUME[,TRAIT...]...

`null` keeps nothing, `long` has more than 4 GiB, `error` fails reads from 20 to 21 MiB, `locked` is read-only. Prints a line
for each rule that is broken, and at the end how many were kept.
"""

import socket
import struct
import sys

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
READ, WRITE, DISC, FLUSH, TRIM, CACHE, ZERO, STATUS = range(8)
FUA, NO_HOLE, DF, ONE, FAST, PAYLOAD = (1 << n for n in range(6))
NONE, DATA, HOLE, STATUS_EXT, ERROR, ERROR_AT = 0, 1, 2, 6, 0x8001, 0x8002
EIO, EINVAL, ENOSPC, EOVERFLOW = 5, 22, 28, 75


class Broken(Exception):
    """A rule that isn't kept."""


def equal(found, wanted):
    if found != wanted:
        raise Broken(f"{found} instead of {wanted}")


class Answer:
    def __init__(self):
        self.error, self.at, self.data, self.extents, self.kinds = 0, None, {}, [], []


class Client:
    def __init__(self, path, export):
        self.stream = socket.socket(socket.AF_UNIX)
        self.stream.settimeout(60)
        self.stream.connect(path)
        equal(self.take(18)[:16], b"NBDMAGICIHAVEOPT")
        self.stream.sendall(struct.pack(">I", 3))
        name = export.encode()
        equal(self.option(11), [])
        [context] = self.option(10, struct.pack(">I", len(name)) + name
                                + struct.pack(">II", 1, 15) + b"base:allocation")
        self.context = struct.unpack(">I", context[:4])[0]
        for info in self.option(7, struct.pack(">I", len(name)) + name + struct.pack(">H", 0)):
            if info[:2] == b"\0\0":
                self.size, self.flags = struct.unpack(">QH", info[2:])
        self.cookie = 0

    def take(self, length):
        found = b""
        while len(found) < length:
            more = self.stream.recv(length - len(found))
            if not more:
                raise Broken("the connection has ended")
            found += more
        return found

    def option(self, number, data=b""):
        self.stream.sendall(b"IHAVEOPT" + struct.pack(">II", number, len(data)) + data)
        found = []
        while True:
            _, of, kind, length = struct.unpack(">QIII", self.take(20))
            equal(of, number)
            data = self.take(length)
            if kind == 1:
                return found
            if kind >> 31:
                raise Broken(f"option {number} was refused by {kind:#x}: {data}")
            found.append(data)

    def send(self, command, offset, length, flags=0, payload=b""):
        self.cookie += 1
        head = struct.pack(">IHHQQQ", 0x21E41C71, flags, command, self.cookie, offset, length)
        self.stream.sendall(head + payload)

    def ask(self, command, offset, length, flags=0, payload=b""):
        self.send(command, offset, length, flags, payload)
        answer = Answer()
        while True:
            magic, done, kind, cookie, of, length = struct.unpack(">IHHQQQ", self.take(32))
            equal((magic, cookie, of), (0x6E8A278C, self.cookie, offset))
            data = self.take(length)
            answer.kinds.append(kind)
            if kind == DATA:
                answer.data[struct.unpack(">Q", data[:8])[0]] = data[8:]
            elif kind == HOLE:
                at, length = struct.unpack(">QI", data)
                answer.data[at] = bytes(length)
            elif kind == STATUS_EXT:
                context, count = struct.unpack(">II", data[:8])
                equal((context, len(data)), (self.context, 8 + 16 * count))
                answer.extents = [struct.unpack_from(">QQ", data, 8 + 16 * n) for n in range(count)]
            elif kind in (ERROR, ERROR_AT):
                answer.error, text = struct.unpack(">IH", data[:6])
                equal(len(data), 6 + text + (8 if kind == ERROR_AT else 0))
                answer.at = struct.unpack(">Q", data[-8:])[0] if kind == ERROR_AT else None
            else:
                equal((kind, data, done), (NONE, b"", 1))
            if done & 1:
                return answer

    def does(self, *args, **more):
        answer = self.ask(*args, **more)
        equal(answer.error, 0)
        return answer

    def fails(self, error, *args, **more):
        answer = self.ask(*args, **more)
        equal((answer.error, len(answer.kinds)), (error, 1))
        return answer

    def write(self, offset, data, flags=0):
        return self.ask(WRITE, offset, len(data), flags | PAYLOAD, data).error

    def read(self, offset, length, flags=0):
        answer = self.does(READ, offset, length, flags)
        found, at = b"", offset
        while at < offset + length:
            piece = answer.data.pop(at)
            found += piece
            at += len(piece)
        equal(answer.data, {})
        return found


def pattern(n, length):
    return bytes((i * 7 + i // 512 + n) % 255 + 1 for i in range(512)) * (length // 512)


def data(v, traits):
    for n, (offset, length) in enumerate([(0, 512), (MIB, 64 * KIB), (v.size - 512, 512)]):
        wanted = pattern(n, length)
        equal(v.write(offset, wanted, FUA if n else 0), 0)
        equal(v.read(offset, length), bytes(length) if "null" in traits else wanted)
    equal(v.does(FLUSH, 0, 0).kinds, [NONE])
    # A write says that its length is that of a payload; and its parts of blocks are changed, too.
    v.fails(EINVAL, WRITE, 0, 512)
    equal(v.write(MIB + 3, b"abc"), 0)
    if "null" not in traits:
        equal(v.read(MIB, 512)[:8], pattern(1, 512)[:3] + b"abc" + pattern(1, 512)[6:8])


def zeroes(v, traits):
    wanted = pattern(4, 192 * KIB)
    for command, flags in [(ZERO, 0), (ZERO, NO_HOLE), (ZERO, FUA), (TRIM, 0)]:
        equal(v.write(2 * MIB, wanted), 0)
        answer = v.ask(command, 2 * MIB + 64 * KIB, 64 * KIB, flags)
        if command == TRIM and not v.flags & 1 << 5:
            equal(answer.error, EINVAL)
            continue
        equal((answer.error, answer.kinds), (0, [NONE]))
        found = v.read(2 * MIB, 192 * KIB)
        if "null" not in traits and command == ZERO:
            equal(found, wanted[:64 * KIB] + bytes(64 * KIB) + wanted[128 * KIB:])


def status(v, traits):
    equal(v.flags >> 12 & 1, 1)
    for length, flags, payload in [
            (v.size, 0, b""), (v.size, ONE, b""), (12, PAYLOAD, struct.pack(">QI", v.size, v.context))]:
        extents = v.does(STATUS, 0, length, flags, payload).extents
        if not extents or sum(length for length, _ in extents) > v.size:
            raise Broken(f"{extents} of {v.size}")
        if flags & ONE:
            equal(len(extents), 1)
    at = 0
    while at < min(v.size, 32 * MIB):
        for length, state in v.does(STATUS, at, v.size - at).extents:
            if state & 2 and length < MIB and any(v.read(at, length)):
                raise Broken(f"{length} bytes at {at} aren't zero")
            at += length
    for payload in [struct.pack(">QI", v.size, v.context + 1), bytes(8), bytes(16), bytes(3),
                    struct.pack(">QII", v.size, v.context, v.context)]:
        v.fails(EINVAL, STATUS, 0, len(payload), PAYLOAD, payload)
    v.fails(EINVAL, STATUS, 0, 0)


def hostile(v, traits):
    for offset, length in [(0, 1 << 63), (512, (1 << 64) - 512), (1 << 63, 1 << 63), (v.size, 512)]:
        v.fails(EINVAL if length == 512 else EOVERFLOW, READ, offset, length)
        v.fails(EINVAL, STATUS, offset, length)
        v.fails(EINVAL, FLUSH, offset, length)
        v.fails(EINVAL, 77, offset, length)
        if v.flags & 1 << 10:
            v.fails(EINVAL, CACHE, offset, length)
        if "locked" not in traits:
            v.fails(ENOSPC, ZERO, offset, length)
            v.fails(EINVAL, TRIM, offset, length)
    v.fails(EINVAL, READ, 0, 512, PAYLOAD, bytes(512))
    equal(len(v.read(0, 512)), 512)


def all_of_it(v, traits):
    if v.flags & 1 << 10:
        v.does(CACHE, 0, v.size)
    if "locked" in traits:
        v.fails(1, ZERO, 0, v.size)
        return
    equal(v.write(4096, pattern(1, 4096)), 0)
    for command in (TRIM, ZERO) if v.flags & 1 << 5 else (ZERO,):
        v.does(command, 512, v.size - 1024)
    equal(v.read(4096, 4096), bytes(4096))


def device_error(v, traits):
    answer = v.ask(READ, 20 * MIB, 64 * KIB, DF)
    equal((answer.error, answer.kinds[-1]), (EIO, ERROR_AT))
    if not 20 * MIB <= answer.at < 21 * MIB:
        raise Broken(f"at {answer.at}")
    equal(len(v.read(0, 512)), 512)


def compact(v, traits):
    v.stream.sendall(struct.pack(">IHHQQI", 0x25609513, 0, READ, 1, 0, 512))
    equal(v.stream.recv(1), b"")


def main():
    kept, broken = 0, False
    for volume in sys.argv[2:]:
        name, *traits = volume.split(",")
        rules = [status, hostile, all_of_it, compact]
        if "locked" not in traits:
            rules[:0] = [data, zeroes]
        if "error" in traits:
            rules.append(device_error)
        for rule in rules:
            try:
                rule(Client(sys.argv[1], name), traits)
                kept += 1
            except (Broken, OSError, KeyError) as error:
                broken = True
                print(f"{name}: {rule.__name__}: {error!r}")
    print(f"{kept} rules kept")
    sys.exit(broken)


main()
