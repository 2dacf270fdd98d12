//! The builder of queues.

use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_sync::{context, text};
use corewise_topology::{AffinityScope, DEFAULT_SHARD_SIZE, Machine};
use corewise_workqueue::Workqueue;

use super::Queue;
use super::core::CoreParts;
use crate::percpu::map::{CpuMap, CpuPlace, HwQueues, Layout};
use crate::sched::IoScheduler;
use crate::state::completer::{Completer, Placement, RqAffinity};
use crate::state::core::Core;
use crate::state::driver::Driver;
use crate::stats::IoStats;
use crate::tags::{MAX_DEPTH, TagSet};

/// Default number of requests that are inside through each CPU before a thread that may block waits
/// for room.
pub(crate) const NR_REQUESTS: u32 = MAX_DEPTH;

/// Makes a [`Queue`].
#[must_use = "a builder does nothing until it builds"]
pub struct QueueBuilder {
    machine: Machine,
    driver: Arc<dyn Driver>,
    name: Option<String>,
    hw_queues: Option<HwQueues>,
    depth: Option<u32>,
    nr_requests: u32,
    tags: Option<TagSet>,
    scheduler: IoScheduler,
    iostats: IoStats,
    placement: Option<Placement>,
    /// The timeout that the builder was given; it may be none.
    timeout: Option<Option<Duration>>,
}

impl QueueBuilder {
    pub(super) fn new(machine: &Machine, driver: Arc<dyn Driver>) -> Self {
        Self {
            machine: machine.clone(),
            driver,
            name: None,
            hw_queues: None,
            depth: None,
            nr_requests: NR_REQUESTS,
            tags: None,
            scheduler: IoScheduler::None,
            iostats: IoStats::default(),
            placement: None,
            timeout: None,
        }
    }

