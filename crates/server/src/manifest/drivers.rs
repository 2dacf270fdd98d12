//! What a device of a manifest is made of: the keys of each driver, and what they may say.

use std::path::Path;
use std::time::Duration;

use corewise::blockmq::Op;
use corewise::drivers::{Degraded, Delays, Fault, OnLoss};

use super::model::{Driver, FileDriver, Io, Mirror};
use super::problem::{At, Problem, Subject, word};
use super::raw::RawDevice;
use super::{links, object, remote};
use crate::{suggest, units};

/// Each driver and the keys it takes beyond those that all take.
const DRIVERS: [(&str, &[&str]); 10] = [
    ("delay", &["over", "read_delay", "write_delay", "flush_delay", "jitter", "seed"]),
    ("error", &["over", "fails", "from", "to", "after", "every", "times", "rate", "errno", "seed"]),
    (
        "file",
        &[
            "path",
            "create",
            "size",
            "block_size",
            "io",
            "direct",
            "write_log",
            "on_lost",
            "read_only",
        ],
    ),
    ("memory", &["size", "block_size"]),
    (
        "mirror",
        &["over", "bitmap", "degraded", "retry", "resync_least", "resync_most", "check_every"],
    ),
    (
        "nbd",
        &[
            "uri",
            "connections",
            "connect_timeout",
            "request_timeout",
            "read_only",
            "tls_ca",
            "tls_certificate",
            "tls_key",
        ],
    ),
    ("null", &["size", "block_size"]),
    (
        "object",
        &[
            "location",
            "size",
            "clone_of",
            "snapshot",
            "lease",
            "flush",
            "flush_file",
            "accept_lost_flushes",
            "request_timeout",
            "endpoint",
            "region",
            "compression",
            "key_file",
            "key_env",
            "read_cache",
        ],
    ),
    ("partition", &["over", "partition"]),
    ("stripe", &["over", "chunk"]),
];
const ON_LOST: [(&str, OnLoss); 2] = [("error", OnLoss::Error), ("read-only", OnLoss::ReadOnly)];
const IOS: [(&str, Io); 3] = [("auto", Io::Auto), ("uring", Io::Uring), ("threads", Io::Threads)];
/// Errors that disks are known for; any other goes by its number.
const ERRNOS: [(&str, i32); 8] = [
    ("EIO", 5),
    ("ENOMEM", 12),
    ("ENOSPC", 28),
    ("EROFS", 30),
    ("EILSEQ", 84),
    ("EOPNOTSUPP", 95),
    ("ETIMEDOUT", 110),
    ("EREMOTEIO", 121),
];
/// A shorter time would have a worker do nothing but try.
const LEAST_RETRY: Duration = Duration::from_millis(100);
/// The shortest time between two checks of a mirror.
const LEAST_CHECK_EVERY: Duration = Duration::from_secs(1);
/// Which legs of a mirror may be missing.
const DEGRADED: [(&str, Degraded); 3] =
    [("never", Degraded::Never), ("known", Degraded::Known), ("always", Degraded::Always)];
const DEFAULT_BLOCK_SIZE: u32 = 512;
/// Large enough that most requests touch one part, small enough that a large one touches all.
const DEFAULT_CHUNK: u32 = 64 << 10;

/// Whether several devices of this driver may stand on one part: each has its own piece of it.
pub(super) fn shares_its_part(driver: &str) -> bool {
    driver == "partition"
}

/// What a manifest may name as a driver.
pub(crate) fn driver_names() -> impl Iterator<Item = &'static str> {
    DRIVERS.iter().map(|(name, _)| *name)
}

fn known_drivers() -> String {
    driver_names().collect::<Vec<_>>().join(", ")
}

