//! The descriptor of one call, or of one CPU's share of a call to many.
//!
//! A cell has two sides: its *message*, which travels to a target and ends there, and its *handle*,
//! which waits. Its life: taken from the pool; filled (kind, function); sent; run or failed, which
//! turns the function into the answer; completed; the answer taken; put back. The signal's word
//! decides which side puts it back: the side that comes last. An unawaited call has no handle, and
//! its cell is put back before the function runs (the kernel's rule for asynchronous calls, rule
//! 2.2.2).
//!
//! The *diagnosis* is the data of a call that any thread can read from outside, at any moment: for
//! the watchdog and for dumps. It decides nothing. The fields are relaxed atomics, so that a reader
//! may come while the cell is put back and used for another call. A *life* around them shows that
//! what was read belongs together (a sequence lock whose writer is the owner of the cell):
//!
//! ```text
//! clear: life = even                         read: a = life (Acquire), odd; read the fields
//! begin: Release fence; write the fields;          Acquire fence; b = life; a == b or nothing
//!        life = odd
//! ```

use std::mem::{MaybeUninit, align_of, size_of};
use std::panic::Location;
use std::ptr::{self, NonNull};

use corewise_sync::atomic::aside::{self, AtomicPtr, AtomicU64, fence};
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::{Signal, hint};
use corewise_topology::CpuId;

use crate::cells::message::Kind;
use crate::cells::pool::{Pool, Watched};
use crate::sleepers::Sleepers;
use crate::spin::WaiterHabit;
use crate::stats::{self, Queued};

/// Bytes for a function of 64 bytes and more, or for its answer: a value of 64 bytes, or the reason
/// why there is none.
const ROOM: usize = 80;

/// The memory for a function or an answer.
#[repr(C, align(16))]
struct Storage(MaybeUninit<[u8; ROOM]>);

/// The descriptor of a call, or of one CPU's share of a call to many; see the head of the file. It
/// has three cache lines. For a call to one CPU, the first line holds the function and the answer
/// if they are small. For the head of a call to many, all CPUs read the first two lines, and count
/// off in the third.
#[repr(C, align(64))]
pub(crate) struct Cell {
    /// P: the owner of the message: the next in a target's queue.
    next: UnsafeCell<*mut Cell>,
    /// Targets that are still to be woken for the shares of this head. They live as long as it: a
    /// cell that is out keeps its pool, the pool keeps the watch, and the watch all targets. (A
    /// cell without a pool is a model's, which keeps the handle.)
    pub(super) sleepers: Sleepers,
    pub(super) signal: Signal,
    /// A: 1 once the share has ended, for readers from outside. Relaxed: it orders nothing.
    ended: aside::AtomicU32,
    /// P: the caller's until the message is sent; the message's until it completes; then of the
    /// side that comes last.
    storage: UnsafeCell<Storage>,
    /// A: of a share, the head of its call; else null. Written before the message is sent, and read
    /// by a thread that looks from outside.
    head: AtomicPtr<Cell>,
    /// P: the caller's while it sends, then as `storage`: of a head, the last share; of a share,
    /// the one before it.
    chain: UnsafeCell<*mut Cell>,
    /// I: the pool that it returns to.
    pool: Option<NonNull<Pool>>,
    /// I: its index there.
    index: u32,
    /// A: of a head: the number of shares that are still to come. In the free list: its link.
    left: AtomicU32,
    pub(crate) diagnosis: Diagnosis,
}

const _: () = assert!(size_of::<Cell>() == 192 || hint::IN_MODEL, "three cache lines");

// SAFETY: the fields that aren't atomic belong to one side at a time, or are only read, as they
// say.
unsafe impl Sync for Cell {}
// SAFETY: as above; the functions that fill the storage require a `Send` value.
unsafe impl Send for Cell {}

impl Cell {
    pub(super) fn new(pool: Option<NonNull<Pool>>, index: u32) -> Cell {
        Cell {
            next: UnsafeCell::new(ptr::null_mut()),
            sleepers: Sleepers::new(),
            signal: Signal::new(),
            ended: aside::AtomicU32::new(0),
            storage: UnsafeCell::new(Storage(MaybeUninit::uninit())),
            head: AtomicPtr::new(ptr::null_mut()),
            chain: UnsafeCell::new(ptr::null_mut()),
            pool,
            index,
            left: AtomicU32::new(0),
            diagnosis: Diagnosis::new(),
        }
    }

    /// Creates a cell without a pool, in a box of its own.
    pub(super) fn alone() -> NonNull<Cell> {
        NonNull::from(Box::leak(Box::new(Cell::new(None, 0))))
    }

    /// Returns the CPU that the caller was on, if it is known.
    pub(crate) fn source(&self) -> Option<CpuId> {
        self.diagnosis.origin().1
    }

