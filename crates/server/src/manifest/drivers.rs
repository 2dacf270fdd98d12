//! The drivers of a manifest: the keys of each, and the combinations of keys that are refused.

use std::path::PathBuf;
use std::time::Duration;

use corewise::blockmq::{Deadline, HwQueues, IoScheduler, IoStats, Op, RqAffinity};
use corewise::drivers::{Degraded, Delays, Fault, OnLoss};
use corewise::nbd::Uri;

use super::crypt::Crypt;
use super::keys::{
    CheckKeys, KeyChange, Keys, Reload, ValueKind, devices, duration, flag, keys, new_path, number,
    path, share, size, text, text_or_number, word, word_or,
};
use super::object::Object;
use super::overlay::Overlay;
use super::problem::{Located, Problem, too_long, unseen};
use super::reader::Fields;

/// A driver and its table of keys.
pub(super) struct DriverKeys {
    pub(super) name: &'static str,
    /// Names of the keys.
    pub(super) names: &'static [&'static str],
    #[cfg(test)]
    pub(super) meaning: &'static str,
    #[cfg(test)]
    pub(super) keys: fn() -> Vec<super::keys::Key>,
    /// Function that reads and checks the keys.
    pub(super) read: fn(&mut Fields<'_, '_>) -> Option<Driver>,
}

