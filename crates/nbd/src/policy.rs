//! The decisions of the server as pure functions over plain numbers: the verdict on a request, the
//! flags of an export, the limit of options, and the wait when file descriptors run out.

use std::time::{Duration, Instant};

use corewise_blockmq::Geometry;

use crate::handshake::{ALLOCATION_CONTEXT, Agreement};
use crate::wire::{
    BlockSizes, Command, CommandFlags, Form, MAX_PAYLOAD, ReplyError, Request, STATUS_QUERY_LEN,
    StatusQuery, TransmissionFlags,
};

/// Limits that the transmission phase checks each request against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the export in bytes.
    pub size: u64,
    /// Flags that were advertised.
    pub flags: TransmissionFlags,
    /// Offsets and lengths are multiples of this power of two, in bytes.
    pub block: u32,
    /// Largest payload of a `READ` or `WRITE` in bytes.
    pub max_payload: u32,
    /// Form of messages.
    pub form: Form,
    /// True if the client may send `BLOCK_STATUS`.
    pub status: bool,
}

impl Limits {
    /// Returns the limits that follow from the client's agreement.
    pub fn new(agreed: &Agreement) -> Limits {
        let offer = &agreed.offer;
        Limits {
            size: offer.summary.size,
            flags: offer.summary.flags,
            block: offer.block_sizes.minimum,
            max_payload: offer.block_sizes.maximum,
            form: agreed.form,
            status: !agreed.contexts.is_empty(),
        }
    }
}

/// A decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request goes to the device.
    Submit(Operation),
    /// The reply is success at once: the range has length 0.
    Done,
    /// The reader skips the payload, if any, and replies with the error. The connection stays
    /// usable.
    Refuse(ReplyError),
    /// The request is `DISC`: outstanding requests are answered, then the connection closes.
    Disconnect,
    /// Outstanding requests are answered, then the connection closes: the payload is larger than
    /// any client may send, so the stream can't be followed any further.
    Hopeless,
}

/// An operation for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A read of the range.
    Read {
        /// The data comes in one piece, with holes as zeroes.
        whole: bool,
    },
    /// A write of the payload.
    Write {
        /// The reply waits until the data is durable.
        fua: bool,
    },
    /// A flush: every write answered so far becomes durable.
    Flush,
    /// A discard: the range isn't needed any more.
    Trim {
        /// The reply waits until the discard is durable.
        fua: bool,
    },
    /// A write of zeroes to the range.
    WriteZeroes {
        /// The reply waits until the zeroes are durable.
        fua: bool,
        /// The range stays allocated.
        no_hole: bool,
        /// The device fails the request if zeroing takes as long as a write.
        fast: bool,
    },
    /// A read of the range into a cache.
    Cache,
    /// A query for the parts of the range that are allocated.
    BlockStatus {
        /// One extent is enough.
        one: bool,
    },
}

impl Operation {
    /// Returns true if the operation may change the device's contents.
    pub fn is_change(self) -> bool {
        matches!(
            self,
            Operation::Write { .. } | Operation::Trim { .. } | Operation::WriteZeroes { .. }
        )
    }
}

