//! Decisions of the client's side as pure functions over plain numbers: the device of an export and
//! its identity after a reconnect, requests, and pauses.

use std::ops::Range;
use std::time::Duration;

use corewise_blockmq::{Geometry, IoErrorKind, Op, Started};

use super::client_handshake::RemoteAgreement;
use crate::wire::{
    BlockSizes, Command, CommandFlags, MAX_PAYLOAD, REQUEST_LEN, ReplyError, Request,
    TransmissionFlags,
};

/// Largest number of times that a request is sent. A request whose connection breaks each time may
/// be the cause.
pub(super) const MOST_TRIES: u32 = 5;
/// Largest number of requests of one hardware queue on their way.
pub(super) const DEPTH: u32 = 128;
/// Largest number of connections of one volume.
pub(super) const MOST_CONNECTIONS: usize = 16;
/// Largest trim or write of zeroes in bytes. The length field has 32 bits, and the request has to
/// end in time.
const MOST_ZEROED: u64 = 1 << 30;
/// Largest range of a request without data, in bytes.
const MOST_ASKED: u64 = 1 << 30;
/// Least age of a set of connections that counts as good.
pub(super) const GOOD: Duration = Duration::from_secs(1);

/// Returns the device that an export makes, or the reason why it can't be one.
pub(super) fn geometry(agreed: &RemoteAgreement, read_only: bool) -> Result<Geometry, String> {
    let BlockSizes { minimum, preferred, maximum } = agreed.sizes;
    if !minimum.is_power_of_two() || minimum > 64 << 10 {
        return Err(format!(
            "the remote server announces a minimum block size of {minimum}, which is not a power of \
             two up to 64 KiB"
        ));
    }
    let block = minimum.max(512);
    if maximum < block {
        return Err(format!(
            "the remote server announces a maximum block size of {maximum}, less than one \
             block of {block}"
        ));
    }
    let whole = |bytes: u64| bytes / u64::from(block) * u64::from(block);
    let size = whole(agreed.summary.size);
    if size == 0 {
        return Err(format!(
            "the export has {} bytes, less than one block of {block}",
            agreed.summary.size
        ));
    }
    let has = |flag| agreed.summary.flags.contains(flag);
    let read_only = read_only || has(TransmissionFlags::READ_ONLY);
    Ok(Geometry {
        block_size: block,
        preferred: if preferred.is_power_of_two() { preferred.max(block) } else { block.max(4096) },
        physical_block: block,
        max_transfer: whole(maximum.min(MAX_PAYLOAD).into()) as u32,
        max_discard: whole(MOST_ZEROED),
        max_write_zeroes: whole(MOST_ZEROED),
        read_only,
        // True even if the server has no flush: a flush may have to fail because a connection was
        // lost.
        can_flush: !read_only,
        can_fua: has(TransmissionFlags::SEND_FUA),
        can_discard: has(TransmissionFlags::SEND_TRIM),
        can_write_zeroes: has(TransmissionFlags::SEND_WRITE_ZEROES),
        can_fast_zero: has(TransmissionFlags::SEND_WRITE_ZEROES)
            && has(TransmissionFlags::SEND_FAST_ZERO),
        can_prefetch: has(TransmissionFlags::SEND_CACHE),
        rotational: has(TransmissionFlags::ROTATIONAL),
        ..Geometry::new(size)
    })
}

/// Returns the size, in whole blocks of the device, of an export that says `now`. Returns the
/// reason if a device of this geometry, over an export that said `before`, can't continue with it.
pub(super) fn still(
    device: &Geometry,
    before: &RemoteAgreement,
    now: &RemoteAgreement,
) -> Result<u64, String> {
    let flushes =
        |agreed: &RemoteAgreement| agreed.summary.flags.contains(TransmissionFlags::SEND_FLUSH);
    let (flushed, flushes) = (flushes(before), flushes(now));
    let now = geometry(now, false)?;
    if now.size < device.size {
        return Err(format!("the export shrank from {} bytes to {}", device.size, now.size));
    }
    if now.block_size > device.block_size || now.max_transfer < device.max_transfer {
        return Err(format!(
            "the export took blocks of {} bytes and requests up to {}; now it takes {} and {}",
            device.block_size, device.max_transfer, now.block_size, now.max_transfer
        ));
    }
    for (what, had, has) in [
        ("writes", !device.read_only, !now.read_only),
        ("flushes", flushed, flushes),
        ("durable writes (FUA)", device.can_fua, now.can_fua),
        ("trims", device.can_discard, now.can_discard),
        ("writes of zeroes", device.can_write_zeroes, now.can_write_zeroes),
        ("fast zeroing", device.can_fast_zero, now.can_fast_zero),
        ("prefetches", device.can_prefetch, now.can_prefetch),
    ] {
        if had && !has {
            return Err(format!("the export supported {what} before, and doesn't now"));
        }
    }
    Ok(now.size / u64::from(device.block_size) * u64::from(device.block_size))
}

