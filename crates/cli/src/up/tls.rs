//! The server that clients come to: with TLS, where the manifest asks for it.

use corewise::nbd::{Options, Server};

#[cfg(feature = "tls")]
pub(super) use with::{Renewed, Seen, renewed};
#[cfg(not(feature = "tls"))]
pub(super) use without::{Renewed, Seen, renewed};

use crate::manifest::{Problem, Tls};

/// A server without exports, and what it shows its clients.
pub(super) fn server(
    options: Options,
    tls: Option<&Tls>,
) -> Result<(Server, Option<Seen>), Problem> {
    #[cfg(feature = "tls")]
    if let Some(tls) = tls {
        let (found, seen) = with::read(tls)?;
        return Ok((Server::with_tls(options, found), Some(seen)));
    }
    // Without the feature a manifest that asks for it was refused before.
    let _ = tls;
    Ok((Server::new(options), None))
}

#[cfg(feature = "tls")]
mod with {
    use std::ops::Range;
    use std::path::PathBuf;
    use std::time::SystemTime;

    use corewise::nbd::{self, Error, Server, TlsPart};

    use super::super::status::Validity;
    use crate::bounded_file::{self, LONGEST_PEM};
    use crate::manifest::{At, Problem, Subject, Tls};

    /// What was read, but for the key, which belongs to its certificate.
    #[derive(PartialEq, Eq)]
    pub(in crate::up) struct Seen {
        certificate: Vec<u8>,
        client_ca: Option<Vec<u8>>,
        required: bool,
        valid: Option<Range<SystemTime>>,
    }

    impl Seen {
        /// How long its certificate is valid.
        pub(in crate::up) fn validity(&self) -> Option<Validity> {
            Some(Validity { valid: self.valid.clone()?, required: self.required })
        }
    }

    /// What newcomers are to be shown.
    pub(in crate::up) struct Renewed(nbd::Tls, Seen);

    impl Renewed {
        pub(in crate::up) fn apply(self, server: &Server) -> Option<Seen> {
            server.renew_tls(self.0).then_some(self.1)
        }
    }

    /// What the files hold by now, where a server that shows `seen` has to show something else.
    pub(in crate::up) fn renewed(tls: &Tls, seen: &Seen) -> Result<Option<Renewed>, Problem> {
        let (found, now) = read(tls)?;
        Ok((now != *seen).then_some(Renewed(found, now)))
    }

    pub(super) fn read(tls: &Tls) -> Result<(nbd::Tls, Seen), Problem> {
        let wrong = |at: &At<PathBuf>, why: &dyn std::fmt::Display| {
            Problem::new(at.place, Subject::Server, format!("{}: {why}", at.value.display()))
        };
        let read = |at: &At<PathBuf>| {
            bounded_file::read_plain(&at.value, LONGEST_PEM).map_err(|why| wrong(at, &why))
        };
        let (certificate, key) = (read(&tls.certificate)?, read(&tls.key)?);
        let client_ca = tls.client_ca.as_ref().map(read).transpose()?;
        let found = nbd::Tls::from_pem(&certificate, &key, client_ca.as_deref());
        let found = found.map_err(|error| {
            let at = match &error {
                Error::Tls { what: TlsPart::Key, .. } => &tls.key,
                Error::Tls { what: TlsPart::ClientCa, .. } => {
                    tls.client_ca.as_ref().unwrap_or(&tls.certificate)
                }
                _ => &tls.certificate,
            };
            wrong(at, &error)
        })?;
        let (required, valid) = (tls.required, found.valid());
        Ok((found.required(required), Seen { certificate, client_ca, required, valid }))
    }
}

/// Values that there are none of, which the compiler knows.
#[cfg(not(feature = "tls"))]
mod without {
    use corewise::nbd::Server;

    use super::super::status::Validity;
    use crate::manifest::{Problem, Tls};

    pub(in crate::up) enum Seen {}
    pub(in crate::up) enum Renewed {}

    impl Seen {
        pub(in crate::up) fn validity(&self) -> Option<Validity> {
            match *self {}
        }
    }

    impl Renewed {
        pub(in crate::up) fn apply(self, _: &Server) -> Option<Seen> {
            match self {}
        }
    }

    pub(in crate::up) fn renewed(_: &Tls, seen: &Seen) -> Result<Option<Renewed>, Problem> {
        match *seen {}
    }
}
