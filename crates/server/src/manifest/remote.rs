//! The keys of a device that is somebody else's export.

use std::path::Path;

use corewise::nbd::Uri;

use super::drivers::Asked;
use super::model::{Remote, RemoteTls, too_long};
use super::problem::{At, Problem};

/// Most connections of one device.
const CONNECTIONS: u32 = 16;

/// What its keys say; `None` where that can't be said.
pub(super) fn remote(asked: &mut Asked<'_>, base: &Path) -> Option<Remote> {
    let raw = asked.raw;
    let Some(at) = &raw.uri else {
        asked.missing("uri", "uri = \"nbd://other.example/disk\"");
        return None;
    };
    let uri = match at.value.parse::<Uri>() {
        Ok(uri) => At::new(uri.within(base), at.place),
        Err(why) => {
            asked.complain(|s| Problem::new(at.place, s, format!("'{}': {why}", at.value)));
            return None;
        }
    };
    if let Some(why) = uri.value.socket().and_then(too_long) {
        asked.complain(|s| Problem::new(at.place, s, why));
        return None;
    }
    let mut ok = true;
    let mut told = |at_place, message: String, help: &str| {
        ok = false;
        asked.complain(|s| Problem::new(at_place, s, message).help(help));
    };
    if let Some(n) = raw.connections.as_ref().filter(|n| !(1..=CONNECTIONS).contains(&n.value)) {
        told(n.place, format!("connections {} is not valid", n.value), "from 1 to 16");
    }
    for (key, time) in
        [("connect_timeout", &raw.connect_timeout), ("request_timeout", &raw.request_timeout)]
    {
        if let Some(at) = time.as_ref().filter(|at| at.value.is_zero()) {
            told(at.place, format!("'{key}' must be more than nothing"), "such as \"10s\"");
        }
    }
    let path = |at: &At<String>| At::new(base.join(&at.value), at.place);
    let keys = [
        ("tls_ca", &raw.tls_ca),
        ("tls_certificate", &raw.tls_certificate),
        ("tls_key", &raw.tls_key),
    ];
    if !uri.value.tls() {
        for (key, at) in keys {
            if let Some(at) = at {
                told(
                    at.place,
                    format!("'{key}' is for TLS"),
                    "write nbds in the uri, or nbds+unix",
                );
            }
        }
    } else if !cfg!(feature = "tls") {
        told(uri.place, "this corewise was built without TLS".to_owned(), "write nbd in the uri");
    } else {
        if uri.value.hostname().is_none() {
            let help = "write tls-hostname=NAME in the uri, behind an &";
            told(uri.place, "TLS on a Unix socket needs the name of the other side".into(), help);
        }
        if raw.tls_ca.is_none() {
            let help = "tls_ca = \"ca.pem\", the certificate of the authority of the other side";
            told(uri.place, "TLS needs a 'tls_ca'".to_owned(), help);
        }
        match (&raw.tls_certificate, &raw.tls_key) {
            (Some(at), None) => {
                told(at.place, "'tls_certificate' needs its 'tls_key'".to_owned(), "a file");
            }
            (None, Some(at)) => {
                told(at.place, "'tls_key' needs its 'tls_certificate'".to_owned(), "a file");
            }
            _ => {}
        }
    }
    let identity = raw.tls_certificate.as_ref().zip(raw.tls_key.as_ref());
    let identity = identity.map(|(certificate, key)| (path(certificate), path(key)));
    let tls = raw.tls_ca.as_ref().map(|ca| RemoteTls { ca: path(ca), identity });
    ok.then(|| Remote {
        uri,
        connections: raw.connections.as_ref().map(|n| n.value as usize),
        connect_timeout: raw.connect_timeout.as_ref().map(|at| at.value),
        request_timeout: raw.request_timeout.as_ref().map(|at| at.value),
        read_only: raw.read_only.as_ref().is_some_and(|at| at.value),
        tls,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Driver, Resolved, read};
    use std::time::Duration;

    use super::*;

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
        assert_eq!((remote.connections, remote.read_only), (Some(2), true));
        assert_eq!(remote.request_timeout, Some(Duration::from_secs(2)));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_has_its_files() {
        let found = resolved(
            "uri = \"nbds://h/x\"\ntls_ca = \"ca\"\ntls_certificate = \"c\"\ntls_key = \"/k\"",
        );
        assert_eq!(found.problems, []);
        let Driver::Remote(remote) = &found.manifest.devices[0].driver else { panic!("no nbd") };
        let tls = remote.tls.as_ref().unwrap();
        let (certificate, key) = tls.identity.as_ref().unwrap();
        assert_eq!(tls.ca.value, Path::new("/base/ca"));
        assert_eq!((&*certificate.value, &*key.value), (Path::new("/base/c"), Path::new("/k")));
    }

    #[test]
    fn what_is_wrong_is_told_with_what_to_write() {
        for (keys, says) in [
            ("", "needs 'uri'"),
            ("uri = \"/dev/nbd0\"", "no '://'"),
            ("uri = \"nbd://h\"\nconnections = 17", "from 1 to 16"),
            ("uri = \"nbd://h\"\nconnect_timeout = \"0s\"", "more than nothing"),
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
