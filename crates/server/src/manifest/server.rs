//! The keys of `[server]`, and the combinations that are refused.

use std::path::{Path, PathBuf};
use std::time::Duration;

use corewise::device::HangPolicy;

use super::keys::{
    CheckKeys, ValueKind, duration, flag, keys, number, path, size, text, text_or_number, word,
};
use super::problem::{Located, too_long};
use super::reader::Fields;

/// The port that IANA gave to NBD.
const NBD_PORT: u16 = 10809;

/// Policies for a device whose shutdown hangs.
pub const HANG_POLICIES: &[(&str, HangPolicy)] =
    &[("wait", HangPolicy::WaitOn), ("skip", HangPolicy::Skip), ("give-up", HangPolicy::GiveUp)];

/// Policies for clients without TLS; `true` refuses them.
const TLS: &[(&str, bool)] = &[("require", true), ("allow", false)];

keys! {
    /// The sockets, the limits of clients, and the shutdown.
    #[derive(Clone, Debug, Default, PartialEq)]
    pub struct Server {
        /// Path of a Unix socket, at most 107 bytes.
        unix: Option<Located<PathBuf>> = socket(), Unset("see below");
        /// Address to listen on: `"HOST:PORT"`, `"HOST"` (port 10809), or a port alone (host
        /// 127.0.0.1). Port 0 lets the system choose. `"0.0.0.0"` stands for all IPv4 addresses of
        /// the machine, `"[::]"` for all its addresses, `"[fe80::1%eth0]"` for a link-local one.
        tcp: Option<Located<String>> = text_or_number().parse(|text, _| tcp_address(text)),
            Unset("no TCP");
        /// Time that an export has at shutdown to answer the requests in flight. After that the
        /// server closes its connections.
        drain: Duration = duration(), Usual("\"5s\""), Follows;
        /// Path of the Unix socket that answers `corewise dump`, at most 107 bytes.
        control: Option<Located<PathBuf>> = socket(), Unset("[the default path](control.md)");
        /// Address for [Prometheus](monitoring.md#metrics): `"HOST:PORT"`, a port alone (host
        /// 127.0.0.1; port 0 lets the system choose), or the path of a Unix socket, with a `/` in
        /// it.
        metrics: Option<Located<MetricsAt>> = text_or_number().seen("a path").parse(metrics_at),
            Unset("no metrics"), Follows;
        /// Folder that records how long each device takes to go down, so that the slow ones go
        /// first next time. The server makes a missing folder.
        state: Option<PathBuf> = text().seen("a path").parse(folder), Unset("not recorded");
        /// Longest time of the whole shutdown.
        shutdown_timeout: Option<Duration> = duration(), Unset("no limit"), Follows;
        /// Policy once only hanging devices remain, in the bring-up or the shutdown: `"wait"`,
        /// `"skip"` or `"give-up"`; see [below](#what-hangs).
        on_hang: HangPolicy = word(HANG_POLICIES), Usual("\"wait\""), Follows;
        /// Memory that all clients together can take; see [below](#greedy-clients).
        memory: Option<u64> = size().within("at least 64M", "", |bytes| *bytes >= LEAST_MEMORY),
            Unset("a quarter of the memory that the process may use, by the machine, its cgroup, or \
                   `RLIMIT_AS` and `RLIMIT_DATA`");
        /// Largest number of clients at a time. Each has a thread and a descriptor. The hard limit
        /// of open files may [allow fewer](#greedy-clients).
        clients: Option<usize> = clients(),
            Unset("1,024, or as many as `memory` has room for"), FollowsWithinMemory;
        /// Largest number of clients from one address or, on the Unix socket, from one user.
        clients_per_peer: Option<usize> = clients(), Unset("all"), Follows;
        /// Idle time after which the server may evict a client for a new one. If no place is free,
        /// the server disconnects the client that has been idle for longest since its last reply.
        /// The client loses no answered request.
        evict_idle: Option<Duration> = duration(), Unset("the server refuses the new client"), Follows;
        /// Time for a client to finish a request that it began to send, plus 1 s for each MiB.
        /// After that the server disconnects the client. The next two keys have the same effect.
        request_timeout: Duration = duration().positive(""), Usual("\"30s\""), Follows;
        /// Time for a client to take a reply, plus 1 s for each MiB.
        reply_timeout: Duration = duration().positive(""), Usual("\"60s\""), Follows;
        /// Time without a request, counted from the last reply.
        idle_timeout: Option<Duration> = duration().positive(""),
            Unset("no limit"), Follows;
        /// `true` offers NBD's extended headers (`NBD_OPT_EXTENDED_HEADERS`; qemu from 8.2, libnbd
        /// from 1.18). They allow zeroes, trims, prefetches and block status of more than 4 GiB at
        /// a time. The specification calls them experimental. If it changes, a client and this
        /// server may misread each other's messages.
        extended_headers: bool = flag(), Usual("false"), Follows;
        /// File (PEM) with the server's certificate, followed by those that vouch for it. Clients
        /// may use TLS, and must unless `tls` is `"allow"`.
        tls_certificate: Option<Located<PathBuf>> = path(), Unset("no TLS"), Renews;
        /// File (PEM) with the key of that certificate.
        tls_key: Option<Located<PathBuf>> = path(), Unset("required with `tls_certificate`"), Renews;
        /// File (PEM) with the authorities of clients. A client in TLS must show a certificate of
        /// one of them; see [below](#who-may-attach).
        tls_client_ca: Option<Located<PathBuf>> = path(),
            Unset("clients in TLS need no certificate"), Renews;
        /// `"require"`: the server refuses clients without TLS. `"allow"`: clients may use TLS or
        /// not.
        tls: bool = word(TLS), Usual("\"require\""), Renews;
    }
}

