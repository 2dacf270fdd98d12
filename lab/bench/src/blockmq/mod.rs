//! Workloads for the block layer, and their runtimes.
//!
//! 1. `setup`: a null device and its queue; `stream`: sequential reads.
//! 2. `seqread`: the cost of runs without pending requests; `recheck`: its variants, one of them
//!    with a `pi_mutex`.
//! 3. `io`: random reads and writes, on a [`disk`] for instance; `fio`: the same by fio.
//! 4. `hold`: the time of a quiesce and a freeze, of one queue and of many; `tags`: threads that
//!    take tags.
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
//! **`seqread/THREADS/COST/CLASS`**: the published regression. A null device completes requests on
//! THREADS threads of its own, at a cost of about COST nanoseconds of work each. The threads are
//! pinned to the CPUs in turn, and get 16 requests in a row in turn. They have a real-time priority
//! (`fifo`, `alone`) or not (`ordinary`). The stream of reads runs for 200 ms, then for `length_ms`
//! in which it is measured, then for half of that with a clock. With `fifo` a task of a higher
//! priority runs on each CPU in the first 200 ms, 20 of each 200 µs. The queue has THREADS hardware
//! queues; nothing is merged, since the device doesn't ask for it, so each read is a request. Each
//! request's completion function runs its hardware queue, where nothing is pending, and submits the
//! next sequential read, through the whole layer. Runtimes: `corewise`; `before`, whose second look
//! is taken under a mutex that inherits priorities, one for the queue; `mutex`, under a plain one,
//! `spin`, under a spinlock; `unchecked`, which has no second look. `bytes_per_second`; `wait_*`:
//! the time of one run of the hardware queue, and `waiting`: the mean number of threads in one,
//! both with the clock; `voluntary_switches`: per million reads.
//!
//! **`DEVICE/MIX/DEPTH/JOBS`**: random reads (`randread`) or writes (`randwrite`) of `bytes` bytes
//! on `null`, `memory` (256 MiB) or `file` (on a disk, past the page cache), DEPTH in flight for
//! each of JOBS jobs, for `length_ms` milliseconds. `corewise`: each completion submits the next
//! request on the same thread; the file's driver knows the buffers beforehand. `fio`: with its
//! engines `null`, `mmap` (a file in `/dev/shm`) and `io_uring` (the same file, registered, and
//! registered buffers). `items_per_second`, and `latency_*`, of `null` and `memory` from a pass of
//! its own with `corewise`; `overhead_ns_per_request` of `null` with one job: the cost of a request
//! on its way through the whole layer and back, with the memory left as it is.
//!
//! **`quiesce/idle`, `quiesce/load`, `freeze/idle`, `freeze/load`**: the queue is held and let go,
//! `items` times; `load`: while reads are in flight on two completion threads of ordinary priority.
//! `latency_*`: of the call that holds; `resume_*`: from the call that lets go until the first read
//! after it has completed.
//!
//! **`quiesce_all/QUEUES`**: QUEUES queues are quiesced and let go; the rest is as in
//! `quiesce/load`, with the reads on one of them. Runtimes: `corewise`, all by one call;
//! `one_by_one`.
//!
//! **`tags/SUBMITTERS/DEPTH`**: SUBMITTERS threads take `items` tags of DEPTH in all and give them
//! back, each with four in hand, or as many as there are for each. If there are fewer tags than
//! threads, each keeps every fourth while others run. Runtimes: `corewise`, a set of tags;
//! `mutex_list`, a list of free ones behind a mutex, on which a thread that finds none sleeps.
//! `latency_*`: of one take in 32.

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
///   mutex that inherits priorities around the second look; of the best class that was measured.
/// * `seqread_vs_unchecked`: the same over a queue that never looks again.
/// * `file_iops_vs_fio`: random reads per second of a file, 32 in flight, over fio's.
/// * `file_p99_vs_fio`: the 99th percentile of how long one takes, over fio's: less is better.
/// * `overhead_ns_per_request`: what a request to a device that does nothing takes.
/// * `allocations_per_item`: how often such a request allocates.
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
