//! A call to many: a *head* with the function, and a *share* for each CPU, which holds that CPU's
//! answer.
//!
//! The head counts the shares that are still to come, and one more for the caller while it sends.
//! The side that counts the last one off completes the head's signal. If the handle has left (or
//! there never was one), that side takes the whole call apart. The shares are chained behind the
//! head: no list has to be allocated.

use corewise_topology::CpuId;
use std::any::type_name;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::panic::Location;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};

use corewise_sync::{Signal, panics};

use super::cell::Cell;
use super::message::Message;
use super::pool::Pools;
use crate::cells::message::{
    Answer, Class, Kind, Role, RunOutcome, answer_of, drop_quietly, dropped, panicked,
};
use crate::error::CallFailed;
use crate::sleepers::Sleeper;

/// A call to many that a thread may wait for. A share holds its CPU, and the answer.
pub(crate) struct Many<F, R>(PhantomData<(F, R)>);

impl<F: Fn(CpuId) -> R + Send + Sync, R: Send> Many<F, R> {
    const HEAD: &'static Kind = &Kind {
        class: Class::Urgent,
        role: Role::Head,
        name: type_name::<F>,
        run: |_| RunOutcome::Returned,
        fail: drop_head::<F>,
    };
    const SHARE: &'static Kind = &Kind {
        class: Class::Urgent,
        role: Role::Message,
        name: type_name::<F>,
        run: Self::run,
        fail: Self::fail,
    };

    /// Runs the function for this share's CPU.
    ///
    /// # Safety
    /// The same as for [`Kind::run`].
    unsafe fn run(this: NonNull<Cell>) -> RunOutcome {
        // SAFETY: the message is ours until `end`. The head lives until all shares have ended, and
        // so do the targets that it lists (`Cell::sleepers`).
        unsafe {
            let (cell, cpu) = (this.as_ref(), this.as_ref().cpu());
            let head = cell.head();
            head.as_ref().sleepers.help();
            let (answer, ended) =
                head.as_ref().lend::<F, _>(|f| answer_of(cell, Self::SHARE, || f(cpu)));
            Self::end(this, answer);
            ended
        }
    }

    /// Ends the share without running the function.
    ///
    /// # Safety
    /// The same as for [`Kind::fail`].
    unsafe fn fail(this: NonNull<Cell>) {
        // SAFETY: the message is ours until `end`.
        unsafe { Self::end(this, Err(CallFailed::NotOnline { cpu: this.as_ref().cpu() })) };
    }

    /// Keeps the answer, and counts the share off.
    ///
    /// # Safety
    /// The message is the caller's, and given up.
    unsafe fn end(this: NonNull<Cell>, answer: Answer<R>) {
        // SAFETY: the message is ours until it is counted off; a share's storage is empty before.
        unsafe {
            let cell = this.as_ref();
            let (head, cpu) = (cell.head(), cell.cpu());
            cell.fill::<(CpuId, Answer<R>)>((cpu, answer));
            cell.set_ended();
            Self::count_off(head, 1);
        }
    }

    /// Counts shares off; the last one ends the call.
    ///
    /// # Safety
    /// The caller has counted none of these off before, and doesn't use the call after.
    unsafe fn count_off(head: NonNull<Cell>, n: u32) {
        // SAFETY: the head lives until the last is counted off; if we are the last, until we have
        // ended it.
        unsafe {
            if head.as_ref().counts_off(n) && !Signal::complete(&raw const head.as_ref().signal) {
                drop(Answers::<R>::take(head));
            }
        }
    }
}

/// Drops the function of a call to many, and puts its head back.
///
/// # Safety
/// All shares have ended, and the caller has come last.
unsafe fn drop_head<F>(head: NonNull<Cell>) {
    // SAFETY: the head is the caller's, and holds the function.
    let f = unsafe {
        let f = head.as_ref().empty::<F>();
        Cell::put_back(head);
        f
    };
    drop(f);
}

/// State that the senders of both kinds of call to many share: the head, and its sent shares.
struct Sender<'a> {
    head: NonNull<Cell>,
    source: CpuId,
    site: &'static Location<'static>,
    /// Number of candidates without a sent share.
    unused: u32,
    /// The target of the caller's own CPU, if it sleeps: it would run in the middle of waking the
    /// others.
    own: Option<&'a Sleeper>,
}

impl<'a> Sender<'a> {
    /// Begins a call to at most that many CPUs. It is in the head's count until its user counts
    /// `uncounted` off.
    fn new<F>(
        pools: &Pools,
        kind: &'static Kind,
        source: CpuId,
        site: &'static Location<'static>,
        candidates: u32,
        f: F,
    ) -> Self {
        let head = pools.get(source);
        // SAFETY: we have just taken it, and its storage is empty.
        unsafe {
            let cell = head.as_ref();
            cell.prepare(kind, source, CpuId::new(0), site);
            cell.expects(candidates + 1);
            cell.fill(f);
        }
        Sender { head, source, site, unused: candidates, own: None }
    }