/// Declares the drivers: the name of each in a manifest, and the table of its keys.
macro_rules! drivers {
    ($($(#[doc = $doc:literal])+ $name:literal => $driver:ident($keys:ty);)+) => {
        /// A device's driver with the values of its keys. Sizes are in bytes.
        #[derive(Clone, Debug, PartialEq)]
        pub(crate) enum Driver { $($(#[doc = $doc])+ $driver($keys),)+ }

        /// All drivers.
        pub(super) const DRIVERS: &[DriverKeys] = &[$(DriverKeys {
            name: $name,
            names: <$keys>::NAMES,
            #[cfg(test)]
            meaning: concat!($($doc),+).trim_ascii(),
            #[cfg(test)]
            keys: <$keys>::keys,
            read: |fields| {
                let keys = <$keys>::read(fields)?;
                keys.check(fields);
                Some(Driver::$driver(keys))
            },
        }),+];

        impl Driver {
            /// Returns the driver's name in manifests.
            pub(crate) fn name(&self) -> &'static str {
                match self { $(Driver::$driver(_) => $name,)+ }
            }

            /// Returns the keys that differ.
            pub(super) fn changes(&self, other: &Driver) -> Vec<KeyChange> {
                match (self, other) {
                    $((Driver::$driver(keys), Driver::$driver(other)) => keys.changes(other),)+
                    _ => vec![KeyChange { key: "driver", reload: Reload::Restarts }],
                }
            }

            /// Takes the values of `other`, the same driver, that a reload follows at once.
            pub(crate) fn follow(&mut self, other: &Driver) {
                match (self, other) {
                    $((Driver::$driver(keys), Driver::$driver(other)) => {
                        keys.take(other, |reload| reload == Reload::Follows);
                    })+
                    _ => {}
                }
            }
        }
    };
}

drivers! {
    /// Records which blocks of its one part changed since [checkpoints](backup.md).
    "checkpoint" => Checkpoint(Checkpoint);
    /// Encrypts its one part; see [encryption.md](encryption.md).
    "crypt" => Crypt(Crypt);
    /// Slows its one part down, for tests.
    "delay" => Delay(Delay);
    /// Makes requests to its one part fail, for tests.
    "error" => Error(Failing);
    /// A file, or a disk of this machine.
    "file" => File(FileDriver);
    /// Memory. The data goes when the device goes down.
    "memory" => Memory(Plain);
    /// Keeps the same data on each of its legs. No leg may be smaller than the first leg of a new
    /// mirror. The mirror uses a larger leg up to its own size, which never changes; see
    /// [below](#mirrors).
    "mirror" => Mirror(Mirror);
    /// An NBD export of another server, on this machine or another one; see [remote.md](remote.md).
    "nbd" => Remote(Remote);
    /// Discards writes and reads zeroes.
    "null" => Null(Plain);
    /// A volume in an object store. One server has it at a time. [object.md](object.md) says which
    /// features it needs.
    "object" => Object(Object);
    /// The bytes of its base, with changes that lie in a file of its own. Several overlays may
    /// share a base. See [overlays.md](overlays.md).
    "overlay" => Overlay(Overlay);
    /// A partition of its one part, found in the GUID partition table there. Several partitions may
    /// share one part.
    "partition" => Partition(Partition);
    /// Spreads its data over its parts, chunk by chunk. Its size is that of its smallest part, in
    /// whole chunks, times the number of parts.
    "stripe" => Stripe(Stripe);
}

impl Driver {
    /// Returns the devices below, in order.
    pub(crate) fn over(&self) -> &[String] {
        match self {
            Driver::Memory(_)
            | Driver::Null(_)
            | Driver::File(_)
            | Driver::Remote(_)
            | Driver::Object(_) => &[],
            Driver::Stripe(Stripe { over, .. }) | Driver::Mirror(Mirror { over, .. }) => over,
            Driver::Crypt(Crypt { over, .. })
            | Driver::Partition(Partition { over, .. })
            | Driver::Checkpoint(Checkpoint { over, .. })
            | Driver::Delay(Delay { over, .. })
            | Driver::Error(Failing { over, .. }) => std::slice::from_ref(over),
            Driver::Overlay(Overlay { over, .. }) => over.as_slice(),
        }
    }

    /// Returns true if the data is lost when the device goes down.
    pub(crate) fn is_in_memory(&self) -> bool {
        match self {
            Driver::Memory(_) => true,
            Driver::Object(object) => object.location.value == "memory:",
            _ => false,
        }
    }

    /// Returns the size in the manifest, for a driver whose volumes can grow.
    pub(super) fn size_that_grows(&self) -> Option<u64> {
        match self {
            Driver::File(file) => file.size.as_ref().map(|at| at.value),
            Driver::Object(object) => object.size.as_ref().map(|at| at.value),
            Driver::Overlay(overlay) => overlay.size.as_ref().map(|at| at.value),
            _ => None,
        }
    }
}

/// Returns true if devices of these two drivers may share one part: each partition has its own
/// piece, and overlays leave their base as it is.
pub(super) fn may_share_a_part(one: &str, other: &str) -> bool {
    one == other && ["partition", "overlay"].contains(&one)
}

/// Returns the names of all drivers.
pub(crate) fn driver_names() -> impl Iterator<Item = &'static str> {
    DRIVERS.iter().map(|driver| driver.name)
}

/// Reads the list of devices below a driver.
fn parts(least: usize, range: &'static str) -> ValueKind<Vec<String>> {
    let parts = devices().within(range, "", move |parts| parts.len() >= least);
    parts.map(|parts, _| parts.into_iter().map(|part| part.value).collect())
}

/// Reads the one device below a driver.
pub(super) fn part() -> ValueKind<String> {
    let one = devices().within("a list of exactly one device", "", |parts| parts.len() == 1);
    one.map(|parts, _| parts.into_iter().map(|part| part.value).collect())
}

/// Reads a size that is a power of two.
pub(super) fn power_of_two(least: u64, most: u64, range: &'static str) -> ValueKind<u32> {
    let holds = move |size: &u64| size.is_power_of_two() && (least..=most).contains(size);
    size().within(range, "", holds).map(|size, _| u32::try_from(size).unwrap_or_default())
}

/// Reads a block size. 64 KiB is the largest minimum block size that NBD clients accept.
fn block_size() -> ValueKind<u32> {
    power_of_two(512, 64 << 10, "a power of two from 512 to 64K")
}

/// Reads a rate in bytes per second.
fn rate() -> ValueKind<u64> {
    size().within("at least 1 byte per second", "with 0, no resync ends", |rate| *rate > 0)
}

keys! {
    /// A volume that stores nothing after it goes down.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Plain {
        /// Size of the device, a multiple of its block size.
        size: u64 = size(), Required("size = \"64M\"");
        /// Unit of reads and writes of the device. Clients may use any byte range. A write that
        /// covers part of a block reads the rest of the block first, which takes time.
        block_size: u32 = block_size(), Usual("512");
    }
}

impl CheckKeys for Plain {
    fn check(&self, fields: &mut Fields<'_, '_>) {
        fields.check_size(self.size, self.block_size);
    }
}

/// The way in which a file is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// io_uring if the kernel permits it, else threads.
    Auto,
    /// io_uring. Without it, the device fails.
    Uring,
    /// pread and pwrite on worker threads.
    Threads,
}

const IOS: &[(&str, Io)] = &[("auto", Io::Auto), ("uring", Io::Uring), ("threads", Io::Threads)];
const ON_LOST: &[(&str, OnLoss)] = &[("error", OnLoss::Error), ("read-only", OnLoss::ReadOnly)];

keys! {
    /// A file, or a disk of this machine, as a device.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct FileDriver {
        /// Path of the file.
        path: Located<PathBuf> = path(), Required("path = \"disk.img\"");
        /// `true` creates a missing file (sparse) and [reports it](#a-new-volume). An existing file
        /// keeps its content and must have the `size`.
        create: bool = flag(), Usual("false");
        /// Size that an existing file must have and a new one gets: a multiple of its block size.
        size: Option<Located<u64>> = size(), Unset("the file's own; required with `create`"), Grows;
        /// Unit of reads and writes of the device. Clients may use any byte range. A write that
        /// covers part of a block reads the rest of the block first, which takes time.
        block_size: u32 = block_size(), Usual("512");
        /// `"uring"`: io_uring; without it, the device fails. `"threads"`: pread and pwrite.
        /// `"auto"`: io_uring if the kernel permits it, else threads, with a message.
        io: Io = word(IOS), Usual("\"auto\"");
        /// `true` bypasses the host's page cache (`O_DIRECT`). The device fails if the file system
        /// doesn't support that in blocks of `block_size`; see
        /// [below](#through-the-page-cache-or-past-it).
        direct: bool = flag(), Usual("false");
        /// Path of a log for crash tests, in the format of the kernel's `dm-log-writes`. The log
        /// gets each change and each flush before the server acknowledges it. An existing log
        /// continues. The log grows without end and slows changes down.
        write_log: Option<PathBuf> = new_path(), Unset("none");
        /// Behavior after another program truncates or unlinks the file: `"error"` or
        /// `"read-only"`; see [below](#a-file-that-is-truncated-or-unlinked).
        on_lost: OnLoss = word(ON_LOST), Usual("\"error\"");
        /// `true` opens the file for reading only.
        read_only: bool = flag(), Usual("false");
    }
}

