//! Listening sockets: Unix and TCP, bound here or by the caller.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use corewise_export::{BindError, SocketFile, listen_unix};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, sockopt};

use crate::error::Error;

/// Silence of a TCP client before the first keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Number of unanswered probes after which the client counts as gone.
const KEEPALIVE_PROBES: u32 = 6;

/// The address on which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Endpoint {
    /// A Unix socket; `None` if the caller's listener has no path.
    Unix(Option<PathBuf>),
    /// A TCP address, with the port that was really bound.
    Tcp(SocketAddr),
}

impl Endpoint {
    /// Returns the URI by which clients reach `export` here.
    ///
    /// ```
    /// use corewise_nbd::Endpoint;
    /// let here = Endpoint::Unix(Some("/run/disks.sock".into()));
    /// assert_eq!(here.uri("a b"), "nbd+unix:///a%20b?socket=/run/disks.sock");
    /// let tcp = Endpoint::Tcp("127.0.0.1:10810".parse().unwrap());
    /// assert_eq!(tcp.uri("disk"), "nbd://127.0.0.1:10810/disk");
    /// ```
    pub fn uri(&self, export: &str) -> String {
        self.uri_in("nbd", export)
    }

    /// Returns the URI by which clients reach `export` here in TLS. It names no certificates: the
    /// clients choose theirs.
    ///
    /// ```
    /// let tcp = corewise_nbd::Endpoint::Tcp("127.0.0.1:10810".parse().unwrap());
    /// assert_eq!(tcp.tls_uri("disk"), "nbds://127.0.0.1:10810/disk");
    /// ```
    pub fn tls_uri(&self, export: &str) -> String {
        self.uri_in("nbds", export)
    }

    fn uri_in(&self, scheme: &str, export: &str) -> String {
        match self {
            Endpoint::Unix(path) => {
                let path = path.as_deref().unwrap_or(Path::new("")).to_string_lossy();
                format!("{scheme}+unix:///{}?socket={}", escape(export, ""), escape(&path, "/"))
            }
            Endpoint::Tcp(address) => {
                // The zone of a link-local address (RFC 6874).
                let address = address.to_string().replace('%', "%25");
                format!("{scheme}://{address}/{}", escape(export, "/"))
            }
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(Some(path)) => write!(f, "{}", path.display()),
            Endpoint::Unix(None) => f.write_str("(unnamed Unix socket)"),
            Endpoint::Tcp(address) => address.fmt(f),
        }
    }
}

/// Encodes characters that aren't plain in a URI by percent signs.
fn escape(text: &str, plain: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric()
            || b"-._~".contains(&byte)
            || plain.as_bytes().contains(&byte)
        {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
        out
    })
}

/// A listening socket, bound by the caller or by
/// [`Server::listen_unix`](crate::Server::listen_unix) and
/// [`Server::listen_tcp`](crate::Server::listen_tcp).
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    endpoint: Endpoint,
    /// Socket file that this listener made. It is removed when the listener is dropped.
    _file: Option<SocketFile>,
}

impl From<UnixListener> for Listener {
    /// Wraps a listener that the caller bound. Its socket file, if any, stays the caller's.
    fn from(listener: UnixListener) -> Self {
        let path = listener.local_addr().ok().and_then(|a| a.as_pathname().map(Path::to_owned));
        Listener { socket: listener.into(), endpoint: Endpoint::Unix(path), _file: None }
    }
}

impl From<Listener> for OwnedFd {
    /// Takes the socket out of the listener. Its socket file, if any, stays, and belongs to the
    /// caller.
    fn from(listener: Listener) -> Self {
        // The file must not be removed.
        std::mem::forget(listener._file);
        listener.socket
    }
}

impl TryFrom<TcpListener> for Listener {
    type Error = io::Error;

    /// Wraps a listener that the caller bound.
    fn try_from(listener: TcpListener) -> io::Result<Self> {
        let endpoint = Endpoint::Tcp(listener.local_addr()?);
        Ok(Listener { socket: listener.into(), endpoint, _file: None })
    }
}

impl TryFrom<OwnedFd> for Listener {
    type Error = io::Error;

    /// Wraps a listening socket of any kind, such as one that a service manager passed. Its socket
    /// file, if any, stays the caller's.
    ///
    /// # Errors
    /// `InvalidInput` if it isn't a listening stream socket, Unix or TCP. The error names its kind.
    fn try_from(socket: OwnedFd) -> io::Result<Self> {
        let no = |why: &str| Err(io::Error::new(ErrorKind::InvalidInput, why.to_string()));
        match sockopt::socket_type(&socket) {
            Ok(SocketType::STREAM) => {}
            Ok(_) => return no("it is not a stream socket"),
            Err(Errno::NOTSOCK) => return no("it is not a socket"),
            Err(error) => return Err(error.into()),
        }
        if !sockopt::socket_acceptconn(&socket)? {
            return no("it is a socket that does not listen, like the socket of one connection");
        }
        match sockopt::socket_domain(&socket)? {
            AddressFamily::UNIX => Ok(UnixListener::from(socket).into()),
            AddressFamily::INET | AddressFamily::INET6 => TcpListener::from(socket).try_into(),
            _ => no("it is neither a Unix socket nor a TCP socket"),
        }
    }
}

