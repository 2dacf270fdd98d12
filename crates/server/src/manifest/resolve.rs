//! The meaning of a manifest: devices, files that two of them would share, exports, addresses.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use super::drivers::Driver;
use super::export::Export;
use super::links::{self, Links};
use super::model::{Device, LeftOut, Manifest, ResolvedManifest};
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

/// The place where a device keeps its data, which no other device may change meanwhile.
struct Storage {
    place: Position,
    /// Path of the file or folder. For a folder, links are resolved.
    path: PathBuf,
    /// Name of the place for people.
    name: String,
    folder: Option<FolderId>,
    reads: bool,
    what: &'static str,
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
    fn of(driver: &Driver) -> Option<Storage> {
        let (place, name, (path, folder), reads, what) = match driver {
            Driver::File(file) => {
                let path = file.path.value.clone();
                let name = path.display().to_string();
                (file.path.place, name, (path, None), file.read_only, "file")
            }
            Driver::Overlay(overlay) => {
                let path = overlay.path.value.clone();
                let name = path.display().to_string();
                (overlay.path.place, name, (path, None), false, "file")
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
        Some(Storage { place, path, name, folder, reads, what })
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

/// Finds devices whose data would clash. Two devices over one file would overwrite each other,
/// unless both only read it. Two over one volume in an object store fence each other. A volume in
/// the folder of another may be taken for a part of it. Paths that lead to one folder (links, bind
/// mounts) are found here, those that lead to one file when the files are locked.
fn shared_homes(
    devices: &[RawDevice],
    beside: Option<&Manifest>,
    problems: &mut Vec<Problem>,
) -> Vec<usize> {
    let homes: Vec<_> = devices.iter().map(|device| Storage::of(device.made.as_ref()?)).collect();
    // The mount of a served folder may hang, so it is looked up only if another folder is added.
    let has_folders = homes.iter().flatten().any(|home| home.folder.is_some());
    let up = beside.into_iter().flat_map(|server| &server.devices);
    let is_folder = |driver: &Driver| matches!(driver, Driver::Object(object) if object.location.value.starts_with("file://"));
    let up = up.filter(|up| has_folders || !is_folder(&up.driver));
    let up: BTreeMap<PathBuf, (&String, Storage)> = up
        .filter_map(|up| {
            let home = Storage::of(&up.driver)?;
            Some((home.path.clone(), (&up.name, home)))
        })
        .collect();
    let mut first_with: BTreeMap<(&str, PathBuf), (usize, bool)> = BTreeMap::new();
    let mut stores: BTreeMap<PathBuf, (usize, Storage)> = BTreeMap::new();
    let mut bad = Vec::new();
    for (index, home) in homes.into_iter().enumerate() {
        let Some(home) = home else { continue };
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
