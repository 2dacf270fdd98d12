//! Timers by deadline: a binary heap whose entries can be removed by handle.
//!
//! Values stay where they are. Only their slots' numbers move in the heap, and each slot knows its
//! place there. So inserting, cancelling and firing are all O(log n), and a cancelled timer leaves
//! nothing behind. Equal deadlines fire in the order in which they were set.

use std::time::Duration;

/// The handle of a timer. It is invalid once the timer has fired or was removed: slots are reused
/// under another number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle {
    slot: usize,
    generation: u64,
}

/// Timers, each with a value. A moment is the time since an origin that the caller chooses.
///
/// ```
/// use std::time::Duration;
/// use corewise_sync::heap::Heap;
///
/// let mut timers = Heap::default();
/// let late = timers.insert(Duration::from_secs(2), "late");
/// timers.insert(Duration::from_secs(1), "early");
/// assert_eq!(timers.first(), Some(Duration::from_secs(1)));
/// assert_eq!(timers.pop_due(Duration::from_secs(1)), Some("early"));
/// assert_eq!(timers.remove(late), Some("late"));
/// assert!(timers.is_empty());
/// ```
#[derive(Debug)]
pub struct Heap<T> {
    /// Slots, the earliest first: each is no later than its two children, `2n + 1` and `2n + 2`.
    order: Vec<usize>,
    slots: Vec<Slot<T>>,
    /// Slots without an entry.
    free: Vec<usize>,
    /// Timers ever set.
    set: u64,
}

#[derive(Debug)]
struct Slot<T> {
    /// Number of the timer in this slot, or of the last one.
    generation: u64,
    entry: Option<Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    deadline: Duration,
    /// Its index in `order`.
    place: usize,
    value: T,
}

impl<T> Default for Heap<T> {
    fn default() -> Self {
        Heap { order: Vec::new(), slots: Vec::new(), free: Vec::new(), set: 0 }
    }
}

impl<T> Heap<T> {
    /// Sets a timer.
    pub fn insert(&mut self, deadline: Duration, value: T) -> Handle {
        let generation = self.set;
        self.set += 1;
        let place = self.order.len();
        let filled = Slot { generation, entry: Some(Entry { deadline, place, value }) };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = filled;
                slot
            }
            None => {
                self.slots.push(filled);
                self.slots.len() - 1
            }
        };
        self.order.push(slot);
        self.rise(place);
        Handle { slot, generation }
    }

    /// Returns a timer's deadline; `None` if it has fired, or was removed.
    pub fn deadline(&self, handle: Handle) -> Option<Duration> {
        self.entry(handle).map(|entry| entry.deadline)
    }

    fn entry(&self, handle: Handle) -> Option<&Entry<T>> {
        let slot = self.slots.get(handle.slot)?;
        slot.entry.as_ref().filter(|_| slot.generation == handle.generation)
    }

    /// Removes a timer; `None` if it has fired, or was removed before.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        let entry = self.entry(handle)?;
        Some(self.take(entry.place))
    }

    /// Removes and returns the earliest timer, if it is due.
    pub fn pop_due(&mut self, now: Duration) -> Option<T> {
        (self.first()? <= now).then(|| self.take(0))
    }

    /// Returns the earliest deadline.
    pub fn first(&self) -> Option<Duration> {
        Some(self.key(*self.order.first()?).0)
    }

    /// Returns the timers that `which` accepts, in no order. O(n).
    pub fn handles(&self, which: impl Fn(&T) -> bool) -> Vec<Handle> {
        let picked = |slot: &&Slot<T>| slot.entry.as_ref().is_some_and(|e| which(&e.value));
        (self.slots.iter().enumerate())
            .filter(|(_, slot)| picked(slot))
            .map(|(number, slot)| Handle { slot: number, generation: slot.generation })
            .collect()
    }

    /// Returns the values of all timers, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref().map(|entry| &entry.value))
    }

    /// Returns the number of timers.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns true if there are no timers.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Returns the sort key.
    fn key(&self, slot: usize) -> (Duration, u64) {
        let Slot { generation, entry } = &self.slots[slot];
        let entry = entry.as_ref().expect("a slot in the heap has an entry");
        (entry.deadline, *generation)
    }

    fn earlier(&self, one: usize, other: usize) -> bool {
        self.key(self.order[one]) < self.key(self.order[other])
    }

    /// Removes the entry at a place of the heap.
    fn take(&mut self, place: usize) -> T {
        let last = self.order.len() - 1;
        self.swap(place, last);
        let slot = self.order.pop().expect("the caller names a place in the heap");
        let entry = self.slots[slot].entry.take().expect("a slot in the heap has an entry");
        self.free.push(slot);
        if place < last {
            // The last entry may belong further up or further down.
            self.rise(place);
            self.sink(place);
        }
        entry.value
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.earlier(place, (place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = [2 * place + 1, 2 * place + 2].into_iter();
            let earliest = children
                .filter(|child| *child < self.order.len())
                .reduce(|one, other| if self.earlier(other, one) { other } else { one });
            match earliest {
                Some(child) if self.earlier(child, place) => {
                    self.swap(place, child);
                    place = child;
                }
                _ => return,
            }
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.order.swap(one, other);
        for place in [one, other] {
            let entry = self.slots[self.order[place]].entry.as_mut();
            entry.expect("a slot in the heap has an entry").place = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn drain(heap: &mut Heap<u32>, now: u64) -> Vec<u32> {
        std::iter::from_fn(|| heap.pop_due(at(now))).collect()
    }

    #[test]
    fn a_handle_takes_out_its_own_timer_once_and_never_a_later_one() {
        let mut heap = Heap::default();
        let first = heap.insert(at(1), 1);
        let second = heap.insert(at(2), 2);
        assert_eq!(heap.remove(first), Some(1));
        assert_eq!(heap.remove(first), None);
        let third = heap.insert(at(3), 3);
        assert_eq!(heap.remove(first), None, "its slot has another timer now");
        assert_eq!(drain(&mut heap, 2), [2]);
        assert_eq!(heap.remove(second), None, "it has fired");
        assert_eq!(heap.remove(third), Some(3));
        assert_eq!(heap.len(), 0);
    }

    #[test]
    fn whatever_is_inserted_and_removed_the_rest_fires_in_order() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut random = move |below: u64| rng.u64(..below);
        for _ in 0..200 {
            let mut heap = Heap::default();
            let mut expected: Vec<(u64, u32)> = Vec::new();
            let mut handles = Vec::new();
            for n in 0..60 {
                let deadline = random(20);
                handles.push((n, heap.insert(at(deadline), n)));
                expected.push((deadline, n));
                if random(3) == 0 {
                    let (gone, handle) = handles.swap_remove(random(handles.len() as u64) as usize);
                    assert_eq!(heap.remove(handle), Some(gone));
                    expected.retain(|(_, n)| *n != gone);
                }
            }
            for handle in heap.handles(|n| n % 7 == 0) {
                assert_eq!(heap.remove(handle).map(|n| n % 7), Some(0));
            }
            expected.retain(|(_, n)| n % 7 != 0);
            expected.sort();
            assert_eq!(heap.len(), expected.len());
            assert_eq!(heap.first(), expected.first().map(|(deadline, _)| at(*deadline)));
            let early = expected.iter().filter(|(deadline, _)| *deadline <= 9).count();
            let expected: Vec<u32> = expected.into_iter().map(|(_, n)| n).collect();
            assert_eq!(drain(&mut heap, 9), expected[..early]);
            assert_eq!(drain(&mut heap, 99), expected[early..]);
        }
    }
}
