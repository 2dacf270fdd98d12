//! Files that are written in one piece: whoever looks finds the old one or the new one.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Fails, with the reason, where the file could not be written later.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    if path.is_dir() {
        return Err("it is a folder".to_string());
    }
    if !folder(path).is_dir() {
        return Err("its folder does not exist".to_string());
    }
    temporary(path).map(drop)
}

/// Writes the file, or says why not.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    let mut new = temporary(path)?;
    new.write_all(text.as_bytes()).map_err(|error| error.to_string())?;
    new.persist(path).map(drop).map_err(|error| error.error.to_string())
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn temporary(path: &Path) -> Result<tempfile::NamedTempFile, String> {
    // As any new file, and not for the owner alone; the umask takes away what it does.
    let mode = std::fs::Permissions::from_mode(0o666);
    tempfile::Builder::new()
        .prefix(".corewise-")
        .permissions(mode)
        .tempfile_in(folder(path))
        .map_err(|error| error.to_string())
}
