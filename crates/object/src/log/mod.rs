//! The log: a sequence of records, each created once and never changed. The server that creates the
//! next record is the writer. README.md argues why there is at most one writer.

pub(crate) mod clone;
mod open_request;

pub(crate) use open_request::{CloneSource, FlushesAtHand, FlushesMissing, NotOpen, OpenRequest};

use std::time::Duration;

use bytes::Bytes;

use self::clone::{CloneBase, CloneMark, DropMark};
use crate::format::{
    Changes, Codec, Damaged, HEAD, Head, Kind, Map, Opening, WholeMap, Writer, names, seal,
};
use crate::store::{Failure, Retries, Store};

/// Result of appending a record.
#[derive(Clone, Debug)]
pub(crate) enum AppendOutcome {
    /// The record exists for good.
    Ours,
    /// Another writer's record exists.
    Others(Head),
}

/// Creates a record, and verifies that all of it exists, whatever the store says. If it fails, the
/// record may exist, or appear later.
pub(crate) async fn append(
    store: &Store,
    head: &Head,
    object: &[Bytes],
    patience: Option<Duration>,
) -> Result<AppendOutcome, String> {
    let name = names::record(head.seq);
    let bytes: u64 = object.iter().map(|part| part.len() as u64).sum();
    let mut tries = Retries::new(patience);
    loop {
        // Create
        let asked = store.put(&name, object, true).await;
        // LookAtIt
        let why = match (asked, store.look(&name, Some(0..HEAD as u64)).await) {
            (_, Ok((size, found))) => match Head::decode(&found) {
                Ok(found) if found == *head && size == bytes => return Ok(AppendOutcome::Ours),
                Ok(found) if found == *head => {
                    format!("{name} has {size} of the {bytes} bytes that were sent")
                }
                Ok(found) => return Ok(AppendOutcome::Others(found)),
                Err(damaged) => damaged.to_string(),
            },
            (Err(Failure::Other(why)), _) | (_, Err(Failure::Other(why))) => why,
            (_, Err(Failure::Missing | Failure::Exists)) => {
                "the store reported first that the record exists, then that it doesn't".into()
            }
        };
        if !tries.again("a record", &why).await {
            return Err(why);
        }
    }
}

/// Bytes of a record that an opening fetches first: nearly always the whole body, and this much of
/// its data.
const FIRST: u64 = 64 << 10;

/// Fetches an object, or a range of its bytes (it may have fewer), retrying within the patience.
/// Returns `None` if it doesn't exist.
pub(crate) async fn fetch(
    store: &Store,
    name: &str,
    range: Option<std::ops::Range<u64>>,
    patience: Option<Duration>,
) -> Result<Option<Bytes>, String> {
    let mut tries = Retries::new(patience);
    let mut sized = false;
    loop {
        match store.get(name, range.clone()).await {
            Ok(found) => return Ok(Some(found)),
            Err(Failure::Missing) => return Ok(None),
            Err(Failure::Exists) => {
                return Err("the store reported that the object exists, but returned none".into());
            }
            // The object has no such bytes, for which each store has its own error: that doesn't
            // pass. This is checked once, as a store seldom fails.
            Err(Failure::Other(_))
                if !std::mem::replace(&mut sized, true)
                    && is_behind(store, name, range.as_ref()).await =>
            {
                return Ok(Some(Bytes::new()));
            }
            Err(Failure::Other(why)) if tries.again(name, &why).await => {}
            Err(Failure::Other(why)) => return Err(why),
        }
    }
}

/// Returns true if an object ends before a range begins.
async fn is_behind(store: &Store, name: &str, range: Option<&std::ops::Range<u64>>) -> bool {
    let Some(range) = range else { return false };
    store.size(name).await.is_ok_and(|size| size <= range.start)
}