/// What `raw` is made of, or `None` if that can't be said; each reason is added to `problems`.
pub(super) fn driver(raw: &RawDevice, base: &Path, problems: &mut Vec<Problem>) -> Option<Driver> {
    let subject = links::subject(raw);
    let Some(driver) = &raw.driver else {
        if !raw.keys.iter().any(|key| key.value == "driver") {
            problems.push(
                Problem::new(raw.place, subject, "it has no 'driver'")
                    .help(format!("known drivers: {}", known_drivers())),
            );
        }
        return None;
    };
    let name = driver.value.as_str();
    let Some((_, keys)) = DRIVERS.iter().find(|(known, _)| *known == name) else {
        let known = DRIVERS.iter().map(|(known, _)| *known);
        let help = match suggest::closest(name, known) {
            Some(close) => format!("did you mean '{close}'? known drivers: {}", known_drivers()),
            None => format!("known drivers: {}", known_drivers()),
        };
        problems.push(
            Problem::new(driver.place, subject, format!("unknown driver '{name}'")).help(help),
        );
        return None;
    };
    for key in &raw.keys {
        let word = key.value.as_str();
        let known_elsewhere = DRIVERS.iter().any(|(_, keys)| keys.contains(&word));
        if known_elsewhere && !keys.contains(&word) {
            problems.push(
                Problem::new(
                    key.place,
                    subject.clone(),
                    format!("driver '{name}' takes no '{word}'"),
                )
                .help(format!("it takes: {}", keys.join(", "))),
            );
        }
    }
    let mut asked = Asked { raw, name, subject, problems };
    match name {
        "memory" => asked.sized().map(|(size, block_size)| Driver::Memory { size, block_size }),
        "null" => asked.sized().map(|(size, block_size)| Driver::Null { size, block_size }),
        "file" => asked.file(base),
        "nbd" => remote::remote(&mut asked, base).map(Driver::Remote),
        "object" => object::object(&mut asked, base).map(Driver::Object),
        "delay" => asked.delay(),
        "error" => asked.error(),
        "partition" => asked.partition(),
        "stripe" => {
            let over = asked.parts(2)?;
            Some(Driver::Stripe { over, chunk: asked.chunk()? })
        }
        // "mirror": the table above has no other.
        _ => asked.mirror(),
    }
}

/// A device's keys, with a place for complaints.
pub(super) struct Asked<'a> {
    pub(super) raw: &'a RawDevice,
    name: &'a str,
    subject: Subject,
    problems: &'a mut Vec<Problem>,
}

impl<'a> Asked<'a> {
    pub(super) fn complain(&mut self, problem: impl FnOnce(Subject) -> Problem) {
        self.problems.push(problem(self.subject.clone()));
    }

    /// A value that was there but could not be read is not missing: it was complained about.
    pub(super) fn missing(&mut self, key: &str, example: &str) {
        if !self.has(key) {
            let message = format!("driver '{}' needs '{key}'", self.name);
            let place = self.raw.place;
            self.complain(|s| Problem::new(place, s, message).help(format!("such as {example}")));
        }
    }

    /// Size and block size.
    fn sized(&mut self) -> Option<(u64, u32)> {
        if self.raw.size.is_none() {
            self.missing("size", "size = \"64M\"");
        }
        let block_size = self.block_size()?;
        let size = self.raw.size.as_ref()?;
        self.check_size(size, block_size);
        Some((size.value, block_size))
    }

    fn file(&mut self, base: &Path) -> Option<Driver> {
        let raw = self.raw;
        if raw.path.is_none() {
            self.missing("path", "path = \"disk.img\"");
        }
        let create = raw.create.as_ref().is_some_and(|create| create.value);
        if create && raw.size.is_none() {
            self.missing(
                "size",
                "size = \"64M\", the size of the new file; one that is there needs no 'create'",
            );
        }
        let block_size = self.block_size()?;
        if let Some(size) = &raw.size {
            self.check_size(size, block_size);
        }
        let read_only = raw.read_only.as_ref().is_some_and(|read_only| read_only.value);
        if let (true, true, Some(at)) = (create, read_only, &raw.create) {
            let message = "'create' and 'read_only' exclude each other: a new read-only file would \
                           stay empty";
            self.complain(|s| Problem::new(at.place, s, message));
        }
        if let (true, Some(at)) = (read_only, &raw.write_log) {
            let message = "'write_log' and 'read_only' exclude each other: nothing is written";
            self.complain(|s| Problem::new(at.place, s, message));
        }
        let path = raw.path.as_ref()?;
        Some(Driver::File(FileDriver {
            path: At::new(base.join(&path.value), path.place),
            create,
            size: raw.size.clone(),
            block_size,
            io: self.io()?,
            on_lost: self.on_lost()?,
            direct: raw.direct.as_ref().is_some_and(|at| at.value),
            write_log: raw.write_log.as_ref().map(|at| base.join(&at.value)),
            read_only,
        }))
    }

    fn delay(&mut self) -> Option<Driver> {
        let raw = self.raw;
        let of = |at: &Option<At<Duration>>| at.as_ref().map_or(Duration::ZERO, |at| at.value);
        let delays = Delays {
            read: of(&raw.read_delay),
            write: of(&raw.write_delay),
            flush: of(&raw.flush_delay),
            jitter: of(&raw.jitter),
            seed: raw.seed.as_ref().map_or(0, |seed| seed.value.into()),
        };
        if !["read_delay", "write_delay", "flush_delay"].iter().any(|key| self.has(key)) {
            self.missing("read_delay", "read_delay = \"5ms\", or write_delay, or flush_delay");
        }
        Some(Driver::Delay { over: self.part()?, delays })
    }

