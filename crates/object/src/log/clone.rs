//! Beginning of a volume as a clone of another one's snapshot, and the marks by which the parent
//! knows its clones. README.md argues why no snapshot is deleted under a clone.

use std::time::Duration;

use bytes::Bytes;

use super::AppendOutcome;
use super::open_request::{CloneSource, NotOpen, OpenRequest};
use crate::format::{
    Codec, Damaged, HEAD, Head, Kind, Map, Opening, Origin, WholeMap, Writer, names,
};
use crate::log;
use crate::store::{Failure, Retries, Store};

/// A clone that has left its mark with its parent, and isn't a volume yet.
#[derive(Clone, Debug)]
pub(crate) struct CloneBase {
    pub(crate) codec: Codec,
    pub(crate) origin: Origin,
    pub(crate) map: Map,
    pub(crate) size: u64,
}

impl CloneBase {
    /// Returns an opening of the clone, as an earlier one of a volume would be.
    pub(crate) fn opening(&self) -> Opening {
        Opening {
            size: self.size,
            lease: 0,
            through: 0,
            local: false,
            outdated: None,
            host: String::new(),
            origin: Some(self.origin.clone()),
        }
    }
}

/// The mark that a clone leaves with its parent: it exists, or is being made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CloneMark {
    pub(crate) snapshot: u64,
    /// Nonce of the writer that makes the clone.
    pub(crate) nonce: u128,
}

impl CloneMark {
    pub(crate) fn of(origin: &Origin) -> Self {
        Self { snapshot: origin.snapshot, nonce: origin.nonce }
    }

    pub(crate) fn name(&self) -> String {
        format!("clones/{:020}-{:032x}", self.snapshot, self.nonce)
    }

    fn parse(name: &str) -> Option<Self> {
        let (snapshot, nonce) = name.split_once('-')?;
        let nonce = u128::from_str_radix(nonce, 16).ok()?;
        Some(Self { snapshot: snapshot.parse().ok()?, nonce })
    }
}

/// The mark of a writer that is about to drop a snapshot. Each attempt has its own, so a late
/// request of an earlier attempt has no effect on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DropMark {
    pub(crate) snapshot: u64,
    pub(crate) epoch: u64,
    pub(crate) nonce: u128,
}

impl DropMark {
    pub(crate) fn name(&self) -> String {
        format!("gone/{:020}-{:020}-{:032x}", self.snapshot, self.epoch, self.nonce)
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('-');
        let (snapshot, epoch) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(Self { snapshot, epoch, nonce: u128::from_str_radix(parts.next()?, 16).ok()? })
    }
}

/// Puts an object that no other server writes, until it can be read back.
pub(crate) async fn put(
    store: &Store,
    name: &str,
    object: Bytes,
    patience: Option<Duration>,
) -> Result<(), String> {
    let bytes = object.len() as u64;
    let mut tries = Retries::new(patience);
    loop {
        let asked = store.put(name, std::slice::from_ref(&object), true).await;
        let why = match (asked, store.size(name).await) {
            (_, Ok(found)) if found == bytes => return Ok(()),
            (Err(Failure::Other(why)), _) | (_, Err(Failure::Other(why))) => why,
            _ => "the store acknowledged an object that isn't there".into(),
        };
        if !tries.again(name, &why).await {
            return Err(why);
        }
    }
}

/// Returns the names in a folder.
pub(crate) async fn names<T>(
    store: &Store,
    folder: &str,
    of: impl Fn(&str) -> Option<T>,
    patience: Option<Duration>,
) -> Result<Vec<T>, String> {
    let mut tries = Retries::new(patience);
    loop {
        match store.list(folder).await {
            Ok(names) => return Ok(names.iter().filter_map(|name| of(name)).collect()),
            Err(Failure::Missing) => return Ok(Vec::new()),
            Err(Failure::Other(why)) if tries.again(folder, &why).await => {}
            Err(Failure::Other(why)) => return Err(why),
            Err(Failure::Exists) => return Err("the store can't list objects".into()),
        }
    }
}

pub(crate) async fn marks(
    store: &Store,
    patience: Option<Duration>,
) -> Result<Vec<CloneMark>, String> {
    names(store, "clones", CloneMark::parse, patience).await
}

/// Deletes an object, retrying within the patience.
pub(crate) async fn delete(store: &Store, name: &str, patience: Option<Duration>) -> bool {
    let mut tries = Retries::new(patience);
    while let Err(Failure::Other(why)) = store.delete(name).await {
        if !tries.again(name, &why).await {
            return false;
        }
    }
    true
}

/// Returns the location of the volume that left a mark. `None`: the mark is gone.
pub(crate) async fn place_of(
    store: &Store,
    codec: &Codec,
    mark: &CloneMark,
    patience: Option<Duration>,
) -> Result<Option<String>, NotOpen> {
    let name = mark.name();
    let found = log::fetch(store, &name, None, patience).await.map_err(NotOpen::Store)?;
    let Some(found) = found else { return Ok(None) };
    let damaged = |why: Damaged| NotOpen::Damaged(format!("{name}: {why}"));
    let (head, body) = codec.split(&found).map_err(damaged)?;
    if (head.kind, head.seq, head.writer) != (Kind::Mark, mark.snapshot, mark.nonce) {
        return Err(damaged(Damaged("another object has this name".into())));
    }
    let place = String::from_utf8(body.to_vec());
    place.map(Some).map_err(|_| damaged(Damaged("the mark has no location".into())))
}

