//! The names of objects: records, segments, whole maps, maps of snapshots.

/// The record with this number.
pub(crate) fn record(seq: u64) -> String {
    format!("log/{seq:020}")
}

pub(crate) fn segment(seq: u64, epoch: u64) -> String {
    format!("seg/{seq:020}-{epoch:020}")
}

pub(crate) fn whole_map(seq: u64, epoch: u64) -> String {
    format!("map/{seq:020}-{epoch:020}")
}

pub(crate) fn snapshot(seq: u64, epoch: u64) -> String {
    format!("snap/{seq:020}-{epoch:020}")
}

/// The object that is given up where there is no room for a small one.
pub(crate) const RESERVED: &str = "reserve";

/// The numbers in the last part of a name.
pub(crate) fn numbers(name: &str) -> Option<(u64, u64)> {
    match name.split_once('-') {
        Some((seq, epoch)) => Some((seq.parse().ok()?, epoch.parse().ok()?)),
        None => Some((name.parse().ok()?, 0)),
    }
}

/// Whether a volume has an object of this name only once it has its first record.
pub(crate) fn is_behind_records(name: &str) -> bool {
    let of_a_volume = |(folder, name): (&str, &str)| {
        matches!(folder, "seg" | "map" | "snap") && numbers(name).is_some()
    };
    name == RESERVED || name.split_once('/').is_some_and(of_a_volume)
}
