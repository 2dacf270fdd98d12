//! The futures of a queue that wait to be woken, and the others that are to be told of its end
//! (`../queue/control.rs`).
//!
//! A future takes a seat when a poll first returns `Pending`, and keeps it until it ends: one that
//! is ready at once never comes here. The end closes the list and tells everybody on it; a future
//! that comes for a seat later finds it closed, under the same lock, and ends by itself. A race
//! between a poll, a wake-up and the end is in `../queue/future.rs`.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use corewise_sync::{CachePadded, Mutex, per_thread};

use crate::error::shielded;

/// The waiters, by the pod of their poll, so that pods don't meet here.
pub(crate) struct WaitList<T> {
    /// L: each is the lock that guards its seats. Nothing is dropped under it.
    shards: Box<[CachePadded<Mutex<WaiterShard<T>>>]>,
}

struct WaiterShard<T> {
    taken: Vec<Option<T>>,
    free: Vec<usize>,
    closed: bool,
}

/// A place in the list, to be given back.
#[derive(Debug)]
pub(crate) struct WaiterKey {
    shard: usize,
    index: usize,
}

impl<T> WaitList<T> {
    /// Creates a list in `shards` parts; at least one.
    pub(crate) fn new(shards: usize) -> Self {
        let shard = || {
            let seats = WaiterShard { taken: Vec::new(), free: Vec::new(), closed: false };
            CachePadded::new(Mutex::new(seats))
        };
        WaitList { shards: (0..shards.max(1)).map(|_| shard()).collect() }
    }

    /// Adds `who` near `pod`, in time that does not depend on how many wait; gives `who` back if
    /// the list is closed: nobody will tell it.
    pub(crate) fn sit(&self, pod: usize, who: T) -> Result<WaiterKey, T> {
        let shard = pod % self.shards.len();
        let mut seats = self.shards[shard].lock();
        if seats.closed {
            return Err(who);
        }
        let index = match seats.free.pop() {
            Some(index) => {
                seats.taken[index] = Some(who);
                index
            }
            None => {
                seats.taken.push(Some(who));
                seats.taken.len() - 1
            }
        };
        Ok(WaiterKey { shard, index })
    }

    /// Gives a seat back; returns what sat there, if the list wasn't closed meanwhile.
    pub(crate) fn leave(&self, WaiterKey { shard, index }: WaiterKey) -> Option<T> {
        let mut seats = self.shards[shard].lock();
        if seats.closed {
            return None;
        }
        let who = seats.taken[index].take();
        seats.free.push(index);
        if seats.free.len() == seats.taken.len() {
            // A crowd that has gone leaves no room behind.
            seats.free.clear();
            seats.taken.clear();
            if seats.taken.capacity() > 64 {
                seats.taken.shrink_to(64);
                seats.free.shrink_to(64);
            }
        }
        who
    }

    /// Closes the list, and returns those who waited, to be told by the caller. The last come
    /// first, since as a rule a future waits for one that is older: its end then wakes nobody.
    pub(crate) fn close(&self) -> impl Iterator<Item = T> + use<'_, T> {
        self.shards.iter().flat_map(|shard| {
            let taken = {
                let mut seats = shard.lock();
                seats.closed = true;
                seats.free = Vec::new();
                std::mem::take(&mut seats.taken)
            };
            taken.into_iter().rev().flatten()
        })
    }
}

/// A waiter.
pub(crate) trait Waits: Send + Sync {
    /// Notes that its queue takes nothing any more. Returns true if the caller has to `stop` it;
    /// else a poll is still to come, or under way, and its end does.
    fn shut(&self) -> bool;

    /// Ends it, now or after the poll that is under way.
    fn stop(&self);
}

/// Number of futures that may end inside each other's end on one thread.
const NESTED: usize = 16;

per_thread! {
    static DEPTH: Cell<usize> = Cell::new(0);
    static LATER: RefCell<Vec<Arc<dyn Waits>>> = RefCell::new(Vec::new());
}

/// Stops a future. The end of one wakes who waits for it, whose queue may have ended too: a long
/// chain of them ends in turns, as the stack would not hold it.
pub(crate) fn stop_in_turn(future: Arc<dyn Waits>) {
    let depth = DEPTH.try_with(Cell::get).unwrap_or(0);
    let mut next = Some(future);
    if depth >= NESTED {
        let _ = LATER.try_with(|later| later.borrow_mut().extend(next.take()));
        if next.is_none() {
            return;
        }
    }
    // A thread that is about to end keeps no account.
    let _ = DEPTH.try_with(|d| d.set(depth + 1));
    while let Some(future) = next {
        // It may be the last reference, and drop a value that nobody took.
        shielded("dropping a spawned future", || {
            future.stop();
            drop(future);
        });
        next = LATER.try_with(|later| later.borrow_mut().pop()).ok().flatten();
    }
    let _ = DEPTH.try_with(|d| d.set(depth));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_that_is_given_back_is_taken_again() {
        let list = WaitList::new(2);
        let first = list.sit(0, 'a').unwrap();
        let second = list.sit(2, 'b').unwrap();
        assert_eq!(list.leave(first), Some('a'));
        let third = list.sit(4, 'c').unwrap();
        assert_eq!((third.shard, third.index), (0, 0));
        let fourth = list.sit(3, 'd').unwrap();
        assert_eq!((fourth.shard, fourth.index), (1, 0));
        assert_eq!(list.leave(second), Some('b'));
        assert_eq!(list.close().collect::<String>(), "cd");
    }

    #[test]
    fn a_closed_list_has_no_seats_and_tells_each_once_the_last_first() {
        let list = WaitList::new(0);
        let seats = ['a', 'b', 'c'].map(|who| list.sit(7, who).unwrap());
        assert_eq!(list.close().collect::<String>(), "cba");
        assert_eq!(list.sit(7, 'd').unwrap_err(), 'd');
        assert_eq!(list.close().count(), 0);
        assert!(seats.into_iter().all(|seat| list.leave(seat).is_none()));
    }
}