async fn list(
    store: &Store,
    folder: &str,
    patience: Option<Duration>,
) -> Result<Vec<(u64, u64)>, NotOpen> {
    let mut tries = Retries::new(patience);
    loop {
        match store.list(folder).await {
            Ok(names) => return Ok(names.iter().filter_map(|name| names::numbers(name)).collect()),
            Err(Failure::Missing) => return Ok(Vec::new()),
            Err(Failure::Exists) => {
                return Err(NotOpen::Store("the store can't list objects".into()));
            }
            Err(Failure::Other(why)) if tries.again(folder, &why).await => {}
            Err(Failure::Other(why)) => return Err(NotOpen::Store(why)),
        }
    }
}

/// A volume according to the log.
#[derive(Clone, Debug)]
pub(crate) struct OpenedVolume {
    pub(crate) writer: Writer,
    pub(crate) codec: Codec,
    pub(crate) opening: Opening,
    pub(crate) map: Map,
    pub(crate) epochs: Vec<u64>,
    /// Number of changes in the store, of the volume's whole history.
    pub(crate) through: u64,
    /// The last record in a whole map. 0: there is none.
    pub(crate) mapped: u64,
    /// Time for which the previous writer may still believe that it is the only one.
    pub(crate) hold: Duration,
    /// Objects that are no longer needed.
    pub(crate) garbage: Vec<String>,
}

/// State of a volume, up to a record.
pub(crate) struct LogState {
    pub(crate) codec: Codec,
    last: u64,
    /// Present writer. No other writer's record can come next, except one that opens the volume.
    by: Option<(u64, u128)>,
    pub(crate) opening: Option<Opening>,
    pub(crate) map: Map,
    pub(crate) epochs: Vec<u64>,
    through: u64,
    mapped: u64,
    /// Time, in milliseconds, for which any writer may still believe that it is the only one. A
    /// writer changes nothing before its predecessors have stopped, so only those after the last
    /// change count.
    lease: u64,
}

impl LogState {
    /// Returns the last writer, if its flushes may be in a flush file alone.
    fn unfinished(&self) -> Option<FlushesMissing> {
        let ((epoch, nonce), last) = (self.by?, self.opening.as_ref()?);
        // The lease ends once a writer has closed the volume.
        let is_unfinished = last.local && self.lease != 0;
        is_unfinished.then(|| FlushesMissing { epoch, nonce, host: last.host.clone(), found: None })
    }

    fn add(&mut self, head: &Head, body: &Bytes) -> Result<(), Damaged> {
        let by = (head.epoch, head.writer);
        match head.kind {
            Kind::Commit | Kind::Close if self.by != Some(by) => {
                let why = "the record's writer didn't have the volume: does the record belong to \
                     another volume?";
                return Err(Damaged(why.into()));
            }
            Kind::Open => {
                let opening = Opening::decode(body)?;
                self.by = Some(by);
                self.lease = opening.lease.max(self.lease);
                self.opening = Some(opening);
                self.epochs.push(head.seq);
            }
            Kind::Commit => {
                // Dead segments are found by listing all.
                let changes = Changes::decode(body)?;
                self.map.apply(head.seq, head.epoch, &changes);
                self.through = changes.through.max(self.through);
                if let Some(opening) = &mut self.opening {
                    opening.size = changes.size.max(opening.size);
                    opening.local = changes.local.unwrap_or(opening.local);
                }
                self.lease = self.opening.as_ref().map_or(0, |opening| opening.lease);
            }
            Kind::Close => self.lease = 0,
            Kind::Map | Kind::Segment | Kind::Snapshot | Kind::Mark => {
                return Err(Damaged("the object is not a record".into()));
            }
        }
        self.last = head.seq;
        Ok(())
    }
}

