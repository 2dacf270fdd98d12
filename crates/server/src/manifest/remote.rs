//! The keys of a device that is somebody else's export.

use std::path::PathBuf;
use std::time::Duration;

use corewise::nbd::Uri;

use super::keys::{Check, Kind, duration, flag, keys, number, path, text};
use super::problem::{At, too_long};
use super::reader::Fields;

fn uri() -> Kind<Uri> {
    text().parse(|text, base| {
        let uri = text.parse::<Uri>().map_err(|why| format!("'{text}': {why}"))?.within(base);
        uri.socket().and_then(too_long).map_or(Ok(uri), Err)
    })
}

fn connections() -> Kind<usize> {
    let few = number().within("from 1 to 16", "", |number| (1..=16).contains(number));
    few.map(|number, _| number as usize)
}

keys! {
    /// Somebody else's export as a device.
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) struct Remote {
        /// Which export it is: `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`, or
        /// with `nbds` for TLS, where `tls-hostname=NAME` behind the `?` says another name than the
        /// host's.
        uri: At<Uri> = uri(), Required("uri = \"nbd://other.example/disk\"");
        /// How many connections at most; one where the other side doesn't say that a flush on one
        /// covers all.
        connections: usize = connections(), Usual("4");
        /// How long an attempt to connect may take, its handshake included.
        connect_timeout: Duration = duration().positive("such as \"10s\""), Usual("\"5s\"");
        /// How long a request may take, all attempts together; then it fails.
        request_timeout: Duration = duration().positive("such as \"10s\""), Usual("\"30s\"");
        /// Whether the export isn't changed.
        read_only: bool = flag(), Usual("false");
        /// A file (PEM) with the authorities that vouch for the other side.
        tls_ca: Option<At<PathBuf>> = path(), Unset("required with `nbds`");
        /// A file (PEM) with a certificate, for another side that asks for one.
        tls_certificate: Option<At<PathBuf>> = path(), Unset("none");
        /// A file (PEM) with the key of that certificate.
        tls_key: Option<At<PathBuf>> = path(), Unset("required with `tls_certificate`");
    }
}

impl Check for Remote {
    fn check(&self, fields: &mut Fields<'_, '_>) {
        let uri = &self.uri.value;
        if !uri.tls() {
            for key in ["tls_ca", "tls_certificate", "tls_key"] {
                if fields.has(key) {
                    let help = "write nbds in the uri, or nbds+unix";
                    fields.refuse(key, format!("'{key}' is for TLS"), help);
                }
            }
            return;
        }
        if !cfg!(feature = "tls") {
            let message = "this corewise was built without TLS";
            return fields.refuse("uri", message, "write nbd in the uri");
        }
        if uri.hostname().is_none() {
            let help = "write tls-hostname=NAME in the uri, behind an &";
            fields.refuse("uri", "TLS on a Unix socket needs the name of the other side", help);
        }
        if !fields.has("tls_ca") {
            let help = "tls_ca = \"ca.pem\", the certificate of the authority of the other side";
            fields.refuse("uri", "TLS needs a 'tls_ca'", help);
        }
        fields.both("tls_certificate", "tls_key");
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Driver, Resolved, read};
    use std::path::Path;
    use std::time::Duration;

    use corewise::nbd::Uri;

    fn resolved(keys: &str) -> Resolved {
        let text = format!(
            "[[device]]\nname = \"a\"\ndriver = \"nbd\"\n{keys}\n[[export]]\ndevice = \"a\"\n"
        );
        read(&text, Path::new("/base"))
    }

    #[test]
    fn paths_begin_in_the_manifest_s_folder() {
        let found = resolved(
            "uri = \"nbd+unix:///x?socket=run/s\"\nconnections = 2\nconnect_timeout = \"1s\"\n\
             request_timeout = \"2s\"\nread_only = true",
        );
        assert_eq!(found.problems, []);
        let Driver::Remote(remote) = &found.manifest.devices[0].driver else { panic!("no nbd") };
        let same: Uri = "nbd+unix:///x?socket=run/s".parse().unwrap();
        assert_eq!(remote.uri.value, same.within(Path::new("/base")));
        assert_eq!((remote.connections, remote.read_only), (2, true));
        assert_eq!(remote.request_timeout, Duration::from_secs(2));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_has_its_files() {
        let found = resolved(
            "uri = \"nbds://h/x\"\ntls_ca = \"ca\"\ntls_certificate = \"c\"\ntls_key = \"/k\"",
        );
        assert_eq!(found.problems, []);
        let Driver::Remote(remote) = &found.manifest.devices[0].driver else { panic!("no nbd") };
        let files = [&remote.tls_ca, &remote.tls_certificate, &remote.tls_key];
        let files = files.map(|at| at.as_ref().unwrap().value.as_path());
        assert_eq!(files, ["/base/ca", "/base/c", "/k"].map(Path::new));
    }

    #[test]
    fn what_is_wrong_is_told_with_what_to_write() {
        for (keys, says) in [
            ("", "needs 'uri'"),
            ("uri = \"/dev/nbd0\"", "no '://'"),
            ("uri = \"nbd://h\"\nconnections = 17", "from 1 to 16"),
            ("uri = \"nbd://h\"\nconnect_timeout = \"0s\"", "greater than 0"),
            ("uri = \"nbd://h\"\ntls_ca = \"c\"", "write nbds"),
            ("uri = \"nbd://h\"\nsize = \"1M\"", "takes no 'size'"),
            #[cfg(feature = "tls")]
            ("uri = \"nbds://h\"", "needs a 'tls_ca'"),
            #[cfg(feature = "tls")]
            ("uri = \"nbds+unix:///x?socket=s\"\ntls_ca = \"c\"", "tls-hostname"),
            #[cfg(feature = "tls")]
            ("uri = \"nbds://h\"\ntls_ca = \"c\"\ntls_key = \"k\"", "needs its 'tls_cert"),
        ] {
            let found = resolved(keys).problems;
            let told: Vec<_> = found.iter().map(|p| p.display("m").to_string()).collect();
            assert!(told.iter().any(|told| told.contains(says)), "{says}: {told:?}");
        }
    }
}
