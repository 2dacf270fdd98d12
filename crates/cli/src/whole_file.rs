//! Files that are replaced in one step: a reader finds the old file or the new one. It never finds
//! a part, even if the process is killed.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

/// Mode of a new file, before the umask. Files aren't for their owner alone.
const MODE: u32 = 0o666;

/// Fails, with the reason, if the file could not be written later.
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

/// Writes the file, or returns the reason why that failed.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    let said = |error: io::Error| error.to_string();
    if let Ok(mut new) = nameless(path) {
        new.write_all(text.as_bytes()).map_err(said)?;
        let link = |name: &Path| give_name(&new, name);
        match link(path) {
            Ok(()) => return Ok(()),
            // The old file is replaced: no call does that without another name.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let linked = builder().make_in(folder(path), link);
                let linked = linked.map_err(|error| error.kind().to_string())?;
                return linked.persist(path).map_err(|error| said(error.error));
            }
            // Without `/proc`, the file can't be given a name.
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

/// Creates a file without a name in that folder: it vanishes with the process.
fn nameless(path: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder(path), flags, Mode::from_raw_mode(MODE))?.into())
}

fn give_name(file: &File, name: &Path) -> io::Result<()> {
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(CWD, open, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
}

/// Creates a file with a name, for file systems without nameless files.
fn named(path: &Path) -> Result<tempfile::NamedTempFile, String> {
    // The error's own words would name a file that the user doesn't know.
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
