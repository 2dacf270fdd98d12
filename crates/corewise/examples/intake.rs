//! The intake of a server: it takes as many jobs as it can hold, and refuses the others at once. It
//! reads its configuration again when that has changed and settled, and prints a line on its work
//! each 20 ms.
//!
//! `cargo run --release -p corewise --example intake`
//!
//! It uses these features of a workqueue:
//!
//! - a capacity and `try_spawn`: the queue gives a job back instead of growing;
//! - `mod_delayed`: each change puts the reload off (a debounce);
//! - `every`: a tick, until its handle is dropped;
//! - a `Work` with a state of its own;
//! - `wait_timeout` and `abort_on_drop`: a job that takes too long is dropped.
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::error::Error;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use std::{fs, thread};

use corewise::prelude::*;
use corewise::sync::Counter;
use corewise::workqueue::{QueueError, Ticker};

/// The most jobs that wait or run. More are refused.
const CAPACITY: usize = 16;
/// The time without a change after which the configuration is read again.
const SETTLED: Duration = Duration::from_millis(50);

struct Server {
    queue: Workqueue,
    configuration: PathBuf,
    /// Rounds in which a job hashes its text, from the configuration.
    rounds: Arc<AtomicUsize>,
    reload: Work,
    /// Counter that all workers and clients add to, and that is read now and then.
    done: Arc<Counter>,
    refused: Counter,
    /// Ticker, which ends with the server.
    _ticker: Ticker,
}

/// The error of a server that is full.
struct Busy;

impl Server {
    fn start(pools: &WorkerPools, configuration: PathBuf) -> Result<Server, Box<dyn Error>> {
        let queue = Workqueue::builder("jobs").capacity(CAPACITY).build(pools)?;
        let (rounds, done) = (Arc::new(AtomicUsize::new(1_000)), Arc::new(Counter::new()));

        // The function of a `Work` may have a state of its own, without a lock: its runs never
        // overlap.
        let (file, its_rounds, mut reloads) = (configuration.clone(), Arc::clone(&rounds), 0);
        let reload = Work::new(move || {
            reloads += 1;
            match blocking("read", || read(&file)) {
                Ok(rounds) => its_rounds.store(rounds, Relaxed),
                Err(error) => println!("{}: {error}: the configuration stays", file.display()),
            }
            println!("configuration read: {reloads}");
        });

        let (its_done, mut before) = (Arc::clone(&done), 0);
        let ticker = queue.every(Duration::from_millis(20), move || {
            let now = its_done.total();
            println!("{} jobs in the last 20 ms", now - before);
            before = now;
        })?;
        let refused = Counter::new();
        Ok(Server { queue, configuration, rounds, reload, done, refused, _ticker: ticker })
    }

    /// Takes a job that hashes a text, over and over.
    fn submit(&self, text: String) -> Result<JoinHandle<u64>, Busy> {
        let (rounds, done) = (self.rounds.load(Relaxed), Arc::clone(&self.done));
        let job = move || {
            let mut hash = 0xcbf2_9ce4_8422_2325_u64;
            for byte in text.bytes().cycle().take(text.len() * rounds) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            done.add(1);
            hash
        };
        self.queue.try_spawn(job).map_err(|refused| {
            assert_eq!(refused.error, QueueError::Full, "it is open while there is a server");
            self.refused.add(1);
            Busy
        })
    }

    /// Changes the configuration. Many changes in a row become one reload.
    fn configure(&self, rounds: usize) -> Result<(), Box<dyn Error>> {
        let new = self.configuration.with_extension("new");
        fs::write(&new, format!("rounds = {rounds}"))?;
        fs::rename(&new, &self.configuration)?; // a reload finds the old or the new one
        self.queue.mod_delayed(&self.reload, SETTLED)?;
        Ok(())
    }
}

fn read(file: &Path) -> Result<usize, Box<dyn Error>> {
    let text = fs::read_to_string(file)?;
    let (_, rounds) = text.split_once("rounds = ").ok_or("it doesn't say `rounds = N`")?;
    Ok(rounds.trim().parse()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let pools = WorkerPools::new(&Machine::live()?);
    let file = std::env::temp_dir().join(format!("intake-{}.conf", std::process::id()));
    let server = Server::start(&pools, file.clone())?;

    thread::scope(|clients| {
        for client in 0..4 {
            let server = &server;
            clients.spawn(move || {
                // Each client submits 25 jobs at a time, and does without those that the server has
                // no room for.
                for round in 0..10 {
                    let ask = |n| server.submit(format!("{client}/{round}/{n}")).ok();
                    let answers: Vec<_> = (0..25).filter_map(ask).collect();
                    answers.into_iter().for_each(|job| drop(job.join()));
                }
            });
        }
        (1..=10).try_for_each(|n| server.configure(n * 1_000))
    })?;
    server.reload.flush_delayed(); // now, if it hasn't settled yet

    // A job that will never be over.
    let stuck = server.queue.spawn_future(pending::<()>()).abort_on_drop();
    if !stuck.wait_timeout(Duration::from_millis(5)) {
        drop(stuck);
        println!("one job took too long, and was dropped");
    }
    let (done, refused) = (server.done.total(), server.refused.total());
    println!("{} jobs asked for, {done} done, {refused} refused", done + refused);
    // A change that has not settled is not read any more.
    server.reload.cancel_sync();
    drop(server);
    pools.shutdown_timeout(Duration::from_secs(10)).map_err(|left| left.to_string())?;
    fs::remove_file(file)?;
    Ok(())
}
