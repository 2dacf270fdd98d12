//! The costs of volumes in object stores, the own blocks of overlays, and the state of other
//! servers' exports, as JSON and in words. The names in the JSON are a promise; `docs/control.md`
//! explains each.

use std::sync::Arc;

use corewise::drivers::OverlayStatus;
use corewise::nbd::{RemoteState, RemoteStatus};
use serde::{Deserialize, Serialize};

use super::disks::Ops;
use crate::units;

/// A function that returns the costs of a volume that is up.
pub(crate) type StoreNow = Arc<dyn Fn() -> Option<StoreReport> + Send + Sync>;

/// The objects of a volume in its store, and the requests since the volume was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreReport {
    /// True if no other server has opened the volume, and its store hasn't lost the last writes.
    pub(crate) served: bool,
    /// True if another server has opened it.
    pub(crate) fenced: bool,
    /// True if the store has lost or damaged objects of the volume, as far as a request found.
    pub(crate) damaged: bool,
    /// Reason why the store takes no writes.
    pub(crate) refuses: Option<StoreRefusal>,
    /// Bytes of changes that the store doesn't have yet.
    pub(crate) not_stored: u64,
    pub(crate) puts: u64,
    pub(crate) gets: u64,
    pub(crate) lists: u64,
    pub(crate) deletes: u64,
    pub(crate) failures: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) space: Space,
    pub(crate) cache: Cache,
}

/// A store that takes no writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct StoreRefusal {
    pub(crate) why: String,
    /// Time of the first refusal, in seconds since 1970.
    pub(crate) since: u64,
    /// True if flushes are kept in a file, too.
    pub(crate) has_flush_file: bool,
}

/// The space of a volume's data in the store, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Space {
    /// Number of objects.
    pub(crate) segments: u64,
    pub(crate) stored: u64,
    pub(crate) used: u64,
    /// Bytes that only snapshots need.
    pub(crate) snapshots: u64,
    pub(crate) garbage: u64,
    /// Bytes in use that belong to the parent. `stored` has none of them.
    pub(crate) shared: u64,
}

/// The read cache of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Cache {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) bytes: u64,
}

/// An action on the snapshots of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotAction {
    /// Takes a snapshot with this name, or with its number as its name.
    Take(Option<String>),
    List,
    Delete(String),
}

/// A volume as it was at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Name of the snapshot, by default its number.
    pub name: String,
    pub(crate) number: u64,
    /// Time, in seconds since 1970.
    pub taken: f64,
    /// Size in bytes of the volume at that time.
    pub size: u64,
    /// Locations of the volumes that need it.
    pub clones: Vec<String>,
}

impl StoreReport {
    /// Returns the number of each kind of request, with its name in metrics.
    pub(crate) fn requests(&self) -> [(&'static str, u64); 4] {
        [("put", self.puts), ("get", self.gets), ("list", self.lists), ("delete", self.deletes)]
    }

    /// Returns two lines about requests and space, compared with the requests of clients.
    pub fn lines(&self, ops: &Ops) -> [String; 2] {
        [self.requests_in_words(ops), self.space_in_words()]
    }

    fn space_in_words(&self) -> String {
        let Space { segments, stored, used, snapshots, garbage, shared } = &self.space;
        let Cache { hits, misses, bytes } = &self.cache;
        let found = match hits + misses {
            0 => String::new(),
            all => format!(", {} % of reads found there", hits * 100 / all),
        };
        let kept = match snapshots {
            0 => String::new(),
            kept => format!(", {} for snapshots", units::about(*kept)),
        };
        let parents = match shared {
            0 => String::new(),
            shared => format!(", {} shared with its parent", units::about(*shared)),
        };
        format!(
            "{} in {}, {} in use{kept}, {} garbage{parents}; {} in the read cache{found}",
            units::about(*stored),
            units::count(*segments, "object"),
            units::about(*used),
            units::about(*garbage),
            units::about(*bytes),
        )
    }

    fn requests_in_words(&self, ops: &Ops) -> String {
        let requests: u64 = self.requests().iter().map(|(_, n)| n).sum();
        let by = |bytes: u64, of: u64, what: &str| match of {
            0 => String::new(),
            of => format!(" ({:.2} a byte {what})", bytes as f64 / of as f64),
        };
        let mut words = format!(
            "{} to the store, {} sent{}, {} received{}",
            units::count(requests, "request"),
            units::about(self.sent),
            by(self.sent, ops.writes.bytes, "written"),
            units::about(self.received),
            by(self.received, ops.reads.bytes, "read"),
        );
        if self.failures != 0 {
            words += &format!(", {} failed", self.failures);
        }
        words
    }
}

/// The own blocks of an overlay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OverlayReport {
    /// Bytes of own blocks; `None` while they are being counted.
    pub(crate) own: Option<u64>,
    /// Size of the overlay in bytes.
    pub(crate) size: u64,
    /// True if it has a base.
    pub(crate) has_base: bool,
    /// True while it fetches all blocks of its base.
    pub(crate) fetching: bool,
}

