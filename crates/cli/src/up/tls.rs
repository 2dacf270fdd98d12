//! The server that clients come to: with TLS, where the manifest asks for it.

use corewise::nbd::{Options, Server};

use crate::manifest::{Problem, Tls};

/// A server without exports.
#[cfg(feature = "tls")]
pub(super) fn server(options: Options, tls: Option<&Tls>) -> Result<Server, Problem> {
    use std::path::PathBuf;

    use crate::manifest::{At, Subject};

    let Some(tls) = tls else { return Ok(Server::new(options)) };
    let wrong = |at: &At<PathBuf>, why: &dyn std::fmt::Display| {
        Problem::new(at.place, Subject::Server, format!("{}: {why}", at.value.display()))
    };
    let read = |at: &At<PathBuf>| {
        // A FIFO's other end may never come.
        if at.value.metadata().is_ok_and(|meta| !meta.is_file()) {
            return Err(wrong(at, &"it is no file"));
        }
        std::fs::read(&at.value).map_err(|error| wrong(at, &error))
    };
    let (certificate, key) = (read(&tls.certificate)?, read(&tls.key)?);
    let client_ca = tls.client_ca.as_ref().map(read).transpose()?;
    let found = corewise::nbd::Tls::from_pem(&certificate, &key, client_ca.as_deref());
    let found = found.map_err(|error| {
        use corewise::nbd::{Error, TlsPart};
        let at = match &error {
            Error::Tls { what: TlsPart::Key, .. } => &tls.key,
            Error::Tls { what: TlsPart::ClientCa, .. } => {
                tls.client_ca.as_ref().unwrap_or(&tls.certificate)
            }
            _ => &tls.certificate,
        };
        wrong(at, &error)
    })?;
    Ok(Server::with_tls(options, found.required(tls.required)))
}

/// A server without exports. A manifest that asks for TLS was refused before.
#[cfg(not(feature = "tls"))]
pub(super) fn server(options: Options, _: Option<&Tls>) -> Result<Server, Problem> {
    Ok(Server::new(options))
}
