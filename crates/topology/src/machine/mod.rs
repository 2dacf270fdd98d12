//! The handle for everything that places work: a topology and the masks that change.
//!
//! Guard letters: `I:` immutable after construction; `L:` the field is a lock, and says what it
//! guards. `README.md` beside this file argues why a choice by the masks and its publication belong
//! in one read section, and how a change is reported.

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

/// A machine: the facts about it ([`Topology`]), the CPUs of it that may be used now, and an epoch
/// that counts their changes.
///
/// It is a handle: cloning it is cheap, and all clones are the same machine. There is no global
/// one; a process may have several (tests build synthetic ones).
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
    /// Listeners to changes. Their lock is taken inside of `state`'s, never the other way round.
    listeners: Arc<Listeners>,
    /// L: is the lock; held while a refresh reads and applies the system's state, so that of two
    /// refreshes the later one's reading stands. Taken before `state`'s.
    refreshing: Mutex<()>,
}

struct State {
    given: Inputs,
    masks: Masks,
}

impl Machine {
    /// Creates a machine with the CPUs that were online and allowed when the topology was made. For
    /// the machine that this process runs on, it reads the CPU quota.
    ///
    /// If none of the allowed CPUs is online, [`Machine::online`] is empty until one comes.
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

    /// Creates the machine that this process runs on. Reads files; see [`Topology::live`].
    ///
    /// # Errors
    /// Those of [`Topology::live`].
    pub fn live() -> Result<Machine, TopologyError> {
        Topology::live().map(Machine::new)
    }

    /// Creates a machine from a description in hwloc's synthetic language; see
    /// [`Topology::synthetic`].
    ///
    /// # Errors
    /// Those of [`Topology::synthetic`].
    pub fn synthetic(description: &str) -> Result<Machine, TopologyError> {
        Topology::synthetic(description).map(Machine::new)
    }

    /// Returns the facts about the machine. They never change.
    pub fn topology(&self) -> &Topology {
        &self.inner.topology
    }

    /// Returns true if the process does *not* run on this machine: it was described or saved, or
    /// its CPUs were only counted ([`Source::Flat`](crate::Source::Flat)). Its CPU numbers mean
    /// nothing to the kernel, so its threads are never really pinned.
    pub fn is_synthetic(&self) -> bool {
        !self.inner.topology.is_live()
    }

    /// Computes the pods of every scope, with cache shards of about `shard_size` cores. They don't
    /// depend on the online CPUs, so the numbers hold for the machine's whole life. Each call
    /// computes them anew.
    pub fn pods(&self, shard_size: u32) -> Pods {
        Pods::new(&self.inner.topology, shard_size)
    }

    /// Returns the CPUs that may be used now: online and allowed.
    ///
    /// The result is a copy, which may be outdated when the caller reads it. To choose a CPU and
    /// act on the choice before it can go, use [`Machine::read`].
    pub fn online(&self) -> CpuSet {
        self.state().masks.online.clone()
    }

    /// Returns the CPUs for general work now: online, allowed and not isolated; all online ones if
    /// each is isolated.
    pub fn housekeeping(&self) -> CpuSet {
        self.state().masks.housekeeping.clone()
    }

    /// Returns the CPU time that the process may use now, if that is limited. The limit is the
    /// least visible `cpu.max` of its cgroup and of those above (version 1: `cpu.cfs_quota_us`).
    pub fn cpu_quota(&self) -> Option<CpuQuota> {
        self.state().masks.cpu_quota
    }

    /// Returns the number of threads that may compute at once now: see [`Masks::parallelism`].
    pub fn parallelism(&self) -> usize {
        self.state().masks.parallelism()
    }

    /// Returns the number of the current state of the masks; see [`Masks::epoch`].
    pub fn epoch(&self) -> u64 {
        self.state().masks.epoch
    }

    /// Runs `f` with the current masks, on the calling thread. They don't change before `f`
    /// returns: a thread that changes them waits for all readers. So if a thread takes a CPU away
    /// afterwards, it sees what `f` chose by the masks and published.
    ///
    /// `f` must be short, must not block, and must not call back into this machine (it could wait
    /// for a change that waits for it).
    pub fn read<R>(&self, f: impl FnOnce(&Masks) -> R) -> R {
        f(&self.state().masks)
    }

    /// Returns a copy of all masks at one moment.
    pub fn masks(&self) -> Masks {
        self.state().masks.clone()
    }

    /// Subscribes `listener` to every later change of the masks, until the [`Subscription`] is
    /// dropped. A loop that must not miss one subscribes first, then reads the masks.
    ///
    /// The listener runs on the thread that made the change, after the change and outside of all
    /// locks of the machine. So it may call the machine, may change it, and may subscribe and
    /// unsubscribe. Changes are reported one at a time, in the order of their epochs, to the
    /// listeners in the order in which they subscribed. A thread may make a change while another
    /// thread (or the same one, from a listener) reports an earlier one. Then that thread also
    /// reports the new one, and the call that made the change may return before the listeners know.
    ///
    /// A panic of a listener is reported by the panic hook and goes no further.
    pub fn on_change(&self, listener: impl Fn(&Change) + Send + Sync + 'static) -> Subscription {
        // The state is held, so that no change comes between the epoch and the subscription.
        let state = self.state();
        Listeners::subscribe(&self.inner.listeners, state.masks.epoch, Arc::new(listener))
    }

