//! `map` and `reduce`: a function of many items, in parallel.
//!
//! The items are divided while other workers want some (lazy binary splitting; Tzannes and others
//! 2010). If a thread's ring has no fork left, since a thief has taken it or there was none, the
//! thread forks the second half of its items. Otherwise it calls the function with the next few. So
//! without thieves the items are divided as often as their number can be halved.

use std::cell::Cell;
use std::mem::{self, MaybeUninit};
use std::panic::{self, AssertUnwindSafe, Location};
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{context, per_thread, time};

use crate::attributes::At;
use crate::error::shielded;
use crate::pwq::Pwq;
use crate::queue::Workqueue;
use crate::queue::divide::Divisible;
use crate::queue::divide::sealed::{Part, Store};
use crate::task::running::{self, Running};

/// Time after which a thread that works through items counts as computing for long, if other work
/// waits for its worker.
const TURN: Duration = Duration::from_millis(1);
/// Time that a thread calls the function before it checks whether to divide the rest.
const SHORT: Duration = Duration::from_micros(2);
const LONG: Duration = Duration::from_micros(8);

impl Workqueue {
    /// Calls `f` with each of the items, in parallel, and returns the results in the order of the
    /// items. Both may borrow. See [`Divisible`] for the kinds of items.
    ///
    /// The items are forks of the item that calls it, as with [`Workqueue::join`]: idle workers
    /// steal half of the rest at a time. From outside of the queue's items the calling thread works
    /// as an item of the queue, as with [`Workqueue::join`]. If that isn't possible, one item on a
    /// worker does all the work, with thieves, and the calling thread waits. After the pools were
    /// shut down, the calling thread does all the work.
    ///
    /// If a thread works on the items for a millisecond while other work waits for its worker, it
    /// counts as computing for long ([`context::long_running`]). The pool then starts that work
    /// beside it.
    ///
    /// # Panics
    /// With a panic of `f`, when all items that have begun are over. If several have panicked, that
    /// of the earliest item. The items that have not begun by then are dropped.
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// # fn sum(block: &[u8]) -> u64 { block.iter().map(|byte| u64::from(*byte)).sum() }
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("sums").build(&pools)?;
    /// let data = vec![1; 1_000_000];
    /// let sums = queue.map(data.chunks(65_536), sum);
    /// assert_eq!(sums.len(), 16);
    /// assert_eq!(sums[15], 1_000_000 % 65_536);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn map<I: Divisible, R: Send>(&self, items: I, f: impl Fn(I::Item) -> R + Sync) -> Vec<R> {
        let mut store = items.store();
        let part = store.part();
        let count = part.count();
        let mut results = Vec::with_capacity(count);
        let room = NonNull::from(results.spare_capacity_mut()).cast::<MaybeUninit<R>>();
        let into = Results { f, room };
        let filled = self.bulk(Location::caller(), part, &into);
        assert_eq!(filled.len, count, "each item has a result");
        mem::forget(filled);
        // SAFETY: this many are filled, from the first on, and they are the vector's from here on.
        unsafe { results.set_len(count) };
        results
    }

    /// Calls `f` with each of the items, in parallel: [`Workqueue::map`] without results.
    ///
    /// # Panics
    /// See [`Workqueue::map`].
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("doubles").build(&pools)?;
    /// let mut numbers: Vec<u64> = (0..100_000).collect();
    /// queue.for_each(&mut numbers, |n| *n *= 2);
    /// assert_eq!(numbers[99_999], 199_998);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn for_each<I: Divisible>(&self, items: I, f: impl Fn(I::Item) + Sync) {
        self.bulk(Location::caller(), items.store().part(), &NoResults(f));
    }

    /// Calls `f` with each of the items, in parallel, and `reduce` with two of the results at a
    /// time, in their order, until one is left. `None` if there are no items.
    ///
    /// # Panics
    /// See [`Workqueue::map`]. Also with a panic of `reduce`, after which no further item is begun.
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("sums").build(&pools)?;
    /// let squares = queue.reduce(0..1_000_u64, |n| n * n, |a, b| a + b);
    /// assert_eq!(squares, Some(332_833_500));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn reduce<I: Divisible, R: Send>(
        &self,
        items: I,
        f: impl Fn(I::Item) -> R + Sync,
        reduce: impl Fn(R, R) -> R + Sync,
    ) -> Option<R> {
        self.bulk(Location::caller(), items.store().part(), &Reduced { f, reduce })
    }

    /// Maps all items, for any destination of the results.
    fn bulk<P: Part, S: Sink<P::Item>>(
        &self,
        site: &'static Location<'static>,
        part: P,
        sink: &S,
    ) -> S::Out {
        let bulk = Bulk { queue: self, site, sink, stopped: AtomicBool::new(false) };
        if self.forks_here() {
            return bulk.run(part, 0);
        }
        let guest = self.as_guest(site, part, |part| bulk.run(part, 0));
        guest.unwrap_or_else(|part| {
            let all = || bulk.run(part, 0);
            self.scope(|s| s.spawn_from(site, At::Here, all).join())
                .unwrap_or_else(|error| error.resume())
        })
    }
}

