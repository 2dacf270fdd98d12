//! The keys of `[server]`, and what they may say together.

use std::path::{Path, PathBuf};
use std::time::Duration;

use corewise::device::HangPolicy;

use super::keys::{
    Check, ValueKind, duration, flag, keys, number, path, size, text, text_or_number, word,
};
use super::problem::{At, too_long};
use super::reader::Fields;

/// The port that IANA gave to NBD.
const NBD_PORT: u16 = 10809;

/// What may be done about a device whose shutdown hangs.
pub const HANG_POLICIES: &[(&str, HangPolicy)] =
    &[("wait", HangPolicy::WaitOn), ("skip", HangPolicy::Skip), ("give-up", HangPolicy::GiveUp)];

/// Whether nothing is answered without TLS.
const TLS: &[(&str, bool)] = &[("require", true), ("allow", false)];

keys! {
    /// Where to listen, what clients may have, and how the server ends.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct Server {
        /// The path of a Unix socket, at most 107 bytes.
        unix: Option<At<PathBuf>> = socket(), Unset("see below");
        /// An address: `"HOST:PORT"`, `"HOST"` (port 10809), or a port alone (host 127.0.0.1); port
        /// 0 lets the system choose. `"0.0.0.0"` stands for all IPv4 addresses of the machine,
        /// `"[::]"` for all its addresses, `"[fe80::1%eth0]"` for a link-local one.
        tcp: Option<At<String>> = text_or_number().parse(|text, _| tcp_address(text)),
            Unset("no TCP");
        /// How long an export may go on answering what is in flight at shutdown; then its
        /// connections are cut.
        drain: Duration = duration(), Usual("\"5s\""), Follows;
        /// The path of the Unix socket that answers `corewise dump`, at most 107 bytes.
        control: Option<At<PathBuf>> = socket(), Unset("[the usual place](control.md)");
        /// Where [Prometheus may ask](monitoring.md#metrics): `"HOST:PORT"`, a port alone (host
        /// 127.0.0.1; port 0 lets the system choose), or the path of a Unix socket, with a `/` in
        /// it.
        metrics: Option<At<MetricsAt>> = text_or_number().seen("a path").parse(metrics_at),
            Unset("no metrics"), Follows;
        /// A folder that records how long devices take to go down, so that the slow ones go first
        /// next time; it is made if it isn't there.
        state: Option<PathBuf> = text().seen("a path").parse(folder), Unset("nothing is kept");
        /// How long the whole shutdown may take.
        shutdown_timeout: Option<Duration> = duration(), Unset("as long as it takes"), Follows;
        /// What is done once only devices that hang are left, in the bring-up or the shutdown:
        /// `"wait"`, `"skip"` or `"give-up"`; see [below](#what-hangs).
        on_hang: HangPolicy = word(HANG_POLICIES), Usual("\"wait\""), Follows;
        /// How much memory clients may take, whatever they do: see [below](#greedy-clients).
        memory: Option<u64> = size().within("at least 64M", "", |bytes| *bytes >= LEAST_MEMORY),
            Unset("a quarter of what the process may use, by the machine, its cgroup, or \
                   `RLIMIT_AS` and `RLIMIT_DATA`");
        /// How many clients at the same time; each has a thread and a descriptor. The hard limit of
        /// open files may [leave room for fewer](#greedy-clients).
        clients: Option<usize> = clients(),
            Unset("1,024, or as many as `memory` has room for"), Room;
        /// How many of them may come from one address or, on the Unix socket, from one user.
        clients_per_peer: Option<usize> = clients(), Unset("all"), Follows;
        /// If there is no place for one more client, the one that has asked for nothing for longest
        /// since its last reply is let go, if it is as long as this. Nothing that it was answered
        /// is lost.
        evict_idle: Option<Duration> = duration(), Unset("the newcomer is refused"), Follows;
        /// How long a client may take to send a request that it began, and a second more for each
        /// MiB of it; then it is disconnected, as by the next two.
        request_timeout: Duration = duration().positive(""), Usual("\"30s\""), Follows;
        /// How long it may take to take a reply, likewise.
        reply_timeout: Duration = duration().positive(""), Usual("\"60s\""), Follows;
        /// How long it may ask for nothing, from its last reply on.
        idle_timeout: Option<Duration> = duration().positive(""),
            Unset("as long as it likes"), Follows;
        /// Whether clients may have NBD's extended headers (`NBD_OPT_EXTENDED_HEADERS`; qemu from
        /// 8.2 on, libnbd from 1.18 on): zeroes, trims, prefetches and block status of more than 4
        /// GiB at a time. The specification still calls them experimental: what it says of them may
        /// change, and then a client and this server may take each other's messages for something
        /// else.
        extended_headers: bool = flag(), Usual("false"), Follows;
        /// A file (PEM) with the server's certificate, and those that vouch for it behind it:
        /// clients may use TLS, and have to.
        tls_certificate: Option<At<PathBuf>> = path(), Unset("no TLS"), Renews;
        /// A file (PEM) with the key of that certificate.
        tls_key: Option<At<PathBuf>> = path(), Unset("required with `tls_certificate`"), Renews;
        /// A file (PEM) with the authorities of clients: a client in TLS has to show a certificate
        /// of theirs. See [below](#who-may-attach).
        tls_client_ca: Option<At<PathBuf>> = path(),
            Unset("clients in TLS need no certificate"), Renews;
        /// `"require"`: nothing is answered without TLS; `"allow"`: clients may do without.
        tls: bool = word(TLS), Usual("\"require\""), Renews;
    }
}

