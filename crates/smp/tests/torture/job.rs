//! Functions that are called: each checks the words that it finds, works for a while, and answers.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::{context, hint};
use corewise_topology::{CpuId, current_cpu};

use super::check::Check;
use super::mistake::Mistake;
use super::plain::Plain;
use super::world::{Side, Token, World, add, spin, target_of_this_thread};

/// The record in which one call leaves traces. Its caller uses it again and again, so that old
/// traces lie where new ones are expected.
pub(super) struct Record {
    pub(super) world: Arc<World>,
    pub(super) caller: usize,
    /// Word written by the caller before the call, read by the handlers.
    pub(super) word: Plain,
    /// Words by CPU: written by the handler, read by the caller after the wait.
    pub(super) out: Box<[Plain]>,
    /// Words by CPU: written by the handler: the number of the CPU's leaves by then.
    pub(super) left: Box<[Plain]>,
    /// Words by CPU: the number of its leaves when the call was known to be accepted. Only the
    /// caller uses them.
    pub(super) bound: Box<[Plain]>,
    /// A: by CPU, how often the call ran there. Relaxed; the torture tests the calls that order it.
    pub(super) ran: Box<[AtomicU32]>,
}

impl Record {
    pub(super) fn new(world: &Arc<World>, caller: usize) -> Record {
        Record {
            world: Arc::clone(world),
            caller,
            word: Plain::new(),
            out: (0..world.numbers()).map(|_| Plain::new()).collect(),
            left: (0..world.numbers()).map(|_| Plain::new()).collect(),
            bound: (0..world.numbers()).map(|_| Plain::new()).collect(),
            ran: (0..world.numbers()).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    pub(super) fn runs(&self) -> u32 {
        self.ran.iter().map(|ran| ran.load(Ordering::Relaxed)).sum()
    }
}

/// The work of a handler beside its checks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// The handler only checks.
    Nothing,
    /// The handler spins for some microseconds.
    Spin(u16),
    /// The handler panics.
    Panic,
    /// The handler calls another CPU, and doesn't wait.
    Call(CpuId),
    /// The handler calls its own CPU, and waits.
    CallItself,
}

/// One call's function. 40 bytes on a machine of 64 bits: it fits into a cell.
pub(super) struct Job {
    pub(super) record: Arc<Record>,
    pub(super) stamp: u64,
    /// Dropped with the function.
    pub(super) _token: Token,
    pub(super) work: Work,
    pub(super) waited_for: bool,
}

/// The answer of a handler.
pub(super) struct Answer {
    /// The CPU on which the handler ran.
    pub(super) on: CpuId,
    pub(super) value: u64,
    _token: Token,
}

/// Returns the answer of call `stamp` from a CPU.
pub(super) fn value(stamp: u64, cpu: CpuId) -> u64 {
    stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(cpu.number())
}

impl Job {
    /// Runs the handler, on the CPU that was asked for; `None`: on any.
    pub(super) fn run(&self, asked: Option<CpuId>) -> Answer {
        let world = &self.record.world;
        let found = target_of_this_thread();
        let right = found.is_some() && asked.is_none_or(|asked| Some(asked) == found);
        world.findings.expect(Check::Cpu, right, || {
            let (thread, asked) =
                (std::thread::current(), asked.map(|asked| i64::from(asked.number())));
            format!("CPU {} was asked for, thread {:?} ran it", asked.unwrap_or(-1), thread.name())
        });
        world.findings.expect(Check::Section, context::in_atomic_section(), || {
            format!("a call to CPU {asked:?}")
        });
        let on = found.or(asked).or(world.all.first()).unwrap_or(CpuId::new(0));
        let side = world.side(on);
        world.findings.expect(Check::Overlap, side.begin(), || format!("on CPU {on}"));
        self.check(on, side);
        if let Work::Spin(us) = self.work {
            spin(Duration::from_micros(us.into()));
        }
        if world.makes(Mistake::HangsInAHandler) && self.stamp % 64 == 0 {
            while !world.gives_up() {
                hint::spin_loop();
            }
        }
        self.work(on);
        self.record.left[on.index()].set(side.left.load(Ordering::Acquire));
        self.record.ran[on.index()].fetch_add(1, Ordering::Relaxed);
        if !(world.makes(Mistake::Uncounted) && self.stamp % 64 == 0) {
            add(&world.counts.ran, 1);
        }
        self.record.out[on.index()].set(self.stamp);
        side.end();
        if self.work == Work::Panic {
            add(&world.counts.panics, 1);
            // This bypasses the hook, which would print.
            resume_unwind(Box::new("on purpose"));
        }
        let wrong = world.makes(Mistake::AnswersWrongly) && self.stamp % 64 == 0;
        let token = Token::new(world);
        if world.makes(Mistake::Leaks) {
            std::mem::forget(Token::new(world));
        }
        Answer { on, value: value(self.stamp, on) ^ u64::from(wrong), _token: token }
    }

    /// Checks the conditions at a handler's beginning.
    fn check(&self, on: CpuId, side: &Side) {
        let Record { world, caller, word, .. } = &*self.record;
        let (findings, stamp) = (&world.findings, self.stamp);
        let seen = word.get();
        findings.expect(Check::Entry, seen == stamp, || {
            format!("call {stamp} of caller {caller}, on CPU {on}: saw {seen}")
        });
        let alive = !side.dead.load(Ordering::Relaxed);
        findings
            .expect(Check::Dead, alive, || format!("call {stamp} of caller {caller}, on CPU {on}"));
        let follows = side.follows(*caller, self.waited_for, stamp);
        findings.expect(Check::Order, follows, || {
            format!("call {stamp} of caller {caller}, on CPU {on}")
        });
        if !world.smp.machine().is_synthetic() {
            // If the system takes the CPU away meanwhile, the thread may be anywhere.
            let before = side.stays();
            let at = current_cpu();
            let right = before.is_none() || side.stays() != before || at == Some(on);
            findings.expect(Check::Cpu, right, || format!("CPU {on}'s target is on {at:?}"));
        }
    }

    fn work(&self, on: CpuId) {
        let world = &self.record.world;
        match self.work {
            Work::Call(to) => {
                let token = Token::new(world);
                let nested = move || {
                    add(&token.world().counts.nested_ran, 1);
                    add(&token.world().counts.ran, 1);
                };
                match world.smp.detached().call(to, nested) {
                    Ok(()) => add(&world.counts.nested, 1),
                    Err(_) => world.refused(to),
                }
            }
            Work::CallItself => {
                let itself = world.smp.call(on, context::in_atomic_section);
                match itself {
                    // The call is refused if the CPU is leaving just now.
                    Err(_) => world.refused(on),
                    Ok(call) => {
                        add(&world.counts.ran, 1);
                        let in_place = call.is_complete();
                        let right = in_place && matches!(call.wait(), Ok(true));
                        world.findings.expect(Check::Value, right, || {
                            format!("CPU {on} called itself: in place {in_place}")
                        });
                    }
                }
            }
            Work::Nothing | Work::Spin(_) | Work::Panic => {}
        }
    }
}