/// The destination of the items' results.
trait Sink<T>: Sync {
    /// The results of some items in a row.
    type Out: Send;
    /// Returns the results of no item, before the item with this number.
    fn none(&self, at: usize) -> Self::Out;
    /// Calls the function, for the next item of the row.
    fn add(&self, out: &mut Self::Out, item: T);
    /// Merges the results of two rows, the second of which begins where the first ends.
    fn merge(&self, first: Self::Out, second: Self::Out) -> Self::Out;
}

/// The state that threads share while they work through the items.
struct Bulk<'a, S> {
    queue: &'a Workqueue,
    site: &'static Location<'static>,
    sink: &'a S,
    /// A: the function has panicked. Relaxed: a hint that spares calls.
    stopped: AtomicBool,
}

impl<S> Bulk<'_, S> {
    /// Works through some items, the first of which has this number.
    fn run<P: Part>(&self, part: P, at: usize) -> S::Out
    where
        S: Sink<P::Item>,
    {
        self.go_on(part, at, self.sink.none(at), false)
    }

    /// Calls a function of the user's. If it panics, no thread begins another item.
    fn or_stop<R>(&self, f: impl FnOnce() -> R) -> R {
        panic::catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
            self.stopped.store(true, Ordering::Relaxed);
            panic::resume_unwind(payload)
        })
    }

    /// Continues [`Bulk::run`] with the results of the items before those.
    fn go_on<P: Part>(&self, mut part: P, mut at: usize, mut out: S::Out, told: bool) -> S::Out
    where
        S: Sink<P::Item>,
    {
        let mut last = time::now();
        let since = Since::begin(last);
        let mut block = 1;
        loop {
            let left = part.count();
            if left == 0 {
                return out;
            }
            let turn_is_over = last.saturating_duration_since(since.since) > TURN;
            if !told && turn_is_over && !context::in_atomic_section() && others_wait() {
                let rest = || self.go_on(part, at, out, true);
                return context::long_running("many items", rest);
            }
            if self.stopped.load(Ordering::Relaxed) {
                shielded("dropping the items of a map that panicked", || drop(part));
                return out;
            }
            if left > 1 && self.queue.may_fork_more() {
                let first = left / 2;
                let others = part.split_off(first);
                let (out, others) = self.queue.join_from(
                    self.site,
                    || self.go_on(part, at, out, told),
                    || self.run(others, at + first),
                );
                return self.or_stop(|| self.sink.merge(out, others));
            }
            let many = left.min(block);
            let calls = || {
                for item in (0..many).map_while(|_| part.take_next()) {
                    self.sink.add(&mut out, item);
                }
            };
            if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(calls)) {
                self.stopped.store(true, Ordering::Relaxed);
                shielded("dropping the items of a map that panicked", || drop(part));
                shielded("dropping the results of a map that panicked", || drop(out));
                panic::resume_unwind(payload);
            }
            at += many;
            let now = time::now();
            match now.saturating_duration_since(mem::replace(&mut last, now)) {
                short if short < SHORT => block *= 2,
                long if long > LONG => block = (block / 2).max(1),
                _ => {}
            }
        }
    }
}

