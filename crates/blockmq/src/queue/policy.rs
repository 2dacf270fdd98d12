//! Policy: which requests a device takes. Pure.

use crate::request::error::{IoError, IoErrorKind};
use crate::request::geometry::Geometry;
use crate::request::op::{Flags, Op};

/// What becomes of a request before it is queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is queued.
    Queue,
    /// There is nothing to do: it completes at once, successfully.
    Nothing,
    /// It completes at once with this error.
    Refuse(IoError),
}

/// Judges a request against what the device is and can do. Overflow-safe for any numbers, since
/// they may come from a client. `size` is the device's by now.
pub(crate) fn judge(
    g: &Geometry,
    size: u64,
    op: Op,
    offset: u64,
    len: u64,
    flags: Flags,
) -> Verdict {
    use IoErrorKind::{InvalidInput, NoSpace, NotSupported, OutOfRange, ReadOnly};
    let refuse = |kind, why: String| Verdict::Refuse(IoError::with(kind, why));
    let asked = || format!("{op} of {len} bytes at {offset}");

    if op == Op::Flush {
        return if g.can_flush { Verdict::Queue } else { Verdict::Nothing };
    }
    if op.is_change() && g.read_only {
        return refuse(ReadOnly, asked());
    }
    let can = match op {
        Op::Discard => g.can_discard,
        Op::WriteZeroes => g.can_write_zeroes && (g.can_fast_zero || !flags.fast),
        Op::Prefetch => g.can_prefetch,
        Op::Read | Op::Write | Op::Flush | Op::Extents => true,
    };
    if !can {
        return refuse(NotSupported, asked());
    }
    // A device without a volatile cache is durable anyway: `fua` asks for nothing there.
    if flags.fua && op.is_change() && g.can_flush && !g.can_fua {
        return refuse(NotSupported, format!("{} with fua", asked()));
    }
    let block = u64::from(g.block_size);
    let fits = |bytes: u64| bytes.checked_rem(block) == Some(0);
    if !fits(offset) || !fits(len) {
        return refuse(
            InvalidInput,
            format!("{}: it must consist of whole blocks of {block} bytes", asked()),
        );
    }
    if matches!(op, Op::Read | Op::Write) && len > u64::from(g.max_transfer) {
        return refuse(
            InvalidInput,
            format!("{}: the device takes at most {} at once", asked(), g.max_transfer),
        );
    }
    if offset.checked_add(len).is_none_or(|end| end > size) {
        let kind = if matches!(op, Op::Write | Op::WriteZeroes) { NoSpace } else { OutOfRange };
        return refuse(kind, format!("{}: the device has {size} bytes", asked()));
    }
    if len == 0 { Verdict::Nothing } else { Verdict::Queue }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: Geometry = Geometry { max_transfer: 4096, ..Geometry::new(8192) };

    fn kind(g: &Geometry, op: Op, offset: u64, len: u64) -> Result<Verdict, IoErrorKind> {
        match judge(g, g.size, op, offset, len, Flags::default()) {
            Verdict::Refuse(error) => Err(error.kind()),
            taken => Ok(taken),
        }
    }

    #[test]
    fn the_last_block_is_in_range_and_one_beyond_is_not() {
        assert_eq!(kind(&G, Op::Read, 7680, 512), Ok(Verdict::Queue));
        assert_eq!(kind(&G, Op::Read, 7680, 1024), Err(IoErrorKind::OutOfRange));
        assert_eq!(kind(&G, Op::Discard, 8192, 512), Err(IoErrorKind::OutOfRange));
        assert_eq!(kind(&G, Op::Write, 8192, 512), Err(IoErrorKind::NoSpace));
        assert_eq!(kind(&G, Op::WriteZeroes, 0, 1 << 20), Err(IoErrorKind::NoSpace));
    }

    #[test]
    fn offsets_near_the_end_of_u64_do_not_wrap_around() {
        let last = u64::MAX - 511;
        assert_eq!(kind(&G, Op::Read, last, 512), Err(IoErrorKind::OutOfRange));
        assert_eq!(kind(&G, Op::Write, last, 1024), Err(IoErrorKind::NoSpace));
        assert_eq!(kind(&G, Op::Discard, last, last), Err(IoErrorKind::OutOfRange));
    }

    #[test]
    fn parts_of_blocks_are_refused() {
        assert_eq!(kind(&G, Op::Read, 1, 512), Err(IoErrorKind::InvalidInput));
        assert_eq!(kind(&G, Op::Write, 512, 511), Err(IoErrorKind::InvalidInput));
    }

    #[test]
    fn transfers_are_limited_and_discards_are_not() {
        assert_eq!(kind(&G, Op::Read, 0, 4096), Ok(Verdict::Queue));
        assert_eq!(kind(&G, Op::Write, 0, 4608), Err(IoErrorKind::InvalidInput));
        assert_eq!(kind(&G, Op::Discard, 0, 8192), Ok(Verdict::Queue));
    }

    #[test]
    fn a_read_only_device_reads_and_flushes() {
        let g = Geometry { read_only: true, ..G };
        assert_eq!(kind(&g, Op::Read, 0, 512), Ok(Verdict::Queue));
        assert_eq!(kind(&g, Op::Flush, 0, 0), Ok(Verdict::Queue));
        for op in [Op::Write, Op::Discard, Op::WriteZeroes] {
            assert_eq!(kind(&g, op, 0, 512), Err(IoErrorKind::ReadOnly));
        }
    }

    #[test]
    fn an_empty_transfer_succeeds_where_a_full_one_would() {
        assert_eq!(kind(&G, Op::Read, 8192, 0), Ok(Verdict::Nothing));
        assert_eq!(kind(&G, Op::Read, 8704, 0), Err(IoErrorKind::OutOfRange));
    }

    #[test]
    fn unsupported_operations_are_refused() {
        let g = Geometry { can_discard: false, can_fua: false, ..G };
        assert_eq!(kind(&g, Op::Discard, 0, 512), Err(IoErrorKind::NotSupported));
        let fua = Flags { fua: true, ..Flags::default() };
        assert!(matches!(judge(&g, g.size, Op::Write, 0, 512, fua), Verdict::Refuse(_)));
        let durable = Geometry { can_flush: false, ..g };
        assert_eq!(judge(&durable, durable.size, Op::Write, 0, 512, fua), Verdict::Queue);
        assert_eq!(judge(&durable, durable.size, Op::Flush, 0, 0, fua), Verdict::Nothing);
        assert_eq!(
            judge(&g, g.size, Op::Read, 0, 512, fua),
            Verdict::Queue,
            "fua means nothing to a read"
        );
    }
}
