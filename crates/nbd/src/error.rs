//! Errors of a server's setup.

use std::fmt;
use std::io;
use std::path::PathBuf;

use corewise_sync::text;

use crate::export::Export;

/// An error that tells the server's owner why a call failed. Clients never see these; they get the
/// protocol's errors.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An export of this name exists already. The new one is given back.
    NameTaken(Box<Export>),
    /// The server already has a default export. The new one is given back.
    DefaultTaken(Box<Export>),
    /// The device's [`Geometry`](corewise_blockmq::Geometry) has a field outside its documented
    /// range. The export is given back.
    BadDevice {
        /// The export.
        export: Box<Export>,
        /// The field, and the remedy.
        why: String,
    },
    /// The server has no export of this name with this device, or it is being removed. The new one
    /// is given back.
    NotReplaced(Box<Export>),
    /// A part of the TLS configuration is unusable.
    Tls {
        /// The part.
        what: TlsPart,
        /// The reason.
        why: String,
    },
    /// A name or description is longer than 4096 bytes or contains a NUL, so the protocol can't
    /// carry it.
    BadText {
        /// The word "name" or "description".
        what: &'static str,
        /// The text.
        text: String,
    },
    /// Another process answers on this Unix socket.
    SocketInUse(PathBuf),
    /// The path leads to something that is not a socket; the server left it alone.
    NotASocket(PathBuf),
    /// The system can't listen on the address.
    Listen {
        /// The path or address.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The process could not get a thread or another resource.
    Resource {
        /// The purpose of the resource.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The server, or the export, is shutting down.
    ShuttingDown,
}

/// A part of a TLS configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsPart {
    /// The server's certificate.
    Certificate,
    /// The server's key, or the pair of certificate and key.
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
                "there is a default export already: '{}' can't be the default, too",
                export.name()
            ),
            Error::BadDevice { export, why } => {
                write!(f, "the geometry of the device of export '{}': {why}", export.name())
            }
            Error::NotReplaced(export) => write!(
                f,
                "this device has no export '{}' to replace: add the new export",
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

/// The text contains the cause, so no source is given: a report of both would have it twice.
impl std::error::Error for Error {}