    /// Returns the signal that the handle waits for.
    pub(crate) fn signal(&self) -> &Signal {
        &self.signal
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn next_free(&self) -> u32 {
        // Relaxed: the head of the free list orders.
        self.left.load(Ordering::Relaxed)
    }

    pub(super) fn set_next_free(&self, next: u32) {
        self.left.store(next, Ordering::Relaxed);
    }

    /// Makes it a call of this kind to this CPU.
    ///
    /// # Safety
    /// The caller has just taken the cell, and hasn't sent it.
    #[inline]
    pub(super) unsafe fn prepare(
        &self,
        kind: &'static Kind,
        source: CpuId,
        cpu: CpuId,
        site: &'static Location<'static>,
    ) {
        self.diagnosis.begin(kind, source, cpu, site);
        // Relaxed: the push orders.
        self.head.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Returns its kind.
    ///
    /// # Safety
    /// The cell was prepared before.
    pub(super) unsafe fn kind(&self) -> &'static Kind {
        // SAFETY: the caller promises it.
        unsafe { self.diagnosis.kind() }
    }

    /// Returns the CPU that is called.
    pub(super) fn cpu(&self) -> CpuId {
        self.diagnosis.target()
    }

    /// Returns the next message in the list.
    ///
    /// # Safety
    /// The caller has the message, or the one before it in a queue.
    pub(crate) unsafe fn next(&self) -> *mut Cell {
        // SAFETY: it is the caller's.
        self.next.with(|p| unsafe { *p })
    }

    /// Sets the next message in the list.
    ///
    /// # Safety
    /// The same as for [`Cell::next`].
    pub(crate) unsafe fn set_next(&self, next: *mut Cell) {
        // SAFETY: it is the caller's.
        self.next.with_mut(|p| unsafe { *p = next });
    }

    /// Returns the head of its call.
    ///
    /// # Safety
    /// The cell is a share, and was linked before.
    pub(super) unsafe fn head(&self) -> NonNull<Cell> {
        // Relaxed: the push orders.
        let head = self.head.load(Ordering::Relaxed);
        // SAFETY: not null, for it was linked.
        unsafe { NonNull::new_unchecked(head) }
    }

    /// Makes it a share of this head's call.
    ///
    /// # Safety
    /// The caller has not sent the cell.
    pub(super) unsafe fn set_head(&self, head: NonNull<Cell>) {
        self.ended.store(0, Ordering::Relaxed);
        self.head.store(head.as_ptr(), Ordering::Relaxed);
    }

    /// Marks a share as ended, for readers from outside.
    #[inline]
    pub(super) fn set_ended(&self) {
        self.ended.store(1, Ordering::Relaxed);
    }

    /// Sets how many shares of a head are to be counted off. Relaxed: the push of each share
    /// orders.
    ///
    /// # Safety
    /// No share of it was sent.
    pub(super) unsafe fn expects(&self, left: u32) {
        self.left.store(left, Ordering::Relaxed);
        self.sleepers.reset();
    }

    /// Returns the number of shares of a head that are still to be counted off.
    pub(super) fn left(&self) -> u32 {
        self.left.load(Ordering::Acquire)
    }

    /// Counts `n` shares of a head off; returns true if they were the last ones.
    #[inline]
    pub(super) fn counts_off(&self, n: u32) -> bool {
        // AcqRel: releases the share's writes, its answer included; the last one acquires all of
        // them.
        self.left.fetch_sub(n, Ordering::AcqRel) == n
    }

    /// Returns its link in the chain of shares.
    ///
    /// # Safety
    /// The caller sends the call to many, or has come last in it.
    pub(super) unsafe fn chain(&self) -> *mut Cell {
        // SAFETY: it is the caller's.
        self.chain.with(|p| unsafe { *p })
    }

    /// Sets its link in the chain of shares.
    ///
    /// # Safety
    /// The same as for [`Cell::chain`].
    pub(super) unsafe fn set_chain(&self, chain: *mut Cell) {
        // SAFETY: it is the caller's.
        self.chain.with_mut(|p| unsafe { *p = chain });
    }

    /// Puts a value into the storage, or a box of it if it is too big.
    ///
    /// # Safety
    /// The storage is the caller's, and empty.
    pub(super) unsafe fn fill<T>(&self, value: T) {
        self.storage.with_mut(|p| {
            if fits::<T>() {
                // SAFETY: there is room, aligned; it is the caller's.
                unsafe { p.cast::<T>().write(value) }
            } else {
                // SAFETY: as above, for a pointer.
                unsafe { p.cast::<*mut T>().write(Box::into_raw(Box::new(value))) }
            }
        });
    }

    /// Takes the value out.
    ///
    /// # Safety
    /// The storage is the caller's, and was filled with a `T`.
    pub(super) unsafe fn empty<T>(&self) -> T {
        self.storage.with_mut(|p| {
            if fits::<T>() {
                // SAFETY: the caller promises that it is there, and it is taken once.
                unsafe { p.cast::<T>().read() }
            } else {
                // SAFETY: as above; `fill` made the box.
                unsafe { *Box::from_raw(p.cast::<*mut T>().read()) }
            }
        })
    }

    /// Lends the value.
    ///
    /// # Safety
    /// The storage was filled with a `T`, which stays there meanwhile, and is only read.
    pub(super) unsafe fn lend<T, R>(&self, use_it: impl FnOnce(&T) -> R) -> R {
        self.storage.with(|p| {
            let value = if fits::<T>() {
                p.cast::<T>()
            } else {
                // SAFETY: the caller promises that it is there.
                unsafe { p.cast::<*mut T>().read().cast_const() }
            };
            // SAFETY: as above.
            use_it(unsafe { &*value })
        })
    }

    /// Gives it back to its pool, or frees it if it has none.
    ///
    /// # Safety
    /// The caller has it alone and its storage is empty.
    #[inline]
    pub(super) unsafe fn put_back(this: NonNull<Cell>) {
        // SAFETY: it is the caller's until it is in the free list.
        let cell = unsafe { this.as_ref() };
        let Some(pool) = cell.pool else {
            // SAFETY: `alone` made a box of it, and the caller has it alone.
            return drop(unsafe { Box::from_raw(this.as_ptr()) });
        };
        cell.diagnosis.clear();
        // SAFETY: no thread uses the cell any more. It came from this pool.
        unsafe {
            cell.signal.reset();
            Pool::put(pool, this);
        }
    }
}

/// Reads from outside: any thread, at any time, while the pools are there.
impl Cell {
    /// Returns the watch over waits for the call; `None` for a cell without a pool.
    #[inline]
    pub(crate) fn watched(&self) -> Option<&Watched> {
        // SAFETY: a pool lives at least until its last cell is back, and this one is borrowed.
        self.pool.map(|pool| unsafe { pool.as_ref() }.watched())
    }

