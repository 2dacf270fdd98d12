//! The file as structures: the names of the fields are its keys.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Figure;

/// Of the file's form: it changes where a key changes its meaning or goes.
pub const VERSION: u32 = 1;

/// What a machine costs. Times are nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// [`VERSION`].
    pub version: u32,
    /// Where the figures come from; nothing where they were made up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// What else the machine did meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise: Option<Noise>,
    /// What one CPU does with its own lines.
    pub line: Line,
    /// What becomes of lines between two CPUs, by how far apart they are.
    #[serde(default)]
    pub distance: BTreeMap<Distance, Transfer>,
    /// One line that several CPUs write at once, from few CPUs to many.
    #[serde(default)]
    pub contended: Vec<Contended>,
    /// Calls into the system.
    pub call: Calls,
    /// From one thread to another one of the same CPU.
    pub switch: Switch,
    /// How the system shares out a CPU.
    pub scheduler: Scheduler,
    /// Wake-ups, by distance, by what the woken thread's CPU does, by how long it slept.
    #[serde(default)]
    pub wake: Vec<Wake>,
    /// The C library's allocator, by size, from small to large.
    #[serde(default)]
    pub allocator: Vec<Allocator>,
    /// Threads.
    pub thread: Thread,
    /// Line transfers by pair of CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<Matrix>,
}

/// How far apart two CPUs are: the narrowest affinity scope that holds both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// One CPU.
    Same,
    /// Hardware threads of one core.
    Smt,
    /// Cores that share a last-level cache.
    Cache,
    /// Other last-level caches of one NUMA node.
    Numa,
    /// Other NUMA nodes.
    System,
}

impl Distance {
    /// All, from near to far.
    pub const ALL: [Distance; 5] =
        [Distance::Same, Distance::Smt, Distance::Cache, Distance::Numa, Distance::System];

    /// Its name in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Distance::Same => "same",
            Distance::Smt => "smt",
            Distance::Cache => "cache",
            Distance::Numa => "numa",
            Distance::System => "system",
        }
    }

    /// What it is, in words.
    pub const fn words(self) -> &'static str {
        match self {
            Distance::Same => "the same CPU",
            Distance::Smt => "an SMT sibling",
            Distance::Cache => "the same last-level cache",
            Distance::Numa => "another last-level cache",
            Distance::System => "another NUMA node",
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The machine, and how it was measured. A fact not known is an empty text or 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// As `/proc/cpuinfo` names it.
    pub cpu_model: String,
    /// Such as `x86_64`.
    pub architecture: String,
    /// CPUs that were measured, as a list such as `0-3,8`.
    pub cpus: String,
    /// How many these are.
    pub cpu_count: u32,
    /// Cores that they belong to.
    pub cores: u32,
    /// Most hardware threads of one core.
    pub threads_per_core: u32,
    /// Last-level caches.
    pub last_level_caches: u32,
    /// Bytes of the first one.
    pub last_level_cache_bytes: u64,
    /// NUMA nodes.
    pub nodes: u32,
    /// Packages (sockets).
    pub packages: u32,
    /// Release and version of Linux.
    pub kernel: String,
    /// The hypervisor that it runs under; empty on bare metal.
    pub hypervisor: String,
    /// The kernel's clock source.
    pub clock_source: String,
    /// The driver that puts idle CPUs to sleep; `none` in most guests.
    pub idle_driver: String,
    /// The frequency governor of the first CPU.
    pub governor: String,
    /// The C library, whose allocator is measured.
    pub libc: String,
    /// When, in UTC.
    pub date: String,
    /// Of the program that measured.
    pub commit: String,
    /// `full` or `quick`.
    pub effort: String,
    /// How long it took.
    pub took_seconds: f64,
}

/// What else the machine did while it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Noise {
    /// Whether it left the machine alone, for all that can be seen.
    pub quiet: bool,
    /// CPU time of other processes, of that of all CPUs.
    pub others_percent: f64,
    /// CPU time that the hypervisor gave to others, of that of all CPUs.
    pub steal_percent: f64,
    /// How often a measuring thread lost its CPU, a second, where it had it for itself.
    pub involuntary_switches_per_second: f64,
    /// What makes the figures doubtful, in words; empty where it was quiet.
    pub said: String,
}

/// What one CPU does with lines that nobody else touches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// A load that hits the first-level cache, from address to value.
    pub load_hit_ns: Figure,
    /// A load of a line that all CPUs read and nobody writes.
    pub load_shared_hit_ns: Figure,
    /// A load from memory, of an address that the load before gave.
    pub load_memory_ns: Figure,
    /// A store to a line that is here.
    pub store_ns: Figure,
    /// An atomic read-modify-write operation on a line that is here.
    pub locked_ns: Figure,
    /// A full fence behind a store to a line that is here.
    pub fence_ns: Figure,
}

