//! The errors of this crate.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use corewise_export::BindError;

/// The reason why a disk can't be served.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The device can't be a virtio disk, or an option is out of its range: the text says why.
    Unfit(String),
    /// Another process listens on this socket.
    SocketInUse(PathBuf),
    /// The path of a socket has a file that is none.
    NotASocket(PathBuf),
    /// A socket can't be bound.
    Listen {
        /// The path of the socket.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The system lacks a resource, such as a thread or a descriptor.
    Resource {
        /// The resource, for a message.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The server is shutting down.
    ShuttingDown,
}

impl Error {
    /// Makes the error of a socket that can't be bound.
    pub(crate) fn bind(path: &Path, error: BindError) -> Error {
        let path = path.to_owned();
        match error {
            BindError::InUse => Error::SocketInUse(path),
            BindError::NotASocket => Error::NotASocket(path),
            BindError::System(source) => Error::Listen { path, source },
        }
    }

    /// Returns a function that makes the error of a missing resource.
    pub(crate) fn resource<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Error {
        move |source| Error::Resource { what, source: source.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unfit(why) => f.write_str(why),
            Error::SocketInUse(path) => write!(
                f,
                "{}: another server listens on this socket. Stop that server, or choose another path",
                path.display()
            ),
            Error::NotASocket(path) => write!(
                f,
                "{}: this file exists and is not a socket. Remove the file, or choose another path",
                path.display()
            ),
            Error::Listen { path, source } => {
                write!(f, "cannot listen on {}: {source}", path.display())
            }
            Error::Resource { what, source } => {
                write!(f, "cannot get {what} from the system: {source}")
            }
            Error::ShuttingDown => f.write_str("the server is shutting down and takes no disk"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Listen { source, .. } | Error::Resource { source, .. } => Some(source),
            _ => None,
        }
    }
}
