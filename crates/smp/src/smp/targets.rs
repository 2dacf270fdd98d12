//! Targets of a call: one CPU, any CPU of a set, or each of several.

use corewise_sync::context;
use corewise_topology::{CpuId, CpuSet, current_cpu};

use super::Smp;
use crate::error::CallError;

/// A target of a call to one CPU: a [`CpuId`], or [`AnyOf`] a set.
pub trait SingleTarget: sealed::SingleTarget {}

/// The targets of a call to several CPUs: those of a `&CpuSet`, or [`AllCpus`].
pub trait Targets: sealed::Targets {
    /// Leaves out the CPUs for which `wanted` returns false. The calling thread asks it once for
    /// each CPU that is online, in CPU order, right before the push to that CPU. So it sees the
    /// state of that moment, not of when the set was made. An unwanted CPU counts neither as
    /// reached nor as skipped, and the call doesn't wait for it.
    ///
    /// `wanted` may be slow, or panic: that holds up its caller alone. After a panic the CPUs that
    /// got the call before still run the function. The exception is the caller's own CPU, if the
    /// caller is its target: that one comes last.
    ///
    /// ```
    /// use corewise_smp::{Smp, Targets};
    /// use corewise_topology::{CpuSet, Machine};
    ///
    /// let smp = Smp::new(&Machine::synthetic("core:4 pu:1")?)?;
    /// let cpus = CpuSet::full(4);
    /// let even = cpus.filter(|cpu| cpu.number() % 2 == 0);
    /// assert_eq!(smp.call_each(even, |cpu| cpu).wait().into_values()?.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The kernel's `on_each_cpu_cond_mask`.
    #[doc(alias = "on_each_cpu_cond_mask")]
    fn filter<P>(self, wanted: P) -> Filter<Self, P>
    where
        Self: Sized,
        P: FnMut(CpuId) -> bool,
    {
        Filter { targets: self, wanted }
    }
}

/// One CPU of a set: the caller's own if it is there, else one that shares its core, its last-level
/// cache, its node, else any. [`Call::cpu`](crate::Call::cpu) names it.
///
/// Choice and push are one: a CPU that leaves between the two refuses the push, and the next
/// nearest is tried. So a call fails only if each CPU of the set was seen to be offline
/// ([`CallError::NoneOnline`]). Each try reads each CPU of the set, or only one if the own CPU is
/// in the set.
///
/// The own CPU is that whose handler makes the call, else the one that the thread is on just now
/// (on a synthetic machine: that with its number). If that isn't known, the lowest takes the call.
///
/// The kernel's `smp_call_function_any`, whose second choice knows nodes only.
#[doc(alias = "smp_call_function_any")]
#[derive(Debug, Clone, Copy)]
pub struct AnyOf<'a>(pub &'a CpuSet);

/// All CPUs of the topology, the caller's own among them. CPUs that aren't online are skipped and
/// named (the kernel's `on_each_cpu`).
#[doc(alias = "on_each_cpu")]
#[derive(Debug, Clone, Copy)]
pub struct AllCpus;

/// The targets less those that aren't wanted: [`Targets::filter`].
#[derive(Debug, Clone, Copy)]
#[must_use = "it calls nobody: give it to `Smp::call_each`"]
pub struct Filter<T, P> {
    targets: T,
    wanted: P,
}

impl SingleTarget for CpuId {}
impl SingleTarget for AnyOf<'_> {}
impl Targets for &CpuSet {}
impl Targets for AllCpus {}
impl<T: Targets, P: FnMut(CpuId) -> bool> Targets for Filter<T, P> {}

/// Methods that the crate needs of targets. No other crate implements them.
pub(crate) mod sealed {
    use corewise_topology::{CpuId, CpuSet};

    use super::Smp;
    use crate::error::CallError;

    pub trait SingleTarget {
        /// Sends `f` to the CPU by `send`, which gives back what isn't accepted.
        fn deliver<F, A>(
            self,
            smp: &Smp,
            f: F,
            send: impl FnMut(CpuId, F) -> Result<A, CallError<F>>,
        ) -> Result<A, CallError<F>>;
    }

    pub trait Targets {
        /// Returns the candidates, for a machine that has `every` CPU.
        fn candidates<'a>(&self, every: &'a CpuSet) -> &'a CpuSet
        where
            Self: 'a;

        /// Returns true if a candidate that is online is to be called.
        fn wants(&mut self, _cpu: CpuId) -> bool {
            true
        }
    }
}

impl sealed::SingleTarget for CpuId {
    #[inline]
    fn deliver<F, A>(
        self,
        _smp: &Smp,
        f: F,
        mut send: impl FnMut(CpuId, F) -> Result<A, CallError<F>>,
    ) -> Result<A, CallError<F>> {
        send(self, f)
    }
}

impl sealed::SingleTarget for AnyOf<'_> {
    fn deliver<F, A>(
        self,
        smp: &Smp,
        mut f: F,
        mut send: impl FnMut(CpuId, F) -> Result<A, CallError<F>>,
    ) -> Result<A, CallError<F>> {
        let AnyOf(cpus) = self;
        let mut tried = None;
        let own = smp.own_cpu();
        if let Some(own) = own.filter(|&own| cpus.contains(own)) {
            match send(own, f) {
                Err(CallError::NotOnline { f: back, .. }) => f = back,
                accepted_or_shut_down => return accepted_or_shut_down,
            }
            tried = Some(ITSELF);
        }
        let here = own.map(|own| (own, smp.place(own)));
        while let Some((rank, cpu)) = smp.nearest(cpus, here, tried) {
            match send(cpu, f) {
                Err(CallError::NotOnline { f: back, .. }) => f = back,
                accepted_or_shut_down => return accepted_or_shut_down,
            }
            tried = Some(rank);
        }
        Err(CallError::NoneOnline { f })
    }
}

