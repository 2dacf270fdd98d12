//! The keys that every device takes, and what they may say.

use std::time::Duration;

use corewise::blockmq::{Deadline, HwQueues, IoScheduler, IoStats, RqAffinity};

use super::keys::{Kind, duration, keys, number, text_or_number, word, word_or};
use super::problem::At;

/// The CPUs that share a hardware queue: those of one pod, by the names of the topology's scopes.
const SHARES: &[(&str, HwQueues)] = &[
    ("cpu", HwQueues::PerCpu),
    ("cache_shard", HwQueues::PerShard),
    ("cache", HwQueues::PerCache),
    ("numa", HwQueues::PerNode),
];
const AFFINITIES: &[(&str, RqAffinity)] =
    &[("none", RqAffinity::Anywhere), ("cache", RqAffinity::Cache), ("cpu", RqAffinity::Cpu)];
const STATS: &[(&str, IoStats)] =
    &[("counted", IoStats::Counted), ("sampled", IoStats::Sampled), ("timed", IoStats::Timed)];

fn hw_queues() -> Kind<HwQueues> {
    word_or(text_or_number(), "a number from 1, or one of", SHARES, |text| {
        text.parse().ok().filter(|number| *number > 0).map(HwQueues::Count)
    })
}

/// Whether requests are sorted by deadlines.
const SCHEDULERS: &[(&str, bool)] = &[("none", false), ("deadline", true)];

fn scheduler() -> Kind<IoScheduler> {
    word(SCHEDULERS).map(|deadline, _| match deadline {
        true => IoScheduler::Deadline(Deadline::default()),
        false => IoScheduler::None,
    })
}

keys! {
    /// How a device comes up and goes down, and how its queue is built.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Tuning {
        /// The number of the NUMA node that the device is near to: it is brought up there. One that
        /// the machine doesn't have is refused, and with `--keep-going` no preference.
        node: Option<At<u32>> = number(), Unset("no preference");
        /// How long bringing it up may take before it is named.
        probe_timeout: Option<Duration> = duration(), Unset("as long as it takes");
        /// How long shutting it down may take before it is named.
        shutdown_timeout: Option<Duration> = duration(), Unset("`\"10s\"`");
        /// How many hardware queues its requests go through: a number, or `"cpu"`, `"cache_shard"`,
        /// `"cache"`, `"numa"` for one each; never more than there are CPUs.
        hw_queues: Option<HwQueues> = hw_queues(), Unset("one for each CPU");
        /// Which of the requests that wait for room in the driver goes first: `"none"`, or
        /// `"deadline"`, for disks that seek.
        scheduler: IoScheduler = scheduler(), Usual("\"none\"");
        /// How long a request may be in the driver; see [below](#requests-that-take-too-long).
        timeout: Option<Duration> = duration().positive("leave it out for no timeout"),
            Unset("as long as it takes");
        /// On which CPU a request ends: `"none"`, where its driver completes it; `"cache"`, on one
        /// that shares a cache with the one it came from; `"cpu"`, on that very one. It costs a
        /// call to another CPU, for machines with several caches.
        rq_affinity: RqAffinity = word(AFFINITIES), Usual("\"none\"");
        /// How much is found out about its requests' times, for `corewise dump`: `"counted"`,
        /// nothing, only requests and bytes; `"sampled"`, one request in eight stands for the
        /// others; `"timed"`, each, for some 75 ns of CPU a request.
        iostats: IoStats = word(STATS), Usual("\"sampled\"");
    }
}
