//! The file as structures: the names of the fields are its keys.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Figure;

/// Version of the file's format. It changes if a key changes its meaning.
pub const VERSION: u32 = 1;

/// The costs of a machine. Times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// [`VERSION`].
    pub version: u32,
    /// The machine that was measured. `None` if the figures were made up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Other load during the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<Noise>,
    /// Operations of one CPU on its own lines.
    pub line: Line,
    /// Line transfers between two CPUs, by their distance.
    #[serde(default)]
    pub distance: BTreeMap<Distance, Transfer>,
    /// Lines that several CPUs write at once, from few CPUs to many.
    #[serde(default)]
    pub contended: Vec<Contended>,
    /// Calls into the system.
    pub call: Calls,
    /// A switch between two threads of one CPU.
    pub switch: Switch,
    /// The scheduler's time slices.
    pub scheduler: Scheduler,
    /// Wake-ups, by distance, by the load of the woken thread's CPU, by the length of the sleep.
    #[serde(default)]
    pub wake: Vec<Wake>,
    /// The C library's allocator, for blocks of 64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocator: Option<Allocator>,
    /// Threads.
    pub thread: Thread,
}

/// The distance of two CPUs: the narrowest affinity scope that holds both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// One CPU.
    Same,
    /// Hardware threads of one core.
    Smt,
    /// Cores that share a last-level cache.
    Cache,
    /// Cores of one NUMA node with different last-level caches.
    Numa,
    /// Cores of different NUMA nodes.
    System,
}

/// The machine, and how it was measured. An unknown fact is an empty text or 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// The processor's name in `/proc/cpuinfo`.
    pub cpu_model: String,
    /// CPUs that were measured, as a list such as `0-3,8`.
    pub cpus: String,
    /// Number of these CPUs.
    pub cpu_count: u32,
    /// Release of Linux.
    pub kernel: String,
    /// Time of the measurement, in UTC.
    pub date: String,
    /// Commit of the program that measured.
    pub commit: String,
    /// `full` or `quick`.
    pub effort: String,
}

/// Other load while the machine was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Noise {
    /// True if nothing was seen that makes the figures doubtful.
    pub quiet: bool,
    /// CPU time of other processes, in percent of the time of all CPUs.
    pub others_percent: f64,
    /// CPU time that the hypervisor took, in percent of the time of all CPUs.
    pub steal_percent: f64,
    /// Reasons to doubt the figures. Empty if `quiet`.
    pub said: String,
}

/// Operations of one CPU on a line that no other CPU touches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// An atomic read-modify-write operation.
    pub locked_ns: Figure,
    /// A store and a full fence behind it.
    pub fence_ns: Figure,
}

/// Transfers of lines from one CPU to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// A load of a line that the other CPU wrote. The previous load returned its address: a linked
    /// list.
    pub list_ns: Figure,
    /// A load of such a line, if all addresses are known at once: an array. Loads overlap.
    pub array_ns: Figure,
    /// An atomic addition to such a line of an array. It shows whether a core fetches later lines
    /// before a locked operation is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array_locked_ns: Option<Figure>,
    /// A load as of [`Transfer::list_ns`], of a line that a third CPU has read already. Needs three
    /// CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_read_ns: Option<Figure>,
}

/// One line that several CPUs write at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contended {
    /// Number of CPUs.
    pub cpus: u32,
    /// Mean time of an atomic addition on each of them.
    pub each_ns: Figure,
}

/// Calls into the system that do nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calls {
    /// `getppid`: into the kernel and back.
    pub bare_ns: Figure,
    /// `sched_yield` on a CPU that no other thread wants.
    pub yield_ns: Figure,
    /// A read of the monotonic clock (`Instant::now`), mostly without a call.
    pub clock_ns: Figure,
    /// The first write to a page of anonymous memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_ns: Option<Figure>,
    /// `membarrier`, private expedited, while no other thread of the process runs. `None` if the
    /// system doesn't have the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membarrier_alone_ns: Option<Figure>,
    /// `membarrier` while another thread of the process runs on another CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membarrier_one_ns: Option<Figure>,
    /// `membarrier` while threads of the process run on all CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membarrier_all_ns: Option<Figure>,
}

/// A switch between two threads of one CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// One switch by `sched_yield`, with the call. Both threads are runnable.
    pub yield_ns: Figure,
}

/// The scheduler's time slices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduler {
    /// Time for which one of two computing threads of a CPU keeps the CPU.
    pub slice_ns: Figure,
}

/// The load of the CPU that a woken thread is pinned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The CPU is idle. With [`Distance::Same`], the waker yields at once.
    Idle,
    /// A thread computes there. With [`Distance::Same`], the waker computes on.
    Busy,
}

/// A wake-up of a thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wake {
    /// Distance of the waker's CPU and the woken thread's CPU.
    pub distance: Distance,
    /// Load of the woken thread's CPU.
    pub target: Target,
    /// Length of the thread's sleep, in microseconds.
    pub slept_us: f64,
    /// Time that the call takes the waker.
    pub call_ns: Figure,
    /// Time from the call until the woken thread runs.
    pub latency_ns: Figure,
}

/// The C library's allocator, for blocks of 64 bytes. Only the allocator touches the memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocator {
    /// `malloc`, of 64 KiB in a row.
    pub malloc_ns: Figure,
    /// `free` of these blocks by the same thread.
    pub free_ns: Figure,
    /// `free` of these blocks by a thread on another CPU. `None` on a machine with one CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_elsewhere_ns: Option<Figure>,
}

/// Threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thread {
    /// Time from the start of an empty thread until it has been joined.
    pub spawn_join_ns: Figure,
    /// `std::hint::spin_loop`.
    pub spin_hint_ns: Figure,
}