impl CheckKeys for FileDriver {
    fn check(&self, fields: &mut Fields<'_, '_>) {
        if self.create && !fields.has("size") {
            let example =
                "size = \"64M\", the size of the new file; one that is there needs no 'create'";
            fields.needs("size", example);
        }
        // An existing file may have any name.
        if self.create {
            let path = fields.written("path").unwrap_or_default().to_string();
            let path = Located::new(path, self.path.place);
            if let Some(problem) = unseen("a path", &path, fields.subject()) {
                fields.push(problem);
            }
        }
        if let Some(size) = &self.size {
            fields.check_size(size.value, self.block_size);
        }
        if self.create && self.read_only {
            let message = "'create' and 'read_only' exclude each other: a new read-only file would \
                           stay empty";
            fields.refuse("create", message, "");
        }
        if self.read_only && self.write_log.is_some() {
            let message = "'write_log' and 'read_only' exclude each other: nothing is written";
            fields.refuse("write_log", message, "");
        }
    }
}

keys! {
    /// Data spread over the parts, chunk by chunk.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Stripe {
        /// The parts, in order. Only partitions may share a part with another device.
        over: Vec<String> = parts(2, "a list of at least two devices"),
            Required("over = [\"a\", \"b\"]");
        /// Bytes that go to one part before the next part's turn.
        // The upper limit is the largest transfer that a device takes. With the default, most
        // requests touch one part, and a large one touches all.
        chunk: u32 = power_of_two(4 << 10, 32 << 20, "a power of two from 4K to 32M"),
            Usual("\"64K\"");
    }
}