/// What becomes of a line between two CPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// How many pairs of CPUs were measured.
    #[serde(default)]
    pub pairs: u32,
    /// One way of a modified line that two CPUs store to in turn: half of a round trip.
    pub one_way_ns: Figure,
    /// The same where each changes it by an atomic read-modify-write operation.
    pub locked_ns: Figure,
    /// A load of a line that the other CPU wrote, whose address the line before gave: a linked
    /// list.
    pub list_ns: Figure,
    /// The same where all addresses are known at once: an array. Loads overlap.
    pub array_ns: Figure,
    /// As [`Transfer::array_ns`], an atomic addition to each: whether a core asks for lines that it
    /// needs after a locked operation before that is done.
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
    /// How many.
    pub cpus: u32,
    /// How long an atomic addition takes each of them, in the mean.
    pub each_ns: Figure,
}

/// Calls into the system, where they do nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calls {
    /// One that does nothing (`getppid`): into the kernel and back.
    pub bare_ns: Figure,
    /// `futex` wake where nobody sleeps.
    pub futex_wake_none_ns: Figure,
    /// `sched_yield` on a CPU that nobody else wants.
    pub yield_ns: Figure,
    /// A read of the monotonic clock (`Instant::now`), mostly without a call.
    pub clock_ns: Figure,
    /// Which CPU a thread is on (`sched_getcpu`), mostly without a call.
    pub getcpu_ns: Figure,
    /// The first write to a page of anonymous memory, which the system gives then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault_ns: Option<Figure>,
    /// `membarrier`, private expedited, of a process with no other thread that runs. Nothing where
    /// the system doesn't have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membarrier_alone_ns: Option<Figure>,
    /// The same while another thread of the process runs on another CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membarrier_one_ns: Option<Figure>,
    /// The same while threads of the process run on all CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membarrier_all_ns: Option<Figure>,
}

/// From one thread to another one of the same CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// By `sched_yield`, both ready: one switch, its call included.
    pub yield_ns: Figure,
    /// One thread wakes the other one and sleeps: two calls and the switch.
    pub block_ns: Figure,
}

/// How the system shares out a CPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduler {
    /// How long a thread that computes keeps a CPU that another one wants, which computes too.
    pub slice_ns: Figure,
}

/// What the CPU does that a woken thread is pinned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Nothing. With [`Distance::Same`]: who wakes gives way at once.
    Idle,
    /// It runs a thread that computes. With [`Distance::Same`]: who wakes computes on.
    Busy,
}

/// A thread is woken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wake {
    /// From the CPU of the one who wakes to that of the woken thread.
    pub distance: Distance,
    /// What that CPU does.
    pub target: Target,
    /// How long the thread had slept, in microseconds.
    pub slept_us: f64,
    /// What the call costs the one who wakes.
    pub call_ns: Figure,
    /// From the call until the woken thread runs.
    pub latency_ns: Figure,
}

/// The C library's allocator, for one size. No memory is touched but by the allocator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocator {
    /// What is asked for.
    pub bytes: u64,
    /// `malloc`, of 64 KiB in a row.
    pub malloc_ns: Figure,
    /// `free` of these, by the same thread.
    pub free_ns: Figure,
    /// `free` of these by a thread on another CPU. Nothing on a machine with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_elsewhere_ns: Option<Figure>,
    /// `malloc` by a thread all of whose blocks are freed by another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub malloc_after_elsewhere_ns: Option<Figure>,
    /// `malloc` and `free` of one block, again and again.
    pub pair_ns: Figure,
    /// `malloc` and `free` of 64 KiB in a row, while all CPUs do so: one of each.
    pub pair_all_ns: Figure,
}

/// Threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thread {
    /// A thread that does nothing: from its start until it has been joined.
    pub spawn_join_ns: Figure,
    /// `std::hint::spin_loop`.
    pub spin_hint_ns: Figure,
}

/// Line transfers by pair of CPUs, row to column; 0 on the diagonal. Medians.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matrix {
    /// The CPUs of rows and columns: neighbours stand beside each other.
    pub cpus: Vec<u32>,
    /// As [`Transfer::one_way_ns`].
    pub one_way_ns: Vec<Vec<f64>>,
    /// As [`Transfer::locked_ns`].
    pub locked_ns: Vec<Vec<f64>>,
}
