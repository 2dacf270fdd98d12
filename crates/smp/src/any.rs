//! A call to any CPU of a set: the caller's own, else the nearest that takes it.

use std::panic::Location;

use corewise_sync::context;
use corewise_topology::{CpuId, CpuSet, current_cpu};

use crate::call::Call;
use crate::error::CallError;
use crate::smp::Smp;

impl Smp {
    /// Runs `f` on one CPU of the set: the caller's own if it is there, else one that shares its
    /// core, its last-level cache, its node, else any. [`Call::cpu`] says which. The rest is as in
    /// [`Smp::call`]: also on the own CPU `f` runs on the call target's thread, and in place only
    /// where the caller is that CPU's target.
    ///
    /// Choice and push are one: a CPU that leaves between the two refuses the push, and the next
    /// nearest is tried. So it fails only where each CPU of the set was seen to be offline. Never
    /// blocks; any context. Looks at each CPU of the set once per try; at one only where the own is
    /// in the set.
    ///
    /// The own CPU is that whose handler makes the call, else the one that the thread is on just
    /// now (on a synthetic machine: that with its number). Where that isn't known, the lowest takes
    /// the call.
    ///
    /// The kernel's `smp_call_function_any`, whose second choice knows nodes only.
    ///
    /// # Errors
    /// No CPU of the set is online ([`CallError::NoneOnline`]), or the handle is shut down; `f` is
    /// given back.
    #[track_caller]
    pub fn call_any<F, R>(&self, cpus: &CpuSet, mut f: F) -> Result<Call<R>, CallError<F>>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let site = Location::caller();
        let mut tried = None;
        let own = self.own_cpu();
        if let Some(own) = own.filter(|&own| cpus.contains(own)) {
            match self.call_from(site, own, f) {
                Err(CallError::NotOnline { f: back, .. }) => f = back,
                accepted_or_shut_down => return accepted_or_shut_down,
            }
            tried = Some(ITSELF);
        }
        let here = own.map(|own| (own, self.place(own)));
        while let Some((rank, cpu)) = self.nearest(cpus, here, tried) {
            match self.call_from(site, cpu, f) {
                Err(CallError::NotOnline { f: back, .. }) => f = back,
                accepted_or_shut_down => return accepted_or_shut_down,
            }
            tried = Some(rank);
        }
        Err(CallError::NoneOnline { f })
    }

    /// The nearest CPU of the set that is farther than those that were tried. Whether it is online
    /// is a hint: the push decides. One that is shut down isn't left out, so that its refusal tells.
    fn nearest(
        &self,
        cpus: &CpuSet,
        here: Option<(CpuId, Place)>,
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

    fn place(&self, cpu: CpuId) -> Place {
        let known = self.machine().topology().cpu(cpu);
        known.map_or(Place::default(), |known| Place {
            core: known.core,
            llc: known.llc,
            node: known.node,
        })
    }

    /// The CPU whose handler the caller is in, else the one that it is on.
    fn own_cpu(&self) -> Option<CpuId> {
        let on = current_cpu();
        if context::in_atomic_section() {
            // The one that the thread is on first: pinned targets need no search.
            let guess = on.and_then(|cpu| self.shared.target(cpu)).into_iter();
            let found = guess.chain(&self.shared.targets).find(|t| t.is_run_by_this_thread());
            return found.map(|target| target.cpu).or(on);
        }
        on
    }
}

/// Where a CPU is: what it shares with others. Two that aren't known aren't the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Place {
    core: Option<u32>,
    llc: Option<u32>,
    node: Option<u32>,
}

/// How near a CPU is to another one; nearer is less.
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

/// The rank of `to` for a caller on CPU `here`; by number where nobody knows where the caller is.
///
/// Among CPUs that are as near as each other those behind the caller's own number come first, and
/// then those from 0: so callers on several CPUs don't all choose the same one.
fn rank(here: Option<(CpuId, Place)>, to: CpuId, place: Place) -> Rank {
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

    /// Two nodes of two caches of two cores of two CPUs.
    fn place(cpu: CpuId) -> Place {
        let cpu = cpu.number();
        Place { core: Some(cpu / 2), llc: Some(cpu / 4), node: Some(cpu / 8) }
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
        let unknown = Place::default();
        assert_eq!(
            rank(Some((CpuId::new(1), unknown)), CpuId::new(2), unknown),
            (Nearness::Elsewhere, 1)
        );
        assert_eq!(rank(Some((CpuId::new(1), unknown)), CpuId::new(1), unknown), ITSELF);
        assert_eq!(rank(None, CpuId::new(7), place(CpuId::new(7))), (Nearness::Elsewhere, 7));
    }
}
