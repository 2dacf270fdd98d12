//! A virtio disk in this process, and the target that feeds it guests and frontends.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use corewise_export::SharedDevice;
use corewise_vhost::{Options, Server};
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::device::Device;
use crate::seeds::Seed;

/// Bytes of a guest's memory.
const MEMORY: u64 = 64 << 10;
/// Address at which it begins.
const GUEST: u64 = 0x1_0000;
const USER: u64 = 0x7000_0000_0000;
/// Entries of the ring.
const ENTRIES: u16 = 16;
/// Places of the ring's parts in the memory. The image of an input begins at 0.
const AVAILABLE: u64 = 0x100;
const USED: u64 = 0x200;
/// Bytes of the used ring: flags, index, entries, and the index of the next event.
const USED_BYTES: u64 = 4 + 8 * ENTRIES as u64 + 2;
/// Timeout, longer than any answer takes: a server that exceeds it hangs.
const HANG: Duration = Duration::from_secs(20);

/// The first byte of an input: bytes of a frontend instead of a guest's memory.
const MESSAGES: u8 = 1;
const READ_ONLY: u8 = 2;
const PLAIN: u8 = 4;
/// Features that the guest declines.
const NO_EVENT_IDX: u8 = 8;
const NO_FLUSH: u8 = 16;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Executes a guest's memory as its one ring, or sends bytes as a frontend's messages.
///
/// # Panics
/// If the server hangs, answers a request twice, writes to memory that no descriptor offers,
/// changes a read-only device, or serves the next guest no more.
pub fn guest(data: &[u8]) {
    let (mode, rest) = data.split_first().map_or((0, data), |(mode, rest)| (*mode, rest));
    let device = Device::with(mode & PLAIN != 0, false);
    let before = device.bytes();
    let server = Server::new().expect("a server without disks");
    // Tests run beside each other.
    static NEXT_SOCKET: AtomicU64 = AtomicU64::new(0);
    let number = NEXT_SOCKET.fetch_add(1, Ordering::Relaxed);
    let name = format!("corewise-fuzz-guest-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let options = Options::default().read_only(mode & READ_ONLY != 0);
    let shared = SharedDevice::new(device.clone());
    let disk = server.listen(&path, shared, options).expect("a socket of this process");
    match mode & MESSAGES {
        0 => execute(&path, mode, rest),
        _ => send(&path, rest),
    }
    if mode & READ_ONLY != 0 {
        assert_eq!(device.bytes(), before, "a read-only device has changed");
    }
    // The next one waits in the socket until the former one's requests have ended.
    let seed = Image::new().request(0, 0, &[(0x1000, 512, WRITE)]).bytes();
    let read = execute_once(&path, mode, &seed);
    assert_eq!(read.used, [(0, 513)], "the next guest isn't served");
    assert_eq!(read.get(0x1000, 512), device.bytes()[..512]);
    drop(read);
    assert!(disk.stop(HANG).drained, "a request is in flight for ever");
}

/// A guest whose ring was executed.
struct Executed {
    memory: GuestMemoryMmap,
    /// The used entries: heads and lengths.
    used: Vec<(u32, u32)>,
    /// Number of requests that the server took.
    taken: u16,
    _frontend: Frontend,
}

impl Executed {
    fn get(&self, at: u64, len: usize) -> Vec<u8> {
        get(&self.memory, at, len)
    }
}

fn get(memory: &GuestMemoryMmap, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read_slice(&mut bytes, GuestAddress(GUEST + at)).expect("it is in the memory");
    bytes
}

fn memory(image: &[u8]) -> (File, GuestMemoryMmap) {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create("guest", flags).expect("a memfd"));
    file.set_len(MEMORY).expect("room in memory");
    let offset = FileOffset::new(file.try_clone().expect("a descriptor"), 0);
    let range = (GuestAddress(GUEST), MEMORY as usize, Some(offset));
    let map = GuestMemoryMmap::from_ranges_with_files([range]).expect("room in memory");
    let image = &image[..image.len().min(MEMORY as usize)];
    map.write_slice(image, GuestAddress(GUEST)).expect("it is in the memory");
    // A ring begins empty.
    map.write_slice(&[0; 4], GuestAddress(GUEST + USED)).expect("it is in the memory");
    (file, map)
}

