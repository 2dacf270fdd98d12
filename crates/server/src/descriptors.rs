//! Descriptors: the limit of the process, those that the server keeps for itself, and those that
//! are left for clients.
//!
//! Clients decide how many descriptors a server needs, as they decide how much memory. The server
//! needs one for each connection, for each handshake, and for each connection that ends to make
//! room. Without a limit they would take the last one. Then neither the control socket nor metrics
//! could be answered, no volume could be opened, and a volume that lost its connection couldn't
//! return. So the server keeps those that it can need, and clients share the rest
//! ([`Options::descriptors`] says how many they take).
//!
//! | for | descriptors |
//! | --- | --- |
//! | those that the process was started with | as many as are open then |
//! | the server | [`OWN`]: sockets, eventfds, timers, files that are read in passing |
//! | the control socket | [`CONTROL`]: clients that ask, listen, or wait for a change |
//! | metrics | [`METRICS`]: the scrapers |
//! | samples of worker threads | two for each of 128 threads, a sixteenth of the limit at most |
//! | `io_uring` | two for each CPU, if a device is a file |
//! | each device | [`device_descriptors`] |
//! | each disk of a virtual machine | [`GUEST`], and [`RING`] for each ring |
//!
//! A virtual machine has as many rings as CPUs, and no more CPUs than this machine. A frontend that
//! uses more takes them from what is left.

use std::fmt;

use corewise::nbd::Options;
use rustix::process::{Resource, getrlimit};

use crate::manifest::{Device, Driver};

/// The server's own descriptors: measured as 16 with everything on, and as many for files opened
/// for a moment.
const OWN: u64 = 32;
/// The control socket's: 16 clients that ask, 16 that listen, 4 whose change is being made, one
/// being accepted, and the files that an answer opens.
const CONTROL: u64 = 40;
/// The metrics': 8 scrapers, one being accepted, and the files that an answer opens.
const METRICS: u64 = 12;
/// The descriptors for samples of worker threads: the most, and their part of the limit. The
/// library keeps to both.
const SAMPLES: (u64, u64) = (256, 16);
/// The descriptors of a file, its write log, and its folder.
const FILE: u64 = 4;
/// The descriptors of another server's export, beside its connections: its eventfd, and sockets of
/// a name lookup.
const REMOTE: u64 = 4;
/// The descriptors of a volume in a store in a folder: 8 threads that each read or write one file
/// and its folder, the folders that it holds, and 64 objects that are held open for reads.
const STORE_IN_FOLDER: u64 = 24 + 64;
/// The descriptors of a volume in a remote store: a connection for each request in flight of one
/// CPU, and those of its runtime.
const STORE_ELSEWHERE: u64 = 256 + 8;

/// The descriptors of a virtual machine's disk without its rings: the listener, the connection and
/// its second descriptor, two of the channel to the frontend, a wait for the rest of a message, the
/// record of requests in flight, 16 regions of memory, and a frontend that is turned away.
const GUEST: u64 = 8 + 16;
/// The descriptors of a ring: epoll, its eventfd, the events of kicks, calls and errors, and the
/// io_uring by which the kernel signals calls.
const RING: u64 = 6;
/// The descriptors of the thread that accepts frontends: epoll and its eventfd.
const GUESTS: u64 = 2;

/// Most rings of a virtual machine's disk.
const MOST_RINGS: u64 = 64;

/// Returns the number of rings that a virtual machine uses on a machine with so many CPUs: one for
/// each of its own.
pub(crate) fn guest_rings(cpus: u64) -> u64 {
    cpus.clamp(1, MOST_RINGS)
}

/// The descriptors that the process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// Limit: `RLIMIT_NOFILE`.
    limit: u64,
    /// Descriptors that were open at the start.
    inherited: u64,
    cpus: u64,
}

/// A warning: there is room for fewer clients than were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorShortfall {
    asked: u64,
    left: u64,
    limit: u64,
    kept: u64,
}

impl fmt::Display for DescriptorShortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DescriptorShortfall { asked, left, limit, kept } = self;
        write!(
            f,
            "{left} clients at most, instead of {asked}: the hard limit of open files is {limit}, \
             of which volumes, control and metrics need {kept}. Raise LimitNOFILE (systemd) or \
             `ulimit -Hn`, or lower 'clients'"
        )
    }
}

