//! A dump as JSON. The names are a promise; `docs/control.md` explains each.

use corewise::workqueue::{Dump, QueueStats, SlotPlace};
use serde::{Deserialize, Serialize};

/// All data about pools and queues. CPU sets are lists such as `0-3,8`, times are seconds.
///
/// Missing fields get defaults when it is read, so that a client can show the dump of an older
/// server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Document {
    pub(crate) cpus: String,
    pub(crate) housekeeping: String,
    pub(crate) cpu_quota: Option<f64>,
    pub(crate) epoch: u64,
    pub(crate) scopes: Vec<Scope>,
    /// Pools of worker threads.
    pub pools: Vec<Pool>,
    /// Queues that use them.
    pub queues: Vec<Queue>,
    pub(crate) running: Vec<RunningItem>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Scope {
    pub(crate) scope: String,
    pub(crate) default: bool,
    pub(crate) pods: Vec<Pod>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Pod {
    pub(crate) pod: u32,
    pub(crate) cpus: String,
    pub(crate) node: Option<u32>,
}

/// A pool of worker threads.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Number of the pool.
    pub pool: usize,
    pub(crate) kind: String,
    pub(crate) nice: i32,
    /// Affinity scope of its pod.
    pub scope: String,
    pub(crate) strict: bool,
    /// Number of its pod in that scope.
    pub pod: u32,
    pub(crate) node: Option<u32>,
    /// CPUs of its workers.
    pub cpus: String,
    pub(crate) away: bool,
    pub(crate) queues: usize,
    /// Threads of the pool.
    pub workers: usize,
    /// Workers that have nothing to do.
    pub idle: usize,
    pub(crate) blocked: usize,
    /// Items that wait for a worker.
    pub waiting: usize,
    /// Items that the pool has run.
    pub ran: u64,
    pub(crate) taken_over: u64,
    pub(crate) wakeups: u64,
    pub(crate) threads_made: u64,
    pub(crate) caught: u64,
    /// CPU time of its workers.
    pub cpu_seconds: f64,
}

/// A workqueue.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Queue {
    /// Number of the queue.
    pub id: u64,
    /// Name of the queue, which others may have, too.
    pub name: String,
    pub(crate) kind: String,
    pub(crate) scope: String,
    pub(crate) strict: bool,
    pub(crate) cpus: Option<String>,
    pub(crate) nice: i32,
    pub(crate) max_active: Option<usize>,
    pub(crate) capacity: Option<usize>,
    /// Items that were refused because the queue was full.
    pub refused: u64,
    /// Items that are queued or run.
    pub in_flight: u64,
    pub(crate) running: u64,
    /// Items that have begun to run.
    pub started: u64,
    pub(crate) delayed: usize,
    /// True if the run time of items is measured.
    pub timed: bool,
    pub(crate) rescuer: bool,
    /// Sum over its pools.
    #[serde(flatten)]
    pub counters: Counters,
    /// Running items, by place.
    pub active: Vec<ActivePlace>,
    pub(crate) pools: Vec<Link>,
}

/// The items of a queue that run at once in one place.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivePlace {
    #[serde(rename = "for")]
    pub(crate) place: String,
    pub(crate) active: usize,
    pub(crate) max: Option<usize>,
    /// Items held back because the limit is reached.
    pub held: usize,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RunningItem {
    pub(crate) pool: usize,
    pub(crate) worker: u32,
    pub(crate) thread: Option<u32>,
    pub(crate) instance: u64,
    pub(crate) queue: u64,
    pub(crate) function: String,
    pub(crate) site: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Link {
    pub(crate) pool: usize,
    pub(crate) in_flight: u64,
    #[serde(flatten)]
    pub(crate) counters: Counters,
}

/// The counters of a queue's items.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Counters {
    pub(crate) queued: u64,
    /// Items that have ended.
    pub completed: u64,
    pub(crate) cancelled: u64,
    /// Items that ran away from the pod on which they were queued.
    pub overflowed: u64,
    pub(crate) taken_back: u64,
    /// Run time of items, if it is measured.
    pub run_seconds: f64,
    /// Number of times that an item computed for long.
    pub cpu_intensive: u64,
    /// Number of times that an item slept without declaring it to the pool.
    pub blocked_untold: u64,
    /// Number of times that a rescuer was called.
    pub maydays: u64,
    /// Items that a rescuer has run.
    pub rescued: u64,
}