impl Listener {
    /// Binds a Unix socket. A socket file that no process answers on is a leftover, and replaced.
    /// The file is removed when the listener is dropped. Doesn't wait for a server that may listen
    /// there.
    ///
    /// # Errors
    /// `SocketInUse`, `NotASocket`, `Listen`: nothing was changed then.
    pub fn unix(path: impl AsRef<Path>) -> Result<Listener, Error> {
        let path = path.as_ref();
        let (listener, file) = listen_unix(path, None).map_err(|error| match error {
            BindError::InUse => Error::SocketInUse(path.to_owned()),
            BindError::NotASocket => Error::NotASocket(path.to_owned()),
            BindError::System(source) => {
                Error::Listen { address: path.display().to_string(), source }
            }
        })?;
        Ok(Listener {
            socket: listener.into(),
            endpoint: Endpoint::Unix(Some(path.to_owned())),
            _file: Some(file),
        })
    }

    /// Binds a TCP address; port 0 lets the system choose. A host name is resolved, which may
    /// block.
    ///
    /// # Errors
    /// `Listen`.
    pub fn tcp(address: impl ToSocketAddrs + fmt::Debug) -> Result<Listener, Error> {
        // Debug: the caller's own value, which has no other form.
        let failed = |source| Error::Listen { address: format!("{address:?}"), source };
        let listener = TcpListener::bind(&address).map_err(failed)?;
        lengthen_queue(&listener);
        Listener::try_from(listener).map_err(failed)
    }

    /// Returns the address on which it listens.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Accepts one connection. If another process that shares the listener was quicker, returns
    /// `WouldBlock`.
    pub(super) fn accept(&self) -> rustix::io::Result<OwnedFd> {
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC)?;
        if matches!(self.endpoint, Endpoint::Tcp(_)) {
            // Replies are batched here; the kernel's own batching would only add latency.
            sockopt::set_tcp_nodelay(&socket, true)?;
            // The death of a client's machine is noticed within two minutes.
            sockopt::set_socket_keepalive(&socket, true)?;
            sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
            sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
            sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)?;
        }
        Ok(socket)
    }
}

/// Lets as many clients wait for this listener as the system allows (`net.core.somaxconn`). A
/// client that doesn't fit into the queue gets no answer, or is refused.
fn lengthen_queue(listener: impl AsFd) {
    // A listener that listens already keeps its queue if this fails.
    let _ = rustix::net::listen(listener, i32::MAX);
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// Returns the queue's length, by `TCP_INFO` of a listener.
    fn queue(listener: &Listener) -> u32 {
        // SAFETY: any bytes are a `tcp_info`.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        let (fd, level) = (listener.socket.as_raw_fd(), libc::IPPROTO_TCP);
        let (to, room) = ((&raw mut info).cast(), &raw mut len);
        // SAFETY: the socket is open, and `info` has room for the `len` bytes that the call writes.
        assert_eq!(unsafe { libc::getsockopt(fd, level, libc::TCP_INFO, to, room) }, 0);
        info.tcpi_sacked
    }

    #[test]
    fn as_many_clients_may_wait_for_a_listener_as_the_system_allows() {
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let most: u32 = most.trim().parse().unwrap();
        assert_eq!(queue(&Listener::tcp("127.0.0.1:0").unwrap()), most);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listener = Listener::unix(&path).unwrap();
        // One more fits.
        let waiting: Vec<_> = (0..most.min(300)).map(|_| UnixStream::connect(&path)).collect();
        assert!(waiting.iter().all(Result::is_ok), "{waiting:?}");
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::unix(&path), Err(Error::NotASocket(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn what_was_passed_has_to_be_a_stream_socket_that_listens() {
        let no = |socket: OwnedFd| Listener::try_from(socket).unwrap_err().to_string();
        assert!(no(File::open("/dev/null").unwrap().into()).contains("not a socket"));
        let (one, _) = UnixStream::pair().unwrap();
        assert!(no(one.into()).contains("does not listen"));
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(no(datagrams.into()).contains("not a stream socket"));
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let tcp = Listener::try_from(OwnedFd::from(tcp)).unwrap();
        assert_eq!(*tcp.endpoint(), Endpoint::Tcp(address));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let unix = UnixListener::bind(&path).unwrap();
        let unix = Listener::try_from(OwnedFd::from(unix)).unwrap();
        assert_eq!(*unix.endpoint(), Endpoint::Unix(Some(path.clone())));
        drop(unix);
        assert!(path.exists(), "the file is the caller's");
    }

    #[test]
    fn a_missing_directory_is_said_with_the_path() {
        let error = Listener::unix("/nonexistent/dir/s").unwrap_err();
        assert!(error.to_string().contains("/nonexistent/dir/s"), "{error}");
    }
}
