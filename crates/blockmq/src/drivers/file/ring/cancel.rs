//! Calling a request off: who finds that it is late asks the ring's thread, which alone may touch the ring.
//!
//! The tag of a late request is held until the driver has answered ([`Driver::timeout`](crate::Driver::timeout)), so
//! whoever asks waits for the answer: what the kernel is told to stop is the request that was late, and never the
//! tag's next one. What the kernel has stopped completes with `ECANCELED`, before or after that.

use std::sync::Arc;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::inbox::{HasLink, Link};

use super::Port;
use crate::error::errno;
use crate::timeout::{TimedOut, TimerReturn};

/// One late request, on its way to the ring's thread. However it ends, whoever asked is told.
pub(super) struct Ask {
    link: Link,
    pub(super) tag: u32,
    answer: Arc<Answer>,
}

struct Answer {
    /// A: the error that the kernel gave, or 0; ENOENT where it wasn't asked. Written before `told`, which orders
    /// it. Relaxed.
    errno: AtomicU32,
    told: Completion,
}

// SAFETY: always the same field of the same value.
unsafe impl HasLink for Ask {
    fn link(&self) -> &Link {
        &self.link
    }
}

impl Ask {
    /// What the kernel has answered; whoever asked learns it when this is dropped.
    pub(super) fn answered(&self, result: i32) {
        self.answer.errno.store(result.min(0).unsigned_abs(), Ordering::Relaxed);
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        self.answer.told.complete();
    }
}

impl Port {
    /// Has the kernel stop a late request, if it can. Blocks until it has said so.
    pub(super) fn call_off(&self, late: &TimedOut<'_>) -> TimerReturn {
        let errno = AtomicU32::new(errno::ENOENT.unsigned_abs());
        let answer = Arc::new(Answer { errno, told: Completion::new() });
        let theirs = Arc::clone(&answer);
        self.asks.push(Box::new(Ask { link: Link::new(), tag: late.tag(), answer: theirs }));
        if self.bell.must_ring() {
            self.ring();
        }
        answer.told.wait();
        match answer.errno.load(Ordering::Relaxed).cast_signed() {
            0 => {
                tracing::warn!("{late}; it is called off");
                TimerReturn::Done
            }
            errno::EALREADY => {
                tracing::warn!("{late}; the kernel was told to stop it, and is at it");
                TimerReturn::ResetTimer
            }
            _ => {
                tracing::warn!("{late}; the kernel can't take it back");
                TimerReturn::ResetTimer
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use corewise_topology::Machine;
    use corewise_workqueue::{WorkerPools, Workqueue};

    use super::*;
    use crate::drivers::file::store::Store;
    use crate::drivers::{FileDriver, FileOptions, PathInUse};
    use crate::{BlockDeviceExt, Geometry, IoErrorKind, Queue};

    #[test]
    fn a_late_request_that_the_kernel_can_stop_is_called_off_and_its_tag_serves_the_next() {
        let machine = Machine::live().unwrap();
        let pools = WorkerPools::new(&machine);
        let wq = Workqueue::builder("file-test").build(&pools).unwrap();
        // A read of a pipe waits until somebody writes: as of a disk that doesn't answer.
        let (pipe, mut other_end) = std::io::pipe().unwrap();
        let store = Store::new(File::from(OwnedFd::from(pipe)), None);
        let options = FileOptions::new("a test");
        let driver = FileDriver::new(store, Geometry::new(1 << 20), false, &options, &wq).unwrap();
        if driver.io_path_in_use() == PathInUse::Threads {
            println!("skipped: no io_uring here");
            return;
        }
        let queue = Queue::builder(&machine, Arc::new(driver))
            .depth(1)
            .timeout(Some(Duration::from_millis(20)))
            .build(&wq);
        for _ in 0..2 {
            let error = queue.read_at(0, 512).unwrap_err();
            assert_eq!(error.kind(), IoErrorKind::TimedOut, "{error}");
        }
        other_end.write_all(&[7; 512]).unwrap();
        assert_eq!(queue.read_at(0, 512).unwrap(), vec![7; 512], "nothing was taken in vain");
        // A request is told of before it is counted out.
        queue.drain();
        assert_eq!((queue.inside(), queue.stats()[0].timeouts), (0, 2));
        drop(queue);
        pools.shutdown();
    }
}
