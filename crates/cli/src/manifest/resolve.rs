//! What a manifest means: drivers with their keys, sizes against block sizes, exports, addresses.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use corewise::device::HangPolicy;

use super::links::{self, Links};
use super::problem::{At, Problem, Subject};
use super::raw::{RawDevice, RawExport, RawManifest, RawServer};
use super::{
    DEFAULT_DRAIN, Device, Driver, Export, FileDriver, Io, LeftOut, Manifest, Resolved, Server,
};
use crate::{suggest, units};

/// The port that IANA gave to NBD.
const NBD_PORT: u16 = 10809;
/// What a socket address has room for, less the closing zero.
const LONGEST_SOCKET_PATH: usize = 107;
/// Each driver and the keys it takes beyond those that all take.
const DRIVERS: [(&str, &[&str]); 5] = [
    ("file", &["path", "create", "size", "block_size", "io", "read_only"]),
    ("memory", &["size", "block_size"]),
    ("mirror", &["over"]),
    ("null", &["size", "block_size"]),
    ("stripe", &["over", "chunk"]),
];
const DEFAULT_BLOCK_SIZE: u32 = 512;
/// Large enough that most requests touch one part, small enough that a large one touches all.
const DEFAULT_CHUNK: u32 = 64 << 10;

/// Decides what `raw` means. `problems` are those that reading it found already.
pub(super) fn resolve(raw: &RawManifest, mut problems: Vec<Problem>, base: &Path) -> Resolved {
    let mut links = Links::follow(raw, &mut problems);
    let mut drivers = Vec::new();
    for (index, raw) in raw.devices.iter().enumerate() {
        let before = problems.len();
        drivers.push(driver(raw, base, &mut problems));
        if problems.len() > before {
            links.mark(index);
        }
    }
    for index in shared_files(raw, &drivers, &mut problems) {
        links.mark(index);
    }
    let mut left_out = links.left_out();
    let exports = exports(raw, &links, &mut problems, &mut left_out);
    let server = server(&raw.server, base, &mut problems);
    if raw.devices.is_empty() && problems.is_empty() {
        problems.push(Problem {
            place: None,
            subject: Subject::Manifest,
            message: "it declares no device".to_string(),
            help: Some("add a [[device]]; `corewise up --help` shows one".to_string()),
        });
    }
    let devices =
        raw.devices.iter().zip(drivers).enumerate().filter_map(|(index, (raw, driver))| {
            let (Some(name), Some(driver), false) = (&raw.name, driver, links.is_bad(index)) else {
                return None;
            };
            Some(Device {
                name: name.value.clone(),
                place: raw.place,
                driver,
                suppliers: links.suppliers(index),
                node: raw.node.as_ref().map(|node| node.value),
                probe_timeout: raw.probe_timeout.as_ref().map(|at| at.value),
                shutdown_timeout: raw.shutdown_timeout.as_ref().map(|at| at.value),
            })
        });
    let manifest = Manifest { server, devices: devices.collect(), exports };
    problems.sort_by_key(|problem| problem.place);
    let of_all = |problem: &Problem| matches!(problem.subject, Subject::Manifest | Subject::Server);
    let fatal = problems.iter().any(of_all);
    Resolved { manifest, problems, left_out, fatal }
}

