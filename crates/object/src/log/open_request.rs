//! The request to open a volume, and the reasons why it fails.
//!
//! [`try_store`] verifies that a store is fit: an object that exists is never created a second
//! time, even if many try at once. Otherwise two writers could each believe that they had created a
//! record.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corewise_sync::time::BootStamp;
use futures_util::future::join_all;

use crate::format::seal::Seal;
use crate::format::{Codec, Compression, Damaged, Head, Kind, ObjectKey, OpeningId, Origin, names};
use crate::store::{Failure, Overlap, Retries, Store};

/// The reason why a volume doesn't open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotOpen {
    /// The store doesn't answer, or fails.
    Store(String),
    /// The store lets a writer take a record that another one has created.
    Unfit(String),
    /// The flush file can't be used, or holds changes that can't be put into the store.
    Local(String),
    /// The previous writer kept flushes in a flush file and didn't close the volume, and that file
    /// isn't at hand.
    FlushesMissing(FlushesMissing),
    /// The volume doesn't exist, and the flush file has changes of one: the opening that flushed
    /// them, and their number, in words.
    NoVolumeOfFile { of: OpeningId, changes: String },
    /// The volume doesn't exist, and there is no size for a new one.
    NoVolume,
    /// The volume is larger than the requested size, and can't shrink.
    Size { has: u64 },
    /// The volume isn't the clone that was requested, or can't become it.
    Origin(String),
    /// Another volume lies around the location, or in it.
    Overlap(Overlap),
    /// The volume isn't encrypted by this key, or by none.
    Key(String),
    /// An object isn't as it was written.
    Damaged(String),
}

impl fmt::Display for NotOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotOpen::NoVolume => f.write_str("there is no volume"),
            NotOpen::NoVolumeOfFile { of, changes } => {
                write!(f, "there is no volume, and the flush file has {changes} of {of}")
            }
            NotOpen::Size { has } => write!(f, "the volume has {has} bytes"),
            NotOpen::Overlap(Overlap::Around(place)) => {
                write!(f, "another volume lies around this location, at {place}")
            }
            NotOpen::Overlap(Overlap::Inside(place)) => {
                write!(f, "another volume lies in this location, at {place}")
            }
            NotOpen::Overlap(Overlap::Remains(name)) => {
                write!(f, "a volume was there, of which {name} is left")
            }
            NotOpen::FlushesMissing(before) => {
                write!(f, "the flushes of {} ({}) are missing", before.id(), before.host)
            }
            NotOpen::Store(why)
            | NotOpen::Unfit(why)
            | NotOpen::Local(why)
            | NotOpen::Origin(why)
            | NotOpen::Key(why)
            | NotOpen::Damaged(why) => f.write_str(why),
        }
    }
}

/// A writer that kept flushes in a flush file and didn't close the volume: its flushes may be in
/// that file alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlushesMissing {
    pub(crate) epoch: u64,
    pub(crate) nonce: u128,
    /// Its machine, for people.
    pub(crate) host: String,
    /// Content of the flush file at hand, in words. `None`: the volume is opened without one.
    pub(crate) found: Option<String>,
}

impl FlushesMissing {
    /// Returns the opening of that writer.
    pub(crate) fn id(&self) -> OpeningId {
        OpeningId::new(self.epoch, self.nonce)
    }
}

/// The flush file that a volume is opened with.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlushesAtHand {
    /// The writer whose flushes it has. Epoch 0: of no writer.
    pub(crate) epoch: u64,
    pub(crate) nonce: u128,
    /// The nonce of the servers that put these flushes into the store. 0: none has tried.
    pub(crate) next: u128,
    /// Content of the file, in words.
    pub(crate) found: String,
    /// The last change before those that the file lacks and the operator gave up.
    pub(crate) given_up_behind: Option<u64>,
}

impl FlushesAtHand {
    /// Returns true if the file has all that this writer may have flushed into a flush file.
    fn covers(&self, epoch: u64, nonce: u128) -> bool {
        let is_theirs = self.epoch != 0 && (self.epoch, self.nonce) == (epoch, nonce);
        is_theirs || self.next != 0 && self.next == nonce
    }
}

