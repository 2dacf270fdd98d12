//! A cache warmer that works node by node: each NUMA node's memory is first touched, and then read,
//! by workers of that node.
//!
//! `cargo run --release -p corewise --example cache_warmer -- [--synthetic SPEC] [--mib N]`
//!
//! Linux puts a page on the node of the CPU that touches it first. So a cache filled by the thread
//! that happens to run ends up anywhere. A cache filled through `s.at(At::Node(n))` lies where its
//! readers are. On a described machine (`--synthetic 'numa:2 l3:2 core:8 pu:1'`) the placement is
//! the same, but its CPUs don't exist, so the times mean nothing.
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::collections::HashSet;
use std::error::Error;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use corewise::prelude::*;
use corewise::sync::context::Placement;
use corewise::workqueue::At;

/// Words in a chunk: 1 MiB.
const CHUNK: usize = (1 << 20) / size_of::<u64>();

struct Options {
    machine: Machine,
    /// MiB a node.
    mib: usize,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let (mut machine, mut mib) = (None, 16);
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or(format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--synthetic" => machine = Some(Machine::synthetic(&value)?),
            "--mib" => mib = value.parse()?,
            _ => return Err(format!("unknown flag {flag}: it is --synthetic or --mib").into()),
        }
    }
    Ok(Options { machine: machine.map_or_else(Machine::live, Ok)?, mib })
}

/// A node's part of the cache. Its memory is allocated here, and placed when it is touched.
struct Part {
    node: Option<u32>,
    memory: Vec<u64>,
}

/// The cost of a pass over a part, and the workers of the node that took part in it.
struct Pass {
    took: Duration,
    workers: HashSet<ThreadId>,
}

/// Runs `each` on every chunk of a part, on workers of its node.
fn pass(queue: &Workqueue, part: &mut Part, each: impl Fn(&mut [u64]) + Sync) -> Pass {
    let (begin, node, each) = (Instant::now(), part.node, &each);
    let at = node.map_or(At::Here, At::Node);
    let workers = queue.scope(|s| {
        let run = |chunk| {
            s.at(at).spawn(move || {
                each(chunk);
                let near = Placement::current().is_some_and(|at| node.is_none() || at.node == node);
                near.then(|| std::thread::current().id())
            })
        };
        let chunks: Vec<_> = part.memory.chunks_mut(CHUNK).map(run).collect();
        chunks.into_iter().filter_map(|chunk| chunk.join().expect("no panic")).collect()
    });
    Pass { took: begin.elapsed(), workers }
}

fn main() -> Result<(), Box<dyn Error>> {
    let Options { machine, mib } = options()?;
    let pools = WorkerPools::new(&machine);
    // A pod is a whole node, and strict: an idle worker of another node would place a chunk on the
    // wrong node.
    let queue = Workqueue::builder("warmer").scope(AffinityScope::Numa).strict(true);
    let queue = queue.build(&pools)?;

    let mut nodes: Vec<_> = machine.topology().nodes().iter().map(|n| Some(n.node)).collect();
    if nodes.is_empty() {
        nodes.push(None);
    }
    println!(
        "{:>6} {:>14} {:>6} {:>16} {:>16} {:>8}",
        "node", "CPUs", "MiB", "first touch", "second pass", "workers"
    );
    let mut wrong = 0;
    for node in nodes {
        let mut part = Part { node, memory: Vec::new() };
        // The zeroes of `vec![0; n]` aren't written, which would place them here.
        part.memory = vec![0; mib * CHUNK];
        let fill = pass(&queue, &mut part, |chunk| {
            for (n, word) in chunk.iter_mut().enumerate() {
                *word = n as u64;
            }
        });
        let read = pass(&queue, &mut part, |chunk| {
            let sum: u64 = chunk.iter().sum();
            assert_eq!(sum, (chunk.len() * (chunk.len() - 1) / 2) as u64);
        });
        let rate = |pass: &Pass| mib as f64 / 1024.0 / pass.took.as_secs_f64();
        let cpus = node.and_then(|n| machine.topology().node(n)).map(|n| n.cpus.to_string());
        wrong += usize::from(fill.workers.is_empty());
        println!(
            "{:>6} {:>14} {mib:>6} {:>10.2} GiB/s {:>10.2} GiB/s {:>8}",
            node.map_or("-".into(), |n| n.to_string()),
            cpus.unwrap_or_else(|| machine.online().to_string()),
            rate(&fill),
            rate(&read),
            fill.workers.len(),
        );
    }
    queue.flush();
    let stats = queue.stats();
    println!("{} chunks, {} ran outside their node", stats.completed, stats.overflowed);
    pools.shutdown();
    if wrong > 0 {
        Err(format!("{wrong} nodes were warmed by nobody of theirs").into())
    } else {
        Ok(())
    }
}
