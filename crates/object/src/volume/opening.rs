//! Opening of a volume with a flush file. If the file has changes that the store lacks, they are
//! first written to the store, or the opening is refused.

use std::io;
use std::sync::Arc;

use super::{Fault, Tuning, Volume};
use crate::format::{BLOCK, Codec, seal};
use crate::local::file::{self, Heads};
use crate::local::{
    FileContent, FileHead, Local, Medium, ReplayPlan, WriterHistory, accept_lost, plan_replay,
};
use crate::log::{self, FlushesAtHand, NotOpen, OpenRequest, VolumeSummary};
use crate::store::Store;

/// Returns the size of the ring in bytes: twice the changes that may wait for the store, with their
/// heads. The second half makes moves of the ring's start rare.
pub(crate) fn ring(tuning: &Tuning) -> u64 {
    2 * (tuning.dirty as u64 * BLOCK + (1 << 20))
}

/// Opens a volume, and fences its former writer.
pub(crate) async fn open(
    medium: Arc<dyn Medium>,
    store: Arc<Store>,
    mut request: OpenRequest,
    tuning: Tuning,
) -> Result<Arc<Volume>, NotOpen> {
    let failed = |error: io::Error| NotOpen::Local(error.to_string());
    // ReadFile
    let Heads { newest, found: words } = file::heads(&*medium).map_err(failed)?;
    // See comes before Claim, so that no server is fenced for an unusable file.
    let seen = log::see(&store, &request).await?;
    if seen.is_none() {
        log::stands_alone(&store, &request).await?;
    }
    let mut at_hand = FlushesAtHand { found: words, ..FlushesAtHand::default() };
    let mut known = None;
    if let Some(head) = newest {
        let found = file::entries(&*medium, head).map_err(failed)?;
        let none = VolumeSummary::default();
        if seen.is_none() && !found.entries.is_empty() {
            let (of, changes) = (head.id(), found.changes());
            return Err(NotOpen::NoVolumeOfFile { of, changes });
        }
        let seen = seen.as_ref().unwrap_or(&none);
        // Judge
        let says = says(&store, &request, &seen.codec, &seen.epochs, seen.through, &head).await?;
        let gives_up = request.accept_lost == Some(head.id());
        let replay = plan_replay(found.clone(), &says, gives_up).map_err(NotOpen::Local)?;
        let last = says.through + replay.lacking.len() as u64;
        at_hand.given_up_behind = replay.given_up_from.map(|_| last);
        if says.known && says.followed.is_none() {
            (at_hand.epoch, at_hand.nonce) = (head.epoch, head.nonce);
        }
        if at_hand.epoch == head.epoch {
            at_hand.next = head.next;
        }
        if let (Some((had, has)), Some(_)) = (found.cut, &seen.unfinished) {
            let why = format!(
                "the file was truncated from {had} to {has} bytes, perhaps with flushed changes"
            );
            if !gives_up {
                return Err(NotOpen::Local(format!("{why}. {}", accept_lost(head.id()))));
            }
            let of = head.id();
            let device = request.device.as_deref();
            tracing::warn!(device, at = %store, %of, why, "the flush file is opened without its lost flushes (accept_lost_flushes)");
            at_hand.given_up_behind = Some(last);
        }
        known = Some(found);
    }
    let (of, next) = (at_hand.epoch, at_hand.next);
    request.flushes = Some(at_hand);
    request.has_flushes_of(seen.as_ref().and_then(|seen| seen.unfinished.as_ref()))?;
    medium.reserve(file::size_with(ring(&tuning))).map_err(failed)?;
    let head = match newest {
        // This nonce is used again: a server may have opened the volume with it, or a request for
        // its record may be in flight.
        Some(head) if next != 0 => head,
        // Prepare
        before => {
            let next = u128::from_le_bytes(seal::random());
            let of_nobody = FileHead { ring: ring(&tuning), ..FileHead::default() };
            let head = before.filter(|_| of != 0).unwrap_or(of_nobody);
            let generation = before.map_or(0, |before| before.generation);
            let prepared = FileHead { generation, next, ..head };
            file::write_heads(&*medium, prepared).map_err(failed)?.newest
        }
    };
    request.nonce = head.next;
    if let Some(at_hand) = &mut request.flushes {
        at_hand.next = head.next;
    }
    // Claim
    let volume = Volume::open(Arc::clone(&store), request.clone(), tuning).await?;
    if let Some(found) = known {
        put(&volume, &store, &request, found).await?;
    }
    // Begin
    let writer = volume.writer();
    let head = FileHead {
        generation: head.generation,
        ring: ring(&tuning),
        start: 0,
        epoch: writer.epoch,
        nonce: writer.nonce,
        next: 0,
        synced: 0,
    };
    let local = Local::begin(medium, head, volume.codec().clone()).map_err(failed)?;
    volume.keep_flushes(Arc::new(local));
    Ok(volume)
}

/// Writes the changes that only the file has to the store, before any client is served.
async fn put(
    volume: &Arc<Volume>,
    store: &Store,
    request: &OpenRequest,
    found: FileContent,
) -> Result<(), NotOpen> {
    // Another server may have opened the volume between See and Claim.
    let (epochs, through) = volume.found();
    // The file's head, with the nonce of this opening.
    let head = FileHead { next: request.nonce, ..found.head };
    let says = says(store, request, volume.codec(), &epochs, through, &head).await?;
    let gives_up = request.accept_lost == Some(head.id());
    let device = request.device.as_deref();
    let ReplayPlan { lacking, given_up_from } =
        plan_replay(found, &says, gives_up).map_err(NotOpen::Local)?;
    if let Some(from) = given_up_from {
        let why = "the flush file is damaged: flushed changes are given up from this number on \
                   (accept_lost_flushes)";
        tracing::warn!(device, at = %store, of = %head.id(), from, "{why}");
    }
    if lacking.is_empty() {
        return Ok(());
    }
    tracing::info!(device, at = %store, changes = lacking.len(), "the server replays the flush file into the store");
    let failed = |fault: Fault| match fault {
        Fault::Store(why) => NotOpen::Store(why),
        other => NotOpen::Store(other.to_string()),
    };
    for stored in lacking {
        let entry = stored.entry(volume.codec()).map_err(NotOpen::Local)?;
        volume.change(entry.start, entry.len, entry.chunk).await.map_err(failed)?;
    }
    volume.flush_to_store().await.map_err(failed)
}

/// Returns the store's history of the writer that a file's head names.
async fn says(
    store: &Store,
    request: &OpenRequest,
    codec: &Codec,
    epochs: &[u64],
    through: u64,
    head: &FileHead,
) -> Result<WriterHistory, NotOpen> {
    let mut says = WriterHistory { known: false, followed: None, through };
    let since = epochs.iter().filter(|epoch| head.epoch != 0 && **epoch >= head.epoch);
    for &epoch in since {
        let (found, opening) = log::beginning(store, request, codec, epoch).await?;
        if epoch == head.epoch {
            says.known = found.writer == head.nonce;
        } else if says.known && found.writer != head.next {
            says.followed = Some((opening.host, opening.through));
        }
        if !says.known || says.followed.is_some() {
            break;
        }
    }
    Ok(says)
}
