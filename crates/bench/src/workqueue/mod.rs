//! Workloads for workqueues, and what they are run on.
//!
//! A *case* ([`case`]) is a workload with what is varied of it. A *run* is one case on one runtime,
//! in a process of its own: a driver starts `PROGRAM WORD...` with the words `key=value` of a
//! [`job`], and the program prints one [`mod@crate::line`] of JSON when it is done. So a runtime of any
//! language takes part, nobody warms another's allocator, and what hangs can be ended. Runs of
//! several runtimes are interleaved in rounds, and ratios are made of pairs within rounds.
//!
//! 1. [`runtime`]: the traits that the workloads need, and [`tiny`]: the item of the storms.
//! 2. The workloads: [`kernel_test`], [`storm`], [`inside`], [`pingpong`], [`mix`], [`idle`]; and
//!    [`meter`](crate::meter): what they cost.
//! 3. [`variants`]: Corewise's queues, [`before`]: the old design, one locked list per cache, and
//!    [`floor`]: no queue at all.
//! 4. [`run`]: one run; [`process`](crate::process): one in a process of its own.
//! 5. [`suite`]: runs them against each other and makes records of it.
//!
//! # The words
//!
//! All numbers are whole and without a sign. A word that a case doesn't need is passed over.
//!
//! | word | means |
//! |---|---|
//! | `case` | which case |
//! | `runtime` | on which runtime, of those that the program knows |
//! | `workers` | threads that run items: no fewer, and no more but where items block |
//! | `producers` | threads that queue from outside |
//! | `items` | items of a pass; in all, or as the case says |
//! | `passes` | measured passes, in one process, on one runtime |
//! | `ring` | reused items of each producer |
//! | `gap_us` | the client sleeps that many microseconds before each ping |
//! | `client_cpu`, `worker_cpu` | pin the client, or the only worker, there; left out: pin nobody |
//! | `rate` | items per second, open loop |
//! | `block_us`, `short_us` | how long a blocking item sleeps, and how long the others spin |
//! | `hint` | 1: use the runtime's own way to say that an item blocks |
//! | `rest_ms` | how long to do nothing |
//! | `seed` | of what is random |
//! | `count` | 1: count allocations, and report `allocations_per_item` alone |
//!
//! # The line
//!
//! ```json
//! {"case":"storm/boxed","runtime":"tokio","metrics":{"items_per_second":1.9e6,"cpu_per_item":830.0}}
//! ```
//!
//! It is the last line of the standard output that begins with a brace; the exit code is 0.
//! `metrics` maps names to numbers, and [`METRICS`](crate::line::METRICS) has all names with their units. A runtime
//! that can't do a case prints `{"case":...,"runtime":...,"unsupported":"WHY"}`.
//!
//! Every run reports what it can of `cpu_per_item` (ns), `cpu_seconds` (user and system, of all
//! threads of the process, by `getrusage`, over the measured passes; `cpu_per_item` is that by all
//! items of all passes), `voluntary_switches` (`ru_nvcsw` of the process, over the measured passes,
//! **per million items**; in `idle` as such) and `peak_rss` (`ru_maxrss` in bytes, at the end).
//! With several passes a rate is that of the middle pass. Before the first measured pass there is
//! one over a tenth of the items that isn't measured; the Java program warms up for as long as its
//! compiler needs.
//!
//! # The cases
//!
//! **(a) `kernel_test`**, `kernel_test/inline`: `producers` threads, pinned to one online CPU each.
//! Each makes one item (reusable, if the runtime has those), and `items` times: notes the time,
//! queues it, notes the time, sleeps on a futex until it has run. `call_*`: the queueing call.
//! `latency_*`: from before the call to after the sleep. `items_per_second`: all items, from the
//! first thread's start to the end of a flush after the last. `inline`: the client doesn't sleep at
//! once, but takes its item back and runs it where no worker has begun it; peers have no such wait.
//!
//! **(b) `storm/reused`, `storm/boxed`**, each also `/striped`: `producers` threads queue
//! `items / producers` each (the first ones take the rest). An item holds 16 bytes, a number and a
//! pointer to a count; it takes one from the count. The last one wakes the waiter, which sleeps on a
//! futex. One count for all; `/striped`: one per producer on a cache line of its own, and the last
//! of each counts in another. `reused`: each producer has a ring of `ring` items, made before the
//! clock starts, and queues them in turn; a queueing that is refused because the item is still
//! queued doesn't count: the producer yields and tries that one again. `boxed`: a closure each, with
//! no handle. `items_per_second`: from the release of the producers to the waiter's waking.
//!
//! **(c) `inside`**: as `storm/boxed`, but one task queues all `items`, from within. The clock runs
//! from the queueing of that task. **`fan`**: `items` times, one after another: a task queues 64,
//! each of these 64 that only count; the waiter sleeps until all 4161 have run, then flushes.
//! `makespan_*`: of one such time. `items_per_second`: tasks, all 4161 counted.
//!
//! **(d) `pingpong/PLACEMENT/GAP`**: one client from outside, `items` pings: sleeps `gap_us` (with
//! a timer slack of one nanosecond, if not 0), notes the time, queues an item, sleeps on a futex
//! until it has run, notes the time. `free`: `workers` workers, nobody is pinned. `same`, `cross`:
//! one worker, pinned to `worker_cpu`, the client to `client_cpu`. `latency_*`; the 99.9th of fewer
//! than 5 000 pings isn't reported. `cpu_per_item` is per ping, client included. The runtime
//! `futex` is the floor: a bare thread that sleeps on a futex and wakes the client.
//!
//! **(e) `mix/LOAD`, `mix/LOAD/hint`**: open loop. One producer queues `items` closures at intended
//! times, and waits for each by yielding its CPU. The gaps are exponential with the mean
//! `1 / rate`, and one item in ten, at random, sleeps `block_us`; the others spin `short_us`. Both
//! come from Vigna's SplitMix64, seeded with `seed` as the counter: for each item one number for
//! the gap, `-ln(1 - (r >> 11) / 2^53) / rate` seconds, and then one for the kind: blocks if
//! `r % 10 == 0`. `short_*`: from the intended time of a short item to its end. `rate` is LOAD % of
//! what `workers` workers could do that block for a tenth of the items and make no more threads.
//! `threads`: how many threads the process has at the end, less those that it had before the
//! runtime was built. `items_per_second`: all, until the last has run. `cpu_per_item` is without
//! the producer's own.
//!
//! **(f) `oversubscribed/reused`, `oversubscribed/boxed`**: the storm with four producers a CPU.
//!
//! **(g) `idle`**: `items` items to get everybody up, 100 ms for them to go to sleep, then
//! `rest_ms` of rest. `cpu_seconds` and `voluntary_switches` of the rest, and `threads`.
//!
//! # Names in records
//!
//! `case` is the case's text; for Corewise's and `before`'s own variants with the scope behind it,
//! and the shard size where it isn't the default: `storm/reused/cache_shard`,
//! `storm/reused/cache_shard:4`, `kernel_test/cache` for `before`. `metric` and `unit` are those of
//! the line.

pub mod before;
pub mod case;
pub mod floor;
pub mod idle;
pub mod inside;
pub mod job;
pub mod kernel_test;
pub mod mix;
pub mod pingpong;
pub mod run;
pub mod runtime;
pub mod storm;
pub mod suite;
pub mod tiny;
pub mod variants;

#[cfg(test)]
mod inline;
