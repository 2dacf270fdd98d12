//! The check whether a manifest would come up, as far as its files tell.

use std::collections::HashMap;
use std::fs::Metadata;
use std::path::Path;

use corewise::export::{BindError, check_unix};
use corewise::topology::{Machine, Topology};
use corewise::ublk::Abilities;
use rustix::fs::{Access, access};

use crate::drivers::crypt;
use crate::drivers::file::{EMPTY, bad_size, other_size, refuse_what_is_no_disk};
use crate::drivers::{behind_the_end, link};
use crate::manifest::{Device, Driver, FileDriver, Manifest, Overlay, Problem, Subject};
use crate::{process_limits, store_check, tls};

/// Returns the problems of a manifest on this machine: of its files, its NUMA nodes, its ranges of
/// faults, and front ends that this kernel lacks. Opens nothing but the files of certificates and
/// keys, and the control device of ublk.
pub fn check(manifest: &Manifest) -> Vec<Problem> {
    let machine = Machine::live();
    // If the topology can't be read, the start reports why.
    let topology = machine.as_ref().ok().map(Machine::topology);
    let mut problems = impossible(&manifest.devices, &manifest.by_name(), topology);
    for device in &manifest.devices {
        let found = match &device.driver {
            Driver::File(file) => {
                let why =
                    check_file(file).map_err(|why| format!("{}: {why}", file.path.value.display()));
                why.err().map(|why| (file.path.place, why)).into_iter().collect()
            }
            Driver::Overlay(overlay) => {
                let path = &overlay.path.value;
                let why = check_overlay(path).map_err(|why| format!("{}: {why}", path.display()));
                why.err().map(|why| (overlay.path.place, why)).into_iter().collect()
            }
            Driver::Object(asked) => store_check::problems(asked),
            Driver::Crypt(asked) => {
                let why = crypt::check_key(asked);
                why.err().map(|why| (device.place, why)).into_iter().collect()
            }
            _ => Vec::new(),
        };
        let subject = || Subject::Device(Ok(device.name.clone()));
        problems.extend(found.into_iter().map(|(at, why)| Problem::new(at, subject(), why)));
    }
    for export in &manifest.exports {
        let Some(disk) = &export.ublk else { continue };
        let why = [link(export).err(), disk.resolve().err()];
        let subject = || Subject::Export(Ok(export.name.clone()));
        let problem = |why| Problem::new(export.place, subject(), format!("ublk: {why}"));
        problems.extend(why.into_iter().flatten().map(problem));
    }
    if let Err(error) = Abilities::probe() {
        let of_disk = manifest.exports.iter().filter(|export| export.ublk.is_some());
        problems.extend(of_disk.map(|export| {
            let subject = Subject::Export(Ok(export.name.clone()));
            Problem::new(export.place, subject, format!("ublk: {error}"))
        }));
    }
    for export in &manifest.exports {
        let Some(at) = &export.vhost_user else { continue };
        let why = check_socket(&at.value.path)
            .and_then(|()| at.value.access.resolve().map(drop))
            .map_err(|why| format!("vhost_user: {why}"));
        let subject = || Subject::Export(Ok(export.name.clone()));
        problems.extend(why.err().map(|why| Problem::new(at.place, subject(), why)));
    }
    let server = &manifest.server;
    let options = process_limits::client_options(server, process_limits::usual_memory());
    problems.extend(tls::server(options, server.tls()).err());
    problems
}

/// Returns the front ends that this kernel has for exports, in words.
pub fn front_ends() -> String {
    let ublk = match Abilities::probe() {
        Ok(Abilities { grow, hand_over, safe_stop, .. }) => {
            let can = [
                (grow, "grow in use"),
                (hand_over, "be handed over"),
                (safe_stop, "go only if unused"),
            ];
            let lacks: Vec<_> = can.iter().filter(|(can, _)| !can).map(|(_, what)| *what).collect();
            match lacks.is_empty() {
                true => "yes".to_string(),
                false => format!("yes, but disks can't {}", lacks.join(", ")),
            }
        }
        Err(error) => format!("no: {error}"),
    };
    format!("front ends here: nbd: yes; ublk: {ublk}")
}