/// What `raw` is made of, or `None` if that can't be said; each reason is added to `problems`.
fn driver(raw: &RawDevice, base: &Path, problems: &mut Vec<Problem>) -> Option<Driver> {
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
    // A value that was there but could not be read is not missing: it was complained about.
    let mut missing = |key: &str, example: &str| {
        if !raw.keys.iter().any(|k| k.value == key) {
            let message = format!("driver '{name}' needs '{key}'");
            problems.push(
                Problem::new(raw.place, subject.clone(), message)
                    .help(format!("such as {example}")),
            );
        }
    };
    match name {
        "memory" | "null" => {
            if raw.size.is_none() {
                missing("size", "size = \"64M\"");
            }
            let block_size = block_size(raw, problems)?;
            let size = raw.size.as_ref()?;
            check_size(raw, size, block_size, problems);
            let size = size.value;
            Some(match name {
                "memory" => Driver::Memory { size, block_size },
                _ => Driver::Null { size, block_size },
            })
        }
        "file" => {
            if raw.path.is_none() {
                missing("path", "path = \"disk.img\"");
            }
            let create = raw.create.as_ref().is_some_and(|create| create.value);
            if create && raw.size.is_none() {
                missing("size", "size = \"64M\", since 'create' has to know it");
            }
            let block_size = block_size(raw, problems)?;
            if let Some(size) = &raw.size {
                check_size(raw, size, block_size, problems);
            }
            let read_only = raw.read_only.as_ref().is_some_and(|read_only| read_only.value);
            if let (true, true, Some(at)) = (create, read_only, &raw.create) {
                let message = "a new file that is read-only would stay empty for ever";
                problems.push(Problem::new(at.place, subject, message));
            }
            let path = raw.path.as_ref()?;
            Some(Driver::File(FileDriver {
                path: At::new(base.join(&path.value), path.place),
                create,
                size: raw.size.clone(),
                block_size,
                io: io(raw, problems)?,
                read_only,
            }))
        }
        // "stripe" and "mirror": the table above has no other.
        _ => {
            let Some(over) = &raw.over else {
                missing("over", "over = [\"a\", \"b\"]");
                return None;
            };
            if over.len() < 2 {
                let place = over.first().map_or(raw.place, |part| part.place);
                let message = format!("driver '{name}' needs at least two parts in 'over'");
                problems.push(Problem::new(place, subject.clone(), message));
            }
            let over = over.iter().map(|part| part.value.clone()).collect();
            if name == "mirror" {
                return Some(Driver::Mirror { over });
            }
            let chunk = match &raw.chunk {
                Some(at) => chunk(at, subject, problems)?,
                None => DEFAULT_CHUNK,
            };
            Some(Driver::Stripe { over, chunk })
        }
    }
}

/// The largest chunk is what a device takes in one transfer.
fn chunk(at: &At<u64>, subject: Subject, problems: &mut Vec<Problem>) -> Option<u32> {
    match u32::try_from(at.value) {
        Ok(chunk) if chunk.is_power_of_two() && (4 << 10..=32 << 20).contains(&chunk) => {
            Some(chunk)
        }
        _ => {
            let message = format!("chunk {} can't be used", units::size(at.value));
            problems.push(
                Problem::new(at.place, subject, message)
                    .help("a chunk is a power of two between 4K and 32M; 64K is the default"),
            );
            None
        }
    }
}

fn known_drivers() -> String {
    driver_names().collect::<Vec<_>>().join(", ")
}

/// What a manifest may name as a driver.
pub(crate) fn driver_names() -> impl Iterator<Item = &'static str> {
    DRIVERS.iter().map(|(name, _)| *name)
}

fn block_size(raw: &RawDevice, problems: &mut Vec<Problem>) -> Option<u32> {
    let Some(at) = &raw.block_size else { return Some(DEFAULT_BLOCK_SIZE) };
    // 64 KiB is the largest minimum block size that NBD clients accept.
    match u32::try_from(at.value) {
        Ok(size) if size.is_power_of_two() && (512..=65536).contains(&size) => Some(size),
        _ => {
            let message = format!("block size {} can't be used", units::size(at.value));
            problems.push(
                Problem::new(at.place, links::subject(raw), message)
                    .help("a block size is a power of two between 512 and 64K"),
            );
            None
        }
    }
}

fn check_size(raw: &RawDevice, size: &At<u64>, block_size: u32, problems: &mut Vec<Problem>) {
    let block = u64::from(block_size);
    if size.value == 0 {
        problems.push(Problem::new(size.place, links::subject(raw), "a size can't be 0"));
    } else if !size.value.is_multiple_of(block) {
        let below = size.value / block * block;
        let above = below.saturating_add(block);
        let near = if below == 0 { format!("{above}") } else { format!("{below} or {above}") };
        problems.push(
            Problem::new(
                size.place,
                links::subject(raw),
                format!("size {} is not a multiple of its block size {block}", size.value),
            )
            .help(format!("the nearest that is: {near}")),
        );
    }
}

