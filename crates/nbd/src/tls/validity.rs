//! Whether certificates are good at this time: clients refuse the server's own that aren't, and their users hear of it first.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage};

/// Why one of these certificates, the server's and those behind it, is no good at that time. Other faults are up
/// to clients, which know the authority.
pub(super) fn fault(
    chain: &[CertificateDer<'_>],
    provider: &CryptoProvider,
    now: UnixTime,
) -> Option<String> {
    first_outside(chain, provider, now).map(|(which, when)| match when {
        When::Expired(ago) => {
            format!("{which} expired {ago} ago, so clients would refuse it: renew it")
        }
        When::NotYet(until) => format!(
            "{which} is not valid before {until} from now, so clients would refuse it: wait, or set \
             the clock of this machine"
        ),
        When::Never => format!("{which} ends before it begins, so clients would refuse it: renew it"),
    })
}

/// Why an operator should look at the clients' authorities. They are believed all the same: rustls looks at no date of an authority
/// that it is given.
pub(super) fn authority_fault(
    authorities: &[CertificateDer<'_>],
    provider: &CryptoProvider,
    now: UnixTime,
) -> Option<String> {
    first_outside(authorities, provider, now).map(|(which, when)| match when {
        When::Expired(ago) => format!("{which} expired {ago} ago"),
        When::NotYet(until) => format!("{which} is not valid before {until} from now"),
        When::Never => format!("{which} ends before it begins"),
    })
}

/// From when until when that one of these certificates is valid which expires first; `None` where
/// none says so.
pub(super) fn first_to_expire(
    chain: &[CertificateDer<'_>],
    provider: &CryptoProvider,
) -> Option<Range<SystemTime>> {
    let algorithms = provider.signature_verification_algorithms.all;
    let found = chain.iter().filter_map(|certificate| {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        // Nothing else tells its dates than the faults that it has before all time, and after it.
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

/// How far a certificate is outside of its time.
enum When {
    Expired(String),
    NotYet(String),
    /// Its end lies before its beginning.
    Never,
}

/// The first of these that isn't valid at that time: which one, and since or until when.
fn first_outside(
    chain: &[CertificateDer<'_>],
    provider: &CryptoProvider,
    now: UnixTime,
) -> Option<(String, When)> {
    let algorithms = provider.signature_verification_algorithms.all;
    chain.iter().enumerate().find_map(|(number, certificate)| {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        // The time is looked at before the authority is looked for, of which there is none here.
        let usage = KeyUsage::server_auth();
        let found = certificate.verify_for_usage(algorithms, &[], &[], now, usage, None, None);
        let which = match number {
            0 => "it".to_owned(),
            _ => format!("certificate number {} in it", number + 1),
        };
        let apart = |one: UnixTime, other: UnixTime| {
            words(Duration::from_secs(one.as_secs().abs_diff(other.as_secs())))
        };
        match found.err()? {
            webpki::Error::CertExpired { not_after, .. } => {
                Some((which, When::Expired(apart(now, not_after))))
            }
            webpki::Error::CertNotValidYet { not_before, .. } => {
                Some((which, When::NotYet(apart(now, not_before))))
            }
            webpki::Error::InvalidCertValidity => Some((which, When::Never)),
            _ => None,
        }
    })
}

/// A duration in its largest unit.
fn words(time: Duration) -> String {
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
        assert_eq!(words(Duration::from_secs(1)), "1 second");
        assert_eq!(words(Duration::from_secs(600)), "10 minutes");
    }
}
