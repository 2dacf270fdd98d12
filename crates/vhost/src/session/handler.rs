//! The messages of a frontend, one after the other.

use std::fs::File;
use std::io;
use std::sync::Arc;

use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandler};

use super::Session;
use crate::config;
use crate::inflight::InflightRegion;
use crate::memory::{GuestRam, MOST_REGIONS};
use crate::ring::handle::{IdleSignal, RingHandle};
use crate::ring::{MOST_ENTRIES, Ring, RingAddresses};

/// Makes the error of a message that can't be executed.
fn refused(why: impl Into<String>) -> Error {
    Error::ReqHandlerError(io::Error::other(why.into()))
}

fn unsupported(what: &str) -> Error {
    refused(format!("the server doesn't have {what}"))
}

impl Session {
    /// Has a ring make a change.
    fn on_ring<T: Send + 'static>(
        &self,
        index: u32,
        f: impl FnOnce(&mut Ring) -> T + Send + 'static,
    ) -> Result<T> {
        let ring = self.ring(index).map_err(refused)?;
        ring.call(f).ok_or_else(|| refused("the thread of a ring has ended"))
    }

    fn change_ring(
        &self,
        index: u32,
        f: impl FnOnce(&mut Ring) -> std::result::Result<(), String> + Send + 'static,
    ) -> Result<()> {
        self.on_ring(index, f)?.map_err(refused)
    }

    /// Has all rings that exist make a change.
    fn on_rings(
        &self,
        f: impl Fn(&mut Ring) -> std::result::Result<(), String> + Clone + Send + 'static,
    ) -> Result<()> {
        // Every ring gets the change, also behind one that can't make it.
        let all: Vec<_> = self.rings().iter().map(|ring| ring.call(f.clone())).collect();
        for made in all {
            made.unwrap_or_else(|| Err("the thread of a ring has ended".to_owned()))
                .map_err(refused)?;
        }
        Ok(())
    }

    fn set_ram(&self, ram: GuestRam) -> Result<()> {
        let ram = Arc::new(ram);
        self.state.lock().ram = Arc::clone(&ram);
        // Once each ring has the new memory, nobody accesses the former one.
        self.on_rings(move |ring| ring.set_ram(Arc::clone(&ram)))
    }

    fn ram(&self) -> Arc<GuestRam> {
        Arc::clone(&self.state.lock().ram)
    }

    /// Stops a ring, and waits for its requests in flight.
    fn stop_ring(ring: &RingHandle) -> Result<()> {
        let (signal, idle) = IdleSignal::new();
        ring.call(move |ring| ring.stop_ring(signal))
            .ok_or_else(|| refused("the thread of a ring has ended"))?;
        idle.wait();
        Ok(())
    }

    fn set_inflight(&self, region: InflightRegion) -> Result<()> {
        self.state.lock().region = Some(region.clone());
        self.on_rings(move |ring| {
            ring.set_region(Some(region.clone()));
            Ok(())
        })
    }

    fn check_inflight(&self, inflight: &VhostUserInflight) -> Result<()> {
        let (rings, size) = (inflight.num_queues, inflight.queue_size);
        if rings > self.disk.options.queues || size > MOST_ENTRIES {
            return Err(refused(format!(
                "a record for {rings} rings of {size} entries, and the disk has at most {} of \
                 {MOST_ENTRIES}",
                self.disk.options.queues
            )));
        }
        Ok(())
    }
}

impl VhostUserBackendReqHandler for Session {
    fn set_owner(&self) -> Result<()> {
        self.state.lock().owned = true;
        Ok(())
    }

    fn reset_owner(&self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&self) -> Result<()> {
        for ring in self.rings() {
            Self::stop_ring(&ring)?;
            ring.call(Ring::reset);
        }
        Ok(())
    }

    fn get_features(&self) -> Result<u64> {
        Ok(config::features(&self.disk.geometry(), self.disk.options.read_only))
    }

    fn set_features(&self, features: u64) -> Result<()> {
        let unknown = features & !self.get_features()?;
        if unknown != 0 {
            return Err(refused(format!(
                "the frontend accepts features {unknown:#x}, which weren't offered"
            )));
        }
        // Without the protocol's own features there are no messages that enable a ring.
        let enabled = features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0;
        {
            let mut state = self.state.lock();
            state.features = features;
            state.rings_enabled = enabled;
        }
        self.on_rings(move |ring| {
            ring.set_features(features);
            if enabled {
                ring.set_enabled(true);
            }
            Ok(())
        })
    }

    fn set_mem_table(
        &self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        if postcopy == Some(true) {
            return Err(unsupported("postcopy"));
        }
        self.set_ram(self.ram().map(regions.iter().zip(files)).map_err(refused)?)?;
        Ok(None)
    }

