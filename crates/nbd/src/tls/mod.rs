//! TLS: a server's certificates and policy, and its encrypted streams.
//!
//! rustls does all of TLS, and ring its cryptography. This module moves the bytes: `README.md`
//! beside this file.
//!
//! The server checks the validity of its own certificates, so that its owner learns of an invalid
//! one before clients refuse the server.

mod channel;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, SupportedCipherSuite};
use webpki::{EndEntityCert, KeyUsage};

use crate::error::{Error, TlsPart};
pub(crate) use channel::spoken;
pub(crate) use channel::{Channel, Incoming};

/// The certificate of a server, and the authorities of its clients.
///
/// The versions are TLS 1.3, and 1.2 with ChaCha20-Poly1305 (its other ciphers would end a
/// connection after 2^24 records), with X.509 certificates. There are no pre-shared keys: rustls
/// has none but those of resumption, which is off.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    required: bool,
    valid: Option<Range<SystemTime>>,
}

impl Tls {
    /// Creates a configuration from a certificate, perhaps followed by those that vouch for it, and
    /// its key, both as PEM. With `client_ca` (PEM, too) each client has to show a certificate that
    /// one of these authorities made for clients; without it clients are not identified. Clients
    /// without TLS are refused, unless [`Tls::required`] lets them in.
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
    /// `Tls` says which of the three is unusable, and why. A server certificate that has expired,
    /// or isn't valid yet, is unusable.
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
                if let Some(fault) = authority_fault(&authorities, &provider, UnixTime::now()) {
                    tracing::warn!(
                        "the authority of clients: {fault}; clients with its certificates are \
                         still admitted: renew the authority's certificate"
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
        let fault = fault(&chain, builder.crypto_provider(), UnixTime::now());
        let valid = first_to_expire(&chain, builder.crypto_provider());
        let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InvalidCertificate(_) => refused(TlsPart::Certificate)(error),
            rustls::Error::InconsistentKeys(_) => {
                wrong(TlsPart::Key)("the key doesn't belong to the certificate".to_string())
            }
            _ => refused(TlsPart::Key)(error),
        })?;
        if let Some(why) = fault {
            return Err(wrong(TlsPart::Certificate)(why));
        }
        // A connection lasts for days, so resumption would save nothing.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Tls { config: Arc::new(config), required: true, valid })
    }

    /// Sets whether clients without TLS are refused. The default is yes.
    #[must_use]
    pub fn required(mut self, required: bool) -> Tls {
        self.required = required;
        self
    }

    /// Returns the validity of the certificate in the chain that expires first.
    pub fn valid(&self) -> Option<Range<SystemTime>> {
        self.valid.clone()
    }

    pub(crate) fn is_required(&self) -> bool {
        self.required
    }
}

/// Returns true if keys of this suite last for a connection of any length. TLS 1.3 renews them in
/// time. TLS 1.2 can't, so rustls closes the connection: with AES-GCM after 2^24 records, which a
/// busy client sends in minutes.
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
        pem::Error::NoItemsFound => format!("the file has no {wanted}"),
        pem::Error::MissingSectionEnd { end_marker } => {
            let end = String::from_utf8_lossy(end_marker);
            format!("the file is cut off: the end of a {end} is missing")
        }
        _ => error.to_string(),
    }
}

pub(crate) fn wrong<E: ToString>(what: TlsPart) -> impl Fn(E) -> Error {
    move |why| Error::Tls { what, why: why.to_string() }
}

/// Makes an error of `what` from one of rustls, as [`wrong`] does.
pub(crate) fn refused<E: std::fmt::Display>(what: TlsPart) -> impl Fn(E) -> Error {
    move |why| Error::Tls { what, why: spoken(&why) }
}

