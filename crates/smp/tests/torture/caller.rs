//! A caller: its records of calls, its waits, and its checks when the calls are over.

use std::collections::VecDeque;
use std::fmt::Display;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use corewise_smp::{CallError, CallFailed};
use corewise_sync::atomic::Ordering;
use corewise_sync::{Parker, sys, thread};
use corewise_topology::{CpuId, CpuSet};
use fastrand::Rng;

use super::check::Check;
use super::job::{Answer, Job, Record, Work, value};
use super::kind::{self, KINDS, Kind};
use super::mistake::Mistake;
use super::world::{Token, World, add};

/// Number of calls without a waiter that one caller may have under way at once.
const UNDER_WAY: usize = 64;
/// Records that a caller uses in turn.
const RECORDS: usize = 8;

pub(super) struct Caller {
    pub(super) world: Arc<World>,
    me: usize,
    pub(super) rng: Rng,
    stamp: u64,
    /// Records of calls that are over: the oldest one is used next.
    records: VecDeque<Settled>,
    /// Calls without a waiter, oldest first.
    under_way: VecDeque<UnderWay>,
    kinds: [u64; KINDS.len()],
    /// The kind of its present act.
    kind: Kind,
}

/// A record of a call that is over.
struct Settled {
    record: Arc<Record>,
    runs: u32,
}

/// A call without a waiter.
struct UnderWay {
    record: Arc<Record>,
    stamp: u64,
    /// CPUs on which it was accepted.
    on: CpuSet,
    kind: Kind,
}

impl Caller {
    pub(super) fn new(world: &Arc<World>, me: usize, seed: u64) -> Caller {
        Caller {
            world: Arc::clone(world),
            me,
            rng: Rng::with_seed(seed),
            stamp: 0,
            records: VecDeque::new(),
            under_way: VecDeque::new(),
            kinds: [0; KINDS.len()],
            kind: Kind::Wait,
        }
    }

    /// Runs the thread. Returns how often each kind was chosen.
    pub(super) fn run(mut self, home: &CpuSet) -> [u64; KINDS.len()] {
        // Lowering is always allowed.
        let _ = sys::set_niceness(19);
        let pause = Parker::new();
        let weights = kind::weights();
        while !self.world.stops() {
            if self.rng.usize(..256) == 0 {
                // This is repeated, for the system takes the CPU away at times. If it is away just
                // now, the system refuses this, and the caller goes on elsewhere.
                let _ = self.world.smp.machine().pin_current_thread(home);
            }
            self.kind = kind::chosen(self.rng.usize(..weights));
            self.kinds[self.kind as usize] += 1;
            self.act(self.kind);
            while self.under_way.len() > UNDER_WAY {
                self.await_oldest();
            }
            if self.rng.usize(..4096) == 0 {
                pause.park_timeout(Duration::from_millis(1));
            }
        }
        while !self.under_way.is_empty() {
            self.await_oldest();
        }
        for settled in std::mem::take(&mut self.records) {
            self.check_again(&settled);
        }
        self.kinds
    }

    /// Returns a random CPU.
    pub(super) fn cpu(&mut self) -> CpuId {
        let nth = self.rng.usize(..self.world.all.len());
        self.world.all.iter().nth(nth).unwrap_or(CpuId::new(0))
    }

    /// Returns a random set of CPUs, now and then an empty one.
    pub(super) fn set(&mut self) -> CpuSet {
        let all = self.world.all.clone();
        all.iter().filter(|_| self.rng.usize(..2) == 0).collect()
    }

    pub(super) fn wrong(&self, mistake: Mistake) -> bool {
        self.world.makes(mistake) && self.stamp % 16 == 0
    }

    /// Creates a new call's record and function.
    pub(super) fn job(&mut self, waited_for: bool) -> (Arc<Record>, Job) {
        let work = match self.rng.usize(..1024) {
            0 => Work::Spin(1000),
            1..64 => Work::Spin(self.rng.usize(..64) as u16),
            _ => Work::Nothing,
        };
        self.job_that(waited_for, work)
    }

    /// Creates them like [`Caller::job`], with an additional act.
    pub(super) fn job_that(&mut self, waited_for: bool, work: Work) -> (Arc<Record>, Job) {
        self.stamp += 1;
        let record = self.free_record();
        if !self.wrong(Mistake::WritesLate) {
            record.word.set(self.stamp);
        }
        record.bound.iter().for_each(|bound| bound.set(u64::MAX));
        let job = Job {
            record: Arc::clone(&record),
            stamp: self.stamp,
            _token: Token::new(&self.world),
            work,
            waited_for,
        };
        (record, job)
    }

    fn free_record(&mut self) -> Arc<Record> {
        if self.records.len() >= RECORDS {
            if let Some(mut settled) = self.records.pop_front() {
                self.check_again(&settled);
                // A call to many drops its function where it was released last: maybe later.
                if let Some(record) = Arc::get_mut(&mut settled.record) {
                    record.ran.iter_mut().for_each(|ran| *ran = 0.into());
                    return settled.record;
                }
            }
        }
        Arc::new(Record::new(&self.world, self.me))
    }

    /// Checks that nothing has run since a call was over.
    fn check_again(&self, settled: &Settled) {
        let runs = settled.record.runs();
        self.world.findings.expect(Check::Once, runs == settled.runs, || {
            format!("{} runs when the call was over, {runs} later", settled.runs)
        });
    }