/// An error: the limit leaves no place for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooFewDescriptors {
    limit: u64,
    kept: u64,
}

impl fmt::Display for TooFewDescriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooFewDescriptors { limit, kept } = self;
        write!(
            f,
            "the hard limit of open files is {limit}, too low for any client: volumes, control \
             and metrics need {kept}. Raise LimitNOFILE (systemd) or `ulimit -Hn`"
        )
    }
}

impl Descriptors {
    /// Reads the limit of this process, and counts its open descriptors, before the server opens
    /// anything.
    pub(crate) fn now() -> Descriptors {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
        Descriptors { limit, inherited: open(limit), cpus }
    }

    /// Returns the number that the server keeps for itself with these devices, and so many disks of
    /// virtual machines.
    fn kept<'d>(&self, devices: impl Iterator<Item = &'d Device> + Clone, guests: u64) -> u64 {
        let is_file = |device: &&Device| matches!(device.driver, Driver::File(_));
        let rings = if devices.clone().any(|device| is_file(&device)) { 2 * self.cpus } else { 0 };
        let samples = SAMPLES.0.min(self.limit / SAMPLES.1);
        let devices: u64 = devices.map(device_descriptors).sum();
        let of_guest = GUEST + RING * guest_rings(self.cpus);
        let guests = if guests > 0 { GUESTS + guests.saturating_mul(of_guest) } else { 0 };
        self.inherited + OWN + CONTROL + METRICS + samples + rings + devices.saturating_add(guests)
    }

    /// Returns the part of `options` that clients can have beside these devices.
    pub(crate) fn share<'d>(
        &self,
        options: Options,
        devices: impl Iterator<Item = &'d Device> + Clone,
        guests: u64,
    ) -> Result<(Options, Option<DescriptorShortfall>), TooFewDescriptors> {
        let (limit, kept) = (self.limit, self.kept(devices, guests));
        let left = limit.saturating_sub(kept);
        if options.descriptors() <= left {
            return Ok((options, None));
        }
        // Handshakes are short: an eighth is for them and for those that make room.
        let each = options.max_half_open(1).max_connections(0).descriptors();
        let half_open = (left / 8 / each.max(1)).clamp(1, options.max_half_open as u64);
        let options = options.max_half_open(half_open as usize);
        let beside = options.max_connections(0).descriptors();
        let clients = left.saturating_sub(beside).min(options.max_connections as u64);
        if clients == 0 {
            return Err(TooFewDescriptors { limit, kept });
        }
        let asked = options.max_connections as u64;
        let shortfall =
            (clients < asked).then_some(DescriptorShortfall { asked, left: clients, limit, kept });
        Ok((options.max_connections(clients as usize), shortfall))
    }

    /// Returns the reason for which these devices don't fit beside so many clients.
    pub(crate) fn refusal<'d>(
        &self,
        devices: impl Iterator<Item = &'d Device> + Clone,
        guests: u64,
        clients: u64,
    ) -> String {
        let (limit, kept) = (self.limit, self.kept(devices, guests));
        format!(
            "the hard limit of open files is {limit}: volumes, control and metrics would need \
             {kept}, and {clients} clients are connected. Raise LimitNOFILE (systemd) or `ulimit \
             -Hn` and start again, or disconnect clients"
        )
    }
}

/// Returns the most descriptors that a device keeps open, with those that it opens when it
/// reconnects.
fn device_descriptors(device: &Device) -> u64 {
    match &device.driver {
        Driver::File(_) | Driver::Overlay(_) => FILE,
        Driver::Remote(asked) => REMOTE + asked.connections as u64,
        Driver::Object(asked) => {
            let store = match asked.location.value.starts_with("file://") {
                true => STORE_IN_FOLDER,
                false => STORE_ELSEWHERE,
            };
            store + if asked.flush_file.is_some() { FILE } else { 0 }
        }
        Driver::Checkpoint(asked) => FILE + if asked.copies.is_some() { FILE } else { 0 },
        Driver::Memory(_)
        | Driver::Null(_)
        | Driver::Crypt(_)
        | Driver::Stripe(_)
        | Driver::Mirror(_)
        | Driver::Partition(_)
        | Driver::Delay(_)
        | Driver::Error(_) => 0,
    }
}

