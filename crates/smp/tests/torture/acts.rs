//! Acts of a caller, one for each kind.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use corewise_smp::{
    AllCpus, AnyOf, Call, CallError, CallFailed, ManyAnswers, Reach, RunError, Targets,
};
use corewise_sync::context;
use corewise_topology::{CpuId, CpuSet};

use super::caller::Caller;
use super::check::Check;
use super::job::{Answer, Job, Record, Work};
use super::kind::Kind;
use super::mistake::Mistake;

/// Number of calls that are sent at once.
const BURST: usize = 32;

/// A call to one CPU that was accepted, for a check of its traces.
struct One {
    record: Arc<Record>,
    stamp: u64,
    cpu: CpuId,
}

fn only(cpu: CpuId) -> CpuSet {
    CpuSet::from_iter([cpu])
}

impl Caller {
    pub(super) fn act(&mut self, kind: Kind) {
        match kind {
            Kind::Wait => self.wait(),
            Kind::NoWait => self.no_wait(),
            Kind::Forget | Kind::AwaitNot => self.forget(kind == Kind::AwaitNot),
            Kind::Big => self.big(),
            Kind::Panic => self.panic(),
            Kind::Burst => {
                let cpu = self.cpu();
                for _ in 0..BURST {
                    self.no_wait_on(cpu);
                }
            }
            Kind::Await => self.await_one(),
            Kind::AwaitTwo => self.await_two(),
            Kind::Any => self.any(),
            Kind::Many | Kind::ManyAwait | Kind::ManyIf | Kind::All => self.many(kind),
            Kind::ManyNoWait => self.many_no_wait(),
            Kind::Run => self.run_one(),
            Kind::RunMany => self.run_each(),
            Kind::Nested => {
                let to = self.cpu();
                self.one_that(Work::Call(to));
            }
            Kind::InPlace => self.one_that(Work::CallItself),
            Kind::Nowhere => self.nowhere(),
        }
    }

    /// Takes the result of sending a call: `None` if the call was refused, and then nothing is left
    /// to do.
    fn taken<T, F>(
        &mut self,
        sent: Result<T, CallError<F>>,
        asked: &CpuSet,
        record: Arc<Record>,
        stamp: u64,
    ) -> Option<(Arc<Record>, T)> {
        match sent {
            Ok(taken) => Some((record, taken)),
            Err(refusal) => {
                self.refused(asked, refusal);
                self.unsent(record, stamp);
                None
            }
        }
    }

    /// Calls one CPU. Returns `None` if the call was refused.
    fn call(
        &mut self,
        (record, job): (Arc<Record>, Job),
        cpu: CpuId,
    ) -> Option<(One, Call<Answer>)> {
        let stamp = job.stamp;
        let sent = self.world.smp.call(cpu, move || job.run(Some(cpu)));
        let (record, call) = self.taken(sent, &only(cpu), record, stamp)?;
        self.accepted(&record, &only(cpu));
        Some((One { record, stamp, cpu }, call))
    }

    /// Ends a call to one CPU.
    fn over(&mut self, One { record, stamp, cpu }: One, answer: &Result<Answer, CallFailed>) {
        self.check_answer(stamp, Some(cpu), answer);
        self.settle(record, stamp, &only(cpu));
    }

    fn wait(&mut self) {
        let cpu = self.cpu();
        let (record, job) = self.job(true);
        let stamp = job.stamp;
        let mut to = cpu;
        if self.wrong(Mistake::SendsElsewhere) {
            to = self.world.all.iter().find(|&other| other != cpu).unwrap_or(cpu);
        }
        if self.wrong(Mistake::RefusesWithoutCause) {
            let stays = self.world.all.difference(&self.world.leaves);
            stays.iter().for_each(|cpu| self.world.refused(cpu));
        }
        let sent = self.world.smp.call(to, move || job.run(Some(cpu)));
        let Some((record, call)) = self.taken(sent, &only(to), record, stamp) else { return };
        if self.wrong(Mistake::GoesOnEarly) {
            let early = record.out[to.index()].get();
            self.world.findings.expect(Check::Exit, early == stamp, || "too early".into());
        } else {
            self.accepted(&record, &only(to));
        }
        let answer = self.waiting(|| call.wait());
        self.over(One { record, stamp, cpu: to }, &answer);
    }

    fn one_that(&mut self, work: Work) {
        let cpu = self.cpu();
        let made = self.job_that(true, work);
        let Some((one, call)) = self.call(made, cpu) else { return };
        let answer = self.waiting(|| call.wait());
        self.over(one, &answer);
    }

    fn panic(&mut self) {
        let cpu = self.cpu();
        let made = self.job_that(true, Work::Panic);
        let Some((One { record, stamp, .. }, call)) = self.call(made, cpu) else { return };
        let answer = self.waiting(|| call.wait());
        let told = matches!(&answer, Err(CallFailed::Panicked { cpu: on, panic })
            if *on == cpu && panic.message() == "on purpose");
        self.world.findings.expect(Check::Value, told, || {
            format!("call {stamp} to CPU {cpu} panicked, and its caller wasn't told")
        });
        self.settle(record, stamp, &only(cpu));
    }

