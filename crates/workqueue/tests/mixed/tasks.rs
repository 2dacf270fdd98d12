//! The part of the scenario that hands in closures and futures, waits for some, aborts others and
//! forgets the rest.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use corewise_sync::thread;
use corewise_workqueue::{JoinError, JoinHandle, QueueError, Work, Workqueue};

use super::ledger::Ledger;
use super::{Chance, Line};

/// Number of closures that each queue lets in of those that are refused beyond that.
pub(crate) const CAPACITY: usize = 2;

/// One of those: from when it is made until it is dropped, unless it is refused.
struct Inside {
    let_in: Arc<AtomicI64>,
    counts: Arc<AtomicBool>,
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.counts.load(SeqCst) {
            self.let_in.fetch_sub(1, SeqCst);
        }
    }
}

/// The fate of one task.
#[derive(Default)]
struct Fate {
    /// Number of times that it got to its end.
    ended: AtomicU64,
    /// Somebody aborts it, or began to, or its queue may have refused it.
    aborted: AtomicBool,
}

/// The fates of all tasks.
pub(crate) struct Tasks {
    ledger: Arc<Ledger>,
    fates: Mutex<Vec<Arc<Fate>>>,
}

impl Tasks {
    pub(crate) fn new(ledger: &Arc<Ledger>) -> Self {
        Tasks { ledger: Arc::clone(ledger), fates: Mutex::default() }
    }

