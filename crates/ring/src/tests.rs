//! Tests of the thread over users whose entries do nothing in the kernel.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use io_uring::opcode;

use super::*;

/// A user that answers each order by the completion of an entry.
struct Echo {
    orders: Arc<Orders>,
    ended: Sender<ThreadId>,
    in_use: u64,
    /// True if the thread may end though the user is in use.
    is_loose: bool,
}

#[derive(Default)]
struct Orders {
    /// L: is the lock; guards the numbers of the entries that the user is to push.
    numbers: Mutex<Vec<u64>>,
    /// A: true if there may be numbers; `SeqCst`, as the bell's protocol asks.
    any: AtomicBool,
    /// A: sum of the numbers of completions. Relaxed.
    sum: AtomicU64,
    /// A: true once the user was told that it has panicked. Relaxed.
    panicked: AtomicBool,
}

/// A number at which the user panics.
const PANICS: u64 = 77;
/// A number that stays in flight.
const STAYS: u64 = 78;

impl Orders {
    fn give(&self, port: &RingPort, number: u64) {
        self.numbers.lock().push(number);
        self.any.store(true, Ordering::SeqCst);
        port.wake();
    }

    fn wait_for(&self, sum: u64) {
        while self.sum.load(Ordering::Relaxed) != sum {
            thread::yield_now();
        }
    }
}

impl RingUser for Echo {
    fn take_in(&mut self, ring: &mut Entries<'_, '_>) {
        if !self.orders.any.swap(false, Ordering::SeqCst) {
            return;
        }
        let numbers = std::mem::take(&mut *self.orders.numbers.lock());
        for number in numbers {
            assert_ne!(number, PANICS, "on purpose");
            self.in_use += 1;
            // SAFETY: the entry names nothing.
            unsafe { ring.push_or_wait(&opcode::Nop::new().build(), number) };
        }
    }

    fn completed(&mut self, number: u64, result: i32, _ring: &mut Entries<'_, '_>) {
        assert_eq!(result, 0);
        self.in_use -= u64::from(number != STAYS);
        self.orders.sum.fetch_add(number, Ordering::Relaxed);
    }

    fn has_work(&self) -> bool {
        self.orders.any.load(Ordering::SeqCst)
    }

    fn is_in_use(&self) -> bool {
        self.in_use != 0
    }

    fn may_be_cut_off(&self) -> bool {
        self.is_loose
    }

    fn panicked(&mut self) {
        self.orders.panicked.store(true, Ordering::Relaxed);
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.ended.send(thread::current().id());
    }
}

/// Starts a ring; `None` where there is no io_uring.
fn start() -> Option<Arc<Rings>> {
    Rings::own(1).inspect_err(|error| println!("skipped: {error}")).ok()
}

fn port(rings: &Rings) -> &RingPort {
    rings.ports().next().unwrap()
}

/// Adds a user to the ring, and returns its orders and the thread that drops it.
fn echo(rings: &Rings, is_loose: bool) -> (Arc<Orders>, Receiver<ThreadId>) {
    let orders = Arc::<Orders>::default();
    let (ended, was_ended) = channel();
    let theirs = Arc::clone(&orders);
    let user = Echo { orders: theirs, ended, in_use: 0, is_loose };
    port(rings).add(Box::new(user));
    (orders, was_ended)
}

#[test]
fn each_user_gets_the_completions_of_its_own_entries_also_of_more_than_the_ring_has_room_for() {
    let Some(rings) = start() else { return };
    let users = [(); 3].map(|()| echo(&rings, false));
    let mut sums = [0; 3];
    for round in 0..4000 {
        for (n, (orders, _)) in users.iter().enumerate() {
            let number = 1000 + round * 3 + n as u64;
            sums[n] += number;
            orders.give(port(&rings), number);
        }
    }
    for ((orders, _), sum) in users.iter().zip(sums) {
        orders.wait_for(sum);
    }
    drop(rings);
    assert!(users.iter().all(|(_, ended)| ended.recv() == Ok(thread::current().id())));
}

#[test]
fn a_user_that_panics_is_called_no_more_and_the_others_go_on() {
    let Some(rings) = start() else { return };
    let ((broken, _ended), (sound, _)) = (echo(&rings, false), echo(&rings, false));
    broken.give(port(&rings), PANICS);
    while !broken.panicked.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    broken.give(port(&rings), 5);
    sound.give(port(&rings), 9);
    sound.wait_for(9);
    assert_eq!(broken.sum.load(Ordering::Relaxed), 0);
    assert!(!sound.panicked.load(Ordering::Relaxed));
}

#[test]
fn users_that_are_added_after_the_end_are_dropped() {
    let Some(rings) = start() else { return };
    let port = Arc::clone(rings.ports().next().unwrap());
    drop(rings);
    let (ended, was_ended) = channel();
    let orders = Arc::default();
    port.add(Box::new(Echo { orders, ended, in_use: 0, is_loose: false }));
    assert_eq!(was_ended.recv(), Ok(thread::current().id()));
}

/// The last holder of the rings may be dropped on their own thread, inside a user. The thread then
/// keeps the memory that the kernel may use.
#[test]
fn rings_that_their_own_thread_drops_end_and_drop_only_users_that_are_not_in_use() {
    struct Last(Arc<Orders>, Option<Arc<Rings>>);
    impl RingUser for Last {
        fn take_in(&mut self, _ring: &mut Entries<'_, '_>) {
            if self.0.any.swap(false, Ordering::SeqCst) {
                self.1 = None;
            }
        }
        fn completed(&mut self, _number: u64, _result: i32, _ring: &mut Entries<'_, '_>) {}
        fn has_work(&self) -> bool {
            self.0.any.load(Ordering::SeqCst)
        }
        fn is_in_use(&self) -> bool {
            false
        }
    }
    let Some(rings) = start() else { return };
    let weak: Weak<Rings> = Arc::downgrade(&rings);
    let port = Arc::clone(rings.ports().next().unwrap());
    let orders = Arc::<Orders>::default();
    let (idle, idle_ended) = echo(&rings, false);
    let (busy, busy_ended) = echo(&rings, true);
    busy.give(&port, STAYS);
    busy.wait_for(STAYS);
    idle.give(&port, 3);
    idle.wait_for(3);
    port.add(Box::new(Last(Arc::clone(&orders), Some(rings))));
    orders.any.store(true, Ordering::SeqCst);
    port.wake();
    let on = idle_ended.recv().expect("it is dropped");
    assert_ne!(on, thread::current().id());
    assert!(weak.upgrade().is_none());
    // The channel would be closed if the user had been dropped.
    assert!(busy_ended.try_recv().is_err_and(|error| error.to_string().contains("empty")));
}
