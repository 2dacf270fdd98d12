//! The address space: the limit of the process, the part that the server keeps for itself, and the
//! clients that fit into the rest.
//!
//! `RLIMIT_AS` and `RLIMIT_DATA` count mapped bytes, not used ones. From the first moment on, each
//! thread costs its whole stack, and a volume in memory its whole size. An allocation that finds
//! nothing left ends the process. So the server reserves the memory that its clients may take, with
//! the heap's loss, before the first of them comes ([`nbd::reserve_heap`]). It accepts as many as
//! that and the rest have room for. After that only threads can run short, and a client can wait
//! for one.
//!
//! | for | bytes |
//! | --- | --- |
//! | allocations of clients | [`LOSS`] times [`Options::worst_case`] |
//! | threads of clients | [`Options::stacks`] |
//! | allocations of the server | [`HEAP`], and the caches of volumes |
//! | its own threads | [`THREADS`], and three for each CPU |
//! | each device | [`DeviceMemory`] |
//! | each disk of a virtual machine | [`guest`] |
//!
//! The memory of a virtual machine is mapped when its frontend connects. If the address space has
//! no room for it, that frontend is refused.

use std::fmt;

use corewise::nbd::{self, Options};
use rustix::process::{Resource, getrlimit};

use crate::descriptors::guest_rings;
use crate::manifest::{Device, Driver};
use crate::units;

/// The ratio of a heap's size to its content, when buffers of all sizes come and go.
const LOSS: u64 = 2;
/// The server's own allocations, in bytes: about 6 MiB, and answers on the control socket.
const HEAP: u64 = 16 << 20;
/// The server's own threads: 12 with everything on, and some for changes.
const THREADS: u64 = 16;
/// The size of a stack, its guard page, and a stack for signals, in bytes.
const THREAD: u64 = (2 << 20) + (64 << 10);
/// The size of a CPU's rings, if a device is a file.
const RINGS: u64 = 1 << 20;
/// The buffers of a connection to another server's export.
const LINE: u64 = 2 << 20;
/// The memory of a volume in a store, beside its read cache: changes that wait, and objects that
/// are read and written.
const STORE: u64 = 64 << 20;
/// The copies of large writes to an encrypted device.
const CRYPT: u64 = 16 << 20;
/// The threads of a volume in a store.
const STORE_THREADS: u64 = 8;

/// The memory of a ring beyond that of clients: one piece in flight, and small buffers that wait
/// for their next use.
const RING: u64 = (512 << 10) + (1 << 20);
/// Returns the bytes of a disk of a virtual machine: a thread for the frontend and one for each
/// ring, and what rings allocate.
fn guest(cpus: u64) -> u64 {
    THREAD + guest_rings(cpus) * (THREAD + RING)
}

/// A limit of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AddressLimit {
    /// Name of the limit; `raise` is the way to raise it.
    name: &'static str,
    raise: &'static str,
    bytes: u64,
    /// Bytes that it leaves beside those mapped at the start.
    left: u64,
}

/// The address space that the process may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressSpace {
    /// Limit; `None` if there is none.
    limit: Option<AddressLimit>,
    cpus: u64,
}

/// A cut: fewer clients, or less memory for them, than was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressSpaceShortfall {
    limit: AddressLimit,
    /// Clients asked for, and their memory in bytes; `left` has the rest.
    asked: (usize, u64),
    left: (usize, u64),
    kept: u64,
}

impl fmt::Display for AddressSpaceShortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AddressSpaceShortfall {
            limit: AddressLimit { name, raise, bytes, .. },
            asked,
            left,
            kept,
        } = *self;
        let (bytes, kept) = (units::about(bytes), units::about(kept));
        let of = |(clients, memory)| {
            format!(
                "{} with {} of memory",
                units::count(clients as u64, "client"),
                units::about(memory)
            )
        };
        let (left, asked) = (of(left), of(asked));
        write!(
            f,
            "{left} at most, instead of {asked}: {name} is {bytes}, of which the server and its \
             volumes need {kept}. Raise {raise}, or lower 'clients' and 'memory'"
        )
    }
}

/// An error: no client would have a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLittleAddressSpace {
    limit: AddressLimit,
    kept: u64,
    needed: u64,
}

impl fmt::Display for TooLittleAddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooLittleAddressSpace { limit: AddressLimit { name, raise, bytes, .. }, kept, needed } =
            *self;
        let (bytes, kept, needed) = (units::about(bytes), units::about(kept), units::about(needed));
        write!(
            f,
            "{name} is {bytes}, too little for any client: the server and its volumes need {kept} \
             of it, and a client with the largest requests {needed}. Raise {raise}"
        )
    }
}

/// Returns the most that clients allocate, with the heap's loss, in bytes.
fn heap(options: &Options, tls: bool) -> u64 {
    options.worst_case(tls).saturating_mul(LOSS)
}

