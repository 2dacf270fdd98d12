//! The errors of this crate.

use std::path::PathBuf;
use std::{fmt, io};

/// The reason why a disk can't be served.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The device can't be a virtio disk, or an option is out of its range: the text says why.
    Unfit(String),
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
    /// Returns a function that makes the error of a missing resource.
    pub(crate) fn resource<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Error {
        move |source| Error::Resource { what, source: source.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unfit(why) => f.write_str(why),
            Error::Listen { path, source } if source.kind() == io::ErrorKind::AddrInUse => write!(
                f,
                "cannot listen on {}: another process serves this socket. Stop it, or choose \
                 another path",
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
