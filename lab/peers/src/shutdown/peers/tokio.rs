//! tokio: a task for each device in a `JoinSet`, and a `watch` channel for each that reports its
//! end.
//!
//! A callback may block, so it is called by `spawn_blocking`; a device without one is done on the
//! spot. The channels and the runtime are made before.

use std::io;
use std::sync::Arc;

use corewise_bench::BenchError;
use corewise_bench::shutdown::pass::Pass;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};

use crate::shutdown::peers::previous;

/// Makes the runtime and the channels.
///
/// # Errors
/// A thread couldn't be started.
pub(crate) fn prepare(
    pass: &Arc<Pass>,
) -> Result<impl FnOnce() -> Result<Runtime, BenchError> + use<>, BenchError> {
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(BenchError::Thread)?;
    let pass = Arc::clone(pass);
    let mut done: Vec<Option<watch::Sender<bool>>> =
        pass.web().devices().iter().map(|_| Some(watch::Sender::new(false))).collect();
    let previous = previous(&pass);
    Ok(move || {
        runtime
            .block_on(async {
                let mut tasks = JoinSet::new();
                // A device's task is spawned before those that wait for it. Its sender moves into
                // the task only once all its waiters, which come later, have their receivers.
                let mut waits: Vec<Vec<watch::Receiver<bool>>> = Vec::with_capacity(done.len());
                for (device, before) in (0..).zip(&previous) {
                    let on = pass.web().dependents(device).iter().chain(before);
                    waits.push(
                        on.filter_map(|on| Some(done[*on as usize].as_ref()?.subscribe()))
                            .collect(),
                    );
                }
                for device in pass.web().backwards() {
                    let waits = std::mem::take(&mut waits[device as usize]);
                    let (pass, done) = (Arc::clone(&pass), done[device as usize].take());
                    tasks.spawn(async move {
                        for mut other in waits {
                            // A task whose sender is gone has ended.
                            drop(other.wait_for(|done| *done).await);
                        }
                        if pass.has_callback(device) {
                            // The pass finds a panic.
                            drop(spawn_blocking(move || pass.call(device)).await);
                        }
                        done.map(|done| done.send_replace(true))
                    });
                }
                while let Some(ended) = tasks.join_next().await {
                    ended.map_err(|error| BenchError::Thread(io::Error::other(error)))?;
                }
                Ok(())
            })
            .map(|()| runtime)
    })
}