/// The snapshot that a volume is to be cloned from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CloneSource {
    /// The prefix of its volume in the same store.
    pub(crate) parent: String,
    /// The snapshot's name, or number.
    pub(crate) snapshot: String,
}

impl CloneSource {
    /// Checks that an existing volume was cloned from this snapshot.
    pub(crate) fn check(&self, is: Option<&Origin>) -> Result<(), NotOpen> {
        let found = match is {
            None => "not a clone".to_owned(),
            Some(is) => {
                let named = is.name == self.snapshot || is.snapshot.to_string() == self.snapshot;
                if named && is.homes.first() == Some(&self.parent) {
                    return Ok(());
                }
                let parent = is.homes.first().map_or("", String::as_str);
                format!("a clone of the snapshot '{}' of {parent}", is.name)
            }
        };
        let asked = format!("a clone of '{}' of {}", self.snapshot, self.parent);
        Err(NotOpen::Origin(format!(
            "the volume exists and is {found}, not {asked}: take another location, or leave out \
             the snapshot to clone"
        )))
    }
}

/// Parameters of the opening of a volume.
#[derive(Clone, Debug)]
pub(crate) struct OpenRequest {
    /// Name of the device in log lines.
    pub(crate) device: Option<String>,
    pub(crate) size: Option<u64>,
    pub(crate) lease: Duration,
    pub(crate) host: String,
    pub(crate) nonce: u128,
    /// The flush file, if flushes are kept in one.
    pub(crate) flushes: Option<FlushesAtHand>,
    /// The writer whose flushes may be missing: the operator gave them up.
    pub(crate) accept_lost: Option<OpeningId>,
    pub(crate) patience: Option<Duration>,
    pub(crate) compression: Compression,
    pub(crate) key: Option<ObjectKey>,
    /// The snapshot that it is to be a clone of.
    pub(crate) from: Option<CloneSource>,
    /// The clock of leases, which continues while this machine is suspended.
    pub(crate) clock: fn() -> BootStamp,
}