impl From<&QueueStats> for Counters {
    fn from(stats: &QueueStats) -> Counters {
        Counters {
            queued: stats.queued,
            completed: stats.completed,
            cancelled: stats.cancelled,
            overflowed: stats.overflowed,
            taken_back: stats.taken_back,
            run_seconds: stats.run_time.as_secs_f64(),
            cpu_intensive: stats.cpu_intensive,
            blocked_untold: stats.blocked_untold,
            maydays: stats.maydays,
            rescued: stats.rescued,
        }
    }
}

impl From<&Dump> for Document {
    fn from(dump: &Dump) -> Document {
        let scopes = dump.scopes.iter().map(|scope| Scope {
            scope: scope.scope.to_string(),
            default: scope.default,
            pods: scope
                .pods
                .iter()
                .map(|pod| Pod { pod: pod.pod, cpus: pod.cpus.to_string(), node: pod.node })
                .collect(),
        });
        let pools = dump.pools.iter().map(|pool| {
            let state = &pool.state;
            Pool {
                pool: pool.id,
                kind: pool.kind.to_string(),
                nice: pool.nice,
                scope: state.scope.to_string(),
                strict: state.strict,
                pod: state.pod,
                node: state.node,
                cpus: state.cpus.to_string(),
                away: state.away,
                queues: pool.links,
                workers: state.workers,
                idle: state.idle,
                blocked: state.blocked,
                waiting: state.waiting,
                ran: state.ran,
                taken_over: state.taken_over,
                wakeups: state.wakeups,
                threads_made: state.threads_made,
                caught: state.caught,
                cpu_seconds: pool.cpu_time.as_secs_f64(),
            }
        });
        let queues = dump.queues.iter().map(|queue| Queue {
            id: queue.id,
            name: queue.name.clone(),
            kind: queue.kind.to_string(),
            scope: queue.scope.to_string(),
            strict: queue.strict,
            cpus: queue.cpus.as_ref().map(ToString::to_string),
            nice: queue.nice,
            max_active: queue.max_active,
            capacity: queue.capacity,
            refused: queue.refused,
            in_flight: queue.in_flight,
            running: queue.running,
            started: queue.started(),
            delayed: queue.delayed,
            timed: queue.timed,
            rescuer: queue.rescuer,
            counters: Counters::from(&queue.stats),
            active: queue
                .slots
                .iter()
                .map(|slot| ActivePlace {
                    place: match slot.place {
                        SlotPlace::Node(node) => format!("node {node}"),
                        SlotPlace::NoNode => "no node".to_string(),
                        SlotPlace::Pod(pod) => format!("pod {pod}"),
                        _ => "queue".to_string(),
                    },
                    active: slot.active,
                    max: slot.max,
                    held: slot.held,
                })
                .collect(),
            pools: queue
                .links
                .iter()
                .map(|link| Link {
                    pool: link.pool,
                    in_flight: link.in_flight,
                    counters: Counters::from(&link.stats),
                })
                .collect(),
        });
        let running = dump.running.iter().map(|running| RunningItem {
            pool: running.pool,
            worker: running.worker,
            thread: running.thread,
            instance: running.instance,
            queue: running.queue,
            function: running.function.to_string(),
            site: running.site.clone(),
        });
        Document {
            cpus: dump.cpus.to_string(),
            housekeeping: dump.housekeeping.to_string(),
            cpu_quota: dump.cpu_quota.map(|quota| quota.cpus()),
            epoch: dump.epoch,
            scopes: scopes.collect(),
            pools: pools.collect(),
            queues: queues.collect(),
            running: running.collect(),
        }
    }
}