/// Returns the problems of `devices` (some of `all`) on this machine: their NUMA nodes, and their
/// ranges of faults.
pub(crate) fn impossible(
    devices: &[Device],
    all: &HashMap<&str, &Device>,
    topology: Option<&Topology>,
) -> Vec<Problem> {
    let mut problems =
        topology.map(|topology| missing_nodes(devices, topology)).unwrap_or_default();
    let behind = devices.iter().filter_map(|device| range_behind(device, all));
    problems.extend(behind);
    problems
}

/// Returns the problem of the range of a device that fails requests, if it has one.
fn range_behind(device: &Device, all: &HashMap<&str, &Device>) -> Option<Problem> {
    let Driver::Error(asked) = &device.driver else { return None };
    let (from, size) = asked.from.as_ref().zip(size_of(&asked.over, all))?;
    let why = || behind_the_end(from.value, &asked.over, size);
    let subject = || Subject::Device(Ok(device.name.clone()));
    (from.value >= size).then(|| Problem::new(from.place, subject(), why()))
}

/// Returns the problems of the NUMA nodes that devices are to be near to.
pub(crate) fn missing_nodes(devices: &[Device], topology: &Topology) -> Vec<Problem> {
    let missing = |device: &Device| {
        let at = device.tuning.node.as_ref().filter(|at| topology.node(at.value).is_none())?;
        let known = topology.nodes().iter().map(|known| known.node.to_string());
        let known = known.collect::<Vec<_>>().join(", ");
        let message = format!("this machine has no NUMA node {}", at.value);
        let help = match known.is_empty() {
            true => "leave 'node' out".to_string(),
            false => format!("leave 'node' out, or name one of: {known}"),
        };
        let subject = Subject::Device(Ok(device.name.clone()));
        Some(Problem::new(at.place, subject, message).help(help))
    };
    devices.iter().filter_map(missing).collect()
}

/// Returns the size that a device will have, as far as the manifest and its file tell.
fn size_of(name: &str, devices: &HashMap<&str, &Device>) -> Option<u64> {
    let mut name = name;
    loop {
        match &devices.get(name)?.driver {
            Driver::Memory(plain) | Driver::Null(plain) => return Some(plain.size),
            Driver::Object(object) => return object.size.as_ref().map(|at| at.value),
            Driver::File(FileDriver { size: Some(size), .. }) => return Some(size.value),
            Driver::File(file) => {
                let found = file.path.value.metadata().ok().filter(Metadata::is_file);
                return found.map(|found| found.len());
            }
            Driver::Overlay(Overlay { size: Some(size), .. }) => return Some(size.value),
            Driver::Overlay(overlay) => name = overlay.over.as_ref()?,
            Driver::Checkpoint(checkpoint) => name = &checkpoint.over,
            Driver::Delay(delay) => name = &delay.over,
            Driver::Error(failing) => name = &failing.over,
            _ => return None,
        }
    }
}

/// Refuses the path of a socket that holds another file, or lies in no folder. A socket that is in
/// use may be the running server's.
fn check_socket(path: &Path) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let told = |why: &str| format!("{}: {why}", path.display());
    if !folder.is_dir() {
        return Err(told("its folder does not exist. Create it, or choose another path"));
    }
    match check_unix(path) {
        Ok(()) | Err(BindError::InUse) => Ok(()),
        Err(BindError::NotASocket) => Err(told(
            "this file exists and is not a socket. Remove the file, or choose another path",
        )),
        Err(BindError::System(error)) => Err(told(&error.to_string())),
    }
}

fn check_file(file: &FileDriver) -> Result<(), String> {
    let path = &file.path.value;
    refuse_what_is_no_disk(path)?;
    let meta = match path.metadata() {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && file.create => {
            return may_be_created(path);
        }
        Err(error) => return Err(error.to_string()),
    };
    let writes = if file.read_only { Access::empty() } else { Access::WRITE_OK };
    may(path, Access::READ_OK | writes)?;
    if !meta.is_file() {
        return Ok(());
    }
    match &file.size {
        // A start fills an empty file, as it creates a missing one.
        Some(_) if file.create && meta.len() == 0 => Ok(()),
        Some(asked) if asked.value != meta.len() => Err(other_size(meta.len(), asked.value)),
        _ if meta.len() == 0 => Err(EMPTY.to_string()),
        _ if meta.len() % u64::from(file.block_size) != 0 => {
            Err(bad_size(meta.len(), file.block_size.into()))
        }
        _ => Ok(()),
    }
}

