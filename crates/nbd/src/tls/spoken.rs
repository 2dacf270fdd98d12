//! Errors of TLS in words: rustls shows parts of them by the names of its variants.

/// Names that are better said otherwise than by their words.
const SAID: [(&str, &str); 8] = [
    ("UnknownIssuer", "no authority that is known here has made it"),
    ("CaUsedAsEndEntity", "it is that of an authority, and not of a client or a server"),
    ("UnsupportedCertVersion", "it has another version than X.509 v3"),
    ("BadSignature", "its signature is not that of its authority"),
    ("InvalidPurpose", "it was made for another purpose"),
    ("CertificateRequired", "a certificate is required"),
    ("BadCertificate", "the certificate is refused"),
    ("UnknownCA", "the authority of the certificate is not known there"),
];

/// An error of rustls, or one that shows one.
pub(crate) fn spoken(error: &dyn std::fmt::Display) -> String {
    let text = without_fields(&error.to_string());
    let mut said = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_alphanumeric() || c == '"') {
        let (before, behind) = rest.split_at(at);
        if let Some(name) = behind.strip_prefix('"') {
            // A name, of a host or of a certificate.
            let end = name.find('"').map_or(behind.len(), |end| end + 2);
            said.push_str(before);
            said.push_str(&behind[..end]);
            rest = &behind[end..];
            continue;
        }
        let end = behind.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(behind.len());
        let (word, behind) = behind.split_at(end);
        said.push_str(before);
        rest = behind;
        match SAID.iter().find(|(name, _)| *name == word) {
            Some((_, instead)) => said.push_str(instead),
            // A wrapper of another name says nothing; it takes its parentheses along.
            None if matches!(word, "Other" | "OtherError" | "Some") && rest.starts_with('(') => {
                let (inner, behind) = parenthesized(rest);
                said.push_str(&spoken(&inner));
                rest = behind;
            }
            None => said.push_str(&in_words(word)),
        }
    }
    said + rest
}

/// The text without the fields of variants, `{ … }`.
fn without_fields(text: &str) -> String {
    let (mut depth, mut kept) = (0_usize, String::with_capacity(text.len()));
    for c in text.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            c if depth == 0 => kept.push(c),
            _ => {}
        }
    }
    kept.trim_end().to_owned()
}

/// What stands in the parentheses that the text begins with, and what stands behind them.
fn parenthesized(text: &str) -> (String, &str) {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return (text[1..at].to_owned(), &text[at + 1..]),
            ')' => depth -= 1,
            _ => {}
        }
    }
    (text.trim_start_matches('(').to_owned(), "")
}

/// `NoCipherSuitesInCommon` as "no cipher suites in common"; other words stay as they are.
fn in_words(word: &str) -> String {
    let letters: Vec<char> = word.chars().collect();
    let is_hump =
        |n: usize| n > 0 && letters[n].is_ascii_uppercase() && letters[n - 1].is_ascii_lowercase();
    let is_name =
        letters.first().is_some_and(char::is_ascii_uppercase) && (0..letters.len()).any(is_hump);
    if !is_name {
        return word.to_owned();
    }
    let mut words = String::new();
    for (n, letter) in letters.iter().enumerate() {
        if is_hump(n) {
            words.push(' ');
        }
        // An abbreviation stays one.
        let alone = letters.get(n + 1).is_none_or(|next| !next.is_ascii_uppercase());
        let follows = n > 0 && letters[n - 1].is_ascii_uppercase();
        words.push(if alone && !follows { letter.to_ascii_lowercase() } else { *letter });
    }
    words
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{
        AlertDescription, CertificateError, Error, OtherError, PeerIncompatible, PeerMisbehaved,
    };

    use super::*;

    #[test]
    fn an_error_of_tls_has_no_name_of_rust() {
        let other = |error| CertificateError::Other(OtherError(Arc::new(error)));
        let certificate = Error::InvalidCertificate;
        for (error, says) in [
            (certificate(CertificateError::UnknownIssuer), "no authority that is known here"),
            (certificate(other(webpki::Error::CaUsedAsEndEntity)), "that of an authority"),
            (certificate(other(webpki::Error::UnsupportedCertVersion)), "X.509 v3"),
            (certificate(CertificateError::NotValidForName), "not valid for name"),
            (
                Error::AlertReceived(AlertDescription::UnknownCA),
                "received fatal alert: the authority",
            ),
            (Error::AlertReceived(AlertDescription::HandshakeFailure), "alert: handshake failure"),
            (
                Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon),
                "no cipher suites in common",
            ),
            (
                Error::PeerMisbehaved(PeerMisbehaved::UnsolicitedCertExtension),
                "unsolicited cert extension",
            ),
            (Error::General("as it is".into()), "unexpected error: as it is"),
        ] {
            let said = spoken(&error);
            assert!(said.contains(says), "{error:?}: {said}");
            assert!(!said.contains(['(', '{']) && !said.contains("Other"), "{said}");
        }
    }

    #[test]
    fn fields_are_left_out_and_abbreviations_stay() {
        let shown = "invalid peer certificate: UnsupportedSignatureAlgorithmContext { id: [1, 2], all: {3} }";
        assert_eq!(
            spoken(&shown),
            "invalid peer certificate: unsupported signature algorithm context"
        );
        assert_eq!(
            spoken(&"received fatal alert: UnknownPSKIdentity"),
            "received fatal alert: unknown PSKIdentity"
        );
        assert_eq!(
            spoken(&"not valid for name \"VmOne\": BadName"),
            "not valid for name \"VmOne\": bad name"
        );
        assert_eq!(spoken(&"Some(BadThing) of host.example"), "bad thing of host.example");
        assert_eq!(spoken(&"Other(OtherError(NoSuchThing"), "no such thing");
    }
}
