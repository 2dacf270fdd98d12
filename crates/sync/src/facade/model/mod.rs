//! Waiting and ordering of threads in a model: by the checker's locks and fences, which it can
//! follow.

pub(crate) mod system;
#[path = "../untold.rs"]
mod untold;

use std::ops::Deref;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::facade::atomic::{AtomicU32, Ordering};
use crate::facade::backend::deadline;
use crate::facade::lock::{Condvar, Mutex};
use crate::facade::thread;

pub use untold::{computed, reads, writes};

/// Does nothing in a model. See [`hint::prefetch`](crate::hint::prefetch).
pub fn prefetch<T>(_shared: *const T) {}

/// Does nothing in a model, like [`prefetch`].
pub fn prefetch_to_write<T>(_shared: *const T) {}

/// The mutex, in a model.
pub type SpinLock<T> = crate::facade::lock::Mutex<T>;
/// The mutex's guard, in a model.
pub type SpinLockGuard<'a, T> = crate::facade::lock::MutexGuard<'a, T>;

/// A word on which a thread can sleep, over a lock and a condition variable. The comparison and
/// falling asleep are one step for the waker, and nothing more is promised.
#[derive(Debug)]
pub(crate) struct FutexWord {
    /// A: as its owner says. It is the checker's type, so that it sees the owner's orderings.
    pub(crate) word: AtomicU32,
    /// L: is the lock; guards the step from the comparison to the sleep.
    gate: Mutex<()>,
    /// L: waited on with `gate`.
    woken: Condvar,
}

impl FutexWord {
    pub(crate) fn new(value: u32) -> Self {
        let word = AtomicU32::new(value);
        FutexWord { word, gate: Mutex::new(()), woken: Condvar::new() }
    }

    pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) {
        let gate = self.gate.lock();
        // The comparison that the system would make.
        if self.word.load(Ordering::Relaxed) != expected {
            return;
        }
        let Some(end) = timeout.and_then(deadline::of) else {
            drop(self.woken.wait(gate));
            return;
        };
        drop(gate);
        thread::yield_now();
        if deadline::is_over(end) {
            deadline::passes(end);
        }
    }

    pub(crate) fn wake(&self) {
        let gate = self.gate.lock();
        drop(gate);
        self.woken.notify_all();
    }
}

/// A parker's token as a flag under a lock.
#[derive(Debug)]
pub(crate) struct ParkerToken {
    /// L: is the lock; guards the token.
    token: Mutex<bool>,
    /// L: waited on with `token`.
    arrived: Condvar,
}

impl ParkerToken {
    pub(crate) fn new() -> Self {
        ParkerToken { token: Mutex::new(false), arrived: Condvar::new() }
    }

    pub(crate) fn park(&self, timeout: Option<Duration>) -> bool {
        match timeout.and_then(deadline::of) {
            Some(end) => self.poll_until(end),
            None => self.wait(),
        }
    }

    pub(crate) fn try_park(&self) -> bool {
        std::mem::take(&mut *self.token.lock())
    }

    fn wait(&self) -> bool {
        let mut token = self.token.lock();
        while !*token {
            token = self.arrived.wait(token);
        }
        *token = false;
        true
    }

    /// Polls the token until the time is over, and lets others run between the checks.
    fn poll_until(&self, end: Instant) -> bool {
        loop {
            let over = deadline::is_over(end);
            if std::mem::take(&mut *self.token.lock()) {
                return true;
            }
            if over {
                deadline::passes(end);
                return false;
            }
            thread::yield_now();
        }
    }

    pub(crate) fn unpark(&self) {
        *self.token.lock() = true;
        self.arrived.notify_one();
    }

    /// Unparks: in a model no thread is preempted for good between the two steps.
    pub(crate) fn unpark_anyway(&self) {
        self.unpark();
    }
}

/// A shared value that is replaced as a whole, under a lock: a checker can't see into hazard
/// pointers.
pub struct Swap<T> {
    /// L: is the lock; guards the pointer.
    value: Mutex<Arc<T>>,
}

impl<T> Swap<T> {
    /// Creates a cell with this value.
    pub fn new(value: Arc<T>) -> Self {
        Swap { value: Mutex::new(value) }
    }

    /// Returns the present value.
    pub fn load(&self) -> impl Deref<Target = Arc<T>> {
        Holder(Arc::clone(&self.value.lock()))
    }

    /// Replaces the value. The old one is dropped outside the lock.
    pub fn store(&self, value: Arc<T>) {
        let old = std::mem::replace(&mut *self.value.lock(), value);
        drop(old);
    }
}

/// A guard that derefs to the pointer.
struct Holder<T>(Arc<T>);

impl<T> Deref for Holder<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}

/// The asymmetric fences as full fences: a model checker knows no other.
pub(crate) mod pair {
    use crate::facade::atomic::{Ordering, fence};
    use crate::facade::fence::FenceKind;

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn prepare() -> FenceKind {
        FenceKind::FullFences
    }

    pub(crate) fn prepare_soon() {}

    pub(crate) fn kind() -> Option<FenceKind> {
        Some(FenceKind::FullFences)
    }

    pub(crate) fn refuse() {}

    pub(crate) fn hold(_held: bool) {}
}

const CHILD: &str = "COREWISE_MODEL_THAT_FAILS";

/// Runs `model`, which has to fail, in a process of its own, and returns what that process printed.
/// A deadlock that is found can end in an abort, since the model's objects are dropped outside of
/// it.
///
/// Call it as the whole body of a test; `test` is that function's name.
///
/// # Panics
/// If the model passes: then the fence, or whatever was taken out, isn't needed, or the model
/// doesn't cover where it would be.
pub fn must_fail(test: &str, model: impl FnOnce()) -> String {
    if std::env::var_os(CHILD).is_some() {
        model();
        return String::new();
    }
    let own = std::env::current_exe().expect("a test knows its own binary");
    let output = Command::new(&own)
        .args([full_name(&own, test).as_str(), "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("a test can run its own binary");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains("running 1 test"), "{test} ran no test:\n{said}");
    assert!(!output.status.success(), "the model {test} had to fail, and passed:\n{said}");
    said
}

/// Returns the name of a test as the runner has it: with its modules.
fn full_name(own: &Path, function: &str) -> String {
    let listed = Command::new(own).arg("--list").output().expect("a test can list its binary");
    let listed = String::from_utf8_lossy(&listed.stdout);
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let found: Vec<&str> =
        names.filter(|name| name.rsplit("::").next() == Some(function)).collect();
    match found[..] {
        [name] => name.to_owned(),
        _ => panic!("one test is to be called {function}; there are {found:?}"),
    }
}
