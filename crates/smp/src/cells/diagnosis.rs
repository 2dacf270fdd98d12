//! What can be seen of a call from outside, at any moment and from any thread: for the watchdog and for dumps.
//!
//! It decides nothing. The fields are relaxed atomics, so that a reader may come while the cell is put back
//! and used for another call; a *life* around them tells that what was read belongs together (a
//! sequence lock whose writer is the owner of the cell):
//!
//! ```text
//! clear: life = even                                     read: a = life (Acquire), odd; read the fields
//! begin: Release fence; write the fields; life = odd           Acquire fence; b = life; a == b or nothing
//! ```

use corewise_topology::CpuId;
use std::panic::Location;

use corewise_sync::atomic::Ordering;
use corewise_sync::atomic::aside::{AtomicPtr, AtomicU32, AtomicU64, fence};

use super::kinds::Kind;
use crate::policy;
use crate::stats::Queued;

/// How far a call has come, as far as its target has said. That it runs is said by the target, and that it
/// has ended by the cell's own state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In its target's queue, not seen yet: or taken and run at once.
    Queued,
    /// The target has taken it, together with others.
    Taken,
    /// The first cell of a call to many, which isn't sent anywhere.
    Head,
}

// The word `of`: target, source and phase. A CPU's number has 13 bits (`CpuSet::MAX_CPU`).
const SOURCE_SHIFT: u32 = 13;
const CPU: u32 = (1 << SOURCE_SHIFT) - 1;
const TAKEN: u32 = 1 << 30;
const HEAD: u32 = 1 << 31;
const _: () = assert!(corewise_topology::CpuSet::MAX_CPU <= CPU);

/// See the head of the file.
pub(crate) struct Diagnosis {
    /// A: counts up when the cell is had and when it is put back: odd while it is out.
    life: AtomicU32,
    /// A: the CPU that is called, the one that the caller was on, and `TAKEN` or `HEAD`. Written by the side that has
    /// the message.
    of: AtomicU32,
    /// A: what kind of call, and so the function's name.
    kind: AtomicPtr<Kind>,
    /// A: where it was called.
    site: AtomicPtr<Location<'static>>,
    /// A: when it was sent ([`Queued`]). Written by the caller, then by the handle.
    queued_at: AtomicU64,
}

/// What was read of a call that is under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outstanding {
    pub(crate) target: CpuId,
    pub(crate) source: CpuId,
    pub(crate) name: &'static str,
    /// Somebody may wait for it.
    pub(crate) urgent: bool,
    pub(crate) site: &'static Location<'static>,
    pub(crate) queued: Queued,
    pub(crate) phase: Phase,
    /// Which life of its cell it is.
    pub(crate) life: u32,
}

impl Diagnosis {
    pub(super) fn new() -> Self {
        Diagnosis {
            life: AtomicU32::new(0),
            of: AtomicU32::new(0),
            kind: AtomicPtr::new(std::ptr::null_mut()),
            site: AtomicPtr::new(std::ptr::null_mut()),
            queued_at: AtomicU64::new(0),
        }
    }

    /// The cell is a call now. Only for the thread that has just got it.
    #[inline]
    pub(super) fn begin(
        &self,
        kind: &'static Kind,
        source: CpuId,
        target: CpuId,
        site: &'static Location<'static>,
    ) {
        let life = self.life.load(Ordering::Relaxed);
        // Release: who reads one of the fields below, and then `life`, sees that the life before is over.
        fence(Ordering::Release);
        let phase = if kind.is_head() { HEAD } else { 0 };
        let of = target.number() & CPU | (source.number() & CPU) << SOURCE_SHIFT | phase;
        self.of.store(of, Ordering::Relaxed);
        self.kind.store(std::ptr::from_ref(kind).cast_mut(), Ordering::Relaxed);
        self.site.store(std::ptr::from_ref(site).cast_mut(), Ordering::Relaxed);
        self.queued_at.store(Queued::NOT.word(), Ordering::Relaxed);
        // Only now: a caller that is preempted in between isn't taken for the call before. Release pairs with
        // the Acquire in `read`: with this life come all of the above.
        self.life.store(life.wrapping_add(1) | 1, Ordering::Release);
    }

    /// The CPU that is called, for a side of the call.
    #[inline]
    pub(super) fn target(&self) -> CpuId {
        CpuId::new(self.of.load(Ordering::Relaxed) & CPU)
    }