/// Connects a guest with this memory, and returns it once its ring has stopped.
fn execute_once(path: &Path, mode: u8, image: &[u8]) -> Executed {
    let (file, memory) = memory(image);
    let event = || EventFd::new(EFD_NONBLOCK).expect("an eventfd");
    let (kick, call, error) = (event(), event(), event());
    let mut frontend = Frontend::connect(path, 1).expect("the server listens");
    let run = || -> vhost::Result<u32> {
        frontend.set_owner()?;
        let mut features = frontend.get_features()?;
        for (flag, bit) in [(NO_EVENT_IDX, 1_u64 << 29), (NO_FLUSH, 1 << 9)] {
            if mode & flag != 0 {
                features &= !bit;
            }
        }
        let protocol = frontend.get_protocol_features()?;
        frontend.set_protocol_features(protocol)?;
        frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        frontend.set_features(features)?;
        frontend.set_mem_table(&[VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST,
            memory_size: MEMORY,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        }])?;
        frontend.set_vring_num(0, ENTRIES)?;
        frontend.set_vring_base(0, 0)?;
        frontend.set_vring_addr(
            0,
            &VringConfigData {
                queue_max_size: ENTRIES,
                queue_size: ENTRIES,
                flags: 0,
                desc_table_addr: USER,
                used_ring_addr: USER + USED,
                avail_ring_addr: USER + AVAILABLE,
                log_addr: None,
            },
        )?;
        frontend.set_vring_err(0, &error)?;
        frontend.set_vring_call(0, &call)?;
        frontend.set_vring_kick(0, &kick)?;
        // The pass that enables the ring takes what is there.
        frontend.set_vring_enable(0, true)?;
        frontend.get_vring_base(0)
    };
    let taken = { run }().expect("a server that answers each message") as u16;
    let index = memory.load::<u16>(GuestAddress(GUEST + USED + 2), Ordering::Acquire);
    let count = index.expect("it is in the memory").min(ENTRIES);
    let word = |at: u64| {
        let bytes = get(&memory, at, 4);
        u32::from_le_bytes(bytes.try_into().expect("four bytes"))
    };
    let entry = |n: u64| (word(USED + 4 + 8 * n), word(USED + 8 + 8 * n));
    let used = (0..u64::from(count)).map(entry).collect();
    Executed { memory, used, taken, _frontend: frontend }
}

/// A descriptor: address, length, flags, next.
type Descriptor = (u64, u32, u16, u16);

/// Returns the descriptor at this place of an image, if it is there.
fn descriptor(image: &[u8], at: u64) -> Option<Descriptor> {
    let at = usize::try_from(at).ok()?;
    let bytes: &[u8; 16] = image.get(at..at.checked_add(16)?)?.try_into().ok()?;
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let len = u32::from(half(8)) | u32::from(half(10)) << 16;
    let address = (0..4).rev().fold(0, |sum, n| sum << 16 | u64::from(half(2 * n)));
    Some((address, len, half(12), half(14)))
}

/// Returns the ranges of the memory that any descriptor offers to the server, or `None` if one of
/// them covers descriptors, which the server may then have read anew.
fn offered(image: &[u8]) -> Option<Vec<(u64, u64)>> {
    let mut tables = vec![(0, 16 * u64::from(ENTRIES))];
    let main = (0..u64::from(ENTRIES)).filter_map(|n| descriptor(image, 16 * n));
    for (at, len, flags, _) in main {
        if flags & INDIRECT != 0 {
            tables.push((at.wrapping_sub(GUEST), len.into()));
        }
    }
    let mut offered = Vec::new();
    for (at, len) in &tables {
        for n in 0..(len / 16).min(MEMORY / 16) {
            let found = at.checked_add(16 * n).and_then(|at| descriptor(image, at));
            let Some((address, len, flags, _)) = found else { break };
            if flags & WRITE != 0 {
                offered.push((address.wrapping_sub(GUEST), u64::from(len)));
            }
        }
    }
    // The place of the available ring counts as well.
    let read = tables.iter().copied().chain([(0, USED)]);
    let meets =
        |(a, b): (u64, u64), (c, d): (u64, u64)| a < c.saturating_add(d) && c < a.saturating_add(b);
    let overlap = read.clone().any(|table| {
        offered.iter().any(|span| meets(*span, table)) || meets(table, (USED, USED_BYTES))
    });
    (!overlap).then_some(offered)
}

