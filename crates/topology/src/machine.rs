//! The handle that everything else is built on: a topology and the masks that change.
//!
//! Guard letters: `I:` immutable after construction; `L:` the field is a lock, and says what it
//! guards. Why choosing by the masks and publishing the choice belong in one read section:
//! `machine.md`.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::affinity;
use crate::cpuset::CpuSet;
use crate::error::TopologyError;
use crate::pods::Pods;
use crate::topology::Topology;

/// A machine: the facts about it ([`Topology`]), and the CPUs of it that may be used now, with an
/// epoch that tells that they changed.
///
/// A handle: cloning it is cheap, and all clones are the same machine. There is no global one; a
/// process may have several (tests build synthetic ones).
///
/// ```
/// use corewise_topology::Machine;
///
/// let machine = Machine::synthetic("core:4 pu:1")?;
/// let before = machine.epoch();
/// machine.set_online(2, false)?;
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
}

struct State {
    /// CPUs that run, whoever may use them.
    running: CpuSet,
    /// CPUs that the process may use.
    allowed: CpuSet,
    masks: Masks,
}

/// The masks of a machine at one moment; see [`Machine::read`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Masks {
    /// The CPUs that may be used: online and allowed.
    pub online: CpuSet,
    /// The online CPUs that are not isolated; all online ones if that leaves none.
    pub housekeeping: CpuSet,
    /// Changes whenever one of these sets does, always upwards. Starts at 1, so 0 is a good "never
    /// seen" value.
    pub epoch: u64,
}

impl Machine {
    /// A machine with the CPUs that were online and allowed when the topology was made.
    ///
    /// Should none of the allowed CPUs be online, [`Machine::online`] is empty until one comes.
    pub fn new(topology: Topology) -> Machine {
        let (running, allowed) = (topology.online(), topology.allowed().clone());
        let mut masks = Masks { online: CpuSet::new(), housekeeping: CpuSet::new(), epoch: 1 };
        masks.derive(&topology, running.intersection(&allowed));
        let state = State { running, allowed, masks };
        Machine { inner: Arc::new(Inner { topology, state: RwLock::new(state) }) }
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
    /// saved. Its CPU numbers mean nothing to the kernel, so its threads are never really pinned.
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

    /// The number of the current state of the masks; see [`Masks::epoch`].
    pub fn epoch(&self) -> u64 {
        self.state().masks.epoch
    }

    /// Runs `f` with the current masks, on the calling thread. They don't change before `f`
    /// returns: whoever changes them waits for all readers. So what `f` chooses and publishes
    /// by them is seen by the one that takes a CPU away afterwards.
    ///
    /// `f` must be short, must not block, and must not call back into this machine (it could wait
    /// for a change that waits for it).
    pub fn read<R>(&self, f: impl FnOnce(&Masks) -> R) -> R {
        f(&self.state().masks)
    }

    /// Takes a CPU offline or brings it online, as far as this machine is concerned: the kernel
    /// isn't told. For synthetic machines, for tests, and for whoever watches the kernel's
    /// hotplug. Waits for readers ([`Machine::read`]); when it returns, none sees the old
    /// masks.
    ///
    /// Returns whether the CPU's state changed. The epoch changes only if usable CPUs do: an online
    /// CPU that isn't allowed changes nothing for this process.
    ///
    /// # Errors
    /// If there is no such CPU, or it is the last usable one.
    pub fn set_online(&self, cpu: u32, online: bool) -> Result<bool, TopologyError> {
        let topology = &self.inner.topology;
        if topology.cpu(cpu).is_none() {
            return Err(TopologyError::NoSuchCpu { cpu, known: topology.cpu_set() });
        }
        self.change(&CpuSet::from_iter([cpu]), |state| {
            if online { state.running.insert(cpu) } else { state.running.remove(cpu) }
        })
    }

    /// Narrows (or widens again) what the process may use, as when its cpuset changes. CPUs that
    /// were not allowed when the topology was made stay out: they are in no pod. Waits for
    /// readers.
    ///
    /// Returns whether anything changed.
    ///
    /// # Errors
    /// If no online CPU would remain.
    pub fn set_allowed(&self, allowed: &CpuSet) -> Result<bool, TopologyError> {
        let allowed = allowed.intersection(self.inner.topology.allowed());
        let gone = self.inner.topology.allowed().difference(&allowed);
        self.change(&gone, |state| {
            let changed = state.allowed != allowed;
            state.allowed = allowed;
            changed
        })
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
        self.inner.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, unless that would leave no usable CPU where there was one.
    fn change(
        &self,
        gone: &CpuSet,
        edit: impl FnOnce(&mut State) -> bool,
    ) -> Result<bool, TopologyError> {
        let mut state = self.inner.state.write().unwrap_or_else(PoisonError::into_inner);
        let before = (state.running.clone(), state.allowed.clone());
        let changed = edit(&mut state);
        let online = state.running.intersection(&state.allowed);
        if online.is_empty() && !state.masks.online.is_empty() {
            (state.running, state.allowed) = before;
            return Err(TopologyError::LastCpu { cpus: gone.clone() });
        }
        if online != state.masks.online {
            state.masks.derive(&self.inner.topology, online);
            state.masks.epoch += 1;
        }
        Ok(changed)
    }
}

impl Masks {
    fn derive(&mut self, topology: &Topology, online: CpuSet) {
        let rest = online.difference(topology.isolated());
        self.housekeeping = if rest.is_empty() { online.clone() } else { rest };
        self.online = online;
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
