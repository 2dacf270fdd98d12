//! The keys that every volume takes for its queue, and what they may say.

use corewise::blockmq::{Deadline, HwQueues, IoScheduler, IoStats, RqAffinity};

use super::links;
use super::model::Tuning;
use super::problem::{Problem, word};
use super::raw::RawDevice;

/// The CPUs that share a hardware queue: those of one pod, by the names of the topology's scopes.
const SHARES: [(&str, HwQueues); 4] = [
    ("cpu", HwQueues::PerCpu),
    ("cache_shard", HwQueues::PerShard),
    ("cache", HwQueues::PerCache),
    ("numa", HwQueues::PerNode),
];
const AFFINITIES: [(&str, RqAffinity); 3] =
    [("none", RqAffinity::Anywhere), ("cache", RqAffinity::Cache), ("cpu", RqAffinity::Cpu)];
const STATS: [(&str, IoStats); 3] =
    [("counted", IoStats::Counted), ("sampled", IoStats::Sampled), ("timed", IoStats::Timed)];

/// What `raw` asks for; what is wrong with it is added to `problems`.
pub(super) fn tuning(raw: &RawDevice, problems: &mut Vec<Problem>) -> Tuning {
    let schedulers =
        [("none", IoScheduler::None), ("deadline", IoScheduler::Deadline(Deadline::default()))];
    let subject = links::subject(raw);
    let mut told = |problem| problems.push(problem);
    let hw_queues = raw.hw_queues.as_ref().and_then(|at| match at.value.parse() {
        Ok(n) if n > 0 => Some(HwQueues::Count(n)),
        _ => {
            let wanted = "a number from 1, or one of";
            word(at, "hw_queues", wanted, &SHARES, &subject).map_err(&mut told).ok()
        }
    });
    let scheduler = raw.scheduler.as_ref().and_then(|at| {
        word(at, "scheduler", "one of", &schedulers, &subject).map_err(&mut told).ok()
    });
    let rq_affinity = raw.rq_affinity.as_ref().and_then(|at| {
        word(at, "rq_affinity", "one of", &AFFINITIES, &subject).map_err(&mut told).ok()
    });
    let iostats = raw
        .iostats
        .as_ref()
        .and_then(|at| word(at, "iostats", "one of", &STATS, &subject).map_err(&mut told).ok());
    if let Some(at) = raw.timeout.as_ref().filter(|at| at.value.is_zero()) {
        let message = "'timeout' must be greater than 0";
        let help = "leave it out for no timeout";
        told(Problem::new(at.place, subject.clone(), message).help(help));
    }
    Tuning {
        hw_queues,
        scheduler: scheduler.unwrap_or_default(),
        timeout: raw.timeout.as_ref().map(|at| at.value),
        rq_affinity: rq_affinity.unwrap_or(RqAffinity::Anywhere),
        iostats: iostats.unwrap_or_default(),
    }
}