/// Executes a guest's memory, and verifies what has become of it.
fn execute(path: &Path, mode: u8, image: &[u8]) {
    let executed = execute_once(path, mode, image);
    let before = {
        let mut before = image[..image.len().min(MEMORY as usize)].to_vec();
        before.resize(MEMORY as usize, 0);
        before[USED as usize..][..4].fill(0);
        before
    };
    let Executed { used, taken, .. } = &executed;
    assert!(used.len() <= usize::from(*taken), "{used:?} of {taken} requests");
    assert!(used.iter().all(|(head, _)| *head < u32::from(ENTRIES)), "{used:?}");
    let Some(offered) = offered(&before) else { return };
    let heads = (0..u64::from(ENTRIES)).map(|n| {
        let at = (AVAILABLE + 4 + 2 * n) as usize;
        u32::from(u16::from_le_bytes([before[at], before[at + 1]]))
    });
    let heads: Vec<u32> = heads.take((*taken).into()).collect();
    for (head, _) in used {
        let of = |all: &mut dyn Iterator<Item = &u32>| all.filter(|other| *other == head).count();
        let (asked, answered) = (of(&mut heads.iter()), of(&mut used.iter().map(|(head, _)| head)));
        assert!(answered <= asked, "{head} was available {asked} times, and is used {answered}");
    }
    let after = executed.get(0, MEMORY as usize);
    let is_used_ring = |at: u64| (USED..USED + USED_BYTES).contains(&at);
    for (at, _) in before.iter().zip(&after).enumerate().filter(|(_, (old, new))| old != new) {
        let at = at as u64;
        let is_offered = offered.iter().any(|(first, len)| at >= *first && at - first < *len);
        assert!(is_offered || is_used_ring(at), "byte {at:#x} was written, and never offered");
    }
}

/// Sends these bytes as a frontend, then leaves.
fn send(path: &Path, bytes: &[u8]) {
    let mut socket = UnixStream::connect(path).expect("the server listens");
    socket.set_read_timeout(Some(HANG)).expect("a timeout above zero");
    // The server may have hung up already.
    let _ = socket.write_all(&bytes[..bytes.len().min(8 << 10)]);
    let _ = socket.shutdown(Shutdown::Write);
    match socket.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server doesn't end the connection: {error}"),
    }
}

/// An image of a guest's memory.
struct Image {
    bytes: Vec<u8>,
    /// Descriptors in the table.
    descriptors: u16,
}

impl Image {
    fn new() -> Image {
        Image { bytes: vec![0; 0x2000], descriptors: 0 }
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        self.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn describe(&mut self, table: u64, place: u16, (at, len, flags, next): Descriptor) {
        let mut bytes = (GUEST + at).to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(table + 16 * u64::from(place), &bytes);
    }

    /// Makes a chain available.
    fn offer(&mut self, head: u16) {
        let at = AVAILABLE as usize + 2;
        let index = u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]);
        self.put(AVAILABLE + 4 + 2 * u64::from(index % ENTRIES), &head.to_le_bytes());
        self.put(AVAILABLE + 2, &index.wrapping_add(1).to_le_bytes());
    }

    /// Makes a chain of these descriptors, and makes it available.
    fn chain(mut self, parts: &[(u64, u32, u16)]) -> Image {
        let head = self.descriptors;
        for (n, (at, len, flags)) in parts.iter().enumerate() {
            let more = if n + 1 < parts.len() { NEXT } else { 0 };
            let next = self.descriptors + 1;
            self.describe(0, self.descriptors, (*at, *len, flags | more, next));
            self.descriptors = next;
        }
        self.offer(head);
        self
    }

    /// Makes a request of this kind available, with its header and its status.
    fn request(mut self, kind: u32, sector: u64, data: &[(u64, u32, u16)]) -> Image {
        let at = 0x400 + 32 * u64::from(self.descriptors);
        self.put(at, &kind.to_le_bytes());
        self.put(at + 8, &sector.to_le_bytes());
        let parts = [&[(at, 16, 0)], data, &[(at + 16, 1, WRITE)]].concat();
        self.chain(&parts)
    }

    fn bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn seed(self, name: &'static str, mode: u8) -> Seed {
        (name, [&[mode][..], &self.bytes].concat())
    }
}

