//! The workloads of lab/peers/src/fork/mod.rs on Forte: their words in, their line out.
//!
//! The calling thread takes part (`with_worker`), with one thread fewer than there are CPUs beside
//! it. Forte has no map.

mod work;

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};

use forte::{ThreadPool, Worker};
use work::{Forks, Serial, Work};

static POOL: ThreadPool = ThreadPool::new();

struct Forte;

impl Forks for Forte {
    type Handle<'h> = &'h Worker;

    #[inline]
    fn join<A: Send, B: Send>(
        here: &mut &Worker,
        a: impl FnOnce(&mut &Worker) -> A + Send,
        b: impl FnOnce(&mut &Worker) -> B + Send,
    ) -> (A, B) {
        here.join(|worker| a(&mut &*worker), |worker| b(&mut &*worker))
    }
}

/// Spans and CPU time of passes.
#[derive(Default)]
struct Passes {
    spans: Vec<Duration>,
    used: Usage,
}

impl Passes {
    fn time<T>(&mut self, pass: impl FnOnce() -> T) -> T {
        let (before, began) = (Usage::now(), Instant::now());
        let output = pass();
        self.spans.push(began.elapsed());
        let after = Usage::now();
        self.used.cpu_ns += after.cpu_ns - before.cpu_ns;
        self.used.switches += after.switches - before.switches;
        self.used.rss = after.rss;
        output
    }

    /// Returns the median span, and the CPU time of a pass, in nanoseconds.
    fn figures(&mut self) -> (f64, f64) {
        self.spans.sort_unstable();
        let middle = self.spans[(self.spans.len() - 1) / 2];
        (middle.as_nanos() as f64, self.used.cpu_ns / self.spans.len() as f64)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words = std::env::args().skip(1);
    let words: HashMap<String, String> = words
        .filter_map(|word| word.split_once('=').map(|(key, value)| (key.into(), value.into())))
        .collect();
    let text = |key: &str| words.get(key).map_or("", String::as_str);
    let number = |key: &str| text(key).parse::<usize>().unwrap_or(0);
    let (case, runtime) = (text("case"), text("runtime"));
    if let Ok(cpu) = text("worker_cpu").parse() {
        pin(cpu);
    }
    POOL.resize_to(number("workers") - 1);
    let steps = number("quick_steps") as u64;
    let work = Work::new(case, number("items"), number("times"), steps).ok_or("no such case")?;
    let check = |passes: &mut Passes| {
        let blank = work.blank();
        let output = passes
            .time(|| POOL.with_worker(|worker| work.pass::<Forte>(&mut &*worker, blank)));
        if work.is_right(&output) { Ok(()) } else { Err("a wrong result") }
    };
    let [mut dropped, mut passes, mut plain] = [(); 3].map(|()| Passes::default());
    check(&mut dropped)?;
    for _ in 0..number("passes") {
        check(&mut passes)?;
        if case == "forks" {
            plain.time(|| work.pass::<Serial>(&mut (), work.blank()));
        }
    }
    let items = work.items() as f64;
    let (span, cpu) = passes.figures();
    let mut metrics = vec![
        ("makespan_p50", span),
        ("items_per_second", items / span * 1e9),
        ("cpu_per_item", cpu / items),
        ("cpu_seconds", passes.used.cpu_ns / 1e9),
        ("voluntary_switches", passes.used.switches * 1e6 / items / passes.spans.len() as f64),
        ("peak_rss", passes.used.rss),
    ];
    if case == "forks" {
        let (plain_span, plain_cpu) = plain.figures();
        metrics.push(("fork_ns", (span - plain_span) / items));
        metrics.push(("fork_cpu_ns", (cpu - plain_cpu) / items));
    }
    let metrics: Vec<String> =
        metrics.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    let metrics = metrics.join(",");
    println!("{{\"case\":\"{case}\",\"runtime\":\"{runtime}\",\"metrics\":{{{metrics}}}}}");
    Ok(())
}

/// User and system time, voluntary switches and peak memory of the process.
#[derive(Default)]
struct Usage {
    cpu_ns: f64,
    switches: f64,
    rss: f64,
}

impl Usage {
    fn now() -> Usage {
        // SAFETY: all zeroes is a valid `rusage`: it holds integers only.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a `rusage` that lives through the call.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let ns = |time: libc::timeval| time.tv_sec as f64 * 1e9 + time.tv_usec as f64 * 1e3;
        Usage {
            cpu_ns: ns(usage.ru_utime) + ns(usage.ru_stime),
            switches: usage.ru_nvcsw as f64,
            rss: usage.ru_maxrss as f64 * 1024.0,
        }
    }
}

/// Confines this thread, and those that it starts, to a CPU.
fn pin(cpu: usize) {
    // SAFETY: all zeroes is a valid, empty `cpu_set_t`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the macro writes into the set, within its size for every CPU that a session names.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set lives through the call, and its size is given.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
}
