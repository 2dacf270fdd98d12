//! How a volume is opened that has a file of flushes: what the file has and the store hasn't goes there first, or is refused.

use std::io;
use std::sync::Arc;

use super::file::{self, Medium};
use super::{FileHead, Found, Local, Says, judge};
use crate::codec::Codec;
use crate::format::BLOCK;
use crate::log::{self, Ask, NotOpen};
use crate::store::Store;
use crate::volume::{Fault, Tuning, Volume};

/// Bytes of the ring: what may wait for the store, with what stands in front of it, and as much again, so that its beginning is seldom moved.
pub(crate) fn ring(tuning: &Tuning) -> u64 {
    2 * (tuning.dirty as u64 * BLOCK + (1 << 20))
}

/// Opens a volume, and fences the writer that has it.
pub(crate) async fn open(
    medium: Arc<dyn Medium>,
    store: Arc<Store>,
    mut ask: Ask,
    tuning: Tuning,
) -> Result<Arc<Volume>, NotOpen> {
    let failed = |error: io::Error| NotOpen::Local(error.to_string());
    ask.local = true;
    let before = file::head(&*medium).map_err(failed)?;
    let mut found = None;
    if let Some(head) = before {
        // Nobody is fenced for a file that can't be used.
        let seen = log::see(&store, &ask).await?;
        let (codec, epochs, through) = match seen {
            Some(seen) => (seen.codec, seen.epochs, seen.through),
            None => (Codec::default(), Vec::new(), 0),
        };
        let known = file::entries(&*medium, head).map_err(failed)?;
        let says = says(&store, &ask, &codec, &epochs, through, &head).await?;
        let lacking = judge(known.clone(), &says).map_err(NotOpen::Local)?;
        ask.follows = says.known && says.followed.is_none();
        if !lacking.is_empty() {
            // If this server ends before the file is begun anew, it is known for one that puts it into the store.
            ask.nonce = head.next;
        }
        found = Some(known);
    }
    let volume = Volume::open(Arc::clone(&store), ask.clone(), tuning).await?;
    if let Some(found) = found {
        put(&volume, &store, &ask, found).await?;
    }
    let writer = volume.writer();
    let next = volume.codec().random();
    let head = FileHead {
        generation: before.map_or(1, |before| before.generation + 1),
        ring: ring(&tuning),
        start: 0,
        epoch: writer.epoch,
        nonce: writer.nonce,
        next,
    };
    let local = Local::begin(medium, head, volume.codec().clone()).map_err(failed)?;
    volume.keep_flushes(Arc::new(local));
    Ok(volume)
}

/// Puts into the store what only the file has, before anybody is served.
async fn put(volume: &Arc<Volume>, store: &Store, ask: &Ask, found: Found) -> Result<(), NotOpen> {
    // Another server may have opened the volume in between.
    let (epochs, through) = volume.found();
    let says = says(store, ask, volume.codec(), &epochs, through, &found.head).await?;
    let lacking = judge(found, &says).map_err(NotOpen::Local)?;
    if lacking.is_empty() {
        return Ok(());
    }
    tracing::info!(at = %store, changes = lacking.len(), "the file of flushes is put into the store");
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

/// What the store says of the writer that a file's head names.
async fn says(
    store: &Store,
    ask: &Ask,
    codec: &Codec,
    epochs: &[u64],
    through: u64,
    head: &FileHead,
) -> Result<Says, NotOpen> {
    let mut says = Says { known: false, followed: None, through };
    for &epoch in epochs.iter().filter(|epoch| **epoch >= head.epoch) {
        let (found, opening) = log::beginning(store, ask, codec, epoch).await?;
        if epoch == head.epoch {
            says.known = found.writer == head.nonce;
        }
        if !says.known {
            break;
        }
        if found.writer != head.nonce && found.writer != head.next {
            says.followed = Some((opening.host, opening.through));
            break;
        }
    }
    Ok(says)
}
