//! A certificate authority and its certificates, made anew in each test.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::sync::Arc;

use corewise_nbd::Tls;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};

pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

/// A certificate and its key, as PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    pub(crate) fn pem(&self) -> String {
        self.certificate.pem()
    }

    fn sign(&self, mut params: CertificateParams, purpose: ExtendedKeyUsagePurpose) -> Identity {
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Identity { certificate, key: key.serialize_pem() }
    }

    pub(crate) fn server(&self) -> Identity {
        let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Creates a client's identity with this common name, and perhaps a DNS name and a URI.
    pub(crate) fn client(&self, name: &str, more: &[SanType]) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = more.to_vec();
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Creates a server's TLS. If `asks` is true, clients need a certificate of this authority.
    pub(crate) fn tls(&self, asks: bool) -> Tls {
        let Identity { certificate, key } = self.server();
        let pem = self.pem();
        let clients = asks.then_some(pem.as_bytes());
        Tls::from_pem(certificate.as_bytes(), key.as_bytes(), clients).unwrap()
    }

    /// Creates the configuration of a client that trusts this authority.
    pub(crate) fn believer(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        identity: Option<&Identity>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain =
                    vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }
}