/// Returns the pause before the next attempt, after `failures` failed ones in a row. A request with
/// this `timeout` sees several attempts.
pub(super) fn pause(failures: u32, timeout: Duration) -> Duration {
    match failures {
        0 => Duration::ZERO,
        n => Duration::from_millis((100 << (n - 1).min(6)).min(5000)).min(timeout / 4),
    }
}

/// Returns the number of failed attempts in a row: `before`, updated by the outcome of a set of
/// connections that lasted for `lasted`. `useful` says whether the set has answered a request.
pub(super) fn failures(before: u32, lasted: Duration, useful: bool) -> u32 {
    match (lasted >= GOOD, useful) {
        (true, _) => 0,
        // A request that is sent again may be the cause of the breaks.
        (false, true) => 1,
        (false, false) => before.saturating_add(1),
    }
}

/// Converts an error number of a reply. A number outside the protocol is an I/O error.
pub(super) fn kind(error: u32) -> IoErrorKind {
    match ReplyError::from_code(error) {
        Some(ReplyError::Perm) => IoErrorKind::ReadOnly,
        Some(ReplyError::Inval) => IoErrorKind::InvalidInput,
        Some(ReplyError::NoSpc) => IoErrorKind::NoSpace,
        Some(ReplyError::NotSup) => IoErrorKind::NotSupported,
        Some(other) => IoErrorKind::Io(other.code() as i32),
        None => IoErrorKind::Io(ReplyError::Io.code() as i32),
    }
}

/// Encodes the head of a request.
pub(super) fn head(rq: &Started, cookie: u64, asked: Range<u64>, block: u32) -> [u8; REQUEST_LEN] {
    let none = CommandFlags::empty();
    let (command, flags, range) = match rq.op() {
        Op::Read => (Command::READ, none, asked),
        Op::Write => (Command::WRITE, none, asked),
        Op::Flush => (Command::FLUSH, none, 0..0),
        Op::Discard => (Command::TRIM, none, asked),
        Op::WriteZeroes => {
            let flags = none
                .with_if(rq.flags().no_unmap, CommandFlags::NO_HOLE)
                .with_if(rq.flags().fast, CommandFlags::FAST_ZERO);
            (Command::WRITE_ZEROES, flags, asked)
        }
        Op::Prefetch => {
            // The request is a hint, so its length is cut to the largest value of the field.
            let end = asked.end.min(asked.start + MOST_ASKED / u64::from(block) * u64::from(block));
            (Command::CACHE, none, asked.start..end)
        }
        // All others were refused before.
        _ => {
            // Extents may end before the range does.
            let end = asked.end.min(asked.start + MOST_ASKED / u64::from(block) * u64::from(block));
            let one = rq.extents().is_some_and(|extents| extents.most() == 1);
            (Command::BLOCK_STATUS, none.with_if(one, CommandFlags::REQ_ONE), asked.start..end)
        }
    };
    let flags = flags.with_if(rq.op().is_change() && rq.flags().fua, CommandFlags::FUA);
    let (offset, length) = (range.start, range.end - range.start);
    Request { flags, command, cookie, offset, length }.encode()
}

#[cfg(test)]
mod tests {
    use super::super::client_handshake::USUAL_SIZES;
    use super::*;
    use crate::wire::ExportSummary;

    fn agreed(size: u64, sizes: BlockSizes) -> RemoteAgreement {
        let flags = TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_FLUSH;
        RemoteAgreement {
            summary: ExportSummary { size, flags },
            sizes,
            ..RemoteAgreement::NOTHING
        }
    }

