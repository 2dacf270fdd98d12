//! What the page says of each workload, of its metrics, and of what is unfair.

/// What a workload does, in a few sentences; nothing where it isn't known here.
pub(super) fn workload(name: &str) -> Option<&'static str> {
    Some(match name {
        "kernel_test" => {
            "The kernel's own workqueue test: one thread pinned on each CPU, each with one item in \
             flight. What is timed is the queueing call alone, not the round trip; the rate is that \
             of all items up to the end of a flush. With \"inline\", who waits takes an item back \
             that hasn't started, and runs it."
        }
        "storm" => {
            "Producers outside of the pool queue tiny items as fast as they can, and wait for all. \
             Reused items are made once and cost no allocation; boxed closures cost one each: the \
             two are never compared with each other. With \"striped\", each producer counts its \
             items on a cache line of its own."
        }
        "inside" => "One task spawns all the others: no thread from outside takes part.",
        "fan" => {
            "One task makes 64, each of these makes 64 more, and somebody waits for all: what it \
             takes to spread work and to bring it together again."
        }
        "pingpong" => {
            "One item in flight from a thread outside, from the call to the wake-up of who waits for \
             it. On the same CPU it costs two switches; on two CPUs (cross) somebody who sleeps has \
             to be woken; free is wherever the system puts them. With a gap, the worker has gone to \
             sleep. Low times bought by spinning show in the CPU time."
        }
        "mix" => {
            "Items arrive at a fixed rate, and one in ten blocks for a millisecond: how long the \
             short ones take from the moment when they were due. With \"hint\", the blocking items \
             say so in the runtime's own way."
        }
        "oversubscribed" => "The storm again, with four producers for each CPU.",
        "held_span" => {
            "Callers of the lowest priority call other CPUs and wait, while the called ones have \
             windows in which they take no call; an urgent task on each CPU wants its core every \
             four milliseconds. Shown is the longest time in 20 ms in which it was ready and couldn't have \
             it. Before: who waits keeps its core, as in the old kernel. Idle: nobody calls; what is \
             left is the machine's own."
        }
        "roundtrip" => {
            "One call to another CPU and its answer, from a pinned client. Hot: back to back. Cold: \
             after a millisecond in which everybody goes to sleep. Busy: cold, with ordinary work on \
             the called CPU. Eventfd: two bare threads that ping each other; nothing that sleeps is \
             faster."
        }
        "broadcast" => {
            "One call to several CPUs, and the answers of all. Synthetic: a made-up machine, whose \
             threads aren't pinned and share the CPUs that there are."
        }
        "load" => {
            "Calls come faster than they are run: a thousand at once from one client who doesn't wait, \
             or from eight clients who wait for theirs. A called CPU is woken only by what finds it \
             asleep."
        }
        "reads" => {
            "One CPU reads a value all the time, another replaces it each millisecond. Corewise's cell \
             is read without writing anything that is shared; its writer waits for the readers."
        }
        "devices" => {
            "Devices of one node, none of which needs another, and whose probes burn CPU time and wait \
             in turn. Before: an asynchronous worker for each queues its probe again, on the node's \
             first CPU. Nested: on any CPU of the node. The bound is the longest probe, or all CPU time \
             over the node's CPUs: no design is faster. From some devices on their probes are \
             shortened, so that a run stays short."
        }
        "overhead" => {
            "Devices whose probes do nothing: all that a device costs beside its own probe."
        }
        "seqread" => {
            "Sequential reads of a null device, completed by some threads at a fixed cost each. Every \
             completion runs its hardware queue, where nothing is pending, so that it looks twice. \
             Before: the second look under a mutex of the queue that inherits priorities, as a spinlock \
             does on PREEMPT_RT. Mutex: under a plain one. Spin: under a spinlock, as without PREEMPT_RT. \
             Unchecked: no second look at all."
        }
        "null" => {
            "Random requests of 4 KiB to a device that does nothing; so many in flight for each of some jobs: \
             what the way there and back costs. Fio: its engine null."
        }
        "memory" => {
            "Random requests of 4 KiB to a device in memory. Fio: its engine mmap, on a file in memory."
        }
        "file" => {
            "Random requests of 4 KiB to a file on a disk, past the page cache. Fio: its engine io_uring on the \
             same file. Both have the file and their buffers registered."
        }
        "quiesce" => {
            "How long it takes until no request is being dispatched, and until they are again."
        }
        "freeze" => "How long it takes until no request is inside, and until they are again.",
        "quiesce_all" => {
            "How long it takes until no request is being dispatched on any of many queues, one of which \
             has requests. Corewise: by one call, with one fence and one wait. One by one: each has its \
             own."
        }
        "tags" => {
            "Threads take tags and give them back, each with a few in hand. Mutex list: a list of free \
             tags behind a mutex, on which who finds none sleeps."
        }
        "sync" => "Three synchronous devices: a control, nothing is to be gained.",
        "no_node" => "Three devices without a node: a control, nothing is to be gained.",
        "idle" => "What is burnt while there is nothing to do.",
        _ => return None,
    })
}