/// Where metrics are to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAt {
    /// `HOST:PORT`.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// How clients come in by TLS.
#[derive(Clone, Copy, Debug)]
pub struct Tls<'a> {
    /// Others are refused.
    pub required: bool,
    /// The server's certificate.
    pub certificate: &'a At<PathBuf>,
    /// The key of the certificate.
    pub key: &'a At<PathBuf>,
    /// The authorities of clients; `None`: they need no certificate.
    pub client_ca: Option<&'a At<PathBuf>>,
}

impl Server {
    pub(crate) fn tls(&self) -> Option<Tls<'_>> {
        let (certificate, key) = (self.tls_certificate.as_ref()?, self.tls_key.as_ref()?);
        let client_ca = self.tls_client_ca.as_ref();
        Some(Tls { required: self.tls, certificate, key, client_ca })
    }
}

impl Check for Server {
    fn check(&self, fields: &mut Fields<'_, '_>) {
        if self.unix.is_some() && self.unix == self.control {
            let message = "'control' and 'unix' are one path: give each a socket of its own";
            fields.refuse("control", message, "");
        }
        if self.clients_per_peer.zip(self.clients).is_some_and(|(each, all)| each > all) {
            let message = "'clients_per_peer' is more than 'clients', of all peers together: lower \
                           it, or leave it out";
            fields.refuse("clients_per_peer", message, "");
        }
        if self.evict_idle.zip(self.idle_timeout).is_some_and(|(evict, idle)| evict >= idle) {
            let message = "'evict_idle' must be less than 'idle_timeout', after which idle clients \
                           are gone in any case";
            fields.refuse("evict_idle", message, "");
        }
        fields.both("tls_certificate", "tls_key");
        let has_pair = fields.has("tls_certificate") || fields.has("tls_key");
        for key in ["tls", "tls_client_ca"] {
            if !has_pair && fields.has(key) {
                let message = format!("'{key}' needs a 'tls_certificate' and its 'tls_key'");
                fields.refuse(key, message, "");
            }
        }
        if has_pair && !cfg!(feature = "tls") {
            fields.refuse("tls_certificate", "this corewise was built without TLS", "");
        }
    }
}

/// The least memory that a server can do with, in bytes: for one client that reads as much as it
/// may at a time.
const LEAST_MEMORY: u64 = 64 << 20;

/// A number of clients.
pub(super) fn clients() -> ValueKind<usize> {
    number().within("at least 1", "", |number| *number > 0).map(|number, _| number as usize)
}

/// The path of a socket.
fn socket() -> ValueKind<PathBuf> {
    text().seen("a path").parse(|text, base| {
        if text.is_empty() {
            return Err("a socket's path is empty: leave the key out, or name a path".to_string());
        }
        let path = base.join(text);
        too_long(&path).map_or(Ok(path), Err)
    })
}

