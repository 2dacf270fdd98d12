//! The allocator, charged for as glibc's is: a thread has its blocks by its own cache, but for
//! those that others free. These go back to its arena under the arena's lock, and it gets them from
//! there.

use std::panic::Location;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::calls::lines_of;
use crate::engine::Sim;
use crate::lines::Access;
use crate::task::Tid;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes up to which new memory counts as written by its allocator: of more, it is a buffer, and
/// seldom written at once.
const WRITTEN: usize = 4096;
/// Where the lines of the arenas' locks are: at no address of the program.
const ARENAS: usize = 1 << 60;

/// What is known of the memory in use.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The thread that made each allocation.
    made: FxHashMap<usize, Tid>,
    /// Pages that the system has given.
    pages: FxHashSet<usize>,
    /// By thread: blocks of its own that others have freed.
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
    /// The thread that runs has got a block.
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

    /// It has given one back, into which the allocator writes its link.
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
