//! What a manifest means: devices, files that two of them would share, exports, addresses.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use corewise::device::HangPolicy;

use super::drivers::Driver;
use super::links::{self, Links};
use super::model::{
    Clients, DEFAULT_DRAIN, Device, Export, LeftOut, Manifest, MetricsAt, Resolved, Server,
};
use super::problem::{At, Place, Problem, Subject, too_long, unseen};
use super::raw::{RawDevice, RawExport, RawManifest, RawServer};
use super::tls::tls;

/// The port that IANA gave to NBD.
const NBD_PORT: u16 = 10809;
/// Decides what `raw` means. `problems` are those that reading it found already.
///
/// `beside`: what the server has already that all of it is added to.
pub(super) fn resolve(
    raw: &RawManifest,
    mut problems: Vec<Problem>,
    base: &Path,
    beside: Option<&Manifest>,
) -> Resolved {
    let mut links = Links::follow(raw, beside, &mut problems);
    if let (Some(place), Some(_)) = (raw.has_server, beside) {
        let message = "a running server keeps its own [server]: leave the table out";
        problems.push(Problem::new(place, Subject::Server, message));
    }
    for index in shared_homes(&raw.devices, beside, &mut problems) {
        links.mark(index);
    }
    let mut left_out = links.left_out();
    let exports = exports(raw, &links, beside, &mut problems, &mut left_out);
    let server = server(&raw.server, base, &mut problems);
    let nothing = raw.devices.is_empty() && (beside.is_none() || raw.exports.is_empty());
    if nothing && problems.is_empty() {
        problems.push(Problem {
            place: None,
            subject: Subject::Manifest,
            message: "it declares no device".to_string(),
            help: Some("add a [[device]]; `corewise up --help` shows one".to_string()),
        });
    }
    let devices = raw.devices.iter().enumerate().filter_map(|(index, raw)| {
        let good = Some(raw).filter(|_| !links.is_bad(index))?;
        Some(Device {
            name: good.name.as_ref()?.value.clone(),
            place: raw.place,
            driver: good.made.clone()?,
            tuning: good.tuning.clone()?,
            suppliers: links.suppliers(index),
        })
    });
    let manifest = Manifest { server, devices: devices.collect(), exports };
    problems.sort_by_key(|problem| problem.place);
    let of_all = |problem: &Problem| matches!(problem.subject, Subject::Manifest | Subject::Server);
    let fatal = problems.iter().any(of_all);
    Resolved { manifest, problems, left_out, fatal }
}

/// Where a device keeps its data, which no other one may change meanwhile.
struct Home {
    place: Place,
    /// Without links, where it is a folder.
    path: PathBuf,
    /// What a person calls it.
    name: String,
    folder: Option<FolderId>,
    reads: bool,
    what: &'static str,
}

/// What tells a folder from others by whatever path it is named: device and inode of the deepest
/// folder on that path that is there, and the names below it.
type FolderId = (u64, u64, PathBuf);

/// The path of a folder without links, as far as it is there, and its identity. Blocks.
fn identify(folder: &Path) -> (PathBuf, Option<FolderId>) {
    let there = folder.ancestors().find_map(|above| {
        let (path, found) = (above.canonicalize().ok()?, above.metadata().ok()?);
        Some((path, found, folder.strip_prefix(above).ok()?))
    });
    match there {
        Some((path, found, below)) => {
            (path.join(below), Some((found.dev(), found.ino(), below.to_owned())))
        }
        None => (folder.to_owned(), None),
    }
}

impl Home {
    fn of(driver: &Driver) -> Option<Home> {
        let (place, name, (path, folder), reads, what) = match driver {
            Driver::File(file) => {
                let path = file.path.value.clone();
                let name = path.display().to_string();
                (file.path.place, name, (path, None), file.read_only, "file")
            }
            Driver::Object(object) if object.location.value != "memory:" => {
                let location = &object.location.value;
                let at = match location.strip_prefix("file://") {
                    Some(folder) => {
                        let (path, id) = identify(Path::new(folder));
                        (Path::new("file:").join(path.strip_prefix("/").unwrap_or(&path)), id)
                    }
                    None => {
                        let server = object.endpoint.as_deref().unwrap_or_default();
                        (format!("{server}/{location}").into(), None)
                    }
                };
                (object.location.place, location.clone(), at, false, "location")
            }
            _ => return None,
        };
        let path = path.components().filter(|part| *part != Component::CurDir).collect();
        Some(Home { place, path, name, folder, reads, what })
    }

