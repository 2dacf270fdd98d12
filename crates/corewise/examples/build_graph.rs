//! A parallel build of a dependency graph: a target starts when the last thing it needs is built.
//!
//! `cargo run --release -p corewise --example build_graph`
//!
//! No worker ever waits for another target. Each target counts what it still needs, and the worker
//! that builds the last of that spawns it. The scope lets all of them borrow the graph.
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::collections::HashMap;
use std::error::Error;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use corewise::prelude::*;
use corewise::workqueue::Scope;

/// The name, cost (ten thousands of hash rounds) and needs of each target.
const TARGETS: &[(&str, u32, &[&str])] = &[
    ("config.h", 20, &[]),
    ("grammar.c", 50, &["config.h"]),
    ("lexer.o", 30, &["grammar.c"]),
    ("parser.o", 70, &["grammar.c"]),
    ("ast.o", 40, &["config.h"]),
    ("types.o", 60, &["config.h"]),
    ("optimizer.o", 120, &["config.h"]),
    ("codegen.o", 90, &["config.h"]),
    ("net.o", 50, &["config.h"]),
    ("tls.o", 80, &["config.h"]),
    ("libfront.a", 10, &["lexer.o", "parser.o", "ast.o", "types.o"]),
    ("libback.a", 10, &["optimizer.o", "codegen.o", "ast.o"]),
    ("libnet.a", 10, &["net.o", "tls.o"]),
    ("compiler", 20, &["libfront.a", "libback.a"]),
    ("server", 20, &["libfront.a", "libnet.a"]),
    ("manual.pdf", 100, &["grammar.c"]),
    ("tests", 60, &["compiler", "server"]),
];

struct Target {
    name: &'static str,
    cost: u32,
    needs: Vec<usize>,
    needed_by: Vec<usize>,
    /// Number of `needs` that aren't built.
    missing: AtomicUsize,
    built: OnceLock<Built>,
}

struct Built {
    digest: u64,
    started: Duration,
    took: Duration,
}

fn graph() -> Vec<Target> {
    let number: HashMap<_, _> =
        TARGETS.iter().enumerate().map(|(n, (name, ..))| (*name, n)).collect();
    let mut graph: Vec<Target> = Vec::new();
    for (name, cost, needs) in TARGETS {
        let needs: Vec<usize> = needs.iter().map(|need| number[need]).collect();
        for &need in &needs {
            let this = graph.len();
            graph[need].needed_by.push(this);
        }
        let missing = AtomicUsize::new(needs.len());
        let (cost, needed_by, built) = (*cost, Vec::new(), OnceLock::new());
        graph.push(Target { name, cost, needs, needed_by, missing, built });
    }
    graph
}

/// Builds a target: hashes what it needs, many times over, in place of a compiler.
fn build(graph: &[Target], n: usize, begin: Instant) {
    let started = begin.elapsed();
    let mut hasher = DefaultHasher::new();
    graph[n].name.hash(&mut hasher);
    for need in &graph[n].needs {
        graph[*need].built.get().expect("it was built before").digest.hash(&mut hasher);
    }
    let mut digest = hasher.finish();
    for _ in 0..graph[n].cost * 10_000 {
        digest = digest.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ u64::from(n as u32);
    }
    let took = begin.elapsed() - started;
    assert!(graph[n].built.set(Built { digest, started, took }).is_ok(), "built once");
}

/// Builds a target on a worker, then spawns those that needed nothing else.
fn spawn<'s>(s: &'s Scope<'s, '_>, graph: &'s [Target], n: usize, begin: Instant) {
    s.spawn(move || {
        build(graph, n, begin);
        for &next in &graph[n].needed_by {
            if graph[next].missing.fetch_sub(1, Ordering::AcqRel) == 1 {
                spawn(s, graph, next, begin);
            }
        }
    });
}

fn main() -> Result<(), Box<dyn Error>> {
    let machine = Machine::live()?;
    let pools = WorkerPools::new(&machine);
    let queue = Workqueue::builder("build").build(&pools)?;

    let (parallel, begin) = (graph(), Instant::now());
    queue.scope(|s| {
        for n in (0..parallel.len()).filter(|&n| parallel[n].needs.is_empty()) {
            spawn(s, &parallel, n, begin);
        }
    });
    let took = begin.elapsed();

    let (serial, begin) = (graph(), Instant::now());
    (0..serial.len()).for_each(|n| build(&serial, n, begin));
    let one_by_one = begin.elapsed();

    let mut longest = vec![Duration::ZERO; parallel.len()];
    for (n, target) in parallel.iter().enumerate() {
        let built = target.built.get().ok_or("a target was never built")?;
        assert_eq!(built.digest, serial[n].built.get().map_or(0, |built| built.digest));
        let before = target.needs.iter().map(|&need| longest[need]).max().unwrap_or_default();
        longest[n] = before + built.took;
        let column = |at: Duration| (at.as_secs_f64() / took.as_secs_f64() * 56.0) as usize;
        let (from, to) = (column(built.started), column(built.started + built.took));
        let bar = "=".repeat((to - from).max(1));
        println!("{:>12} |{:from$}{bar}", target.name, "");
    }
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let critical = longest.into_iter().max().unwrap_or_default();
    println!(
        "{} targets in {:.1} ms on {} CPUs; one by one {:.1} ms; the longest chain {:.1} ms",
        parallel.len(),
        ms(took),
        machine.housekeeping().len(),
        ms(one_by_one),
        ms(critical),
    );
    pools.shutdown();
    Ok(())
}
