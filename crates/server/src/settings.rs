//! Keys of `[server]` that a running server follows, and those that it can't.

use std::time::Duration;

use corewise::device::HangPolicy;
use corewise::sync::Mutex;

use crate::manifest;

/// What the program says instead of the manifest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    pub(crate) shutdown_timeout: Option<Duration>,
    pub(crate) on_hang: Option<HangPolicy>,
    /// Whether the service manager is told how the server is.
    pub(crate) service_manager: bool,
}

/// What counts now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// How long clients may go on.
    pub(crate) drain: Duration,
    /// How long the whole shutdown may take.
    pub(crate) shutdown_timeout: Option<Duration>,
    /// What is done about a device that hangs.
    pub(crate) on_hang: HangPolicy,
}

/// What a running server's end, and its changes, go by.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    asked: Asked,
    /// L: is the lock, held for a moment; guards what counts.
    now: Mutex<Now>,
}

impl Settings {
    pub(crate) fn new(asked: Asked, server: &manifest::Server) -> Settings {
        let settings = Settings { asked, now: Mutex::default() };
        settings.follow(server);
        settings
    }

    /// Goes by this manifest from now on.
    pub(crate) fn follow(&self, server: &manifest::Server) {
        *self.now.lock() = Now {
            drain: server.drain,
            shutdown_timeout: self.asked.shutdown_timeout.or(server.shutdown_timeout),
            on_hang: self.asked.on_hang.unwrap_or(server.on_hang),
        };
    }

    pub(crate) fn tells_service_manager(&self) -> bool {
        self.asked.service_manager
    }

    pub(crate) fn now(&self) -> Now {
        *self.now.lock()
    }
}

/// The keys of `[server]` that differ: those that a running server follows, and those that need a restart. `most`: so many clients
/// there is room for. Pure.
pub(crate) fn differ(
    old: &manifest::Server,
    new: &manifest::Server,
    most: usize,
) -> (Vec<&'static str>, Vec<&'static str>) {
    let (was, is) = (&old.clients, &new.clients);
    // More clients than its memory was shared out for.
    let room = is.most.is_some_and(|asked| asked <= most);
    let all = [
        ("drain", old.drain != new.drain, true),
        ("shutdown_timeout", old.shutdown_timeout != new.shutdown_timeout, true),
        ("on_hang", old.on_hang != new.on_hang, true),
        ("metrics", old.metrics != new.metrics, true),
        ("clients", was.most != is.most, room),
        ("clients_per_peer", was.per_peer != is.per_peer, true),
        ("evict_idle", was.evict_idle != is.evict_idle, true),
        ("request_timeout", was.request_timeout != is.request_timeout, true),
        ("reply_timeout", was.reply_timeout != is.reply_timeout, true),
        ("idle_timeout", was.idle_timeout != is.idle_timeout, true),
        ("extended_headers", was.extended_headers != is.extended_headers, true),
        ("memory", was.memory != is.memory, false),
        ("unix", old.unix != new.unix, false),
        ("tcp", old.tcp != new.tcp, false),
        ("control", old.control != new.control, false),
        ("state", old.state != new.state, false),
        ("tls_certificate", old.tls.is_some() != new.tls.is_some(), false),
    ];
    let keys = |followed| {
        let these = all.iter().filter(move |(_, differs, can)| *differs && *can == followed);
        these.map(|(key, _, _)| *key).collect()
    };
    (keys(true), keys(false))
}

/// A server that has followed what it can from `old` to `new`.
pub(crate) fn followed(
    old: &manifest::Server,
    new: &manifest::Server,
    most: usize,
) -> manifest::Server {
    let mut clients = new.clients;
    clients.memory = old.clients.memory;
    if clients.most.is_none_or(|asked| asked > most) {
        clients.most = old.clients.most;
    }
    let tls = if old.tls.is_some() == new.tls.is_some() { &new.tls } else { &old.tls };
    manifest::Server {
        drain: new.drain,
        shutdown_timeout: new.shutdown_timeout,
        on_hang: new.on_hang,
        metrics: new.metrics.clone(),
        clients,
        tls: tls.clone(),
        ..old.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(keys: &str) -> manifest::Server {
        let text = format!(
            "[server]\n{keys}\n[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n"
        );
        let read = manifest::read(&text, std::path::Path::new("/"));
        assert!(read.problems.is_empty(), "{:?}", read.problems);
        read.manifest.server
    }

    #[test]
    fn each_key_that_differs_is_followed_or_needs_a_restart_and_is_told_until_then() {
        let old = server("unix = \"s\"\nclients = 10");
        for (keys, follows, restart) in [
            ("clients = 10", vec![], vec!["unix"]),
            ("unix = \"s\"\nclients = 5", vec!["clients"], vec![]),
            ("unix = \"s\"\nclients = 11", vec![], vec!["clients"]),
            ("unix = \"s\"\nclients = 10\nmemory = \"1G\"\ntcp = 1", vec![], vec!["memory", "tcp"]),
            (
                "unix = \"s\"\nclients = 10\ndrain = \"1s\"\non_hang = \"skip\"\nmetrics = 1\nidle_timeout = \"1m\"",
                vec!["drain", "on_hang", "metrics", "idle_timeout"],
                vec![],
            ),
            (
                "unix = \"s\"\nclients = 10\ncontrol = \"c\"\nstate = \"st\"",
                vec![],
                vec!["control", "state"],
            ),
        ] {
            let new = server(keys);
            assert_eq!(differ(&old, &new, 10), (follows, restart.clone()), "{keys}");
            let has = followed(&old, &new, 10);
            assert_eq!(differ(&has, &new, 10), (vec![], restart), "{keys}");
        }
    }

    #[test]
    fn the_command_line_goes_before_the_manifest() {
        let asked = Asked { on_hang: Some(HangPolicy::Skip), ..Asked::default() };
        let settings =
            Settings::new(asked, &server("on_hang = \"give-up\"\nshutdown_timeout = \"1s\""));
        assert_eq!(settings.now().on_hang, HangPolicy::Skip);
        settings.follow(&server("drain = \"7s\""));
        let now = Now {
            drain: Duration::from_secs(7),
            shutdown_timeout: None,
            on_hang: HangPolicy::Skip,
        };
        assert_eq!(settings.now(), now);
    }
}