    fn error(&mut self) -> Option<Driver> {
        let raw = self.raw;
        let over = self.part();
        // All of them, so that each wrong one is complained about.
        let ops: Vec<_> = raw.fails.iter().flatten().map(|word| self.op(word)).collect();
        let ops: Option<Vec<Op>> = ops.into_iter().collect();
        let errno = self.errno();
        let (from, to) = (raw.from.as_ref(), raw.to.as_ref());
        if let (Some(from), Some(to)) = (from, to) {
            if from.value >= to.value {
                let message = "'to', the end of the range, must be greater than 'from'";
                self.complain(|s| Problem::new(to.place, s, message));
            }
        }
        if let Some(every) = raw.every.as_ref().filter(|every| every.value == 0) {
            let message = "'every' must be at least 1: 1 means every request";
            self.complain(|s| Problem::new(every.place, s, message));
        }
        let number =
            |at: &Option<At<u32>>, other: u64| at.as_ref().map_or(other, |n| n.value.into());
        let mut fault = Fault::new()
            .on(&ops?)
            .after(number(&raw.after, 0))
            .every(number(&raw.every, 1))
            .times(number(&raw.times, u64::MAX))
            .rate(raw.rate.as_ref().map_or(1.0, |rate| rate.value))
            .errno(errno?);
        if from.is_some() || to.is_some() {
            let start = from.map_or(0, |at| at.value);
            fault = fault.range(start..to.map_or(u64::MAX, |at| at.value));
        }
        Some(Driver::Error { over: over?, fault, seed: number(&raw.seed, 0) })
    }

    fn mirror(&mut self) -> Option<Driver> {
        let raw = self.raw;
        let over = self.parts(1);
        let bitmap = raw.bitmap.as_ref().map(|at| at.value);
        let degraded = self.degraded();
        if let (Some(false), Some(at)) = (bitmap, &raw.degraded) {
            let message = "'degraded' needs a bitmap: a mirror without one needs all its legs";
            self.complain(|s| Problem::new(at.place, s, message));
        }
        if let (Some(least), Some(most)) = (&raw.resync_least, &raw.resync_most) {
            if least.value > most.value {
                let message = "'resync_least' must not exceed 'resync_most'";
                self.complain(|s| Problem::new(least.place, s, message));
            }
        }
        if let Some(at) = raw.retry.as_ref().filter(|at| at.value < LEAST_RETRY) {
            let message = "'retry' must be at least \"100ms\": each try reads the leg's record";
            self.complain(|s| Problem::new(at.place, s, message));
        }
        if let Some(at) = raw.check_every.as_ref().filter(|at| at.value < LEAST_CHECK_EVERY) {
            let message = "'check_every' must be at least \"1s\": a check reads all of each leg";
            self.complain(|s| Problem::new(at.place, s, message).help("such as \"7d\""));
        }
        for (key, rate) in [("resync_least", &raw.resync_least), ("resync_most", &raw.resync_most)]
        {
            if let Some(at) = rate.as_ref().filter(|at| at.value == 0) {
                let message =
                    format!("'{key}' must be at least 1 byte per second: with 0, no resync ends");
                self.complain(|s| Problem::new(at.place, s, message));
            }
        }
        Some(Driver::Mirror(Mirror {
            over: over?,
            bitmap,
            retry: raw.retry.as_ref().map(|at| at.value),
            degraded: degraded?,
            resync_least: raw.resync_least.as_ref().map(|at| at.value),
            resync_most: raw.resync_most.as_ref().map(|at| at.value),
            check_every: raw.check_every.as_ref().map(|at| at.value),
        }))
    }

    fn degraded(&mut self) -> Option<Degraded> {
        let Some(at) = &self.raw.degraded else { return Some(Degraded::default()) };
        let found = word(at, "degraded", "one of", &DEGRADED, &self.subject);
        found.map_err(|problem| self.problems.push(problem)).ok()
    }

    fn partition(&mut self) -> Option<Driver> {
        let over = self.part();
        let Some(which) = &self.raw.partition else {
            self.missing("partition", "partition = 1, or its name or GUID in the table");
            return None;
        };
        Some(Driver::Partition { over: over?, which: which.clone() })
    }

    fn has(&self, key: &str) -> bool {
        self.raw.keys.iter().any(|k| k.value == key)
    }

