//! Numbers of the file driver, each with its reason.

use std::time::Duration;

/// Workers of a lane, at most: a disk that has so many requests at once is as fast as it gets (an ext4 file on a virtio disk
/// makes 90 to 99 k reads a second from 32 in flight on), and each more is a thread that the scheduler has to switch to.
pub(super) const WORKERS: u16 = 32;
/// The same of changes that go to the host's page cache: the kernel does one of a file at a time, so a second worker
/// answers the one before meanwhile, and a third would wait.
pub(super) const CACHED_CHANGES: u16 = 2;
/// A change of the cache that takes so long has waited for a disk: it is more than what two busy CPUs take from a thread, and
/// the least of the kernel's pauses for too much dirty memory.
pub(super) const LONG: Duration = Duration::from_millis(10);
/// For so long after such a one submitters leave changes to workers, so that a client's reads don't wait with its writes.
pub(super) const CALM_AFTER: Duration = Duration::from_secs(1);
/// Workers of all lanes of a server, about. Where they are so many, a lane that has one gets no other.
pub(super) const ALL_WORKERS: usize = 64;
/// What is read or written on the spot, in bytes, at most: copying more takes some time, and others wait for the same
/// hardware queue.
pub(super) const AT_ONCE: u64 = 64 << 10;
