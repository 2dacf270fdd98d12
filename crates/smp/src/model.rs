//! Support for tests that choose the order of events themselves, and for the crate's own models: no
//! part of the interface, and hidden from its documentation.

use crate::smp::{Smp, SmpBuilder};

pub use crate::target::{CallTarget, Step};

#[cfg(loom)]
pub mod wrong;

/// Creates call targets without threads: the holder of the [`CallTarget`]s steps them, or runs each
/// in a thread that it owns. There is one per CPU of the topology, in CPU order; those of online
/// CPUs accept calls at once. Nothing is pinned, and no priority is changed.
pub fn stepped(builder: SmpBuilder) -> (Smp, Vec<CallTarget>) {
    let (smp, owners) = Smp::unopened(&builder.machine, builder.settings);
    for cpu in &smp.shared.machine.online() {
        if let Some(target) = smp.shared.target(cpu) {
            // A target that was just made can always be opened.
            let _ = target.open();
        }
    }
    (smp, owners)
}