/// Returns true if the volume of a mark exists. If it doesn't, it may still be made.
pub(crate) async fn has_begun(
    store: &Store,
    place: &str,
    mark: &CloneMark,
    patience: Option<Duration>,
) -> Result<bool, NotOpen> {
    let (there, name) = (store.beside(place), names::record(1));
    let first = log::fetch(&there, &name, Some(0..HEAD as u64), patience).await;
    let Some(first) = first.map_err(NotOpen::Store)? else { return Ok(false) };
    let damaged = |why: Damaged| NotOpen::Damaged(format!("{place}/{name}: {why}"));
    let first = Head::decode(&first).map_err(damaged)?;
    Ok(first.kind == Kind::Open && first.writer == mark.nonce)
}

/// Returns true if the volume of a mark exists. If it doesn't, it can't be made any more.
pub(crate) async fn is_there(
    store: &Store,
    place: &str,
    mark: &CloneMark,
    patience: Option<Duration>,
) -> Result<bool, String> {
    let there = store.beside(place);
    let by = Writer { epoch: 0, nonce: mark.nonce };
    let head = Head::new(Kind::Mark, (1, by), false, &[]);
    // Void
    match log::append(&there, &head, &[Bytes::copy_from_slice(&head.encode())], patience).await? {
        AppendOutcome::Ours => Ok(false),
        AppendOutcome::Others(found) => Ok(found.kind == Kind::Open && found.writer == mark.nonce),
    }
}

/// Leaves a mark with the parent, and reads the snapshot. Nothing is written to the clone's own
/// prefix.
pub(crate) async fn begin(
    store: &Store,
    request: &OpenRequest,
    from: &CloneSource,
) -> Result<CloneBase, NotOpen> {
    let parent = store.beside(&from.parent);
    let none = |what: &str| NotOpen::Origin(format!("{}: {what}", from.parent));
    let known = log::look(&parent, request).await.map_err(|why| match why {
        NotOpen::Key(why) => NotOpen::Key(format!("{}: {why}", from.parent)),
        NotOpen::Damaged(why) => NotOpen::Damaged(format!("{}: {why}", from.parent)),
        other => other,
    })?;
    let known = known.ok_or_else(|| none("there is no volume"))?;
    let (number, taken) =
        known.map.find(&from.snapshot).ok_or_else(|| none(&known.map.lacks(&from.snapshot)))?;
    if request.size.is_some_and(|size| size < taken.size) {
        return Err(NotOpen::Size { has: taken.size });
    }
    let mark = CloneMark { snapshot: number, nonce: request.nonce };
    let codec = &known.codec;
    let by = Writer { epoch: 0, nonce: request.nonce };
    let object = codec.object(Kind::Mark, (number, by), store.place().as_bytes()).1;
    let begun = async {
        // Mark
        put(&parent, &mark.name(), object, request.patience).await.map_err(NotOpen::Store)?;
        // LookForGone: a mark of an earlier writer has no effect, since that writer creates no more
        // records.
        let gone = names(&parent, "gone", DropMark::parse, request.patience).await;
        let last = known.epochs.last().copied().unwrap_or_default();
        let is_going = |gone: &DropMark| gone.snapshot == number && gone.epoch >= last;
        let deleted = || none(&format!("its snapshot '{}' is being deleted", from.snapshot));
        if gone.map_err(NotOpen::Store)?.iter().any(is_going) {
            return Err(deleted());
        }
        let mut origin = Origin {
            homes: vec![from.parent.clone()],
            snapshot: number,
            epoch: taken.epoch,
            name: taken.name.clone(),
            nonce: request.nonce,
        };
        let theirs = known.opening.as_ref().and_then(|opening| opening.origin.as_ref());
        origin.homes.extend(theirs.into_iter().flat_map(|theirs| theirs.homes.clone()));
        let map = base(store, request, codec, &origin).await?.ok_or_else(deleted)?;
        let codec = request.codec_of_clone(codec);
        Ok(CloneBase { codec, origin, map, size: taken.size })
    };
    let begun = begun.await;
    if begun.is_err() {
        // If the mark stays, the parent finds that there is no clone.
        delete(&parent, &mark.name(), request.patience).await;
    }
    begun
}

/// Returns the base of a clone. `None`: its parent doesn't have the snapshot any more.
pub(crate) async fn base(
    store: &Store,
    request: &OpenRequest,
    codec: &Codec,
    origin: &Origin,
) -> Result<Option<Map>, NotOpen> {
    let place = origin.homes.first().map_or("", String::as_str);
    let parent = store.beside(place);
    let name = names::snapshot(origin.snapshot, origin.epoch);
    let damaged = |why: Damaged| NotOpen::Damaged(format!("{place}: {name}: {why}"));
    let found = log::fetch(&parent, &name, None, request.patience).await.map_err(NotOpen::Store)?;
    let Some(bytes) = found else { return Ok(None) };
    let (head, body) = codec.split(&bytes).map_err(damaged)?;
    if (head.kind, head.seq, head.epoch) != (Kind::Snapshot, origin.snapshot, origin.epoch) {
        return Err(damaged(Damaged("another object has this name".into())));
    }
    if !log::is_of(&parent, request, &head).await? {
        let why = format!(
            "record {} has another writer: does the snapshot belong to another volume?",
            origin.epoch
        );
        return Err(damaged(Damaged(why)));
    }
    Ok(Some(Map::shared(WholeMap::decode(&body).map_err(damaged)?)))
}