/// Reads the newest whole map and the records behind it. Returns `None` if an active writer deleted
/// something meanwhile: retry then.
async fn load(
    store: &Store,
    request: &OpenRequest,
    begun: &FirstRecord,
) -> Result<Option<LogState>, NotOpen> {
    // The records come first: if a later map deletes some, they are missed then, and the load is
    // retried.
    let records = list(store, "log", request.patience).await?;
    let maps = list(store, "map", request.patience).await?;
    if begun.is_new && !(records.is_empty() && maps.is_empty()) {
        if records.first().is_some_and(|(seq, _)| *seq == 1) {
            // A writer has begun just now.
            return Ok(None);
        }
        let why = "record 1, the first of the volume, is missing, but later ones are there";
        return Err(NotOpen::Damaged(why.into()));
    }
    let mut known = LogState {
        codec: begun.codec.clone(),
        last: 0,
        by: None,
        opening: None,
        map: Map::default(),
        epochs: Vec::new(),
        through: 0,
        mapped: 0,
        lease: 0,
    };
    if let Some(&(seq, epoch)) = maps.last() {
        let name = names::whole_map(seq, epoch);
        let Some(bytes) =
            fetch(store, &name, None, request.patience).await.map_err(NotOpen::Store)?
        else {
            return Ok(None);
        };
        let damaged = |why: Damaged| NotOpen::Damaged(format!("{name}: {why}"));
        let (head, body) = known.codec.split(&bytes).map_err(damaged)?;
        if (head.kind, head.seq, head.epoch) != (Kind::Map, seq, epoch) {
            return Err(damaged(Damaged("another object has this name".into())));
        }
        if !is_of(store, request, &head).await? {
            let why = format!(
                "record {epoch} has another writer: does the map belong to another volume?"
            );
            return Err(damaged(Damaged(why)));
        }
        known.by = Some((epoch, head.writer));
        let whole = WholeMap::decode(&body).map_err(damaged)?;
        known.map = Map::of(&whole);
        (known.last, known.mapped) = (seq, seq);
        known.epochs = whole.epochs;
        known.lease = whole.opening.lease;
        known.through = whole.opening.through;
        known.opening = Some(whole.opening);
    }
    let last = records.last().map_or(0, |(seq, _)| *seq);
    while known.last < last {
        let seq = known.last + 1;
        let why = match read_into(store, request, seq, &mut known).await {
            Ok(true) => continue,
            Ok(false) => {
                NotOpen::Damaged(format!("record {seq} is missing, but record {last} is there"))
            }
            // A record in a place that was cleared is in no history.
            Err(why @ NotOpen::Damaged(_)) => why,
            Err(other) => return Err(other),
        };
        let newer = list(store, "map", request.patience).await?;
        return if newer.last() == maps.last() { Err(why) } else { Ok(None) };
    }
    Ok(Some(known))
}

/// Returns true if the writer of an object is the one that began its epoch. The record with which
/// it opened the volume stays for good.
pub(crate) async fn is_of(
    store: &Store,
    request: &OpenRequest,
    head: &Head,
) -> Result<bool, NotOpen> {
    let opened =
        fetch(store, &names::record(head.epoch), Some(0..HEAD as u64), request.patience).await;
    let opened = opened.map_err(NotOpen::Store)?.map(|bytes| Head::decode(&bytes));
    let is_of = |found: Head| found.kind == Kind::Open && found.writer == head.writer;
    Ok(opened.is_some_and(|found| found.is_ok_and(is_of)))
}

