//! A Unix socket that listens, and the file that was made for it.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, Uid, chmodat, chownat, fchmod, flock, open,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{getegid, geteuid};

/// The users of this machine that may connect to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    /// Owner of the file, by number. `None` is the process's user.
    pub owner: Option<u32>,
    /// Group of the file, by number. `None` is the process's group, or that of the folder.
    pub group: Option<u32>,
    /// Permissions of the file. A user who may write to it may connect.
    pub mode: u32,
}

/// The reason why a socket can't be bound. Nothing was changed then.
#[derive(Debug)]
pub enum BindError {
    /// Another process listens on this socket.
    InUse,
    /// The path has a file that is no socket.
    NotASocket,
    /// Another reason.
    System(io::Error),
}

/// Makes the error of a system call.
fn failed(error: impl Into<io::Error>) -> BindError {
    let error = error.into();
    match error.kind() {
        ErrorKind::AddrInUse => BindError::InUse,
        _ => BindError::System(error),
    }
}

/// The file of a socket. Dropping it removes the file, unless another process has put its own there
/// meanwhile.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    /// Gives the file another access. Until that is done, nobody has more access than before and
    /// after. Clients that are connected stay. `None` for the owner or the group means what it
    /// means when the socket is made.
    ///
    /// # Errors
    /// If the file isn't in its place any more, or the system refuses.
    pub fn set_access(&self, access: &SocketAccess) -> io::Result<()> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(open(&self.path, flags, Mode::empty())?);
        let has = file.metadata()?;
        if (has.dev(), has.ino()) != self.identity {
            return Err(io::Error::other("another file is in the socket's place"));
        }
        let folder = self.path.parent().map(std::fs::metadata).transpose()?;
        let folder = folder.filter(|folder| folder.mode() & Mode::SGID.as_raw_mode() != 0);
        let group = || folder.map_or_else(|| getegid().as_raw(), |folder| folder.gid());
        let owner = access.owner.unwrap_or_else(|| geteuid().as_raw());
        let group = access.group.unwrap_or_else(group);
        let set = |mode| {
            // A file that is open by its path alone has no other name for this call.
            let name = format!("/proc/self/fd/{}", file.as_raw_fd());
            chmodat(CWD, name, Mode::from_raw_mode(mode), AtFlags::empty())
        };
        set(has.mode() & access.mode)?;
        if (owner, group) != (has.uid(), has.gid()) {
            let (owner, group) = (Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)));
            chownat(&file, "", owner, group, AtFlags::EMPTY_PATH).map_err(not_given)?;
        }
        set(access.mode)?;
        Ok(())
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()))
}

/// Binds a Unix socket and listens, with as many clients in its queue as the system allows. A
/// socket file on which no process answers is replaced. `access` is set before the first client
/// can connect; without it, the umask decides.
///
/// Doesn't wait for a process that may listen there.
///
/// # Errors
/// See [`BindError`].
pub fn listen_unix(
    path: &Path,
    access: Option<&SocketAccess>,
) -> Result<(UnixListener, SocketFile), BindError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => make(path, access),
        Err(error) => Err(failed(error)),
        Ok(meta) if !meta.file_type().is_socket() => Err(BindError::NotASocket),
        Ok(_) => take_over(path, access),
    }
}

/// Returns the reason why [`listen_unix`] would refuse this path now, if there is one. Changes
/// nothing.
///
/// # Errors
/// See [`BindError`].
pub fn check_unix(path: &Path) -> Result<(), BindError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(meta) if !meta.file_type().is_socket() => Err(BindError::NotASocket),
        Ok(_) => answers(path).map(|_| ()),
    }
}

/// Makes the socket at a path that has no file.
fn make(
    path: &Path,
    access: Option<&SocketAccess>,
) -> Result<(UnixListener, SocketFile), BindError> {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
    if let Some(access) = access {
        // The file gets the permissions that the socket has, less the umask.
        fchmod(&socket, Mode::from_raw_mode(access.mode)).map_err(failed)?;
    }
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    bind(&socket, &address).map_err(failed)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path).map_err(failed)? };
    if let Some(access) = access {
        set_access(path, access).map_err(failed)?;
    }
    // Until here every attempt to connect is refused.
    listen(&socket, i32::MAX).map_err(failed)?;
    Ok((socket.into(), file))
}

/// Sets the access to a socket that doesn't listen yet.
fn set_access(path: &Path, access: &SocketAccess) -> io::Result<()> {
    let SocketAccess { owner, group, mode } = *access;
    if owner.is_some() || group.is_some() {
        let (owner, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
        chownat(CWD, path, owner, group, AtFlags::SYMLINK_NOFOLLOW).map_err(not_given)?;
    }
    // The umask may have taken bits away.
    let lacks = std::fs::symlink_metadata(path)?.mode() & 0o777 != mode;
    if lacks {
        chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())?;
    }
    Ok(())
}

fn not_given(error: Errno) -> io::Error {
    let error = io::Error::from(error);
    let why = format!(
        "cannot give it to its owner or group: {error}. Start the server as root, or name a group \
         that the server's user is in"
    );
    io::Error::new(error.kind(), why)
}

/// Makes the socket at a path that has one, if no process answers there.
///
/// Two servers that find the same dead socket must not remove each other's new one. The server that
/// has the folder's lock checks, removes and binds. A server that finds no socket at all just
/// binds, and if two do, one of them fails with "in use".
fn take_over(
    path: &Path,
    access: Option<&SocketAccess>,
) -> Result<(UnixListener, SocketFile), BindError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = File::open(folder).map_err(failed)?;
    // If the file system has no locks, the server goes on without one.
    if flock(&folder, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        let busy = "another server is starting in this folder; try again";
        return Err(failed(io::Error::new(ErrorKind::WouldBlock, busy)));
    }
    if answers(path)? == SocketState::Dead {
        std::fs::remove_file(path).map_err(failed)?;
    }
    make(path, access)
}

