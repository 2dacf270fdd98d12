//! Binding the sockets of a server.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use corewise::nbd::{Error, Listener};

use crate::cleanup::Cleanup;

/// Binds a Unix socket and has it removed at the end, whatever the end is. A socket file on which
/// no process listens is replaced. A socket in use, or a file that is no socket, is not touched.
pub(crate) fn unix(path: &Path, cleanup: &Cleanup) -> Result<Listener, String> {
    let listener = Listener::unix(path).map_err(|error| words(error, path.display()))?;
    cleanup.socket(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(listener)
}

/// Binds a socket like [`unix`], for this user alone, and for another use than NBD clients.
pub(crate) fn unix_for_owner(path: &Path, cleanup: &Cleanup) -> Result<UnixListener, String> {
    let listener = unix(path, cleanup)?;
    // From now on `cleanup` alone removes the socket at the end.
    let listener = UnixListener::from(OwnedFd::from(listener));
    only_for_owner(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(listener)
}

/// Denies access to all users except the owner and root.
pub(crate) fn only_for_owner(path: &Path) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}

/// Binds a TCP address, `HOST:PORT`.
pub(crate) fn tcp(address: &str) -> Result<Listener, String> {
    Listener::tcp(host_and_port(address)).map_err(|error| words(error, address))
}

/// Splits `HOST:PORT` for the lookup. The system knows the zone of a link-local address
/// (`fe80::1%eth0`) by its name, and no brackets.
pub(crate) fn host_and_port(address: &str) -> (&str, u16) {
    // The manifest has checked both.
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (host, port.parse().unwrap_or(0))
}

fn words(error: Error, address: impl std::fmt::Display) -> String {
    use std::io::ErrorKind;
    match error {
        Error::SocketInUse(_) => format!(
            "{address}: another server listens on this socket. Stop \
                                          that server, or choose another path"
        ),
        Error::NotASocket(_) => format!(
            "{address}: this file exists and is not a socket. Remove \
                                         the file, or choose another path"
        ),
        Error::Listen { source, .. } => match source.kind() {
            ErrorKind::AddrInUse => format!(
                "{address}: another program listens on this address. \
                                             Stop that program, or choose another port"
            ),
            ErrorKind::AddrNotAvailable => format!("{address}: this machine has no such address"),
            ErrorKind::NotFound => format!("{address}: its folder does not exist"),
            _ => format!("{address}: {source}"),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_dead_socket_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = unix(&path, &Cleanup::default()).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(listener);
        drop(UnixListener::bind(&path).unwrap());
        let cleanup = Cleanup::default();
        let listener = unix_for_owner(&path, &cleanup).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        UnixStream::connect(&path).unwrap();
        assert!(path.exists() && cleanup.run().is_empty() && !path.exists());
        drop(listener);
    }

    #[test]
    fn a_live_socket_and_a_file_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, file) = (folder.path().join("s"), folder.path().join("f"));
        let theirs = UnixListener::bind(&socket).unwrap();
        std::fs::write(&file, "letters").unwrap();
        let cleanup = Cleanup::default();
        let reason = unix(&socket, &cleanup).unwrap_err();
        assert!(reason.contains("another server listens"), "{reason}");
        assert!(reason.contains(&socket.display().to_string()), "{reason}");
        for reason in
            [unix(&file, &cleanup).unwrap_err(), unix_for_owner(&file, &cleanup).unwrap_err()]
        {
            assert!(reason.contains("not a socket"), "{reason}");
        }
        assert!(cleanup.run().is_empty());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "letters");
        assert!(socket.exists());
        drop(theirs);
    }

    #[test]
    fn addresses_are_taken_apart() {
        for (address, found) in [
            ("localhost:1", ("localhost", 1)),
            ("[::1]:10809", ("::1", 10809)),
            ("[fe80::1%eth0]:0", ("fe80::1%eth0", 0)),
        ] {
            assert_eq!(host_and_port(address), found);
        }
        // The machine may lack the address, or IPv6, but it understands the name of the interface.
        let reason = tcp("[fe80::1%lo]:0").err().unwrap_or_default();
        assert!(!reason.contains("lookup"), "{reason}");
    }

    #[test]
    fn missing_folders_and_addresses_are_reported() {
        let reason = unix(Path::new("/nowhere/at/all"), &Cleanup::default()).unwrap_err();
        assert!(reason.contains("/nowhere/at/all: its folder does not exist"), "{reason}");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let reason = tcp(&taken.local_addr().unwrap().to_string()).unwrap_err();
        assert!(reason.contains("another program listens"), "{reason}");
        assert!(tcp("192.0.2.1:0").unwrap_err().contains("no such address"));
    }
}