    fn no_wait(&mut self) {
        let cpu = self.cpu();
        if self.wrong(Mistake::Overtakes) {
            let ((early, first), (late, second)) = (self.job(false), self.job(false));
            for (record, job) in [(late, second), (early, first)] {
                self.cast(record, job, cpu);
            }
            return;
        }
        self.no_wait_on(cpu);
    }

    fn no_wait_on(&mut self, cpu: CpuId) {
        let (record, job) = self.job(false);
        let stamp = job.stamp;
        if self.wrong(Mistake::DropsACall) {
            drop(job);
            return self.sent(record, stamp, only(cpu));
        }
        if self.wrong(Mistake::RunsHere) {
            drop(job.run(Some(cpu)));
            return self.settle(record, stamp, &only(cpu));
        }
        self.cast(record, job, cpu);
    }

    fn cast(&mut self, record: Arc<Record>, job: Job, cpu: CpuId) {
        let stamp = job.stamp;
        let sent = self.world.smp.detached().call(cpu, move || drop(job.run(Some(cpu))));
        if let Some((record, ())) = self.taken(sent, &only(cpu), record, stamp) {
            self.sent(record, stamp, only(cpu));
        }
    }

    /// Drops a call's handle, in one case after a poll.
    fn forget(&mut self, poll: bool) {
        let cpu = self.cpu();
        let (record, job) = self.job(true);
        let stamp = job.stamp;
        let sent = self.world.smp.call(cpu, move || job.run(Some(cpu)));
        let Some((record, mut call)) = self.taken(sent, &only(cpu), record, stamp) else { return };
        if poll {
            let polled = Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop()));
            drop(polled);
        }
        drop(call);
        self.sent(record, stamp, only(cpu));
    }

    /// Calls a function, with an answer, that are larger than any cell.
    fn big(&mut self) {
        let cpu = self.cpu();
        let (record, job) = self.job(true);
        let stamp = job.stamp;
        let load: [u64; 24] = std::array::from_fn(|n| stamp + n as u64);
        let sent = self.world.smp.call(cpu, move || (job.run(Some(cpu)), load));
        let Some((record, call)) = self.taken(sent, &only(cpu), record, stamp) else { return };
        self.accepted(&record, &only(cpu));
        match self.waiting(|| call.wait()) {
            Err(failed) => self.failed(&failed),
            Ok((answer, back)) => {
                let whole = back.iter().zip(stamp..).all(|(word, sent)| *word == sent);
                self.world.findings.expect(Check::Value, whole, || format!("{back:?}"));
                self.over(One { record, stamp, cpu }, &Ok(answer));
            }
        }
    }

    fn await_one(&mut self) {
        let cpu = self.cpu();
        let made = self.job(true);
        let Some((one, call)) = self.call(made, cpu) else { return };
        let answer = self.awaiting(call);
        self.over(one, &answer);
    }

    fn await_two(&mut self) {
        let (mut traces, mut calls) = (Vec::with_capacity(2), Vec::with_capacity(2));
        for _ in 0..2 {
            let cpu = self.cpu();
            let made = self.job(true);
            if let Some((one, call)) = self.call(made, cpu) {
                traces.push(one);
                calls.push(Turn::Running(call));
            }
        }
        let answers = self.awaiting(Both { calls });
        for (one, answer) in traces.into_iter().zip(answers) {
            self.over(one, &answer);
        }
    }

    fn any(&mut self) {
        let set = self.set();
        let (record, job) = self.job(true);
        let stamp = job.stamp;
        let sent = self.world.smp.call(AnyOf(&set), move || job.run(None));
        let Some((record, call)) = self.taken(sent, &set, record, stamp) else { return };
        let cpu = call.cpu();
        self.in_set(cpu, &set);
        self.accepted(&record, &only(cpu));
        let answer = self.waiting(|| call.wait());
        self.over(One { record, stamp, cpu }, &answer);
    }

    fn in_set(&self, cpu: CpuId, set: &CpuSet) {
        let inside = set.contains(cpu);
        self.world.findings.expect(Check::Reach, inside, || format!("CPU {cpu} isn't in {set}"));
    }

    /// Returns the CPUs that a call to many is to reach, and whether it is asked to by a condition.
    fn asked(&mut self, kind: Kind) -> (CpuSet, CpuSet) {
        let set = match kind {
            Kind::All => self.world.all.clone(),
            _ => self.set(),
        };
        let wanted = match kind {
            Kind::ManyIf => set.intersection(&self.set()),
            _ => set.clone(),
        };
        (set, wanted)
    }

    fn many(&mut self, kind: Kind) {
        let (mut set, wanted) = self.asked(kind);
        let (record, job) = self.job(true);
        let stamp = job.stamp;
        if self.wrong(Mistake::LeavesOneOut) {
            if let Some(first) = set.first() {
                set.remove(first);
            }
        }
        let twice = self.wrong(Mistake::RunsTwice);
        let f = move |cpu| {
            if twice {
                drop(job.run(Some(cpu)));
            }
            job.run(Some(cpu))
        };
        let smp = &self.world.smp;
        let call = match kind {
            Kind::ManyIf => smp.call_each(set.filter(|cpu| wanted.contains(cpu)), f),
            Kind::All => smp.call_each(AllCpus, f),
            _ => smp.call_each(&set, f),
        };
        self.reached(&call.reach(), &wanted);
        let reached = call.reach().reached.clone();
        self.accepted(&record, &reached);
        let answers = match kind {
            Kind::ManyAwait => self.awaiting(call),
            _ => self.waiting(|| call.wait()),
        };
        self.answered(stamp, &reached, answers);
        self.settle(record, stamp, &reached);
    }

    fn answered(&self, stamp: u64, reached: &CpuSet, answers: ManyAnswers<Answer>) {
        let from: CpuSet = answers.values.iter().map(|(cpu, _)| *cpu).collect();
        self.world.findings.expect(Check::Reach, from == *reached, || {
            format!("call {stamp}: {reached} were reached, {from} answered")
        });
        for (cpu, answer) in &answers.values {
            self.check_answer(stamp, Some(*cpu), answer);
        }
    }

    /// Checks that a call to many reaches or skips each CPU that it was asked for.
    fn reached(&self, reach: &Reach, wanted: &CpuSet) {
        let mut named = reach.reached.clone();
        for skipped in &reach.skipped {
            self.world.refused(skipped.cpu);
            let new = named.insert(skipped.cpu);
            self.world.findings.expect(Check::Reach, new, || format!("{skipped:?}, and reached"));
        }
        // An unwanted CPU that is offline may be named as skipped: the condition wasn't asked about
        // it.
        let skipped: CpuSet = reach.skipped.iter().map(|skipped| skipped.cpu).collect();
        let right = wanted.is_subset(&named) && named.difference(&skipped).is_subset(wanted);
        self.world.findings.expect(Check::Reach, right, || {
            format!("{wanted} were wanted, {} reached, {skipped} skipped", reach.reached)
        });
    }

    fn many_no_wait(&mut self) {
        let set = self.set();
        let (record, job) = self.job(false);
        let stamp = job.stamp;
        let f = move |cpu| drop(job.run(Some(cpu)));
        let reach = self.world.smp.detached().call_each(&set, f);
        self.reached(&reach, &set);
        self.sent(record, stamp, reach.reached);
    }

    fn run_one(&mut self) {
        let cpu = self.cpu();
        let (record, job) = self.job(true);
        let stamp = job.stamp;
        // The word is on this stack, without any ordering of its own.
        let mut mine = 0;
        let lent = &mut mine;
        let ran = self.waiting(|| {
            self.world.smp.run(cpu, move || {
                *lent = job.stamp;
                job.run(Some(cpu))
            })
        });
        match ran {
            Ok(answer) => {
                self.world.findings.expect(Check::Exit, mine == stamp, || "of a borrow".into());
                self.over(One { record, stamp, cpu }, &Ok(answer));
            }
            Err(RunError::Refused(refusal)) => {
                self.refused(&only(cpu), refusal);
                self.unsent(record, stamp);
            }
            Err(failed @ RunError::Failed(_)) => self.failed(&failed),
        }
    }

    fn run_each(&mut self) {
        let set = self.set();
        let (record, job) = self.job(true);
        let stamp = job.stamp;
        let answers = self.waiting(|| self.world.smp.run_each(&set, |cpu| job.run(Some(cpu))));
        drop(job);
        let reached: CpuSet = answers.values.iter().map(|(cpu, _)| *cpu).collect();
        let reach = Reach { reached: reached.clone(), skipped: answers.skipped.clone() };
        self.reached(&reach, &set);
        self.answered(stamp, &reached, answers);
        self.settle(record, stamp, &reached);
    }

    /// Calls a CPU that the machine doesn't have.
    fn nowhere(&mut self) {
        let cpu = CpuId::new(self.world.numbers() as u32 + self.rng.usize(..3) as u32);
        let (record, job) = self.job(true);
        let stamp = job.stamp;
        let refused = match self.world.smp.call(cpu, move || job.run(Some(cpu))) {
            Err(refusal) => {
                drop(refusal.into_inner());
                true
            }
            Ok(_) => false,
        };
        let still = !context::in_atomic_section();
        self.world.findings.expect(Check::Reach, refused && still, || format!("CPU {cpu} took it"));
        self.unsent(record, stamp);
    }
}

/// A future of two calls that are awaited together.
struct Both {
    calls: Vec<Turn>,
}

enum Turn {
    Running(Call<Answer>),
    Over(Option<Result<Answer, CallFailed>>),
}

impl Future for Both {
    type Output = Vec<Result<Answer, CallFailed>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut pending = false;
        for turn in &mut self.calls {
            if let Turn::Running(call) = turn {
                match pin!(call).poll(cx) {
                    Poll::Ready(answer) => *turn = Turn::Over(Some(answer)),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            return Poll::Pending;
        }
        let over = self.calls.drain(..).filter_map(|turn| match turn {
            Turn::Over(answer) => answer,
            Turn::Running(_) => None,
        });
        Poll::Ready(over.collect())
    }
}
