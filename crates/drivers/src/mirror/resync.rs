//! The resync of a mirror: region by region, behind the requests of clients. One work item, which
//! never runs twice at once; a step of it is one region.

use std::ops::Range;
use std::sync::Arc;

use corewise_blockmq::{BlockDeviceExt, IoError};
use corewise_sync::atomic::Ordering;
use corewise_sync::time::Stamp;

use super::keeper::Keeper;
use super::legs::each;
use super::{MirrorState, disk, leg_states};

/// Most bytes that are copied at once.
const PIECE: u64 = 1 << 20;

/// The progress of the resync.
#[derive(Default)]
pub(super) struct Cursor {
    /// The region that is examined next.
    at: usize,
    /// The region that is locked, whose last writer may still be inside.
    held: Option<usize>,
    /// True if the keeper has learned since the last copy that nothing is stale.
    told: bool,
}

impl MirrorState {
    /// Makes one step: locks a region, makes the legs alike there, lets writes in again.
    pub(super) fn resync_step(self: &Arc<Self>, keeper: &Keeper) {
        let mut cursor = keeper.cursor.lock();
        if keeper.settling.load(Ordering::Relaxed) {
            if let Some(n) = cursor.held.take() {
                keeper.regions.unlock(n, false);
                keeper.kick();
            }
            return;
        }
        let region = match cursor.held {
            Some(n) if keeper.regions.is_held(n) => n,
            // The last writer out runs this once more.
            Some(_) => return,
            None => {
                let next = keeper.regions.next_stale(cursor.at);
                let stale = next.or_else(|| keeper.regions.next_stale(0));
                let n = match stale.or_else(|| self.next_to_check(keeper)) {
                    Some(n) => n,
                    None => {
                        (cursor.at, cursor.told) = (0, true);
                        return keeper.synced();
                    }
                };
                if stale.is_none() && (!cursor.told || self.legs.states.rebuilding() != 0) {
                    cursor.told = true;
                    keeper.synced();
                }
                if !keeper.regions.lock(n) {
                    cursor.held = Some(n);
                    return;
                }
                n
            }
        };
        let (begun, since) = (self.legs.begun(), Stamp::precise());
        let stale = keeper.regions.is_stale(region..region + 1);
        let (bytes, alike) = match stale {
            true => self.copy_region(keeper, region),
            false => self.check_region(keeper, region),
        };
        keeper.regions.unlock(region, alike);
        cursor.held = None;
        if stale {
            (cursor.at, cursor.told) = (region + 1, false);
            keeper.resynced.fetch_add(bytes, Ordering::Relaxed);
        }
        drop(cursor);
        // This is for the writes that the step has kept waiting.
        keeper.kick();
        let busy = self.legs.busy() || self.legs.begun() != begun;
        let options = &keeper.options;
        let took = Stamp::precise().since(since);
        let pause = |most| leg_states::pause(bytes, took, busy, options.resync_least, most);
        if !stale {
            let most = options.resync_most.min(keeper.check.lock().rate);
            // The timer is set anew: that of a slower check, which was stopped, may still run.
            let _ = keeper.queue.mod_delayed(&keeper.check_on, pause(most));
            if keeper.regions.is_stale(region..region + 1) {
                let _ = keeper.queue.queue_delayed(&keeper.resync, leg_states::AGAIN);
            }
            return;
        }
        let mut pause = pause(options.resync_most);
        if !alike {
            pause = pause.max(leg_states::AGAIN);
        }
        // False means that another thread has queued it meanwhile, without the pause; one early
        // step does no harm.
        let _ = keeper.queue.queue_delayed(&keeper.resync, pause);
    }

    /// Makes the legs alike in a region, as far as they can be read and written. Returns the
    /// region's size, and true if they are alike.
    pub(super) fn copy_region(&self, keeper: &Keeper, region: usize) -> (u64, bool) {
        if self.legs.states.active().count_ones() == 1 {
            // One leg alone differs from none, and no write waits for that.
            return (0, true);
        }
        let (whole, piece) = self.pieces(keeper, region);
        let (mut at, mut alike) = (whole.start, true);
        while at < whole.end {
            let len = piece.min(whole.end - at);
            alike &= self.copy_piece(at, len as usize);
            at += len;
        }
        (whole.end - whole.start, alike)
    }

    /// Returns the bytes of a region, and how many of them are read at once.
    pub(super) fn pieces(&self, keeper: &Keeper, region: usize) -> (Range<u64>, u64) {
        let size = keeper.regions.size();
        let first = region as u64 * size;
        let end = (first + size).min(self.geometry.size);
        let block = u64::from(self.geometry.block_size);
        let piece = PIECE.min(u64::from(self.geometry.max_transfer));
        (first..end, (piece / block).max(1) * block)
    }

    /// Returns false if used legs could not be made alike: this place doesn't count as synced.
    fn copy_piece(&self, at: u64, len: usize) -> bool {
        let mut unread: Vec<(usize, IoError)> = Vec::new();
        loop {
            let tried = unread.iter().fold(0, |tried, (n, _)| tried | 1 << n);
            let Some(from) = self.legs.choose(at, tried, true) else { break };
            let to = self.legs.states.active() & !(1 << from);
            if to == 0 {
                return true;
            }
            match disk::copy(&self.legs, from, to, (at, len), self.geometry.read_only) {
                Ok(mut failed) => {
                    // They were written to: a disk relocates such a block, and can then read it.
                    unread.retain(|(n, _)| self.legs.device(*n).read_at(at, len).is_err());
                    failed.append(&mut unread);
                    failed.iter().for_each(|(n, error)| self.drop_leg(*n, error));
                    // A leg that can't be dropped stays as it is.
                    return failed.iter().all(|(n, _)| self.legs.states.active() & 1 << n == 0);
                }
                Err(error) => unread.push((from, error)),
            }
        }
        // No leg that has this block can read it, so legs that lack the block won't get it. Other
        // legs may be right, or not.
        let Some((from, error)) = unread.first() else { return false };
        tracing::error!(offset = at, len, %error, "no leg of a mirror can be read at this place");
        let why = format!("its source '{}' cannot be read", self.legs.name(*from));
        let error = IoError::with(error.kind(), why).at(at..at + len as u64);
        for n in each(self.legs.states.rebuilding()) {
            self.drop_leg(n, &error);
        }
        self.legs.states.active().count_ones() == 1
    }
}
