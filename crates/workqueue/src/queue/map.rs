//! A function of many items, in parallel.

use std::iter::Enumerate;
use std::panic::{self, AssertUnwindSafe, Location};
use std::time::Duration;
use std::{mem, vec};

use corewise_sync::{Mutex, time};

use crate::attributes::At;
use crate::error::shielded;
use crate::pwq::Pwq;
use crate::queue::Workqueue;
use crate::queue::scope::Scope;
use crate::task::running::{self, Running};

/// After how long a closure that works through the items lets others have its worker.
const TURN: Duration = Duration::from_millis(1);

impl Workqueue {
    /// Calls `f` with each of the items, in parallel, and gives what it returned, in the order of the items. Both may
    /// borrow. For what is in a slice or a file, let the items be chunks: [`chunks`](slice::chunks),
    /// [`chunks_mut`](slice::chunks_mut) and their like. To hand an item out takes some 50 ns, so let one last for some
    /// microseconds at least.
    ///
    /// It is a [`scope`](Workqueue::scope), under whose rules it waits, inside items too: as many closures as the queue may
    /// run at once take one item after the other, on its workers and, where these rules let it, on the calling thread. Each
    /// lets go of its worker after a millisecond, between two items, if other work waits there. After the pools were shut
    /// down the calling thread does all of it. The items are collected before the first of them is begun.
    ///
    /// # Panics
    /// With the first panic of `f`, when all that has begun is over. The items that have not begun by then are dropped.
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
    pub fn map<I, R>(&self, items: I, f: impl Fn(I::Item) -> R + Sync) -> Vec<R>
    where
        I: IntoIterator<Item: Send>,
        R: Send,
    {
        let items: Vec<_> = items.into_iter().collect();
        let (count, site) = (items.len(), Location::caller());
        let items = Mutex::new(items.into_iter().enumerate());
        let all = All { items, results: Mutex::new(Vec::with_capacity(count)), f };
        self.scope(|s| (0..self.table().width(count)).for_each(|_| all.share(s, site)));
        let mut results = all.results.into_inner();
        // Some rows, each in order.
        results.sort_by_key(|(n, _)| *n);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

/// What the closures share.
struct All<T, R, F> {
    /// L: is the lock; guards those that nobody has begun.
    items: Mutex<Enumerate<vec::IntoIter<T>>>,
    /// L: is the lock; guards what was returned, each with the number of its item.
    results: Mutex<Vec<(usize, R)>>,
    f: F,
}

impl<T: Send, R: Send, F: Fn(T) -> R + Sync> All<T, R, F> {
    /// Spawns a closure that takes one item after the other.
    fn share<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        site: &'static Location<'static>,
    ) {
        drop(scope.spawn_from(site, At::Here, move || {
            let (begun, mut done) = (time::now(), Vec::new());
            while let Some((n, item)) = self.next() {
                match panic::catch_unwind(AssertUnwindSafe(|| (self.f)(item))) {
                    Ok(result) => done.push((n, result)),
                    Err(payload) => {
                        self.stop();
                        // The scope's.
                        panic::resume_unwind(payload);
                    }
                }
                if time::now().saturating_duration_since(begun) > TURN && others_wait() {
                    self.share(scope, site);
                    break;
                }
            }
            self.results.lock().append(&mut done);
        }));
    }

    fn next(&self) -> Option<(usize, T)> {
        self.items.lock().next()
    }

    /// Nobody is to begin another one.
    fn stop(&self) {
        let rest = mem::take(&mut *self.items.lock());
        shielded("dropping the items of a map that panicked", || drop(rest));
    }
}

/// Whether anything waits for the workers of the pool that what runs here was queued on.
fn others_wait() -> bool {
    running::current(|running| {
        let pwq = running.and_then(Running::ticket).map(Pwq::of);
        pwq.is_some_and(|pwq| pwq.group.pools[pwq.pool].has_waiting())
    })
}