    fn fate(&self) -> Arc<Fate> {
        let fate = Arc::new(Fate::default());
        self.fates.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&fate));
        fate
    }

    /// Hands something in, and does something with its handle. It may wait for a task on `other`:
    /// a queue whose own tasks wait for nobody, so that there is no circle.
    pub(crate) fn act<C: Chance>(&self, line: &Line, other: Option<&Workqueue>, chance: &mut C) {
        let fate = self.fate();
        let other = other.filter(|_| chance.one_in(2));
        let calm = line.refusing.calm();
        let handle = match chance.below(8) {
            0 => self.future(&line.queue, other, &fate, chance),
            1 => return self.scope(&line.queue, other, &fate),
            2 => return self.execute(line, other, &fate),
            3 => return self.map(&line.queue, other, &fate, chance),
            4 => return self.ticks(&line.queue, &fate, chance),
            5 | 6 => match self.bounded(line, &fate) {
                Some(handle) => handle,
                None => return,
            },
            _ => self.closure(line, other, &fate),
        };
        if calm.is_none() || line.refusing.calm() != calm {
            fate.aborted.store(true, SeqCst);
        }
        let abort = chance.below(6);
        if abort < 3 {
            fate.aborted.store(true, SeqCst);
        }
        match abort {
            0 => handle.abort(),
            1 => drop(handle.abort_on_drop()),
            2 => {
                handle.abort();
                self.said(&handle.join(), &fate);
            }
            3 => drop(handle),
            4 => {
                let over = handle.wait_timeout(Duration::from_millis(chance.below(2)));
                let handle = if over { handle } else { handle.abort_on_drop().detach() };
                self.said(&handle.join(), &fate);
            }
            _ => self.said(&handle.join(), &fate),
        }
    }

    /// Spawns some closures one after the other, so that some are held back behind others.
    pub(crate) fn burst(&self, line: &Line) {
        for _ in 0..3 {
            let (fate, calm) = (self.fate(), line.refusing.calm());
            drop(self.closure(line, None, &fate));
            if calm.is_none() || line.refusing.calm() != calm {
                fate.aborted.store(true, SeqCst);
            }
        }
    }

    /// Records what the handle of a task said.
    fn said(&self, said: &Result<(), JoinError>, fate: &Fate) {
        let ended = fate.ended.load(SeqCst);
        let right = match said {
            Ok(()) => ended == 1,
            // A future may have got to its end, and been aborted before its poll returned.
            Err(JoinError::Cancelled) => self.may_be_cancelled(fate),
            Err(_) => false,
        };
        self.ledger.check(right, || format!("a task that ended {ended} times said {said:?}"));
    }

    fn may_be_cancelled(&self, fate: &Fate) -> bool {
        fate.aborted.load(SeqCst) || self.ledger.is_closing()
    }

    fn closure(&self, line: &Line, other: Option<&Workqueue>, fate: &Arc<Fate>) -> JoinHandle<()> {
        let (fate, other) = (Arc::clone(fate), other.cloned());
        let (gauge, order) = (Arc::clone(&line.gauge), line.order.clone());
        let ledger = Arc::clone(&self.ledger);
        let called = self.ledger.moment();
        let returned = Arc::new(AtomicU64::new(0));
        let back = Arc::clone(&returned);
        let handle = line.queue.spawn(move || {
            if let Some(order) = order {
                order.ran(called, back.load(SeqCst));
            }
            gauge.during(&ledger, "a task", || {
                if let Some(queue) = other {
                    // Cancelled where the pools were shut down.
                    let _ = queue.spawn(thread::yield_now).join();
                }
                fate.ended.fetch_add(1, SeqCst);
            });
        });
        returned.store(self.ledger.moment(), SeqCst);
        handle
    }

    /// Executes a closure without a handle.
    fn execute(&self, line: &Line, other: Option<&Workqueue>, fate: &Arc<Fate>) {
        let calm = line.refusing.calm();
        let (its, other) = (Arc::clone(fate), other.cloned());
        let (gauge, order) = (Arc::clone(&line.gauge), line.order.clone());
        let ledger = Arc::clone(&self.ledger);
        let called = self.ledger.moment();
        let returned = Arc::new(AtomicU64::new(0));
        let back = Arc::clone(&returned);
        let taken = line.queue.execute(move || {
            if let Some(order) = order {
                order.ran(called, back.load(SeqCst));
            }
            gauge.during(&ledger, "an executed closure", || {
                if let Some(queue) = other {
                    let inner = Arc::clone(&its);
                    let end = move || {
                        inner.ended.fetch_add(1, SeqCst);
                    };
                    // Given back where the pools are shut down.
                    queue.execute(end).unwrap_or_else(|refused| (refused.closure)());
                } else {
                    its.ended.fetch_add(1, SeqCst);
                }
            });
        });
        returned.store(self.ledger.moment(), SeqCst);
        if taken.is_err() || calm.is_none() || line.refusing.calm() != calm {
            fate.aborted.store(true, SeqCst);
        }
    }

    /// Spawns a closure for which there may be no room.
    fn bounded(&self, line: &Line, fate: &Arc<Fate>) -> Option<JoinHandle<()>> {
        let calm = line.refusing.calm();
        let (its, counts) = (Arc::clone(fate), Arc::new(AtomicBool::new(true)));
        let inside = Inside { let_in: Arc::clone(&line.let_in), counts: Arc::clone(&counts) };
        let said = line.queue.try_spawn(move || {
            let _inside = inside;
            thread::yield_now();
            its.ended.fetch_add(1, SeqCst);
        });
        match said {
            Ok(handle) => {
                // It may be over already: then this makes up for that.
                let let_in = line.let_in.fetch_add(1, SeqCst) + 1;
                self.ledger.check(let_in <= CAPACITY as i64, || {
                    format!("{let_in} were let in, of at most {CAPACITY}")
                });
                Some(handle)
            }
            Err(refused) => {
                counts.store(false, SeqCst);
                fate.aborted.store(true, SeqCst);
                let right = match refused.error {
                    QueueError::Full => true,
                    QueueError::Draining => calm.is_none() || line.refusing.calm() != calm,
                    _ => self.ledger.is_closing(),
                };
                self.ledger.check(right, || format!("a closure was refused: {refused}"));
                None
            }
        }
    }

    /// Maps some items that borrow, of which one may wait for a task.
    fn map<C: Chance>(
        &self,
        queue: &Workqueue,
        other: Option<&Workqueue>,
        fate: &Fate,
        chance: &mut C,
    ) {
        let numbers: Vec<_> = (0..chance.below(5)).collect();
        let doubled = queue.map(&numbers, |n| {
            if let Some(queue) = other {
                if *n == 1 {
                    let _ = queue.spawn(thread::yield_now).join();
                }
            }
            n * 2
        });
        let right = doubled.iter().copied().eq(numbers.iter().map(|n| n * 2));
        self.ledger.check(right, || format!("{numbers:?} doubled are {doubled:?}"));
        fate.ended.fetch_add(1, SeqCst);
    }

    /// Runs a function in a rhythm, and no more when it was stopped.
    fn ticks<C: Chance>(&self, queue: &Workqueue, fate: &Fate, chance: &mut C) {
        let ticks = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&ticks);
        let tick = move || {
            if counts.fetch_add(1, SeqCst) >= 2 {
                // In an unfair schedule its actor never comes to stop it.
                Work::current().iter().for_each(|own| {
                    own.disable();
                });
            }
        };
        let ticker = match queue.every(Duration::from_millis(1 + chance.below(2)), tick) {
            Ok(ticker) => ticker,
            Err(error) => {
                let right = self.ledger.is_closing();
                self.ledger.check(right, || format!("there are no ticks: {error}"));
                return fate.aborted.store(true, SeqCst);
            }
        };
        (0..chance.below(4)).for_each(|_| thread::yield_now());
        if chance.one_in(2) {
            drop(ticker);
        } else {
            ticker.stop();
            let ended = ticks.load(SeqCst);
            (0..3).for_each(|_| thread::yield_now());
            let later = ticks.load(SeqCst);
            self.ledger.check(ended == later, || {
                format!("{} ticks after they were stopped", later - ended)
            });
        }
        fate.ended.fetch_add(1, SeqCst);
    }

    /// Wakes itself some times, and may wait for a task.
    fn future<C: Chance>(
        &self,
        queue: &Workqueue,
        other: Option<&Workqueue>,
        fate: &Arc<Fate>,
        chance: &mut C,
    ) -> JoinHandle<()> {
        let (fate, other) = (Arc::clone(fate), other.cloned());
        let mut yields = chance.below(3);
        queue.spawn_future(async move {
            poll_fn(|cx| {
                if yields == 0 {
                    return Poll::Ready(());
                }
                yields -= 1;
                cx.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            if let Some(queue) = other {
                let _ = queue.spawn(thread::yield_now).await;
            }
            fate.ended.fetch_add(1, SeqCst);
        })
    }

    /// Spawns two closures that borrow, of which one is joined.
    fn scope(&self, queue: &Workqueue, other: Option<&Workqueue>, fate: &Fate) {
        let borrowed = AtomicU64::new(0);
        queue.scope(|scope| {
            drop(scope.spawn(|| borrowed.fetch_add(1, SeqCst)));
            let joined = scope.spawn(|| {
                if let Some(queue) = other {
                    let _ = queue.spawn(thread::yield_now).join();
                }
                borrowed.fetch_add(1, SeqCst);
            });
            let said = joined.join();
            self.ledger.check(said.is_ok(), || format!("a scoped closure said {said:?}"));
        });
        let ran = borrowed.load(SeqCst);
        self.ledger.check(ran == 2, || format!("{ran} of a scope's 2 closures ran"));
        fate.ended.fetch_add(1, SeqCst);
    }

    /// Checks the tasks at rest: each got to its end once, or was cancelled.
    pub(crate) fn at_rest(&self) {
        for fate in self.fates.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let ended = fate.ended.load(SeqCst);
            let right = ended == 1 || ended == 0 && self.may_be_cancelled(fate);
            self.ledger.check(right, || format!("a task got to its end {ended} times"));
        }
    }
}
