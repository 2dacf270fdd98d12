//! smol's `async-executor`: `Executor`, which smol itself uses, and the leaner `StaticExecutor`.
//!
//! In their best mode threads run the executor for ever, as smol's do, and tasks are detached.
//! Closures that block go to smol's `blocking`.

use std::future::Future;
use std::thread;

use async_executor::{Executor, StaticExecutor};
use corewise_bench::workqueue::runtime::Spawn;
use corewise_bench::{BenchError, Job};
use futures_lite::future;

use crate::workqueue::peers::Pin;

/// One of the two executors. It lives as long as the process.
pub(crate) trait Kind: Copy + Send + Sync + 'static {
    fn new() -> Self;
    fn detached<F: Future<Output = ()> + Send + 'static>(self, task: F);
    fn run_for_ever(self);
}

macro_rules! kind {
    ($executor:ty) => {
        impl Kind for &'static $executor {
            fn new() -> Self {
                Box::leak(Box::new(<$executor>::new()))
            }

            fn detached<F: Future<Output = ()> + Send + 'static>(self, task: F) {
                self.spawn(task).detach();
            }

            fn run_for_ever(self) {
                future::block_on(self.run(future::pending()))
            }
        }
    };
}
kind!(Executor<'static>);
kind!(StaticExecutor);

/// An executor and the threads that run it.
#[derive(Clone)]
pub(crate) struct Smol<K>(K);

impl<K: Kind> Smol<K> {
    pub(crate) fn new(job: &Job) -> Result<Self, BenchError> {
        let (executor, pin) = (K::new(), Pin::of(job));
        for _ in 0..job.workers {
            let builder = thread::Builder::new().name("smol".to_owned());
            let body = move || {
                pin.pin();
                executor.run_for_ever();
            };
            builder.spawn(body).map_err(BenchError::Thread)?;
        }
        Ok(Smol(executor))
    }
}

impl<K: Kind> Spawn for Smol<K> {
    const HAS_HINT: bool = true;

    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F) {
        self.0.detached(async move { closure() });
    }

    fn spawn_blocking<F: FnOnce() + Send + 'static>(&self, closure: F) {
        blocking::unblock(closure).detach();
    }
}