    /// Takes a CPU offline or brings it online in this machine's masks. The kernel doesn't learn of
    /// it, and a [`Machine::refresh`] undoes it. It is for synthetic machines and for tests. Waits
    /// for readers ([`Machine::read`]); when it returns, none sees the old masks.
    ///
    /// Returns whether the CPU's state changed. The epoch changes only if usable CPUs do: an online
    /// CPU that isn't allowed changes nothing for this process. Listeners are called
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

    /// Sets the CPUs that the process may use, as when its cpuset changes. CPUs that were not
    /// allowed when the topology was made stay out: they are in no pod. Waits for readers. On the
    /// live machine it holds until the next [`Machine::refresh`].
    ///
    /// Returns whether anything changed. Listeners are called ([`Machine::on_change`]).
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

    /// Sets these CPUs apart from general work, instead of the earlier ones. CPUs that the machine
    /// doesn't have are left out. Waits for readers. On the live machine it holds until the next
    /// [`Machine::refresh`].
    ///
    /// Returns whether anything changed. Listeners are called ([`Machine::on_change`]).
    pub fn set_isolated(&self, isolated: &CpuSet) -> bool {
        let isolated = self.inner.topology.cpu_set().intersection(isolated);
        let changed = self.change(|given| {
            given.isolated = isolated;
            CpuSet::new()
        });
        // Isolating takes no CPU out of `online`, so it is never refused.
        changed.is_ok_and(|(changed, _)| changed)
    }

    /// Sets the CPU time that the process may use, as a write to its cgroup's `cpu.max` does. The
    /// kernel doesn't learn of it. It is for synthetic machines and for tests: on the live machine
    /// it holds until the next [`Machine::refresh`]. Waits for readers.
    ///
    /// Returns whether anything changed. Listeners are called ([`Machine::on_change`]).
    pub fn set_cpu_quota(&self, quota: Option<CpuQuota>) -> bool {
        let changed = self.change(|given| {
            given.quota = quota;
            CpuSet::new()
        });
        // A quota takes no CPU away, so it is never refused.
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

    /// Begins a refresh. Only one runs at a time.
    fn refreshing(&self) -> MutexGuard<'_, ()> {
        self.inner.refreshing.lock()
    }

    /// Changes the inputs of the masks, unless that would leave no usable CPU although there was
    /// one. `edit` returns the CPUs that it took away, for the error. Returns whether anything
    /// differs now, and the change of the masks. Listeners aren't called yet: the caller ends in
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
        // The state is still held, so that changes are reported in the order in which they were
        // made.
        self.inner.listeners.add(&change);
        Ok((changed, Some(change)))
    }

    /// Calls the listeners for the changes that [`Machine::apply`] queued. The caller holds no
    /// lock.
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

/// The inputs that the masks are derived from.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Inputs {
    /// CPUs that run, whether this process may use them or not.
    pub(crate) running: CpuSet,
    /// CPUs that the process may use.
    pub(crate) allowed: CpuSet,
    /// CPUs that are set apart from general work.
    pub(crate) isolated: CpuSet,
    /// CPU time that the process may use.
    pub(crate) quota: Option<CpuQuota>,
}

/// The masks of a machine at one moment; see [`Machine::read`](crate::Machine::read).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Masks {
    /// CPUs that may be used: online and allowed.
    pub online: CpuSet,
    /// Online CPUs that are not isolated; all online ones if that leaves none.
    pub housekeeping: CpuSet,
    /// Online CPUs that are isolated: set apart from general work.
    pub isolated: CpuSet,
    /// CPU time that the process may use, if that is limited.
    pub cpu_quota: Option<CpuQuota>,
    /// Number that rises whenever one of these fields changes. It starts at 1, so 0 is a good
    /// "never seen" value.
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

    /// Returns the number of threads that may compute at once: that of the CPUs for general work,
    /// or the worth of the CPU quota ([`CpuQuota::whole_cpus`]), whichever is less. At least 1.
    pub fn parallelism(&self) -> usize {
        let quota = self.cpu_quota.map_or(usize::MAX, CpuQuota::whole_cpus);
        self.housekeeping.len().min(quota).max(1)
    }
}

impl Machine {
    /// Reads again which CPUs are online, isolated and allowed, and the CPU quota, and applies that
    /// as one change. Returns what changed for this process, if anything did. Listeners are called
    /// ([`Machine::on_change`]).
    ///
    /// The sources for the live machine are:
    ///
    /// - `online` and `isolated` of sysfs, and the isolated partitions of the cpuset controller, if
    ///   its root can be seen;
    /// - the cpuset and the CPU quota of the process's cgroups;
    /// - the CPUs that *some* thread of the process may use. (One thread doesn't count: any may
    ///   have been pinned for its own reasons. `taskset --all-tasks` narrows all.)
    ///
    /// A saved sysfs tree has `online` and `isolated`. A machine that was described in a line never
    /// changes by itself.
    ///
    /// The result replaces changes made by [`Machine::set_online`] and its like. CPUs that the
    /// topology doesn't have, or that weren't allowed when it was made, stay out: they are in no
    /// pod.
    ///
    /// Reads files, and waits for readers ([`Machine::read`]); may block for a moment. Any thread
    /// may call it; several at once take turns. [`Watch`](crate::Watch) says when it is worth a
    /// call.
    ///
    /// # Errors
    /// If a file can't be read or has unexpected content, or no CPU would remain of those that the
    /// machine was made with. Nothing has changed then.
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
        // Debug: compared with the earlier text.
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