impl CheckKeys for Stripe {
    fn check(&self, _: &mut Fields<'_, '_>) {}
}

const DEGRADED: &[(&str, Degraded)] =
    &[("never", Degraded::Never), ("known", Degraded::Known), ("always", Degraded::Always)];

keys! {
    /// A device with the same data on each leg.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Mirror {
        /// The legs, in order. A leg belongs to one device only.
        over: Vec<String> = parts(1, "a list of at least one device"),
            Required("over = [\"a\", \"b\"]"), Legs;
        /// `true` keeps a record of the blocks in sync at the end of each leg. The record takes up
        /// to 128 KiB of the leg; see [below](#mirrors).
        bitmap: Option<bool> = flag(),
            Unset("`true`, unless all legs are in memory, or one is read-only");
        /// Legs that may be missing at the start. `"never"`: none. `"known"`: those that were
        /// already out. `"always"`: any. With `bitmap = false`, no leg may be missing.
        degraded: Degraded = word(DEGRADED), Usual("\"known\"");
        /// Time after which the mirror retries a leg that failed or was missing. It resyncs a leg
        /// that works. The log and stdout show the first eight tries, then one every ten seconds;
        /// [events](monitoring.md) on the control socket report each.
        retry: Option<Duration> = duration()
            .within("at least \"100ms\"", "each try reads the leg's record", |time| {
                time.as_millis() >= 100
            }),
            Unset("at the next start, or by [`corewise mirror`](control.md#corewise-mirror)");
        /// Lowest rate of a resync while clients have work for the legs, in bytes per second.
        resync_least: u64 = rate(), Usual("\"10M\"");
        /// Highest rate of a resync, in bytes per second.
        resync_most: u64 = rate(), Usual("\"400M\"");
        /// Longest time from the end of one check of the mirror to the begin of the next, such as
        /// `"7d"`; see [below](#checks-of-mirrors).
        check_every: Option<Duration> = duration()
            .within("at least \"1s\"", "a check reads all of each leg", |time| time.as_secs() >= 1),
            Unset("only when [`corewise mirror`](control.md#corewise-mirror) asks for it"), Follows;
    }
}

impl CheckKeys for Mirror {
    fn check(&self, fields: &mut Fields<'_, '_>) {
        if self.bitmap == Some(false) && fields.has("degraded") {
            let message = "'degraded' needs a bitmap: a mirror without one needs all its legs";
            fields.refuse("degraded", message, "");
        }
        let both = fields.has("resync_least") && fields.has("resync_most");
        if both && self.resync_least > self.resync_most {
            fields.refuse("resync_least", "'resync_least' must not exceed 'resync_most'", "");
        }
    }
}

impl Mirror {
    /// Returns true if the mirror may come up without one of its legs.
    pub(super) fn begins_degraded(&self) -> bool {
        self.bitmap != Some(false) && self.degraded != Degraded::Never
    }
}

keys! {
    /// One partition of a part.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Partition {
        /// The part. Other partitions may share it.
        over: String = part(), Required("over = [\"a\"]");
        /// The partition: its number, from 1, or its name or GUID in the table. If a copy of the
        /// table is damaged, the server warns and uses the other copy.
        partition: Located<String> = text_or_number()
            .within("a number from 1, a name or a GUID", "", |which| {
                !which.is_empty() && which.parse() != Ok(0_u64)
            }),
            Required("partition = 1, or its name or GUID in the table");
    }
}

impl CheckKeys for Partition {
    fn check(&self, _: &mut Fields<'_, '_>) {}
}