    /// Returns the experience of waiters for such calls; `None` for a cell without a pool.
    #[inline]
    pub(crate) fn waiter_habit(&self) -> Option<&WaiterHabit> {
        // SAFETY: as in `watched`.
        self.pool.map(|pool| unsafe { pool.as_ref() }.waiter_habit())
    }

    /// Returns the call, or share of one, that the cell holds, if it is under way to a target.
    pub(crate) fn outstanding(&self) -> Option<Outstanding> {
        let call = self.diagnosis.read().filter(|call| call.phase != Phase::Head)?;
        (self.is_open() && self.diagnosis.life() == call.life).then_some(call)
    }

    /// Returns true if it hasn't ended: for a share its own flag shows it, for a whole call the
    /// signal.
    fn is_open(&self) -> bool {
        if self.head.load(Ordering::Relaxed).is_null() {
            !self.signal.is_complete()
        } else {
            self.ended.load(Ordering::Relaxed) == 0
        }
    }

    /// Calls `see` for each share of this call to many that is under way.
    pub(crate) fn for_each_share(&self, mut see: impl FnMut(&Cell, &Outstanding)) {
        let Some(pool) = self.pool else { return };
        // SAFETY: as in `watched`. A call's shares are of the pool of its head.
        unsafe { pool.as_ref() }.for_each(&mut |cell| {
            if ptr::eq(cell.head.load(Ordering::Relaxed), self) {
                if let Some(call) = cell.outstanding() {
                    see(cell, &call);
                }
            }
        });
    }
}

/// Returns true if a value is kept in the cell itself.
const fn fits<T>() -> bool {
    size_of::<T>() <= ROOM && align_of::<T>() <= align_of::<Storage>()
}

/// The progress of a call, as far as its target has reported it. The target reports which call
/// runs, and the cell's own state says that it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The call is in its target's queue and was not seen yet; or it was taken and run at once.
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

/// The fields of a cell that can be read from outside; see the head of the file.
pub(crate) struct Diagnosis {
    /// A: counts up when the cell is taken and when it is put back: odd while it is out.
    life: aside::AtomicU32,
    /// A: the CPU that is called, the one that the caller was on, and `TAKEN` or `HEAD`. Written by
    /// the side that has the message.
    of: aside::AtomicU32,
    /// A: the kind of the call, which has the function's name.
    kind: AtomicPtr<Kind>,
    /// A: the place of the call in the source.
    site: AtomicPtr<Location<'static>>,
    /// A: the time when it was sent ([`Queued`]). Written by the caller, then by the handle.
    queued_at: AtomicU64,
}

/// A reading of a call that is under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outstanding {
    pub(crate) target: CpuId,
    pub(crate) source: CpuId,
    pub(crate) name: &'static str,
    /// True if a thread may wait for it.
    pub(crate) urgent: bool,
    pub(crate) site: &'static Location<'static>,
    pub(crate) queued: Queued,
    pub(crate) phase: Phase,
    /// The life of its cell.
    pub(crate) life: u32,
}

