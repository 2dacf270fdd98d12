//! What the tables of each benchmark say around them, and the headlines in words.

use corewise_bench::bench::Bench;

/// What a benchmark's tables say around them.
pub(crate) struct Text {
    pub(crate) title: &'static str,
    /// Above the headlines.
    pub(crate) headlines: &'static str,
    /// Below the tables.
    pub(crate) note: &'static str,
}

/// Of a benchmark.
pub(crate) fn text(bench: &Bench) -> Text {
    match bench.name {
        "workqueue" => Text {
            title: "Workqueues",
            headlines: "Kernel's test, pair by pair (95 % interval; more is better)",
            note: "Medians, and behind them half the span from the smallest run to the largest, in %. CPU \
                   and switches: of all threads; switches per million items.",
        },
        "calls" => Text {
            title: "Cross-CPU calls",
            headlines: "Pair by pair (95 % interval; less is better)",
            note: "Medians, and behind them half the span from the smallest run to the largest, in %. Held: \
                   the longest time in 20 ms in which an urgent task was ready and couldn't have its core, \
                   of all intervals and CPUs; idle: while nobody calls. Latency: from the call until its \
                   answer is there; eventfd: of two bare threads. CPU and switches: of all threads; switches \
                   per million calls.",
        },
        "probe" => Text {
            title: "Probes",
            headlines: "Pair by pair (95 % interval; less is better)",
            note: "Medians, and behind them half the span from the smallest run to the largest, in %. Cost: \
                   of one device's probe, from its begin to its end. All up: until the last device is; bound: \
                   the longest probe, or all CPU time over the node's CPUs. Overhead: all that a device costs \
                   whose probe does nothing. Before: each probe on the node's first CPU; nested: placed \
                   twice, on any of its CPUs; threads: one a device, what the machine makes of it by itself.",
        },
        "shutdown" => Text {
            title: "Shutdown of devices",
            headlines: "Pair by pair (95 % interval; less is better)",
            note: "Medians, and behind them half the span from the smallest run to the largest, in %. A \
                   web is called by its graph, its devices, and how many of them are slow. Path: no \
                   shutdown can be quicker. Threads: those that came meanwhile. Switches: in all.",
        },
        "blockmq" => Text {
            title: "The block layer",
            headlines: "Pair by pair (95 % interval; more is better, where nothing else is said)",
            note: "Medians, and behind them half the span from the smallest run to the largest, in %. A \
                   sequential read is called by its completion threads, the nanoseconds that a request costs \
                   them, and how they are scheduled: fifo and alone only where the system permits it. Waiting: threads \
                   that are in a run of their hardware queue, on average; longest wait: in one such run. \
                   Switches: per million reads. Random requests, of 4 KiB, are called by what they go to, how \
                   many are in flight for each job, and the jobs; fio has its engines null, mmap and io_uring. \
                   Latency of a hold: of the call that holds. Resumed: from its end to the next read that \
                   completes.",
        },
        name => Text { title: name, headlines: "Pair by pair (95 % interval)", note: "Medians." },
    }
}

/// A headline in words.
pub(crate) fn headline(name: &str) -> &str {
    match name {
        "cache_shard_vs_before_items" => "items per second, cache_shard over before",
        "cache_shard_vs_before_p50" => "median queueing call, before over cache_shard",
        "held_span_p99_vs_before" => "longest waits of urgent tasks (p99), corewise over before",
        "roundtrip_p50_vs_eventfd" => {
            "median call with its answer over an eventfd ping, hot or cold, the worse of both"
        }
        "mean_cost_vs_before" => "mean cost of three devices' probes, corewise over before",
        "makespan_vs_bound" => "time until all are up over what no design can beat, the worst case",
        "makespan_vs_critical_path" => "time over the longest chain of slow devices, worst graph",
        "no_slow_vs_serial" => "time over the plain loop's where nothing is slow, worst graph",
        "azure_vs_serial" => "time over the plain loop's on the published machine, worse log",
        "seqread_vs_before" => {
            "sequential reads by eight threads, corewise over a mutex that inherits priorities"
        }
        "seqread_vs_unchecked" => "the same, over a queue that never looks again",
        "file_iops_vs_fio" => {
            "random reads of a file, 32 in flight, corewise over fio with io_uring (more is better)"
        }
        "file_p99_vs_fio" => "the 99th percentile of how long they take, the same (less is better)",
        "overhead_ns_per_request" => "a request to a device that does nothing, there and back",
        "allocations_per_item" => "how often it allocates",
        other => other,
    }
}
