//! Costs of the allocator, as glibc's. A thread takes blocks from its own cache. A block that
//! another thread frees goes back to the owner's arena, under the arena's lock.

use std::panic::Location;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::calls::lines_of;
use crate::engine::Sim;
use crate::lines::Access;
use crate::task::Tid;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Greatest block that counts as written by its allocator. A larger one is a buffer, which is
/// seldom written at once.
const WRITTEN: usize = 4096;
/// Address of the lines of the arenas' locks. No memory of the program is there.
const ARENAS: usize = 1 << 60;

/// Facts about the memory in use.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The thread that made each allocation.
    made: FxHashMap<usize, Tid>,
    /// Pages that the system has given.
    pages: FxHashSet<usize>,
    /// Number of each thread's blocks that others have freed.
    returned: Vec<u32>,
}

impl Memory {
    fn returned(&mut self, tid: Tid) -> &mut u32 {
        if self.returned.len() <= tid.index() {
            self.returned.resize(tid.index() + 1, 0);
        }
        &mut self.returned[tid.index()]
    }
}

impl Sim {
    /// Charges the running thread for a block.
    pub(crate) fn allocated(
        &mut self,
        address: usize,
        bytes: usize,
        site: &'static Location<'static>,
    ) {
        let Some(tid) = self.current() else { return };
        self.tally.allocations += 1;
        self.memory.made.insert(address, tid);
        self.work(self.costs.malloc);
        let returned = self.memory.returned(tid);
        if *returned > 0 {
            *returned -= 1;
            self.arena(tid);
        }
        for page in address / PAGE..=(address + bytes.max(1) - 1) / PAGE {
            if self.memory.pages.insert(page) {
                self.tally.faults += 1;
                self.spend(self.costs.fault);
            }
        }
        if bytes <= WRITTEN {
            for at in lines_of(address, bytes) {
                self.access(at, Access::Store, site);
            }
        }
    }

    /// Charges the running thread for a free. The allocator writes its link into the block.
    pub(crate) fn freed(&mut self, address: usize, site: &'static Location<'static>) {
        let Some(tid) = self.current() else { return };
        self.access(address, Access::Store, site);
        match self.memory.made.remove(&address) {
            Some(other) if other != tid => {
                self.work(self.costs.free_elsewhere);
                *self.memory.returned(other) += 1;
                self.arena(other);
            }
            _ => self.work(self.costs.free),
        }
    }

    /// Locks the arena of a thread.
    fn arena(&mut self, of: Tid) {
        self.access(ARENAS + of.index() * PAGE, Access::Locked, Location::caller());
    }
}
