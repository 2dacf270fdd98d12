//! The guest's memory: the regions that the frontend shares.
//!
//! Every access goes through `vm-memory`, which checks its range and copies bytes as volatile. So
//! this crate never has a reference to memory that the guest can change. Each value is read once
//! and judged as it was read.

use std::fs::File;
use std::sync::Arc;

use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

use crate::faults::{Mapping, MemoryLoss};

/// Most regions of one guest, as many as vhost in the kernel has.
pub(crate) const MOST_REGIONS: usize = 509;

/// The memory of a guest at one moment: it is replaced as a whole.
#[derive(Debug, Default, Clone)]
pub(crate) struct GuestRam {
    map: GuestMemoryMmap,
    regions: Vec<RegionRecord>,
    loss: Arc<MemoryLoss>,
}

/// A region as the frontend described it.
#[derive(Debug, Clone)]
struct RegionRecord {
    guest: u64,
    /// Address in the frontend's own address space.
    user: u64,
    len: u64,
    mapping: Arc<Mapping>,
}

impl GuestRam {
    /// Returns a guest without memory. `loss` is told if memory of its frontend goes.
    pub(crate) fn new(loss: &Arc<MemoryLoss>) -> Self {
        Self { loss: Arc::clone(loss), ..Self::default() }
    }

    /// Returns other memory of the same frontend: these regions.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn map<'a>(
        &self,
        regions: impl IntoIterator<Item = (&'a VhostUserMemoryRegion, File)>,
    ) -> Result<Self, String> {
        let mut ram = Self::new(&self.loss);
        for (region, file) in regions {
            ram.regions.push(map_region(region, file, &self.loss)?);
        }
        ram.rebuilt()
    }

    /// Returns this memory with one more region.
    pub(crate) fn with(&self, region: &VhostUserMemoryRegion, file: File) -> Result<Self, String> {
        if self.regions.len() >= MOST_REGIONS {
            return Err(format!("the guest has {MOST_REGIONS} memory regions already"));
        }
        let mut ram = self.clone();
        ram.regions.push(map_region(region, file, &self.loss)?);
        ram.rebuilt()
    }

    /// Returns this memory without the region at this place.
    pub(crate) fn without(&self, region: &VhostUserMemoryRegion) -> Result<Self, String> {
        let (guest, user, len) = (region.guest_phys_addr, region.user_addr, region.memory_size);
        let is_it = |r: &RegionRecord| (r.guest, r.user, r.len) == (guest, user, len);
        let Some(at) = self.regions.iter().position(is_it) else {
            return Err(format!("the guest has no memory region of {len} bytes at {guest:#x}"));
        };
        let mut ram = self.clone();
        ram.regions.swap_remove(at);
        ram.rebuilt()
    }

    fn rebuilt(mut self) -> Result<Self, String> {
        self.regions.sort_by_key(|region| region.guest);
        let mappings: Vec<_> = self.regions.iter().map(|r| Arc::clone(&r.mapping.region)).collect();
        self.map = if mappings.is_empty() {
            GuestMemoryMmap::new()
        } else {
            GuestMemoryMmap::from_arc_regions(mappings).map_err(|error| error.to_string())?
        };
        Ok(self)
    }

    /// Translates an address of the frontend to one of the guest.
    pub(crate) fn translate(&self, user: u64) -> Option<GuestAddress> {
        let region = self.regions.iter().find(|r| user >= r.user && user - r.user < r.len)?;
        // Each region's guest addresses fit, as its mapping has been made.
        Some(GuestAddress(region.guest + (user - region.user)))
    }

    /// Returns true if the guest has memory at all these addresses.
    pub(crate) fn has(&self, at: GuestAddress, len: usize) -> bool {
        GuestMemory::check_range(&self.map, at, len, Permissions::ReadWrite)
    }

    /// Returns the mappings of its regions.
    pub(crate) fn mappings(&self) -> impl Iterator<Item = &Arc<Mapping>> {
        self.regions.iter().map(|region| &region.mapping)
    }

    pub(crate) fn map_ref(&self) -> &GuestMemoryMmap {
        &self.map
    }
}

/// Maps one region.
fn map_region(
    region: &VhostUserMemoryRegion,
    file: File,
    loss: &Arc<MemoryLoss>,
) -> Result<RegionRecord, String> {
    let (guest, user, len) = (region.guest_phys_addr, region.user_addr, region.memory_size);
    let fits = [guest, user].iter().all(|at| at.checked_add(len).is_some());
    if len == 0 || !fits {
        return Err(format!("a memory region of {len} bytes at {guest:#x} isn't possible"));
    }
    let offset = region.mmap_offset;
    let mapping = Mapping::new("a memory region", file, offset, len, guest, loss)?;
    Ok(RegionRecord { guest, user, len, mapping })
}
