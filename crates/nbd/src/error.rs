//! What can go wrong when a server is set up.

use std::fmt;
use std::io;
use std::path::PathBuf;

use corewise_sync::text;

use crate::export::Export;

/// Why the server could not do what its owner asked. Clients never see these; they get the
/// protocol's errors.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An export of this name exists already. The new one is given back.
    NameTaken(Box<Export>),
    /// There is a default export already. The new one is given back.
    DefaultTaken(Box<Export>),
    /// The device's [`Geometry`](corewise_blockmq::Geometry) has a field out of the range that its
    /// documentation says. The export is given back.
    BadDevice {
        /// It.
        export: Box<Export>,
        /// Which field, and what to do.
        why: String,
    },
    /// There is no export of this name with this device, or it is being removed. The new one is
    /// given back.
    NotReplaced(Box<Export>),
    /// What TLS was to be made of is no good.
    Tls {
        /// Which part of it.
        what: TlsPart,
        /// Why not.
        why: String,
    },
    /// A name or description that the protocol can't carry: longer than 4096 bytes, or with a NUL
    /// in it.
    BadText {
        /// "name" or "description".
        what: &'static str,
        /// The text.
        text: String,
    },
    /// Another process answers on this Unix socket.
    SocketInUse(PathBuf),
    /// There is something at this path that is not a socket; it was left alone.
    NotASocket(PathBuf),
    /// The address can't be listened on.
    Listen {
        /// The path or address.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// A thread, or another resource of the process, could not be had.
    Resource {
        /// What it was needed for.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The server, or the export, is shutting down.
    ShuttingDown,
}

/// What TLS is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsPart {
    /// The server's certificate.
    Certificate,
    /// Its key, or the two of them together.
    Key,
    /// The certificates of the authorities of clients.
    ClientCa,
    /// The certificates of the authorities of servers.
    ServerCa,
}

impl fmt::Display for TlsPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsPart::Certificate => "certificate",
            TlsPart::Key => "key",
            TlsPart::ClientCa => "certificate of the clients' authority",
            TlsPart::ServerCa => "certificate of the server's authority",
        })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NameTaken(export) => {
                write!(
                    f,
                    "an export named '{}' exists already: choose another name, or remove the \
                    old export first",
                    export.name()
                )
            }
            Error::DefaultTaken(export) => write!(
                f,
                "there is a default export already, and '{}' cannot be another",
                export.name()
            ),
            Error::BadDevice { export, why } => {
                write!(f, "the geometry of the device of export '{}': {why}", export.name())
            }
            Error::NotReplaced(export) => write!(
                f,
                "there is no export '{}' of this device that could be replaced: add the new one",
                export.name()
            ),
            Error::Tls { what, why } => write!(f, "the {what} cannot be used for TLS: {why}"),
            Error::BadText { what, text } => write!(
                f,
                "the {what} of an export is at most 4096 bytes of text without NUL, but this one has \
                 {} bytes: '{}'",
                text.len(),
                text.chars().take(40).collect::<String>().escape_debug()
            ),
            Error::SocketInUse(path) => write!(
                f,
                "another server answers on the socket {}: stop it, or choose another path",
                path.display()
            ),
            Error::NotASocket(path) => write!(
                f,
                "{} exists and is not a socket: remove it, or choose another path",
                path.display()
            ),
            Error::Listen { address, source } => write!(f, "cannot listen on {address}: {source}"),
            Error::Resource { what, source } => {
                write!(f, "cannot get {what}: {source}{}", text::thread_remedy(source))
            }
            Error::ShuttingDown => f.write_str("the server is shutting down"),
        }
    }
}

/// The text has the cause's, so there is no source: a report of both would have it twice.
impl std::error::Error for Error {}