/// A metric's name as a heading.
pub(super) fn metric(stem: &str) -> String {
    let words = match stem {
        "items_per_second" => "Throughput",
        "bytes_per_second" => "Throughput in bytes",
        "wait" => "Time in a run of the hardware queue",
        "waiting" => "Threads in a run of the hardware queue",
        "resume" => "Time until the next request completes",
        "call" => "Time of the queueing call",
        "wakeups_per_1000" => "Wake-ups per 1000 calls",
        "read" => "Time of a read",
        "replace" => "Time of a replacement",
        "held" => "Longest waits of urgent tasks",
        "cost_mean" => "Mean cost of a probe",
        "cost" => "Highest cost of a probe",
        "bound" => "What no design can beat",
        "overhead_per_device" => "Overhead for each device",
        "overhead_ns_per_request" => "Overhead for each request",
        "cpus" => "CPUs on which probes ran",
        "calls_per_second" => "Calls per second",
        "latency" => "Latency",
        "makespan" => "Time for all",
        "short" => "Latency of the short items",
        "cpu_per_item" => "CPU time per item",
        "cpu_seconds" => "CPU time",
        "voluntary_switches" => "Voluntary context switches",
        "threads" => "Threads",
        "peak_rss" => "Largest memory",
        "allocations_per_item" => "Allocations per item",
        other => {
            let words = other.replace('_', " ");
            let mut letters = words.chars();
            return match letters.next() {
                Some(first) => first.to_uppercase().chain(letters).collect(),
                None => "Unnamed".to_owned(),
            };
        }
    };
    words.to_owned()
}

/// Whether an idle worker of this runtime spins for a good while before it sleeps. Its latencies are
/// to be held against others of that kind, or to be read with their CPU time.
pub(super) fn spins(variant: &str) -> bool {
    let names = ["rayon", "tbb", "glommio-spins", "seastar-poll-mode"];
    names.iter().any(|name| variant.starts_with(name))
}

/// How to read any of the charts.
pub(super) const READING: [&str; 4] = [
    "A bar or a point is the median of the runs that count, a whisker reaches from the smallest run \
     to the largest. Whiskers that overlap are no proof of anything; nor is one run of this page.",
    "Variants of one program were run round by round in random order, so that what drifts hits all \
     of them. The two programs were run at different moments: compare within a chart, never across \
     two.",
    "Points: circle p50, square p90 or p95, triangle p99, diamond p99.9, bar the largest. Filled \
     solid: Corewise. Hatched: the old design, or a bare floor. Light: other runtimes.",
    "Something is called a difference where the 95 % interval of the ratio of pairs excludes 1, the \
     ratio is off by more than 5 %, and by more than scopes with the same pods were.",
];

/// What to bear in mind when other runtimes stand beside.
pub(super) const UNFAIR: [&str; 7] = [
    "Reused items are Corewise's best case, and few peers have anything like them: against boxed \
     closures they win by the allocator. That is why the two have charts of their own.",
    "Who spins answers fast and burns CPU; who sleeps pays for a wake-up. Look at the CPU time beside \
     each latency.",
    "The default allocator frees slowly what another thread allocated, and that hurts boxed closures \
     of every runtime. Under another allocator the order may differ.",
    "Each runtime has as many workers as there are CPUs, or one where it is pinned. Threads of its \
     own (a garbage collector, a compiler, a poller) come on top and are counted in the CPU time.",
    "Rayon, oneTBB and ForkJoinPool are made for work that is spawned from within and helps while \
     it waits; a storm from outside isn't what they are tuned for. Async runtimes make a task with a \
     waker where a closure would do.",
    "Go has goroutines, no pool: its channel variant is the nearer match. Java is measured warm.",
    "On a virtual machine with few CPUs, waking a CPU that sleeps costs more than everything else, \
     and sharding can't be seen at all.",
];