keys! {
    /// A part with a record of what changed.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Checkpoint {
        /// The part. Changes that bypass this device aren't recorded.
        over: String = part(), Required("over = [\"a\"]");
        /// Path of the record. The server creates a missing one (sparse), without checkpoints. It
        /// takes up to 32 MiB for each TiB, and as much memory.
        path: Located<PathBuf> = new_path(), Required("path = \"a.checkpoints\"");
        /// Unit in which changes are recorded. An existing record must have the same.
        block: u32 = power_of_two(4 << 10, 16 << 20, "a power of two from 4K to 16M"),
            Usual("\"64K\"");
        /// Room for the old content of blocks that changed since the newest checkpoint, in the file
        /// `PATH.copies`. With it, clients can [read that](backup.md#reading-a-checkpoint).
        copies: Option<u64> = size().within("at least 1M", "", |size| *size >= 1 << 20),
            Unset("none: a checkpoint can't be read");
    }
}

impl CheckKeys for Checkpoint {
    fn check(&self, _: &mut Fields<'_, '_>) {}
}

impl Checkpoint {
    /// Returns the path of the copies, beside the record.
    pub(crate) fn copies_path(&self) -> PathBuf {
        let mut name = self.path.value.as_os_str().to_owned();
        name.push(".copies");
        name.into()
    }
}

keys! {
    /// A part with delays.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Delay {
        /// The part.
        over: String = part(), Required("over = [\"a\"]");
        /// Delay of reads, and of queries for holes. At least one of the three delays must be set.
        read_delay: Duration = duration(), Usual("\"0s\"");
        /// Delay of writes, discards and zeroes.
        write_delay: Duration = duration(), Usual("\"0s\"");
        /// Delay of flushes.
        flush_delay: Duration = duration(), Usual("\"0s\"");
        /// Random addition to each delay, at most this long.
        jitter: Duration = duration(), Usual("\"0s\"");
        /// Seed of the random numbers. The same seed delays the same requests.
        seed: u32 = number(), Usual("0");
    }
}

impl CheckKeys for Delay {
    fn check(&self, fields: &mut Fields<'_, '_>) {
        if !["read_delay", "write_delay", "flush_delay"].iter().any(|key| fields.has(key)) {
            fields.needs("read_delay", "read_delay = \"5ms\", or write_delay, or flush_delay");
        }
    }
}

impl Delay {
    /// Returns the delays that the keys describe.
    pub(crate) fn delays(&self) -> Delays {
        Delays {
            read: self.read_delay,
            write: self.write_delay,
            flush: self.flush_delay,
            jitter: self.jitter,
            seed: self.seed.into(),
        }
    }
}

/// Errors that disks are known for. Any other error is written as its number.
const ERRNOS: &[(&str, i32)] = &[
    ("EIO", 5),
    ("ENOMEM", 12),
    ("ENOSPC", 28),
    ("EROFS", 30),
    ("EILSEQ", 84),
    ("EOPNOTSUPP", 95),
    ("ETIMEDOUT", 110),
    ("EREMOTEIO", 121),
];

fn errno() -> ValueKind<i32> {
    word_or(text_or_number(), "a number from 1 to 4095, or one of", ERRNOS, |text| {
        let named = ERRNOS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
        let number = || text.parse().ok().filter(|number| (1..4096).contains(number));
        named.map(|(_, number)| *number).or_else(number)
    })
}

fn operations() -> ValueKind<Vec<Op>> {
    ValueKind::new(|fields, key| {
        let words = fields.names(key, "a list of operations, such as [\"read\", \"write\"]")?;
        // All words are read before any failure counts, so that each wrong one is reported.
        let ops = words.iter().map(|word| operation(fields, word)).collect::<Vec<_>>();
        Some(Located::new(ops.into_iter().collect::<Option<_>>()?, fields.place(key)))
    })
}

fn operation(fields: &mut Fields<'_, '_>, word: &Located<String>) -> Option<Op> {
    let found = Op::ALL.into_iter().find(|op| op.to_string() == word.value);
    if found.is_none() {
        let message = format!("unknown operation '{}'", word.value);
        let known = Op::ALL.map(|op| op.to_string()).join(", ");
        let problem = Problem::new(word.place, fields.subject().clone(), message);
        fields.push(problem.help(format!("one of: {known}")));
    }
    found
}

