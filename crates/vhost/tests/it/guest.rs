//! A guest: its memory, its rings, and the frontend that shares them.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use corewise_vhost::{Disk, Options, Server};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::device::TestDevice;

/// Bytes of the guest's memory.
pub(crate) const MEMORY: u64 = 16 << 20;
/// The guest's memory begins here, in its own addresses and in those of its frontend.
pub(crate) const GUEST: u64 = 0x10_0000;
const USER: u64 = 0x7000_0000_0000;
/// Entries of each ring.
pub(crate) const ENTRIES: u16 = 128;
/// Bytes that each ring has for its three parts.
const RING_BYTES: u64 = 16 << 10;
/// The buffers lie behind the rings.
pub(crate) const BUFFERS: u64 = GUEST + (1 << 20);
/// Longest wait for an answer, after which a test fails.
const LONG: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

pub(crate) const VERSION_1: u64 = 1 << 32;
pub(crate) const PROTOCOL: u64 = 1 << 30;
pub(crate) const EVENT_IDX: u64 = 1 << 29;
pub(crate) const INDIRECT: u64 = 1 << 28;
pub(crate) const FLUSH: u64 = 1 << 9;
pub(crate) const RO: u64 = 1 << 5;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT_TABLE: u16 = 4;

pub(crate) const OK: u8 = 0;
pub(crate) const IOERR: u8 = 1;
pub(crate) const UNSUPP: u8 = 2;

/// A server with one disk.
pub(crate) struct Host {
    pub(crate) device: Arc<TestDevice>,
    pub(crate) disk: Disk,
    pub(crate) _server: Server,
    pub(crate) folder: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new(device: &Arc<TestDevice>, options: Options) -> Host {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::new().unwrap();
        let path = folder.path().join("disk.sock");
        let disk = server.listen(path, device.shared(), options).unwrap();
        Host { device: Arc::clone(device), disk, _server: server, folder }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("disk.sock")
    }
}

/// The memory of a guest, which outlives its frontend's connections.
#[derive(Clone)]
pub(crate) struct Memory {
    pub(crate) file: Arc<File>,
    pub(crate) map: GuestMemoryMmap,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        Memory::with(MemfdFlags::ALLOW_SEALING)
    }

    /// Creates memory that can't be sealed, as Cloud Hypervisor does.
    pub(crate) fn unsealable() -> Memory {
        Memory::with(MemfdFlags::empty())
    }

    fn with(flags: MemfdFlags) -> Memory {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC | flags).unwrap();
        ftruncate(&file, MEMORY).unwrap();
        let file = File::from(file);
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let ranges = [(GuestAddress(GUEST), MEMORY as usize, Some(offset))];
        let map = GuestMemoryMmap::from_ranges_with_files(ranges).unwrap();
        Memory { file: Arc::new(file), map }
    }

    pub(crate) fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST,
            memory_size: MEMORY,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        self.map.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    pub(crate) fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    fn load(&self, at: u64) -> u16 {
        self.map.load(GuestAddress(at), Ordering::Acquire).unwrap()
    }

    fn store(&self, at: u64, value: u16) {
        self.map.store(value, GuestAddress(at), Ordering::Release).unwrap();
    }
}

/// One ring, as its driver has it.
pub(crate) struct GuestRing {
    pub(crate) index: usize,
    pub(crate) memory: Memory,
    pub(crate) kick: EventFd,
    pub(crate) call: EventFd,
    pub(crate) error: EventFd,
    pub(crate) available: u16,
    pub(crate) seen: u16,
}

impl GuestRing {
    pub(crate) fn new(memory: &Memory, index: usize) -> GuestRing {
        let event = || EventFd::new(EFD_NONBLOCK).unwrap();
        GuestRing {
            index,
            memory: memory.clone(),
            kick: event(),
            call: event(),
            error: event(),
            available: 0,
            seen: 0,
        }
    }

    pub(crate) fn table(&self) -> u64 {
        GUEST + self.index as u64 * RING_BYTES
    }

    pub(crate) fn available_at(&self) -> u64 {
        self.table() + (8 << 10)
    }

    pub(crate) fn used_at(&self) -> u64 {
        self.table() + (12 << 10)
    }

    pub(crate) fn config(&self) -> VringConfigData {
        let user = |at: u64| at - GUEST + USER;
        VringConfigData {
            queue_max_size: ENTRIES,
            queue_size: ENTRIES,
            flags: 0,
            desc_table_addr: user(self.table()),
            used_ring_addr: user(self.used_at()),
            avail_ring_addr: user(self.available_at()),
            log_addr: None,
        }
    }

    pub(crate) fn descriptor(&self, place: u16, at: u64, len: u32, flags: u16, next: u16) {
        self.descriptor_in(self.table(), place, at, len, flags, next);
    }

    pub(crate) fn descriptor_in(
        &self,
        table: u64,
        place: u16,
        at: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.memory.put(table + 16 * u64::from(place), &bytes);
    }

