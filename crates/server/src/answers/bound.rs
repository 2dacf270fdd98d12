//! The listening control socket, at the user's path or the default one.

use std::io::{self, ErrorKind};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::cleanup::Cleanup;
use crate::control::place::{self, SocketState};
use crate::listen;

/// Limit of attempts to create a socket in a folder that other servers remove when it is empty.
const TRIES: usize = 16;

/// A listening socket that no thread answers yet.
#[derive(Debug)]
pub(crate) struct BoundControl {
    pub(super) listener: UnixListener,
    pub(super) path: PathBuf,
}

/// Binds the socket at the user's path, and leaves a link to it in the default folder.
pub(crate) fn bind_at(path: &Path, cleanup: &Cleanup) -> Result<BoundControl, String> {
    let listener = listen::unix_for_owner(path, cleanup)?;
    for folder in place::folders() {
        // If this fails, clients can't find the server by its id, but can still name the path.
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
    Ok(BoundControl { listener, path: path.to_path_buf() })
}

/// Binds the socket in the default folder.
pub(crate) fn bind(cleanup: &Cleanup) -> Result<BoundControl, String> {
    let mut why = "found no folder for it".to_string();
    for folder in place::folders() {
        match bind_in(&folder, cleanup) {
            Ok(bound) => return Ok(bound),
            Err(error) => why = format!("{}: {error}", folder.display()),
        }
    }
    Err(why)
}

fn bind_in(folder: &Path, cleanup: &Cleanup) -> io::Result<BoundControl> {
    let pid = std::process::id();
    let path = folder.join(place::name(pid));
    let new = folder.join(format!(".{pid}.new"));
    let listener = in_folder(folder, cleanup, || {
        remove_leftover(&new)?;
        let listener = UnixListener::bind(&new)?;
        // The socket listens before it gets its name: other servers remove sockets on which no
        // process listens.
        listen::only_for_owner(&new)
            .and_then(|()| remove_leftover(&path))
            .and_then(|()| std::fs::rename(&new, &path))
            .inspect_err(|_| drop(std::fs::remove_file(&new)))?;
        Ok(listener)
    })?;
    cleanup.socket(&path)?;
    Ok(BoundControl { listener, path })
}

/// Makes something in a folder. The folder is created first, and removed at the end if it is empty
/// by then.
fn in_folder<T>(
    folder: &Path,
    cleanup: &Cleanup,
    mut make: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    // Registered before its content, since the newest entries are removed first.
    cleanup.folder_if_empty(folder);
    let mut tries = 0;
    loop {
        place::make(folder)?;
        match make() {
            // Another server that ended has removed the folder meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound && tries < TRIES => tries += 1,
            Err(error) => {
                let _ = std::fs::remove_dir(folder);
                return Err(error);
            }
            Ok(made) => return Ok(made),
        }
    }
}

/// Removes the files of a killed process with this id. If a process listens on the socket, it is
/// one with this id in another PID namespace.
fn remove_leftover(path: &Path) -> io::Result<()> {
    match place::probe(path) {
        SocketState::Stale => std::fs::remove_file(path),
        SocketState::Live(_) | SocketState::Busy => {
            Err(io::Error::other("another process with this id owns the socket there"))
        }
        SocketState::Other(_) => Ok(()),
    }
}