    #[test]
    fn an_export_is_a_device_of_whole_blocks_within_its_limits() {
        let odd = geometry(&agreed((1 << 20) + 700, USUAL_SIZES), false).unwrap();
        assert_eq!((odd.size, odd.block_size), ((1 << 20) + 512, 512));
        assert!(odd.can_flush && !odd.can_fua && !odd.can_discard);
        let sizes = BlockSizes { minimum: 4096, preferred: 65536, maximum: 1_000_000 };
        let coarse = geometry(&agreed(1 << 20, sizes), false).unwrap();
        assert_eq!((coarse.block_size, coarse.preferred), (4096, 65536));
        assert_eq!(coarse.max_transfer, 244 * 4096);
        assert_eq!(coarse.cannot_be(), None);
        let huge = BlockSizes { maximum: u32::MAX, preferred: 0, ..USUAL_SIZES };
        assert_eq!(geometry(&agreed(1 << 40, huge), false).unwrap().max_transfer, MAX_PAYLOAD);
        assert!(!geometry(&agreed(1 << 20, USUAL_SIZES), true).unwrap().can_flush);
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        for sizes in [
            BlockSizes { minimum: 0, ..USUAL_SIZES },
            BlockSizes { minimum: 3, ..USUAL_SIZES },
            BlockSizes { minimum: 1 << 31, ..USUAL_SIZES },
            BlockSizes { maximum: 511, ..USUAL_SIZES },
        ] {
            assert!(geometry(&agreed(1 << 20, sizes), false).is_err(), "{sizes:?}");
        }
        assert!(geometry(&agreed(511, USUAL_SIZES), false).is_err());
        // No value of a server makes a geometry that no device can have.
        for size in [512, u64::MAX, u64::MAX - 511, 1 << 63] {
            assert_eq!(geometry(&agreed(size, USUAL_SIZES), false).unwrap().cannot_be(), None);
        }
    }

    #[test]
    fn a_device_goes_on_with_an_export_that_can_do_no_less_than_before() {
        let first = agreed(1 << 20, USUAL_SIZES);
        let device = geometry(&first, false).unwrap();
        let still = |now: &RemoteAgreement| still(&device, &first, now);
        assert_eq!(still(&agreed((2 << 20) + 700, USUAL_SIZES)), Ok((2 << 20) + 512));
        assert!(still(&agreed(1 << 19, USUAL_SIZES)).unwrap_err().contains("bytes"));
        let coarse = BlockSizes { minimum: 1024, ..USUAL_SIZES };
        assert!(still(&agreed(1 << 20, coarse)).unwrap_err().contains("blocks"));
        let mut read_only = agreed(1 << 20, USUAL_SIZES);
        read_only.summary.flags = TransmissionFlags::READ_ONLY;
        assert!(still(&read_only).unwrap_err().contains("writes"));
        let mut forgetful = agreed(1 << 20, USUAL_SIZES);
        forgetful.summary.flags = TransmissionFlags::HAS_FLAGS;
        assert!(still(&forgetful).unwrap_err().contains("flushes"));
    }

    #[test]
    fn attempts_come_at_once_and_then_less_and_less_often() {
        let minute = Duration::from_secs(60);
        let pauses: Vec<_> = (0..9).map(|n| pause(n, minute).as_millis()).collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(pause(u32::MAX, minute).as_millis(), 5000);
        // A request sees several of them within its time.
        assert_eq!(pause(u32::MAX, Duration::from_secs(3)).as_millis(), 750);
    }

    #[test]
    fn connections_that_lasted_or_answered_are_sought_again_soon() {
        let (short, long) = (Duration::from_millis(10), Duration::from_secs(1));
        assert_eq!(failures(7, long, false), 0);
        assert_eq!(failures(7, short, true), 1);
        assert_eq!(failures(7, short, false), 8);
        assert_eq!(failures(u32::MAX, short, false), u32::MAX);
    }

    #[test]
    fn the_errors_of_the_other_side_become_ours() {
        assert_eq!(kind(1), IoErrorKind::ReadOnly);
        assert_eq!(kind(28), IoErrorKind::NoSpace);
        assert_eq!(kind(12), IoErrorKind::Io(12));
        assert_eq!(kind(4711), IoErrorKind::Io(5));
    }
}
