//! Workloads for shutting devices down, and what they are run on.
//!
//! As with [`workqueue`](crate::workqueue): a *case* ([`case`]) is a web of devices with what is
//! varied of it, a *run* is one case on one runtime in a process of its own, asked for in the words
//! `key=value` of a [`job`] and answered with one [`mod@crate::line`].
//!
//! 1. [`web`]: devices, their needs, what their callbacks do; [`graphs`]: made-up webs;
//!    [`azure`]: those of two published logs.
//! 2. [`pass`]: one shutdown of a web, and whether it kept the order; [`run`]: one run.
//! 3. [`serial`]: the plain loop, over the objects that Corewise's bring-up made; [`before`]: the old design; [`ours`]: Corewise.
//! 4. [`suite`]: what `corewise bench shutdown` runs, and the headlines.
//!
//! # The words
//!
//! All numbers are whole and without a sign. A word that a case doesn't need is passed over.
//!
//! | word | means |
//! |---|---|
//! | `case` | which case |
//! | `runtime` | on which runtime, of those that the program knows |
//! | `passes` | shutdowns that are measured, each of devices and threads that were made for it |
//! | `quick_steps` | rounds of arithmetic in a quick callback, a nanosecond each or less |
//! | `shortest_ms` | the shortest slow callback, in milliseconds |
//! | `longest_ms` | the longest one |
//! | `seed` | of which devices are slow, and which of them by how much |
//!
//! # The cases
//!
//! **`GRAPH/DEVICES/SLOW`**: so many devices, of which each tenth has a callback that is quick (about
//! 10 µs of arithmetic), and SLOW have one that sleeps, from `shortest_ms` to `longest_ms` in equal
//! ratios. All have opted in to asynchronous shutdown. GRAPH is
//!
//! * `flat`: nobody needs anybody;
//! * `deep`: four chains, each device needs the one before it;
//! * `wide`: one root that all others need;
//! * `stacked`: five layers, each device needs two of the layer below;
//! * `inverted`: as `stacked`, and registered the wrong way round, consumers first.
//!
//! **`azure/serial`, `azure/async`**: the 492 devices of a published virtual machine, each callback
//! as long as its log says; see [`azure`].
//!
//! # The metrics
//!
//! `makespan_p50`: from the call until all is shut down and the devices' objects are dropped; the
//! middle one of the passes. `critical_path`: no shutdown can be quicker; see
//! [`Web::bound`](web::Web::bound); left out where nothing sleeps. `threads`: threads that came
//! meanwhile, the most of any pass. `voluntary_switches`, `cpu_seconds`: of a pass, on average.

pub mod azure;
pub mod before;
pub mod case;
pub mod graphs;
pub mod job;
pub mod ours;
pub mod pass;
pub mod run;
pub mod serial;
pub mod suite;
pub mod web;
