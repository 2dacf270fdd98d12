//! Threads, with the interface of the standard library.

use std::cell::{Cell, RefCell};
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::calls;
use crate::task::Tid;

/// A thread's identity. All threads outside of a simulation share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThreadId(Option<Tid>);

/// A handle to a thread.
#[derive(Debug, Clone)]
pub struct Thread {
    tid: Option<Tid>,
    name: Option<Arc<str>>,
}

impl Thread {
    /// Returns the thread's identity.
    pub fn id(&self) -> ThreadId {
        ThreadId(self.tid)
    }

    /// Returns the thread's name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// Returns a handle to this thread.
pub fn current() -> Thread {
    let tid = calls::current();
    Thread { tid, name: tid.and_then(calls::name_of) }
}

/// Lets other threads that wait for this CPU run.
pub fn yield_now() {
    calls::yield_now();
}

/// Sleeps for at least `time`.
pub fn sleep(time: Duration) {
    calls::sleep(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

type Slot<T> = Arc<Mutex<Option<std::thread::Result<T>>>>;

/// A handle that waits for a thread's end.
#[derive(Debug)]
pub struct JoinHandle<T> {
    thread: Thread,
    slot: Slot<T>,
}

impl<T> JoinHandle<T> {
    /// Waits until the thread has ended.
    ///
    /// # Errors
    /// The thread panicked; the error is the panic's payload.
    pub fn join(self) -> std::thread::Result<T> {
        if let Some(tid) = self.thread.tid {
            calls::join(tid);
        }
        let result = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.unwrap_or_else(|| Err(Box::new("the thread left no result")))
    }

    /// Returns true if the thread's code has ended.
    pub fn is_finished(&self) -> bool {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Returns the thread.
    pub fn thread(&self) -> &Thread {
        &self.thread
    }
}

/// Settings of a new thread.
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<Arc<str>>,
}

impl Builder {
    /// Creates settings without a name.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Sets the thread's name.
    #[must_use]
    pub fn name(mut self, name: String) -> Builder {
        self.name = Some(name.into());
        self
    }

    /// Ignores the size: all simulated threads have the same stack.
    #[must_use]
    pub fn stack_size(self, _bytes: usize) -> Builder {
        self
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// Outside of a simulation.
    pub fn spawn<T: 'static>(self, f: impl FnOnce() -> T + 'static) -> io::Result<JoinHandle<T>> {
        let slot = Slot::default();
        let result = Arc::clone(&slot);
        let run = move || {
            let outcome = catch_unwind(AssertUnwindSafe(f));
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        };
        let tid = calls::spawn(self.name.clone(), run).ok_or_else(outside)?;
        Ok(JoinHandle { thread: Thread { tid: Some(tid), name: self.name }, slot })
    }
}

/// Starts a thread.
///
/// # Panics
/// Outside of a simulation.
pub fn spawn<T: 'static>(f: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    Builder::new().spawn(f).expect("called from a simulated thread")
}

/// A scope of threads that may borrow values which outlive it. All end before the scope does.
pub struct Scope<'scope, 'env: 'scope> {
    threads: RefCell<Vec<Thread>>,
    /// Number of threads whose panic no join has taken.
    panicked: Cell<usize>,
    /// Both lifetimes are invariant, as the standard library's.
    lifetimes: PhantomData<(&'scope mut &'scope (), &'env mut &'env ())>,
}

impl std::fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

/// Runs `f`, and waits until all threads of its scope have ended.
///
/// # Panics
/// `f` panicked, or a thread of the scope that wasn't joined did.
pub fn scope<'env, T>(f: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T) -> T {
    let scope =
        Scope { threads: RefCell::default(), panicked: Cell::new(0), lifetimes: PhantomData };
    let outcome = catch_unwind(AssertUnwindSafe(|| f(&scope)));
    loop {
        // A thread of the scope may start another one.
        let Some(thread) = scope.threads.borrow_mut().pop() else { break };
        if let Some(tid) = thread.tid {
            calls::join(tid);
        }
    }
    match outcome {
        Err(panic) => std::panic::resume_unwind(panic),
        Ok(_) if scope.panicked.get() > 0 => panic!("a scoped thread panicked"),
        Ok(value) => value,
    }
}

/// A handle that waits for the end of a scope's thread.
#[derive(Debug)]
pub struct ScopedJoinHandle<'scope, T> {
    handle: JoinHandle<T>,
    panicked: &'scope Cell<usize>,
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits until the thread has ended.
    ///
    /// # Errors
    /// The thread panicked; the error is the panic's payload.
    pub fn join(self) -> std::thread::Result<T> {
        let result = self.handle.join();
        if result.is_err() {
            self.panicked.set(self.panicked.get() - 1);
        }
        result
    }
}

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread of the scope.
    ///
    /// # Panics
    /// Outside of a simulation.
    pub fn spawn<T: 'scope>(
        &'scope self,
        f: impl FnOnce() -> T + 'scope,
    ) -> ScopedJoinHandle<'scope, T> {
        Builder::new().spawn_scoped(self, f).expect("called from a simulated thread")
    }
}

impl Builder {
    /// Starts a thread of a scope.
    ///
    /// # Errors
    /// Outside of a simulation.
    pub fn spawn_scoped<'scope, T: 'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        f: impl FnOnce() -> T + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        let slot = Slot::default();
        let (result, panicked) = (Arc::clone(&slot), &scope.panicked);
        let run: Box<dyn FnOnce() + 'scope> = Box::new(move || {
            let outcome = catch_unwind(AssertUnwindSafe(f));
            panicked.set(panicked.get() + usize::from(outcome.is_err()));
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        });
        // SAFETY: `scope` waits for the thread's end before it returns, also when it panics, so all
        // borrows of the closure outlive it. (A simulation that is given up leaks the stacks of
        // both, and runs neither again.)
        let run: Box<dyn FnOnce()> = unsafe { std::mem::transmute(run) };
        let tid = calls::spawn(self.name.clone(), run).ok_or_else(outside)?;
        let thread = Thread { tid: Some(tid), name: self.name };
        scope.threads.borrow_mut().push(thread.clone());
        Ok(ScopedJoinHandle { handle: JoinHandle { thread, slot }, panicked: &scope.panicked })
    }
}

fn outside() -> io::Error {
    io::Error::other("a simulated thread is started by simulated threads only")
}
