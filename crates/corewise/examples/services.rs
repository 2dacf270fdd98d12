//! A web of 200 asynchronous services, started and stopped from tokio in the order of their
//! dependencies.
//!
//! `cargo run --release -p corewise --example services`
//!
//! A server has connections to other machines, shards of data that need some of these, and
//! listeners that need shards. Each is a task of tokio with an inbox, and each takes its time to
//! come up and to drain. The device manager knows the dependencies: it starts each service as soon
//! as its suppliers are up, and stops each as soon as no consumer is left. A probe and a shutdown
//! are *begun* on a worker and finished later, from tokio: so no thread waits for any of them.
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use corewise::device::{
    Bound, BringUpOptions, DeviceDecl, DeviceManager, Driver, ProbeContext, ProbeDone, ProbeError,
    ShutdownDone, ShutdownError, ShutdownOptions,
};
use corewise::prelude::*;
use corewise::timeline::Timeline;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

const CONNECTIONS: usize = 128;
const SHARDS: usize = 48;
const LISTENERS: usize = 24;

/// A message to a service.
enum Message {
    /// A new consumer.
    Hello,
    /// The end of a consumer.
    Bye,
    /// A question.
    Ask(oneshot::Sender<String>),
    /// The order to stop, and the way to report the end.
    Stop(ShutdownDone),
}

/// The address of a service.
#[derive(Clone)]
struct Inbox(mpsc::UnboundedSender<Message>);

impl Inbox {
    async fn ask(&self) -> Option<String> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Message::Ask(reply)).ok()?;
        answer.await.ok()
    }
}

/// A service that is up, as the device manager holds it.
struct Service {
    inbox: Inbox,
}

impl Bound for Service {
    fn start_shutdown(self: Arc<Self>, done: ShutdownDone) {
        // A service that has died drops the message, and `done` with it: that counts as a failure.
        let _ = self.inbox.0.send(Message::Stop(done));
    }
}

/// The driver that starts services as tasks of a runtime.
struct Services {
    runtime: Handle,
}

impl Driver for Services {
    fn name(&self) -> &str {
        "service"
    }

    fn start_probe(&self, cx: &ProbeContext<'_>, done: ProbeDone) {
        let (takes, needs) = match (cx.config::<Duration>(), cx.suppliers::<Service>()) {
            (Ok(takes), Ok(needs)) => (*takes, needs),
            (Err(error), _) | (_, Err(error)) => return done.finish(Err(error)),
        };
        // The task gets the inboxes, not the services: the manager owns those, and drops them in
        // order.
        let needs: Vec<Inbox> = needs.iter().map(|service| service.inbox.clone()).collect();
        let name = cx.name().to_string();
        self.runtime.spawn(async move {
            let up = start(name, takes, needs).await;
            done.finish(up.map(|service| Arc::new(service) as Arc<dyn Bound>));
        });
    }
}

/// Waits in place of a real service's waits: for packets of a handshake, for the replay of a log.
async fn wait(time: Duration) {
    tokio::time::sleep_until(tokio::time::Instant::now() + time).await;
}

/// Starts a service, which shakes hands with its suppliers, and takes its time.
async fn start(name: String, takes: Duration, needs: Vec<Inbox>) -> Result<Service, ProbeError> {
    for need in &needs {
        // The supplier was started before: otherwise there would be no inbox.
        let _ = need.0.send(Message::Hello);
        let answer = need.ask().await;
        answer.ok_or_else(|| ProbeError::failed("a service that it needs has died"))?;
    }
    wait(takes).await;
    let (inbox, messages) = mpsc::unbounded_channel();
    tokio::spawn(serve(name, takes, needs, messages));
    Ok(Service { inbox: Inbox(inbox) })
}

/// Runs a service until it is stopped.
async fn serve(
    name: String,
    takes: Duration,
    needs: Vec<Inbox>,
    mut messages: mpsc::UnboundedReceiver<Message>,
) {
    let mut users = 0_usize;
    while let Some(message) = messages.recv().await {
        match message {
            Message::Hello => users += 1,
            Message::Bye => users -= 1,
            Message::Ask(reply) => {
                let of = needs.len();
                // The asker may have gone.
                let _ = reply.send(format!("{name} is up, and stands on {of} others"));
            }
            Message::Stop(done) => {
                // Jobs under way are drained.
                wait(takes / 2).await;
                for need in &needs {
                    let _ = need.0.send(Message::Bye);
                }
                return done.finish(match users {
                    0 => Ok(()),
                    _ => Err(ShutdownError::new(format!("{users} services still used it"))),
                });
            }
        }
    }
}

/// Returns the services and their dependencies. Listeners come first: the order of the list doesn't
/// matter.
fn web() -> Vec<DeviceDecl> {
    let service = |kind: &str, n: usize, takes: u64| {
        let takes = Duration::from_millis(takes);
        DeviceDecl::new(format!("{kind}{n}"), "service").config(takes)
    };
    let mut web = Vec::new();
    for n in 0..LISTENERS {
        let shards = (0..4).map(|i| format!("shard{}", (2 * n + i) % SHARDS));
        web.push(shards.fold(service("listener", n, 2), DeviceDecl::supplier));
    }
    for n in 0..SHARDS {
        let connections = (0..3).map(|i| format!("connection{}", (5 * n + i) % CONNECTIONS));
        let takes = 5 + (n as u64 * 7) % 20;
        web.push(connections.fold(service("shard", n, takes), DeviceDecl::supplier));
    }
    web.extend((0..CONNECTIONS).map(|n| service("connection", n, 10 + (n as u64 * 13) % 30)));
    web
}

async fn run(devices: Arc<DeviceManager>) -> Result<(), Box<dyn Error>> {
    // Both calls block until all is done, so they get a thread of their own, and tokio's thread
    // serves.
    let its = devices.clone();
    let up = tokio::task::spawn_blocking(move || its.bring_up(web(), &BringUpOptions::new()));
    let up = up.await??;
    for failed in up.not_bound() {
        println!("{} did not come up: {:?}", failed.name, failed.outcome);
    }
    say("up", up.bound().count(), &up.timeline());

    let listener = devices.bound::<Service>("listener7").ok_or("there is no listener7")?;
    println!("{}", listener.inbox.ask().await.ok_or("listener7 has died")?);
    drop(listener);

    let its = devices.clone();
    let down = tokio::task::spawn_blocking(move || its.shutdown(&ShutdownOptions::new()));
    let down = down.await??;
    for failed in &down.failed {
        println!("{} did not stop as it should: {}", failed.device, failed.error);
    }
    say("down", down.order().count(), &down.timeline());
    println!("{} failed, {} left", down.failed.len(), down.remaining.len());
    Ok(())
}

fn say(what: &str, services: usize, timeline: &Timeline) {
    println!(
        "{services} services {what} in {}; one by one it would be {}",
        timeline.makespan(),
        timeline.serial_sum()
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let pools = WorkerPools::new(&Machine::live()?);
    // One thread is enough, since tasks only wait.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let devices = Arc::new(DeviceManager::new(&pools)?);
    devices.register(Arc::new(Services { runtime: runtime.handle().clone() }))?;
    runtime.block_on(run(devices))?;
    let workers: usize = pools.report().iter().map(|pool| pool.workers).sum();
    println!("threads of the pools: {workers}");
    pools.shutdown();
    Ok(())
}