/// The state of a socket file on which no process answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketState {
    /// The file is a leftover.
    Dead,
    /// The file went away since it was found.
    Gone,
}

/// Connects and closes. It doesn't wait: otherwise a server that hangs would make its successor
/// hang too.
fn answers(path: &Path) -> Result<SocketState, BindError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    match connect(&socket, &address) {
        Err(Errno::CONNREFUSED) => Ok(SocketState::Dead),
        Err(Errno::NOENT) => Ok(SocketState::Gone),
        // AGAIN: a server listens there, and is behind with accepting.
        Ok(()) | Err(Errno::AGAIN) => Err(BindError::InUse),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn bound(path: &Path) -> Result<(UnixListener, SocketFile), BindError> {
        listen_unix(path, None)
    }

    fn leftover(folder: &tempfile::TempDir) -> PathBuf {
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a plain bind leaves its file behind");
        path
    }

    #[test]
    fn a_leftover_in_a_folder_where_another_server_starts_is_left_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = leftover(&folder);
        let lock = File::open(folder.path()).unwrap();
        lock.lock().unwrap();
        let BindError::System(error) = bound(&path).unwrap_err() else { panic!("not busy") };
        assert!(error.to_string().contains("try again"), "{error}");
        assert!(path.exists(), "it is not ours to remove");
        drop(lock);
        bound(&path).unwrap();
    }

    #[test]
    fn of_many_servers_that_find_a_leftover_one_gets_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = leftover(&folder);
        let got: Vec<_> = std::thread::scope(|scope| {
            let servers: Vec<_> = (0..8).map(|_| scope.spawn(|| bound(&path))).collect();
            servers.into_iter().map(|server| server.join().unwrap()).collect()
        });
        assert_eq!(got.iter().filter(|listener| listener.is_ok()).count(), 1);
        UnixStream::connect(&path).expect("the one who got it can be reached");
    }

    #[test]
    fn a_leftover_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = leftover(&folder);
        assert!(check_unix(&path).is_ok() && path.exists());
        let first = bound(&path).unwrap();
        assert!(matches!(bound(&path), Err(BindError::InUse)));
        assert!(matches!(check_unix(&path), Err(BindError::InUse)));
        drop(first);
        assert!(!path.exists(), "our own file is removed");
        assert!(check_unix(&path).is_ok() && !path.exists());
    }

    #[test]
    fn a_server_that_hangs_is_left_alone_and_hangs_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let of = |flags| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let (listener, address) = (of(SocketFlags::CLOEXEC), SocketAddrUnix::new(&path).unwrap());
        bind(&listener, &address).unwrap();
        listen(&listener, 0).unwrap();
        // Clients that the listener never accepts, until no more fit.
        let mut waiting = Vec::new();
        loop {
            let client = of(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
            match connect(&client, &address) {
                Ok(()) => waiting.push(client),
                Err(error) => break assert_eq!(error, Errno::AGAIN),
            }
        }
        assert!(matches!(bound(&path), Err(BindError::InUse)));
        assert!(path.exists());
    }

    #[test]
    fn a_socket_that_listens_gets_another_access_and_no_file_in_its_place_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let access = |group, mode| SocketAccess { owner: None, group, mode };
        let (_listener, file) = listen_unix(&path, Some(&access(None, 0o600))).unwrap();
        let has = || {
            let meta = path.symlink_metadata().unwrap();
            (meta.gid(), meta.mode() & 0o777)
        };
        let (usual, _) = has();
        file.set_access(&access(None, 0o660)).unwrap();
        assert_eq!(has(), (usual, 0o660));
        if geteuid().is_root() {
            file.set_access(&access(Some(7), 0o640)).unwrap();
            assert_eq!(has(), (7, 0o640));
            file.set_access(&access(None, 0o600)).unwrap();
            assert_eq!(has(), (usual, 0o600));
        }
        let other = folder.path().join("other");
        std::fs::write(&other, "").unwrap();
        let before = other.metadata().unwrap().mode();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert!(file.set_access(&access(None, 0o660)).is_err());
        assert_eq!(other.metadata().unwrap().mode(), before);
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(bound(&path), Err(BindError::NotASocket)));
        assert!(matches!(check_unix(&path), Err(BindError::NotASocket)));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn a_socket_that_replaced_ours_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let ours = bound(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // Held until the end, so that the two can't share an inode number.
        let _theirs = UnixListener::bind(&path).unwrap();
        let before = identity(&path).unwrap();
        drop(ours);
        assert_eq!(identity(&path).ok(), Some(before));
    }

    #[test]
    fn the_access_to_a_socket_is_what_was_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let found = |mode, group| {
            let path = folder.path().join("s");
            let access = SocketAccess { owner: None, group, mode };
            let _socket = listen_unix(&path, Some(&access)).unwrap();
            let meta = path.metadata().unwrap();
            (meta.mode() & 0o7777, meta.gid())
        };
        let group = rustix::process::getgid().as_raw();
        // Most umasks take the group's right to write away.
        for mode in [0o600, 0o660, 0o400, 0o666] {
            assert_eq!(found(mode, None), (mode, group));
        }
        assert_eq!(found(0o660, Some(group)), (0o660, group));
        if rustix::process::geteuid().is_root() {
            assert_eq!(found(0o660, Some(77)), (0o660, 77));
        }
    }
}
