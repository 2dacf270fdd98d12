//! The meaning of a manifest: devices, files that two of them would share, exports, addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::drivers::Driver;
use super::export::Export;
use super::links::{self, Links};
use super::model::{Device, LeftOut, Manifest, ResolvedManifest};
use super::object::Object;
use super::problem::{Position, Problem, Subject};
use super::raw::{RawDevice, RawExport, RawManifest};

/// Resolves `raw` into devices and exports. `problems` are those of the reader.
///
/// `beside` is the manifest of the server to which all of it is added.
pub(super) fn resolve(
    raw: &RawManifest,
    mut problems: Vec<Problem>,
    beside: Option<&Manifest>,
) -> ResolvedManifest {
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
    let nothing = raw.devices.is_empty() && (beside.is_none() || raw.exports.is_empty());
    if nothing && problems.is_empty() {
        problems.push(Problem {
            place: None,
            subject: Subject::Manifest,
            message: "the manifest declares no device".to_string(),
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
    let manifest = Manifest { server: raw.server.clone(), devices: devices.collect(), exports };
    problems.sort_by_key(|problem| problem.place);
    let of_all = |problem: &Problem| matches!(problem.subject, Subject::Manifest | Subject::Server);
    let fatal = problems.iter().any(of_all);
    ResolvedManifest { manifest, problems, left_out, fatal }
}

/// A place where a device keeps its data, which no other device may change meanwhile.
struct Storage {
    place: Position,
    /// Path of the file or folder. For a folder, links are resolved.
    path: PathBuf,
    /// Name of the place for people.
    name: String,
    folder: Option<FolderId>,
    reads: bool,
    what: &'static str,
    /// True for a file that the server keeps beside the content.
    is_beside: bool,
}

/// The identity of a folder, whatever its path: device and inode of the deepest existing folder on
/// that path, and the names below.
type FolderId = (u64, u64, PathBuf);

/// Returns the path of a folder with links resolved, as far as it exists, and its identity. Blocks.
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

impl Storage {
    /// Returns the places of a device's data: first that of its content, then those beside it.
    fn of(driver: &Driver) -> Vec<Storage> {
        match driver {
            Driver::File(file) => {
                let reads = file.read_only;
                let content = Storage::file(file.path.place, &file.path.value, reads);
                let log = file.write_log.as_ref().map(|log| content.beside(log));
                [Some(content), log].into_iter().flatten().collect()
            }
            Driver::Overlay(overlay) => {
                vec![Storage::file(overlay.path.place, &overlay.path.value, false)]
            }
            Driver::Checkpoint(checkpoint) => {
                let record = Storage::file(checkpoint.path.place, &checkpoint.path.value, false);
                let copies = checkpoint.copies.map(|_| record.beside(&checkpoint.copies_path()));
                [Some(record), copies].into_iter().flatten().collect()
            }
            Driver::Object(object) => {
                let location = Storage::location(object);
                let place = object.location.place;
                let flushes = object
                    .flush_file
                    .as_ref()
                    .map(|file| Storage { is_beside: true, ..Storage::file(place, file, false) });
                location.into_iter().chain(flushes).collect()
            }
            _ => Vec::new(),
        }
    }

    fn file(place: Position, path: &Path, reads: bool) -> Storage {
        let name = path.display().to_string();
        let path = path.components().filter(|part| *part != Component::CurDir).collect();
        Storage { place, path, name, folder: None, reads, what: "file", is_beside: false }
    }

    /// Returns the place of a file beside this one, which is written.
    fn beside(&self, path: &Path) -> Storage {
        Storage { is_beside: true, ..Storage::file(self.place, path, false) }
    }

    fn location(object: &Object) -> Option<Storage> {
        let name = object.location.value.clone();
        if name == "memory:" {
            return None;
        }
        let (path, folder) = match name.strip_prefix("file://") {
            Some(folder) => {
                let (path, id) = identify(Path::new(folder));
                (Path::new("file:").join(path.strip_prefix("/").unwrap_or(&path)), id)
            }
            None => {
                let server = object.endpoint.as_deref().unwrap_or_default();
                (format!("{server}/{name}").into(), None)
            }
        };
        let path = path.components().filter(|part| *part != Component::CurDir).collect();
        let place = object.location.place;
        Some(Storage {
            place,
            path,
            name,
            folder,
            reads: false,
            what: "location",
            is_beside: false,
        })
    }

    fn is_same_folder(&self, other: &Storage) -> bool {
        self.folder.is_some() && self.folder == other.folder
    }

    /// Returns the reason why both can't exist, to follow the name of the other one's device.
    fn clash(&self, other: &Storage) -> Option<String> {
        let what = self.what;
        if what != other.what || self.reads && other.reads {
            None
        } else if self.path == other.path || self.is_same_folder(other) {
            let is_named_alike =
                Path::new(&self.name).components().eq(Path::new(&other.name).components());
            Some(match what == "location" && !is_named_alike {
                true => format!("has the same location, under the path {}", other.name),
                false if self.is_beside || other.is_beside => format!("uses {}, too", self.name),
                false => format!("has the same {what}"),
            })
        } else if what == "location" && self.path.starts_with(&other.path) {
            Some("has a location around this one: each volume needs a folder of its own".into())
        } else if what == "location" && other.path.starts_with(&self.path) {
            Some("has a location inside this one: each volume needs a folder of its own".into())
        } else {
            None
        }
    }
}

/// Finds devices whose data would clash, or the files beside that. Two devices over one file would
/// overwrite each other, unless both only read it. Two over one volume in an object store fence
/// each other. A volume in the folder of another may be taken for a part of it. Paths that lead to
/// one folder (links, bind mounts) are found here, those that lead to one file when the files are
/// locked.
fn shared_homes(
    devices: &[RawDevice],
    beside: Option<&Manifest>,
    problems: &mut Vec<Problem>,
) -> Vec<usize> {
    let made = devices.iter().map(|device| device.made.as_ref().map(Storage::of));
    let homes: Vec<_> = made
        .enumerate()
        .flat_map(|(index, homes)| {
            homes.unwrap_or_default().into_iter().map(move |home| (index, home))
        })
        .collect();
    // The mount of a served folder may hang, so it is looked up only if another folder is added.
    let has_folders = homes.iter().any(|(_, home)| home.folder.is_some());
    let up = beside.into_iter().flat_map(|server| &server.devices);
    let is_folder = |driver: &Driver| matches!(driver, Driver::Object(object) if object.location.value.starts_with("file://"));
    let up = up.filter(|up| has_folders || !is_folder(&up.driver));
    let up: BTreeMap<PathBuf, (&String, Storage)> = up
        .flat_map(|up| {
            let homes = Storage::of(&up.driver).into_iter();
            homes.map(|home| (home.path.clone(), (&up.name, home)))
        })
        .collect();
    let mut files: BTreeMap<PathBuf, (usize, Storage)> = BTreeMap::new();
    let mut stores: BTreeMap<PathBuf, (usize, Storage)> = BTreeMap::new();
    let mut bad = Vec::new();
    for (index, home) in homes {
        let its_name = devices[index].name.as_ref().map(|name| &name.value);
        let subject = || links::subject(&devices[index]);
        // A second device of that name has been reported.
        let by_id = up.values().filter(|(_, other)| home.is_same_folder(other));
        let others = neighbours(&up, &home.path).chain(by_id);
        let others = others.filter(|(name, _)| its_name != Some(*name));
        let clash =
            |(name, other): &(&String, Storage)| Some(((*name).clone(), home.clash(other)?));
        if let Some((other, clash)) = others.filter_map(clash).next() {
            let message = format!("the server's device '{other}' {clash}");
            problems.push(Problem::new(home.place, subject(), message));
            bad.push(index);
        }
        if home.what == "location" {
            let clash = |(first, other): &(usize, Storage)| Some((*first, home.clash(other)?));
            let by_id = stores.values().filter(|(_, other)| home.is_same_folder(other));
            let near = neighbours(&stores, &home.path).chain(by_id);
            if let Some((first, clash)) = near.filter_map(clash).next() {
                let other = links::subject(&devices[first]);
                problems.push(Problem::new(home.place, subject(), format!("{other} {clash}")));
                bad.extend([first, index]);
            }
            stores.entry(home.path.clone()).or_insert((index, home));
            continue;
        }
        if let Some((first, other)) = files.get(&home.path) {
            if let Some(clash) = other.clash(&home) {
                let message = match *first == index {
                    true => format!("its data and the files beside that share {}", home.name),
                    false => format!("{} {clash}", links::subject(&devices[*first])),
                };
                problems.push(Problem::new(home.place, subject(), message));
                bad.extend([*first, index]);
            }
        } else {
            files.insert(home.path.clone(), (index, home));
        }
    }
    bad
}

/// Returns the homes at that path, above it, and the first one below it.
fn neighbours<'h, T>(
    homes: &'h BTreeMap<PathBuf, T>,
    path: &'h Path,
) -> impl Iterator<Item = &'h T> {
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
    let mut first_socket: BTreeMap<&Path, usize> = BTreeMap::new();
    let mut default_line = None;
    let server = beside.map_or(&raw.server, |server| &server.server);
    let knows_names = server.tls_client_ca.is_some();
    let default_up = beside.and_then(|server| server.exports.iter().find(|export| export.default));
    let most = raw.server.clients;
    let names: BTreeSet<&str> = raw.exports.iter().filter_map(RawExport::name).collect();
    for raw in &raw.exports {
        let mut found = Vec::new();
        let mut refuse = |key: &str, message: String| {
            found.push(Problem::new(raw.place_of(key), raw.subject.clone(), message));
        };
        if let Subject::Export(Ok(name)) = &raw.subject {
            let line = *first_line.entry(name).or_insert(raw.place.line);
            if beside.is_some_and(|server| server.export(name).is_some()) {
                refuse("name", "the server has an export of this name already".to_string());
            } else if line != raw.place.line {
                refuse("name", format!("the export on line {line} has the same name"));
            }
            if let Some(why) = checkpoint_name_problem(name, &names, beside) {
                refuse("name", why);
            }
        }
        if raw.export.as_ref().is_some_and(|export| export.default) {
            let here = raw.place_of("default").line;
            let line = *default_line.get_or_insert(here);
            if let Some(up) = default_up {
                let message = format!("the server's export '{}' is the default already", up.name);
                refuse("default", message);
            } else if line != here {
                let message = format!("the one on line {line} is the default export already");
                refuse("default", message);
            }
        }
        if let Some(at) = raw.export.as_ref().and_then(|export| export.vhost_user.as_ref()) {
            let path = at.value.path.as_path();
            let line = *first_socket.entry(path).or_insert(raw.place.line);
            let up = beside.into_iter().flat_map(|server| &server.exports);
            let has_it =
                |up: &&Export| up.vhost_user.as_ref().is_some_and(|other| other.value.path == path);
            let other =
                match (server.sockets().find(|(_, other)| *other == path), up.clone().find(has_it))
                {
                    (Some((key, _)), _) => Some(format!("'{key}' of [server]")),
                    (None, Some(up)) => Some(format!("the server's export '{}'", up.name)),
                    (None, None) => {
                        (line != raw.place.line).then(|| format!("the export on line {line}"))
                    }
                };
            if let Some(other) = other {
                let message = format!("{other} has the same socket: give each one of its own");
                refuse("vhost_user", message);
            }
        }
        let by_name = |export: &Export| export.allow_certificates.is_some();
        if !knows_names && raw.export.as_ref().is_some_and(by_name) {
            let message = "'allow_certificates' needs a 'tls_client_ca' in [server]";
            refuse("allow_certificates", message.to_string());
        }
        let advised = problems.len() < links::ADVISED;
        let device = raw.export.as_ref().map(|export| device_problem(raw, export, links, advised));
        found.extend(device.flatten());
        let clients = raw.export.as_ref().and_then(|export| export.clients).zip(most);
        if let Some((clients, all)) = clients.filter(|(clients, all)| clients > all) {
            let message = format!("'clients' is {clients}, more than the server lets in");
            let problem = Problem::new(raw.place_of("clients"), raw.subject.clone(), message);
            let help = format!("lower it, or raise 'clients' of [server] from {all}");
            found.push(problem.help(help));
        }
        let export = raw.export.as_ref().filter(|_| !raw.broken && found.is_empty());
        problems.extend(found);
        let why = match export {
            None => "the export has an error of its own".to_string(),
            Some(export) if links.find(&export.device).is_some_and(|at| links.is_bad(at)) => {
                format!("its device '{}' was left out", export.device)
            }
            Some(export) => {
                exports.push(export.clone());
                continue;
            }
        };
        left_out.push(LeftOut { subject: raw.subject.clone(), why });
    }
    exports
}

/// Returns the reason why an export can't have this name, since a checkpoint of an export is read
/// under `EXPORT@CHECKPOINT`. `names` are those of the manifest's exports.
fn checkpoint_name_problem(
    name: &str,
    names: &BTreeSet<&str>,
    beside: Option<&Manifest>,
) -> Option<String> {
    let up = || beside.into_iter().flat_map(|server| &server.exports);
    if let Some((export, checkpoint)) = name.rsplit_once('@') {
        if names.contains(export) || up().any(|up| up.name == export) {
            return Some(format!(
                "'{name}' is the name of checkpoint '{checkpoint}' of export '{export}': use a name \
                 without '@'"
            ));
        }
    }
    let of = |up: &&Export| up.name.rsplit_once('@').is_some_and(|(export, _)| export == name);
    let up = up().find(of)?;
    Some(format!(
        "the server's export '{}' has the name of a checkpoint of this one: use another name",
        up.name
    ))
}

/// Returns the reason why an export can't have its device, or `None`.
fn device_problem(
    raw: &RawExport,
    export: &Export,
    links: &Links<'_>,
    advised: bool,
) -> Option<Problem> {
    let device = export.device.as_str();
    let problem =
        |message| Some(Problem::new(raw.place_of("device"), raw.subject.clone(), message));
    if links.find(device).is_none() && !links.is_up(device) {
        let problem = problem(format!("there is no device '{device}'"));
        return problem.map(|found| if advised { found.help(links.meant(device)) } else { found });
    }
    let above = links.built_over(device).filter(|_| !export.read_only)?;
    let help = format!(
        "writes that bypass '{above}' would damage it: export '{above}', or set read_only = true"
    );
    Some(problem(format!("device '{device}' is a part of '{above}'"))?.help(help))
}