impl Diagnosis {
    pub(super) fn new() -> Self {
        Diagnosis {
            life: aside::AtomicU32::new(0),
            of: aside::AtomicU32::new(0),
            kind: AtomicPtr::new(std::ptr::null_mut()),
            site: AtomicPtr::new(std::ptr::null_mut()),
            queued_at: AtomicU64::new(0),
        }
    }

    /// Begins a call in the cell. Only the thread that has just taken it calls this.
    #[inline]
    pub(super) fn begin(
        &self,
        kind: &'static Kind,
        source: CpuId,
        target: CpuId,
        site: &'static Location<'static>,
    ) {
        let life = self.life.load(Ordering::Relaxed);
        // Release: a thread that reads one of the fields below, and then `life`, sees that the life
        // before is over.
        fence(Ordering::Release);
        let phase = if kind.is_head() { HEAD } else { 0 };
        let of = target.number() & CPU | (source.number() & CPU) << SOURCE_SHIFT | phase;
        self.of.store(of, Ordering::Relaxed);
        self.kind.store(std::ptr::from_ref(kind).cast_mut(), Ordering::Relaxed);
        self.site.store(std::ptr::from_ref(site).cast_mut(), Ordering::Relaxed);
        self.queued_at.store(Queued::NOT.word(), Ordering::Relaxed);
        // This comes last: a caller that is preempted in between isn't taken for the call before.
        // Release pairs with the Acquire in `read`: with this life come all of the above.
        self.life.store(life.wrapping_add(1) | 1, Ordering::Release);
    }

    /// Returns the CPU that is called, for a side of the call.
    #[inline]
    pub(super) fn target(&self) -> CpuId {
        CpuId::new(self.of.load(Ordering::Relaxed) & CPU)
    }

    /// Returns its kind.
    ///
    /// # Safety
    /// The caller has a side of the call, after `begin`.
    #[inline]
    pub(super) unsafe fn kind(&self) -> &'static Kind {
        // SAFETY: `begin` stored it, made of a reference that lives for ever.
        unsafe { &*self.kind.load(Ordering::Relaxed) }
    }

    /// Returns the place and the CPU from which it was called, for a side of the call.
    #[inline]
    pub(super) fn origin(&self) -> (&'static Location<'static>, Option<CpuId>) {
        // SAFETY: `begin` stored it, made of a reference that lives for ever.
        let site = unsafe { &*self.site.load(Ordering::Relaxed) };
        (site, Some(CpuId::new(self.of.load(Ordering::Relaxed) >> SOURCE_SHIFT & CPU)))
    }

    /// Records that it is about to be pushed.
    #[inline]
    pub(crate) fn stamp(&self, wakes: bool) {
        let use_of_cell = self.life.load(Ordering::Relaxed) / 2;
        let now = Queued::now(stats::weight(wakes, use_of_cell));
        self.queued_at.store(now.word(), Ordering::Relaxed);
    }

    /// Records that a future awaits it from now on; returns true if none did before. Only the
    /// handle calls it.
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

    /// Records that no future awaits it any more. Only the handle calls it.
    #[inline]
    pub(crate) fn forsaken(&self) {
        let before = self.queued();
        if before.is_awaited() {
            self.queued_at.store(before.and_not_awaited().word(), Ordering::Relaxed);
        }
    }

    /// Returns the time when it was queued.
    #[inline]
    pub(super) fn queued(&self) -> Queued {
        Queued::from_word(self.queued_at.load(Ordering::Relaxed))
    }

    /// Records that the target has taken it, with others.
    #[inline]
    pub(crate) fn taken(&self) {
        self.of.store(self.of.load(Ordering::Relaxed) | TAKEN, Ordering::Relaxed);
    }

    /// Ends the life of the call: the cell goes back to its pool.
    #[inline]
    pub(super) fn clear(&self) {
        let life = self.life.load(Ordering::Relaxed);
        self.life.store(life.wrapping_add(1) & !1, Ordering::Release);
    }

    /// Returns the life of the cell; even if it is in the pool.
    pub(crate) fn life(&self) -> u32 {
        self.life.load(Ordering::Relaxed)
    }

    /// Returns the call that the cell is now, if it is one. Any thread, any time.
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
    use crate::cells::message::{Class, Role, RunOutcome};
    use std::sync::Arc;

    const fn kind(name: fn() -> &'static str) -> Kind {
        let (run, fail) = (|_| RunOutcome::Returned, |_| ());
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
