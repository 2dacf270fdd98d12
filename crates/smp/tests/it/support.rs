//! Machines and handles of the tests.
#![cfg(not(loom))]

use corewise_smp::Smp;
use corewise_smp::model::{self, CallTarget};
use corewise_topology::{CpuSet, Machine};

/// Returns a synthetic machine of that many CPUs.
pub(crate) fn machine(cores: u32) -> Machine {
    Machine::synthetic(&format!("core:{cores} pu:1")).expect("a valid description")
}

/// Returns a handle with a thread for each CPU of such a machine.
pub(crate) fn synthetic(cores: u32) -> Smp {
    Smp::new(&machine(cores)).expect("threads that need no pinning")
}

/// Returns a handle of four CPUs whose targets the test steps.
pub(crate) fn four_cpus() -> (Smp, Vec<CallTarget>) {
    model::stepped(Smp::builder(&machine(4)))
}

pub(crate) fn set(list: &str) -> CpuSet {
    list.parse().expect("a valid list")
}