    /// Sets the name by which logs and errors name the device; the default is the driver's kind. A
    /// name of more than 256 bytes is cut in the middle.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(text::bounded_name(name.into()));
        self
    }

    /// Sets which CPUs share a hardware queue, or the number of hardware queues; at most as many as
    /// the driver has room for, and as there are CPUs. The default is the driver's maximum.
    pub fn hw_queues(mut self, how: impl Into<HwQueues>) -> Self {
        self.hw_queues = Some(how.into());
        self
    }

    /// Sets the maximum of requests of each hardware queue in the driver at once; also at most the
    /// driver's own [depth](crate::Info::depth), and 10 240.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = Some(depth);
        self
    }

    /// Sets how many requests may be inside through each CPU, at least 1; the default is 10 240. A
    /// thread that submits one more, and may block, waits until there is room. As many may wait
    /// outside while the queue is frozen. Requests submitted in atomic sections, as by completion
    /// functions, or by the queue's own driver during a call, count and don't wait. (The kernel's
    /// `nr_requests`, in sysfs; there it is a hard bound.)
    pub fn nr_requests(mut self, most: u32) -> Self {
        self.nr_requests = most;
        self
    }

    /// Makes all hardware queues take their tags from this set, which other queues may share: for
    /// disks behind one adapter, say. Each hardware queue that has requests gets an equal share, so
    /// none waits for the others. A request's [tag](crate::Started::tag) is then unique within the
    /// set, and below its depth; the queue's own depth has no effect.
    pub fn tags(mut self, tags: &TagSet) -> Self {
        self.tags = Some(tags.clone());
        self
    }

    /// Sets the order in which requests that wait for a tag get one. Each hardware queue orders its
    /// own.
    pub fn scheduler(mut self, scheduler: IoScheduler) -> Self {
        self.scheduler = scheduler;
        self
    }

    /// Sets how much the queue records about its requests' times; the default is
    /// [`IoStats::Sampled`].
    pub fn iostats(mut self, iostats: IoStats) -> Self {
        self.iostats = iostats;
        self
    }

    /// Makes requests end on the CPU that submitted them, or near it. By default they end where the
    /// driver completes them.
    pub fn complete_with(mut self, completer: &Completer, affinity: RqAffinity) -> Self {
        self.placement = Some(Placement { completer: completer.clone(), affinity });
        self
    }

    /// Sets how long a request may be in the driver before
    /// [`Driver::timeout`](crate::Driver::timeout) is called, to some milliseconds; `None`: for
    /// ever. The default is the driver's ([`Info::io_timeout`](crate::Info::io_timeout)). The time
    /// in which a request waits for the driver doesn't count.
    pub fn timeout(mut self, after: Option<Duration>) -> Self {
        self.timeout = Some(after);
        self
    }

    /// Builds the queue; asynchronous runs go to the queue [below](Workqueue::below) `wq`. The
    /// queue follows the machine: if a hardware queue loses its last CPU, it passes its waiting
    /// requests to the nearest one. Its driver gets no more requests through it until one of its
    /// CPUs comes back.
    ///
    /// May block: it registers for the machine's changes, under locks that sleep. A call inside an
    /// atomic section is reported. (In the kernel a queue registers for CPU hotplug, under a lock
    /// that sleeps. A patch of 2024 did so under a raw spinlock.)
    ///
    /// # Panics
    /// If it was given a set of more [tags](QueueBuilder::tags) than the driver has
    /// [room](crate::Info::depth) for, or a field of the driver's [`Geometry`](crate::Geometry) is
    /// out of its documented range.
    #[track_caller]
    pub fn build(self, wq: &Workqueue) -> Arc<Queue> {
        context::might_block("QueueBuilder::build");
        self.make(Some(wq))
    }

    /// Builds the queue without workers: see [`crate::model`].
    #[track_caller]
    pub(crate) fn without_workers(self) -> Arc<Queue> {
        context::might_block("QueueBuilder::build_by_hand");
        self.make(None)
    }

    #[track_caller]
    fn make(self, wq: Option<&Workqueue>) -> Arc<Queue> {
        let driver = self.driver;
        let info = driver.info();
        if let Some(why) = info.geometry.cannot_be() {
            panic!("the geometry of a '{}' driver: {why}", info.kind);
        }
        if let Some(tags) = &self.tags {
            let (most, room) = (tags.depth(), info.depth);
            assert!(most <= room, "a set of {most} tags for a driver that has room for {room}");
        }
        let map = CpuMap::new(places(&self.machine));
        let room = info.hw_queues.clamp(1, map.slots());
        let how = self.hw_queues.unwrap_or(HwQueues::Count(room));
        let first = map.divide(how, room);
        let timeout = self.timeout.unwrap_or(info.io_timeout);
        // A remapped request has no tag, which a timeout would need, and which a bound or an order
        // is about.
        let may_remap = info.remaps
            && !info.may_block
            && timeout.is_none()
            && (self.depth, self.scheduler) == (None, IoScheduler::None)
            && self.tags.is_none();
        let core = Core::new(CoreParts {
            name: self.name.unwrap_or_else(|| info.kind.to_owned()).into(),
            layout: Layout::new(map, &first),
            driver,
            depth: self.depth.unwrap_or(u32::MAX).min(info.depth).max(1),
            may_remap,
            nr_requests: self.nr_requests,
            tags: self.tags,
            scheduler: self.scheduler,
            live: !self.machine.is_synthetic(),
            wq: wq.map(Workqueue::below),
            iostats: self.iostats,
            placement: self.placement,
            timeout,
            info,
        });
        // It subscribes before it looks, so that it misses no change.
        let follower = Arc::downgrade(&core);
        let follows = self.machine.on_change(move |change| {
            if let Some(core) = Weak::upgrade(&follower) {
                core.follow(&change.after);
            }
        });
        core.follow(&self.machine.masks());
        core.tell_mapped();
        Arc::new(Queue { core, follows })
    }
}

/// Returns the CPUs that may ever be used, online or not, in the order in which hardware queues
/// divide them.
fn places(machine: &Machine) -> Vec<CpuPlace> {
    let (topology, pods) = (machine.topology(), machine.pods(DEFAULT_SHARD_SIZE));
    let place = |cpu| {
        let known = topology.cpu(cpu);
        CpuPlace {
            node: known.and_then(|c| c.node).unwrap_or(u32::MAX),
            llc: known.and_then(|c| c.llc).unwrap_or(u32::MAX),
            shard: pods.pod_of(AffinityScope::CacheShard, cpu).unwrap_or(u32::MAX),
            core: known.and_then(|c| c.core).unwrap_or(cpu.number()),
            cpu,
        }
    };
    topology.allowed().iter().map(place).collect()
}