/// Returns the seeds.
pub(crate) fn seeds() -> Vec<Seed> {
    let range = |image: &mut Image, at: u64, sector: u64, sectors: u32, flags: u32| {
        image.put(at, &sector.to_le_bytes());
        image.put(at + 8, &sectors.to_le_bytes());
        image.put(at + 12, &flags.to_le_bytes());
    };
    let all = || {
        let mut image = Image::new()
            .request(1, 2, &[(0x1000, 512, 0), (0x1400, 512, 0)])
            .request(0, 0, &[(0x1800, 1024, WRITE)])
            .request(4, 0, &[])
            .request(8, 0, &[(0x1e00, 20, WRITE)]);
        image.put(0x1000, &[7; 0x800]);
        image
    };
    let mut ranges =
        Image::new().request(11, 0, &[(0x1000, 32, 0)]).request(13, 0, &[(0x1020, 16, 0)]);
    range(&mut ranges, 0x1000, 1, 3, 0);
    range(&mut ranges, 0x1010, 8, 1, 0);
    range(&mut ranges, 0x1020, 4, 4, 1);
    let mut indirect = Image::new();
    indirect.put(0x420, &[0; 16]);
    indirect.describe(0x800, 0, (0x420, 16, NEXT, 1));
    indirect.describe(0x800, 1, (0x1000, 512, WRITE | NEXT, 2));
    indirect.describe(0x800, 2, (0x440, 1, WRITE, 0));
    let indirect = indirect.chain(&[(0x800, 48, INDIRECT)]);
    let mut a_loop = Image::new();
    a_loop.describe(0, 0, (0x420, 16, NEXT, 1));
    a_loop.describe(0, 1, (0x1000, 512, NEXT, 0));
    a_loop.offer(0);
    let twice = || {
        let mut image = Image::new().request(0, 0, &[(0x1000, 512, WRITE)]);
        image.offer(0);
        image
    };
    let mut index = all();
    index.put(AVAILABLE + 2, &0x8000_u16.to_le_bytes());
    let mut head = all();
    head.put(AVAILABLE + 4, &[ENTRIES as u8, 0]);
    let message = |request: u32, flags: u32, body: &[u8]| {
        let words = [request, flags, body.len() as u32];
        [&words.map(u32::to_le_bytes).concat()[..], body].concat()
    };
    let messages = |all: &[Vec<u8>]| [&[vec![MESSAGES]], all].concat().concat();
    let number = |n: u64| n.to_le_bytes();
    let hello = || message(3, 1, &[]);
    vec![
        all().seed("all-kinds", 0),
        all().seed("all-kinds-without-events-and-flushes", NO_EVENT_IDX | NO_FLUSH),
        all().seed("all-kinds-read-only", READ_ONLY),
        all().seed("all-kinds-of-a-plain-device", PLAIN),
        ranges.seed("ranges", 0),
        indirect.seed("indirect", 0),
        a_loop.seed("loop", 0),
        twice().seed("one-chain-twice", 0),
        index.seed("index-out-of-the-ring", 0),
        head.seed("head-out-of-the-table", 0),
        Image::new().request(0, 0, &[(0, 512, WRITE)]).seed("read-over-its-own-descriptors", 0),
        Image::new().request(0, 0, &[(MEMORY - 256, 512, WRITE)]).seed("beyond-the-memory", 0),
        Image::new().request(0, u64::MAX >> 9, &[(0x1000, 512, WRITE)]).seed("beyond-the-end", 0),
        Image::new().chain(&[(0x400, 16, 0)]).seed("no-status", 0),
        (
            "messages",
            messages(&[
                hello(),
                message(1, 1, &[]),
                message(15, 1, &[]),
                message(16, 1, &number(0x3ff)),
                message(17, 1, &[]),
                message(24, 1, &[[0_u8; 12], [0; 12]].concat()),
                message(8, 9, &[0, 0, 0, 0, 16, 0, 0, 0]),
                message(11, 9, &[0; 8]),
            ]),
        ),
        (
            "message-of-4-gib",
            messages(&[hello(), vec![1, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255]]),
        ),
        ("message-cut-off", messages(&[hello(), message(2, 1, &number(1))[..15].to_vec()])),
        ("web-browser", messages(&[b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()])),
    ]
}
