//! The NBD server for clients, with TLS if the manifest asks for it.

use corewise::nbd::{Options, Server};

#[cfg(feature = "tls")]
pub(crate) use with::{RenewedTls, ShownFiles, renewed};
#[cfg(not(feature = "tls"))]
pub(crate) use without::{RenewedTls, ShownFiles, renewed};

use crate::manifest::{Problem, Tls};

/// Returns a server without exports, and the files that it shows its clients.
pub(crate) fn server(
    options: Options,
    tls: Option<Tls<'_>>,
) -> Result<(Server, Option<ShownFiles>), Problem> {
    #[cfg(feature = "tls")]
    if let Some(tls) = tls {
        let (found, seen) = with::read(tls)?;
        return Ok((Server::with_tls(options, found), Some(seen)));
    }
    // Without the feature, a manifest that asks for it was refused before.
    let _ = tls;
    Ok((Server::new(options), None))
}

#[cfg(feature = "tls")]
mod with {
    use std::ops::Range;
    use std::path::PathBuf;
    use std::time::SystemTime;

    use corewise::nbd::{self, Error, Server, TlsPart};

    use crate::manifest::{Located, Problem, Subject, Tls};
    use crate::source::{self, LONGEST_PEM};
    use crate::status::Validity;

    /// The content of the files, without the key, which belongs to its certificate.
    #[derive(PartialEq, Eq)]
    pub(crate) struct ShownFiles {
        certificate: Vec<u8>,
        client_ca: Option<Vec<u8>>,
        required: bool,
        valid: Option<Range<SystemTime>>,
    }

    impl ShownFiles {
        /// Returns the validity of its certificate.
        pub(crate) fn validity(&self) -> Option<Validity> {
            Some(Validity { valid: self.valid.clone()?, required: self.required })
        }
    }

    /// The TLS settings for new clients.
    pub(crate) struct RenewedTls(nbd::Tls, ShownFiles);

    impl RenewedTls {
        pub(crate) fn apply(self, server: &Server) -> Option<ShownFiles> {
            server.renew_tls(self.0).then_some(self.1)
        }
    }

    /// Reads the files again. Returns their content if it differs from `seen`.
    pub(crate) fn renewed(tls: Tls<'_>, seen: &ShownFiles) -> Result<Option<RenewedTls>, Problem> {
        let (found, now) = read(tls)?;
        Ok((now != *seen).then_some(RenewedTls(found, now)))
    }

    pub(crate) fn read(tls: Tls<'_>) -> Result<(nbd::Tls, ShownFiles), Problem> {
        let wrong = |at: &Located<PathBuf>, why: &dyn std::fmt::Display| {
            Problem::new(at.place, Subject::Server, format!("{}: {why}", at.value.display()))
        };
        let read = |at: &Located<PathBuf>| {
            source::read_plain(&at.value, LONGEST_PEM).map_err(|why| wrong(at, &why))
        };
        let (certificate, key) = (read(tls.certificate)?, read(tls.key)?);
        let client_ca = tls.client_ca.map(read).transpose()?;
        let found = nbd::Tls::from_pem(&certificate, &key, client_ca.as_deref());
        let found = found.map_err(|error| {
            let at = match &error {
                Error::Tls { what: TlsPart::Key, .. } => tls.key,
                Error::Tls { what: TlsPart::ClientCa, .. } => {
                    tls.client_ca.unwrap_or(tls.certificate)
                }
                _ => tls.certificate,
            };
            wrong(at, &error)
        })?;
        let (required, valid) = (tls.required, found.valid());
        Ok((found.required(required), ShownFiles { certificate, client_ca, required, valid }))
    }
}

/// Substitutes without values for builds without TLS.
#[cfg(not(feature = "tls"))]
mod without {
    use corewise::nbd::Server;

    use crate::manifest::{Problem, Tls};
    use crate::status::Validity;

    pub(crate) enum ShownFiles {}
    pub(crate) enum RenewedTls {}

    impl ShownFiles {
        pub(crate) fn validity(&self) -> Option<Validity> {
            match *self {}
        }
    }

    impl RenewedTls {
        pub(crate) fn apply(self, _: &Server) -> Option<ShownFiles> {
            match self {}
        }
    }

    pub(crate) fn renewed(_: Tls<'_>, seen: &ShownFiles) -> Result<Option<RenewedTls>, Problem> {
        match *seen {}
    }
}
