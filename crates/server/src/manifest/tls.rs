//! The keys of `[server]` for TLS.

use std::path::Path;

use super::model::Tls;
use super::problem::{At, Problem, Subject, word};
use super::raw::RawServer;

const POLICIES: [(&str, bool); 2] = [("require", true), ("allow", false)];

/// What `raw` asks for; what is wrong with it is added to `problems`.
pub(super) fn tls(raw: &RawServer, base: &Path, problems: &mut Vec<Problem>) -> Option<Tls> {
    let path = |at: &At<String>| At::new(base.join(&at.value), at.place);
    let required =
        raw.tls.as_ref().map(|at| word(at, "tls", "one of", &POLICIES, &Subject::Server));
    let required = match required {
        None => true,
        Some(Ok(required)) => required,
        Some(Err(problem)) => {
            problems.push(problem);
            return None;
        }
    };
    let mut told = |at: &At<String>, message: String| {
        problems.push(Problem::new(at.place, Subject::Server, message));
        None
    };
    let (certificate, key) = match (&raw.tls_certificate, &raw.tls_key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (Some(at), None) => return told(at, "'tls_certificate' needs its 'tls_key'".to_string()),
        (None, Some(at)) => return told(at, "'tls_key' needs its 'tls_certificate'".to_string()),
        (None, None) => {
            for (name, at) in [("tls", &raw.tls), ("tls_client_ca", &raw.tls_client_ca)] {
                if let Some(at) = at {
                    told(at, format!("'{name}' needs a 'tls_certificate' and its 'tls_key'"));
                }
            }
            return None;
        }
    };
    if !cfg!(feature = "tls") {
        return told(certificate, "this corewise was built without TLS".to_string());
    }
    Some(Tls {
        required,
        certificate: path(certificate),
        key: path(key),
        client_ca: raw.tls_client_ca.as_ref().map(path),
    })
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use super::super::{Resolved, read};
    use super::*;

    const PAIR: &str = "tls_certificate = \"c.pem\"\ntls_key = \"/k.pem\"\n";

    fn resolved(server: &str, export: &str) -> Resolved {
        let device = "[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n";
        let export = format!("[[export]]\ndevice = \"a\"\n{export}");
        read(&format!("[server]\n{server}{device}{export}"), Path::new("/base"))
    }

    #[test]
    fn tls_is_required_unless_it_is_only_allowed_and_paths_begin_in_the_manifest_s_folder() {
        let found = resolved(PAIR, "");
        assert_eq!(found.problems, []);
        let tls = found.manifest.server.tls.unwrap();
        assert!(tls.required && tls.client_ca.is_none());
        assert_eq!(tls.certificate.value, Path::new("/base/c.pem"));
        assert_eq!(tls.key.value, Path::new("/k.pem"));
        let more = format!("{PAIR}tls = \"allow\"\ntls_client_ca = \"ca.pem\"\n");
        let found = resolved(&more, "allow_certificates = [\"vm 1\"]\n");
        assert_eq!(found.problems, []);
        let tls = found.manifest.server.tls.unwrap();
        assert_eq!(tls.client_ca.unwrap().value, Path::new("/base/ca.pem"));
        assert!(!tls.required);
        let names = found.manifest.exports[0].allow_certificates.clone();
        assert_eq!(names, Some(vec!["vm 1".to_string()]));
        assert!(resolved("", "").manifest.server.tls.is_none());
    }

    #[test]
    fn half_of_what_tls_needs_is_answered_with_the_other_half() {
        let unknown = format!("{PAIR}tls = \"on\"\n");
        for (server, export, says) in [
            ("tls_certificate = \"c\"\n", "", "'tls_certificate' needs its 'tls_key'"),
            ("tls_key = \"k\"\n", "", "'tls_key' needs its 'tls_certificate'"),
            ("tls = \"require\"\n", "", "'tls' needs a 'tls_certificate' and its 'tls_key'"),
            ("tls_client_ca = \"c\"\n", "", "'tls_client_ca' needs a 'tls_certificate'"),
            (&unknown, "", "unknown tls 'on'\n  help: one of: require, allow"),
            (
                PAIR,
                "allow_certificates = [\"a\"]\n",
                "'allow_certificates' needs a 'tls_client_ca'",
            ),
        ] {
            let found = resolved(server, export).problems;
            let told: Vec<_> = found.iter().map(|p| p.display("m").to_string()).collect();
            assert!(told.len() == 1 && told[0].contains(says), "{says}: {told:?}");
        }
    }
}
