//! The paths of control sockets: in a folder of the user's own, one a process, named by its id.
//!
//! Servers with a socket elsewhere leave a symbolic link there, so that clients find them all the
//! same.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::manifest::too_long;

const EXTENSION: &str = "sock";

/// The folder of sockets if the path of the temporary folder is too long for them.
pub const SHORT: &str = "/tmp";

/// Returns the folders in which a server puts its socket, and clients look for it. They are
/// `corewise` in the runtime folder, and `corewise-UID` in the temporary one. There are two because
/// server and client may have been started with different environments. The paths are absolute, and
/// need not exist. A path that is too long for a socket is left out.
pub fn folders() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // After `sudo`, the variable may still name another user's folder.
    let runtime = runtime.filter(|path| path.is_absolute() && own(path).is_ok());
    let within = |folder: &Path| folder.join(format!("corewise-{}", uid()));
    let fits = |folder: &PathBuf| too_long(&folder.join(name(u32::MAX))).is_none();
    let temporary = Some(within(&std::env::temp_dir())).filter(fits);
    let temporary = temporary.unwrap_or_else(|| within(Path::new(SHORT)));
    let runtime = runtime.map(|path| path.join("corewise")).filter(fits);
    runtime.into_iter().chain([temporary]).collect()
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Fails unless `path` is a folder, and no link to one, that belongs to this user.
fn own(path: &Path) -> io::Result<()> {
    let meta = path.symlink_metadata()?;
    if !meta.is_dir() {
        return Err(io::Error::other("the path leads to something else than a folder"));
    }
    if meta.uid() != uid() {
        return Err(io::Error::other("the folder belongs to another user"));
    }
    Ok(())
}

/// Creates the folder if it is missing, for this user alone. A folder that another user has put
/// there is refused.
pub(crate) fn make(folder: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    own(folder)?;
    if folder.metadata()?.mode() & 0o077 != 0 {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// The state of a control socket's path.
#[derive(Debug)]
pub enum SocketState {
    /// A process listens.
    Live(UnixStream),
    /// A process listens, but its backlog is full.
    Busy,
    /// A killed process has left the socket.
    Stale,
    /// The path has nothing, or something else, or an error hides it.
    Other(io::Error),
}

/// Checks whether a process listens there. Doesn't wait for a server that hangs.
pub fn probe(path: &Path) -> SocketState {
    match connect(path) {
        Ok(stream) => SocketState::Live(stream),
        Err(Errno::AGAIN) => SocketState::Busy,
        // A connection to a file that is no socket is refused, too.
        Err(Errno::CONNREFUSED) if path.metadata().is_ok_and(|m| m.file_type().is_socket()) => {
            SocketState::Stale
        }
        // A link to a socket that is gone.
        Err(Errno::NOENT) if path.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) => {
            SocketState::Stale
        }
        Err(error) => SocketState::Other(error.into()),
    }
}

fn connect(path: &Path) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(UnixStream::from(socket))
}

/// Returns the sockets of all servers of this user, by process id. Leftovers of killed servers are
/// removed. A server that is about to come up isn't found yet: its socket gets the name when it
/// listens.
pub fn servers(folders: &[PathBuf]) -> Vec<(u32, PathBuf)> {
    let mut found = Vec::new();
    for folder in folders.iter().filter(|folder| own(folder).is_ok()) {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let Some(pid) = pid_of(&path) else { continue };
            match probe(&path) {
                // The link of a killed server, but another server has its socket there now.
                _ if path.is_symlink() && !is_alive(pid) => drop(std::fs::remove_file(&path)),
                SocketState::Live(_) | SocketState::Busy => found.push((pid, path)),
                SocketState::Stale => drop(std::fs::remove_file(&path)),
                SocketState::Other(_) => {}
            }
        }
        // The server would have done the same. The folder stays while another socket is in it.
        let _ = std::fs::remove_dir(folder);
    }
    found.sort();
    found.dedup_by_key(|(pid, _)| *pid);
    found
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| {
        let asked = rustix::process::test_kill_process(pid);
        asked.is_ok() || asked == Err(Errno::PERM)
    })
}

/// Returns the name of the socket of process `pid`.
pub(crate) fn name(pid: u32) -> String {
    format!("{pid}.{EXTENSION}")
}

fn pid_of(path: &Path) -> Option<u32> {
    if path.extension() != Some(OsStr::new(EXTENSION)) {
        return None;
    }
    path.file_stem()?.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn live_servers_are_found_and_leftovers_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let _live = UnixListener::bind(path("17.sock")).unwrap();
        drop(UnixListener::bind(path("18.sock")).unwrap());
        std::os::unix::fs::symlink(path("gone"), path("19.sock")).unwrap();
        let _elsewhere = UnixListener::bind(path("elsewhere")).unwrap();
        let me = std::process::id();
        std::os::unix::fs::symlink(path("elsewhere"), path(&name(me))).unwrap();
        std::os::unix::fs::symlink(path("elsewhere"), path("4000000000.sock")).unwrap();
        // Names that no server gives are left alone.
        drop(UnixListener::bind(path(".20.new")).unwrap());
        std::fs::write(path("notes.sock"), "x").unwrap();
        std::fs::write(path("21.sock"), "x").unwrap();
        let found = servers(&[folder.path().to_path_buf(), path("missing")]);
        assert_eq!(found, [(17, path("17.sock")), (me, path(&name(me)))]);
        assert!(path("4000000000.sock").symlink_metadata().is_err(), "its process is gone");
        assert!(!path("18.sock").exists() && path("19.sock").symlink_metadata().is_err());
        assert!(path(".20.new").exists() && path("notes.sock").exists());
        assert!(path("21.sock").exists(), "a file that is no socket");
    }

    #[test]
    fn a_folder_is_made_for_its_owner_alone_and_a_strange_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("made");
        make(&made).unwrap();
        assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o755)).unwrap();
        make(&made).unwrap();
        assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o700);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&made, &link).unwrap();
        assert!(make(&link).is_err(), "a link that somebody may have put there");
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(make(&folder.path().join("file")).is_err());
        assert!(servers(&[link]).is_empty());
    }

    #[test]
    fn an_empty_folder_goes_with_its_last_socket() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        make(&inner).unwrap();
        drop(UnixListener::bind(inner.join("1.sock")).unwrap());
        assert!(servers(std::slice::from_ref(&inner)).is_empty());
        assert!(!inner.exists());
    }
}
