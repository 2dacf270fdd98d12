//! Keys of `[server]` that a running server follows, and those that it can't.

use std::time::Duration;

use corewise::device::HangPolicy;
use corewise::sync::Mutex;

use crate::manifest::{self, Keys, Reload};

/// The settings of the program that override the manifest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overrides {
    pub(crate) shutdown_timeout: Option<Duration>,
    pub(crate) on_hang: Option<HangPolicy>,
    /// True if the service manager gets the status.
    pub(crate) service_manager: bool,
}

/// The current settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CurrentSettings {
    /// Time that clients have to drain.
    pub(crate) drain: Duration,
    /// Longest time of the whole shutdown.
    pub(crate) shutdown_timeout: Option<Duration>,
    /// Policy for a device that hangs.
    pub(crate) on_hang: HangPolicy,
}

/// The settings for the end of a running server, and for its changes.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    asked: Overrides,
    /// L: is the lock, held for a moment; guards the current settings.
    now: Mutex<CurrentSettings>,
}

impl Settings {
    pub(crate) fn new(asked: Overrides, server: &manifest::Server) -> Settings {
        let settings = Settings { asked, now: Mutex::default() };
        settings.follow(server);
        settings
    }

    /// Applies the keys of this manifest.
    pub(crate) fn follow(&self, server: &manifest::Server) {
        *self.now.lock() = CurrentSettings {
            drain: server.drain,
            shutdown_timeout: self.asked.shutdown_timeout.or(server.shutdown_timeout),
            on_hang: self.asked.on_hang.unwrap_or(server.on_hang),
        };
    }

    pub(crate) fn tells_service_manager(&self) -> bool {
        self.asked.service_manager
    }

    pub(crate) fn now(&self) -> CurrentSettings {
        *self.now.lock()
    }
}

/// Returns true if a running server follows keys of `[server]` with this `reload`. `most` is the
/// number of clients that there is room for.
fn follows(reload: Reload, old: &manifest::Server, new: &manifest::Server, most: usize) -> bool {
    match reload {
        Reload::Follows => true,
        // More clients than memory was reserved for need a restart.
        Reload::FollowsWithinMemory => new.clients.is_some_and(|asked| asked <= most),
        Reload::Renews => old.tls().is_some() == new.tls().is_some(),
        _ => false,
    }
}

/// Returns the keys of `[server]` that differ: those that a running server follows, and those that
/// need a restart. Files shown to new clients are neither: they are read again in any case.
pub(crate) fn differ(
    old: &manifest::Server,
    new: &manifest::Server,
    most: usize,
) -> (Vec<&'static str>, Vec<&'static str>) {
    let (mut follow, mut restart) = (Vec::new(), Vec::new());
    for change in old.changes(new) {
        let renews = change.reload == Reload::Renews;
        match follows(change.reload, old, new, most) {
            true if renews => {}
            true => follow.push(change.key),
            false if renews && change.key != "tls_certificate" => {}
            false => restart.push(change.key),
        }
    }
    (follow, restart)
}

/// Returns the keys of a server that has gone from `old` to `new` as far as it can.
pub(crate) fn followed(
    old: &manifest::Server,
    new: &manifest::Server,
    most: usize,
) -> manifest::Server {
    let mut server = old.clone();
    server.take(new, |reload| follows(reload, old, new, most));
    server
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
            ("unix = \"s\"\nclients = 10\nmemory = \"1G\"\ntcp = 1", vec![], vec!["tcp", "memory"]),
            (
                "unix = \"s\"\nclients = 10\ndrain = \"1s\"\non_hang = \"skip\"\nmetrics = 1\nidle_timeout = \"1m\"",
                vec!["drain", "metrics", "on_hang", "idle_timeout"],
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
        let asked = Overrides { on_hang: Some(HangPolicy::Skip), ..Overrides::default() };
        let settings =
            Settings::new(asked, &server("on_hang = \"give-up\"\nshutdown_timeout = \"1s\""));
        assert_eq!(settings.now().on_hang, HangPolicy::Skip);
        settings.follow(&server("drain = \"7s\""));
        let now = CurrentSettings {
            drain: Duration::from_secs(7),
            shutdown_timeout: None,
            on_hang: HangPolicy::Skip,
        };
        assert_eq!(settings.now(), now);
    }
}
