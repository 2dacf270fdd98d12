//! Certificates for a test, in folders as libnbd and QEMU look for them.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use super::Folder;

/// An authority.
pub struct Pki {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Pki {
    pub fn new() -> Pki {
        let mut params = named("the authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Pki { issuer: Issuer::new(params, key), pem }
    }

    /// Makes `server/cert.pem`, `server/key.pem` and `server/ca.pem`.
    pub fn server(&self, folder: &Folder) {
        self.server_until(folder, 4096);
    }

    /// Makes the server's certificate, valid up to a year.
    pub fn server_until(&self, folder: &Folder, year: i32) {
        let mut params = named("the server");
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        self.server_of(folder, params);
    }

    /// Makes the server's certificate, valid from `before` ago until `behind` from now.
    pub fn server_for(&self, folder: &Folder, before: Duration, behind: Duration) {
        let mut params = named("the server");
        let now = SystemTime::now();
        (params.not_before, params.not_after) = ((now - before).into(), (now + behind).into());
        self.server_of(folder, params);
    }

    fn server_of(&self, folder: &Folder, mut params: CertificateParams) {
        let names = ["localhost".to_string(), "127.0.0.1".to_string()];
        params.subject_alt_names = CertificateParams::new(names).expect("names").subject_alt_names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let (certificate, key) = self.sign(&params);
        folder.write("server/cert.pem", certificate);
        folder.write("server/key.pem", key);
        folder.write("server/ca.pem", &self.pem);
    }

    /// Makes a folder with the certificate of a client of this common name, or without one. Returns
    /// its path.
    pub fn client(&self, folder: &Folder, name: Option<&str>) -> String {
        let place = name.unwrap_or("nobody").replace(' ', "-");
        if let Some(name) = name {
            let mut params = named(name);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            let (certificate, key) = self.sign(&params);
            folder.write(&format!("{place}/client-cert.pem"), certificate);
            folder.write(&format!("{place}/client-key.pem"), key);
        }
        folder.write(&format!("{place}/ca-cert.pem"), &self.pem);
        folder.join(&place).display().to_string()
    }

    fn sign(&self, params: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