fn folder(text: &str, base: &Path) -> Result<PathBuf, String> {
    match text {
        "" => Err("it is empty: leave it out, or name a folder".to_string()),
        text => Ok(base.join(text)),
    }
}

/// One of [`HANG_POLICIES`] by its name.
pub fn hang_policy(text: &str) -> Result<HangPolicy, String> {
    let found = HANG_POLICIES.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, policy)| *policy)
        .ok_or_else(|| format!("'{text}' is not a policy: write wait, skip or give-up"))
}

/// Where metrics are to be had, from `HOST:PORT`, a port alone, or a path with a slash in it.
fn metrics_at(text: &str, base: &Path) -> Result<MetricsAt, String> {
    let wrong = || {
        format!("'{text}' is no place for them: write HOST:PORT, PORT, or a path with a '/' in it")
    };
    if text.contains('/') && !text.contains("://") {
        let path = base.join(text);
        return too_long(&path).map_or(Ok(MetricsAt::Unix(path)), Err);
    }
    match host_and_port(text)?.ok_or_else(wrong)? {
        (host, Some(port)) if !text.starts_with(':') => {
            Ok(MetricsAt::Tcp(format!("{host}:{port}")))
        }
        _ => Err(wrong()),
    }
}

/// `HOST:PORT` from an address, a host, or a port. Without a host it is the loopback, without a
/// port it is 10809; port 0 lets the system choose.
pub fn tcp_address(text: &str) -> Result<String, String> {
    match host_and_port(text)? {
        Some((host, port)) => Ok(format!("{host}:{}", port.unwrap_or(NBD_PORT))),
        None => Err(format!("'{text}' is not an address: write HOST:PORT, HOST or PORT")),
    }
}

/// A host, or the loopback where there is none, and a port. `None`: it is nothing of that kind.
fn host_and_port(text: &str) -> Result<Option<(String, Option<u16>)>, String> {
    if let Some((scheme, rest)) = text.split_once("://") {
        let address = rest.split('/').next().unwrap_or_default();
        return Err(format!("leave '{scheme}://' out: write '{address}'"));
    }
    if text.contains('/') {
        return Err(format!("'{text}' is a path: write unix = \"{text}\" for a Unix socket"));
    }
    let (host, port) = match text.rsplit_once(':') {
        // No host begins so; it is a number below 0.
        _ if text.starts_with('-') => ("", text),
        _ if text.chars().all(|c| c.is_ascii_digit()) => ("", text),
        // [::1] without a port: the colon found is inside the brackets.
        Some(_) if text.ends_with(']') => (text, ""),
        Some((host, _)) if host.contains(':') && !host.starts_with('[') => {
            return Err(format!("write the address as [{text}] or [{text}]:{NBD_PORT}"));
        }
        Some((host, port)) => (host, port),
        None => (text, ""),
    };
    let suffix = if port.is_empty() { String::new() } else { format!(":{port}") };
    if host == "*" {
        return Err(format!(
            "'*' is no host: write 0.0.0.0{suffix} for all IPv4 addresses of this machine, or [::]{suffix} for all its addresses"
        ));
    }
    if host.contains(['*', ' ', '@', ',']) {
        return Ok(None);
    }
    let host = if host.is_empty() { "127.0.0.1" } else { host };
    let port = if port.is_empty() { Ok(None) } else { port.parse().map(Some) };
    Ok(port.ok().filter(|_| !text.is_empty()).map(|port| (host.to_string(), port)))
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
        let tls = found.manifest.server.tls().unwrap();
        assert!(tls.required && tls.client_ca.is_none());
        assert_eq!(tls.certificate.value, Path::new("/base/c.pem"));
        assert_eq!(tls.key.value, Path::new("/k.pem"));
        let more = format!("{PAIR}tls = \"allow\"\ntls_client_ca = \"ca.pem\"\n");
        let found = resolved(&more, "allow_certificates = [\"vm 1\"]\n");
        assert_eq!(found.problems, []);
        let tls = found.manifest.server.tls().unwrap();
        assert_eq!(tls.client_ca.unwrap().value, Path::new("/base/ca.pem"));
        assert!(!tls.required);
        let names = found.manifest.exports[0].allow_certificates.clone();
        assert_eq!(names, Some(vec!["vm 1".to_string()]));
        assert!(resolved("", "").manifest.server.tls().is_none());
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
