//! Where the control socket is: at the place that the user wants, or the usual one.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::cleanup::Cleanup;
use crate::control::place::{self, SocketState};
use crate::listen;

/// Tries to make a socket in a folder that others remove when it is empty.
const TRIES: usize = 16;

/// A socket that listens, and nobody answers yet.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(super) listener: UnixListener,
    pub(super) path: PathBuf,
}

/// Binds the socket where the user wants it, and leaves a link to it in the usual place.
pub(crate) fn bind_at(path: &Path, cleanup: &Cleanup) -> Result<Bound, String> {
    let listener = listen::unix_for_owner(path, cleanup)?;
    for folder in place::folders() {
        // A client that looks for us there doesn't find us if this fails, and can still say where
        // we are.
        let link = folder.join(place::name(std::process::id()));
        let made = in_folder(&folder, cleanup, || {
            remove_leftover(&link)?;
            std::os::unix::fs::symlink(path, &link)?;
            cleanup.socket(&link)
        });
        if made.is_ok() {
            break;
        }
    }
    Ok(Bound { listener, path: path.to_path_buf() })
}

/// Binds the socket in the usual place.
pub(crate) fn bind(cleanup: &Cleanup) -> Result<Bound, String> {
    let mut why = "found no folder for it".to_string();
    for folder in place::folders() {
        match bind_in(&folder, cleanup) {
            Ok(bound) => return Ok(bound),
            Err(error) => why = format!("{}: {error}", folder.display()),
        }
    }
    Err(why)
}

fn bind_in(folder: &Path, cleanup: &Cleanup) -> io::Result<Bound> {
    let pid = std::process::id();
    let path = folder.join(place::name(pid));
    let new = folder.join(format!(".{pid}.new"));
    let listener = in_folder(folder, cleanup, || {
        remove_leftover(&new)?;
        let listener = UnixListener::bind(&new)?;
        // From its first moment under its name somebody listens on it: others remove sockets on
        // which nobody does.
        listen::only_for_owner(&new)
            .and_then(|()| remove_leftover(&path))
            .and_then(|()| std::fs::rename(&new, &path))
            .inspect_err(|_| drop(std::fs::remove_file(&new)))?;
        Ok(listener)
    })?;
    cleanup.socket(&path)?;
    Ok(Bound { listener, path })
}

/// Makes something in a folder, which is made first, and removed at the end if it is empty by then.
fn in_folder<T>(
    folder: &Path,
    cleanup: &Cleanup,
    mut make: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    // Before what is put into it: the newest things are removed first.
    cleanup.folder_if_empty(folder);
    let mut tries = 0;
    loop {
        place::make(folder)?;
        match make() {
            // Another server that ended has removed it meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound && tries < TRIES => tries += 1,
            Err(error) => {
                let _ = std::fs::remove_dir(folder);
                return Err(error);
            }
            Ok(made) => return Ok(made),
        }
    }
}

/// Removes what a killed process with our id has left. A socket that somebody listens on is that of
/// a process with our id in another PID namespace.
fn remove_leftover(path: &Path) -> io::Result<()> {
    match place::probe(path) {
        SocketState::Stale => std::fs::remove_file(path),
        SocketState::Live(_) | SocketState::Busy => {
            Err(io::Error::other("another process with this id owns the socket there"))
        }
        SocketState::Other(_) => Ok(()),
    }
}
