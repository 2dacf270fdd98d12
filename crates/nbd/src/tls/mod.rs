//! TLS: what a server shows and asks for, and the stream that comes of it.
//!
//! All of TLS is rustls'; ring does its sums. Here is where the bytes go: `README.md` beside this file.

mod channel;
mod spoken;
mod validity;

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, SupportedCipherSuite};

use crate::error::{Error, TlsPart};

pub(crate) use channel::{Channel, Incoming};
pub(crate) use spoken::spoken;

/// The certificate of a server, and the authorities of its clients.
///
/// TLS 1.3, and 1.2 with ChaCha20-Poly1305 (its other ciphers would end a connection after 2^24 records), with X.509 certificates. There are no pre-shared keys: rustls has none but those of resumption, which is
/// off.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    required: bool,
    valid: Option<Range<SystemTime>>,
}

impl Tls {
    /// TLS with this certificate, behind which may stand those that vouch for it, and its key, both as PEM. With `client_ca`
    /// (PEM, too) each client has to show a certificate that one of these authorities made for clients; without it
    /// clients are not known. Clients without TLS are refused; [`Tls::required`] lets them in.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use corewise_nbd::{Options, Server, Tls};
    /// # let made = rcgen::generate_simple_self_signed(["localhost".to_string()])?;
    /// # let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    /// let tls = Tls::from_pem(certificate.as_bytes(), key.as_bytes(), None)?;
    /// let server = Server::with_tls(Options::default(), tls);
    /// # drop(server);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Tls`: says which of the three is no good, and why. A certificate of the server that has expired, or isn't valid yet, is
    /// no good.
    pub fn from_pem(
        certificate: &[u8],
        key: &[u8],
        client_ca: Option<&[u8]>,
    ) -> Result<Tls, Error> {
        let mut provider = rustls::crypto::ring::default_provider();
        provider.cipher_suites.retain(lasts);
        let provider = Arc::new(provider);
        let chain = certificates(TlsPart::Certificate, certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key);
        let key =
            key.map_err(|error| wrong(TlsPart::Key)(words(&error, "key without a password")))?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(refused(TlsPart::Certificate))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                let authorities = certificates(TlsPart::ClientCa, pem)?;
                if let Some(fault) =
                    validity::authority_fault(&authorities, &provider, UnixTime::now())
                {
                    tracing::warn!(
                        "the authority of clients: {fault}; clients that it made certificates for are \
                         let in all the same: renew it"
                    );
                }
                for root in authorities {
                    roots.add(root).map_err(refused(TlsPart::ClientCa))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .map_err(refused(TlsPart::ClientCa))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let fault = validity::fault(&chain, builder.crypto_provider(), UnixTime::now());
        let valid = validity::first_to_expire(&chain, builder.crypto_provider());
        let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InvalidCertificate(_) => refused(TlsPart::Certificate)(error),
            rustls::Error::InconsistentKeys(_) => {
                wrong(TlsPart::Key)("it isn't the certificate's".to_string())
            }
            _ => refused(TlsPart::Key)(error),
        })?;
        if let Some(why) = fault {
            return Err(wrong(TlsPart::Certificate)(why));
        }
        // A connection lasts for days: what is kept for the next handshake would save nothing.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Tls { config: Arc::new(config), required: true, valid })
    }

    /// Whether clients without TLS are refused; unless this says no, they are.
    #[must_use]
    pub fn required(mut self, required: bool) -> Tls {
        self.required = required;
        self
    }

    /// From when until when the certificate is valid, or that one of those behind it which expires
    /// first.
    pub fn valid(&self) -> Option<Range<SystemTime>> {
        self.valid.clone()
    }

    pub(crate) fn is_required(&self) -> bool {
        self.required
    }
}

/// Whether keys of this suite are good for a connection of any length. TLS 1.3 takes new ones in time; 1.2 can't, and rustls closes
/// the connection: with AES-GCM after 2^24 records, which a busy client has in minutes.
pub(crate) fn lasts(suite: &SupportedCipherSuite) -> bool {
    match suite {
        SupportedCipherSuite::Tls12(suite) => suite.common.confidentiality_limit == u64::MAX,
        SupportedCipherSuite::Tls13(_) => true,
    }
}

pub(crate) fn certificates(
    what: TlsPart,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| wrong(what)(words(&error, "certificate")))?;
    if found.is_empty() {
        return Err(wrong(what)(words(&pem::Error::NoItemsFound, "certificate")));
    }
    Ok(found)
}

pub(crate) fn words(error: &pem::Error, wanted: &str) -> String {
    match error {
        pem::Error::NoItemsFound => format!("there is no {wanted} in it"),
        pem::Error::MissingSectionEnd { end_marker } => {
            let end = String::from_utf8_lossy(end_marker);
            format!("it is cut off: the end of a {end} is missing")
        }
        _ => error.to_string(),
    }
}

pub(crate) fn wrong<E: ToString>(what: TlsPart) -> impl Fn(E) -> Error {
    move |why| Error::Tls { what, why: why.to_string() }
}

/// As [`wrong`], of an error of rustls.
pub(crate) fn refused<E: std::fmt::Display>(what: TlsPart) -> impl Fn(E) -> Error {
    move |why| Error::Tls { what, why: spoken(&why) }
}
