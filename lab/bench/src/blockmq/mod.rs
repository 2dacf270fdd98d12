//! Workloads for the block layer, and their runtimes.
//!
//! 1. `setup` has a null device and its queue, `stream` sequential reads.
//! 2. `seqread` measures the cost of runs without pending requests. `recheck` has its variants, one
//!    of them with a `pi_mutex`.
//! 3. `io` makes random reads and writes, on a [`disk`] for instance. `fio` makes the same by fio.
//! 4. `hold` times a quiesce and a freeze, of one queue and of many. `tags` has threads that take
//!    tags.
//!
//! # The words
//!
//! All numbers are whole and without a sign. A word that a case doesn't need is ignored.
//!
//! | word | means |
//! |---|---|
//! | `case` | the case |
//! | `runtime` | the runtime, one of those that the program knows |
//! | `items` | requests, or holds, of the measured pass |
//! | `bytes` | bytes of a request |
//! | `depth` | requests in flight, for each completion thread |
//! | `gap_us` | microseconds before each hold, and in it |
//! | `length_ms` | milliseconds of a load |
//! | `count` | 1: count allocations, and report `allocations_per_item` alone |
//!
//! # The cases
//!
//! **`seqread/THREADS/COST/CLASS`** is the published regression. A null device completes requests
//! on THREADS threads of its own. Each request costs about COST nanoseconds of work there. The
//! threads are pinned to the CPUs in turn. Each thread in turn gets 16 requests in a row. They have
//! a real-time priority (`fifo`, `alone`) or not (`ordinary`). With `fifo` a task of a higher
//! priority runs on each CPU in the first 200 ms, for 20 of each 200 µs.
//!
//! The stream of reads runs for 200 ms, then for `length_ms` in which it is measured, then for half
//! of that with a clock. The queue has THREADS hardware queues. Each read is a request, since the
//! device asks for no merges. The completion function of each request runs the request's hardware
//! queue, where nothing is pending. Then it submits the next sequential read, through the whole
//! layer.
//!
//! The runtimes differ in the second look for pending requests:
//!
//! - `corewise`: as in the product;
//! - `before`: under a mutex that inherits priorities, one for the queue;
//! - `mutex`: under a plain mutex;
//! - `spin`: under a spinlock;
//! - `unchecked`: no second look.
//!
//! The metrics are `bytes_per_second`, `voluntary_switches` (per million reads) and two that are
//! measured with the clock. `wait_*` is the time of one run of the hardware queue, and `waiting`
//! the mean number of threads in one.
//!
//! **`DEVICE/MIX/DEPTH/JOBS`**: random reads (`randread`) or writes (`randwrite`) of `bytes` bytes,
//! for `length_ms` milliseconds. DEVICE is `null`, `memory` (256 MiB) or `file` (on a disk, past
//! the page cache). Each of JOBS jobs has DEPTH requests in flight.
//!
//! - `corewise`: each completion submits the next request on the same thread. The file's driver
//!   knows the buffers beforehand.
//! - `fio` has its engines `null`, `mmap` (a file in `/dev/shm`) and `io_uring` (the same file,
//!   registered, and registered buffers).
//!
//! The metrics are `items_per_second` and `latency_*`. The latencies of `null` and `memory` come,
//! with `corewise`, from a separate pass. `null` with one job has `overhead_ns_per_request`: the
//! cost of a request on its way through the whole layer and back, with the memory left as it is.
//!
//! **`quiesce/idle`, `quiesce/load`, `freeze/idle`, `freeze/load`**: the queue is held and let go,
//! `items` times. With `load`, reads are in flight meanwhile on two completion threads of ordinary
//! priority. `latency_*` is the time of the call that holds. `resume_*` runs from the call that
//! lets go until the first read after it has completed.
//!
//! **`quiesce_all/QUEUES`**: QUEUES queues are quiesced and let go. The rest is as in
//! `quiesce/load`, with the reads on one of them. The runtime `corewise` quiesces all by one call,
//! `one_by_one` each by its own.
//!
//! **`tags/SUBMITTERS/DEPTH`**: SUBMITTERS threads take `items` tags of DEPTH in all and give them
//! back. Each thread has four in hand, or as many as there are for each. If there are fewer tags
//! than threads, each keeps every fourth while others run. The runtime `corewise` is a set of tags.
//! `mutex_list` is a list of free ones behind a mutex, on which a thread that finds none sleeps.
//! `latency_*` is the time of one take in 32.

pub mod disk;
pub mod fio;
mod hold;
mod io;
mod pi_mutex;
mod recheck;
mod seqread;
mod setup;
mod stream;
mod tags;

use crate::bench::{Bench, On};
use crate::job::Job;

/// `corewise-bench blockmq`. The headlines:
///
/// * `seqread_vs_before`: bytes per second that eight completion threads read, over those with a
///   mutex that inherits priorities around the second look. The best class that was measured
///   counts.
/// * `seqread_vs_unchecked`: the same over a queue that never looks again.
/// * `file_iops_vs_fio`: random reads per second of a file, 32 in flight, over fio's.
/// * `file_p99_vs_fio`: the 99th percentile of the time of one, over fio's. Less is better.
/// * `overhead_ns_per_request`: the time of a request to a device that does nothing.
/// * `allocations_per_item`: the number of allocations of such a request.
pub static BENCH: Bench = Bench {
    name: "blockmq",
    words: "items bytes depth gap_us length_ms count",
    workloads: &[seqread::WORKLOAD, io::WORKLOAD, hold::HOLD, hold::QUIESCE_ALL, tags::WORKLOAD],
    counting: |_| (),
    headlines: |pairs| {
        let seqread = |other| {
            let of = |class| pairs.over(&seqread::published(class), "bytes_per_second", other);
            seqread::CLASSES.into_iter().find_map(of)
        };
        let case = |device: &str| format!("{device}/{}", io::HEADLINE);
        let vs_fio = |metric| pairs.over(&case("file"), metric, "fio");
        let of_null = |metric| {
            let values = pairs.values(&case("null"), "corewise", metric)?;
            pairs.ratio(Some(values), Some(&vec![1.0; values.len()]))
        };
        vec![
            ("seqread_vs_before", seqread("before")),
            ("seqread_vs_unchecked", seqread("unchecked")),
            ("file_iops_vs_fio", vs_fio("items_per_second")),
            ("file_p99_vs_fio", vs_fio("latency_p99")),
            ("overhead_ns_per_request", of_null("overhead_ns_per_request")),
            ("allocations_per_item", of_null("allocations_per_item")),
        ]
    },
};

/// Sets the numbers that all cases have.
fn base(job: &mut Job, on: &On) {
    (job.depth, job.gap_us, job.length_ms) = (4, 1_000, on.pick(1_000, 400));
}
