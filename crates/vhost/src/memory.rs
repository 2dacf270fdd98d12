//! The guest's memory: the regions that the frontend shares.
//!
//! Every access goes through `vm-memory`, which checks its range and copies bytes as volatile. So
//! this crate never has a reference to memory that the guest can change. Each value is read once
//! and judged as it was read.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{FileType, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemory, GuestMemoryMmap, GuestRegionMmap, MmapRegion,
    Permissions,
};

/// Most regions of one guest, as many as vhost in the kernel has.
pub(crate) const MOST_REGIONS: usize = 509;

/// The memory of a guest at one moment: it is replaced as a whole.
#[derive(Debug, Default, Clone)]
pub(crate) struct GuestRam {
    map: GuestMemoryMmap,
    regions: Vec<RegionRecord>,
}

/// A region as the frontend described it.
#[derive(Debug, Clone)]
struct RegionRecord {
    guest: u64,
    /// Address in the frontend's own address space.
    user: u64,
    len: u64,
    mapping: Arc<GuestRegionMmap>,
}

impl GuestRam {
    /// Maps these regions.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn map<'a>(
        regions: impl IntoIterator<Item = (&'a VhostUserMemoryRegion, File)>,
    ) -> Result<Self, String> {
        let mut ram = Self::default();
        for (region, file) in regions {
            ram.regions.push(map_region(region, file)?);
        }
        ram.rebuilt()
    }

    /// Returns this memory with one more region.
    pub(crate) fn with(&self, region: &VhostUserMemoryRegion, file: File) -> Result<Self, String> {
        if self.regions.len() >= MOST_REGIONS {
            return Err(format!("the guest has {MOST_REGIONS} memory regions already"));
        }
        let mut ram = self.clone();
        ram.regions.push(map_region(region, file)?);
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
        let mappings: Vec<_> = self.regions.iter().map(|r| Arc::clone(&r.mapping)).collect();
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

    pub(crate) fn map_ref(&self) -> &GuestMemoryMmap {
        &self.map
    }
}

/// Maps one region, after checks that the mapping can be accessed.
fn map_region(region: &VhostUserMemoryRegion, file: File) -> Result<RegionRecord, String> {
    let (guest, user, len) = (region.guest_phys_addr, region.user_addr, region.memory_size);
    let fits = [guest, user, region.mmap_offset].iter().all(|at| at.checked_add(len).is_some());
    let Ok(size) = usize::try_from(len) else {
        return Err(format!("a memory region of {len} bytes is beyond the address space"));
    };
    if size == 0 || !fits {
        return Err(format!("a memory region of {len} bytes at {guest:#x} isn't possible"));
    }
    let end = region.mmap_offset + len;
    let stat = fstat(&file).map_err(|error| format!("the file of guest memory: {error}"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("guest memory has to be a file or a memfd".to_owned());
    }
    // An access behind the end of the file is a SIGBUS, which would end the server. So the file is
    // sealed against truncation if it can be.
    let sealed = fcntl_add_seals(&file, SealFlags::SHRINK).is_ok()
        || fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    // The size is read after the seal.
    let file_size = fstat(&file).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
    if file_size < end {
        return Err(format!(
            "a memory region ends at byte {end} of its file, which has {file_size} bytes"
        ));
    }
    tracing::debug!(guest, len, sealed, "guest memory is mapped");
    let mapping = MmapRegion::from_file(FileOffset::new(file, region.mmap_offset), size)
        .map_err(|error| format!("cannot map {len} bytes of guest memory: {error}"))?;
    let mapping = GuestRegionMmap::new(mapping, GuestAddress(guest))
        .ok_or_else(|| format!("a memory region at {guest:#x} is beyond the address space"))?;
    Ok(RegionRecord { guest, user, len, mapping: Arc::new(mapping) })
}
