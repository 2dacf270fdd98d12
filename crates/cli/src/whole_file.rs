//! Files that are written in one piece: a reader finds the old one or the new one, and never a
//! part of it, not even where the process is killed on the way.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

/// As any new file, and not for the owner alone; the umask takes away what it does.
const MODE: u32 = 0o666;

/// Fails, with the reason, where the file could not be written later.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    if path.is_dir() {
        return Err("it is a folder".to_string());
    }
    if !folder(path).is_dir() {
        return Err("its folder does not exist".to_string());
    }
    match nameless(path) {
        Ok(_) => Ok(()),
        Err(_) => named(path).map(drop),
    }
}

/// Writes the file, or says why not.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    let said = |error: io::Error| error.to_string();
    if let Ok(mut new) = nameless(path) {
        new.write_all(text.as_bytes()).map_err(said)?;
        let link = |name: &Path| give_name(&new, name);
        match link(path) {
            Ok(()) => return Ok(()),
            // The old one is replaced: there is no call that does it without another name.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let linked = builder().make_in(folder(path), link);
                let linked = linked.map_err(|error| error.kind().to_string())?;
                return linked.persist(path).map_err(|error| said(error.error));
            }
            // Without `/proc` it can't be given one.
            Err(_) => {}
        }
    }
    let mut new = named(path)?;
    new.write_all(text.as_bytes()).map_err(said)?;
    new.persist(path).map(drop).map_err(|error| said(error.error))
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A file in that folder that has no name: it is gone with the process.
fn nameless(path: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder(path), flags, Mode::from_raw_mode(MODE))?.into())
}

fn give_name(file: &File, name: &Path) -> io::Result<()> {
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(CWD, open, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
}

/// Where there are no files without a name.
fn named(path: &Path) -> Result<tempfile::NamedTempFile, String> {
    // The error's own words would name a file that nobody asked for.
    builder()
        .tempfile_in(folder(path))
        .map_err(|error| format!("cannot create a file in its folder: {}", error.kind()))
}

fn builder() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".corewise-").permissions(std::fs::Permissions::from_mode(MODE));
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_made_and_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.svg");
        check(&path).unwrap();
        for text in ["one", "another"] {
            write(&path, text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            check(&path).unwrap();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        }
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        assert_eq!(mode(&path), mode(&plain), "as any other new file");
    }

    #[test]
    fn a_folder_that_takes_no_files_is_told_and_no_other_file_is_named() {
        for path in ["/proc/x.svg", "/sys/x.svg"] {
            for failed in [check(Path::new(path)), write(Path::new(path), "x")] {
                let why = failed.unwrap_err();
                assert!(why.starts_with("cannot create a file in its folder: "), "{why}");
                assert!(!why.contains(".corewise"), "{why}");
            }
        }
    }
}