/// Judges a request.
///
/// Choices where the specification leaves one:
/// - length 0 succeeds without reaching the device, once everything else about the request is
///   right; but `BLOCK_STATUS` of nothing has no answer: `EINVAL`;
/// - `READ` above the advertised payload: `EINVAL`, or `EOVERFLOW` where replies have chunks;
/// - beyond the end: `ENOSPC` for writes and zeroes, else `EINVAL`;
/// - a payload above the advertised one: the connection ends, it is never read;
/// - with extended headers, `WRITE` without `PAYLOAD_LEN` and other commands with it: `EINVAL`.
///   ([`with_query`] has turned a `BLOCK_STATUS` that may have it into one without);
/// - offsets and lengths that aren't multiples of the advertised minimum, where that is more than a
///   byte: `EINVAL`, also for clients that didn't ask for it;
/// - `FLUSH` with an offset or a length: `EINVAL`;
/// - `FUA` is accepted on every command where it is advertised, and means nothing on those that
///   change nothing.
///
/// ```
/// use corewise_nbd::model::{Limits, Operation, Verdict, judge};
/// use corewise_nbd::wire::{Command, CommandFlags, Form, ReplyError, Request, TransmissionFlags};
/// let flags = TransmissionFlags::HAS_FLAGS;
/// let (size, block, max_payload) = (1 << 20, 512, 32 << 20);
/// let limits = Limits { size, flags, block, max_payload, form: Form::Simple, status: false };
/// let (flags, command) = (CommandFlags::empty(), Command::READ);
/// let read = Request { flags, command, cookie: 1, offset: 0, length: 512 };
/// assert_eq!(judge(&read, &limits), Verdict::Submit(Operation::Read { whole: true }));
/// let beyond = Request { offset: 1 << 20, ..read };
/// assert_eq!(judge(&beyond, &limits), Verdict::Refuse(ReplyError::Inval));
/// ```
pub fn judge(request: &Request, limits: &Limits) -> Verdict {
    if request.payload_len(limits.form) > limits.max_payload.into() {
        return Verdict::Hopeless;
    }
    let extended = limits.form == Form::Extended;
    let (needs, allowed) = match request.command {
        Command::DISC => return Verdict::Disconnect,
        Command::READ => {
            let df = limits.flags.contains(TransmissionFlags::SEND_DF);
            let allowed = CommandFlags::empty().with_if(df, CommandFlags::DF);
            (TransmissionFlags::empty(), allowed)
        }
        Command::WRITE if extended && !request.flags.contains(CommandFlags::PAYLOAD_LEN) => {
            return Verdict::Refuse(ReplyError::Inval);
        }
        Command::WRITE => {
            let allowed = CommandFlags::empty().with_if(extended, CommandFlags::PAYLOAD_LEN);
            (TransmissionFlags::empty(), allowed)
        }
        Command::FLUSH => (TransmissionFlags::SEND_FLUSH, CommandFlags::empty()),
        Command::TRIM => (TransmissionFlags::SEND_TRIM, CommandFlags::empty()),
        Command::WRITE_ZEROES => {
            let fast = limits.flags.contains(TransmissionFlags::SEND_FAST_ZERO);
            let allowed = CommandFlags::NO_HOLE.with_if(fast, CommandFlags::FAST_ZERO);
            (TransmissionFlags::SEND_WRITE_ZEROES, allowed)
        }
        Command::CACHE => (TransmissionFlags::SEND_CACHE, CommandFlags::empty()),
        Command::BLOCK_STATUS if limits.status => {
            (TransmissionFlags::empty(), CommandFlags::REQ_ONE)
        }
        _ => return Verdict::Refuse(ReplyError::Inval),
    };
    let can_fua = limits.flags.contains(TransmissionFlags::SEND_FUA);
    let allowed = allowed.with_if(can_fua, CommandFlags::FUA);
    if !request.flags.without(allowed).is_empty() {
        return Verdict::Refuse(ReplyError::Inval);
    }
    let change = matches!(request.command, Command::WRITE | Command::TRIM | Command::WRITE_ZEROES);
    // This check precedes the one for unsupported commands: a read-only export offers no TRIM, and
    // EPERM tells the client the reason.
    if change && limits.flags.contains(TransmissionFlags::READ_ONLY) {
        return Verdict::Refuse(ReplyError::Perm);
    }
    if !limits.flags.contains(needs) {
        return Verdict::Refuse(ReplyError::Inval);
    }
    if request.command == Command::FLUSH {
        return if request.offset == 0 && request.length == 0 {
            Verdict::Submit(Operation::Flush)
        } else {
            Verdict::Refuse(ReplyError::Inval)
        };
    }
    let mask = u64::from(limits.block) - 1;
    if (request.offset | request.length) & mask != 0 {
        return Verdict::Refuse(ReplyError::Inval);
    }
    if request.command == Command::READ && request.length > limits.max_payload.into() {
        let chunks = limits.form.has_chunks();
        return Verdict::Refuse(if chunks { ReplyError::Overflow } else { ReplyError::Inval });
    }
    // The sum may overflow: the offset is any 64-bit number. With extended headers, so is the
    // length.
    match request.offset.checked_add(request.length) {
        Some(end) if end <= limits.size => {}
        _ if change && request.command != Command::TRIM => {
            return Verdict::Refuse(ReplyError::NoSpc);
        }
        _ => return Verdict::Refuse(ReplyError::Inval),
    }
    if request.length == 0 {
        return match request.command {
            Command::BLOCK_STATUS => Verdict::Refuse(ReplyError::Inval),
            _ => Verdict::Done,
        };
    }
    let has = |flag| request.flags.contains(flag);
    let fua = has(CommandFlags::FUA);
    Verdict::Submit(match request.command {
        Command::READ => {
            Operation::Read { whole: !limits.form.has_chunks() || has(CommandFlags::DF) }
        }
        Command::CACHE => Operation::Cache,
        Command::BLOCK_STATUS => Operation::BlockStatus { one: has(CommandFlags::REQ_ONE) },
        Command::WRITE => Operation::Write { fua },
        Command::TRIM => Operation::Trim { fua },
        _ => Operation::WriteZeroes {
            fua,
            no_hole: has(CommandFlags::NO_HOLE),
            fast: has(CommandFlags::FAST_ZERO),
        },
    })
}