impl AddressSpace {
    /// Returns the address space of this process, beside the part that is mapped now.
    pub(crate) fn now() -> AddressSpace {
        let pages = |at: usize| -> Option<u64> {
            let all = std::fs::read_to_string("/proc/self/statm").ok()?;
            all.split_ascii_whitespace().nth(at)?.parse().ok()
        };
        let page = rustix::param::page_size() as u64;
        let limit = |resource, name, raise, at| {
            let bytes = getrlimit(resource).current?;
            let mapped = pages(at).unwrap_or_default().saturating_mul(page);
            Some(AddressLimit { name, raise, bytes, left: bytes.saturating_sub(mapped) })
        };
        let all = limit(Resource::As, "RLIMIT_AS", "LimitAS (systemd) or `ulimit -v`", 0);
        let data = limit(Resource::Data, "RLIMIT_DATA", "LimitDATA (systemd) or `ulimit -d`", 5);
        let limit = all.into_iter().chain(data).min_by_key(|limit| limit.left);
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
        AddressSpace { limit, cpus }
    }

    /// Returns the bytes that the server keeps for itself with these devices, and so many disks of
    /// virtual machines.
    fn kept<'d>(&self, devices: impl Iterator<Item = &'d Device> + Clone, guests: u64) -> u64 {
        let is_file = |device: &Device| matches!(device.driver, Driver::File(_));
        let rings = if devices.clone().any(is_file) { RINGS * self.cpus } else { 0 };
        let threads = (THREADS + 3 * self.cpus) * THREAD;
        let theirs = devices.map(DeviceMemory::of).map(|it| it.mapped.saturating_add(it.allocated));
        let guests = guests.saturating_mul(guest(self.cpus));
        theirs.fold(guests.saturating_add(HEAP + threads + rings), u64::saturating_add)
    }

    /// Returns the part of `options` that clients can have beside these devices. `reserved` bytes
    /// were reserved for them at the start and stay.
    pub(crate) fn share<'d>(
        &self,
        options: Options,
        tls: bool,
        reserved: Option<u64>,
        devices: impl Iterator<Item = &'d Device> + Clone,
        guests: u64,
    ) -> Result<(Options, Option<AddressSpaceShortfall>), TooLittleAddressSpace> {
        let Some(limit) = self.limit else { return Ok((options, None)) };
        let kept = self.kept(devices, guests);
        let left = limit.left.saturating_sub(kept);
        // Bytes mapped at the start count, too.
        let kept = kept.saturating_add(limit.bytes - limit.left);
        let need = |options: &Options| {
            reserved.unwrap_or_else(|| heap(options, tls)).saturating_add(options.stacks())
        };
        if need(&options) <= left {
            return Ok((options, None));
        }
        // Handshakes are short: an eighth is for them and for those that make room. Half of the
        // rest is for requests.
        let none = options.max_connections(0);
        let each = none.max_half_open(2).stacks() - none.max_half_open(1).stacks();
        let half_open = (left / 8 / each.max(1)).clamp(1, options.max_half_open as u64);
        let memory = options.memory.min(left / 2 / LOSS);
        let fewer = options.max_half_open(half_open as usize).memory(memory);
        let asked = options.max_connections;
        let (mut fit, mut beyond) = (0, asked.saturating_add(1));
        while beyond - fit > 1 {
            let middle = fit + (beyond - fit) / 2;
            match need(&fewer.max_connections(middle)) <= left {
                true => fit = middle,
                false => beyond = middle,
            }
        }
        if fit == 0 {
            let needed = need(&fewer.max_connections(1).max_half_open(1).memory(0));
            return Err(TooLittleAddressSpace { limit, kept, needed });
        }
        let fewer = fewer.max_connections(fit);
        let of = |options: &Options| (options.max_connections, options.worst_case(tls));
        let (asked, left) = (of(&options), of(&fewer));
        let less = left.0 < asked.0 || left.1 < asked.1;
        Ok((fewer, less.then_some(AddressSpaceShortfall { limit, asked, left, kept })))
    }

    /// Reserves the memory that clients and the caches of these devices may allocate. Returns the
    /// clients' part. The main thread must call it.
    ///
    /// # Errors
    /// The limit doesn't leave that much.
    pub(crate) fn reserve<'d>(
        &self,
        options: &Options,
        tls: bool,
        devices: impl Iterator<Item = &'d Device>,
    ) -> Result<Option<u64>, String> {
        let Some(AddressLimit { name, raise, .. }) = self.limit else { return Ok(None) };
        let clients = heap(options, tls);
        let theirs = devices.map(|device| DeviceMemory::of(device).allocated);
        let all = theirs.fold(clients.saturating_add(HEAP), u64::saturating_add);
        map_main_stack();
        nbd::reserve_heap(all).map_err(|error| {
            let all = units::about(all);
            format!(
                "cannot reserve {all} for clients and caches: {error}: raise {name}, by {raise}"
            )
        })?;
        Ok(Some(clients))
    }
}

