//! Handles can go to the same places as Rust's own: to other threads, into errors, through
//! `catch_unwind`.

use std::fmt::Debug;
use std::panic::{RefUnwindSafe, UnwindSafe};

use corewise_workqueue::{
    AbortOnDrop, BuildError, Dump, JoinError, JoinHandle, PanicPayload, QueueBuilder, Scope,
    ScopedJoinHandle, StallReport, Work, WorkerPools, WorkerThread, Workqueue,
};

fn goes_to_other_threads<T: Send + Sync + Unpin + Debug>() {}
fn goes_through_panics<T: UnwindSafe + RefUnwindSafe>() {}

#[test]
fn handles_go_to_other_threads_and_through_panics() {
    goes_to_other_threads::<WorkerPools>();
    goes_to_other_threads::<Workqueue>();
    goes_to_other_threads::<QueueBuilder>();
    goes_to_other_threads::<Work>();
    // A value that isn't `Sync` is given to one thread only.
    goes_to_other_threads::<JoinHandle<std::cell::Cell<u8>>>();
    goes_to_other_threads::<AbortOnDrop<std::cell::Cell<u8>>>();
    goes_to_other_threads::<Scope<'_, '_>>();
    goes_to_other_threads::<ScopedJoinHandle<'_, std::cell::Cell<u8>>>();
    goes_to_other_threads::<JoinError>();
    goes_to_other_threads::<PanicPayload>();
    goes_to_other_threads::<BuildError>();
    goes_to_other_threads::<Dump>();
    goes_to_other_threads::<StallReport>();
    fn is_sent<T: Send + Debug>() {}
    is_sent::<WorkerThread>();

    // State that a panic interrupts in there is whole: a worker catches the panics of items, and no
    // lock is held where users' code runs.
    goes_through_panics::<WorkerPools>();
    goes_through_panics::<Workqueue>();
    goes_through_panics::<Work>();
    goes_through_panics::<JoinHandle<std::cell::Cell<u8>>>();
    goes_through_panics::<AbortOnDrop<std::cell::Cell<u8>>>();
}
