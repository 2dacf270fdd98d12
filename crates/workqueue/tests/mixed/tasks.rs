//! The part of the scenario that hands in closures and futures, waits for some, aborts others and
//! forgets the rest.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use corewise_sync::thread;
use corewise_workqueue::{JoinError, JoinHandle, Workqueue};

use super::ledger::Ledger;
use super::{Chance, Line};

/// What became of one task.
#[derive(Default)]
struct Fate {
    /// How often it got to its end.
    ended: AtomicU64,
    /// Somebody aborts it, or began to, or its queue may have refused it.
    aborted: AtomicBool,
}

/// What became of all tasks.
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
        let handle = match chance.below(5) {
            4 => return self.execute(line, other, &fate),
            0 => self.future(&line.queue, other, &fate, chance),
            1 => return self.scope(&line.queue, other, &fate),
            _ => self.closure(line, other, &fate),
        };
        if calm.is_none() || line.refusing.calm() != calm {
            fate.aborted.store(true, SeqCst);
        }
        match chance.below(4) {
            0 => {}
            1 => {
                fate.aborted.store(true, SeqCst);
                handle.abort();
            }
            2 => {
                fate.aborted.store(true, SeqCst);
                handle.abort();
                self.join(handle, &fate);
            }
            _ => self.join(handle, &fate),
        }
    }

    /// Some closures one after the other, so that some are held back behind others.
    pub(crate) fn burst(&self, line: &Line) {
        for _ in 0..3 {
            let (fate, calm) = (self.fate(), line.refusing.calm());
            drop(self.closure(line, None, &fate));
            if calm.is_none() || line.refusing.calm() != calm {
                fate.aborted.store(true, SeqCst);
            }
        }
    }

    fn join(&self, handle: JoinHandle<()>, fate: &Fate) {
        let said = handle.join();
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

    /// A closure without a handle.
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

    /// Two closures that borrow, of which one is joined.
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

    /// At rest: each got to its end once, or was cancelled.
    pub(crate) fn at_rest(&self) {
        for fate in self.fates.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let ended = fate.ended.load(SeqCst);
            let right = ended == 1 || ended == 0 && self.may_be_cancelled(fate);
            self.ledger.check(right, || format!("a task got to its end {ended} times"));
        }
    }
}
