//! What is in flight on a queue's links, for reports: what workers carry is over.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

use crate::pool::Pool;
use crate::pool::group::Group;
use crate::pwq::Link;
use crate::pwq::queue_core::Shared;
use crate::pwq::slot::Seat;

/// What the workers that may run a queue's work carry (a moment ago), by the seat's address.
pub(crate) struct Carried(BTreeMap<usize, OfSeat>);

struct OfSeat {
    /// How many were over, before the workers were looked at.
    over: u64,
    /// How many had been queued by TakeOver, as far as the seat knew.
    again: u64,
    carried: u64,
    /// What the seat doesn't know of.
    more: u64,
}

impl Carried {
    /// Looks at them. Takes short locks.
    pub(crate) fn of(queue: &Shared) -> Carried {
        let mut seats = BTreeMap::new();
        let mut groups: Vec<Arc<Group>> = Vec::new();
        for (seat, link) in queue.colours.members.lock().all() {
            let of_seat =
                OfSeat { over: seat.tally.over(), again: seat.tally.again(), carried: 0, more: 0 };
            seats.insert(ptr::from_ref(seat).addr(), of_seat);
            if let Some(link) = link
                && !groups.iter().any(|group| Arc::ptr_eq(group, &link.group))
            {
                groups.push(Arc::clone(&link.group));
            }
        }
        let pools = groups.iter().flat_map(|group| group.pools.iter());
        let workers: Vec<_> = pools.flat_map(Pool::workers).collect();
        let first: Vec<_> = workers.iter().map(|worker| worker.carry.look()).collect();
        for (worker, first) in workers.iter().zip(first) {
            let now = worker.carry.look();
            let Some(seat) = seats.get_mut(&now.seat) else { continue };
            seat.more += now.again();
            // What doesn't change between two rounds was there at one moment together: none of it is on its
            // way from one worker to another, by TakeOver. What does is taken for what is in flight.
            if now == first {
                seat.carried += now.many();
            }
        }
        Carried(seats)
    }

    /// Instances queued here and not over. Not less than there were at one moment since this was made:
    /// those over were counted before, and those that came are after.
    pub(crate) fn in_flight(&self, seat: &Seat<Link>) -> u64 {
        let most = seat.tally.in_flight();
        match self.0.get(&ptr::from_ref(seat).addr()) {
            Some(OfSeat { over, carried, .. }) => {
                most.min(seat.tally.ever_came().saturating_sub(over + carried))
            }
            None => most,
        }
    }

    /// Instances queued here so far, by `counted`, which is what the seat knows of.
    pub(crate) fn queued(&self, seat: &Seat<Link>, counted: u64) -> u64 {
        let Some(OfSeat { again, more, .. }) = self.0.get(&ptr::from_ref(seat).addr()) else {
            return counted;
        };
        // What the seat was told meanwhile isn't counted twice.
        counted + (again + more).saturating_sub(seat.tally.again())
    }
}
