//! What tasks ask of their queue, answered by the pwq that they were queued on.

use std::sync::Arc;

use corewise_sync::atomic::Ordering;

use crate::pwq::Pwq;
use crate::pwq::counts::Careful;
use crate::pwq::enter::leave;
use crate::pwq::limit_slot::Admission;
use crate::pwq::queue_core::QueueCore;
use crate::pwq::slot::PwqSlot;
use crate::pwq::submit::push;
use crate::task::claim::Place;
use crate::task::header::Queued;
use crate::task::ticket::{Event, Schedule, Spot, Ticket};
use crate::task::vtable::Lent;

/// The schedule of the homes of slots of pwqs.
pub(super) struct OfPwq;

/// The slot of such a home.
///
/// # Safety
/// It is one, and an instance that was counted there isn't over, as long as the reference lives.
unsafe fn slot<'a>(at: Spot) -> &'a PwqSlot<Pwq> {
    // SAFETY: as the caller says.
    unsafe { at.home.cast().as_ref() }
}

impl Schedule for OfPwq {
    fn queue_name<'a>(&self, ticket: &'a Ticket) -> &'a str {
        &Pwq::of(ticket).shared.name
    }

    fn take_out(&self, ticket: &Ticket, item: Lent<'_>, place: Place) -> Option<Queued> {
        let pwq = Pwq::of(ticket);
        match place {
            Place::Held => pwq.release(item),
            _ => pwq.group.unlist(pwq.pool, ticket.stripe(), item, place),
        }
    }

    unsafe fn share(&self, at: Spot) -> Option<Ticket> {
        // SAFETY: as the caller says.
        let of = unsafe { slot(at) };
        // SAFETY: as above.
        let limit = &unsafe { of.pwq() }.slot;
        let counted = match limit.admit(limit.glance()) {
            Admission::Free => false,
            Admission::Counted => true,
            Admission::Wait => return None,
        };
        // Enter, without Validate: the instance keeps the pwq, as where a place is Reused. It was
        // never queued, for the statistics.
        of.tally.pair(at.stripe, at.colour).enter();
        of.tally.undo(at.stripe);
        // SAFETY: the place was Entered just now, and is this ticket's.
        let ticket = unsafe { Ticket::new(at) };
        if counted {
            ticket.count();
        }
        Some(ticket)
    }

    unsafe fn note(&self, at: Spot, what: Event) {
        // SAFETY: as the caller says.
        let slot = unsafe { slot(at) };
        // SAFETY: as above.
        let pwq = || unsafe { slot.pwq() };
        match what {
            Event::Cancelled => {
                pwq().counters.cancelled.fetch_add(1, Ordering::Relaxed);
            }
            Event::Overflowed => {
                pwq().counters.overflowed.fetch_add(1, Ordering::Relaxed);
            }
            Event::Took(took) => {
                let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                pwq().counters.run_ns.fetch_add(took, Ordering::Relaxed);
            }
            Event::Withdrawn => slot.tally.undo(at.stripe),
            Event::Again(many) => slot.tally.queued_again(at.stripe, many),
        }
    }

    #[inline]
    unsafe fn leave(&self, at: Spot, many: u64, counted: bool) {
        if counted {
            // SAFETY: as the caller says.
            unsafe { slot(at).pwq() }.slot.put(&mut push);
        }
        // SAFETY: as the caller says.
        unsafe { leave::<Careful, Pwq, QueueCore>(at, many, |pwq| Arc::clone(&pwq.shared)) };
    }
}
