//! Exports as disks of the machine that the server runs on, in virtual machines: by `corewise
//! attach` and by ublk, on Debian's stable and newest kernels; and as a disk of a virtual machine
//! whose server runs outside. Long runs by ublk end with a file system on checkpoints, over an
//! encrypted overlay of another server's export. It is backed up while it is written to and the
//! server is killed, and restored.
#![allow(missing_docs, clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use fastrand::Rng;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{ReadWriteFlags, pwritev2};

use crate::common::client::{FLUSH, FUA, WRITE, WRITE_ZEROES};
use crate::common::machine::{Image, is_long, listen};
use crate::common::replay::Log;
use crate::common::server::Server;
use crate::common::writer::{BLOCK, BLOCKS, DEPTH, Disk, Writer, content, seed};
use crate::common::{COREWISE, Folder, file};

struct Request {
    cookie: u64,
    command: u16,
    fua: bool,
    offset: u64,
    data: Vec<u8>,
}

/// Bytes at an address that `O_DIRECT` accepts.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let bytes = vec![0; len + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Aligned { bytes, start }
    }

    fn get(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + len]
    }
}

/// A disk of this machine, past the page cache: each request in flight has a thread.
struct BlockDevice {
    file: File,
    requests: Sender<Request>,
    done: Receiver<u64>,
    cookie: u64,
}

impl BlockDevice {
    fn open(path: &Path) -> BlockDevice {
        let open = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(libc::O_DIRECT);
            options.open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let ((requests, queue), (finished, done)) = (channel::<Request>(), channel());
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..DEPTH {
            let (file, queue, finished) = (open(), Arc::clone(&queue), finished.clone());
            std::thread::spawn(move || {
                loop {
                    let request = queue.lock().unwrap().recv();
                    let Ok(request) = request else { break };
                    perform(&file, &request);
                    finished.send(request.cookie).unwrap();
                }
            });
        }
        BlockDevice { file: open(), requests, done, cookie: 0 }
    }

    fn read(&self, len: usize) -> Vec<u8> {
        let mut aligned = Aligned::new(len);
        self.file.read_exact_at(aligned.get(len), 0).unwrap();
        aligned.get(len).to_vec()
    }
}

fn perform(file: &File, request: &Request) {
    match request.command {
        WRITE => {
            let mut aligned = Aligned::new(BLOCK);
            let data = aligned.get(BLOCK);
            data.copy_from_slice(&request.data);
            let flags = if request.fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
            let slices = [std::io::IoSlice::new(data)];
            assert_eq!(pwritev2(file, &slices, request.offset, flags), Ok(BLOCK));
        }
        WRITE_ZEROES => {
            let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
            fallocate(file, flags, request.offset, BLOCK as u64).unwrap();
        }
        _ => assert_eq!(request.command, FLUSH),
    }
    if request.command == FLUSH || request.command == WRITE_ZEROES && request.fua {
        file.sync_data().unwrap();
    }
}

impl Disk for BlockDevice {
    fn send(&mut self, command: u16, flags: u16, offset: u64, _: u32, data: &[u8]) -> u64 {
        self.cookie += 1;
        let (cookie, fua, data) = (self.cookie, flags & FUA != 0, data.to_vec());
        self.requests.send(Request { cookie, command, fua, offset, data }).unwrap();
        cookie
    }

    fn receive(&mut self) -> u64 {
        self.done.recv().unwrap()
    }
}

#[test]
#[ignore = "runs in the virtual machines of the tests below"]
fn a_disk_has_what_was_flushed_at_each_moment() {
    let variable = |name| std::env::var_os(name).unwrap();
    let (disk, log, until) = (variable("disk"), variable("log"), variable("until"));
    let mut writer = Writer::new(vec![log.clone().into()], seed());
    let mut disk = BlockDevice::open(disk.as_ref());
    loop {
        let is_last = Path::new(&until).exists();
        writer.work(&mut disk, 100, false);
        // The server may be killed, but the machine isn't, so everything acknowledged is there.
        let found = disk.read(BLOCKS * BLOCK);
        for (block, found) in found.chunks(BLOCK).enumerate() {
            let version = writer.acked[block];
            let zeroes = writer.sent[block][version];
            let expected = if zeroes { vec![0; BLOCK] } else { content(block, version) };
            assert!(
                *found == expected,
                "block {block} is not version {version}: {:?}",
                &found[..24]
            );
        }
        if is_last {
            break;
        }
    }
    let log = Log::read(log.as_ref());
    let mut chance = Rng::with_seed(seed() + 1);
    let some = (0..40).map(|_| 1 + chance.u64(..log.len() as u64) as usize);
    let moments: Vec<usize> = log.flushes().into_iter().rev().take(40).chain(some).collect();
    for upto in moments {
        let mut image = vec![0; 1 << 20];
        log.replay(&mut image, upto, &mut chance);
        writer.check(&image, &[upto], &format!("seed {}, entry {upto}", seed()));
    }
}