fn check_overlay(path: &Path) -> Result<(), String> {
    refuse_what_is_no_disk(path)?;
    match path.try_exists() {
        Ok(true) => may(path, Access::READ_OK | Access::WRITE_OK),
        Ok(false) => may_be_created(path),
        Err(error) => Err(error.to_string()),
    }
}

fn may_be_created(path: &Path) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    may(folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|why| format!("cannot be created: its folder: {why}"))
}

fn may(path: &Path, how: Access) -> Result<(), String> {
    access(path, how).map_err(|error| std::io::Error::from(error).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::read;

    fn problems(text: &str) -> Vec<String> {
        let read = read(text, Path::new("/"));
        assert_eq!(read.problems, []);
        check(&read.manifest).iter().map(|problem| problem.display("m").to_string()).collect()
    }

    #[test]
    fn an_empty_file_is_as_good_as_a_missing_one_if_create_is_set() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display();
        let device = format!("[[device]]\nname = \"a\"\ndriver = \"file\"\npath = \"{path}\"\n");
        assert_eq!(problems(&format!("{device}size = \"1M\"\ncreate = true\n")), [""; 0]);
        let found = problems(&device);
        assert!(found.len() == 1 && found[0].contains("the file is empty"), "{found:?}");
    }

    #[test]
    fn a_socket_whose_path_or_owner_is_wrong_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let found = |socket: &str| {
            let ram = "[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n";
            problems(&format!("{ram}[[export]]\ndevice = \"a\"\nvhost_user = {socket}\n"))
        };
        let plain = format!("\"{}\"", path.display());
        assert_eq!(found(&plain), [""; 0]);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(found(&plain), [""; 0], "a running server may have it");
        drop(listener);
        assert_eq!(found(&plain), [""; 0], "a leftover is replaced");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        let why = found(&plain);
        assert!(why.len() == 1 && why[0].contains("s: this file exists and is not a socket"));
        let why = found("\"/nowhere/at/all\"");
        assert!(why.len() == 1 && why[0].contains("/nowhere/at/all: its folder does not exist"));
        let folder = folder.path().display();
        let why = found(&format!("{{ path = \"{folder}/t\", owner = \"no such user\" }}"));
        assert!(why.len() == 1 && why[0].contains("vhost_user: owner: this machine has no user"));
    }

    #[test]
    fn the_owner_of_a_disk_that_this_machine_lacks_is_told() {
        let ram = "[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n";
        let disk = "ublk = { owner = \"no such user\" }";
        let why = problems(&format!("{ram}[[export]]\ndevice = \"a\"\n{disk}\n"));
        let says = "ublk: owner: this machine has no user 'no such user'";
        assert!(why.iter().any(|why| why.contains(says)), "{why:?}");
    }

    #[test]
    fn a_node_that_is_not_there_and_a_range_behind_the_end_are_told() {
        let ram = "[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n";
        let found = problems(&format!("{ram}node = 99\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("m:5:8: device 'a': this machine has no NUMA node 99"));
        let over = |name: &str, driver: &str, over: &str, keys: &str| {
            let over = format!("over = [\"{over}\"]\n{keys}");
            format!("[[device]]\nname = \"{name}\"\ndriver = \"{driver}\"\n{over}\n")
        };
        let slow = over("slow", "delay", "a", "read_delay = \"1ms\"");
        for (from, is_behind) in [("1023K", false), ("1M", true), ("1G", true)] {
            let failing = over("e", "error", "slow", &format!("from = \"{from}\""));
            let found = problems(&[ram, &slow, &failing].concat());
            assert_eq!(found.len(), usize::from(is_behind), "{from}: {found:?}");
            let says = "device 'e': 'from' must be less than 1048576, the size of 'slow'";
            assert!(found.iter().all(|told| told.contains(says)), "{found:?}");
        }
    }
}
