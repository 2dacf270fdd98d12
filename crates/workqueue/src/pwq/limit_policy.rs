//! How a queue's `max_active` is divided: pure functions over plain numbers.

/// What a node may run at least, however few of the CPUs it has: the kernel's `WQ_DFL_MIN_ACTIVE`.
const MIN_ACTIVE: usize = 8;

/// No limit: `max_active` is 0, the default.
pub(crate) const UNLIMITED: usize = usize::MAX;

/// What `max_active` comes to for the queue as a whole. 0, the default, is no limit of the queue's
/// own.
pub(crate) fn effective(max_active: usize) -> usize {
    if max_active == 0 { UNLIMITED } else { max_active }
}

/// How much of an unbound queue's `max_active` a node gets: its share by CPUs, rounded up, at least
/// 8 (or all of it, where that is less), at most all of it. `node_cpus` and `total_cpus` are the
/// CPUs that the queue may use now, on the node and in all.
///
/// `node_update_max_active` of the kernel. How many pods the node is divided into doesn't matter.
pub(crate) fn node_max(max_active: usize, node_cpus: usize, total_cpus: usize) -> usize {
    if max_active == UNLIMITED {
        return UNLIMITED;
    }
    let least = MIN_ACTIVE.min(max_active);
    if total_cpus == 0 {
        return least;
    }
    (max_active * node_cpus).div_ceil(total_cpus).clamp(least, max_active)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_gets_its_share_by_cpus_rounded_up() {
        assert_eq!(node_max(100, 8, 16), 50);
        assert_eq!(node_max(100, 4, 16), 25);
        assert_eq!(node_max(101, 8, 16), 51, "rounded up");
        assert_eq!(node_max(100, 16, 16), 100);
    }

    #[test]
    fn a_node_gets_at_least_min_active_and_at_most_everything() {
        assert_eq!(node_max(100, 1, 512), 8);
        assert_eq!(node_max(100, 0, 512), 8, "its CPUs are offline");
        assert_eq!(node_max(3, 1, 512), 3, "less than the minimum: all of it");
        assert_eq!(node_max(1, 1, 2), 1);
        assert_eq!(node_max(8, 1, 2), 8);
        assert_eq!(node_max(9, 2, 2), 9);
    }

    #[test]
    fn with_all_cpus_offline_each_node_gets_min_active() {
        assert_eq!(node_max(100, 0, 0), 8);
        assert_eq!(node_max(2, 0, 0), 2);
    }

    #[test]
    fn no_limit_stays_no_limit() {
        assert_eq!(effective(0), UNLIMITED);
        assert_eq!(effective(5), 5);
        assert_eq!(node_max(UNLIMITED, 1, 2), UNLIMITED);
    }
}