    /// Makes a chain of these parts, from `head` on.
    pub(crate) fn chain(&self, head: u16, parts: &[(u64, u32, u16)]) {
        for (n, (at, len, flags)) in parts.iter().enumerate() {
            let place = head + n as u16;
            let more = if n + 1 < parts.len() { NEXT } else { 0 };
            self.descriptor(place, *at, *len, flags | more, place + 1);
        }
    }

    /// Makes a chain available, without a kick.
    pub(crate) fn offer(&mut self, head: u16) {
        let at = self.available_at() + 4 + 2 * u64::from(self.available % ENTRIES);
        self.memory.store(at, head);
        self.available = self.available.wrapping_add(1);
        self.memory.store(self.available_at() + 2, self.available);
    }

    pub(crate) fn kick(&self) {
        self.kick.write(1).unwrap();
    }

    /// Returns the used entry that comes next, if it is there.
    pub(crate) fn used(&mut self) -> Option<(u16, u32)> {
        if self.used_index() == self.seen {
            return None;
        }
        let at = self.used_at() + 4 + 8 * u64::from(self.seen % ENTRIES);
        let entry = self.memory.get(at, 8);
        self.seen = self.seen.wrapping_add(1);
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
        Some((word(0) as u16, word(4)))
    }

    pub(crate) fn used_index(&self) -> u16 {
        self.memory.load(self.used_at() + 2)
    }

    /// Asks for an interrupt at the next used entry, if `EVENT_IDX` is on.
    pub(crate) fn ask(&self) {
        self.memory.store(self.available_at() + 4 + 2 * u64::from(ENTRIES), self.seen);
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Waits for the used entry that comes next.
    pub(crate) fn wait_used(&mut self) -> (u16, u32) {
        loop {
            self.ask();
            if let Some(used) = self.used() {
                return used;
            }
            wait_event(&self.call);
        }
    }

    /// Waits until the server gives the ring up.
    pub(crate) fn wait_broken(&self) {
        wait_event(&self.error);
    }
}

/// Waits for an event, and clears it.
pub(crate) fn wait_event(event: &EventFd) {
    // SAFETY: the eventfd stays open for as long as the borrow.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(event.as_raw_fd()) };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    assert_ne!(poll(&mut fds, Some(&LONG)).unwrap(), 0, "no event came");
    event.read().unwrap();
}

/// A guest that is connected.
pub(crate) struct Guest {
    pub(crate) frontend: Frontend,
    pub(crate) memory: Memory,
    pub(crate) rings: Vec<GuestRing>,
    pub(crate) inflight: Option<(VhostUserInflight, Arc<File>)>,
    /// Heads that are free, of the first ring: three descriptors each.
    pub(crate) free: VecDeque<u16>,
}

/// The wishes of a guest that connects.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) features: u64,
    pub(crate) rings: usize,
    pub(crate) inflight: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        let features = VERSION_1 | PROTOCOL | FLUSH | EVENT_IDX | INDIRECT;
        Setup { features, rings: 1, inflight: false }
    }
}

impl Guest {
    /// Connects, and starts the rings.
    pub(crate) fn new(path: &Path, setup: Setup) -> Guest {
        let mut guest = Guest::connect(path, Memory::new(), &setup, None);
        (0..setup.rings).for_each(|ring| guest.start(ring));
        guest
    }

    /// Connects, and starts no ring.
    pub(crate) fn connect(
        path: &Path,
        memory: Memory,
        setup: &Setup,
        inflight: Option<(VhostUserInflight, Arc<File>)>,
    ) -> Guest {
        let rings = (0..setup.rings).map(|index| GuestRing::new(&memory, index)).collect();
        let mut frontend = negotiate(path, setup);
        let inflight = match inflight {
            Some((inflight, file)) => {
                frontend.set_inflight_fd(&inflight, file.as_raw_fd()).unwrap();
                Some((inflight, file))
            }
            None if setup.inflight => {
                let wanted = VhostUserInflight::new(0, 0, setup.rings as u16, ENTRIES);
                let (inflight, file) = frontend.get_inflight_fd(&wanted).unwrap();
                Some((inflight, Arc::new(file)))
            }
            None => None,
        };
        frontend.set_mem_table(&[memory.region()]).unwrap();
        let free = (0..ENTRIES / 3).map(|n| n * 3).collect();
        Guest { frontend, memory, rings, inflight, free }
    }

    /// Connects anew to a server that has taken the place of the former one, with the same memory.
    /// The rings aren't started.
    pub(crate) fn reconnect(self, path: &Path, setup: &Setup) -> Guest {
        let Guest { frontend, memory, rings, inflight, free, .. } = self;
        drop(frontend);
        let mut guest = Guest::connect(path, memory, setup, inflight);
        guest.free = free;
        for (ring, former) in guest.rings.iter_mut().zip(&rings) {
            (ring.available, ring.seen) = (former.available, former.seen);
        }
        guest
    }

