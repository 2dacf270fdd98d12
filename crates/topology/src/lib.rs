//! Facts about CPUs, caches and nodes: CPU sets, topologies, affinity scopes, pods, shard layout.
//!
//! A [`Topology`] holds the facts about one machine: the live one, one whose sysfs was saved, one
//! that hwloc exported as XML, or one described in a line (`numa:2 l3:1 core:36 pu:2`). [`Pods`]
//! divide its CPUs by [`AffinityScope`]. A [`Machine`] is the handle for all code that places work:
//! the topology, the masks of usable CPUs that change over time, and an epoch. Setters change the
//! masks, and [`Machine::refresh`] reads them again. A [`Watch`] waits until a refresh may find a
//! change; a [`Subscription`] receives the changes.
//!
//! ```
//! use corewise_topology::{AffinityScope, DEFAULT_SHARD_SIZE, Machine};
//!
//! let machine = Machine::live()?;
//! let pods = machine.pods(DEFAULT_SHARD_SIZE);
//! for cpu in &machine.housekeeping() {
//!     let shard = pods.pod_of(AffinityScope::CacheShard, cpu);
//!     assert!(shard.is_some());
//! }
//! # Ok::<(), corewise_topology::TopologyError>(())
//! ```
//!
//! The crate spawns no thread and keeps no global state. On other systems than Linux the live
//! machine is [flat](Source::Flat), its threads aren't pinned, and its changes aren't reported.
//! Saved and described topologies are the same everywhere.

mod affinity;
mod cgroup;
mod cpulist;
mod cpuset;
mod error;
mod facts;
mod files;
mod live;
mod machine;
mod memory;
mod pods;
mod quota;
mod scope;
mod shard;
mod synthetic;
mod sysfs;
mod topology;
mod watch;
#[cfg(feature = "xml")]
mod xml;

pub use affinity::{Tid, current_affinity, current_cpu, pin_current_thread, pin_thread};
pub use cpuset::{CpuId, CpuSet, Iter};
pub use error::TopologyError;
pub use machine::{Change, Machine, Masks, Subscription};
pub use memory::memory;
pub use pods::{Pod, Pods};
pub use quota::CpuQuota;
pub use scope::AffinityScope;
pub use shard::{DEFAULT_SHARD_SIZE, ShardLayout, shard_layout};
pub use topology::{CoreKind, Cpu, Llc, Node, Source, Topology};
pub use watch::{Unwatched, Watch};

/// The README's example is a test too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
