//! The call workloads of lab/bench/src/calls/mod.rs on glommio: their words in, their line out.
//!
//! The settings are the best documented ones. An executor is pinned to each CPU
//! (`Placement::Fixed`). A `shared_channel` leads each way between the caller's executor and every
//! called one: glommio's way from shard to shard. The caller is a task, and so is the answerer.
//! `glommio` parks at once, its default; `glommio-spins` has `spin_before_park`, long enough for
//! every gap.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use glommio::channels::shared_channel::{
    ConnectedReceiver, ConnectedSender, SharedReceiver, SharedSender, new_bounded,
};
use glommio::{LocalExecutorBuilder, Placement};

/// Longer than any gap between two calls.
const SPIN: Duration = Duration::from_millis(20);
/// One message at a time is on its way.
const ROOM: usize = 2;

struct Words(HashMap<String, String>);

impl Words {
    fn text(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    fn number(&self, key: &str) -> usize {
        self.text(key).parse().unwrap_or(0)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words = std::env::args().skip(1);
    let words: HashMap<String, String> = words
        .filter_map(|word| word.split_once('=').map(|(key, value)| (key.into(), value.into())))
        .collect();
    let words = Words(words);
    let (case, runtime) = (words.text("case").to_owned(), words.text("runtime").to_owned());
    let spins = runtime == "glommio-spins";
    let client_cpu = words.number("client_cpu");
    // The caller of a broadcast does its own share itself.
    let (own, called): (u64, Vec<usize>) = match case.strip_prefix("broadcast/") {
        Some(cpus) => {
            let all = online();
            let wanted = all.into_iter().take(cpus.parse()?);
            let (own, called): (Vec<usize>, Vec<usize>) =
                wanted.partition(|&cpu| cpu == client_cpu);
            (own.len() as u64, called)
        }
        None => (0, vec![words.number("server_cpu")]),
    };

    let (mut requests, mut answers, mut servers) = (Vec::new(), Vec::new(), Vec::new());
    for &cpu in &called {
        let (request, receive) = new_bounded::<u64>(ROOM);
        let (answer, get) = new_bounded::<u64>(ROOM);
        requests.push(request);
        answers.push(get);
        servers.push(builder(cpu, spins).spawn(move || serve(receive, answer))?);
    }
    let over = Arc::new(AtomicBool::new(false));
    let busy = (case == "roundtrip/busy").then(|| {
        let (over, cpu) = (Arc::clone(&over), called[0]);
        std::thread::spawn(move || {
            pin(cpu);
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
    });

    let items = words.number("items").max(1);
    let gap = Duration::from_micros(words.number("gap_us") as u64);
    let client = builder(client_cpu, spins).spawn(move || async move {
        // Timers of this thread end when they should.
        // SAFETY: it takes numbers only, and changes nothing but this thread's slack.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1u64) };
        let mut client = Client::connect(requests, answers, own).await;
        client.calls(items.div_ceil(10), gap).await;
        client.samples.clear();
        let before = cpu_ns();
        client.calls(items, gap).await;
        (client.samples, cpu_ns() - before)
    })?;
    let (mut samples, cpu) = client.join()?;
    over.store(true, Ordering::Relaxed);
    for server in servers {
        server.join()?;
    }
    if let Some(busy) = busy {
        busy.join().map_err(|_| "the busy thread panicked")?;
    }

    samples.sort_unstable();
    let mut metrics = vec![
        format!("\"latency_p50\":{}", percentile(&samples, 50.0)),
        format!("\"latency_p99\":{}", percentile(&samples, 99.0)),
    ];
    if samples.len() >= 5_000 {
        metrics.push(format!("\"latency_p999\":{}", percentile(&samples, 99.9)));
    }
    if case != "roundtrip/busy" {
        metrics.push(format!("\"cpu_per_item\":{}", cpu / samples.len() as u64));
    }
    let metrics = metrics.join(",");
    println!("{{\"case\":\"{case}\",\"runtime\":\"{runtime}\",\"metrics\":{{{metrics}}}}}");
    Ok(())
}

fn builder(cpu: usize, spins: bool) -> LocalExecutorBuilder {
    let builder = LocalExecutorBuilder::new(Placement::Fixed(cpu));
    if spins { builder.spin_before_park(SPIN) } else { builder }
}

async fn serve(requests: SharedReceiver<u64>, answers: SharedSender<u64>) {
    let requests = requests.connect().await;
    let answers = answers.connect().await;
    while let Some(number) = requests.recv().await {
        if answers.send(number + 1).await.is_err() {
            return;
        }
    }
}

struct Client {
    requests: Vec<ConnectedSender<u64>>,
    answers: Vec<ConnectedReceiver<u64>>,
    own: u64,
    number: u64,
    samples: Vec<u64>,
}

impl Client {
    async fn connect(
        requests: Vec<SharedSender<u64>>,
        answers: Vec<SharedReceiver<u64>>,
        own: u64,
    ) -> Client {
        let mut client =
            Client { requests: vec![], answers: vec![], own, number: 0, samples: vec![] };
        for (request, answer) in requests.into_iter().zip(answers) {
            client.requests.push(request.connect().await);
            client.answers.push(answer.connect().await);
        }
        client
    }

    async fn calls(&mut self, count: usize, gap: Duration) {
        self.samples.reserve(count);
        for _ in 0..count {
            if !gap.is_zero() {
                glommio::timer::sleep(gap).await;
            }
            self.number += 1;
            let before = Instant::now();
            let answer = self.call(self.number).await;
            self.samples.push(before.elapsed().as_nanos() as u64);
            let all = self.requests.len() as u64 + self.own;
            assert_eq!(answer, all * (self.number + 1), "a wrong answer");
        }
    }

    async fn call(&self, number: u64) -> u64 {
        for request in &self.requests {
            assert!(request.send(number).await.is_ok(), "the server has ended");
        }
        let mut sum = self.own * (number + 1);
        for answer in &self.answers {
            sum += answer.recv().await.expect("the server has ended");
        }
        sum
    }
}

/// Returns the smallest sample that `percent` of all don't exceed.
fn percentile(sorted: &[u64], percent: f64) -> u64 {
    let rank = (percent * sorted.len() as f64 / 100.0 - 1e-6).ceil() as usize;
    sorted[rank.max(1) - 1]
}

/// Returns the user and system time of the process.
fn cpu_ns() -> u64 {
    // SAFETY: all zeroes is a valid `rusage`: it holds integers only.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a `rusage` that lives through the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

fn pin(cpu: usize) {
    // SAFETY: all zeroes is a valid, empty `cpu_set_t`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the macro writes into the set, within its size for every CPU that glommio pins to.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set lives through the call, and its size is given.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) };
}

/// Returns the online CPUs, in order.
fn online() -> Vec<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}