impl OpenRequest {
    /// Checks that the flushes of the previous writer are at hand, or were given up. Otherwise the
    /// volume isn't opened, as flushed changes would be missing.
    pub(crate) fn has_flushes_of(&self, before: Option<&FlushesMissing>) -> Result<(), NotOpen> {
        match before {
            Some(before) if !self.covers(before) && self.accept_lost != Some(before.id()) => {
                let found = self.flushes.as_ref().map(|at_hand| at_hand.found.clone());
                Err(NotOpen::FlushesMissing(FlushesMissing { found, ..before.clone() }))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn covers(&self, before: &FlushesMissing) -> bool {
        let covers = |at_hand: &FlushesAtHand| at_hand.covers(before.epoch, before.nonce);
        self.flushes.as_ref().is_some_and(covers)
    }

    /// Returns the codec of a volume with this first record. For a new volume, creates the codec of
    /// that record.
    pub(crate) fn codec(&self, first: Option<&Bytes>) -> Result<Codec, NotOpen> {
        let seal = match (first, &self.key) {
            (None, None) => None,
            (None, Some(key)) => Some(Seal::make(key, self.nonce)),
            (Some(first), key) => {
                let name = names::record(1);
                let damaged = |why: Damaged| NotOpen::Damaged(format!("{name}: {why}"));
                let (head, body) = Head::split(first).map_err(damaged)?;
                if head.kind == Kind::Mark {
                    let why = "the clone was abandoned while it was made, since its snapshot was \
                               being deleted: take another location";
                    return Err(NotOpen::Origin(why.into()));
                }
                if head.seq != 1 || head.kind != Kind::Open {
                    return Err(damaged(Damaged("another object has this name".into())));
                }
                match (head.sealed, key) {
                    (false, None) => None,
                    (false, Some(_)) => {
                        let why = "a key was given, but the volume isn't encrypted: leave the key \
                                   out, or copy the data to a new volume";
                        return Err(NotOpen::Key(why.into()));
                    }
                    (true, None) => {
                        let why = "the volume is encrypted, but no key was given: give the key \
                                   that the volume was made with";
                        return Err(NotOpen::Key(why.into()));
                    }
                    (true, Some(key)) => {
                        let wrapped = body.first_chunk().ok_or_else(|| {
                            damaged(Damaged("the object is too short for a key".into()))
                        })?;
                        let seal = Seal::unwrap(key, head.writer, *wrapped).ok_or_else(|| {
                            let why = "the volume was made with another key: give that key";
                            NotOpen::Key(why.into())
                        })?;
                        Some(seal)
                    }
                }
            }
        };
        Ok(Codec { compression: self.compression, seal: seal.map(Arc::new) })
    }

    /// Returns the codec of a clone, which reads what its parent has written.
    pub(crate) fn codec_of_clone(&self, parent: &Codec) -> Codec {
        let adopt = |(seal, key): (&Arc<Seal>, _)| Arc::new(seal.adopt(key, self.nonce));
        let seal = parent.seal.as_ref().zip(self.key.as_ref()).map(adopt);
        Codec { compression: self.compression, seal }
    }
}

/// Number of simultaneous attempts to create one object, before a volume is made.
const RACERS: u8 = 8;
/// Bytes of each attempt: a server that checks first and writes later takes a while for them.
const LEN: usize = 4096;

/// Creates an object, in a race if the volume `is_new`, and once more, and verifies each time whose
/// object it is: as with a record, whatever the store answers. A race at each start would cost
/// seconds where the store has a lock for each object (SeaweedFS: up to 5 s).
pub(crate) async fn try_store(
    store: &Store,
    nonce: u128,
    is_new: bool,
    patience: Option<Duration>,
) -> Result<(), NotOpen> {
    let name = format!("try/{nonce:032x}");
    let racers = if is_new { RACERS } else { 1 };
    let tried = try_object(store, &name, racers, patience).await;
    let _ = store.delete(&name).await;
    tried
}

async fn try_object(
    store: &Store,
    name: &str,
    racers: u8,
    patience: Option<Duration>,
) -> Result<(), NotOpen> {
    let mut tries = Retries::new(patience);
    let mut first: Option<Bytes> = None;
    loop {
        let mut why = "the store acknowledged an object that is not there".to_owned();
        for found in join_all((0..racers).map(|racer| create(store, name, racer))).await {
            match found {
                Ok(found) if first.get_or_insert_with(|| found.clone()) != &found => {
                    let why =
                        "if several requests create one object at once, more than one succeeds";
                    return Err(NotOpen::Unfit(format!("{why} ({CONDITION})")));
                }
                Ok(_) => {}
                Err(Failure::Other(failed)) => why = failed,
                Err(_) => {}
            }
        }
        if first.is_some() {
            break;
        }
        if !tries.again("a first object", &why).await {
            return Err(NotOpen::Store(why));
        }
    }
    loop {
        let why = match create(store, name, RACERS).await {
            Ok(found) if Some(&found) != first.as_ref() => {
                let why = "the store overwrites an object that must not exist";
                return Err(NotOpen::Unfit(format!("{why} ({CONDITION})")));
            }
            Ok(_) => return Ok(()),
            Err(Failure::Other(why)) => why,
            Err(_) => "the store acknowledged an object that is not there".into(),
        };
        if !tries.again("a second object", &why).await {
            return Err(NotOpen::Store(why));
        }
    }
}

/// The feature that a store must have.
const CONDITION: &str = "a conditional write with If-None-Match";

/// Creates the object, and returns the first byte of the object that exists then.
async fn create(store: &Store, name: &str, what: u8) -> Result<Bytes, Failure> {
    let asked = store.put(name, &[vec![what; LEN].into()], true).await;
    match (asked, store.get(name, Some(0..1)).await) {
        (_, Ok(found)) => Ok(found),
        (Err(Failure::Other(why)), Err(Failure::Missing)) => Err(Failure::Other(why)),
        (_, Err(failure)) => Err(failure),
    }
}
