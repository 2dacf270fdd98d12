//! The handle that everything else is built on: a topology and the masks that change.
//!
//! Guard letters: `I:` immutable after construction; `L:` the field is a lock, and says what it
//! guards. Why choosing by the masks and publishing the choice belong in one read section, and how
//! a change is told: `README.md` beside this file.

mod change;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use corewise_sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use crate::affinity;
use crate::cpuset::{CpuId, CpuSet};
use crate::error::TopologyError;
use crate::live::{self, LiveState};
use crate::pods::Pods;
use crate::quota::{self, CpuQuota};
use crate::sysfs;
use crate::topology::{Source, Topology};
use change::Listeners;

pub use change::{Change, Subscription};

/// A machine: the facts about it ([`Topology`]), and the CPUs of it that may be used now, with an
/// epoch that tells that they changed.
///
/// A handle: cloning it is cheap, and all clones are the same machine. There is no global one; a
/// process may have several (tests build synthetic ones).
///
/// ```
/// use corewise_topology::{CpuId, Machine};
///
/// let machine = Machine::synthetic("core:4 pu:1")?;
/// let before = machine.epoch();
/// machine.set_online(CpuId::new(2), false)?;
/// assert_eq!(machine.online().to_string(), "0-1,3");
/// assert!(machine.epoch() > before);
/// # Ok::<(), corewise_topology::TopologyError>(())
/// ```
#[derive(Clone)]
pub struct Machine {
    inner: Arc<Inner>,
}

struct Inner {
    /// I: the facts.
    topology: Topology,
    /// L: is the lock; guards the whole [`State`]. Held for reading while the closure of
    /// [`Machine::read`] runs, for writing only while the masks are computed.
    state: RwLock<State>,
    /// The listeners to changes. Its lock is taken inside of `state`'s, never the other way round.
    listeners: Arc<Listeners>,
    /// L: is the lock; held while a refresh reads and applies what the system says now, so that of
    /// two refreshes the later one's word stands. Taken before `state`'s.
    refreshing: Mutex<()>,
}

struct State {
    given: Inputs,
    masks: Masks,
}

impl Machine {
    /// A machine with the CPUs that were online and allowed when the topology was made. For the one
    /// that this process runs on, its CPU quota is read.
    ///
    /// Should none of the allowed CPUs be online, [`Machine::online`] is empty until one comes.
    pub fn new(topology: Topology) -> Machine {
        let given = Inputs {
            running: topology.online(),
            allowed: topology.allowed().clone(),
            isolated: topology.isolated().clone(),
            quota: if topology.is_live() { quota::quota() } else { None },
        };
        let state = State { masks: Masks::derive(&given, 1), given };
        Machine {
            inner: Arc::new(Inner {
                topology,
                state: RwLock::new(state),
                listeners: Arc::default(),
                refreshing: Mutex::new(()),
            }),
        }
    }

    /// The machine that this process runs on. Reads files; see [`Topology::live`].
    ///
    /// # Errors
    /// Those of [`Topology::live`].
    pub fn live() -> Result<Machine, TopologyError> {
        Topology::live().map(Machine::new)
    }

    /// A machine as described in hwloc's synthetic language; see [`Topology::synthetic`].
    ///
    /// # Errors
    /// Those of [`Topology::synthetic`].
    pub fn synthetic(description: &str) -> Result<Machine, TopologyError> {
        Topology::synthetic(description).map(Machine::new)
    }

    /// The facts about the machine. They never change.
    pub fn topology(&self) -> &Topology {
        &self.inner.topology
    }

    /// Whether this is *not* the machine that the process runs on, but one that was described or
    /// saved, or whose CPUs were only counted ([`Source::Flat`](crate::Source::Flat)). Its CPU
    /// numbers mean nothing to the kernel, so its threads are never really pinned.
    pub fn is_synthetic(&self) -> bool {
        !self.inner.topology.is_live()
    }

    /// The pods of every scope, with cache shards of about `shard_size` cores. They don't depend on
    /// what is online, so the numbers hold for the machine's whole life. Computed anew by each
    /// call.
    pub fn pods(&self, shard_size: u32) -> Pods {
        Pods::new(&self.inner.topology, shard_size)
    }

    /// The CPUs that may be used now: online and allowed.
    ///
    /// A copy, which may be outdated when it is looked at. To choose a CPU and act on the choice
    /// before it can go, use [`Machine::read`].
    pub fn online(&self) -> CpuSet {
        self.state().masks.online.clone()
    }