/// Runs the script `front_end` on this kernel, with this many kills in a long run, and with `more`
/// as further variables. Returns the result and the console, or `None` if this machine can't run
/// it.
fn run(kernel: &str, door: &str, kills: u32, more: &str) -> Option<(Option<String>, String)> {
    let test = std::env::current_exe().unwrap();
    let mut programs: Vec<&OsStr> =
        ["mkfs.ext4", "e2fsck", "blkdiscard", COREWISE].map(AsRef::as_ref).to_vec();
    programs.push(test.as_ref());
    if is_long() {
        programs.extend(["fio", "fsx"].map(OsStr::new));
    }
    let modules = "ublk_drv nbd ext4 crc32c_generic";
    let image =
        Image::new(&format!("front-end-{kernel}"), kernel, "front_end", modules, &programs)?;
    let long = if is_long() { format!("long={kills}") } else { String::new() };
    // One thread emulates the CPUs, as in `newest_kernel`: with several the kernel oopses.
    let variables = format!("quiet door={door} {long} {more}");
    let mut machine = image.machine(1200, "tcg,thread=single", &variables);
    machine.args(["-smp", "2", "-m", "1024", "-nic", "none"]);
    Some(listen(machine, |_| {}))
}

/// Checks that a disk by `door` keeps its data on this kernel.
#[track_caller]
fn keeps_its_data(kernel: &str, door: &str, kills: u32) {
    if let Some((result, said)) = run(kernel, door, kills, "") {
        assert_eq!(result.as_deref(), Some("well"), "{said}");
    }
}

/// Takes half a minute, and in a long run ten.
#[test]
fn a_disk_by_ublk_keeps_its_data_while_the_server_is_killed_and_started_again() {
    keeps_its_data("newest", "ublk", 50);
}

#[test]
fn a_disk_by_attach_keeps_its_data_while_the_server_is_killed_and_started_again() {
    if is_long() {
        keeps_its_data("newest", "attach", 50);
    }
}

#[test]
fn a_disk_by_ublk_keeps_its_data_on_a_kernel_that_lacks_abilities_and_the_server_says_so() {
    if is_long() {
        keeps_its_data("stable", "ublk", 10);
    }
}

#[test]
fn a_guest_s_disk_keeps_its_data_while_the_server_is_killed_and_started_again() {
    /// Number of kills, and sectors that the guest writes from one to the next, at least.
    const KILLS: u64 = 50;
    const BETWEEN: u64 = 800;
    if !is_long() {
        return;
    }
    let modules = "virtio_pci virtio_blk ext4 crc32c_generic";
    let programs = ["fio", "mkfs.ext4", "e2fsck", "fsx"].map(AsRef::as_ref);
    let Some(image) = Image::new("guest", "own", "guest", modules, &programs) else { return };
    let folder = Folder::new();
    let export = "[[export]]\ndevice = \"disk\"\nvhost_user = \"guest\"\n";
    folder.write("x.toml", file("disk", "256M") + export);
    let serve = || Server::start(&folder, &["x.toml"]);
    let mut server = Some(serve());
    // More than the kills need: a guest writes some more until its next line.
    let variables = format!("quiet sectors={}", 4 * KILLS * BETWEEN);
    let mut machine = image.machine(1200, "tcg,thread=single", &variables);
    machine.args(["-smp", "2", "-m", "512", "-machine", "memory-backend=ram", "-nic", "none"]);
    machine.args(["-object", "memory-backend-memfd,id=ram,size=512M,share=on", "-chardev"]);
    machine.arg(format!("socket,id=disk,path={},reconnect=1", folder.join("guest").display()));
    machine.args(["-device", "vhost-user-blk-pci,chardev=disk"]);
    let (mut next, mut kills) = (None, 0);
    let (result, said) = listen(machine, |line| {
        let Some(written) = line.strip_prefix("WRITTEN ") else { return };
        let written: u64 = written.parse().unwrap_or_default();
        let at = *next.get_or_insert(written + BETWEEN);
        if written >= at && kills < KILLS {
            server.take().unwrap().kill();
            server = Some(serve());
            (next, kills) = (Some(written + BETWEEN), kills + 1);
        }
    });
    assert_eq!((result.as_deref(), kills), (Some("well"), KILLS), "{said}");
    server.unwrap().stop().ok();
}

#[test]
fn a_machine_whose_server_is_stuck_reboots() {
    let cases = [("newest", "stopped"), ("newest", "killed"), ("stable", "stopped")];
    for (kernel, stuck) in cases.into_iter().filter(|_| is_long()) {
        let Some((result, said)) = run(kernel, "ublk", 1, &format!("stuck={stuck}")) else {
            return;
        };
        assert_eq!(result, None, "{kernel}, {stuck}: {said}");
        assert!(said.contains("reboot: Restarting system"), "{kernel}, {stuck}: {said}");
    }
}