keys! {
    /// A part with failing requests.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Failing {
        /// The part.
        over: String = part(), Required("over = [\"a\"]");
        /// Operations that may fail: `"read"`, `"write"`, `"flush"`, `"discard"`, `"write-zeroes"`.
        fails: Vec<Op> = operations(), Filled("[]", "all");
        /// Requests fail only if they touch bytes in [`from`, `to`).
        from: Option<Located<u64>> = size(), Unset("the device's begin");
        /// End of that range.
        to: Option<u64> = size(), Unset("the device's end");
        /// Number of those requests that pass first.
        after: u32 = number(), Usual("0");
        /// Each `every`th of the requests after those may fail.
        every: u32 = number().within("at least 1", "1 means every request", |every| *every > 0),
            Usual("1");
        /// Share of the remaining requests that fails, from 0 to 1, chosen at random.
        rate: f64 = share(), Usual("1");
        /// Number of failures after which no request fails any more.
        times: Option<u32> = number(), Unset("never");
        /// The error: `EIO`, `ENOMEM`, `ENOSPC`, `EROFS`, `EILSEQ`, `EOPNOTSUPP`, `ETIMEDOUT`,
        /// `EREMOTEIO`, or a number.
        errno: i32 = errno(), Usual("\"EIO\"");
        /// Seed of the random numbers. The same seed fails the same requests.
        seed: u32 = number(), Usual("0");
    }
}

impl CheckKeys for Failing {
    fn check(&self, fields: &mut Fields<'_, '_>) {
        let from = self.from.as_ref().map(|at| at.value);
        if from.zip(self.to).is_some_and(|(from, to)| from >= to) {
            let message = "'to', the end of the range, must be greater than 'from'";
            fields.refuse("to", message, "");
        }
        if fields.has("fails") && fields.silent_names("fails").is_empty() {
            let message = "'fails' must be a list that isn't empty";
            fields.refuse("fails", message, "leave it out for all operations");
        }
    }
}

impl Failing {
    /// Returns the fault that the keys describe.
    pub(crate) fn fault(&self) -> Fault {
        let fault = Fault::new()
            .on(&self.fails)
            .after(self.after.into())
            .every(self.every.into())
            .times(self.times.map_or(u64::MAX, u64::from))
            .rate(self.rate)
            .errno(self.errno);
        match (&self.from, self.to) {
            (None, None) => fault,
            (from, to) => {
                let from = from.as_ref().map_or(0, |at| at.value);
                fault.range(from..to.unwrap_or(u64::MAX))
            }
        }
    }
}

/// The CPUs that share a hardware queue: those of one pod, by the names of the topology's scopes.
const SHARES: &[(&str, HwQueues)] = &[
    ("cpu", HwQueues::PerCpu),
    ("cache_shard", HwQueues::PerShard),
    ("cache", HwQueues::PerCache),
    ("numa", HwQueues::PerNode),
];
const AFFINITIES: &[(&str, RqAffinity)] =
    &[("none", RqAffinity::Anywhere), ("cache", RqAffinity::Cache), ("cpu", RqAffinity::Cpu)];
const STATS: &[(&str, IoStats)] =
    &[("counted", IoStats::Counted), ("sampled", IoStats::Sampled), ("timed", IoStats::Timed)];

fn hw_queues() -> ValueKind<HwQueues> {
    word_or(text_or_number(), "a number from 1, or one of", SHARES, |text| {
        text.parse().ok().filter(|number| *number > 0).map(HwQueues::Count)
    })
}

/// Schedulers by name; `true` sorts requests by deadlines.
const SCHEDULERS: &[(&str, bool)] = &[("none", false), ("deadline", true)];

