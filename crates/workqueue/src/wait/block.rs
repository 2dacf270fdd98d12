//! Saying that an item is about to block.

use corewise_sync::context;

/// Runs `f`, which is expected to block, on this thread, and lets other work run meanwhile: on a
/// worker the pool starts (or wakes) a replacement before, and takes the place back after. The waits
/// of Corewise (`join`, `flush`, `Completion::wait`, `scope`) do it by themselves; this is for
/// everything else: files, sockets, a `Mutex` that is held for long, a call into another library.
///
/// Works everywhere: off a worker it only runs `f`. Regions nest, and only the outermost counts. In
/// an atomic section it is reported, as [`might_block`](context::might_block) does, and runs `f` all
/// the same. It is [`context::blocking`] under the name that tokio's users look for; unlike tokio's
/// it moves nothing to another thread, so thread-locals and the placement stay.
///
/// ```
/// # use corewise_topology::Machine;
/// # use corewise_workqueue::{WorkerPools, Workqueue, block_in_place};
/// # let pools = WorkerPools::new(&Machine::live()?);
/// # let queue = Workqueue::builder("doc").build(&pools)?;
/// let text = queue.spawn(|| block_in_place(|| std::fs::read_to_string("/proc/version")));
/// assert!(text.join()??.starts_with("Linux"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn block_in_place<R>(f: impl FnOnce() -> R) -> R {
    context::blocking("block_in_place", f)
}