    /// Starts a ring where the used ring is, and enables it.
    pub(crate) fn start(&mut self, ring: usize) {
        let base = self.rings[ring].used_index();
        self.prepare(ring, base);
        self.frontend.set_vring_enable(ring, true).unwrap();
    }

    /// Starts a ring that isn't enabled yet.
    pub(crate) fn prepare(&mut self, ring: usize, base: u16) {
        let Guest { frontend, rings, .. } = self;
        let it = &rings[ring];
        frontend.set_vring_num(ring, ENTRIES).unwrap();
        frontend.set_vring_base(ring, base).unwrap();
        frontend.set_vring_addr(ring, &it.config()).unwrap();
        frontend.set_vring_err(ring, &it.error).unwrap();
        frontend.set_vring_call(ring, &it.call).unwrap();
        frontend.set_vring_kick(ring, &it.kick).unwrap();
    }

    /// Returns the capacity that the configuration space has, in sectors.
    pub(crate) fn capacity(&mut self) -> u64 {
        let space = self.config_space();
        u64::from_le_bytes(space[..8].try_into().unwrap())
    }

    pub(crate) fn config_space(&mut self) -> Vec<u8> {
        let flags = VhostUserConfigFlags::empty();
        self.frontend.get_config(0, 60, flags, &[0; 60]).unwrap().1
    }

    /// Makes a request on the first ring available. Its header lies in slot `head` of the buffers,
    /// `data` wherever it says. Returns the head.
    pub(crate) fn post(&mut self, kind: u32, sector: u64, data: &[(u64, u32, u16)]) -> u16 {
        let head = self.free.pop_front().expect("the ring has room");
        self.post_at(0, head, kind, sector, data);
        head
    }

    pub(crate) fn post_at(
        &mut self,
        ring: usize,
        head: u16,
        kind: u32,
        sector: u64,
        data: &[(u64, u32, u16)],
    ) {
        let slot = slot(ring, head);
        self.memory.put(slot, &header(kind, sector));
        self.memory.put(slot + 16, &[0xff]);
        let mut parts = vec![(slot, 16, 0)];
        parts.extend(data);
        parts.push((slot + 16, 1, WRITE));
        let ring = &mut self.rings[ring];
        ring.chain(head, &parts);
        ring.offer(head);
    }

    /// Returns the status of the request at this head of the first ring.
    pub(crate) fn status(&self, head: u16) -> u8 {
        self.memory.get(slot(0, head) + 16, 1)[0]
    }

    /// Waits for the end of any request of the first ring, and returns its head, status, length.
    pub(crate) fn wait(&mut self) -> (u16, u8, u32) {
        let (head, len) = self.rings[0].wait_used();
        self.free.push_back(head);
        (head, self.status(head), len)
    }

    /// Executes one request and returns its status and its length in the used ring.
    pub(crate) fn execute(
        &mut self,
        kind: u32,
        sector: u64,
        data: &[(u64, u32, u16)],
    ) -> (u8, u32) {
        let head = self.post(kind, sector, data);
        self.rings[0].kick();
        let (ended, status, len) = self.wait();
        assert_eq!(ended, head);
        (status, len)
    }

    pub(crate) fn write(&mut self, sector: u64, bytes: &[u8]) -> u8 {
        self.memory.put(BUFFERS, bytes);
        self.execute(1, sector, &[(BUFFERS, bytes.len() as u32, 0)]).0
    }

    pub(crate) fn read(&mut self, sector: u64, len: u32) -> Result<Vec<u8>, u8> {
        self.memory.put(BUFFERS, &vec![0xee; len as usize]);
        let (status, used) = self.execute(0, sector, &[(BUFFERS, len, WRITE)]);
        match status {
            OK => {
                assert_eq!(used, len + 1);
                Ok(self.memory.get(BUFFERS, len as usize))
            }
            status => Err(status),
        }
    }

    pub(crate) fn flush(&mut self) -> u8 {
        self.execute(4, 0, &[]).0
    }
}

/// Connects a frontend, and negotiates features.
pub(crate) fn negotiate(path: &Path, setup: &Setup) -> Frontend {
    let mut frontend = Frontend::connect(path, 8).unwrap();
    frontend.set_owner().unwrap();
    let offered = frontend.get_features().unwrap();
    assert_eq!(setup.features & !offered, 0, "it offers {offered:#x}");
    let mut features = frontend.get_protocol_features().unwrap();
    if !setup.inflight {
        features -= VhostUserProtocolFeatures::INFLIGHT_SHMFD;
    }
    frontend.set_protocol_features(features).unwrap();
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    frontend.set_features(setup.features).unwrap();
    frontend
}

/// Returns the place of a request's header and status.
pub(crate) fn slot(ring: usize, head: u16) -> u64 {
    GUEST + (512 << 10) + 32 * (ring as u64 * u64::from(ENTRIES) + u64::from(head))
}

pub(crate) fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

/// Waits until `done`, which other threads bring about, without a sleep.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} didn't come about");
        std::thread::yield_now();
    }
}
