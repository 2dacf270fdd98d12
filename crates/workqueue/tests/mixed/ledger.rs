//! The rules that hold whatever the threads do, counted where it happens and compared at the end.
//!
//! The counters are the standard library's on purpose: a model checker is not to schedule around
//! the checks. A failure is noted, not asserted on the spot: a panic in an item is caught by its
//! worker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use corewise_sync::thread;
use corewise_workqueue::{QueueError, Queued};

/// The failures so far, and a clock that orders events.
#[derive(Default)]
pub(crate) struct Ledger {
    wrong: Mutex<Vec<String>>,
    clock: AtomicU64,
    closing: AtomicBool,
}

impl Ledger {
    /// Notes `what` where `holds` is false.
    pub(crate) fn check(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.lock().unwrap_or_else(PoisonError::into_inner).push(what());
        }
    }

    /// Returns a moment, later than all before.
    pub(crate) fn moment(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst) + 1
    }

    /// Notes that somebody begins to shut the pools down: from here on instances may end without
    /// having run.
    pub(crate) fn close(&self) {
        self.closing.store(true, SeqCst);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(SeqCst)
    }

    /// Panics where something went wrong.
    pub(crate) fn settle(&self) {
        let wrong = std::mem::take(&mut *self.wrong.lock().unwrap_or_else(PoisonError::into_inner));
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// Numbers of instances that run at once, and that may.
#[derive(Default)]
pub(crate) struct Gauge {
    inside: AtomicU64,
    /// The most that was ever allowed; 0 is no limit.
    limit: AtomicU64,
}

/// Something that lasts a while and happens again: what one would else rely on doesn't hold then.
#[derive(Default)]
pub(crate) struct Span {
    now: AtomicU64,
    begun: AtomicU64,
}

impl Span {
    pub(crate) fn during<R>(&self, body: impl FnOnce() -> R) -> R {
        self.now.fetch_add(1, SeqCst);
        self.begun.fetch_add(1, SeqCst);
        let result = body();
        self.now.fetch_sub(1, SeqCst);
        result
    }

    /// Returns a number if it doesn't last now. It hasn't lasted between two calls that give the
    /// same one.
    pub(crate) fn calm(&self) -> Option<u64> {
        let begun = self.begun.load(SeqCst);
        (self.now.load(SeqCst) == 0).then_some(begun)
    }
}

/// The record of one item.
pub(crate) struct Entry {
    pub(crate) name: String,
    ledger: Arc<Ledger>,
    gauge: Arc<Gauge>,
    /// Bumped before each attempt to queue it.
    written: AtomicU64,
    /// The highest `written` that a run found when it began.
    seen: AtomicU64,
    /// Attempts that were accepted.
    accepted: AtomicU64,
    /// Attempts of which nobody can say whether they were, and instances that may have vanished
    /// with one, or with a drain that began after.
    unsure: AtomicU64,
    /// Runs that began, and that ended.
    begun: AtomicU64,
    ended: AtomicU64,
    inside: AtomicBool,
    /// Attempts to withdraw an instance, and how many said they had.
    withdrawal: Span,
    withdrawn: AtomicU64,
    /// A queue of it refuses.
    refused: Vec<Arc<Span>>,
    /// The span in which it is disabled.
    disabled: Span,
    /// Somebody other than its own function queues it.
    outside: Span,
    /// Attempts to queue it that are under way, each with what `calm` said when it began.
    attempts: Mutex<Vec<(u64, Unchanged)>>,
}

/// The counts of the reasons for a refusal, if none of them lasts now.
type Unchanged = Option<Vec<u64>>;

impl Entry {
    pub(crate) fn new(
        name: String,
        ledger: &Arc<Ledger>,
        gauge: &Arc<Gauge>,
        refused: Vec<Arc<Span>>,
    ) -> Arc<Entry> {
        Arc::new(Entry {
            name,
            ledger: Arc::clone(ledger),
            gauge: Arc::clone(gauge),
            written: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            unsure: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            inside: AtomicBool::new(false),
            withdrawal: Span::default(),
            withdrawn: AtomicU64::new(0),
            refused,
            disabled: Span::default(),
            outside: Span::default(),
            attempts: Mutex::default(),
        })
    }

    /// Runs one run of the item's function, around its body.
    pub(crate) fn run(&self, body: impl FnOnce()) {
        self.seen.fetch_max(self.written.load(SeqCst), SeqCst);
        self.begun.fetch_add(1, SeqCst);
        let twice = self.inside.swap(true, SeqCst);
        self.ledger.check(!twice, || format!("{} runs twice at once", self.name));
        self.gauge.during(&self.ledger, &self.name, || {
            // Some runs are long enough for others to do something to the item meanwhile.
            (0..=self.ledger.moment() % 4 * 3).for_each(|_| thread::yield_now());
            body();
        });
        self.inside.store(false, SeqCst);
        self.ended.fetch_add(1, SeqCst);
    }

    /// Records one attempt to queue it; returns what `attempt` said.
    pub(crate) fn queue(&self, attempt: impl FnOnce() -> bool) -> bool {
        self.outside.during(|| self.queue_calmly(attempt).0)
    }

    /// Records an attempt as `queue` does, by its own function.
    pub(crate) fn queue_self(&self, attempt: impl FnOnce() -> bool) {
        self.queue_calmly(attempt);
    }

    /// Records an attempt as `queue` does; returns also what was written, and `calm` if no other
    /// attempt was under way that may be refused after this one relied on it.
    fn queue_calmly(&self, attempt: impl FnOnce() -> bool) -> (bool, u64, Unchanged) {
        let (accepted, written, calm) = self.attempt(attempt);
        self.accepted.fetch_add(u64::from(accepted), SeqCst);
        (accepted, written, calm)
    }

    /// Records one attempt to set its timer: an accepted one may still come to nothing if a drain
    /// `may` begin before its time.
    pub(crate) fn delay(&self, may: bool, attempt: impl FnOnce() -> bool) -> bool {
        self.unsure.fetch_add(u64::from(may), SeqCst);
        self.queue(attempt)
    }

    /// Records one attempt to move its pending instance, or to queue it if it has none. If it is
    /// refused, the instance that it had may have vanished.
    pub(crate) fn modify(&self, may: bool, attempt: impl FnOnce() -> Result<Queued, QueueError>) {
        let calm = self.calm();
        // Said before, since what it does to the instance is seen at once.
        self.unsure.fetch_add(1, SeqCst);
        let was_idle = || attempt() == Ok(Queued::Now);
        let (accepted, ..) = self.outside.during(|| self.attempt(was_idle));
        self.accepted.fetch_add(u64::from(accepted), SeqCst);
        if !may && calm.is_some() && self.calm() == calm {
            self.unsure.fetch_sub(1, SeqCst);
        }
    }

    fn attempt(&self, attempt: impl FnOnce() -> bool) -> (bool, u64, Unchanged) {
        let attempts = || self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        let (calm, own) = (self.calm(), self.ledger.moment());
        attempts().push((own, calm.clone()));
        let written = self.written.fetch_add(1, SeqCst) + 1;
        let said = attempt();
        let alike = attempts().iter().all(|(_, other)| *other == calm);
        attempts().retain(|(id, _)| *id != own);
        (said, written, calm.filter(|_| alike))
    }

    fn calm(&self) -> Unchanged {
        let spans =
            self.refused.iter().map(|span| &**span).chain([&self.disabled, &self.withdrawal]);
        spans.map(Span::calm).collect()
    }

    /// Runs that began.
    pub(crate) fn begun(&self) -> u64 {
        self.begun.load(SeqCst)
    }

    /// Attempts that were accepted so far: what a flush that begins now is to wait for.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(SeqCst)
    }

    /// Checks the counts after a flush that began with `before` accepted: all of that has run, or
    /// somebody may have withdrawn it.
    pub(crate) fn flushed(&self, before: u64, how: &str) {
        if self.ledger.is_closing() {
            return;
        }
        let over =
            self.ended.load(SeqCst) + self.withdrawal.begun.load(SeqCst) + self.unsure.load(SeqCst);
        self.ledger.check(over >= before, || {
            format!("{how} returned with {over} of {before} instances of {} over", self.name)
        });
    }

    /// Waits for it: for what runs when the call begins, and for what was accepted before.
    pub(crate) fn flush<R>(&self, flush: impl FnOnce() -> R, how: &str) {
        let (begun, before) = (self.begun(), self.accepted());
        flush();
        let ended = self.ended.load(SeqCst);
        self.ledger.check(ended >= begun, || {
            format!("{how} returned while {} runs of {} went on", begun - ended, self.name)
        });
        self.flushed(before, how);
    }

    /// Queues it and waits for it: what was written before is then seen by a run, even if the
    /// queueing was refused because the item was pending.
    pub(crate) fn queue_and_flush<R>(
        &self,
        attempt: impl FnOnce() -> bool,
        flush: impl FnOnce() -> R,
        how: &str,
    ) {
        let (_, written, calm) = self.outside.during(|| self.queue_calmly(attempt));
        self.flush(flush, how);
        let disturbed = self.ledger.is_closing() || calm.is_none() || calm != self.calm();
        let seen = self.seen.load(SeqCst);
        self.ledger.check(seen >= written || disturbed, || {
            format!("{how}: {} saw {seen}, not {written}", self.name)
        });
    }

    /// Records one attempt to withdraw its pending instance.
    pub(crate) fn withdraw(&self, attempt: impl FnOnce() -> bool) {
        let withdrawn = self.withdrawal.during(attempt);
        self.withdrawn.fetch_add(u64::from(withdrawn), SeqCst);
    }

    /// Checks the counts after a drain: if nobody else queued it while that went on, it is at rest.
    pub(crate) fn drained(&self, drain: impl FnOnce(), is_at_rest: impl FnOnce() -> bool) {
        let calm = self.outside.calm();
        drain();
        let at_rest = is_at_rest();
        let disturbed = calm.is_none() || self.outside.calm() != calm;
        self.ledger.check(at_rest || disturbed, || {
            format!("{} was pending or running after a drain of its queue", self.name)
        });
    }

    /// Records an attempt as `withdraw` does, by a call that also waits for the instance that runs,
    /// and disables the item while it does. If no other thread queues the item, it is at rest
    /// afterwards.
    pub(crate) fn withdraw_and_wait(
        &self,
        attempt: impl FnOnce() -> bool,
        is_at_rest: impl FnOnce() -> bool,
        how: &str,
    ) {
        let (begun, calm) = (self.begun(), self.outside.calm());
        self.disabled.during(|| self.withdraw(attempt));
        let at_rest = is_at_rest();
        let disturbed = calm.is_none() || self.outside.calm() != calm;
        self.ledger.check(at_rest || disturbed, || {
            format!("{} was pending or running again after {how}", self.name)
        });
        let ended = self.ended.load(SeqCst);
        self.ledger.check(ended >= begun, || {
            format!("{how} returned after {ended} of {begun} runs of {} had ended", self.name)
        });
    }

    /// Does something while the item is disabled: by `disable`, which may wait for the instance
    /// that runs, until `enable`.
    pub(crate) fn while_disabled(
        &self,
        waits: bool,
        disable: impl FnOnce() -> bool,
        queue: impl FnOnce() -> bool,
        enable: impl FnOnce(),
    ) {
        self.disabled.during(|| {
            let begun = self.begun();
            self.withdraw(disable);
            let after = self.begun();
            let ended = self.ended.load(SeqCst);
            self.ledger.check(!waits || ended == after && after >= begun, || {
                format!("{} was disabled while {} of its runs went on", self.name, after - ended)
            });
            thread::yield_now();
            let queued = self.queue(queue);
            thread::yield_now();
            self.ledger.check(!queued, || format!("{} was queued though disabled", self.name));
            // An instance may begin before the first of these, and none after.
            let later = self.begun();
            self.ledger.check(!waits || later == after, || {
                format!("{} ran {} times though disabled", self.name, later - after)
            });
            enable();
        });
    }

    /// Checks an item at rest: nothing was lost, nothing doubled.
    pub(crate) fn at_rest(&self) {
        let [accepted, begun, ended, withdrawn] =
            [&self.accepted, &self.begun, &self.ended, &self.withdrawn].map(|n| n.load(SeqCst));
        let (over, unsure) = (ended + withdrawn, self.unsure.load(SeqCst));
        let right = over <= accepted && (self.ledger.is_closing() || over + unsure >= accepted);
        self.ledger.check(right && begun == ended, || {
            format!(
                "{}: {accepted} accepted, {begun} begun, {ended} ended, {withdrawn} withdrawn",
                self.name
            )
        });
    }
}

