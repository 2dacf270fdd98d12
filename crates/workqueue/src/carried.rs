//! What is in flight on a queue's links, for reports: what workers carry is over.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;

use crate::link::{Link, Shared};
use crate::pool::Pool;
use crate::pool::group::Group;
use crate::seat::Seat;

/// What the workers that may run a queue's work carry (a moment ago), by the seat's address.
pub(crate) struct Carried(BTreeMap<usize, OfSeat>);

struct OfSeat {
    /// How many were over, before the workers were looked at.
    over: u64,
    carried: u64,
}

impl Carried {
    /// Looks at them. Takes short locks.
    pub(crate) fn of(queue: &Shared) -> Carried {
        let mut seats = BTreeMap::new();
        let mut groups: Vec<Arc<Group>> = Vec::new();
        for (seat, link) in queue.colours.members.lock().all() {
            let over = seat.tally.over();
            seats.insert(ptr::from_ref(seat).addr(), OfSeat { over, carried: 0 });
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
            // What doesn't change between two rounds was there at one moment together. What does is
            // taken for what is in flight.
            if worker.carry.look() == first
                && let Some(seat) = seats.get_mut(&first.0)
            {
                seat.carried += first.1;
            }
        }
        Carried(seats)
    }

    /// Instances queued here and not over. Not less than there were at one moment since this was made:
    /// those over were counted before, and those that came are after.
    pub(crate) fn in_flight(&self, seat: &Seat<Link>) -> u64 {
        let most = seat.tally.in_flight();
        match self.0.get(&ptr::from_ref(seat).addr()) {
            Some(OfSeat { over, carried }) => {
                most.min(seat.tally.ever_came().saturating_sub(over + carried))
            }
            None => most,
        }
    }
}