/// The address at which metrics are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAt {
    /// `HOST:PORT`.
    Tcp(String),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// The settings of TLS.
#[derive(Clone, Copy, Debug)]
pub struct Tls<'a> {
    /// True if clients without TLS are refused.
    pub required: bool,
    /// The server's certificate.
    pub certificate: &'a Located<PathBuf>,
    /// The key of the certificate.
    pub key: &'a Located<PathBuf>,
    /// The authorities of clients. With `None`, clients need no certificate.
    pub client_ca: Option<&'a Located<PathBuf>>,
}

impl Server {
    /// Returns the server's Unix sockets, each with its key.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let metrics = self.metrics.as_ref().and_then(|at| match &at.value {
            MetricsAt::Unix(path) => Some(path.as_path()),
            MetricsAt::Tcp(_) => None,
        });
        let own = [("unix", &self.unix), ("control", &self.control)];
        let own = own.into_iter().filter_map(|(key, at)| Some((key, at.as_ref()?.value.as_path())));
        own.chain(metrics.map(|path| ("metrics", path)))
    }

    pub(crate) fn tls(&self) -> Option<Tls<'_>> {
        let (certificate, key) = (self.tls_certificate.as_ref()?, self.tls_key.as_ref()?);
        let client_ca = self.tls_client_ca.as_ref();
        Some(Tls { required: self.tls, certificate, key, client_ca })
    }
}

impl CheckKeys for Server {
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

/// Least memory of a server, in bytes: enough for one client that reads the largest amount allowed
/// at a time.
const LEAST_MEMORY: u64 = 64 << 20;

/// Reads a number of clients.
pub(super) fn clients() -> ValueKind<usize> {
    number().within("at least 1", "", |number| *number > 0).map(|number, _| number as usize)
}

/// Reads the path of a socket.
pub(super) fn socket() -> ValueKind<PathBuf> {
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
        "" => Err("the path is empty: leave the key out, or name a folder".to_string()),
        text => Ok(base.join(text)),
    }
}

/// Returns the policy of [`HANG_POLICIES`] with this name.
pub fn hang_policy(text: &str) -> Result<HangPolicy, String> {
    let found = HANG_POLICIES.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, policy)| *policy)
        .ok_or_else(|| format!("'{text}' is not a policy: write wait, skip or give-up"))
}

/// Reads the address of metrics: `HOST:PORT`, a port alone, or a path with a slash in it.
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

/// Makes `HOST:PORT` from an address, a host, or a port. The default host is the loopback, the
/// default port is 10809. Port 0 lets the system choose.
pub fn tcp_address(text: &str) -> Result<String, String> {
    match host_and_port(text)? {
        Some((host, port)) => Ok(format!("{host}:{}", port.unwrap_or(NBD_PORT))),
        None => Err(format!("'{text}' is not an address: write HOST:PORT, HOST or PORT")),
    }
}

/// Splits an address into a host, the loopback by default, and a port. Returns `None` if the text
/// is no address.
fn host_and_port(text: &str) -> Result<Option<(String, Option<u16>)>, String> {
    if let Some((scheme, rest)) = text.split_once("://") {
        let address = rest.split('/').next().unwrap_or_default();
        return Err(format!("leave '{scheme}://' out: write '{address}'"));
    }
    if text.contains('/') {
        return Err(format!("'{text}' is a path: write unix = \"{text}\" for a Unix socket"));
    }
    let (host, port) = match text.rsplit_once(':') {
        // No host begins with a minus: this is a number below 0.
        _ if text.starts_with('-') => ("", text),
        _ if text.chars().all(|c| c.is_ascii_digit()) => ("", text),
        // [::1] without a port: the last colon is inside the brackets.
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
    use super::super::{ResolvedManifest, read};
    use super::*;

    const PAIR: &str = "tls_certificate = \"c.pem\"\ntls_key = \"/k.pem\"\n";

    fn resolved(server: &str, export: &str) -> ResolvedManifest {
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