    /// Creates a share of that kind for one CPU.
    fn share(&mut self, pools: &Pools, kind: &'static Kind, cpu: CpuId) -> NonNull<Cell> {
        debug_assert!(self.unused > 0, "more shares than candidates");
        self.unused -= 1;
        let share = pools.get(self.source);
        // SAFETY: we have just taken it.
        unsafe {
            share.as_ref().prepare(kind, self.source, cpu, self.site);
            share.as_ref().set_head(self.head);
        }
        share
    }

    /// Records that this CPU's share was pushed; it found its target asleep, if it names one.
    fn pushed(&mut self, cpu: CpuId, asleep: Option<&'a Sleeper>) {
        match asleep {
            Some(own) if cpu == self.source => self.own = Some(own),
            // SAFETY: we haven't counted off.
            Some(other) => unsafe { self.head.as_ref() }.sleepers.wake_or_list(other),
            None => {}
        }
    }

    /// Wakes the targets that still sleep.
    fn wake_all(&mut self) {
        // SAFETY: we haven't counted off.
        unsafe { self.head.as_ref().sleepers.wake_all() };
        if let Some(own) = self.own.take() {
            own.wake();
        }
    }

    /// Returns the count of the caller, and of the candidates that got no share.
    fn uncounted(&self) -> u32 {
        1 + self.unused
    }
}

/// The caller's side of a call to many while it is sent.
pub(crate) struct Sending<'a, F: Fn(CpuId) -> R + Send + Sync, R: Send> {
    sender: Sender<'a>,
    of: PhantomData<(F, R)>,
}

impl<'a, F: Fn(CpuId) -> R + Send + Sync, R: Send> Sending<'a, F, R> {
    /// Creates a call to at most that many CPUs.
    pub(crate) fn new(
        pools: &Pools,
        source: CpuId,
        site: &'static Location<'static>,
        candidates: u32,
        f: F,
    ) -> Self {
        let sender = Sender::new(pools, Many::<F, R>::HEAD, source, site, candidates, f);
        // SAFETY: we send the call.
        unsafe { sender.head.as_ref().set_chain(ptr::null_mut()) };
        Sending { sender, of: PhantomData }
    }

    /// Creates the share of one CPU. It is sent, or given to [`Sending::take_back`] before another
    /// is made.
    pub(crate) fn share(&mut self, pools: &Pools, cpu: CpuId) -> Message {
        let share = self.sender.share(pools, Many::<F, R>::SHARE, cpu);
        // SAFETY: we have just taken it; and we send the call.
        unsafe {
            let head = self.sender.head.as_ref();
            share.as_ref().set_chain(head.chain());
            head.set_chain(share.as_ptr());
            Message::new(share)
        }
    }

    /// Records that the last share was accepted, and found this sleeper, if any: it is woken, at
    /// the latest by [`Sending::wake_all`].
    #[inline]
    pub(crate) fn pushed(&mut self, cpu: CpuId, asleep: Option<&'a Sleeper>) {
        self.sender.pushed(cpu, asleep);
    }

    /// Takes back the last share, which wasn't accepted: it is no part of the call.
    pub(crate) fn take_back(&mut self, share: Message) {
        let share = share.into_cell();
        self.sender.unused += 1;
        // SAFETY: we send the call, the share is the last in the chain, and no other thread has it.
        unsafe {
            let head = self.sender.head.as_ref();
            debug_assert_eq!(head.chain(), share.as_ptr());
            head.set_chain(share.as_ref().chain());
            Cell::put_back(share);
        }
    }

    /// Wakes the targets that still sleep.
    pub(crate) fn wake_all(&mut self) {
        self.sender.wake_all();
    }

    /// Ends the sending, and returns the handle.
    pub(crate) fn finish(self) -> WaitingForMany<R> {
        ManuallyDrop::new(self).over()
    }

    /// Leaves the call to those that run it, and to the handle. Once.
    fn over(&mut self) -> WaitingForMany<R> {
        self.wake_all();
        let head = self.sender.head;
        // SAFETY: counted once. The handle keeps the call.
        unsafe { Many::<F, R>::count_off(head, self.sender.uncounted()) };
        WaitingForMany { head, of: PhantomData }
    }
}

impl<F: Fn(CpuId) -> R + Send + Sync, R: Send> Drop for Sending<'_, F, R> {
    /// Ends the sending when its thread panics: shares that were sent run, and no thread waits.
    fn drop(&mut self) {
        drop(self.over());
    }
}

