//! The names in a certificate that was vouched for. Pure.

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT: u8 = 0x06;
/// UTF-8, printable, and ASCII: what certificates of our days have names in.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
/// 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// Its DNS names, its URIs and its common names, each as it stands there.
pub(super) fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    // It was read when it was verified.
    let Ok(certificate) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let more = certificate.valid_dns_names().chain(certificate.valid_uri_names());
    let mut names: Vec<String> = Vec::new();
    for name in more.chain(common_names(certificate.subject())) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// The common names of a subject: sets of pairs of a kind and a text.
fn common_names(mut subject: &[u8]) -> Vec<&str> {
    let mut found = Vec::new();
    while let Some((SET, mut set)) = element(&mut subject) {
        while let Some((SEQUENCE, mut pair)) = element(&mut set) {
            if element(&mut pair) != Some((OBJECT, COMMON_NAME)) {
                continue;
            }
            if let Some((tag, text)) = element(&mut pair) {
                let text = std::str::from_utf8(text).ok().filter(|_| TEXTS.contains(&tag));
                found.extend(text.filter(|text| !text.is_empty()));
            }
        }
    }
    found
}

/// Takes the first element of DER off: its tag and its content.
fn element<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (length, after) = match **rest {
        [_, length @ ..=0x7f, ref after @ ..] => (usize::from(length), after),
        [_, 0x81, length, ref after @ ..] => (usize::from(length), after),
        [_, 0x82, high, low, ref after @ ..] => {
            (usize::from(u16::from_be_bytes([high, low])), after)
        }
        _ => return None,
    };
    let tag = *rest.first()?;
    let (content, after) = after.split_at_checked(length)?;
    *rest = after;
    Some((tag, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, content.len() as u8], content].concat()
    }

    fn pair(object: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        der(SET, &der(SEQUENCE, &[der(OBJECT, object), der(tag, text)].concat()))
    }

    #[test]
    fn common_names_are_found_among_others_and_no_cut_subject_is_read_beyond_its_end() {
        let subject = [
            pair(&[0x55, 0x04, 0x0a], 0x0c, b"an organization"),
            pair(COMMON_NAME, 0x13, b"first"),
            pair(COMMON_NAME, 0x0c, b"second"),
            pair(COMMON_NAME, 0x0c, b"\xff"),
            pair(COMMON_NAME, 0x1e, b"in two bytes each"),
        ]
        .concat();
        assert_eq!(common_names(&subject), ["first", "second"]);
        for cut in 0..subject.len() {
            assert!(common_names(&subject[..cut]).len() <= 2);
        }
    }

    #[test]
    fn lengths_of_every_form_are_read_and_false_ones_are_not() {
        let long = [&[4, 0x82, 0x01, 0x00][..], &[7; 256]].concat();
        assert_eq!(element(&mut &long[..]), Some((4, &[7; 256][..])));
        assert_eq!(element(&mut &[4, 0x81, 2, 1, 2, 3][..]), Some((4, &[1, 2][..])));
        for false_one in [&[4, 0x80][..], &[4, 0x83, 0, 0, 1, 9], &[4, 2, 1], &[4], &[]] {
            assert_eq!(element(&mut { false_one }), None, "{false_one:?}");
        }
    }
}