    /// At least so many parts.
    fn parts(&mut self, least: usize) -> Option<Vec<String>> {
        let over = self.over("over = [\"a\", \"b\"]")?;
        if over.len() < least {
            let place = over.first().map_or(self.raw.place, |part| part.place);
            let parts = if least == 1 { "one part" } else { "two parts" };
            let message = format!("driver '{}' needs at least {parts} in 'over'", self.name);
            self.complain(|s| Problem::new(place, s, message));
        }
        Some(over.iter().map(|part| part.value.clone()).collect())
    }

    /// The one part of a driver that stands on one.
    fn part(&mut self) -> Option<String> {
        let over = self.over("over = [\"a\"]")?;
        if let [part] = over {
            return Some(part.value.clone());
        }
        let place = over.get(1).map_or(self.raw.place, |part| part.place);
        let message = format!("driver '{}' takes exactly one part", self.name);
        self.complain(|s| Problem::new(place, s, message).help("such as over = [\"a\"]"));
        None
    }

    fn over(&mut self, example: &str) -> Option<&'a [At<String>]> {
        let over = self.raw.over.as_deref();
        if over.is_none() {
            self.missing("over", example);
        }
        over
    }

    /// The largest chunk is what a device takes in one transfer.
    fn chunk(&mut self) -> Option<u32> {
        let Some(at) = &self.raw.chunk else { return Some(DEFAULT_CHUNK) };
        match u32::try_from(at.value) {
            Ok(chunk) if chunk.is_power_of_two() && (4 << 10..=32 << 20).contains(&chunk) => {
                Some(chunk)
            }
            _ => {
                let message = format!("chunk {} is not valid", units::size(at.value));
                self.complain(|s| {
                    Problem::new(at.place, s, message)
                        .help("use a power of two from 4K to 32M; the default is 64K")
                });
                None
            }
        }
    }

    fn block_size(&mut self) -> Option<u32> {
        let Some(at) = &self.raw.block_size else { return Some(DEFAULT_BLOCK_SIZE) };
        // 64 KiB is the largest minimum block size that NBD clients accept.
        match u32::try_from(at.value) {
            Ok(size) if size.is_power_of_two() && (512..=65536).contains(&size) => Some(size),
            _ => {
                let message = format!("block size {} is not valid", units::size(at.value));
                self.complain(|s| {
                    Problem::new(at.place, s, message).help("use a power of two from 512 to 64K")
                });
                None
            }
        }
    }

    pub(super) fn check_size(&mut self, size: &At<u64>, block_size: u32) {
        let block = u64::from(block_size);
        if size.value == 0 {
            self.complain(|s| Problem::new(size.place, s, "the size must not be 0"));
        } else if size.value % block != 0 {
            let below = size.value / block * block;
            let above = below.saturating_add(block);
            let near = if below == 0 { format!("{above}") } else { format!("{below} or {above}") };
            let message =
                format!("size {} is not a multiple of its block size {block}", size.value);
            self.complain(|s| {
                Problem::new(size.place, s, message).help(format!("the nearest valid size: {near}"))
            });
        }
    }

    fn io(&mut self) -> Option<Io> {
        let Some(at) = &self.raw.io else { return Some(Io::Auto) };
        let found = word(at, "io", "one of", &IOS, &self.subject);
        found.map_err(|problem| self.problems.push(problem)).ok()
    }

    fn on_lost(&mut self) -> Option<OnLoss> {
        let Some(at) = &self.raw.on_lost else { return Some(OnLoss::Error) };
        let found = word(at, "on_lost", "one of", &ON_LOST, &self.subject);
        found.map_err(|problem| self.problems.push(problem)).ok()
    }

    fn op(&mut self, word: &At<String>) -> Option<Op> {
        let found = Op::ALL.into_iter().find(|op| op.to_string() == word.value);
        if found.is_none() {
            let message = format!("unknown operation '{}'", word.value);
            let known = Op::ALL.map(|op| op.to_string()).join(", ");
            self.complain(|s| {
                Problem::new(word.place, s, message).help(format!("one of: {known}"))
            });
        }
        found
    }

    fn errno(&mut self) -> Option<i32> {
        let Some(at) = &self.raw.errno else { return Some(5) };
        let named = ERRNOS.iter().find(|(name, _)| name.eq_ignore_ascii_case(&at.value));
        let number = || at.value.parse().ok().filter(|n| (1..4096).contains(n));
        let found = named.map(|(_, number)| *number).or_else(number);
        if found.is_none() {
            let message = format!("unknown errno '{}'", at.value);
            let known = ERRNOS.map(|(name, _)| name).join(", ");
            let help = format!("a number from 1 to 4095, or one of: {known}");
            self.complain(|s| Problem::new(at.place, s, message).help(help));
        }
        found
    }
}