fn scheduler() -> ValueKind<IoScheduler> {
    word(SCHEDULERS).map(|deadline, _| match deadline {
        true => IoScheduler::Deadline(Deadline::default()),
        false => IoScheduler::None,
    })
}

keys! {
    /// The keys that all drivers share: how a device comes up and goes down, and how its queue is
    /// built.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Tuning {
        /// NUMA node that the device is near to. The device comes up there. If the machine lacks
        /// the node, the server refuses the device; with `--keep-going` the device has no
        /// preference.
        node: Option<Located<u32>> = number(), Unset("no preference");
        /// Time after which the server reports a bring-up that isn't done.
        probe_timeout: Option<Duration> = duration(), Unset("never");
        /// Time after which the server reports a shutdown that isn't done.
        shutdown_timeout: Duration = duration(), Usual("\"10s\"");
        /// Number of hardware queues, or `"cpu"`, `"cache_shard"`, `"cache"`, `"numa"` for one
        /// each; never more than CPUs.
        hw_queues: HwQueues = hw_queues(), Filled("\"cpu\"", "`\"cpu\"`");
        /// Order of the requests that wait for a place in the driver: `"none"`, or `"deadline"`,
        /// for disks that seek.
        scheduler: IoScheduler = scheduler(), Usual("\"none\"");
        /// Longest time of a request in the driver; see [below](#requests-that-take-too-long).
        timeout: Option<Duration> = duration().positive("leave it out for no timeout"),
            Unset("no limit");
        /// CPU on which a request ends. `"none"`: where the driver completes it. `"cache"`: one
        /// that shares a last-level cache with the CPU it came from. `"cpu"`: the CPU it came from.
        /// Ending a request elsewhere costs a call to that CPU. On a machine with one cache,
        /// `"cache"` never calls.
        rq_affinity: RqAffinity = word(AFFINITIES), Usual("\"cache\"");
        /// Detail of the statistics in `corewise dump`. `"counted"`: requests and bytes only.
        /// `"sampled"`: times of one request in eight. `"timed"`: times of each request, for about
        /// 75 ns of CPU a request.
        iostats: IoStats = word(STATS), Usual("\"sampled\"");
    }
}

fn uri() -> ValueKind<Uri> {
    text().parse(|text, base| {
        let uri = text.parse::<Uri>().map_err(|why| format!("'{text}': {why}"))?.within(base);
        uri.socket().and_then(too_long).map_or(Ok(uri), Err)
    })
}

fn connections() -> ValueKind<usize> {
    let few = number().within("from 1 to 16", "", |number| (1..=16).contains(number));
    few.map(|number, _| number as usize)
}

keys! {
    /// An export of another server as a device.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Remote {
        /// The export: `nbd://HOST[:PORT]/EXPORT` or `nbd+unix:///EXPORT?socket=PATH`, with `nbds`
        /// for TLS. `?tls-hostname=NAME` gives the name in the certificate if it isn't the host's.
        uri: Located<Uri> = uri(), Required("uri = \"nbd://other.example/disk\"");
        /// Largest number of connections. If the other server doesn't say that a flush on one
        /// connection covers all, the device uses one.
        connections: usize = connections(), Usual("4");
        /// Timeout of an attempt to connect, its handshake included.
        connect_timeout: Duration = duration().positive("such as \"10s\""), Usual("\"5s\"");
        /// Timeout of a request, retries included. After that the request fails.
        request_timeout: Duration = duration().positive("such as \"10s\""), Usual("\"30s\"");
        /// `true` never changes the export.
        read_only: bool = flag(), Usual("false");
        /// File (PEM) with the authorities that vouch for the other server.
        tls_ca: Option<Located<PathBuf>> = path(), Unset("required with `nbds`");
        /// File (PEM) with this client's certificate, for servers that ask for one.
        tls_certificate: Option<Located<PathBuf>> = path(), Unset("none");
        /// File (PEM) with the key of that certificate.
        tls_key: Option<Located<PathBuf>> = path(), Unset("required with `tls_certificate`");
    }
}