    /// The CPUs for general work now: online, allowed and not isolated; all online ones if each is
    /// isolated.
    pub fn housekeeping(&self) -> CpuSet {
        self.state().masks.housekeeping.clone()
    }

    /// The CPU time that the process may use now, where that is limited: by `cpu.max` of its cgroup
    /// or of one above (version 1: `cpu.cfs_quota_us`), the least of those that can be seen.
    pub fn cpu_quota(&self) -> Option<CpuQuota> {
        self.state().masks.cpu_quota
    }

    /// How many threads may compute at once now: see [`Masks::parallelism`].
    pub fn parallelism(&self) -> usize {
        self.state().masks.parallelism()
    }

    /// The number of the current state of the masks; see [`Masks::epoch`].
    pub fn epoch(&self) -> u64 {
        self.state().masks.epoch
    }

    /// Runs `f` with the current masks, on the calling thread. They don't change before `f`
    /// returns: a thread that changes them waits for all readers. So what `f` chooses and publishes
    /// by them is seen by the one that takes a CPU away afterwards.
    ///
    /// `f` must be short, must not block, and must not call back into this machine (it could wait
    /// for a change that waits for it).
    pub fn read<R>(&self, f: impl FnOnce(&Masks) -> R) -> R {
        f(&self.state().masks)
    }

    /// A copy of all masks, of one moment.
    pub fn masks(&self) -> Masks {
        self.state().masks.clone()
    }

    /// Has `listener` called with every change of the masks from now on, until the [`Subscription`]
    /// is dropped. In a loop that must not miss one: subscribe first, then read the masks.
    ///
    /// It is called on the thread that made the change, after the change and outside of all locks
    /// of the machine, so it may call the machine as it likes, may change it, and may subscribe and
    /// unsubscribe. Changes are told one at a time, in the order of their epochs, each to the
    /// listeners in the order in which they subscribed. A thread that makes a change while another
    /// one (or the same one, from a listener) is telling an earlier one leaves it to that one, and
    /// doesn't wait: its own call may return before the listeners know.
    ///
    /// A panic of a listener is reported by the panic hook and goes no further.
    pub fn on_change(&self, listener: impl Fn(&Change) + Send + Sync + 'static) -> Subscription {
        // With the state held, so that no change comes between the epoch and the subscription.
        let state = self.state();
        Listeners::subscribe(&self.inner.listeners, state.masks.epoch, Arc::new(listener))
    }

    /// Takes a CPU offline or brings it online, as far as this machine is concerned: the kernel
    /// isn't told, and a [`Machine::refresh`] sets it right again. For synthetic machines and for
    /// tests. Waits for readers ([`Machine::read`]); when it returns, none sees the old masks.
    ///
    /// Returns whether the CPU's state changed. The epoch changes only if usable CPUs do: an online
    /// CPU that isn't allowed changes nothing for this process. Listeners are told
    /// ([`Machine::on_change`]).
    ///
    /// # Errors
    /// If there is no such CPU, or it is the last usable one.
    pub fn set_online(&self, cpu: CpuId, online: bool) -> Result<bool, TopologyError> {
        let topology = &self.inner.topology;
        if topology.cpu(cpu).is_none() {
            return Err(TopologyError::NoSuchCpu { cpu, known: topology.cpu_set() });
        }
        let (changed, _) = self.change(|given| {
            let running = &mut given.running;
            if online {
                running.insert(cpu)
            } else {
                running.remove(cpu)
            };
            CpuSet::from_iter([cpu])
        })?;
        Ok(changed)
    }

    /// Narrows (or widens again) what the process may use, as when its cpuset changes. CPUs that
    /// were not allowed when the topology was made stay out: they are in no pod. Waits for
    /// readers. On the live machine it holds until the next [`Machine::refresh`].
    ///
    /// Returns whether anything changed. Listeners are told ([`Machine::on_change`]).
    ///
    /// # Errors
    /// If no online CPU would remain.
    pub fn set_allowed(&self, allowed: &CpuSet) -> Result<bool, TopologyError> {
        let most = self.inner.topology.allowed();
        let (changed, _) = self.change(|given| {
            given.allowed = allowed.intersection(most);
            most.difference(&given.allowed)
        })?;
        Ok(changed)
    }