per_thread! {
    /// Time since when this thread works through items, without another item in between.
    static SINCE: Cell<Option<Instant>> = Cell::new(None);
}

/// The calling thread works through items.
struct Since {
    since: Instant,
    outermost: bool,
}

impl Since {
    fn begin(now: Instant) -> Since {
        let outer = SINCE.with(Cell::get);
        SINCE.with(|since| since.set(Some(outer.unwrap_or(now))));
        Since { since: outer.unwrap_or(now), outermost: outer.is_none() }
    }
}

impl Drop for Since {
    fn drop(&mut self) {
        if self.outermost {
            SINCE.with(|since| since.set(None));
        }
    }
}

/// Each result in its place of a vector.
struct Results<F, R> {
    f: F,
    room: NonNull<MaybeUninit<R>>,
}

// SAFETY: each place is written by one thread, as that of one item.
unsafe impl<F: Sync, R: Send> Sync for Results<F, R> {}

/// Places in a row that are filled, and whose results it owns.
struct FilledResults<R> {
    first: NonNull<R>,
    len: usize,
}

// SAFETY: it owns its results.
unsafe impl<R: Send> Send for FilledResults<R> {}

impl<R> Drop for FilledResults<R> {
    fn drop(&mut self) {
        let all = ptr::slice_from_raw_parts_mut(self.first.as_ptr(), self.len);
        // SAFETY: they are filled, and its own.
        shielded("dropping the results of a map", || unsafe { ptr::drop_in_place(all) });
    }
}

impl<T, R: Send, F: Fn(T) -> R + Sync> Sink<T> for Results<F, R> {
    type Out = FilledResults<R>;

    fn none(&self, at: usize) -> FilledResults<R> {
        // SAFETY: there is a place for each item.
        FilledResults { first: unsafe { self.room.add(at) }.cast(), len: 0 }
    }

    #[inline]
    fn add(&self, out: &mut FilledResults<R>, item: T) {
        let result = (self.f)(item);
        // SAFETY: the place is that of the item alone.
        unsafe { out.first.add(out.len).write(result) };
        out.len += 1;
    }

    fn merge(&self, mut first: FilledResults<R>, second: FilledResults<R>) -> FilledResults<R> {
        // Else the function has panicked: the second row is dropped.
        // SAFETY: there are places up to there.
        if unsafe { first.first.add(first.len) } == second.first {
            first.len += second.len;
            mem::forget(second);
        }
        first
    }
}

/// A sink without results.
struct NoResults<F>(F);

impl<T, F: Fn(T) + Sync> Sink<T> for NoResults<F> {
    type Out = ();

    fn none(&self, _: usize) {}

    #[inline]
    fn add(&self, (): &mut (), item: T) {
        (self.0)(item);
    }

    fn merge(&self, (): (), (): ()) {}
}

/// One result of all.
struct Reduced<F, G> {
    f: F,
    reduce: G,
}

impl<T, R: Send, F: Fn(T) -> R + Sync, G: Fn(R, R) -> R + Sync> Sink<T> for Reduced<F, G> {
    type Out = Option<R>;

    fn none(&self, _: usize) -> Option<R> {
        None
    }

    #[inline]
    fn add(&self, out: &mut Option<R>, item: T) {
        let result = (self.f)(item);
        *out = self.merge(out.take(), Some(result));
    }

    #[inline]
    fn merge(&self, first: Option<R>, second: Option<R>) -> Option<R> {
        match (first, second) {
            (Some(first), Some(second)) => Some((self.reduce)(first, second)),
            (first, second) => first.or(second),
        }
    }
}

/// Returns true if anything waits for the workers of the pool that the running item was queued on.
fn others_wait() -> bool {
    running::current(|running| {
        let pwq = running.and_then(Running::ticket).map(Pwq::of);
        pwq.is_some_and(|pwq| pwq.group.pools[pwq.pool].has_more())
    })
}
