//! NBD URIs in the form that the NetworkBlockDevice project defines. Pure.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::wire::{DEFAULT_PORT, MAX_STRING};

/// The address of an export: `nbd://HOST[:PORT]/EXPORT`, `nbd+unix:///EXPORT?socket=PATH`, or the
/// same with `nbds`, for TLS.
///
/// ```
/// let uri: corewise_nbd::Uri = "nbd://[::1]/disk%201".parse()?;
/// assert_eq!((uri.export(), uri.tls()), ("disk 1", false));
/// assert_eq!(uri.to_string(), "nbd://[::1]/disk%201");
/// assert!("nbd+unix:///disk".parse::<corewise_nbd::Uri>().is_err(), "it says no socket");
/// # Ok::<(), corewise_nbd::UriError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    text: String,
    tls: bool,
    pub(super) address: Address,
    export: String,
    hostname: Option<String>,
}

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Unix(PathBuf),
    /// A host name or IP address, and a port.
    Tcp(String, u16),
}

/// An error that gives the reason why a text is no URI of an export, and the right form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UriError(String);

impl fmt::Display for UriError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UriError {}

impl Uri {
    /// Returns the name of the export; empty means the default one.
    pub fn export(&self) -> &str {
        &self.export
    }

    /// Returns true if the URI asks for TLS.
    pub fn tls(&self) -> bool {
        self.tls
    }

    /// Returns the URI with a relative socket path resolved against `folder`.
    #[must_use]
    pub fn within(mut self, folder: &Path) -> Uri {
        if let Address::Unix(path) = &mut self.address {
            *path = folder.join(&*path);
        }
        self
    }

    /// Returns the path of its Unix socket, or `None` if it has a host.
    pub fn socket(&self) -> Option<&Path> {
        match &self.address {
            Address::Unix(path) => Some(path),
            Address::Tcp(..) => None,
        }
    }

    /// Returns the name that the server's certificate has to carry: the value of `tls-hostname`, or
    /// the host. `None` if there is none (a Unix socket).
    pub fn hostname(&self) -> Option<&str> {
        match (&self.hostname, &self.address) {
            (Some(name), _) => Some(name),
            // No certificate carries the zone of an address, which only this machine knows.
            (None, Address::Tcp(host, _)) => host.split('%').next(),
            (None, Address::Unix(_)) => None,
        }
    }
}

/// The text is the one that was parsed.
impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn wrong<T>(why: impl Into<String>) -> Result<T, UriError> {
    Err(UriError(why.into()))
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Uri, UriError> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return wrong(
                "it has no '://': write nbd://HOST/EXPORT or nbd+unix:///EXPORT?socket=PATH",
            );
        };
        let (tls, unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => {
                return wrong(format!(
                    "the scheme '{scheme}' is unknown: use nbd, nbds, nbd+unix or nbds+unix"
                ));
            }
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = text_of(export)?;
        if export.len() > MAX_STRING {
            return wrong("the name of the export is longer than 4096 bytes");
        }
        let (mut socket, mut hostname) = (None, None);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "socket" => socket = Some(PathBuf::from(OsString::from_vec(decode(value)?))),
                "tls-hostname" => hostname = Some(text_of(value)?),
                _ => {
                    return wrong(format!(
                        "the key '{key}' is unknown: the keys after the '?' are socket and \
                         tls-hostname"
                    ));
                }
            }
        }
        if authority.contains('@') {
            return wrong(
                "it has a user name, which is for pre-shared keys: those aren't supported",
            );
        }
        let address = match (unix, socket) {
            (true, Some(path)) if authority.is_empty() => Address::Unix(path),
            (true, Some(_)) => {
                return wrong(format!("a Unix socket has no host: write {scheme}:///EXPORT"));
            }
            (true, None) => return wrong("it has no socket: write ?socket=PATH behind the export"),
            (false, Some(_)) => return wrong(format!("a socket needs {scheme}+unix")),
            (false, None) => host(authority)?,
        };
        Ok(Uri { text: text.to_owned(), tls, address, export, hostname })
    }
}

fn host(authority: &str) -> Result<Address, UriError> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) => (host, port),
            None => return wrong("a '[' without its ']'"),
        },
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => DEFAULT_PORT,
        Some("") => DEFAULT_PORT,
        Some(number) => match number.parse() {
            Ok(port) => port,
            Err(_) => return wrong(format!("'{number}' is no port")),
        },
        None => return wrong(format!("'{port}' behind the address is no port")),
    };
    let host = match authority.starts_with('[') {
        true => address(host)?,
        false => text_of(host)?,
    };
    if host.is_empty() {
        return wrong("it has no host: write nbd://localhost/EXPORT for this machine");
    }
    Ok(Address::Tcp(host, port))
}

/// Parses an address in brackets. A link-local one has a zone after `%25` (RFC 6874), or after a
/// bare `%`, as people write it and several programs accept it.
fn address(text: &str) -> Result<String, UriError> {
    match text.split_once('%') {
        // The zone may itself be 25.
        Some((address, zone)) => match zone.strip_prefix("25").filter(|zone| !zone.is_empty()) {
            Some(zone) => Ok(format!("{address}%{}", text_of(zone)?)),
            None if zone.is_empty() => wrong("a '%' without the name of a network interface"),
            None => Ok(text.to_owned()),
        },
        None => Ok(text.to_owned()),
    }
}