/// The size that this thread's stack may need, in bytes.
const MAIN_STACK: usize = 512 << 10;

/// Maps the stack of the main thread. It grows as it is used, and at the limit that would end the
/// process.
#[inline(never)]
fn map_main_stack() {
    let mut stack = [0_u8; MAIN_STACK];
    // One write for each page.
    for at in (0..MAIN_STACK).step_by(4096) {
        stack[at] = 1;
    }
    std::hint::black_box(&stack);
}

/// The address space that a device takes, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceMemory {
    /// Bytes that it maps beside the heap.
    mapped: u64,
    /// Bytes that it allocates.
    allocated: u64,
}

impl DeviceMemory {
    fn of(device: &Device) -> DeviceMemory {
        match &device.driver {
            Driver::Memory(asked) => DeviceMemory { mapped: asked.size, allocated: 0 },
            Driver::Remote(asked) => {
                let lines = asked.connections as u64;
                DeviceMemory { mapped: lines * THREAD, allocated: lines * LINE }
            }
            Driver::Object(asked) => DeviceMemory {
                mapped: STORE_THREADS * THREAD,
                allocated: STORE.saturating_add(asked.read_cache),
            },
            // The limit of the copies of its large writes.
            Driver::Crypt(_) => DeviceMemory { mapped: 0, allocated: CRYPT },
            // The record has 2 bytes a block; the device's size isn't known yet.
            Driver::Null(_)
            | Driver::Checkpoint(_)
            | Driver::File(_)
            | Driver::Stripe(_)
            | Driver::Mirror(_)
            | Driver::Overlay(_)
            | Driver::Partition(_)
            | Driver::Delay(_)
            | Driver::Error(_) => DeviceMemory::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::manifest;

    fn devices(size: &str) -> Vec<Device> {
        let text = format!("[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"{size}\"\n");
        let read = manifest::read(&text, Path::new("/"));
        assert!(read.problems.is_empty(), "{:?}", read.problems);
        read.manifest.devices
    }

    fn of(bytes: u64) -> AddressSpace {
        let (name, raise) = ("RLIMIT_AS", "`ulimit -v`");
        let limit = Some(AddressLimit { name, raise, bytes, left: bytes - (60 << 20) });
        AddressSpace { limit, cpus: 4 }
    }

    #[test]
    fn clients_get_what_volumes_threads_and_the_heap_leave() {
        let (asked, small) = (Options::default(), devices("1M"));
        let share = |space: AddressSpace, devices: &[Device]| {
            space.share(asked, false, None, devices.iter(), 0)
        };
        assert_eq!(share(AddressSpace { limit: None, cpus: 4 }, &small), Ok((asked, None)));
        assert_eq!(share(of(1 << 40), &small), Ok((asked, None)));
        for mib in [400, 600, 1000, 2000] {
            let space = of(mib << 20);
            let (options, shortfall) = share(space, &small).unwrap();
            let left = space.limit.unwrap().left - space.kept(small.iter(), 0);
            assert!(heap(&options, false) + options.stacks() <= left, "{mib}: {options:?}");
            assert!(options.max_connections as u64 > mib / 20, "{mib}: {options:?}");
            let shortfall = shortfall.unwrap().to_string();
            assert!(
                shortfall.starts_with(&format!("{} clients with ", options.max_connections)),
                "{shortfall}"
            );
            assert!(shortfall.contains("instead of 1024 clients with 4.0 GiB"), "{shortfall}");
            // A volume in memory takes its size from the clients' part.
            let (fewer, _) = share(space, &devices("64M")).unwrap();
            assert!(fewer.worst_case(false) < options.worst_case(false), "{fewer:?}");
        }
        let why = share(of(400 << 20), &devices("300M")).unwrap_err().to_string();
        assert!(
            why.contains(
                "RLIMIT_AS is 400.0 MiB, too little for any client: the server and its volumes need"
            ),
            "{why}"
        );
    }

    #[test]
    fn what_was_reserved_stays_and_a_later_volume_takes_places_only() {
        let asked = Options::default();
        let space = of(1 << 30);
        let (options, _) = space.share(asked, false, None, devices("1M").iter(), 0).unwrap();
        let reserved = Some(heap(&options, false));
        let (later, _) = space.share(options, false, reserved, devices("64M").iter(), 0).unwrap();
        assert!(later.max_connections < options.max_connections, "{later:?}");
        assert!(space.share(options, false, reserved, devices("900M").iter(), 0).is_err());
    }
}