    /// Sets these CPUs apart from general work, instead of those that were before; CPUs that the
    /// machine doesn't have are left out. Waits for readers. On the live machine it holds until the
    /// next [`Machine::refresh`].
    ///
    /// Returns whether anything changed. Listeners are told ([`Machine::on_change`]).
    pub fn set_isolated(&self, isolated: &CpuSet) -> bool {
        let isolated = self.inner.topology.cpu_set().intersection(isolated);
        let changed = self.change(|given| {
            given.isolated = isolated;
            CpuSet::new()
        });
        // Isolating takes no CPU out of `online`, so it is never refused.
        changed.is_ok_and(|(changed, _)| changed)
    }

    /// Sets the CPU time that the process may use, as when somebody writes its cgroup's `cpu.max`;
    /// the kernel isn't told. For synthetic machines and for tests: on the live machine it holds
    /// until the next [`Machine::refresh`]. Waits for readers.
    ///
    /// Returns whether anything changed. Listeners are told ([`Machine::on_change`]).
    pub fn set_cpu_quota(&self, quota: Option<CpuQuota>) -> bool {
        let changed = self.change(|given| {
            given.quota = quota;
            CpuSet::new()
        });
        // It takes no CPU away, so it is never refused.
        changed.is_ok_and(|(changed, _)| changed)
    }

    /// Pins the calling thread to these CPUs, if they are really this process's machine.
    ///
    /// Returns whether it did: a thread of a synthetic machine is left where it is.
    ///
    /// # Errors
    /// Those of [`pin_current_thread`](crate::pin_current_thread).
    pub fn pin_current_thread(&self, cpus: &CpuSet) -> Result<bool, TopologyError> {
        if self.is_synthetic() {
            return Ok(false);
        }
        affinity::pin_current_thread(cpus).map(|()| true)
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        // A reader's closure may panic; that leaves the state as it was.
        self.inner.state.read()
    }

    /// One refresh at a time.
    fn refreshing(&self) -> MutexGuard<'_, ()> {
        self.inner.refreshing.lock()
    }

    /// Changes what the masks are derived from, unless that would leave no usable CPU where there
    /// was one. `edit` says which CPUs it took away, for the error. Says whether anything is
    /// another now, and what became of the masks. Listeners aren't told yet: the caller ends in
    /// [`Machine::tell`].
    fn apply(
        &self,
        edit: impl FnOnce(&mut Inputs) -> CpuSet,
    ) -> Result<(bool, Option<Arc<Change>>), TopologyError> {
        let mut state = self.inner.state.write();
        let mut given = state.given.clone();
        let gone = edit(&mut given);
        let mut after = Masks::derive(&given, state.masks.epoch);
        if after.online.is_empty() && !state.masks.online.is_empty() {
            return Err(TopologyError::LastCpu { cpus: gone });
        }
        let changed = given != state.given;
        state.given = given;
        if after == state.masks {
            return Ok((changed, None));
        }
        after.epoch += 1;
        let before = std::mem::replace(&mut state.masks, after.clone());
        let change = Arc::new(Change { before, after });
        // With the state still held, so that changes are told in the order in which they were made.
        self.inner.listeners.add(&change);
        Ok((changed, Some(change)))
    }

    /// Tells the listeners what [`Machine::apply`] left to be told; the caller holds no lock.
    fn tell(&self) {
        self.inner.listeners.tell();
    }

    fn change(
        &self,
        edit: impl FnOnce(&mut Inputs) -> CpuSet,
    ) -> Result<(bool, Option<Arc<Change>>), TopologyError> {
        let changed = self.apply(edit)?;
        self.tell();
        Ok(changed)
    }
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine")
            .field("source", self.inner.topology.source())
            .field("masks", &self.state().masks)
            .finish_non_exhaustive()
    }
}

/// What the masks are derived from.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Inputs {
    /// CPUs that run, may this process use them or not.
    pub(crate) running: CpuSet,
    /// CPUs that the process may use.
    pub(crate) allowed: CpuSet,
    /// CPUs that are set apart from general work.
    pub(crate) isolated: CpuSet,
    /// The CPU time that the process may use.
    pub(crate) quota: Option<CpuQuota>,
}