/// The handle's side of a call to many: its owner waits, or leaves by dropping it.
pub(crate) struct WaitingForMany<R> {
    head: NonNull<Cell>,
    of: PhantomData<R>,
}

// SAFETY: the handle takes values out that were required to be `Send`; shared, it only reads
// whether the signal was completed.
unsafe impl<R: Send> Send for WaitingForMany<R> {}
// SAFETY: as above.
unsafe impl<R: Send> Sync for WaitingForMany<R> {}

impl<R> WaitingForMany<R> {
    pub(crate) fn cell(&self) -> &Cell {
        // SAFETY: the handle keeps it.
        unsafe { self.head.as_ref() }
    }

    /// Returns how many shares are still to come.
    pub(crate) fn left(&self) -> u32 {
        self.cell().left()
    }

    /// Returns the CPUs that were sent a share, the last one first.
    pub(crate) fn cpus(&self) -> impl Iterator<Item = CpuId> {
        // SAFETY: the shares are sent, and the chain stays as it is for as long as the handle is
        // there.
        unsafe {
            let mut next = self.cell().chain();
            std::iter::from_fn(move || {
                let share = next.as_ref()?;
                next = share.chain();
                Some(share.cpu())
            })
        }
    }

    /// Takes the answers.
    ///
    /// # Safety
    /// The signal is complete.
    pub(crate) unsafe fn into_answers(self) -> Answers<R> {
        let head = self.head;
        mem::forget(self);
        // SAFETY: complete, and the handle is given up here: it comes last.
        unsafe { Answers::take(head) }
    }
}

impl<R> Drop for WaitingForMany<R> {
    fn drop(&mut self) {
        self.cell().diagnosis.forsaken();
        // SAFETY: the one waiter, and it never comes back. If it is the last, all is its own.
        unsafe {
            if self.cell().signal.detach() {
                drop(Answers::<R>::take(self.head));
            }
        }
    }
}

/// The answers of a call to many, in the order in which the shares were sent. Dropping it drops
/// those that weren't taken out.
pub(crate) struct Answers<R> {
    first: *mut Cell,
    of: PhantomData<R>,
}

// SAFETY: it owns the answers, as a `Vec` would.
unsafe impl<R: Send> Send for Answers<R> {}
// SAFETY: shared, it lends them.
unsafe impl<R: Sync> Sync for Answers<R> {}

impl<R> Answers<R> {
    pub(crate) const NONE: Self = Answers { first: ptr::null_mut(), of: PhantomData };

    /// Takes a call apart: drops its function, and keeps the shares.
    ///
    /// # Safety
    /// All shares have ended, and the caller has come last.
    unsafe fn take(head: NonNull<Cell>) -> Self {
        // SAFETY: the whole call is the caller's.
        unsafe {
            let mut last = head.as_ref().chain();
            // Reverses the chain.
            let mut first: *mut Cell = ptr::null_mut();
            while let Some(share) = last.as_ref() {
                let before = share.chain();
                share.set_chain(first);
                first = last;
                last = before;
            }
            let answers = Answers { first, of: PhantomData };
            (head.as_ref().kind().fail)(head);
            answers
        }
    }

    /// Lends the answers one after the other.
    pub(crate) fn iter(&self) -> AnswersIter<'_, R> {
        AnswersIter { next: self.first, of: PhantomData }
    }
}

/// An iterator that lends answers one after the other.
pub(crate) struct AnswersIter<'a, R> {
    next: *mut Cell,
    of: PhantomData<&'a Answers<R>>,
}

impl<'a, R> Iterator for AnswersIter<'a, R> {
    type Item = &'a (CpuId, Answer<R>);

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: the shares hold their answers, and are only read while they are borrowed.
        unsafe {
            let share = self.next.as_ref()?;
            self.next = share.chain();
            Some(share.lend::<(CpuId, Answer<R>), _>(|answer| &*ptr::from_ref(answer)))
        }
    }
}

impl<R> Iterator for Answers<R> {
    type Item = (CpuId, Answer<R>);

    fn next(&mut self) -> Option<Self::Item> {
        let share = NonNull::new(self.first)?;
        // SAFETY: the share is ours and holds its answer.
        unsafe {
            self.first = share.as_ref().chain();
            let answer = share.as_ref().empty::<Self::Item>();
            Cell::put_back(share);
            Some(answer)
        }
    }
}