impl Gauge {
    /// Allows `limit` to run at once from now on, or as many as were allowed before.
    pub(crate) fn allow(&self, limit: u64) {
        self.limit.fetch_max(limit, SeqCst);
    }

    /// Counts one more that runs.
    pub(crate) fn during(&self, ledger: &Ledger, name: &str, body: impl FnOnce()) {
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        let limit = self.limit.load(SeqCst);
        ledger.check(limit == 0 || inside <= limit, || {
            format!("{inside} run at once with {name}, and {limit} may")
        });
        body();
        self.inside.fetch_sub(1, SeqCst);
    }
}

/// The tasks of a queue that runs them one by one, in order.
#[derive(Default)]
pub(crate) struct Order {
    ran: Mutex<Vec<(u64, u64)>>,
}

impl Order {
    /// Notes that a task ran that was handed in between two moments; `returned` 0: not known yet.
    pub(crate) fn ran(&self, called: u64, returned: u64) {
        self.ran.lock().unwrap_or_else(PoisonError::into_inner).push((called, returned));
    }

    /// Checks that none ran before one whose handing-in had ended when its own began.
    pub(crate) fn check(&self, ledger: &Ledger, name: &str) {
        let ran = self.ran.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last_called = 0;
        for &(called, returned) in ran.iter() {
            ledger.check(returned == 0 || returned > last_called, || {
                format!(
                    "{name}: a task handed in until {returned} ran after one from {last_called}"
                )
            });
            last_called = last_called.max(called);
        }
    }
}
