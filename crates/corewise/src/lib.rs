//! Linux's lessons for machines of many cores, in user space, under one name.
//!
//! This crate only re-exports. Each module is a crate of its own, with its own front page. Take a
//! [`topology::Machine`], hand it to [`workqueue::WorkerPools`] (and to [`smp::Smp`]), and build on
//! those:
//!
//! | you want to | open |
//! |---|---|
//! | know which CPUs share a cache, a node, a shard | [`topology`] |
//! | run work near the core that has its data | [`workqueue`] |
//! | run a function on a certain core, on many, on all | [`smp`] |
//! | start and stop many things in the order of their dependencies, in parallel | [`device`] |
//! | see what that cost | [`timeline`] |
//! | see what booting and shutting down cost a Linux machine | [`kernel_log`] |
//! | dispatch block requests without a lock that sleeps | [`blockmq`] |
//! | keep blocks in memory, files, stripes and mirrors | [`drivers`] |
//! | serve block devices to other machines | [`nbd`] |
//! | make block devices disks of this machine | [`ublk`] |
//! | make block devices disks of virtual machines | [`vhost`] |
//! | serve block devices in a way of your own, beside these three | [`export`] |
//! | share threads with an `io_uring` between drivers and front ends | [`ring`] |
//! | read all the time what is replaced now and then | [`sync::epoch`] |
//! | wait, complete and say "this may block" as all of these do | [`sync`] |
//!
//! # Work
//!
//! ```
//! use corewise::prelude::*;
//!
//! let machine = Machine::live()?;
//! let pools = WorkerPools::new(&machine);
//! let queue = Workqueue::builder("squares").scope(AffinityScope::CacheShard).build(&pools)?;
//! let squares: Vec<_> = (0..4u32).map(|n| queue.spawn(move || n * n)).collect();
//! let squares: Result<Vec<u32>, JoinError> = squares.into_iter().map(JoinHandle::join).collect();
//! assert_eq!(squares?, [0, 1, 4, 9]);
//!
//! let tick = Work::new(|| println!("once, however often it was queued before it ran"));
//! queue.queue(&tick)?; // allocates nothing; says whether it was pending already
//! tick.flush();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Calls
//!
//! A function runs on the CPU that you name, even if that CPU is busy. A waiter gives its own core
//! back.
//!
//! ```
//! use corewise::prelude::*;
//!
//! let machine = Machine::live()?;
//! let smp = Smp::new(&machine)?; // a call target on each CPU, asleep
//! let cpu = machine.online().iter().next().ok_or("no CPU")?;
//! assert_eq!(smp.call(cpu, || 40 + 2)?.wait()?, 42); // or `.await`; allocates nothing
//!
//! let names = vec![String::from("one"), String::from("two")];
//! let lengths = smp.run_each(&machine.online(), |_| names.len()); // may borrow
//! assert!(lengths.into_values()?.iter().all(|(_, n)| *n == 2)); // an answer from each CPU
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Devices
//!
//! A device is anything that needs others: a listener, a shard, a connection. Each comes up as soon
//! as the devices that it needs are up, and goes down once no device needs it any more.
//!
//! ```
//! use corewise::device::{
//!     Bound, BringUpOptions, DeviceDecl, DeviceManager, Driver, ProbeContext, ProbeError,
//!     ShutdownError, ShutdownOptions,
//! };
//! use corewise::topology::Machine;
//! use corewise::workqueue::WorkerPools;
//! use std::sync::Arc;
//!
//! struct Service;
//! impl Bound for Service {
//!     fn shutdown(&self) -> Result<(), ShutdownError> {
//!         Ok(()) // flush, close; or `start_shutdown`, which ends when it is told
//!     }
//! }
//!
//! struct Services;
//! impl Driver for Services {
//!     fn name(&self) -> &str {
//!         "service"
//!     }
//!     fn probe(&self, _: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
//!         Ok(Arc::new(Service)) // connect, read; or `Err(ProbeError::defer(..))` for a retry
//!     }
//! }
//!
//! let pools = WorkerPools::new(&Machine::live()?);
//! let services = DeviceManager::new(&pools)?;
//! services.register(Arc::new(Services))?;
//! let one = |name| DeviceDecl::new(name, "service");
//! let shards = ["shard0", "shard1", "shard2"];
//! let api = shards.iter().fold(one("api"), |api, shard| api.supplier(*shard));
//! let mut web = vec![one("log"), api];
//! web.extend(shards.map(|shard| one(shard).supplier("log")));
//! let up = services.bring_up(web, &BringUpOptions::new())?; // log; all shards at once; api
//! println!("up after {}", up.timeline().makespan());
//! let down = services.shutdown(&ShutdownOptions::new())?; // api; all shards at once; log
//! assert!(down.is_clean());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # More
//!
//! Nine small programs are in `examples/` (`cargo run --release -p corewise --example NAME`):
//!
//! | example | shows |
//! |---|---|
//! | `tutorial` | a service that starts, works and stops; docs/tutorial.md builds it step by step |
//! | `build_graph` | a parallel build of a dependency graph |
//! | `crawler` | limits, pauses and real sockets |
//! | `cache_warmer` | memory and work on the same node |
//! | `checksums` | the blocks of a file in parallel |
//! | `intake` | a queue that refuses, a debounced reload, a tick |
//! | `inside_tokio` | work of tokio's tasks on a workqueue, and the other way round |
//! | `services` | 200 of tokio's tasks, started and stopped in the order of their dependencies |
//! | `block_driver` | a block driver of one's own, and a filter above it |
//!
//! The guide on the front page of [`workqueue`] says which queue suits which work.
//!
//! Each module but [`topology`] and [`sync`] is a feature of its name. `workqueue`, `smp`, `device`
//! (with [`timeline`]) and `blockmq` are on by default. The others are not:
//!
//! | feature | for |
//! |---|---|
//! | `drivers`, `nbd`, `ublk`, `vhost`, `export`, `ring`, `kernel-log` | these modules |
//! | `crypt` | `drivers::Crypt`, which encrypts another device |
//! | `timeline` | its JSON, HTML and traces |
//! | `serde` | a [`device::History`] that can be written and read |
//! | `xml` | [`topology::Topology::from_xml`] |
//! | `tls` | clients of the NBD server in TLS; it compiles C |
//!
//! A program that only queues work takes `default-features = false, features = ["workqueue"]`, or
//! the crate `corewise-workqueue`, and compiles no other.
//!
//! Functions that may block call [`sync::context::might_block`], and a wait on a worker lets its
//! pool start other work. No handle is global: several machines, pools and servers may live in one
//! process.

