//! For the fuzzer: what a server sends in the transmission phase, against requests of which nothing else is there.

use std::time::Instant;

use bytes::BytesMut;
use corewise_blockmq::{IoError, IoErrorKind, Started};
use corewise_sync::time;

use super::answers::{Answers, End};
use super::table::Table;

/// By what the answers to number `n` of the requests name it.
pub fn cookie(n: usize) -> u64 {
    (n as u64 + 1) << 16 | n as u64
}

/// Takes `pieces` for what comes on a connection on which `requests` were sent, of which the last one hasn't left whole, and
/// completes them all. Which ones were answered, in that order, and whether the connection could go on.
pub fn answers<'a>(
    structured: bool,
    allocation: u32,
    requests: Vec<Started>,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> (Vec<usize>, bool) {
    let mut table = Table::default();
    let (now, all): (Instant, _) = (time::now(), requests.len());
    for rq in requests {
        table.add(rq, now);
    }
    for n in 0..all {
        let slot = table.send(0, 0);
        let entry = table.get_mut(slot);
        entry.leaving = n + 1 == all;
        assert_eq!((slot, entry.cookie), (n, cookie(n)));
    }
    let mut reader = Answers::new(structured, Some(allocation));
    let (mut bytes, mut ends, mut order) = (BytesMut::new(), Vec::new(), Vec::new());
    let mut goes_on = true;
    for piece in pieces {
        bytes.extend_from_slice(piece);
        goes_on = reader.take(&mut bytes, &mut table, 0, &mut ends).is_ok();
        for end in ends.drain(..) {
            let (slot, result) = match end {
                End::Answered(slot, result) => (slot, result),
                End::Refused(slot) => (slot, Err(IoError::new(IoErrorKind::Gone))),
            };
            order.push(slot);
            table.remove(slot).complete(result);
        }
        if !goes_on {
            break;
        }
    }
    for slot in table.sent() {
        table.remove(slot).complete(Err(IoError::new(IoErrorKind::Gone)));
    }
    (order, goes_on)
}