/// Adds a record to the state. Returns false if it doesn't exist.
async fn read_into(
    store: &Store,
    request: &OpenRequest,
    seq: u64,
    known: &mut LogState,
) -> Result<bool, NotOpen> {
    let name = names::record(seq);
    let damaged = |why: Damaged| NotOpen::Damaged(format!("{name}: {why}"));
    let found = fetch(store, &name, Some(0..FIRST), request.patience).await;
    let Some(mut bytes) = found.map_err(NotOpen::Store)? else { return Ok(false) };
    let (here, end) = (bytes.len() as u64, Head::decode(&bytes).map_err(damaged)?.end());
    if here == FIRST && end > FIRST {
        let rest = fetch(store, &name, Some(FIRST..end), request.patience).await;
        let Some(rest) = rest.map_err(NotOpen::Store)? else { return Ok(false) };
        bytes = [bytes, rest].concat().into();
    }
    let (head, body) = known.codec.split(&bytes).map_err(damaged)?;
    if head.seq != seq {
        return Err(damaged(Damaged(format!("the object is record {} by its header", head.seq))));
    }
    known.add(&head, &body).map_err(damaged)?;
    if let (1, Some(Opening { origin: Some(origin), .. })) = (seq, &known.opening) {
        let base = clone::base(store, request, &known.codec, origin).await?;
        known.map = base.ok_or_else(|| {
            let (name, parent) = (&origin.name, origin.homes.first().map_or("", String::as_str));
            damaged(Damaged(format!(
                "the snapshot '{name}' of {parent}, of which this volume is a clone, is missing"
            )))
        })?;
    }
    Ok(true)
}

/// The first record of a volume.
struct FirstRecord {
    codec: Codec,
    /// True if there is no first record yet.
    is_new: bool,
}

/// Reads the first record (ReadFirst): a key that isn't the volume's is found here.
async fn begun(store: &Store, request: &OpenRequest) -> Result<FirstRecord, NotOpen> {
    let first =
        fetch(store, &names::record(1), None, request.patience).await.map_err(NotOpen::Store)?;
    let codec = request.codec(first.as_ref())?;
    Ok(FirstRecord { codec, is_new: first.is_none() })
}

/// Checks that no other volume has objects among those of a new one, or vice versa, and that no
/// earlier one has left some there.
pub(crate) async fn stands_alone(store: &Store, request: &OpenRequest) -> Result<(), NotOpen> {
    let mut tries = Retries::new(request.patience);
    loop {
        let why = match store.overlap().await {
            Ok(None) | Err(Failure::Missing) => return Ok(()),
            Ok(Some(overlap)) => return Err(NotOpen::Overlap(overlap)),
            Err(Failure::Exists) => "the store can't list objects".into(),
            Err(Failure::Other(why)) => why,
        };
        if !tries.again("other volumes", &why).await {
            return Err(NotOpen::Store(why));
        }
    }
}

/// Opens a volume, and fences the writer that has it.
pub(crate) async fn open(store: &Store, request: &OpenRequest) -> Result<OpenedVolume, NotOpen> {
    // The checks come before any write.
    let mut first = begun(store, request).await?;
    if first.is_new {
        stands_alone(store, request).await?;
    }
    // The object has a unique name: an earlier attempt may have had the same nonce, and deletes its
    // object late.
    let name = u128::from_le_bytes(seal::random());
    open_request::try_store(store, name, first.is_new, request.patience).await?;
    let mut base: Option<CloneBase> = None;
    let mut tries = Retries::new(request.patience);
    loop {
        if let (true, None, Some(from)) = (first.is_new, &base, &request.from) {
            base = Some(clone::begin(store, request, from).await?);
        }
        if let (true, Some(base)) = (first.is_new, &base) {
            first.codec = base.codec.clone();
        }
        // ReadLog
        if let Some(mut known) = load(store, request, &first).await? {
            match (&known.opening, &mut base) {
                (Some(opening), _) => {
                    let origin = opening.origin.as_ref();
                    if let Some(base) = base.take_if(|base| Some(&base.origin) != origin) {
                        // Another server has made the volume.
                        let parent = store.beside(&base.origin.homes[0]);
                        let mark = CloneMark::of(&base.origin).name();
                        clone::delete(&parent, &mark, request.patience).await;
                    }
                    if let Some(from) = &request.from {
                        from.check(origin)?;
                    }
                }
                (None, Some(base)) => {
                    (known.opening, known.map) = (Some(base.opening()), base.map.clone());
                }
                _ => {}
            }
            if let Some(opened) = claim(store, request, known).await? {
                return Ok(opened);
            }
        }
        if first.is_new {
            first = begun(store, request).await?;
        }
        if !tries.again("the log", "the log grows faster than this server reads").await {
            return Err(NotOpen::Store("the log grows faster than this server reads".into()));
        }
    }
}

