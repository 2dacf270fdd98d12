//! The address space: how much of it the process may have, what it keeps for itself, and how many
//! clients that leaves room for.
//!
//! `RLIMIT_AS` and `RLIMIT_DATA` count what is mapped, and not what is used: each thread costs its
//! whole stack, a volume in memory its whole size, from its first moment on. An allocation that
//! finds nothing left ends the process. So the server reserves the memory that its clients may
//! take, with the heap's loss, before the first of them comes ([`nbd::reserve_heap`]), and lets in
//! as many as that and the rest have room for. After that only threads can run short, and a client
//! can wait for one.
//!
//! | for | bytes |
//! | --- | --- |
//! | what clients allocate | [`LOSS`] times [`Options::worst_case`] |
//! | threads of clients | [`Options::stacks`] |
//! | what the server allocates | [`HEAP`], and the caches of volumes |
//! | its own threads | [`THREADS`], and three for each CPU |
//! | each device | [`mapped`] |

use std::fmt;

use corewise::nbd::{self, Options};
use rustix::process::{Resource, getrlimit};

use crate::manifest::{Device, Driver};
use crate::units;

/// How much longer a heap gets than what lies in it, where buffers of all sizes come and go.
const LOSS: u64 = 2;
/// What the server allocates for itself, in bytes: some 6 MiB, and answers to those that look on.
const HEAP: u64 = 16 << 20;
/// Its threads: 12 with everything on, and some for changes.
const THREADS: u64 = 16;
/// A stack, its guard page, and one for signals, in bytes.
const THREAD: u64 = (2 << 20) + (64 << 10);
/// The rings of a CPU, where a device is a file.
const RINGS: u64 = 1 << 20;
/// Buffers of a connection to an export elsewhere.
const LINE: u64 = 2 << 20;
/// What a volume in a store has beside its read cache: changes that wait, and objects that are read
/// and written.
const STORE: u64 = 64 << 20;
/// Threads that work for it.
const STORE_THREADS: u64 = 8;

/// A limit of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    /// Its name, and how to raise it.
    name: &'static str,
    raise: &'static str,
    bytes: u64,
    /// What it leaves beside what was mapped at the start.
    left: u64,
}

/// What the process may map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressSpace {
    /// `None`: as much as it likes.
    limit: Option<Limit>,
    cpus: u64,
}

/// Fewer clients, or less memory for them, than was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    limit: Limit,
    /// Clients, and their memory in bytes.
    asked: (usize, u64),
    left: (usize, u64),
    kept: u64,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cut { limit: Limit { name, raise, bytes, .. }, asked, left, kept } = *self;
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
            "{left} at most, and not {asked}: {name} is {bytes}, of which {kept} are kept for the server and its volumes; \
             raise {raise}, or ask for less by 'clients' and 'memory'"
        )
    }
}

/// No client would have a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLittle {
    limit: Limit,
    kept: u64,
    needed: u64,
}

impl fmt::Display for TooLittle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooLittle { limit: Limit { name, raise, bytes, .. }, kept, needed } = *self;
        let (bytes, kept, needed) = (units::about(bytes), units::about(kept), units::about(needed));
        write!(
            f,
            "{name} is {bytes}; the server and its volumes need {kept} of it, and a client with the largest requests {needed}: no \
             client would have a place; raise {raise}"
        )
    }
}

/// What clients allocate at most, with the heap's loss, in bytes.
fn heap(options: &Options, tls: bool) -> u64 {
    options.worst_case(tls).saturating_mul(LOSS)
}

impl AddressSpace {
    /// That of this process, beside what is mapped now.
    pub(crate) fn now() -> AddressSpace {
        let pages = |at: usize| -> Option<u64> {
            let all = std::fs::read_to_string("/proc/self/statm").ok()?;
            all.split_ascii_whitespace().nth(at)?.parse().ok()
        };
        let page = rustix::param::page_size() as u64;
        let limit = |resource, name, raise, at| {
            let bytes = getrlimit(resource).current?;
            let mapped = pages(at).unwrap_or_default().saturating_mul(page);
            Some(Limit { name, raise, bytes, left: bytes.saturating_sub(mapped) })
        };
        let all = limit(Resource::As, "RLIMIT_AS", "LimitAS (systemd) or `ulimit -v`", 0);
        let data = limit(Resource::Data, "RLIMIT_DATA", "LimitDATA (systemd) or `ulimit -d`", 5);
        let limit = all.into_iter().chain(data).min_by_key(|limit| limit.left);
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
        AddressSpace { limit, cpus }
    }