    fn is_same_folder(&self, other: &Home) -> bool {
        self.folder.is_some() && self.folder == other.folder
    }

    /// Why they can't both be, in words behind the name of the other one's device.
    fn clash(&self, other: &Home) -> Option<String> {
        let what = self.what;
        if what != other.what || self.reads && other.reads {
            None
        } else if self.path == other.path || self.is_same_folder(other) {
            let is_named_alike =
                Path::new(&self.name).components().eq(Path::new(&other.name).components());
            Some(match what == "location" && !is_named_alike {
                true => format!("has the same location, by the path {}", other.name),
                false => format!("has the same {what}"),
            })
        } else if what == "location" && self.path.starts_with(&other.path) {
            Some(
                "has a location that this one's lies in: a volume has its folder for itself".into(),
            )
        } else if what == "location" && other.path.starts_with(&self.path) {
            Some(
                "has a location that lies in this one's: a volume has its folder for itself".into(),
            )
        } else {
            None
        }
    }
}

/// Two devices over one file would overwrite each other, unless both only read it, and two over one volume in an object store fence each other;
/// one volume in the folder of another one may be taken for a part of it.
/// Paths that differ but lead to one folder (links, bind mounts) are found here, those that lead to
/// one file when the files are locked.
fn shared_homes(
    devices: &[RawDevice],
    beside: Option<&Manifest>,
    problems: &mut Vec<Problem>,
) -> Vec<usize> {
    let homes: Vec<_> = devices.iter().map(|device| Home::of(device.made.as_ref()?)).collect();
    // The mount of a folder that is served may hang: it is only looked at for another folder.
    let has_folders = homes.iter().flatten().any(|home| home.folder.is_some());
    let up = beside.into_iter().flat_map(|server| &server.devices);
    let is_folder = |driver: &Driver| matches!(driver, Driver::Object(object) if object.location.value.starts_with("file://"));
    let up = up.filter(|up| has_folders || !is_folder(&up.driver));
    let up: BTreeMap<PathBuf, (&String, Home)> = up
        .filter_map(|up| {
            let home = Home::of(&up.driver)?;
            Some((home.path.clone(), (&up.name, home)))
        })
        .collect();
    let mut first_with: BTreeMap<(&str, PathBuf), (usize, bool)> = BTreeMap::new();
    let mut stores: BTreeMap<PathBuf, (usize, Home)> = BTreeMap::new();
    let mut bad = Vec::new();
    for (index, home) in homes.into_iter().enumerate() {
        let Some(home) = home else { continue };
        let its_name = devices[index].name.as_ref().map(|name| &name.value);
        let subject = || links::subject(&devices[index]);
        // That there is one of its name has been complained about.
        let by_id = up.values().filter(|(_, other)| home.is_same_folder(other));
        let others = near(&up, &home.path).chain(by_id);
        let others = others.filter(|(name, _)| its_name != Some(*name));
        let clash = |(name, other): &(&String, Home)| Some(((*name).clone(), home.clash(other)?));
        if let Some((other, clash)) = others.filter_map(clash).next() {
            let message = format!("the server's device '{other}' {clash}");
            problems.push(Problem::new(home.place, subject(), message));
            bad.push(index);
        }
        if home.what == "location" {
            let clash = |(first, other): &(usize, Home)| Some((*first, home.clash(other)?));
            let by_id = stores.values().filter(|(_, other)| home.is_same_folder(other));
            let near = near(&stores, &home.path).chain(by_id);
            if let Some((first, clash)) = near.filter_map(clash).next() {
                let other = links::subject(&devices[first]);
                problems.push(Problem::new(home.place, subject(), format!("{other} {clash}")));
                bad.extend([first, index]);
            }
            stores.entry(home.path.clone()).or_insert((index, home));
            continue;
        }
        let here = (home.what, home.path);
        let (first, reads) = *first_with.entry(here).or_insert((index, home.reads));
        if first != index && !(reads && home.reads) {
            let other = links::subject(&devices[first]);
            let message = format!("{other} has the same {}", home.what);
            problems.push(Problem::new(home.place, subject(), message));
            bad.extend([first, index]);
        }
    }
    bad
}

/// What lies at that path, above it, or first below it.
fn near<'h, T>(homes: &'h BTreeMap<PathBuf, T>, path: &'h Path) -> impl Iterator<Item = &'h T> {
    let below = homes.range::<Path, _>((Bound::Excluded(path), Bound::Unbounded)).next();
    path.ancestors().filter_map(|above| homes.get(above)).chain(below.map(|(_, home)| home))
}