/// The masks of a machine at one moment; see [`Machine::read`](crate::Machine::read).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Masks {
    /// The CPUs that may be used: online and allowed.
    pub online: CpuSet,
    /// The online CPUs that are not isolated; all online ones if that leaves none.
    pub housekeeping: CpuSet,
    /// The online CPUs that are isolated: set apart from general work.
    pub isolated: CpuSet,
    /// The CPU time that the process may use, where that is limited.
    pub cpu_quota: Option<CpuQuota>,
    /// Changes whenever one of these does, always upwards. Starts at 1, so 0 is a good "never
    /// seen" value.
    pub epoch: u64,
}

impl Masks {
    pub(crate) fn derive(inputs: &Inputs, epoch: u64) -> Masks {
        let online = inputs.running.intersection(&inputs.allowed);
        let isolated = online.intersection(&inputs.isolated);
        let rest = online.difference(&isolated);
        let housekeeping = if rest.is_empty() { online.clone() } else { rest };
        Masks { online, housekeeping, isolated, cpu_quota: inputs.quota, epoch }
    }

    /// How many threads may compute at once, for all that is known: as many as there are CPUs for
    /// general work, or as the CPU quota is worth ([`CpuQuota::whole_cpus`]), whichever is less. At
    /// least 1.
    pub fn parallelism(&self) -> usize {
        let quota = self.cpu_quota.map_or(usize::MAX, CpuQuota::whole_cpus);
        self.housekeeping.len().min(quota).max(1)
    }
}

impl Machine {
    /// Reads again which CPUs are online, isolated and allowed, and how much of their time is, and
    /// applies that as one change. Says what changed for this process, if anything did. Listeners
    /// are told ([`Machine::on_change`]).
    ///
    /// Of the live machine that is: `online` and `isolated` of sysfs (and the isolated partitions
    /// of the cpuset controller, where its root can be seen); the cpuset and the CPU quota of the
    /// process's cgroups; and the CPUs that *some* thread of the process may use. (Not those of one
    /// thread: any may have been pinned for its own reasons. `taskset --all-tasks` narrows all.) Of
    /// a saved sysfs tree: its `online` and `isolated`. A machine that was described in a line
    /// never changes by itself.
    ///
    /// What [`Machine::set_online`] and its like have set is set anew. CPUs that the topology
    /// doesn't have, or that weren't allowed when it was made, stay out: they are in no pod.
    ///
    /// Reads files, and waits for readers ([`Machine::read`]); may block for a moment. Any thread
    /// may call it, several at once take turns. [`Watch`](crate::Watch) says when it is worth a
    /// call.
    ///
    /// # Errors
    /// If a file can't be read or says something else than such a file does, or no CPU would remain
    /// of those that the machine was made with. Nothing has changed then.
    pub fn refresh(&self) -> Result<Option<Arc<Change>>, TopologyError> {
        let change = {
            let _turn = self.refreshing();
            let seen = self.look()?;
            self.apply_seen(seen)?
        };
        self.tell();
        Ok(change)
    }

    fn look(&self) -> Result<LiveState, TopologyError> {
        let saved = |system: &Path| {
            let (running, isolated) = sysfs::state(system)?;
            Ok(LiveState { running, isolated, ..LiveState::default() })
        };
        match self.topology().source() {
            Source::Live => live::state(self.topology()),
            Source::Sysfs(dir) => saved(&sysfs::system_dir(dir)?),
            _ => Ok(LiveState::default()),
        }
    }

    fn apply_seen(&self, seen: LiveState) -> Result<Option<Arc<Change>>, TopologyError> {
        let topology = self.topology();
        let all = topology.cpu_set();
        // Debug: compared with what was said before.
        let said = format!("{seen:?}");
        let applied = self.apply(|given| {
            if let Some(running) = seen.running {
                given.running = running.intersection(&all);
            }
            if let Some(allowed) = seen.allowed {
                given.allowed = allowed.intersection(topology.allowed());
            }
            if let Some(isolated) = seen.isolated {
                given.isolated = isolated.intersection(&all);
            }
            if let Some(quota) = seen.quota {
                given.quota = quota;
            }
            CpuSet::new()
        });
        match applied {
            Ok((_, change)) => Ok(change),
            Err(_) => Err(TopologyError::NoCpu {
                reason: format!(
                    "the machine was made with CPUs {}, and none of them is online and allowed now \
                     ({said}); restart a process that was moved to other CPUs",
                    topology.allowed()
                ),
            }),
        }
    }
}