/// Returns why one of the server's certificates is invalid at that time. Other faults are up to
/// clients, which know the authority.
fn fault(chain: &[CertificateDer<'_>], provider: &CryptoProvider, now: UnixTime) -> Option<String> {
    first_outside(chain, provider, now).map(|(which, when)| match when {
        ValidityFault::Expired(ago) => {
            format!("{which} expired {ago} ago, so clients would refuse it: renew the certificate")
        }
        ValidityFault::NotYet(until) => format!(
            "{which} is not valid before {until} from now, so clients would refuse it: wait, or set \
             the clock of this machine"
        ),
        ValidityFault::Never => format!("{which} ends before it begins, so clients would refuse it: renew the certificate"),
    })
}

/// Returns why an operator should check the clients' authorities. They are trusted all the same:
/// rustls checks no dates of the authorities that it is given.
fn authority_fault(
    authorities: &[CertificateDer<'_>],
    provider: &CryptoProvider,
    now: UnixTime,
) -> Option<String> {
    first_outside(authorities, provider, now).map(|(which, when)| match when {
        ValidityFault::Expired(ago) => format!("{which} expired {ago} ago"),
        ValidityFault::NotYet(until) => format!("{which} is not valid before {until} from now"),
        ValidityFault::Never => format!("{which} ends before it begins"),
    })
}

/// Returns the validity of the certificate that expires first, or `None` if no certificate has one.
fn first_to_expire(
    chain: &[CertificateDer<'_>],
    provider: &CryptoProvider,
) -> Option<Range<SystemTime>> {
    let algorithms = provider.signature_verification_algorithms.all;
    let found = chain.iter().filter_map(|certificate| {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        // Only the errors for times before and after all validity tell its dates.
        let at = |seconds| {
            let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
            let usage = KeyUsage::server_auth();
            certificate.verify_for_usage(algorithms, &[], &[], at, usage, None, None).err()
        };
        let time = |unix: UnixTime| UNIX_EPOCH.checked_add(Duration::from_secs(unix.as_secs()));
        let webpki::Error::CertExpired { not_after, .. } = at(u64::MAX)? else { return None };
        let begin = match at(0) {
            Some(webpki::Error::CertNotValidYet { not_before, .. }) => time(not_before)?,
            _ => UNIX_EPOCH,
        };
        Some(begin..time(not_after)?)
    });
    found.min_by_key(|valid| valid.end)
}

/// The way in which a certificate is outside its validity.
enum ValidityFault {
    Expired(String),
    NotYet(String),
    /// Its end lies before its beginning.
    Never,
}

/// Returns the first certificate that isn't valid at that time, and since or until when.
fn first_outside(
    chain: &[CertificateDer<'_>],
    provider: &CryptoProvider,
    now: UnixTime,
) -> Option<(String, ValidityFault)> {
    let algorithms = provider.signature_verification_algorithms.all;
    chain.iter().enumerate().find_map(|(number, certificate)| {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        // The time is checked before the authority, of which there is none here.
        let usage = KeyUsage::server_auth();
        let found = certificate.verify_for_usage(algorithms, &[], &[], now, usage, None, None);
        let which = match number {
            0 => "it".to_owned(),
            _ => format!("certificate number {} in it", number + 1),
        };
        let apart = |one: UnixTime, other: UnixTime| {
            time_words(Duration::from_secs(one.as_secs().abs_diff(other.as_secs())))
        };
        match found.err()? {
            webpki::Error::CertExpired { not_after, .. } => {
                Some((which, ValidityFault::Expired(apart(now, not_after))))
            }
            webpki::Error::CertNotValidYet { not_before, .. } => {
                Some((which, ValidityFault::NotYet(apart(now, not_before))))
            }
            webpki::Error::InvalidCertValidity => Some((which, ValidityFault::Never)),
            _ => None,
        }
    })
}

/// Formats a duration in its largest unit.
fn time_words(time: Duration) -> String {
    let seconds = time.as_secs();
    let (count, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7200 => (seconds / 60, "minute"),
        7200..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_told_of_before_and_behind_its_time_and_so_are_those_that_vouch_for_it() {
        let provider = rustls::crypto::ring::default_provider();
        let made = |from: i32, to: i32| {
            let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(to, 1, 1);
            let key = rcgen::KeyPair::generate().unwrap();
            params.self_signed(&key).unwrap().der().clone()
        };
        // The first days of 2020 and of 2021.
        let at = |day: u64| UnixTime::since_unix_epoch(Duration::from_secs(86_400 * day));
        let (new_year, next) = (18_262, 18_628);
        let good = made(2020, 2021);
        let told = |chain: &[_], now| fault(chain, &provider, now).unwrap_or_default();
        let one = std::slice::from_ref(&good);
        assert_eq!(told(one, at(new_year + 1)), "");
        let late = told(one, at(next + 9));
        assert!(late.starts_with("it expired 9 days ago"), "{late}");
        let early = told(one, at(new_year - 1));
        assert!(early.starts_with("it is not valid before 24 hours from now"), "{early}");
        let never = told(&[made(2021, 2020)], at(new_year + 1));
        assert!(never.starts_with("it ends before it begins"), "{never}");
        let day = |day: u64| UNIX_EPOCH + Duration::from_secs(86_400 * day);
        assert_eq!(first_to_expire(one, &provider), Some(day(new_year)..day(next)));
        let chain = [made(2015, 2030), good.clone()];
        assert_eq!(first_to_expire(&chain, &provider), Some(day(new_year)..day(next)));
        assert_eq!(first_to_expire(&[], &provider), None);
        let chain = [good.clone(), made(2010, 2011)];
        let behind = told(&chain, at(new_year + 1));
        assert!(behind.starts_with("certificate number 2 in it expired"), "{behind}");
        let mut authority = rcgen::CertificateParams::new([]).unwrap();
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        authority.not_before = rcgen::date_time_ymd(2010, 1, 1);
        authority.not_after = rcgen::date_time_ymd(2020, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = [authority.self_signed(&key).unwrap().der().clone()];
        let told = |now| authority_fault(&authority, &provider, now);
        assert_eq!(told(at(new_year + 9)).unwrap(), "it expired 9 days ago");
        assert_eq!(told(at(new_year - 9)), None);
        assert_eq!(time_words(Duration::from_secs(1)), "1 second");
        assert_eq!(time_words(Duration::from_secs(600)), "10 minutes");
    }
}