fn exports(
    raw: &RawManifest,
    links: &Links<'_>,
    beside: Option<&Manifest>,
    problems: &mut Vec<Problem>,
    left_out: &mut Vec<LeftOut>,
) -> Vec<Export> {
    let mut exports: Vec<Export> = Vec::new();
    let mut first_line: BTreeMap<&str, usize> = BTreeMap::new();
    let mut default_line = None;
    let server = &raw.server;
    let knows_names = match beside {
        Some(server) => server.server.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()),
        None => raw.server.tls_client_ca.is_some(),
    };
    let default_up = beside.and_then(|server| server.exports.iter().find(|export| export.default));
    for raw in &raw.exports {
        let name = raw.name.as_ref().or(raw.device.as_ref()).map(|name| name.value.as_str());
        let subject = Subject::Export(name.map(str::to_string).ok_or(raw.number));
        let mut why = raw.broken.then(|| "it has an error of its own".to_string());
        if let Some(name) = name {
            let line = *first_line.entry(name).or_insert(raw.place.line);
            let is_up = beside.is_some_and(|server| server.export(name).is_some());
            if is_up || line != raw.place.line {
                let message = match is_up {
                    true => "the server has an export of this name already".to_string(),
                    false => format!("the export on line {line} has the same name"),
                };
                let place = raw.name.as_ref().map_or(raw.place, |name| name.place);
                problems.push(Problem::new(place, subject.clone(), message));
                why = Some("it has an error of its own".to_string());
            }
        }
        if let Some(at) = raw.default.as_ref().filter(|default| default.value) {
            let line = *default_line.get_or_insert(at.place.line);
            if default_up.is_some() || line != at.place.line {
                let message = match default_up {
                    Some(export) => {
                        format!("the server's export '{}' is the default already", export.name)
                    }
                    None => format!("the one on line {line} is the default export already"),
                };
                problems.push(Problem::new(at.place, subject.clone(), message));
                why = Some("it has an error of its own".to_string());
            }
        }
        let first = raw.allow_certificates.as_ref().and_then(|names| names.first());
        if let Some(at) = first.filter(|_| !knows_names) {
            let message = "'allow_certificates' needs a 'tls_client_ca' in [server]";
            problems.push(Problem::new(at.place, subject.clone(), message));
            why = Some("it has an error of its own".to_string());
        }
        match export(raw, name, links, server, problems.len() < links::ADVISED) {
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
                why = Some("it has an error of its own".to_string());
            }
        }
        left_out.extend(why.map(|why| LeftOut { subject, why }));
    }
    exports
}

fn export(
    raw: &RawExport,
    name: Option<&str>,
    links: &Links<'_>,
    server: &RawServer,
    advised: bool,
) -> Result<Export, Problem> {
    let subject = Subject::Export(name.map(str::to_string).ok_or(raw.number));
    let Some(device) = &raw.device else {
        return Err(Problem::new(raw.place, subject, "an export needs a 'device'"));
    };
    let name = name.unwrap_or(&device.value);
    if links.find(&device.value).is_none() && !links.is_up(&device.value) {
        let message = format!("there is no device '{}'", device.value);
        let problem = Problem::new(device.place, subject, message);
        return Err(if advised { problem.help(links.meant(&device.value)) } else { problem });
    }
    let place = raw.name.as_ref().map_or(raw.place, |name| name.place);
    let its_name = At::new(name.to_string(), place);
    let named = [("an export's name", &its_name)].into_iter();
    for (what, at) in named.chain(raw.description.as_ref().map(|text| ("a description", text))) {
        // The protocol allows no more.
        if at.value.len() > 4096 {
            let message = format!("{what} has at most 4096 bytes");
            return Err(Problem::new(at.place, subject, message));
        }
        if let Some(problem) = unseen(what, at, &subject) {
            return Err(problem);
        }
    }
    for at in raw.allow_certificates.iter().flatten() {
        if let Some(problem) = unseen("a name in a certificate", at, &subject) {
            return Err(problem);
        }
    }
    let read_only = raw.read_only.as_ref().is_some_and(|read_only| read_only.value);
    if let (false, Some(above)) = (read_only, links.built_over(&device.value)) {
        let message = format!("device '{}' is a part of '{above}'", device.value);
        return Err(Problem::new(device.place, subject, message).help(format!(
            "writes that bypass '{above}' would damage it: export '{above}', or set read_only = \
             true"
        )));
    }
    if let Some(at) = raw.clients.as_ref().filter(|at| at.value == 0) {
        return Err(Problem::new(at.place, subject, "'clients' must be at least 1"));
    }
    if let (Some(at), Some(all)) = (&raw.clients, &server.clients) {
        let help = format!("[server] lets in {} in all, by its own 'clients'", all.value);
        if at.value > all.value {
            let message = format!("'clients' is {}, and there are never so many", at.value);
            return Err(Problem::new(at.place, subject, message).help(help));
        }
    }
    if let (Some(each), Some(all)) = (raw.client_limit, raw.limit) {
        let above = |each: Option<u64>, all: Option<u64>| {
            each.zip(all).is_some_and(|(each, all)| each > all)
        };
        if above(each.iops, all.iops) || above(each.bytes, all.bytes) {
            let message = "'client_limit', of each client, is more than 'limit', of all of them";
            return Err(Problem::new(raw.place, subject, message)
                .help("lower it, or leave it out: a client alone may have all of 'limit'"));
        }
    }
    Ok(Export {
        name: name.to_string(),
        place: raw.place,
        device: device.value.clone(),
        read_only,
        description: raw.description.as_ref().map(|text| text.value.clone()),
        clients: raw.clients.as_ref().map(|at| at.value as usize),
        allow_uids: raw.allow_uids.clone(),
        allow_certificates: raw
            .allow_certificates
            .as_ref()
            .map(|names| names.iter().map(|name| name.value.clone()).collect()),
        limit: raw.limit,
        client_limit: raw.client_limit,
        default: raw.default.as_ref().is_some_and(|default| default.value),
        shutdown_timeout: raw.shutdown_timeout.as_ref().map(|at| at.value),
    })
}

