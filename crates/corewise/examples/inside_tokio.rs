//! Use from inside tokio: its tasks await closures and futures that run on a workqueue, and futures
//! on the workqueue await tokio's channels.
//!
//! `cargo run --release -p corewise --example inside_tokio`
//!
//! A small service in tokio takes requests. Short work and waits stay there. Computation goes to a
//! workqueue, whose workers sit on the caches, so that tokio's own few threads stay free for I/O. A
//! task that awaits a [`JoinHandle`] holds no thread at all. The workers' threads are the program's
//! own: a spawn handler starts them inside the runtime.
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::error::Error;
use std::time::{Duration, Instant};

use corewise::prelude::*;
use tokio::sync::{mpsc, oneshot};

/// A request: count the primes below `below`.
struct Request {
    below: u32,
    reply: oneshot::Sender<usize>,
}

fn count_primes(below: u32) -> usize {
    let composite = |n: u32| (2..).take_while(|d| d * d <= n).any(|d| n % d == 0);
    (2..below).filter(|n| !composite(*n)).count()
}

/// Serves requests on tokio's side: each becomes a task, which awaits its closure on the workqueue.
async fn serve(queue: Workqueue, mut requests: mpsc::Receiver<Request>) -> usize {
    let mut served = 0;
    while let Some(Request { below, reply }) = requests.recv().await {
        let computed = queue.spawn(move || count_primes(below));
        tokio::spawn(async move {
            if let Ok(count) = computed.await {
                // The asker may have gone.
                let _ = reply.send(count);
            }
        });
        served += 1;
    }
    served
}

/// Measures how late tokio's timer is while the requests are served. A computation on tokio's own
/// thread would make it late.
async fn watch_latency(mut stop: oneshot::Receiver<()>) -> Duration {
    let tick = Duration::from_millis(1);
    let mut worst = Duration::ZERO;
    while stop.try_recv().is_err() {
        let begin = Instant::now();
        tokio::time::sleep_until(tokio::time::Instant::from_std(begin + tick)).await;
        worst = worst.max(begin.elapsed().saturating_sub(tick));
    }
    worst
}

async fn run(queue: Workqueue) -> Result<(), Box<dyn Error>> {
    let (requests, inbox) = mpsc::channel(16);
    let server = tokio::spawn(serve(queue.clone(), inbox));
    let (stop, stopped) = oneshot::channel();
    let watch = tokio::spawn(watch_latency(stopped));

    // A future on the workqueue that talks to tokio's tasks: channels need no runtime around them.
    let client = queue.spawn_future(async move {
        let mut answers = Vec::new();
        for below in (10_000..=100_000).step_by(10_000) {
            let (reply, answer) = oneshot::channel();
            if requests.send(Request { below, reply }).await.is_ok() {
                answers.push((below, answer));
            }
        }
        let mut counted = Vec::new();
        for (below, answer) in answers {
            counted.extend(answer.await.map(|count| (below, count)));
        }
        counted
    });
    let counted = client.await?;
    for (below, count) in &counted {
        println!("{count:>6} primes below {below:>6}");
    }
    assert_eq!(counted.last(), Some(&(100_000, 9_592)));

    // An aborted task says so; a panic would come back as a value, too.
    let endless = queue.spawn_future(std::future::pending::<()>());
    endless.abort();
    println!("an abort: {}", endless.await.expect_err("it was aborted"));

    // The client is over, so the server's inbox is closed.
    let served = server.await?;
    let _ = stop.send(());
    println!("{served} requests; tokio's timer was at most {:?} late meanwhile", watch.await?);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // One thread is enough, since tasks only wait.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    // A worker is inside the runtime for as long as it lives, so that a closure may spawn tasks
    // there.
    let tokio = runtime.handle().clone();
    let pools = WorkerPools::builder(&Machine::live()?)
        .max_threads(64)
        .idle_timeout(Duration::from_secs(1))
        .spawn_handler(move |worker| {
            let tokio = tokio.clone();
            let thread = std::thread::Builder::new().name(worker.name().into());
            let run = move || {
                let _inside = tokio.enter();
                worker.run();
            };
            thread.spawn(run).map(drop)
        })
        .build();
    let queue = Workqueue::builder("compute").build(&pools)?;
    runtime.block_on(run(queue.clone()))?;
    println!("polls and closures on the workqueue: {}", queue.stats().completed);
    pools.shutdown();
    Ok(())
}