/// A volume from the view of a server that doesn't become its writer.
#[derive(Default)]
pub(crate) struct VolumeSummary {
    pub(crate) codec: Codec,
    pub(crate) epochs: Vec<u64>,
    pub(crate) through: u64,
    /// The last writer, if its flushes may be in a flush file alone.
    pub(crate) unfinished: Option<FlushesMissing>,
}

/// Reads the volume. Returns `None` if there is none.
pub(crate) async fn see(
    store: &Store,
    request: &OpenRequest,
) -> Result<Option<VolumeSummary>, NotOpen> {
    let known = look(store, request).await?;
    Ok(known.map(|known| {
        let unfinished = known.unfinished();
        let LogState { codec, epochs, through, .. } = known;
        VolumeSummary { codec, epochs, through, unfinished }
    }))
}

/// Reads the whole state, as `see`.
pub(crate) async fn look(
    store: &Store,
    request: &OpenRequest,
) -> Result<Option<LogState>, NotOpen> {
    let mut tries = Retries::new(request.patience);
    loop {
        let first = begun(store, request).await?;
        if let Some(known) = load(store, request, &first).await? {
            return Ok(known.opening.is_some().then_some(known));
        }
        if !tries.again("the log", "the log grows faster than this server reads").await {
            return Err(NotOpen::Store("the log grows faster than this server reads".into()));
        }
    }
}

/// Returns the opening of a writer.
pub(crate) async fn beginning(
    store: &Store,
    request: &OpenRequest,
    codec: &Codec,
    epoch: u64,
) -> Result<(Head, Opening), NotOpen> {
    let name = names::record(epoch);
    let found = fetch(store, &name, None, request.patience).await.map_err(NotOpen::Store)?;
    let damaged = |why: Damaged| NotOpen::Damaged(format!("{name}: {why}"));
    let found = found.ok_or_else(|| damaged(Damaged("the object is missing".into())))?;
    let (head, body) = codec.split(&found).map_err(damaged)?;
    Ok((head, Opening::decode(&body).map_err(damaged)?))
}