fn server(raw: &RawServer, base: &Path, problems: &mut Vec<Problem>) -> Server {
    for at in [&raw.unix, &raw.control, &raw.metrics, &raw.state].into_iter().flatten() {
        problems.extend(unseen("a path", at, &Subject::Server));
    }
    let mut socket = |at: &Option<At<String>>| {
        let at = at.as_ref()?;
        let path = base.join(&at.value);
        if at.value.is_empty() {
            let message = "a socket's path is empty: leave the key out, or name a path";
            problems.push(Problem::new(at.place, Subject::Server, message));
            return None;
        }
        if let Some(message) = too_long(&path) {
            problems.push(Problem::new(at.place, Subject::Server, message));
            return None;
        }
        Some(At::new(path, at.place))
    };
    let (unix, control) = (socket(&raw.unix), socket(&raw.control));
    if let (Some(unix), Some(control)) = (&unix, &control) {
        if unix.value == control.value {
            let message = "'control' and 'unix' are one path: give each a socket of its own";
            problems.push(Problem::new(control.place, Subject::Server, message));
        }
    }
    let tcp = raw.tcp.as_ref().and_then(|at| match tcp_address(&at.value) {
        Ok(address) => Some(At::new(address, at.place)),
        Err(message) => {
            problems.push(Problem::new(at.place, Subject::Server, format!("'tcp': {message}")));
            None
        }
    });
    let metrics = raw.metrics.as_ref().and_then(|at| match metrics_at(&at.value, base) {
        Ok(place) => Some(At::new(place, at.place)),
        Err(message) => {
            let message = format!("'metrics': {message}");
            problems.push(Problem::new(at.place, Subject::Server, message));
            None
        }
    });
    let drain = raw.drain.as_ref().map_or(DEFAULT_DRAIN, |drain| drain.value);
    if let Some(at) = raw.state.as_ref().filter(|at| at.value.is_empty()) {
        let message = "'state' is empty: leave it out, or name a folder";
        problems.push(Problem::new(at.place, Subject::Server, message));
    }
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
    let (clients, tls) = (clients(raw, problems), tls(raw, base, problems));
    Server { unix, tcp, drain, control, metrics, state, shutdown_timeout, on_hang, clients, tls }
}

/// The least memory that a server can do with, in bytes: for one client that reads as much as it may at a time.
const LEAST_MEMORY: u64 = 64 << 20;