/// Decodes percent-encoding.
fn decode(text: &str) -> Result<Vec<u8>, UriError> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digits = rest.split_first_chunk::<2>().and_then(|(digits, behind)| {
            rest = behind;
            let [high, low] = digits.map(|d| char::from(d).to_digit(16));
            Some(high? << 4 | low?)
        });
        match digits {
            Some(0) => return wrong("it has a NUL"),
            Some(byte) => out.push(byte as u8),
            None => return wrong("a '%' needs two hexadecimal digits behind it"),
        }
    }
    Ok(out)
}

fn text_of(text: &str) -> Result<String, UriError> {
    String::from_utf8(decode(text)?).or_else(|_| wrong("it is no UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    #[test]
    fn each_kind_of_uri_says_where_the_export_is() {
        let tcp = |host: &str, port| Address::Tcp(host.to_owned(), port);
        for (text, address, export, tls) in [
            ("nbd://host", tcp("host", 10809), "", false),
            ("nbd://host/", tcp("host", 10809), "", false),
            ("nbds://host:77/a/b", tcp("host", 77), "a/b", true),
            ("nbd://[fe80::1]:5/x", tcp("fe80::1", 5), "x", false),
            ("nbd://[fe80::1%25eth0]:5/x", tcp("fe80::1%eth0", 5), "x", false),
            ("nbd://[fe80::1%eth0]:5/x", tcp("fe80::1%eth0", 5), "x", false),
            ("nbd://[fe80::1%ab]/x", tcp("fe80::1%ab", 10809), "x", false),
            ("nbd://[fe80::1%2525]/", tcp("fe80::1%25", 10809), "", false),
            ("nbd://[fe80::1%25]/", tcp("fe80::1%25", 10809), "", false),
            ("nbd://[fe80::1%25en%20p]/", tcp("fe80::1%en p", 10809), "", false),
            ("nbd+unix:///x?socket=/run/a%20b", Address::Unix("/run/a b".into()), "x", false),
            ("nbds+unix:///?socket=s&tls-hostname=h", Address::Unix("s".into()), "", true),
        ] {
            let found = uri(text);
            assert_eq!((&found.address, found.export(), found.tls()), (&address, export, tls));
            assert_eq!(found.to_string(), text);
        }
        assert_eq!(uri("nbds://host").hostname(), Some("host"));
        assert_eq!(uri("nbds://1.2.3.4?tls-hostname=disk").hostname(), Some("disk"));
        assert_eq!(uri("nbd+unix:///x?socket=s").hostname(), None);
        let within = uri("nbd+unix:///x?socket=s").within(Path::new("/run"));
        assert_eq!(within.socket(), Some(Path::new("/run/s")));
    }

    #[test]
    fn what_a_server_says_of_itself_leads_back_to_it() {
        let of = |endpoint: crate::server::Endpoint, export: &str| uri(&endpoint.uri(export));
        let unix = of(crate::server::Endpoint::Unix(Some("/a b/s?".into())), "d/1");
        assert_eq!((&unix.address, unix.export()), (&Address::Unix("/a b/s?".into()), "d/1"));
        let tcp = of(crate::server::Endpoint::Tcp("[::1]:7".parse().unwrap()), "ä");
        assert_eq!((&tcp.address, tcp.export()), (&Address::Tcp("::1".into(), 7), "ä"));
        for zone in [1, 2, 25, 2525] {
            let address = format!("[fe80::1%{zone}]:7").parse().unwrap();
            let found = of(crate::server::Endpoint::Tcp(address), "d");
            assert_eq!(found.address, Address::Tcp(format!("fe80::1%{zone}"), 7));
            assert!(found.to_string().contains(&format!("[fe80::1%25{zone}]:7")), "{found}");
            assert_eq!(found.hostname(), Some("fe80::1"));
        }
    }

    #[test]
    fn what_is_no_uri_is_answered_with_what_to_write() {
        for (text, why) in [
            ("/dev/sda", "no '://'"),
            ("http://host", "use nbd, nbds"),
            ("nbd:///x", "no host"),
            ("nbd://h:99999", "no port"),
            ("nbd://[::1", "without its"),
            ("nbd://[::1]5", "no port"),
            ("nbd://[fe80::1%]:5", "network interface"),
            ("nbd+unix:///x", "?socket="),
            ("nbd+unix://h/x?socket=s", "no host"),
            ("nbd://h/x?socket=s", "nbd+unix"),
            ("nbd://u@h/x", "pre-shared"),
            ("nbd://h/x?psk=1", "'psk'"),
            ("nbd://h/%4", "two hexadecimal"),
            ("nbd://h/%00", "NUL"),
            ("nbd://h/%ff", "UTF-8"),
        ] {
            let told = text.parse::<Uri>().unwrap_err().to_string();
            assert!(told.contains(why), "{text}: {told}");
        }
    }
}