fn io(raw: &RawDevice, problems: &mut Vec<Problem>) -> Option<Io> {
    let Some(at) = &raw.io else { return Some(Io::Auto) };
    match at.value.as_str() {
        "auto" => Some(Io::Auto),
        "uring" => Some(Io::Uring),
        "threads" => Some(Io::Threads),
        other => {
            let message = format!("unknown io '{other}'");
            problems.push(
                Problem::new(at.place, links::subject(raw), message)
                    .help("one of: auto, uring, threads"),
            );
            None
        }
    }
}

/// Two devices over one file would overwrite each other, unless both only read it. Names that differ
/// but lead to one file (links) are found when the files are locked.
fn shared_files(
    raw: &RawManifest,
    drivers: &[Option<Driver>],
    problems: &mut Vec<Problem>,
) -> Vec<usize> {
    let mut first_with: BTreeMap<PathBuf, usize> = BTreeMap::new();
    let mut bad = Vec::new();
    for (index, driver) in drivers.iter().enumerate() {
        let Some(Driver::File(file)) = driver else { continue };
        let parts = file.path.value.components().filter(|part| *part != Component::CurDir);
        let first = *first_with.entry(parts.collect()).or_insert(index);
        let reads =
            |driver: &Option<Driver>| matches!(driver, Some(Driver::File(f)) if f.read_only);
        if first != index && !(reads(&drivers[index]) && reads(&drivers[first])) {
            let other = links::subject(&raw.devices[first]);
            problems.push(Problem::new(
                file.path.place,
                links::subject(&raw.devices[index]),
                format!("its file is already that of {other}"),
            ));
            bad.extend([first, index]);
        }
    }
    bad
}

fn exports(
    raw: &RawManifest,
    links: &Links<'_>,
    problems: &mut Vec<Problem>,
    left_out: &mut Vec<LeftOut>,
) -> Vec<Export> {
    let mut exports: Vec<Export> = Vec::new();
    let mut first_line: BTreeMap<&str, usize> = BTreeMap::new();
    for raw in &raw.exports {
        let name = raw.name.as_ref().or(raw.device.as_ref()).map(|name| name.value.as_str());
        let subject = Subject::Export(name.map(str::to_string).ok_or(raw.number));
        let mut why = raw.broken.then(|| "it has a problem of its own".to_string());
        if let Some(name) = name {
            let line = *first_line.entry(name).or_insert(raw.place.line);
            if line != raw.place.line {
                problems.push(Problem::new(
                    raw.name.as_ref().map_or(raw.place, |name| name.place),
                    subject.clone(),
                    format!("the name is taken by the export on line {line}"),
                ));
                why = Some("it has a problem of its own".to_string());
            }
        }
        match export(raw, name, links) {
            Ok(export) if why.is_none() => {
                match links.find(&export.device).filter(|device| links.is_bad(*device)) {
                    Some(_) => why = Some(format!("it needs '{}'", export.device)),
                    None => exports.push(export),
                }
            }
            Ok(_) => {}
            Err(problem) => {
                // A 'device' of a wrong type has been complained about.
                if !(raw.broken && raw.device.is_none()) {
                    problems.push(problem);
                }
                why = Some("it has a problem of its own".to_string());
            }
        }
        left_out.extend(why.map(|why| LeftOut { subject, why }));
    }
    exports
}

fn export(raw: &RawExport, name: Option<&str>, links: &Links<'_>) -> Result<Export, Problem> {
    let subject = Subject::Export(name.map(str::to_string).ok_or(raw.number));
    let Some(device) = &raw.device else {
        return Err(Problem::new(raw.place, subject, "an export needs a 'device'"));
    };
    let name = name.unwrap_or(&device.value);
    let Some(index) = links.find(&device.value) else {
        let known: Vec<&str> = links.names_known().collect();
        let help = match suggest::closest(&device.value, known.iter().copied()) {
            Some(close) => format!("did you mean '{close}'?"),
            None => format!("declared devices: {}", known.join(", ")),
        };
        let message = format!("there is no device '{}'", device.value);
        return Err(Problem::new(device.place, subject, message).help(help));
    };
    // The protocol allows 4096 bytes; names with control characters would garble every listing.
    if name.len() > 4096 || name.chars().any(char::is_control) {
        let place = raw.name.as_ref().map_or(raw.place, |name| name.place);
        let message = "an export's name has at most 4096 bytes and no control character";
        return Err(Problem::new(place, subject, message));
    }
    if let Some(text) = &raw.description
        && text.value.len() > 4096
    {
        return Err(Problem::new(text.place, subject, "a description has at most 4096 bytes"));
    }
    let read_only = raw.read_only.as_ref().is_some_and(|read_only| read_only.value);
    if let (false, Some(above)) = (read_only, links.built_over(index)) {
        let message = format!("device '{}' is a part of '{above}'", device.value);
        return Err(Problem::new(device.place, subject, message).help(format!(
            "writes beside '{above}' would damage it: export '{above}', or set read_only = true"
        )));
    }
    Ok(Export {
        name: name.to_string(),
        place: raw.place,
        device: device.value.clone(),
        read_only,
        description: raw.description.as_ref().map(|text| text.value.clone()),
        shutdown_timeout: raw.shutdown_timeout.as_ref().map(|at| at.value),
    })
}

