//! Workloads for cross-CPU calls, and what they are run on.
//!
//! As with [`workqueue`](crate::workqueue): a *case* ([`case`]) is a workload with what is varied
//! of it, a *run* is one case on one runtime in a process of its own, asked for in the words
//! `key=value` of a [`job`] and answered with one [`mod@crate::line`].
//!
//! 1. [`roundtrip`]: the trait that callers have, how they are measured, and [`run`]: one run.
//! 2. [`eventfd`]: the floor of a round trip; [`variants`]: Corewise's calls.
//! 3. [`priority`]: of threads, and how long one was ready to run and didn't.
//! 4. [`held`]: how long urgent tasks wait for their cores while others wait for calls.
//!
//! # The words
//!
//! All numbers are whole and without a sign. A word that a case doesn't need is passed over.
//!
//! | word | means |
//! |---|---|
//! | `case` | which case |
//! | `runtime` | on which runtime, of those that the program knows |
//! | `items` | calls of the measured pass |
//! | `gap_us` | the client sleeps that many microseconds before each call |
//! | `client_cpu` | where the client is pinned |
//! | `server_cpu` | where the called thread is pinned |
//! | `length_ms` | how long the run takes, where it isn't so many calls |
//! | `tick_us` | an urgent task wants its core each so many microseconds |
//! | `interval_ms` | of so many milliseconds the longest wait counts |
//! | `seed` | of what is random |
//! | `count` | 1: count allocations, and report `allocations_per_item` alone |
//!
//! # The cases
//!
//! **`held_span/WAY`**: for `length_ms`; see [`held`]. WAY is how a core is held and wanted:
//! `priority`, or `lock` where no real-time priority may be had. `held_*`: the longest waits of an
//! urgent task in `interval_ms` on one CPU, over all intervals and CPUs. `calls_per_second`: of all
//! callers. Runtimes: `before`, `corewise`, and `idle`, which has no callers.
//!
//! **`roundtrip/hot`, `roundtrip/cold`, `roundtrip/busy`**: one client, pinned to `client_cpu`, has
//! somebody who is pinned to `server_cpu` add one to a number, and waits for the answer; `items`
//! times, after a tenth of them that aren't measured. `hot`: back to back. `cold`: the client sleeps
//! `gap_us` before each. `busy`: as `cold`, while a thread of ordinary priority burns `server_cpu`.
//! `latency_*`: from before the call until the answer is there.
//!
//! **`reads`**: one reads a value all the time on `client_cpu`, another replaces it every `gap_us` on
//! `server_cpu`; see [`reads`]. Runtimes: `corewise` (its read-mostly cell), `arc_swap`, `rwlock`.
//!
//! **`load/burst`, `load/waiters`**: `items` calls to `server_cpu` whose functions take 2 µs each: from
//! one client who sends a thousand and waits for the last to have run, or from eight that wait for
//! each of theirs. `wakeups_per_1000`: pushes that found the queue empty, per thousand calls.
//!
//! **`broadcast/N`**: as `roundtrip/cold`, but the number goes to N CPUs, all online ones from the
//! first, and the answer is the sum of theirs. **`broadcast/synthetic/N`**: the same on a made-up
//! machine with so many CPUs, whose threads share those that there are.

pub mod case;
pub mod eventfd;
pub mod held;
pub mod job;
pub mod load;
pub mod priority;
pub mod reads;
pub mod roundtrip;
pub mod run;
pub mod suite;
pub mod variants;
