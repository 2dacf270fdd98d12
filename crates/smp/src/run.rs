//! Calls whose caller stays until they are over, and whose functions may borrow from the caller.
//!
//! The function stays on the caller's stack, like the kernel's descriptor of a call that is waited
//! for. Only its address travels. So no path leaves [`Smp::run`] or [`Smp::run_each`] before the
//! last target has finished with it. That holds also for a panic of a subscriber when the thread
//! blocks ([`WaitGuard`]).

use corewise_sync::cell::UnsafeCell;
use corewise_sync::thread;
use corewise_topology::CpuId;

use crate::call::ManyAnswers;
use crate::error::{CallError, CallFailed, RunError};
use crate::smp::{SingleTarget, Smp, Targets};

/// The address of a function on its caller's stack, without its type, so that the message has no
/// borrow that the compiler could see.
struct BorrowedFn<A, R> {
    f: *const (),
    /// The function that takes the address: runs the function there.
    run: unsafe fn(*const (), A) -> R,
}

// SAFETY: the makers below lend only functions that may be run on another thread.
unsafe impl<A, R> Send for BorrowedFn<A, R> {}
// SAFETY: as above; only `run_each` shares one among threads, and its function is `Sync`.
unsafe impl<A, R> Sync for BorrowedFn<A, R> {}

impl<A, R> BorrowedFn<A, R> {
    /// Runs the function.
    ///
    /// # Safety
    /// The function still stands where it was lent, and is used as its maker said.
    unsafe fn run(&self, argument: A) -> R {
        // SAFETY: `f` and `run` were made together, and the caller promises the rest.
        unsafe { (self.run)(self.f, argument) }
    }
}

/// A guard that waits, when it is dropped, until the call is over: the caller's frame outlives the
/// call in any case. It waits only if a panic goes through it, so yielding is good enough.
struct WaitGuard<C: Fn() -> bool>(C);

impl<C: Fn() -> bool> Drop for WaitGuard<C> {
    fn drop(&mut self) {
        while !(self.0)() {
            thread::yield_now();
        }
    }
}

impl Smp {
    /// Runs `f` on one CPU and waits for its value. `f` may borrow from the caller; nothing of it
    /// is copied or boxed. Its writes are visible after.
    ///
    /// The rest is as for [`Smp::call`] and [`Call::wait`](crate::Call::wait): it may block, so it
    /// is reported if a handler calls it (for another CPU than its own).
    ///
    /// ```
    /// # let machine = corewise_topology::Machine::synthetic("core:2 pu:1")?;
    /// # let smp = corewise_smp::Smp::new(&machine)?;
    /// let mut seen = Vec::new();
    /// let count = smp.run(corewise_topology::CpuId::new(1), || {
    ///     seen.push("on CPU 1");
    ///     seen.len()
    /// });
    /// let count = count.expect("CPU 1 is online");
    /// assert_eq!((count, seen), (1, vec!["on CPU 1"]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The kernel's `smp_call_function_single` with `wait`.
    ///
    /// # Errors
    /// An error if the CPU isn't online, left before `f` was run (no thread steps its target any
    /// more), or the handle is shut down: `f` is given back. Or if `f` panicked.
    #[track_caller]
    pub fn run<F, R>(&self, target: impl SingleTarget, f: F) -> Result<R, RunError<F>>
    where
        F: FnOnce() -> R + Send,
        R: Send + 'static,
    {
        /// Runs a function once: takes it out of its slot.
        ///
        /// # Safety
        /// `f` is a `Slot<F>` that lives, is full, and that no other thread touches meanwhile.
        unsafe fn run_once<F: FnOnce() -> R, R>(f: *const (), (): ()) -> R {
            // SAFETY: the caller promises a living `Slot<F>`.
            let slot = unsafe { &*f.cast::<Slot<F>>() };
            // SAFETY: the caller promises to be alone with it.
            let f = unsafe { slot.take() };
            f.expect("a call that runs once takes its function once")()
        }
        let slot = Slot::full(f);
        let lent = BorrowedFn { f: (&raw const slot).cast(), run: run_once::<F, R> };
        // SAFETY: a call runs once, and this frame, which doesn't touch the slot before the call is
        // over, doesn't end before either. The push and the completion order the accesses. `F` is
        // `Send`.
        let sent = self.call(target, move || unsafe { lent.run(()) });
        let back = || {
            // SAFETY: the call was refused or is over.
            unsafe { slot.take() }.expect("the function didn't run")
        };
        let call = match sent {
            Ok(call) => call,
            Err(refused) => return Err(RunError::Refused(refused.with(back()))),
        };
        let over = WaitGuard(|| call.is_complete());
        call.wait_over();
        drop(over);
        call.wait().map_err(|failed| match failed {
            CallFailed::NotOnline { cpu } => {
                RunError::Refused(CallError::NotOnline { cpu, f: back() })
            }
            panicked @ CallFailed::Panicked { .. } => RunError::Failed(panicked),
        })
    }

    /// Runs `f` on each online CPU of several, each with its own number, all at once, and waits for
    /// all. `f` may borrow from the caller, which drops it. The rest is as for [`Smp::call_each`]
    /// and [`ManyCall::wait`](crate::ManyCall::wait).
    ///
    /// ```
    /// # use corewise_topology::{CpuSet, Machine};
    /// # let smp = corewise_smp::Smp::new(&Machine::synthetic("core:4 pu:1")?)?;
    /// let weights = [1, 10, 100, 1000];
    /// let answers = smp.run_each(&CpuSet::full(4), |cpu| weights[cpu.index()]);
    /// assert_eq!(answers.into_values()?.iter().map(|(_, weight)| weight).sum::<i32>(), 1111);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn run_each<F, R>(&self, targets: impl Targets, f: F) -> ManyAnswers<R>
    where
        F: Fn(CpuId) -> R + Sync,
        R: Send + 'static,
    {
        /// Runs a function that stays where it is.
        ///
        /// # Safety
        /// `f` is an `F` that lives.
        unsafe fn run_shared<F: Fn(CpuId) -> R, R>(f: *const (), cpu: CpuId) -> R {
            // SAFETY: the caller promises a living `F`.
            (unsafe { &*f.cast::<F>() })(cpu)
        }
        let lent = BorrowedFn { f: (&raw const f).cast(), run: run_shared::<F, R> };
        // SAFETY: this frame doesn't end before the last target has finished, and only reads `f`
        // meanwhile. `F` is `Sync`.
        let call = self.call_each(targets, move |cpu| unsafe { lent.run(cpu) });
        let over = WaitGuard(|| call.is_complete());
        call.wait_over();
        drop(over);
        call.wait()
    }
}

/// A place for one value that one thread leaves and another takes out.
///
/// The slot has no state of its own. The event beside it (the push of the message, the completion
/// of the call) decides which thread may touch it when; each use argues that.
struct Slot<T> {
    /// P: owned first by the thread that fills it, then, by the event beside it, by the one that
    /// empties it.
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the slot hands a `T` from one thread to another (T: Send) and never gives two threads
// access to it at once: that is the contract of `take`.
unsafe impl<T: Send> Sync for Slot<T> {}

impl<T> Slot<T> {
    fn full(value: T) -> Self {
        Slot { value: UnsafeCell::new(Some(value)) }
    }

    /// Takes the value out; `None` if there is none (any more).
    ///
    /// # Safety
    /// No other thread touches the slot meanwhile: the last touch happens before this, and the next
    /// one happens after.
    unsafe fn take(&self) -> Option<T> {
        // SAFETY: the caller has the slot to itself.
        self.value.with_mut(|slot| unsafe { (*slot).take() })
    }
}