fn server(raw: &RawServer, base: &Path, problems: &mut Vec<Problem>) -> Server {
    let mut socket = |at: &Option<At<String>>| {
        let at = at.as_ref()?;
        let path = base.join(&at.value);
        if at.value.is_empty() || path.as_os_str().len() > LONGEST_SOCKET_PATH {
            let message = format!(
                "a socket's path has 1 to {LONGEST_SOCKET_PATH} bytes, not {}: {}",
                path.as_os_str().len(),
                path.display()
            );
            problems.push(Problem::new(at.place, Subject::Server, message));
            return None;
        }
        Some(At::new(path, at.place))
    };
    let (unix, control) = (socket(&raw.unix), socket(&raw.control));
    let tcp = raw.tcp.as_ref().and_then(|at| match tcp_address(&at.value) {
        Ok(address) => Some(At::new(address, at.place)),
        Err(message) => {
            problems.push(Problem::new(at.place, Subject::Server, format!("'tcp': {message}")));
            None
        }
    });
    let drain = raw.drain.as_ref().map_or(DEFAULT_DRAIN, |drain| drain.value);
    let state = raw.state.as_ref().map(|at| base.join(&at.value));
    let shutdown_timeout = raw.shutdown_timeout.as_ref().map(|at| at.value);
    let on_hang = raw.on_hang.as_ref().map(|at| match hang_policy(&at.value) {
        Ok(policy) => policy,
        Err(message) => {
            let message = format!("'on_hang': {message}");
            problems.push(Problem::new(at.place, Subject::Server, message));
            HangPolicy::default()
        }
    });
    let on_hang = on_hang.unwrap_or_default();
    Server { unix, tcp, drain, control, state, shutdown_timeout, on_hang }
}

/// What may be done about a device whose shutdown hangs.
pub(crate) const HANG_POLICIES: [(&str, HangPolicy); 3] =
    [("wait", HangPolicy::WaitOn), ("skip", HangPolicy::Skip), ("give-up", HangPolicy::GiveUp)];

/// One of [`HANG_POLICIES`] by its name.
pub(crate) fn hang_policy(text: &str) -> Result<HangPolicy, String> {
    let found = HANG_POLICIES.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, policy)| *policy)
        .ok_or_else(|| format!("'{text}' is no policy: write wait, skip or give-up"))
}

/// `HOST:PORT` from an address, a host, or a port. Without a host it is the loopback, without a
/// port it is 10809; port 0 lets the system choose.
pub(crate) fn tcp_address(text: &str) -> Result<String, String> {
    let (host, port) = match text.rsplit_once(':') {
        // No host begins so; it is a number below 0.
        _ if text.starts_with('-') => ("", text),
        _ if text.chars().all(|c| c.is_ascii_digit()) => ("", text),
        // [::1] without a port: the colon found is inside the brackets.
        Some(_) if text.ends_with(']') => (text, ""),
        Some((host, _)) if host.contains(':') && !host.starts_with('[') => {
            return Err(format!("write the address as [{text}] or [{text}]:{NBD_PORT}"));
        }
        Some((host, port)) => (host, port),
        None => (text, ""),
    };
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    let port = if port.is_empty() { Ok(NBD_PORT) } else { port.parse::<u16>() };
    match port {
        Ok(port) if !text.is_empty() => Ok(format!("{host}:{port}")),
        _ => Err(format!("'{text}' is not an address: write HOST:PORT, HOST or PORT")),
    }
}
