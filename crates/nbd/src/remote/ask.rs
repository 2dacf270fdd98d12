//! How a request is asked for: its head, as it is sent. Pure.

use std::ops::Range;

use corewise_blockmq::{Op, Started};

use crate::wire::{Command, CommandFlags, REQUEST_LEN, Request};

/// The head of a request, as it is sent.
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
            // A hint: as much as the length can say.
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

/// Longest range of a request without data, in bytes.
const MOST_ASKED: u64 = 1 << 30;
