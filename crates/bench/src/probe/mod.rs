//! Devices that burn and wait in their probes: where those run, and what that costs.
//!
//! As with [`workqueue`](crate::workqueue): a *case* ([`case`]) is a workload with what is varied
//! of it, a *run* is one case on one design in a process of its own, asked for in the words
//! `key=value` of a [`job`] and answered with one [`mod@crate::line`].
//!
//! 1. [`device`]: the fake device, and the pattern of its probe.
//! 2. [`before`]: the old designs, which place a probe twice; [`ours`]: a device manager;
//!    [`threads`]: a plain thread a device.
//! 3. [`run`]: one run; [`suite`]: what `corewise bench probe` runs.
//!
//! # The words
//!
//! | word | means |
//! |---|---|
//! | `case` | which case |
//! | `runtime` | on which design: `corewise`, `before`, `nested`, or none: `threads` |
//! | `pieces` | a probe burns and waits so many times; 0: it does nothing |
//! | `burn_ns` | CPU time of one piece |
//! | `wait_ns` | how long it then sleeps |
//! | `passes` | so often all devices are brought up, after once that doesn't count |
//!
//! # The cases
//!
//! **`devices/K`**: K devices of one node, all asynchronous, none needs another. `cost_mean`,
//! `cost_max`: of the devices' probes, each from its begin to its end, as the kernel's patch prints
//! it. `makespan_p50`: until the last device is up. `bound`: no design is faster: the longest probe (one
//! alone, measured in the same process), or its CPU time, K times, over the node's CPUs. `cpus`:
//! on how many the probes were seen. `threads`: made meanwhile.
//!
//! **`overhead/K`**: the same with probes that do nothing. `overhead_per_device`: that time over K:
//! all that a device costs beside its own probe, its placement included.
//!
//! **`sync/3`**, **`no_node/3`**: the controls: three synchronous devices of one node, and three
//! asynchronous ones of none. Nothing should be gained there, and nothing lost.
//!
//! # The pattern
//!
//! What is published: three NVMe devices, 53/50/47 ms where all are probed on the node's first CPU,
//! 35/35/33 ms on CPUs of their own. A probe that burns once for b and waits once for w comes to
//! b + w alone, and to w + 3b beside two others: b = 9.6, w = 24.7. But then it matters how long a
//! slice of the scheduler is, and on a machine of two CPUs all three want both at the same time,
//! which no placement can help. A real probe alternates: it sends a command, waits for the
//! interrupt, works on the answer. With [`PIECES`](device::PIECES) pieces three of them keep one CPU
//! busy all the time (3b = 50: the published mean), and alone one takes
//! b + w = 34: [`device::PUBLISHED`]. Where waits are a little longer than burns, as here, two CPUs
//! are enough for three devices, if nothing else disturbs.
//!
//! A wait is that of the device until its prober runs again. The time that a sleep takes beyond that on a
//! machine at rest is measured first, and each sleep is shorter by so much.

pub mod before;
pub mod case;
pub mod device;
pub mod job;
pub mod ours;
pub mod run;
pub mod suite;
pub mod threads;