impl CheckKeys for Remote {
    fn check(&self, fields: &mut Fields<'_, '_>) {
        let uri = &self.uri.value;
        if !uri.tls() {
            for key in ["tls_ca", "tls_certificate", "tls_key"] {
                if fields.has(key) {
                    let help = "write nbds in the uri, or nbds+unix";
                    fields.refuse(key, format!("'{key}' is for TLS"), help);
                }
            }
            return;
        }
        if !cfg!(feature = "tls") {
            let message = "this corewise was built without TLS";
            return fields.refuse("uri", message, "write nbd in the uri");
        }
        if uri.hostname().is_none() {
            let help = "write tls-hostname=NAME in the uri, behind an &";
            fields.refuse("uri", "TLS on a Unix socket needs the name of the other side", help);
        }
        if !fields.has("tls_ca") {
            let help = "tls_ca = \"ca.pem\", the certificate of the authority of the other side";
            fields.refuse("uri", "TLS needs a 'tls_ca'", help);
        }
        fields.both("tls_certificate", "tls_key");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use corewise::nbd::Uri;

    use super::super::{Driver, ResolvedManifest, read};

    fn resolved(keys: &str) -> ResolvedManifest {
        let text = format!(
            "[[device]]\nname = \"a\"\ndriver = \"nbd\"\n{keys}\n[[export]]\ndevice = \"a\"\n"
        );
        read(&text, Path::new("/base"))
    }

    #[test]
    fn paths_begin_in_the_manifest_s_folder() {
        let found = resolved(
            "uri = \"nbd+unix:///x?socket=run/s\"\nconnections = 2\nconnect_timeout = \"1s\"\n\
             request_timeout = \"2s\"\nread_only = true",
        );
        assert_eq!(found.problems, []);
        let Driver::Remote(remote) = &found.manifest.devices[0].driver else { panic!("no nbd") };
        let same: Uri = "nbd+unix:///x?socket=run/s".parse().unwrap();
        assert_eq!(remote.uri.value, same.within(Path::new("/base")));
        assert_eq!((remote.connections, remote.read_only), (2, true));
        assert_eq!(remote.request_timeout, Duration::from_secs(2));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_has_its_files() {
        let found = resolved(
            "uri = \"nbds://h/x\"\ntls_ca = \"ca\"\ntls_certificate = \"c\"\ntls_key = \"/k\"",
        );
        assert_eq!(found.problems, []);
        let Driver::Remote(remote) = &found.manifest.devices[0].driver else { panic!("no nbd") };
        let files = [&remote.tls_ca, &remote.tls_certificate, &remote.tls_key];
        let files = files.map(|at| at.as_ref().unwrap().value.as_path());
        assert_eq!(files, ["/base/ca", "/base/c", "/k"].map(Path::new));
    }

    #[test]
    fn what_is_wrong_is_told_with_what_to_write() {
        for (keys, says) in [
            ("", "needs 'uri'"),
            ("uri = \"/dev/nbd0\"", "no '://'"),
            ("uri = \"nbd://h\"\nconnections = 17", "from 1 to 16"),
            ("uri = \"nbd://h\"\nconnect_timeout = \"0s\"", "greater than 0"),
            ("uri = \"nbd://h\"\ntls_ca = \"c\"", "write nbds"),
            ("uri = \"nbd://h\"\nsize = \"1M\"", "takes no 'size'"),
            #[cfg(feature = "tls")]
            ("uri = \"nbds://h\"", "needs a 'tls_ca'"),
            #[cfg(feature = "tls")]
            ("uri = \"nbds+unix:///x?socket=s\"\ntls_ca = \"c\"", "tls-hostname"),
            #[cfg(feature = "tls")]
            ("uri = \"nbds://h\"\ntls_ca = \"c\"\ntls_key = \"k\"", "needs its 'tls_cert"),
        ] {
            let found = resolved(keys).problems;
            let told: Vec<_> = found.iter().map(|p| p.display("m").to_string()).collect();
            assert!(told.iter().any(|told| told.contains(says)), "{says}: {told:?}");
        }
    }
}