    /// Waits with `wait`, and records the wait for the watcher.
    pub(super) fn waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.world.waiting(self.me, self.kind as usize, wait)
    }

    /// Awaits a future in this thread. Its first poll is with another waker, as if a future moves
    /// from one task to another.
    pub(super) fn awaiting<F: Future>(&self, future: F) -> F::Output {
        self.waiting(|| {
            let mut future = pin!(future);
            if let Poll::Ready(value) =
                future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                return value;
            }
            let parker = Parker::new();
            let waker = parker.waker();
            let mut cx = Context::from_waker(&waker);
            loop {
                match future.as_mut().poll(&mut cx) {
                    Poll::Ready(value) => return value,
                    Poll::Pending => parker.park(),
                }
            }
        })
    }

    /// Records that a call was refused by a CPU, or by a whole set.
    pub(super) fn refused<F>(&self, asked: &CpuSet, refusal: CallError<F>) {
        match &refusal {
            CallError::NotOnline { cpu, .. } => self.world.refused(*cpu),
            CallError::NoneOnline { .. } => asked.iter().for_each(|cpu| self.world.refused(cpu)),
            CallError::ShuttingDown { .. } => {
                self.world.findings.fail(Check::Reach, || "shut down before its time".into());
            }
            _ => self.world.findings.fail(Check::Reach, || "refused for no known reason".into()),
        }
        drop(refusal.into_inner());
    }

    /// Records that an accepted call has no value, although its function doesn't panic.
    pub(super) fn failed(&self, failed: &dyn Display) {
        self.world.findings.fail(Check::Lost, || format!("accepted, and then: {failed}"));
    }

    /// Checks the answer of one CPU.
    pub(super) fn check_answer(
        &self,
        stamp: u64,
        cpu: Option<CpuId>,
        answer: &Result<Answer, CallFailed>,
    ) {
        match answer {
            Err(failed) => self.failed(failed),
            Ok(answer) => {
                let right = answer.value == value(stamp, answer.on)
                    && cpu.is_none_or(|cpu| cpu == answer.on);
                self.world.findings.expect(Check::Value, right, || {
                    format!("call {stamp} to CPU {cpu:?}: answered by {}", answer.on)
                });
            }
        }
    }

    /// Records that a call was accepted, which has just been learnt: a leave that ends later waits
    /// for it. (A leave that had ended before the CPU joined for the last time is known here, for
    /// that join is.)
    pub(super) fn accepted(&self, record: &Record, on: &CpuSet) {
        for cpu in on {
            let left = self.world.side(cpu).left.load(Ordering::Acquire);
            record.bound[cpu.index()].set(left);
        }
    }

    /// Ends a call: checks its traces, and keeps the record for later ones.
    pub(super) fn settle(&mut self, record: Arc<Record>, stamp: u64, on: &CpuSet) {
        add(&self.world.counts.accepted, on.len() as u64);
        let findings = &self.world.findings;
        for cpu in on {
            let out = record.out[cpu.index()].get();
            findings.expect(Check::Exit, out == stamp, || {
                format!("call {stamp} of caller {} to CPU {cpu}: saw {out}", self.me)
            });
            let (left, bound) = (record.left[cpu.index()].get(), record.bound[cpu.index()].get());
            findings.expect(Check::Dead, left <= bound, || {
                format!(
                    "call {stamp} of caller {} was accepted by CPU {cpu} before its leave {left}, \
                     and ran after it",
                    self.me
                )
            });
            let ran = record.ran[cpu.index()].load(Ordering::Relaxed);
            findings.expect(Check::Once, ran == 1, || {
                format!("call {stamp} of caller {} ran {ran} times on CPU {cpu}", self.me)
            });
        }
        let runs = record.runs();
        findings.expect(Check::Once, runs as usize == on.len(), || {
            format!("call {stamp} of caller {} ran {runs} times, was accepted by {on}", self.me)
        });
        self.records.push_back(Settled { record, runs });
    }

    /// Keeps an accepted call without a waiter: it is checked later.
    pub(super) fn sent(&mut self, record: Arc<Record>, stamp: u64, on: CpuSet) {
        self.accepted(&record, &on);
        self.under_way.push_back(UnderWay { record, stamp, on, kind: self.kind });
    }

    /// Checks a call that wasn't accepted: it has left no traces.
    pub(super) fn unsent(&mut self, record: Arc<Record>, stamp: u64) {
        self.settle(record, stamp, &CpuSet::new());
    }

    /// Waits until the oldest of the calls without a waiter has run.
    fn await_oldest(&mut self) {
        let Some(oldest) = self.under_way.pop_front() else { return };
        let wanted = oldest.on.len() as u32;
        self.world.waiting(self.me, oldest.kind as usize, || {
            while oldest.record.runs() < wanted && !self.world.gives_up() {
                thread::yield_now();
            }
        });
        // No wait's end orders its writes before this. The count of its function does: the last
        // holder has let go.
        self.world.waiting(self.me, oldest.kind as usize, || {
            while Arc::strong_count(&oldest.record) > 1 && !self.world.gives_up() {
                thread::yield_now();
            }
        });
        if self.world.gives_up() && oldest.record.runs() < wanted {
            return;
        }
        let mut record = oldest.record;
        // Acquire: pairs with the last holder's Release.
        let _ = Arc::get_mut(&mut record).is_some();
        self.settle(record, oldest.stamp, &oldest.on);
    }
}
