//! Policy: on which CPU a request ends. Pure functions over plain values.

/// Whether a request ends on the CPU that submitted it. (Linux: `rq_affinity` 0, 1 and 2.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RqAffinity {
    /// Where the driver completes it.
    Anywhere,
    /// On a CPU that shares its last-level cache with the one that submitted it.
    #[default]
    Cache,
    /// On the very CPU that submitted it.
    Cpu,
}

/// What is known when a driver completes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) affinity: RqAffinity,
    /// It is on the CPU that submitted the request.
    pub(crate) same_cpu: bool,
    /// It is on a CPU that shares its last-level cache with that one.
    pub(crate) same_cache: bool,
}

/// Where a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// On the completing thread, at once.
    Here,
    /// On the submitter's CPU, by a call.
    There,
}

/// Where a request ends. The kernel's `blk_mq_complete_need_ipi`, and what stands before it in
/// `blk_mq_complete_request_remote`; but whether the other CPU is online is for it to say: it refuses the call.
pub(crate) fn end_of(case: Case) -> End {
    let Case { affinity, same_cpu, same_cache } = case;
    if same_cpu {
        return End::Here;
    }
    match affinity {
        RqAffinity::Anywhere => End::Here,
        RqAffinity::Cache if same_cache => End::Here,
        RqAffinity::Cache | RqAffinity::Cpu => End::There,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Case = Case { affinity: RqAffinity::Cache, same_cpu: false, same_cache: false };

    #[test]
    fn rule_17_a_request_ends_at_its_submitter_where_caches_are_not_shared() {
        assert_eq!(end_of(FAR), End::There);
        assert_eq!(end_of(Case { same_cache: true, ..FAR }), End::Here);
        assert_eq!(end_of(Case { same_cpu: true, same_cache: true, ..FAR }), End::Here);
    }

    #[test]
    fn rule_17_forced_it_ends_at_its_submitter_also_within_a_cache_and_off_it_ends_where_it_is() {
        let near = Case { same_cache: true, ..FAR };
        assert_eq!(end_of(Case { affinity: RqAffinity::Cpu, ..near }), End::There);
        assert_eq!(end_of(Case { affinity: RqAffinity::Cpu, same_cpu: true, ..near }), End::Here);
        assert_eq!(end_of(Case { affinity: RqAffinity::Anywhere, ..FAR }), End::Here);
    }
}
