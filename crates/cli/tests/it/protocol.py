"""Every command of the protocol, and each of its errors, as libnbd sees them.

Usage: protocol.py SOCKET CERTIFICATES VOLUME[,TRAIT...]...

With the folder of a certificate authority all is done in TLS; "": without.

A trait says of a volume what its driver can't be asked: `null` keeps nothing, `holes` knows each of its own, `error` fails
reads from 20 to 21 MiB, `locked` is read-only. Everything else is asked of the server. Each rule runs with simple replies
and with structured ones, over a connection of its own where it spoils the one that it has. Prints a line for each rule
that is broken, and at the end how many were kept.
"""

import errno
import sys

import nbd

MIB = 1 << 20
FUA, NO_HOLE, FAST, DF, ONE = (
    nbd.CMD_FLAG_FUA, nbd.CMD_FLAG_NO_HOLE, nbd.CMD_FLAG_FAST_ZERO, nbd.CMD_FLAG_DF,
    nbd.CMD_FLAG_REQ_ONE)
UNKNOWN_FLAG = 1 << 12
# What the server takes at once.
MOST = 32 * MIB
RULES = []
SOCKET, CERTIFICATES = sys.argv[1:3]


class Broken(Exception):
    """A rule that isn't kept."""


def rule(text, structured=None, changes=True, of=None):
    """Names a rule; `structured`: for such replies only; `changes`: not for a read-only export."""
    def add(function):
        RULES.append((text, structured, changes, of, function))
        return function
    return add


def handle(structured):
    h = nbd.NBD()
    h.set_request_structured_replies(structured)
    if CERTIFICATES:
        h.set_tls(nbd.TLS_REQUIRE)
        h.set_tls_certificates(CERTIFICATES)
    return h


def connect(name, structured, contexts=True):
    h = handle(structured)
    if structured and contexts:
        h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.set_export_name(name)
    # It sends what is wrong, too.
    h.set_strict_mode(0)
    h.connect_unix(SOCKET)
    if h.get_tls_negotiated() != bool(CERTIFICATES):
        raise Broken("not the TLS that was asked for")
    return h


class Volume:
    def __init__(self, name, traits, structured):
        self.name, self.traits, self.structured = name, traits, structured
        self.h = connect(name, structured)
        self.size = self.h.get_size()
        self.block = max(self.h.get_block_size(nbd.SIZE_MINIMUM), 1)

    def kept(self, data):
        """What is read where this was written."""
        return bytes(len(data)) if "null" in self.traits else data

    def reads(self, data, offset):
        found = self.h.pread(len(data), offset)
        if found != self.kept(data):
            raise Broken(f"other data at {offset}: {found[:16].hex()}...")


def fails(name, function, *args):
    """It fails with this error, and by nothing else."""
    try:
        function(*args)
    except nbd.Error as error:
        if error.errnum != getattr(errno, name):
            raise Broken(f"{error.errno} instead of {name}: {error.string}") from None
        return
    raise Broken(f"it succeeded instead of {name}")


def equal(found, wanted):
    if found != wanted:
        raise Broken(f"{found} instead of {wanted}")