#[cfg(feature = "blockmq")]
pub use corewise_blockmq as blockmq;
#[cfg(feature = "device")]
pub use corewise_device as device;
#[cfg(feature = "drivers")]
pub use corewise_drivers as drivers;
#[cfg(feature = "export")]
pub use corewise_export as export;
#[cfg(feature = "kernel-log")]
pub use corewise_kernel_log as kernel_log;
#[cfg(feature = "nbd")]
pub use corewise_nbd as nbd;
#[cfg(all(feature = "ring", target_os = "linux"))]
pub use corewise_ring as ring;
#[cfg(feature = "smp")]
pub use corewise_smp as smp;
pub use corewise_sync as sync;
#[cfg(any(feature = "device", feature = "timeline"))]
pub use corewise_timeline as timeline;
pub use corewise_topology as topology;
#[cfg(all(feature = "ublk", target_os = "linux"))]
pub use corewise_ublk as ublk;
#[cfg(all(feature = "vhost", target_os = "linux"))]
pub use corewise_vhost as vhost;
#[cfg(feature = "workqueue")]
pub use corewise_workqueue as workqueue;

/// The items that most programs need: `use corewise::prelude::*`.
pub mod prelude {
    #[cfg(feature = "smp")]
    pub use corewise_smp::{PerCpu, Smp};
    pub use corewise_sync::context::blocking;
    pub use corewise_topology::{AffinityScope, CpuId, CpuSet, Machine};
    #[cfg(feature = "workqueue")]
    pub use corewise_workqueue::{
        At, JoinError, JoinHandle, QueueError, QueueKind, Work, WorkerPools, Workqueue,
    };
}

/// The README's example, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}

/// The examples of the project's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub mod readme_of_the_project {}

/// The tutorial's complete programs, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/tutorial.md")]
pub mod tutorial {}
