//! Whether a manifest would come up, as far as a look at its files tells.

use std::path::Path;

use rustix::fs::{Access, access};

use crate::drivers::file::{other_size, refuse_what_is_no_disk};
use crate::manifest::{Driver, FileDriver, Manifest, Problem, Subject};
use crate::{room, store_check, tls};

/// Returns what is wrong with the files that the manifest names. Nothing is opened but the files of
/// certificates and keys.
pub fn check(manifest: &Manifest) -> Vec<Problem> {
    let mut problems = Vec::new();
    for device in &manifest.devices {
        let found = match &device.driver {
            Driver::File(file) => {
                let why = look(file).map_err(|why| format!("{}: {why}", file.path.value.display()));
                why.err().map(|why| (file.path.place, why)).into_iter().collect()
            }
            Driver::Object(asked) => store_check::look(asked),
            _ => Vec::new(),
        };
        let subject = || Subject::Device(Ok(device.name.clone()));
        problems.extend(found.into_iter().map(|(at, why)| Problem::new(at, subject(), why)));
    }
    let server = &manifest.server;
    let options = room::of_clients(server, room::usual_memory());
    problems.extend(tls::server(options, server.tls()).err());
    problems
}

fn look(file: &FileDriver) -> Result<(), String> {
    let path = &file.path.value;
    refuse_what_is_no_disk(path)?;
    let meta = match path.metadata() {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && file.create => {
            let folder = path.parent().unwrap_or(Path::new("/"));
            return may(folder, Access::WRITE_OK | Access::EXEC_OK)
                .map_err(|why| format!("cannot be created: its folder: {why}"));
        }
        Err(error) => return Err(error.to_string()),
    };
    let writes = if file.read_only { Access::empty() } else { Access::WRITE_OK };
    may(path, Access::READ_OK | writes)?;
    if !meta.is_file() {
        return Ok(());
    }
    match &file.size {
        Some(asked) if asked.value != meta.len() => Err(other_size(meta.len(), asked.value)),
        _ if meta.len() == 0 => Err("it is empty".to_string()),
        _ if meta.len() % u64::from(file.block_size) != 0 => {
            let (size, block) = (meta.len(), file.block_size);
            Err(format!("its size, {size}, is not a multiple of its block size {block}"))
        }
        _ => Ok(()),
    }
}

fn may(path: &Path, how: Access) -> Result<(), String> {
    access(path, how).map_err(|error| std::io::Error::from(error).to_string())
}
