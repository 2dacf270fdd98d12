//! Merging: requests that touch become one before the driver sees them.
//!
//! The runner merges while it empties the software queues, where it alone has what it looks at: each request
//! is compared with the last few that wait already, as the kernel's `blk_bio_list_merge` does in a software
//! queue. So what a thread submits together (a batch, a plug) is merged too, and so is what several
//! CPUs of a hardware queue submit. The requests stay what they are: each has its own buffers and its own
//! end. Where a merged one fails, each of them is tried alone, so that none fails for its neighbour.

use std::collections::VecDeque;
use std::mem;

use crate::limits::Side;
use crate::pending::Pending;

/// How many of those that wait a request is compared with, the last first.
const LOOK_BACK: usize = 8;

/// Merges `late` into `early`, if they touch, the limits allow it and the driver gains by it; else gives it back.
pub(crate) fn try_merge(early: &mut Box<Pending>, late: Box<Pending>) -> Result<(), Box<Pending>> {
    let core = &early.core;
    // Most don't touch, and that is seen at once.
    let (a, b) = (early.rq(), late.rq());
    let touch = a.offset().wrapping_add(a.len()) == b.offset()
        || b.offset().wrapping_add(b.len()) == a.offset();
    if !touch || !core.merges {
        return Err(late);
    }
    let (a, b) = (a.shape(&core.limits), b.shape(&core.limits));
    let Some(side) = core.limits.may_merge(&a, &b) else { return Err(late) };
    let behind = match side {
        Side::Back => late,
        Side::Front => mem::replace(early, late),
    };
    early.rq_mut().append(behind, a.pieces + b.pieces);
    Ok(())
}

/// Puts a request at the end of a list, or merges it into one of the last there: then true.
pub(crate) fn into_list(list: &mut VecDeque<Box<Pending>>, late: Box<Pending>) -> bool {
    let mut late = late;
    if late.core.merges {
        for early in list.iter_mut().rev().take(LOOK_BACK) {
            match try_merge(early, late) {
                Ok(()) => return true,
                Err(back) => late = back,
            }
        }
    }
    list.push_back(late);
    false
}