impl<R> Drop for Answers<R> {
    /// Drops all values, also if one of them panics. It then resumes the first panic.
    fn drop(&mut self) {
        let mut panicked = None;
        while !self.first.is_null() {
            let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(self.next()))) else {
                continue;
            };
            match panicked {
                None => panicked = Some(payload),
                Some(_) => panics::discard(payload),
            }
        }
        match panicked {
            Some(payload) if std::thread::panicking() => panics::discard(payload),
            Some(payload) => resume_unwind(payload),
            None => {}
        }
    }
}

/// An unawaited call to many.
pub(crate) struct DetachedMany<F>(PhantomData<F>);

impl<F: Fn(CpuId) + Send + Sync> DetachedMany<F> {
    const HEAD: &'static Kind = &Kind {
        class: Class::Plain,
        role: Role::Head,
        name: type_name::<F>,
        run: |_| RunOutcome::Returned,
        fail: drop_head::<F>,
    };
    const SHARE: &'static Kind = &Kind {
        class: Class::Plain,
        role: Role::Message,
        name: type_name::<F>,
        run: Self::run,
        fail: Self::fail,
    };

    /// Runs the function for this share's CPU.
    ///
    /// # Safety
    /// The same as for [`Kind::run`].
    unsafe fn run(this: NonNull<Cell>) -> RunOutcome {
        // SAFETY: the message is ours. The head lives until we are counted off, and so do the
        // targets that it lists (`Cell::sleepers`).
        unsafe {
            let (cpu, head) = (this.as_ref().cpu(), this.as_ref().head());
            Cell::put_back(this);
            head.as_ref().sleepers.help();
            let ran = catch_unwind(AssertUnwindSafe(|| head.as_ref().lend::<F, _>(|f| f(cpu))));
            let ended = match ran {
                Ok(()) => RunOutcome::Returned,
                Err(payload) => {
                    drop_quietly(panicked(cpu, Class::Plain, type_name::<F>(), payload));
                    RunOutcome::Panicked
                }
            };
            Self::count_off(head, 1);
            ended
        }
    }

    /// Ends the share without running the function.
    ///
    /// # Safety
    /// The same as for [`Kind::fail`].
    unsafe fn fail(this: NonNull<Cell>) {
        // SAFETY: as in `run`.
        unsafe {
            let (cpu, head) = (this.as_ref().cpu(), this.as_ref().head());
            Cell::put_back(this);
            dropped(cpu, type_name::<F>());
            Self::count_off(head, 1);
        }
    }

    /// Counts shares off; the last one ends the call.
    ///
    /// # Safety
    /// The same as for [`Many::count_off`].
    unsafe fn count_off(head: NonNull<Cell>, n: u32) {
        // SAFETY: the head lives until the last is counted off, which is us if it is all.
        unsafe {
            if head.as_ref().counts_off(n) {
                drop_head::<F>(head);
            }
        }
    }
}

/// The caller's side of an unawaited call to many, while it is sent. All sent shares run.
pub(crate) struct DetachedSending<'a, F: Fn(CpuId) + Send + Sync> {
    sender: Sender<'a>,
    of: PhantomData<F>,
}

impl<'a, F: Fn(CpuId) + Send + Sync> DetachedSending<'a, F> {
    /// Creates a call, as [`Sending::new`] does.
    pub(crate) fn new(
        pools: &Pools,
        source: CpuId,
        site: &'static Location<'static>,
        candidates: u32,
        f: F,
    ) -> Self {
        let sender = Sender::new(pools, DetachedMany::<F>::HEAD, source, site, candidates, f);
        DetachedSending { sender, of: PhantomData }
    }

    /// Creates a share, as [`Sending::share`] does.
    pub(crate) fn share(&mut self, pools: &Pools, cpu: CpuId) -> Message {
        let share = self.sender.share(pools, DetachedMany::<F>::SHARE, cpu);
        // SAFETY: filled: a share of a cast has its function in the head.
        unsafe { Message::new(share) }
    }

    /// Records a push, as [`Sending::pushed`] does; the drop wakes the rest.
    #[inline]
    pub(crate) fn pushed(&mut self, cpu: CpuId, asleep: Option<&'a Sleeper>) {
        self.sender.pushed(cpu, asleep);
    }

    /// Takes a share back, as [`Sending::take_back`] does.
    pub(crate) fn take_back(&mut self, share: Message) {
        self.sender.unused += 1;
        // SAFETY: no other thread has it, and its storage is empty.
        unsafe { Cell::put_back(share.into_cell()) };
    }
}

impl<F: Fn(CpuId) + Send + Sync> Drop for DetachedSending<'_, F> {
    fn drop(&mut self) {
        self.sender.wake_all();
        // SAFETY: counted once.
        unsafe { DetachedMany::<F>::count_off(self.sender.head, self.sender.uncounted()) };
    }
}