/// What clients may have.
fn clients(raw: &RawServer, problems: &mut Vec<Problem>) -> Clients {
    let mut told = |place, message: String| {
        problems.push(Problem::new(place, Subject::Server, message));
    };
    if let Some(at) = raw.memory.as_ref().filter(|at| at.value < LEAST_MEMORY) {
        told(at.place, format!("'memory' is {} bytes: at least 64M are needed", at.value));
    }
    for (key, at) in [("clients", &raw.clients), ("clients_per_peer", &raw.clients_per_peer)] {
        if let Some(at) = at.as_ref().filter(|at| at.value == 0) {
            told(at.place, format!("'{key}' must be at least 1"));
        }
    }
    if let (Some(each), Some(all)) = (&raw.clients_per_peer, &raw.clients) {
        if each.value > all.value {
            let message = "'clients_per_peer' is more than 'clients', of all peers together: lower \
                           it, or leave it out";
            told(each.place, message.to_string());
        }
    }
    if let (Some(evict), Some(idle)) = (&raw.evict_idle, &raw.idle_timeout) {
        if evict.value >= idle.value {
            let message = "'evict_idle' must be less than 'idle_timeout', after which idle clients \
                           are gone in any case";
            told(evict.place, message.to_string());
        }
    }
    let mut time = |key, at: &Option<At<Duration>>| {
        if let Some(at) = at.as_ref().filter(|at| at.value.is_zero()) {
            told(at.place, format!("'{key}' must be greater than 0"));
        }
        at.as_ref().map(|at| at.value)
    };
    Clients {
        request_timeout: time("request_timeout", &raw.request_timeout),
        reply_timeout: time("reply_timeout", &raw.reply_timeout),
        idle_timeout: time("idle_timeout", &raw.idle_timeout),
        memory: raw.memory.as_ref().map(|at| at.value),
        most: raw.clients.as_ref().map(|at| at.value as usize),
        per_peer: raw.clients_per_peer.as_ref().map(|at| at.value as usize),
        evict_idle: raw.evict_idle.as_ref().map(|at| at.value),
        extended_headers: raw.extended_headers.as_ref().is_some_and(|at| at.value),
    }
}

/// What may be done about a device whose shutdown hangs.
pub const HANG_POLICIES: [(&str, HangPolicy); 3] =
    [("wait", HangPolicy::WaitOn), ("skip", HangPolicy::Skip), ("give-up", HangPolicy::GiveUp)];

/// One of [`HANG_POLICIES`] by its name.
pub fn hang_policy(text: &str) -> Result<HangPolicy, String> {
    let found = HANG_POLICIES.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, policy)| *policy)
        .ok_or_else(|| format!("'{text}' is not a policy: write wait, skip or give-up"))
}

/// Where metrics are to be had, from `HOST:PORT`, a port alone, or a path with a slash in it.
fn metrics_at(text: &str, base: &Path) -> Result<MetricsAt, String> {
    let wrong = || {
        format!("'{text}' is no place for them: write HOST:PORT, PORT, or a path with a '/' in it")
    };
    if text.contains('/') && !text.contains("://") {
        let path = base.join(text);
        return too_long(&path).map_or(Ok(MetricsAt::Unix(path)), Err);
    }
    match host_and_port(text)?.ok_or_else(wrong)? {
        (host, Some(port)) if !text.starts_with(':') => {
            Ok(MetricsAt::Tcp(format!("{host}:{port}")))
        }
        _ => Err(wrong()),
    }
}

/// `HOST:PORT` from an address, a host, or a port. Without a host it is the loopback, without a
/// port it is 10809; port 0 lets the system choose.
pub fn tcp_address(text: &str) -> Result<String, String> {
    match host_and_port(text)? {
        Some((host, port)) => Ok(format!("{host}:{}", port.unwrap_or(NBD_PORT))),
        None => Err(format!("'{text}' is not an address: write HOST:PORT, HOST or PORT")),
    }
}

/// A host, or the loopback where there is none, and a port. `None`: it is nothing of that kind.
fn host_and_port(text: &str) -> Result<Option<(String, Option<u16>)>, String> {
    if let Some((scheme, rest)) = text.split_once("://") {
        let address = rest.split('/').next().unwrap_or_default();
        return Err(format!("leave '{scheme}://' out: write '{address}'"));
    }
    if text.contains('/') {
        return Err(format!("'{text}' is a path: write unix = \"{text}\" for a Unix socket"));
    }
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
    let suffix = if port.is_empty() { String::new() } else { format!(":{port}") };
    if host == "*" {
        return Err(format!(
            "'*' is no host: write 0.0.0.0{suffix} for all IPv4 addresses of this machine, or [::]{suffix} for all its addresses"
        ));
    }
    if host.contains(['*', ' ', '@', ',']) {
        return Ok(None);
    }
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    let port = if port.is_empty() { Ok(None) } else { port.parse().map(Some) };
    Ok(port.ok().filter(|_| !text.is_empty()).map(|port| (host.to_string(), port)))
}