    fn set_vring_num(&self, index: u32, num: u32) -> Result<()> {
        self.change_ring(index, move |ring| ring.set_size(num))
    }

    fn set_vring_addr(
        &self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let addresses = RingAddresses { descriptors, available, used };
        self.change_ring(index, move |ring| ring.set_addresses(addresses))
    }

    fn set_vring_base(&self, index: u32, base: u32) -> Result<()> {
        self.change_ring(index, move |ring| ring.set_base(base))
    }

    fn get_vring_base(&self, index: u32) -> Result<VhostUserVringState> {
        let ring = self.ring(index).map_err(refused)?;
        Self::stop_ring(&ring)?;
        let base = self.on_ring(index, Ring::take_base)?;
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&self, index: u8, file: Option<File>) -> Result<()> {
        let Some(kick) = file else {
            return Err(refused("a ring without an event for kicks would have to be polled"));
        };
        make_nonblocking(Some(&kick))?;
        self.change_ring(index.into(), move |ring| ring.set_kick(kick))
    }

    fn set_vring_call(&self, index: u8, file: Option<File>) -> Result<()> {
        make_nonblocking(file.as_ref())?;
        self.change_ring(index.into(), move |ring| ring.set_call(file))
    }

    fn set_vring_err(&self, index: u8, file: Option<File>) -> Result<()> {
        make_nonblocking(file.as_ref())?;
        self.on_ring(index.into(), move |ring| ring.set_error(file))
    }

    fn get_protocol_features(&self) -> Result<VhostUserProtocolFeatures> {
        Ok(config::protocol_features())
    }

    fn set_protocol_features(&self, features: u64) -> Result<()> {
        let unknown = features & !config::protocol_features().bits();
        if unknown != 0 {
            return Err(refused(format!(
                "the frontend accepts protocol features {unknown:#x}, which weren't offered"
            )));
        }
        Ok(())
    }

    fn get_queue_num(&self) -> Result<u64> {
        Ok(self.disk.options.queues.into())
    }

    fn set_vring_enable(&self, index: u32, enable: bool) -> Result<()> {
        self.on_ring(index, move |ring| ring.set_enabled(enable))
    }

    fn get_config(&self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let space = config::space(&self.disk.geometry(), self.disk.options.queues);
        let first = offset as usize;
        let part = first.checked_add(size as usize).and_then(|end| space.get(first..end));
        part.map(<[u8]>::to_vec)
            .ok_or_else(|| refused("the frontend reads beyond the configuration space"))
    }

    fn set_config(&self, _offset: u32, _bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        Err(refused("the configuration space has no field that a guest may write"))
    }

    fn set_gpu_socket(&self, _gpu: GpuBackend) -> Result<()> {
        Err(unsupported("a GPU"))
    }

    fn get_shared_object(&self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(unsupported("shared objects"))
    }

    fn get_inflight_fd(&self, inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        self.check_inflight(inflight)?;
        let (rings, entries) = (inflight.num_queues, inflight.queue_size);
        let (region, file, size) =
            InflightRegion::create(rings, entries, &self.loss).map_err(refused)?;
        // This frontend has no former server.
        self.disk.is_first_guest();
        self.set_inflight(region)?;
        Ok((VhostUserInflight::new(size, 0, rings, entries), file))
    }

    fn set_inflight_fd(&self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        self.check_inflight(inflight)?;
        let region = InflightRegion::map(
            file,
            inflight.mmap_offset,
            inflight.mmap_size,
            inflight.num_queues,
            inflight.queue_size,
            &self.loss,
        );
        let mut region = region.map_err(refused)?;
        let was_clean = region.take_mark();
        if self.disk.is_first_guest() && self.disk.options.may_lose && !was_clean {
            region.set_after_loss();
        }
        self.set_inflight(region)
    }

    fn get_max_mem_slots(&self) -> Result<u64> {
        Ok(MOST_REGIONS as u64)
    }

    fn add_mem_region(
        &self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        if postcopy == Some(true) {
            return Err(unsupported("postcopy"));
        }
        self.set_ram(self.ram().with(region, file).map_err(refused)?)?;
        Ok(None)
    }

    fn remove_mem_region(&self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.set_ram(self.ram().without(region).map_err(refused)?)
    }

    fn set_device_state_fd(
        &self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(unsupported("a state to transfer"))
    }

    fn check_device_state(&self) -> Result<()> {
        Err(unsupported("a state to transfer"))
    }

    fn get_shmem_config(&self) -> Result<VhostUserShMemConfig> {
        Ok(VhostUserShMemConfig::default())
    }

    fn set_log_base(&self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(unsupported("a log of dirty pages"))
    }
}

/// Makes an event of the frontend one at which no thread waits.
fn make_nonblocking(file: Option<&File>) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    rustix::io::ioctl_fionbio(file, true)
        .map_err(|error| refused(format!("an event of the frontend: {error}")))
}