impl OverlayReport {
    pub(crate) fn new(status: &OverlayStatus) -> OverlayReport {
        let OverlayStatus { own, size, has_base, fetching, .. } = *status;
        OverlayReport { own, size, has_base, fetching }
    }

    /// Returns a line about the own blocks, and the need for a base.
    pub fn in_words(&self) -> String {
        let own = match self.own {
            Some(own) => {
                let percent = u128::from(own) * 100 / u128::from(self.size.max(1));
                format!("{} of its own ({percent} %)", units::about(own))
            }
            None => "its own blocks are being counted".to_string(),
        };
        match (self.has_base, self.fetching) {
            (false, _) => format!("{own}; it needs no base"),
            (true, true) => format!("{own}; the rest is being fetched from the base"),
            (true, false) => own,
        }
    }
}

/// A change of a whole overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverlayChange {
    /// Its own blocks are given up.
    Reset,
    /// Its own blocks are copied into the base.
    Commit,
    /// All blocks of the base become its own, while clients go on.
    Flatten,
}

impl OverlayChange {
    /// Returns the change that a question asks for.
    pub(crate) fn of(ask: &str) -> Option<OverlayChange> {
        Some(match ask {
            "reset_overlay" => OverlayChange::Reset,
            "commit_overlay" => OverlayChange::Commit,
            "flatten_overlay" => OverlayChange::Flatten,
            _ => return None,
        })
    }

    /// Returns the change as a participle.
    pub(crate) fn words(self) -> &'static str {
        match self {
            OverlayChange::Reset => "resetting",
            OverlayChange::Commit => "committing",
            OverlayChange::Flatten => "beginning to flatten",
        }
    }
}

/// The connections of a volume on another server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RemoteReport {
    pub(crate) connections: usize,
    /// True if there has been no connection for so long that requests fail at once.
    pub(crate) down: bool,
    /// Number of times that it has lost its connections.
    pub(crate) losses: u64,
    /// Flushes that failed because changes may have been lost with a connection.
    pub(crate) unflushed: u64,
    /// Reason why it last lost its connections, or has none; empty if it never did.
    pub(crate) why: String,
}

impl RemoteReport {
    pub(crate) fn new(status: &RemoteStatus) -> RemoteReport {
        let (connections, down) = match status.state {
            RemoteState::Connected(connections) => (connections, false),
            RemoteState::Down => (0, true),
            _ => (0, false),
        };
        RemoteReport {
            connections,
            down,
            losses: status.losses,
            unflushed: status.unflushed,
            why: status.why.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::disks::OpCounts;
    use super::*;

    #[test]
    fn what_the_store_gets_is_told_beside_what_clients_wrote() {
        let space = Space {
            segments: 2,
            stored: 4 << 20,
            used: 2 << 20,
            snapshots: 1 << 20,
            garbage: 1 << 20,
            shared: 1 << 20,
        };
        let cache = Cache { hits: 2, misses: 1, bytes: 4096 };
        let requests = StoreReport { puts: 2, gets: 1, ..StoreReport::default() };
        let store = StoreReport { sent: 3 << 20, failures: 1, space, cache, ..requests };
        let writes = OpCounts { requests: 1, bytes: 2 << 20, ..OpCounts::default() };
        let [words, space] = store.lines(&Ops { writes, ..Ops::default() });
        assert!(
            words.starts_with("3 requests to the store, 3.0 MiB sent (1.50 a byte written)"),
            "{words}"
        );
        assert!(words.ends_with("0 B received, 1 failed"), "{words}");
        let said = "4.0 MiB in 2 objects, 2.0 MiB in use, 1.0 MiB for snapshots, 1.0 MiB garbage, 1.0 MiB shared with its parent; 4.0 KiB in the read cache, 66 % of reads found there";
        assert_eq!(space, said);
    }
}