    /// What the server keeps for itself with these devices.
    fn kept<'d>(&self, devices: impl Iterator<Item = &'d Device> + Clone) -> u64 {
        let is_file = |device: &Device| matches!(device.driver, Driver::File(_));
        let rings = if devices.clone().any(is_file) { RINGS * self.cpus } else { 0 };
        let threads = (THREADS + 3 * self.cpus) * THREAD;
        let theirs = devices.map(DeviceMemory::of).map(|it| it.mapped.saturating_add(it.allocated));
        theirs.fold(HEAP + threads + rings, u64::saturating_add)
    }

    /// What clients may have beside these devices, of what `options` allows them. `reserved`: what
    /// was reserved for them at the start, which stays.
    pub(crate) fn share<'d>(
        &self,
        options: Options,
        tls: bool,
        reserved: Option<u64>,
        devices: impl Iterator<Item = &'d Device> + Clone,
    ) -> Result<(Options, Option<Cut>), TooLittle> {
        let Some(limit) = self.limit else { return Ok((options, None)) };
        let kept = self.kept(devices);
        let left = limit.left.saturating_sub(kept);
        // With what there was before.
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
            return Err(TooLittle { limit, kept, needed });
        }
        let fewer = fewer.max_connections(fit);
        let of = |options: &Options| (options.max_connections, options.worst_case(tls));
        let (asked, left) = (of(&options), of(&fewer));
        let less = left.0 < asked.0 || left.1 < asked.1;
        Ok((fewer, less.then_some(Cut { limit, asked, left, kept })))
    }

    /// Reserves what clients and the caches of these devices may allocate: how much of that is for
    /// clients. On the main thread.
    ///
    /// # Errors
    /// The limit doesn't leave so much.
    pub(crate) fn reserve<'d>(
        &self,
        options: &Options,
        tls: bool,
        devices: impl Iterator<Item = &'d Device>,
    ) -> Result<Option<u64>, String> {
        let Some(Limit { name, raise, .. }) = self.limit else { return Ok(None) };
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

/// What this thread's stack may need, in bytes.
const MAIN_STACK: usize = 512 << 10;

/// Has the stack of the main thread mapped, which grows as it is used: at the limit that would end
/// the process.
#[inline(never)]
fn map_main_stack() {
    let mut stack = [0_u8; MAIN_STACK];
    // Each page.
    for at in (0..MAIN_STACK).step_by(4096) {
        stack[at] = 1;
    }
    std::hint::black_box(&stack);
}

/// What a device takes of the address space, in bytes.
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
            Driver::Null(_)
            | Driver::File(_)
            | Driver::Stripe(_)
            | Driver::Mirror(_)
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
        let limit = Some(Limit { name, raise, bytes, left: bytes - (60 << 20) });
        AddressSpace { limit, cpus: 4 }
    }

    #[test]
    fn clients_get_what_volumes_threads_and_the_heap_leave() {
        let (asked, small) = (Options::default(), devices("1M"));
        let share = |space: AddressSpace, devices: &[Device]| {
            space.share(asked, false, None, devices.iter())
        };
        assert_eq!(share(AddressSpace { limit: None, cpus: 4 }, &small), Ok((asked, None)));
        assert_eq!(share(of(1 << 40), &small), Ok((asked, None)));
        for mib in [400, 600, 1000, 2000] {
            let space = of(mib << 20);
            let (options, cut) = share(space, &small).unwrap();
            let left = space.limit.unwrap().left - space.kept(small.iter());
            assert!(heap(&options, false) + options.stacks() <= left, "{mib}: {options:?}");
            assert!(options.max_connections as u64 > mib / 20, "{mib}: {options:?}");
            let cut = cut.unwrap().to_string();
            assert!(
                cut.starts_with(&format!("{} clients with ", options.max_connections)),
                "{cut}"
            );
            assert!(cut.contains("and not 1024 clients with 4.0 GiB"), "{cut}");
            // A volume in memory takes its size from them.
            let (fewer, _) = share(space, &devices("64M")).unwrap();
            assert!(fewer.worst_case(false) < options.worst_case(false), "{fewer:?}");
        }
        let why = share(of(400 << 20), &devices("300M")).unwrap_err().to_string();
        assert!(why.contains("RLIMIT_AS is 400.0 MiB; the server and its volumes need"), "{why}");
    }

    #[test]
    fn what_was_reserved_stays_and_a_later_volume_takes_places_only() {
        let asked = Options::default();
        let space = of(1 << 30);
        let (options, _) = space.share(asked, false, None, devices("1M").iter()).unwrap();
        let reserved = Some(heap(&options, false));
        let (later, _) = space.share(options, false, reserved, devices("64M").iter()).unwrap();
        assert!(later.max_connections < options.max_connections, "{later:?}");
        assert!(space.share(options, false, reserved, devices("900M").iter()).is_err());
    }
}