def pattern(n, length):
    return bytes((i * 7 + i // 512 + n) % 255 + 1 for i in range(512)) * (length // 512)


@rule("a write is read back, at both ends and across blocks")
def write_and_read(v):
    for n, (offset, length) in enumerate(
            [(0, 512), (0, 65536), (v.size - 512, 512), (v.size - 65536, 65536), (MIB - 512, 1024)]):
        data = pattern(n, length)
        v.h.pwrite(data, offset)
        v.reads(data, offset)


@rule("a write with FUA, and a flush, succeed, and leave the data")
def fua_and_flush(v):
    equal((v.h.can_fua(), v.h.can_flush()), (True, True))
    data = pattern(9, 4096)
    v.h.pwrite(data, 2 * MIB, FUA)
    v.h.flush()
    v.reads(data, 2 * MIB)


@rule("FUA goes with every command, also where it means nothing", changes=False)
def fua_of_a_read(v):
    v.h.pread(512, 0, FUA)


@rule("a trim leaves its neighbours alone")
def trim(v):
    data = pattern(3, 3 * 65536)
    v.h.pwrite(data, 3 * MIB)
    if not v.h.can_trim():
        fails("EINVAL", v.h.trim, 65536, 3 * MIB + 65536)
        return
    for flags in (0, FUA):
        v.h.trim(65536, 3 * MIB + 65536, flags)
    v.reads(data[:65536], 3 * MIB)
    v.reads(data[2 * 65536:], 3 * MIB + 2 * 65536)


@rule("a trim of a volume that keeps holes makes one", structured=True, of="holes")
def trim_makes_a_hole(v):
    v.h.pwrite(pattern(3, 3 * 65536), 5 * MIB)
    v.h.trim(65536, 5 * MIB + 65536)
    equal(status(v, 65536, 5 * MIB + 65536), [(65536, nbd.STATE_HOLE | nbd.STATE_ZERO)])


@rule("what was zeroed reads as zeroes, with each flag, and its neighbours stay")
def zero(v):
    data = pattern(4, 3 * 65536)
    for flags in (0, FUA, NO_HOLE, NO_HOLE | FUA):
        v.h.pwrite(data, 4 * MIB)
        v.h.zero(65536, 4 * MIB + 65536, flags)
        v.reads(data[:65536] + bytes(65536) + data[2 * 65536:], 4 * MIB)


@rule("a fast zero is done, or refused with nothing changed; where it isn't offered it is EINVAL")
def fast_zero(v):
    data = pattern(5, 65536)
    v.h.pwrite(data, 6 * MIB)
    if not v.h.can_fast_zero():
        fails("EINVAL", v.h.zero, 65536, 6 * MIB, FAST)
        v.reads(data, 6 * MIB)
        return
    try:
        v.h.zero(65536, 6 * MIB, FAST)
        v.reads(bytes(65536), 6 * MIB)
    except nbd.Error as error:
        equal(error.errno, "ENOTSUP")
        v.reads(data, 6 * MIB)


@rule("CACHE succeeds where it is offered, and is EINVAL elsewhere", changes=False)
def cache(v):
    if v.h.can_cache():
        v.h.cache(65536, 0)
        v.h.cache(v.size, 0)
        fails("EINVAL", v.h.cache, 1024, v.size - 512)
    else:
        fails("EINVAL", v.h.cache, 65536, 0)


def status(v, length, offset, flags=0):
    found = []

    def extents(context, at, entries, error):
        equal((context, at, error.value), (nbd.CONTEXT_BASE_ALLOCATION, offset, 0))
        found.extend(zip(entries[::2], entries[1::2]))

    v.h.block_status(length, offset, extents, flags)
    return found


@rule("block status begins at its offset, ends within the request, and calls nothing zero that isn't",
      structured=True)
def block_status(v):
    v.h.zero(MIB, 7 * MIB)
    v.h.pwrite(pattern(6, 65536), 7 * MIB + 65536)
    at, end = 7 * MIB, 8 * MIB
    while at < end:
        for length, state in status(v, end - at, at):
            if length == 0 or at + length > end:
                raise Broken(f"{length} bytes at {at}, of {end}")
            if state & nbd.STATE_ZERO and any(v.h.pread(length, at)):
                raise Broken(f"{length} bytes at {at} aren't zero")
            at += length


@rule("block status with REQ_ONE says one extent, no longer than was asked", structured=True, changes=False)
def req_one(v):
    for offset, length in [(0, 512), (0, v.size), (512, 4096), (v.size - 512, 512)]:
        found = status(v, length, offset, ONE)
        equal(len(found), 1)
        if not 0 < found[0][0] <= length:
            raise Broken(f"{found} of {length}")


@rule("block status that nobody chose a context for is EINVAL", changes=False)
def no_context(v):
    h = connect(v.name, v.structured, contexts=False)
    fails("EINVAL", h.block_status, 512, 0, lambda *_: None)
    equal(len(h.pread(512, 0)), 512)
    h.shutdown()


@rule("beyond the end: ENOSPC for writes and zeroes, EINVAL for all else; nothing is changed")
def beyond(v):
    data = pattern(7, 512)
    v.h.pwrite(data, v.size - 512)
    for offset in (v.size - 512, v.size, v.size + MIB, (1 << 63) - 1024):
        fails("EINVAL", v.h.pread, 1024, offset)
        fails("ENOSPC", v.h.pwrite, bytes(1024), offset)
        if v.h.can_zero():
            fails("ENOSPC", v.h.zero, 1024, offset)
        fails("EINVAL", v.h.trim, 1024, offset)
        if v.structured:
            fails("EINVAL", status, v, 1024, offset)
    v.reads(data, v.size - 512)


@rule("what isn't whole blocks is EINVAL, unless the least size is a byte: then it is served to the byte")
def alignment(v):
    data = bytearray(pattern(8, 4096))
    v.h.pwrite(data, 8 * MIB)
    for offset, length in [(1, 512), (512, 100), (511, 2), (1000, 1), (3, 3000)]:
        at, part = 8 * MIB + offset, bytes([offset % 251 + 1]) * length
        if v.block == 1:
            equal(v.h.pread(length, at), v.kept(bytes(data[offset:offset + length])))
            v.h.pwrite(part, at)
            data[offset:offset + length] = part
        else:
            fails("EINVAL", v.h.pread, length, at)
            fails("EINVAL", v.h.pwrite, part, at)
            fails("EINVAL", v.h.zero, length, at)
    v.reads(bytes(data), 8 * MIB)


@rule("nothing, anywhere in the export, succeeds; its block status is EINVAL", changes=False)
def length_zero(v):
    for offset in (0, 512, v.size):
        equal(v.h.pread(0, offset), b"")
    fails("EINVAL", v.h.pread, 0, v.size + 512)
    if v.structured:
        fails("EINVAL", status, v, 0, 0)


@rule("a flag that nobody knows is EINVAL, and so is one of another command", changes=False)
def unknown_flags(v):
    fails("EINVAL", v.h.pread, 512, 0, UNKNOWN_FLAG)
    fails("EINVAL", v.h.pread, 512, 0, NO_HOLE)
    fails("EINVAL", v.h.flush, UNKNOWN_FLAG)
    fails("EINVAL", v.h.trim, 512, 0, UNKNOWN_FLAG)
    if v.structured:
        fails("EINVAL", status, v, 512, 0, FAST)
    equal(len(v.h.pread(512, 0)), 512)


@rule("DF is EINVAL without structured replies", structured=False, changes=False)
def df_without(v):
    equal(v.h.can_df(), False)
    fails("EINVAL", v.h.pread, 65536, 0, DF)


def chunks(v, length, offset, flags=0):
    """A structured read: what came, and its chunks."""
    found, kinds = bytearray(b"\xee" * length), []

    def chunk(data, at, kind, error):
        kinds.append(kind)
        data = bytes(len(data)) if kind == nbd.READ_HOLE else data
        found[at - offset:at - offset + len(data)] = data

    v.h.pread_structured(length, offset, chunk, flags)
    return bytes(found), kinds


@rule("DF brings a read in one piece, holes or not; without it holes are left out and read as zeroes",
      structured=True)
def df(v):
    data = bytes(65536) + pattern(2, 65536) + bytes(65536)
    v.h.zero(3 * 65536, 9 * MIB)
    v.h.pwrite(data[65536:2 * 65536], 9 * MIB + 65536)
    # A connection that has seen nothing yet: holes are looked for less where there were none.
    new = Volume(v.name, v.traits, True)
    equal(new.h.can_df(), True)
    equal(chunks(new, len(data), 9 * MIB, DF), (v.kept(data), [nbd.READ_DATA]))
    found, kinds = chunks(new, len(data), 9 * MIB)
    equal(found, v.kept(data))
    if "holes" in v.traits:
        equal(sorted(kinds), [nbd.READ_DATA, nbd.READ_HOLE, nbd.READ_HOLE])
    new.h.shutdown()


@rule("a read above the largest size is EINVAL, or EOVERFLOW with structured replies", changes=False)
def long_read(v):
    for length in (MOST + 512, 64 * MIB):
        fails("EOVERFLOW" if v.structured else "EINVAL", v.h.pread, length, 0)
    equal(v.h.get_block_size(nbd.SIZE_MAXIMUM) <= MOST, True)


@rule("a write above the largest size ends its connection, and no other", changes=False)
def long_write(v):
    h = connect(v.name, v.structured)
    try:
        h.pwrite(bytes(MOST + 512), 0)
        raise Broken("it succeeded")
    except nbd.Error:
        pass
    equal(h.aio_is_dead() or h.aio_is_closed(), True)
    equal(len(v.h.pread(512, 0)), 512)


@rule("a read-only export refuses each change with EPERM, and offers none", changes=False, of="locked")
def locked(v):
    equal((v.h.is_read_only(), v.h.can_trim(), v.h.can_zero(), v.h.can_fast_zero()),
          (True, False, False, False))
    fails("EPERM", v.h.pwrite, bytes(512), 0)
    fails("EPERM", v.h.trim, 512, 0)
    fails("EPERM", v.h.zero, 512, 0)
    v.h.flush()


@rule("an error of the device is EIO, at its place where the form has one, and the connection goes on",
      changes=False, of="error")
def device_error(v):
    fails("EIO", v.h.pread, MIB, 20 * MIB - 65536)
    if v.structured:
        places = []

        def chunk(_data, at, kind, _error):
            if kind == nbd.READ_ERROR:
                places.append(at)

        fails("EIO", v.h.pread_structured, 65536, 20 * MIB, chunk)
        equal(len(places) == 1 and 20 * MIB <= places[0] < 21 * MIB, True)
    v.h.pread(65536, 19 * MIB)


@rule("many requests at once, in any order of their replies")
def many(v):
    wanted = {}
    for n in range(64):
        data = pattern(n, 4096)
        wanted[v.h.aio_pwrite(data, 10 * MIB + 4096 * n)] = None
    while wanted:
        v.h.poll(-1)
        wanted = {c: None for c in wanted if not v.h.aio_command_completed(c)}
    reads = {}
    for n in range(64):
        buffer = nbd.Buffer(4096)
        reads[v.h.aio_pread(buffer, 10 * MIB + 4096 * n)] = (n, buffer)
    while reads:
        v.h.poll(-1)
        for cookie in [c for c in reads if v.h.aio_command_completed(c)]:
            n, buffer = reads.pop(cookie)
            equal(bytes(buffer.to_bytearray()), v.kept(pattern(n, 4096)))


@rule("what one connection was answered is seen by all others")
def multi_conn(v):
    equal(v.h.can_multi_conn(), True)
    other = connect(v.name, not v.structured)
    data = pattern(1, 65536)
    v.h.pwrite(data, 11 * MIB)
    other.flush()
    equal(other.pread(65536, 11 * MIB), v.kept(data))
    other.shutdown()


@rule("an unknown export is ENOENT, and a known one is chosen behind it", changes=False)
def unknown_export(v):
    h = handle(v.structured)
    h.set_opt_mode(True)
    h.connect_unix(SOCKET)
    for option in (h.opt_go, h.opt_info):
        h.set_export_name("no such export")
        fails("ENOENT", option)
    h.set_export_name(v.name)
    h.set_full_info(True)
    h.opt_info()
    equal((h.get_size(), h.get_canonical_export_name()), (v.size, v.name))
    names = []
    equal(h.opt_list(lambda name, _: names.append(name)), len(names))
    equal(v.name in names, True)
    if v.structured:
        found = []
        h.clear_meta_contexts()
        equal(h.opt_list_meta_context(found.append), 1)
        equal(found, [nbd.CONTEXT_BASE_ALLOCATION])
        h.add_meta_context("nobody:knows")
        equal(h.opt_list_meta_context(found.append), 0)
    h.opt_go()
    equal(len(h.pread(512, 0)), 512)
    h.shutdown()


@rule("the end that a client asks for comes", changes=False)
def the_end(v):
    h = connect(v.name, v.structured)
    h.shutdown()
    equal(h.aio_is_closed(), True)


def applies(v, structured, changes, of):
    if structured not in (None, v.structured) or changes and "locked" in v.traits:
        return False
    return of is None or of in v.traits


def main():
    kept = 0
    broken = False
    for volume in sys.argv[3:]:
        name, *traits = volume.split(",")
        for structured in (False, True):
            v = Volume(name, traits, structured)
            for text, only, changes, of, function in RULES:
                if not applies(v, only, changes, of):
                    continue
                try:
                    function(v)
                    kept += 1
                    continue
                except Broken as error:
                    why = error
                except nbd.Error as error:
                    why = f"{error.errno}: {error.string}"
                broken = True
                form = "structured" if structured else "simple"
                print(f"{name}, {form} replies: {text}: {why}")
                if v.h.aio_is_dead():
                    v = Volume(name, traits, structured)
            v.h.shutdown()
    print(f"{kept} rules kept")
    sys.exit(broken)


main()
