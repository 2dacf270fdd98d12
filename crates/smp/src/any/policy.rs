//! Which CPU of a set is the nearest, as a function of plain values.

use corewise_topology::CpuId;

/// Where a CPU is: what it shares with others. Two that aren't known aren't the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub(crate) core: Option<u32>,
    pub(crate) llc: Option<u32>,
    pub(crate) node: Option<u32>,
}

/// How near a CPU is to another one; nearer is less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Nearness {
    Itself,
    SameCore,
    SameCache,
    SameNode,
    Elsewhere,
}

/// The order in which the CPUs of a set are tried. Unique for each CPU.
pub(crate) type Rank = (Nearness, u32);

/// The rank of the caller's own CPU.
pub(crate) const ITSELF: Rank = (Nearness::Itself, 0);

/// The rank of `to` for a caller on CPU `here`; by number where nobody knows where the caller is.
///
/// Among CPUs that are as near as each other those behind the caller's own number come first, and
/// then those from 0: so callers on several CPUs don't all choose the same one.
pub(crate) fn rank(here: Option<(CpuId, Place)>, to: CpuId, place: Place) -> Rank {
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
