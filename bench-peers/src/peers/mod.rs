//! The peers, one file each, all behind the workload's trait.

pub(crate) mod crossbeam;