/// Returns true if the request is a `BLOCK_STATUS` that may name its contexts, and does. Then the
/// caller decodes its [query](with_query).
///
/// Such a client has chosen one context. So a payload of another length names no context, one
/// twice, or one that the client didn't choose. [`judge`] refuses such a request.
pub fn has_query(request: &Request, limits: &Limits) -> bool {
    request.command == Command::BLOCK_STATUS
        && limits.flags.contains(TransmissionFlags::BLOCK_STATUS_PAYLOAD)
        && request.payload_len(limits.form) == STATUS_QUERY_LEN as u64
}

/// Returns the request that one with this query stands for: the same without its payload. If the
/// query names an unknown context, the length is zero, and [`judge`] refuses the request.
pub fn with_query(request: &Request, query: StatusQuery) -> Request {
    let length = if query.context == ALLOCATION_CONTEXT { query.length } else { 0 };
    Request { flags: request.flags.without(CommandFlags::PAYLOAD_LEN), length, ..*request }
}

/// Returns the flags of an export over a device with this geometry.
///
/// `CAN_MULTI_CONN` is always set, since a [`BlockDevice`](corewise_blockmq::BlockDevice) promises
/// two things. Any client that reads after a completed write sees that write. A flush covers every
/// write, by any client, that completed before the flush was submitted. All connections of an
/// export share the one device and nothing is cached per connection. A reply leaves after its
/// completion. So a write that a client saw answered, on any connection, completed before the
/// client's next flush was submitted, on any other.
///
/// `FUA` is offered if the device supports it. If the device has nothing to flush, a completed
/// write is as durable as it ever will be. `FUA` and `FLUSH` then hold trivially and are offered
/// too.
pub fn transmission_flags(geometry: &Geometry, read_only: bool) -> TransmissionFlags {
    let read_only = read_only || geometry.read_only;
    (TransmissionFlags::HAS_FLAGS
        | TransmissionFlags::SEND_FLUSH
        | TransmissionFlags::CAN_MULTI_CONN)
        .with_if(read_only, TransmissionFlags::READ_ONLY)
        .with_if(geometry.can_fua || !geometry.can_flush, TransmissionFlags::SEND_FUA)
        .with_if(geometry.rotational, TransmissionFlags::ROTATIONAL)
        .with_if(geometry.can_discard && !read_only, TransmissionFlags::SEND_TRIM)
        .with_if(geometry.can_write_zeroes && !read_only, TransmissionFlags::SEND_WRITE_ZEROES)
        .with_if(
            geometry.can_write_zeroes && geometry.can_fast_zero && !read_only,
            TransmissionFlags::SEND_FAST_ZERO,
        )
        .with_if(geometry.can_prefetch, TransmissionFlags::SEND_CACHE)
}

/// Returns the sizes that are advertised for a device.
///
/// The minimum is one byte, since the server reads and writes around blocks that a request covers
/// in part. The preferred size is at least a block of the device and needs no such work. The
/// largest payload is [`MAX_PAYLOAD`] or the device's own limit, rounded down to whole blocks. A
/// device with blocks of more than 64 KiB takes only whole blocks.
pub fn block_sizes(geometry: &Geometry) -> BlockSizes {
    let block = geometry.block_size;
    let maximum = (MAX_PAYLOAD.min(geometry.max_transfer) / block * block).max(block);
    BlockSizes {
        minimum: if block <= LARGEST_PARTIAL_BLOCK { 1 } else { block },
        preferred: geometry.preferred.next_power_of_two().clamp(block, maximum),
        maximum,
    }
}