    /// What it is.
    ///
    /// # Safety
    /// The caller has a side of the call, after `begin`.
    #[inline]
    pub(super) unsafe fn kind(&self) -> &'static Kind {
        // SAFETY: `begin` stored it, made of a reference that lives for ever.
        unsafe { &*self.kind.load(Ordering::Relaxed) }
    }

    /// Where it was called, and on which CPU, for a side of the call.
    #[inline]
    pub(super) fn origin(&self) -> (&'static Location<'static>, Option<CpuId>) {
        // SAFETY: `begin` stored it, made of a reference that lives for ever.
        let site = unsafe { &*self.site.load(Ordering::Relaxed) };
        (site, Some(CpuId::new(self.of.load(Ordering::Relaxed) >> SOURCE_SHIFT & CPU)))
    }

    /// It is about to be pushed.
    #[inline]
    pub(crate) fn stamp(&self, wakes: bool) {
        let use_of_cell = self.life.load(Ordering::Relaxed) / 2;
        let now = Queued::now(policy::weight(wakes, use_of_cell));
        self.queued_at.store(now.word(), Ordering::Relaxed);
    }

    /// A future awaits it from now on; true where none did before. Only for the handle.
    pub(crate) fn awaited(&self) -> bool {
        let before = self.queued();
        if before.is_awaited() {
            return false;
        }
        // A head isn't queued anywhere: its time begins here.
        let queued = if before == Queued::NOT { Queued::now(0) } else { before };
        self.queued_at.store(queued.and_awaited().word(), Ordering::Relaxed);
        true
    }

    /// No future awaits it any more. Only for the handle.
    #[inline]
    pub(crate) fn forsaken(&self) {
        let before = self.queued();
        if before.is_awaited() {
            self.queued_at.store(before.and_not_awaited().word(), Ordering::Relaxed);
        }
    }

    /// When that was.
    #[inline]
    pub(super) fn queued(&self) -> Queued {
        Queued::from_word(self.queued_at.load(Ordering::Relaxed))
    }

    /// The target has taken it, with others.
    #[inline]
    pub(crate) fn taken(&self) {
        self.of.store(self.of.load(Ordering::Relaxed) | TAKEN, Ordering::Relaxed);
    }

    /// The cell goes back to its pool.
    #[inline]
    pub(super) fn clear(&self) {
        let life = self.life.load(Ordering::Relaxed);
        self.life.store(life.wrapping_add(1) & !1, Ordering::Release);
    }

    /// Which life of its cell this is; even where it is in the pool.
    pub(crate) fn life(&self) -> u32 {
        self.life.load(Ordering::Relaxed)
    }

    /// The call that the cell is now, if it is one. Any thread, any time.
    pub(crate) fn read(&self) -> Option<Outstanding> {
        let life = self.life.load(Ordering::Acquire);
        let kind = self.kind.load(Ordering::Relaxed);
        let site = self.site.load(Ordering::Relaxed);
        let queued = self.queued();
        let of = self.of.load(Ordering::Relaxed);
        let (target, source) = (CpuId::new(of & CPU), CpuId::new(of >> SOURCE_SHIFT & CPU));
        let phase = match of {
            _ if of & HEAD != 0 => Phase::Head,
            _ if of & TAKEN != 0 => Phase::Taken,
            _ => Phase::Queued,
        };
        // Acquire pairs with the Release in `begin`.
        fence(Ordering::Acquire);
        if life & 1 == 0 || self.life.load(Ordering::Relaxed) != life {
            return None;
        }
        // SAFETY: both are null, or were made of references that live for ever.
        let (kind, site) = unsafe { (kind.as_ref()?, site.as_ref()?) };
        let (name, urgent) = ((kind.name)(), kind.is_urgent());
        Some(Outstanding { target, source, name, urgent, site, queued, phase, life })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::kinds::{Class, Ended, Role};
    use std::sync::Arc;

    const fn kind(name: fn() -> &'static str) -> Kind {
        let (run, fail) = (|_| Ended::Returned, |_| ());
        Kind { class: Class::Urgent, role: Role::Message, name, run, fail }
    }
    static EVEN: Kind = kind(|| "even");
    static ODD: Kind = kind(|| "odd");

    #[test]
    fn a_reader_of_a_reused_cell_never_mixes_two_calls() {
        let cell = Arc::new(Diagnosis::new());
        let user = {
            let cell = Arc::clone(&cell);
            std::thread::spawn(move || {
                let sites = [Location::caller(), Location::caller()];
                for n in 0..100_000_u32 {
                    let odd = n % 2;
                    let kind = if odd == 1 { &ODD } else { &EVEN };
                    let cpu = CpuId::new(odd);
                    cell.begin(kind, cpu, cpu, sites[cpu.index()]);
                    if odd == 1 {
                        cell.awaited();
                    }
                    (0..100).for_each(|_| std::hint::spin_loop());
                    cell.clear();
                }
            })
        };
        while !user.is_finished() {
            if let Some(call) = cell.read() {
                let odd = call.name == "odd";
                let cpu = CpuId::new(u32::from(odd));
                assert_eq!((call.source, call.target), (cpu, cpu));
                assert!(
                    odd || !call.queued.is_awaited(),
                    "it was the call before that was awaited"
                );
            }
        }
        user.join().expect("no panic");
    }
}