/// Creates the record that makes this server the writer. Returns `None` if the known state is too
/// old.
async fn claim(
    store: &Store,
    request: &OpenRequest,
    mut known: LogState,
) -> Result<Option<OpenedVolume>, NotOpen> {
    loop {
        let unfinished = known.unfinished();
        request.has_flushes_of(unfinished.as_ref())?;
        let size = match (request.size, &known.opening) {
            (None, None) => return Err(NotOpen::NoVolume),
            (Some(size), Some(before)) if size < before.size => {
                return Err(NotOpen::Size { has: before.size });
            }
            (Some(size), _) => size,
            (None, Some(before)) => before.size,
        };
        let lease = request.lease.as_millis() as u64;
        let (through, local) = (known.through, request.flushes.is_some());
        let origin = known.opening.as_ref().and_then(|before| before.origin.clone());
        let missing = unfinished.as_ref().filter(|before| !request.covers(before));
        let given_up = match (missing, &request.flushes) {
            (Some(_), _) => Some(through),
            (None, Some(at_hand)) => at_hand.given_up_behind,
            (None, None) => None,
        };
        // No writer has changed it since.
        let before = known.opening.as_ref().and_then(|before| before.outdated);
        let outdated = given_up.or(before.filter(|last| through <= *last));
        let host = request.host.clone();
        let opening = Opening { size, lease, through, local, outdated, host, origin };
        let (seq, body) = (known.last + 1, opening.encode());
        let writer = Writer { epoch: seq, nonce: request.nonce };
        let (head, object) = known.codec.object(Kind::Open, (seq, writer), &body);
        match append(store, &head, &[object], request.patience).await.map_err(NotOpen::Store)? {
            // Another server has made the volume, and its key.
            AppendOutcome::Others(_) if seq == 1 => return Ok(None),
            AppendOutcome::Others(_) => {
                // The writer was faster. Its record is read, and the next place is tried.
                match read_into(store, request, seq, &mut known).await {
                    Ok(true) => {}
                    // Otherwise the record before it was in no history. If this one is damaged, the
                    // reload finds that again.
                    Ok(false) | Err(NotOpen::Damaged(_)) => return Ok(None),
                    Err(other) => return Err(other),
                }
            }
            AppendOutcome::Ours => {
                // LookBehindIt: the list may have been so old that the place had been used and
                // cleared; then there are later records. So there are if another server has opened
                // the volume meanwhile. That server has read this record, so no server may delete
                // it. A record that no server has read is garbage to a later opening.
                let records = list(store, "log", request.patience).await?;
                if records.last().is_none_or(|(last, _)| *last != seq) {
                    return Ok(None);
                }
                if let Some(before) = unfinished.filter(|before| !request.covers(before)) {
                    let (of, host) = (before.id(), before.host);
                    let why = "flushes that its server kept in a flush file were given up (accept_lost_flushes)";
                    let device = request.device.as_deref();
                    tracing::warn!(device, at = %store, %of, %host, "{why}");
                }
                known.epochs.push(seq);
                let garbage = garbage(store, request, &known, &records, seq).await?;
                return Ok(Some(OpenedVolume {
                    writer,
                    codec: known.codec,
                    opening,
                    map: known.map,
                    epochs: known.epochs,
                    through: known.through,
                    mapped: known.mapped,
                    hold: Duration::from_millis(known.lease),
                    garbage,
                }));
            }
        }
    }
}

/// Returns objects that earlier writers left behind: segments and snapshots' maps that no record
/// points to, and records and maps that a later map replaces.
async fn garbage(
    store: &Store,
    request: &OpenRequest,
    known: &LogState,
    records: &[(u64, u64)],
    epoch: u64,
) -> Result<Vec<String>, NotOpen> {
    let used = |&(seq, of): &(u64, u64)| {
        known.map.segments.needed(seq).is_some_and(|segment| segment.epoch == of)
    };
    let segments = list(store, "seg", request.patience).await?.into_iter();
    let segments = segments.filter(|found| found.1 < epoch && !used(found));
    let maps = list(store, "map", request.patience).await?.into_iter();
    let maps = maps.filter(|(seq, _)| *seq < known.mapped);
    let of_none = |&(seq, of): &(u64, u64)| {
        of < epoch && known.map.snapshots.get(&seq).is_none_or(|taken| taken.epoch != of)
    };
    let snapshots = list(store, "snap", request.patience).await?.into_iter();
    let snapshots: Vec<_> = snapshots.filter(of_none).collect();
    // Those writers drop no more snapshots. A mark is deleted after its snapshot's map, since a
    // clone that misses the mark has to miss the map.
    let maps_go: Vec<u64> = snapshots.iter().map(|(seq, _)| *seq).collect();
    let gone = clone::names(store, "gone", DropMark::parse, request.patience).await;
    let gone = gone.map_err(NotOpen::Store)?.into_iter();
    let gone = gone.filter(|gone| gone.epoch < epoch && !maps_go.contains(&gone.snapshot));
    let records = records.iter().map(|(seq, _)| *seq);
    let records = records.filter(|seq| known.map.spares(*seq, known.mapped, &known.epochs));
    let mut all: Vec<String> = segments.map(|(seq, epoch)| names::segment(seq, epoch)).collect();
    all.extend(maps.map(|(seq, epoch)| names::whole_map(seq, epoch)));
    all.extend(snapshots.into_iter().map(|(seq, epoch)| names::snapshot(seq, epoch)));
    all.extend(gone.map(|gone| gone.name()));
    all.extend(records.map(names::record));
    Ok(all)
}