/// Returns the number of open descriptors below the limit; the usual three if the system doesn't
/// say.
fn open(limit: u64) -> u64 {
    let Ok(all) = std::fs::read_dir("/proc/self/fd") else { return 3 };
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.parse::<u64>().ok()
    };
    // One of them belongs to this directory listing.
    (all.filter_map(number).filter(|fd| *fd < limit).count() as u64).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::manifest;

    fn devices(text: &str) -> Vec<Device> {
        let read = manifest::read(text, Path::new("/"));
        assert!(read.problems.is_empty(), "{:?}", read.problems);
        read.manifest.devices
    }

    const MEMORY: &str = "[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"1M\"\n";

    fn of(limit: u64) -> Descriptors {
        Descriptors { limit, inherited: 3, cpus: 4 }
    }

    #[test]
    fn clients_get_all_they_ask_for_where_there_is_enough_and_else_what_is_left() {
        let memory = devices(MEMORY);
        let asked = Options::default();
        assert_eq!(of(524_288).share(asked, memory.iter(), 0), Ok((asked, None)));
        assert_eq!(of(u64::MAX).share(asked, memory.iter(), 0), Ok((asked, None)));
        for limit in [200, 256, 512, 1000, 1024] {
            let files = of(limit);
            let (options, shortfall) = files.share(asked, memory.iter(), 0).unwrap();
            let shortfall = shortfall.unwrap().to_string();
            assert!(
                options.descriptors() <= limit - files.kept(memory.iter(), 0),
                "{limit}: {options:?}"
            );
            assert!(
                options.max_connections as u64 > limit / 4,
                "{limit}: {}",
                options.max_connections
            );
            let says = format!(
                "{} clients at most, instead of 1024: the hard limit",
                options.max_connections
            );
            assert!(
                shortfall.starts_with(&says) && shortfall.contains("LimitNOFILE"),
                "{shortfall}"
            );
        }
        let why = of(90).share(asked, memory.iter(), 0).unwrap_err().to_string();
        assert!(
            why.contains(
                "open files is 90, too low for any client: volumes, control and metrics need 92"
            ),
            "{why}"
        );
    }

    #[test]
    fn a_few_clients_that_fit_are_no_cut_though_fewer_may_shake_hands() {
        let memory = devices(MEMORY);
        let asked = Options::default().max_connections(40);
        let (options, shortfall) = of(256).share(asked, memory.iter(), 0).unwrap();
        assert_eq!((options.max_connections, shortfall), (40, None));
        assert!(options.max_half_open < 256);
    }

    #[test]
    fn each_device_is_counted_with_what_it_opens_when_it_comes_back() {
        let all = "[[device]]\nname = \"f\"\ndriver = \"file\"\npath = \"f\"\nwrite_log = \"l\"\n\
                   [[device]]\nname = \"r\"\ndriver = \"nbd\"\nuri = \"nbd://h/x\"\nconnections = 16\n\
                   [[device]]\nname = \"s\"\ndriver = \"stripe\"\nover = [\"f\", \"r\"]\n";
        let all = devices(all);
        let each: Vec<u64> = all.iter().map(device_descriptors).collect();
        assert_eq!(each, [FILE, REMOTE + 16, 0]);
        let kept = of(1 << 20).kept(all.iter(), 0) - of(1 << 20).kept(std::iter::empty(), 0);
        assert_eq!(kept, FILE + REMOTE + 16 + 2 * 4, "and the rings of files");
    }

    #[test]
    fn each_virtual_machine_is_counted_with_a_ring_for_each_cpu() {
        let kept =
            |cpus, guests| Descriptors { cpus, ..of(1 << 20) }.kept(std::iter::empty(), guests);
        assert_eq!(kept(4, 2) - kept(4, 0), GUESTS + 2 * (GUEST + 4 * RING));
        assert_eq!(kept(500, 1) - kept(500, 0), GUESTS + GUEST + 64 * RING, "no disk has more");
    }

    #[test]
    fn what_is_open_is_counted() {
        let before = open(u64::MAX);
        let more: Vec<_> = (0..5).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests open and close files meanwhile.
        assert!(open(u64::MAX) >= 5 && before > 0);
        assert_eq!(open(0), 0);
        drop(more);
    }
}