impl sealed::Targets for &CpuSet {
    fn candidates<'a>(&self, _every: &'a CpuSet) -> &'a CpuSet
    where
        Self: 'a,
    {
        self
    }
}

impl sealed::Targets for AllCpus {
    fn candidates<'a>(&self, every: &'a CpuSet) -> &'a CpuSet
    where
        Self: 'a,
    {
        every
    }
}

impl<T: Targets, P: FnMut(CpuId) -> bool> sealed::Targets for Filter<T, P> {
    fn candidates<'a>(&self, every: &'a CpuSet) -> &'a CpuSet
    where
        Self: 'a,
    {
        self.targets.candidates(every)
    }

    fn wants(&mut self, cpu: CpuId) -> bool {
        self.targets.wants(cpu) && (self.wanted)(cpu)
    }
}

impl Smp {
    /// Returns the nearest CPU of the set that is farther than those that were tried. Whether it is
    /// online is a hint: the push decides. A CPU that is shut down isn't left out, so that the
    /// caller gets its refusal.
    fn nearest(
        &self,
        cpus: &CpuSet,
        here: Option<(CpuId, CpuLocation)>,
        tried: Option<Rank>,
    ) -> Option<(Rank, CpuId)> {
        let known = cpus.iter().filter(|&cpu| {
            let target = self.shared.target(cpu);
            target.is_some_and(|target| {
                let state = target.state().snapshot();
                state.is_online() || state.is_stopped()
            })
        });
        let ranked = known.map(|cpu| (rank(here, cpu, self.place(cpu)), cpu));
        ranked.filter(|&(rank, _)| tried.is_none_or(|tried| rank > tried)).min()
    }

    fn place(&self, cpu: CpuId) -> CpuLocation {
        let known = self.machine().topology().cpu(cpu);
        known.map_or(CpuLocation::default(), |known| CpuLocation {
            core: known.core,
            llc: known.llc,
            node: known.node,
        })
    }

    /// Returns the CPU whose handler the caller is in, else the one that it is on.
    fn own_cpu(&self) -> Option<CpuId> {
        let on = current_cpu();
        if context::in_atomic_section() {
            // The CPU that the thread is on comes first: pinned targets need no search.
            let guess = on.and_then(|cpu| self.shared.target(cpu)).into_iter();
            let found = guess.chain(&self.shared.targets).find(|t| t.is_run_by_this_thread());
            return found.map(|target| target.cpu).or(on);
        }
        on
    }
}

/// The location of a CPU: what it shares with others. Two unknown locations aren't the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct CpuLocation {
    core: Option<u32>,
    llc: Option<u32>,
    node: Option<u32>,
}

/// The nearness of a CPU to another one; nearer is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Nearness {
    Itself,
    SameCore,
    SameCache,
    SameNode,
    Elsewhere,
}

/// The order in which the CPUs of a set are tried. Unique for each CPU.
type Rank = (Nearness, u32);

/// The rank of the caller's own CPU.
const ITSELF: Rank = (Nearness::Itself, 0);

/// Returns the rank of `to` for a caller on CPU `here`; by number if the caller's CPU isn't known.
///
/// Among CPUs that are equally near, those behind the caller's own number come first, and then
/// those from 0: so callers on several CPUs don't all choose the same one.
fn rank(here: Option<(CpuId, CpuLocation)>, to: CpuId, place: CpuLocation) -> Rank {
    let Some((own, own_place)) = here else { return (Nearness::Elsewhere, to.number()) };
    let same = |a: Option<u32>, b: Option<u32>| a.is_some() && a == b;
    let nearness = if own == to {
        Nearness::Itself
    } else if same(own_place.core, place.core) {
        Nearness::SameCore
    } else if same(own_place.llc, place.llc) {
        Nearness::SameCache
    } else if same(own_place.node, place.node) {
        Nearness::SameNode
    } else {
        Nearness::Elsewhere
    };
    (nearness, to.number().wrapping_sub(own.number()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a CPU's location among two nodes of two caches of two cores of two CPUs.
    fn place(cpu: CpuId) -> CpuLocation {
        let cpu = cpu.number();
        CpuLocation { core: Some(cpu / 2), llc: Some(cpu / 4), node: Some(cpu / 8) }
    }

    fn order(own: u32) -> Vec<u32> {
        let own = CpuId::new(own);
        let mut cpus: Vec<CpuId> = (0..16).map(CpuId::new).collect();
        cpus.sort_by_key(|&cpu| rank(Some((own, place(own))), cpu, place(cpu)));
        cpus.into_iter().map(CpuId::number).collect()
    }

    #[test]
    fn own_cpu_then_core_then_cache_then_node_then_any_and_round_from_the_own_number() {
        assert_eq!(order(5), [5, 4, 6, 7, 0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(order(8)[..8], [8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(order(15)[..4], [15, 14, 12, 13]);
    }

    #[test]
    fn an_unknown_cpu_is_near_no_other_and_a_caller_at_an_unknown_place_goes_by_number() {
        let unknown = CpuLocation::default();
        assert_eq!(
            rank(Some((CpuId::new(1), unknown)), CpuId::new(2), unknown),
            (Nearness::Elsewhere, 1)
        );
        assert_eq!(rank(Some((CpuId::new(1), unknown)), CpuId::new(1), unknown), ITSELF);
        assert_eq!(rank(None, CpuId::new(7), place(CpuId::new(7))), (Nearness::Elsewhere, 7));
    }
}