/// Largest block of which clients may change a part. It is the largest that the protocol knows.
const LARGEST_PARTIAL_BLOCK: u32 = 64 << 10;

/// Returns the time that a client has to send the rest of a request of `bytes` bytes, or to take
/// such a reply. It is `timeout`, plus one second for each MiB.
pub fn time_for(timeout: Duration, bytes: u64) -> Duration {
    timeout.saturating_add(Duration::from_secs(bytes >> 20))
}

/// Rounds a time down to milliseconds, for logs.
pub fn rounded(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the moment `time` after `moment`, or thirty years after it if the clock can't count that
/// far.
pub fn after(moment: Instant, time: Duration) -> Instant {
    moment.checked_add(time).unwrap_or(moment + Duration::from_secs(30 * 365 * 86_400))
}

/// Clients accepted between two checks for a closed listener.
pub const ACCEPTS: u32 = 64;

/// Longest time that a handshake may wait for its client while others wait for its place.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(1);
/// Largest number of halvings of that time. The last one leaves 4 ms.
const PATIENCE_HALVINGS: usize = 8;

/// Returns the largest count of cut handshakes that matters, if `places` handshakes may run at
/// once.
pub fn most_cut(places: usize) -> usize {
    places.saturating_mul(PATIENCE_HALVINGS)
}

/// Returns the time that a handshake may wait for its client before it makes room for another one.
///
/// `cut` is the number of handshakes that were cut, minus those that led to the choice of an
/// export. Live clients choose an export within the patience, however many there are: those behind
/// them wait in the system's queue. A flood of silent clients would keep that queue full. Each time
/// that all `places` have been cut, the patience is therefore halved.
pub fn handshake_patience(cut: usize, places: usize) -> Duration {
    HANDSHAKE_PATIENCE / (1 << (cut / places.max(1)).min(PATIENCE_HALVINGS))
}

/// Returns the time between two searches for a handshake to cut.
pub fn handshakes_look(patience: Duration) -> Duration {
    (patience / 64).max(Duration::from_millis(1))
}

/// Sockets that one such search asks for bytes of their clients.
pub const HANDSHAKES_ASKED: usize = 64;

/// Returns the wait before the next accept after the `failures`-th failure in a row for want of
/// resources: 10 ms, doubling up to 1 s. The wait ends early when the listener is stopped.
pub fn accept_backoff(failures: u32) -> Duration {
    Duration::from_millis((10 << failures.saturating_sub(1).min(7)).min(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(flags: TransmissionFlags) -> Limits {
        let (form, status) = (Form::Simple, false);
        Limits { size: 1 << 20, flags, block: 512, max_payload: 1 << 16, form, status }
    }

    fn all() -> TransmissionFlags {
        transmission_flags(&Geometry::new(1 << 20), false)
    }

    fn request(command: Command, offset: u64, length: u64) -> Request {
        Request { flags: CommandFlags::empty(), command, cookie: 1, offset, length }
    }

    const READ: Operation = Operation::Read { whole: true };
    const REFUSE_INVAL: Verdict = Verdict::Refuse(ReplyError::Inval);

    #[test]
    fn requests_inside_the_export_are_submitted() {
        let l = limits(all());
        let end = (1 << 20) - 512;
        for (command, operation) in [
            (Command::READ, READ),
            (Command::WRITE, Operation::Write { fua: false }),
            (Command::TRIM, Operation::Trim { fua: false }),
            (
                Command::WRITE_ZEROES,
                Operation::WriteZeroes { fua: false, no_hole: false, fast: false },
            ),
        ] {
            assert_eq!(judge(&request(command, end, 512), &l), Verdict::Submit(operation));
        }
        assert_eq!(judge(&request(Command::FLUSH, 0, 0), &l), Verdict::Submit(Operation::Flush));
        assert_eq!(judge(&request(Command::DISC, 9, 9), &l), Verdict::Disconnect);
    }

    #[test]
    fn beyond_the_end_is_nospc_for_writes_and_zeroes_and_inval_for_all_else_and_never_wraps() {
        let l = limits(all());
        let nospc = Verdict::Refuse(ReplyError::NoSpc);
        for offset in [1 << 20, (1 << 20) - 512, u64::MAX - 511, 1 << 63] {
            assert_eq!(judge(&request(Command::READ, offset, 1024), &l), REFUSE_INVAL);
            assert_eq!(judge(&request(Command::WRITE, offset, 1024), &l), nospc);
            assert_eq!(judge(&request(Command::TRIM, offset, 1024), &l), REFUSE_INVAL);
            assert_eq!(judge(&request(Command::WRITE_ZEROES, offset, 1024), &l), nospc);
        }
    }

    #[test]
    fn a_payload_above_the_advertised_one_is_refused_for_reads_and_hopeless_for_writes() {
        let l = limits(all());
        assert_eq!(judge(&request(Command::READ, 0, (1 << 16) + 512), &l), REFUSE_INVAL);
        assert_eq!(judge(&request(Command::READ, 0, u32::MAX.into()), &l), REFUSE_INVAL);
        assert_eq!(judge(&request(Command::WRITE, 0, u32::MAX.into()), &l), Verdict::Hopeless);
        assert_eq!(judge(&request(Command::WRITE, 0, (1 << 16) + 512), &l), Verdict::Hopeless);
        // Neither discards nor zeroes carry a payload, so only the size limits them.
        assert!(matches!(judge(&request(Command::TRIM, 0, 1 << 20), &l), Verdict::Submit(_)));
    }

    #[test]
    fn unaligned_requests_are_refused_and_length_zero_succeeds_where_all_else_is_right() {
        let l = limits(all());
        assert_eq!(judge(&request(Command::READ, 1, 512), &l), REFUSE_INVAL);
        assert_eq!(judge(&request(Command::WRITE, 0, 511), &l), REFUSE_INVAL);
        assert_eq!(judge(&request(Command::READ, 512, 0), &l), Verdict::Done);
        assert_eq!(judge(&request(Command::WRITE, 1 << 20, 0), &l), Verdict::Done);
        assert_eq!(judge(&request(Command::READ, 1 << 21, 0), &l), REFUSE_INVAL);
        assert_eq!(judge(&request(Command::FLUSH, 0, 512), &l), REFUSE_INVAL);
    }

    #[test]
    fn a_read_only_export_answers_perm_to_every_change_and_offers_none() {
        let flags = transmission_flags(&Geometry::new(1 << 20), true);
        assert!(flags.contains(TransmissionFlags::READ_ONLY));
        assert!(!flags.contains(TransmissionFlags::SEND_TRIM));
        for command in [Command::WRITE, Command::TRIM, Command::WRITE_ZEROES] {
            assert_eq!(
                judge(&request(command, 0, 512), &limits(flags)),
                Verdict::Refuse(ReplyError::Perm)
            );
        }
        assert_eq!(judge(&request(Command::READ, 0, 512), &limits(flags)), Verdict::Submit(READ));
    }

    #[test]
    fn unknown_commands_and_flags_are_refused() {
        let l = limits(all());
        for command in [Command::CACHE, Command::BLOCK_STATUS, Command::RESIZE, Command(0xffff)] {
            assert_eq!(judge(&request(command, 0, 512), &l), REFUSE_INVAL);
        }
        for flag in [CommandFlags::DF, CommandFlags::NO_HOLE, CommandFlags(0x8000)] {
            let bad = Request { flags: flag, ..request(Command::READ, 0, 512) };
            assert_eq!(judge(&bad, &l), REFUSE_INVAL);
        }
        let zeroes = request(Command::WRITE_ZEROES, 0, 512);
        let fast = Request { flags: CommandFlags::FAST_ZERO, ..zeroes };
        assert_eq!(judge(&fast, &l), REFUSE_INVAL);
        let hole = Request { flags: CommandFlags::NO_HOLE | CommandFlags::FUA, ..zeroes };
        assert_eq!(
            judge(&hole, &l),
            Verdict::Submit(Operation::WriteZeroes { fua: true, no_hole: true, fast: false })
        );
    }

    #[test]
    fn fua_needs_to_be_offered_and_is_accepted_on_every_command_then() {
        let mut geometry = Geometry::new(1 << 20);
        geometry.can_fua = false;
        let without = transmission_flags(&geometry, false);
        let fua = Request { flags: CommandFlags::FUA, ..request(Command::WRITE, 0, 512) };
        assert_eq!(judge(&fua, &limits(without)), REFUSE_INVAL);
        assert_eq!(judge(&fua, &limits(all())), Verdict::Submit(Operation::Write { fua: true }));
        let read = Request { command: Command::READ, ..fua };
        assert_eq!(judge(&read, &limits(all())), Verdict::Submit(READ));
    }

    #[test]
    fn structured_replies_bring_df_and_block_status_needs_its_context() {
        let geometry =
            Geometry { can_fast_zero: true, can_prefetch: true, ..Geometry::new(1 << 20) };
        let flags = transmission_flags(&geometry, false);
        let plain = limits(flags);
        let flags = flags | TransmissionFlags::SEND_DF;
        let l = Limits { form: Form::Structured, status: true, flags, ..plain };
        let with = |flags, request| Request { flags, ..request };
        let read = request(Command::READ, 0, 512);
        assert_eq!(judge(&read, &l), Verdict::Submit(Operation::Read { whole: false }));
        assert_eq!(judge(&with(CommandFlags::DF, read), &l), Verdict::Submit(READ));
        let long = request(Command::READ, 0, (1 << 16) + 512);
        assert_eq!(judge(&long, &l), Verdict::Refuse(ReplyError::Overflow));
        let status = request(Command::BLOCK_STATUS, 512, 1 << 19);
        assert_eq!(judge(&status, &plain), REFUSE_INVAL);
        let one = |one| Verdict::Submit(Operation::BlockStatus { one });
        assert_eq!(judge(&status, &l), one(false));
        assert_eq!(judge(&with(CommandFlags::REQ_ONE, status), &l), one(true));
        let long = u64::from(u32::MAX) - 511;
        for (offset, length) in [(0, 0), (1, 512), (512, 1 << 20), (u64::MAX - 511, long)] {
            assert_eq!(judge(&request(Command::BLOCK_STATUS, offset, length), &l), REFUSE_INVAL);
        }
        let cache = request(Command::CACHE, 0, 1 << 20);
        assert_eq!(judge(&cache, &l), Verdict::Submit(Operation::Cache));
        assert_eq!(judge(&with(CommandFlags::DF, cache), &l), REFUSE_INVAL);
        let fast = with(CommandFlags::FAST_ZERO, request(Command::WRITE_ZEROES, 0, 512));
        let zeroes = Operation::WriteZeroes { fua: false, no_hole: false, fast: true };
        assert_eq!(judge(&fast, &l), Verdict::Submit(zeroes));
        let read_only = transmission_flags(&geometry, true);
        assert!(!read_only.contains(TransmissionFlags::SEND_FAST_ZERO));
        assert!(read_only.contains(TransmissionFlags::SEND_CACHE));
    }

    #[test]
    fn with_extended_headers_a_flag_makes_the_payload_and_lengths_of_64_bits_are_judged_as_any() {
        let geometry = Geometry { can_prefetch: true, ..Geometry::new(1 << 50) };
        let flags = transmission_flags(&geometry, false)
            | TransmissionFlags::SEND_DF
            | TransmissionFlags::BLOCK_STATUS_PAYLOAD;
        let l = Limits { size: 1 << 50, form: Form::Extended, status: true, ..limits(flags) };
        let payload = CommandFlags::PAYLOAD_LEN;
        let with = |flags, request| Request { flags, ..request };
        let write = request(Command::WRITE, 0, 512);
        assert_eq!(judge(&write, &l), REFUSE_INVAL, "a write without its payload");
        let operation = Operation::Write { fua: false };
        assert_eq!(judge(&with(payload, write), &l), Verdict::Submit(operation));
        for (command, length) in [(Command::WRITE, 1 << 17), (Command::TRIM, u64::MAX - 511)] {
            let long = with(payload, request(command, 0, length));
            assert_eq!(judge(&long, &l), Verdict::Hopeless, "the payload is too long");
        }
        for command in [Command::READ, Command::TRIM, Command::CACHE, Command(77)] {
            assert_eq!(judge(&with(payload, request(command, 0, 512)), &l), REFUSE_INVAL);
        }
        let overflow = Verdict::Refuse(ReplyError::Overflow);
        let nospc = Verdict::Refuse(ReplyError::NoSpc);
        for (offset, length) in [(0, 1 << 63), (512, u64::MAX - 511), (1 << 63, 1 << 63)] {
            for (command, verdict) in [
                (Command::READ, overflow),
                (Command::TRIM, REFUSE_INVAL),
                (Command::CACHE, REFUSE_INVAL),
                (Command::BLOCK_STATUS, REFUSE_INVAL),
                (Command::WRITE_ZEROES, nospc),
            ] {
                let hostile = request(command, offset, length);
                assert_eq!(judge(&hostile, &l), verdict, "{hostile:?}");
            }
        }
        for command in [Command::TRIM, Command::CACHE, Command::BLOCK_STATUS, Command::WRITE_ZEROES]
        {
            let all = request(command, 0, 1 << 50);
            assert!(matches!(judge(&all, &l), Verdict::Submit(_)), "{all:?}");
        }
    }

    #[test]
    fn a_block_status_that_names_its_context_is_one_of_that_context_or_none() {
        let flags = all() | TransmissionFlags::BLOCK_STATUS_PAYLOAD;
        let l = Limits { form: Form::Extended, status: true, ..limits(flags) };
        let (flags, len) = (CommandFlags::PAYLOAD_LEN, STATUS_QUERY_LEN as u64);
        let status = Request { flags, ..request(Command::BLOCK_STATUS, 512, len) };
        assert!(has_query(&status, &l));
        let meant = |length, context| with_query(&status, StatusQuery { length, context });
        assert_eq!(meant(1024, ALLOCATION_CONTEXT), request(Command::BLOCK_STATUS, 512, 1024));
        for wrong in [meant(1024, 77), meant(0, ALLOCATION_CONTEXT), meant(1 << 63, 1)] {
            assert_eq!(judge(&wrong, &l), REFUSE_INVAL, "{wrong:?}");
        }
        for length in [len - 4, len + 4] {
            let other = Request { length, ..status };
            assert!(!has_query(&other, &l), "no context, or several");
            assert_eq!(judge(&other, &l), REFUSE_INVAL);
        }
        let flags = all();
        assert!(!has_query(&status, &Limits { flags, ..l }), "it wasn't offered");
        assert!(!has_query(&request(Command::BLOCK_STATUS, 512, len), &l));
    }

    #[test]
    fn advertised_sizes_stay_within_the_device_and_the_protocol() {
        let mut geometry = Geometry::new(1 << 30);
        assert_eq!(
            block_sizes(&geometry),
            BlockSizes { minimum: 1, preferred: 4096, maximum: 32 << 20 }
        );
        geometry.max_transfer = (1 << 20) + 100;
        geometry.preferred = 3000;
        let sizes = block_sizes(&geometry);
        assert_eq!(sizes, BlockSizes { minimum: 1, preferred: 4096, maximum: 1 << 20 });
        geometry.block_size = 128 << 10;
        let sizes = block_sizes(&geometry);
        let block = 128 << 10;
        assert_eq!(sizes, BlockSizes { minimum: block, preferred: block, maximum: 1 << 20 });
    }

    #[test]
    fn a_large_request_has_a_second_more_for_each_mib() {
        let second = Duration::from_secs(1);
        assert_eq!(time_for(second, 4096), second);
        assert_eq!(time_for(second, 32 << 20), 33 * second);
        assert_eq!(time_for(Duration::MAX, 32 << 20), Duration::MAX);
        let now = Instant::now();
        assert_eq!(after(now, second), now + second);
        assert!(after(now, Duration::MAX) > now + 1_000_000 * second);
    }

    #[test]
    fn a_flood_of_silent_clients_halves_the_patience_with_each_set_of_them() {
        let patience = |cut| handshake_patience(cut, 100).as_millis();
        assert_eq!([0, 99, 100, 250, 800].map(patience), [1000, 1000, 500, 250, 3]);
        assert_eq!(handshake_patience(usize::MAX, 0), handshake_patience(most_cut(7), 7));
        let second = Duration::from_secs(1);
        assert!(handshakes_look(second) < second / 50);
        assert_eq!(handshakes_look(Duration::ZERO), Duration::from_millis(1));
    }

    #[test]
    fn the_back_off_doubles_and_is_bounded() {
        assert_eq!(accept_backoff(1), Duration::from_millis(10));
        assert_eq!(accept_backoff(2), Duration::from_millis(20));
        assert_eq!(accept_backoff(100), Duration::from_millis(1000));
    }
}
