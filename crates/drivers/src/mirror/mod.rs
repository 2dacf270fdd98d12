//! The driver `mirror`: RAID-1 over other block devices. Writes go to every leg, a read to one of
//! them.
//!
//! `README.md` beside this file argues what a crash and a failed leg leave behind, and how the
//! resync and writes avoid conflicts.

mod check;
#[cfg(test)]
mod crashes;
mod disk;
mod keeper;
pub(crate) mod leg_states;
mod legs;
mod members;
mod open;
mod record;
pub(crate) mod regions;
mod requests;
mod resync;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{
    BlockDevice, Dispatch, Driver, Geometry, Info, IoError, Op, Started, Whole,
};
use corewise_sync::atomic::Ordering;
use corewise_workqueue::EndNotice;

use crate::below::{self, StackError};
pub use check::{MirrorCheck, MirrorChecked, MirrorPlace};
use keeper::Keeper;
pub use legs::MirrorLeg;
use legs::{EVENTS, Legs, each};
pub use record::Degraded;
use regions::Overlaps;

/// A mirror.
///
/// - A change or a flush goes to all legs that are in sync or being resynced. It succeeds when it
///   has succeeded on at least one leg that is still in sync, and a leg on which it failed is
///   dropped: it gets no more requests.
/// - A read goes to the leg in sync with the fewest requests in flight; on disks that seek, to the
///   one whose last read it continues. If it fails, the mirror tries the other legs in sync in
///   turn. If another leg succeeds, the resync writes that place of the failed leg anew. It drops
///   the leg if that doesn't help, or after 20 times.
/// - The last leg in sync is never dropped: its errors reach the client.
///
/// Dropping a leg is logged as an error, and [`Mirror::status`] shows it.
///
/// A leg is in sync when it was copied from one that is. [`Mirror::open`] keeps a record on each
/// leg. The record says which legs are in sync. With it the mirror takes legs back, and resyncs
/// only regions that may differ, also after a crash. Without a record ([`MirrorOptions::record`]) a
/// dropped leg would be forgotten at the next start. So the first leg, which the others are copied
/// from at each start, is then never dropped, and a change that fails there fails.
pub struct Mirror {
    inner: Arc<MirrorState>,
    /// The notice that tells the keeper of the end of the workers.
    _notice: EndNotice,
}

struct MirrorState {
    legs: Legs,
    geometry: Geometry,
    overlaps: Overlaps,
    /// True if it began with a leg that lacked changes that were flushed.
    outdated: bool,
    /// The keeper of the record, which also runs resyncs.
    keeper: Keeper,
    /// I: identity in the record.
    id: [u8; 16],
}

/// The options of a mirror; see [`Mirror::open`].
#[derive(Clone)]
#[non_exhaustive]
pub struct MirrorOptions {
    /// True if a record is kept on the legs; the default.
    pub record: bool,
    /// Minimum speed of a resync while other requests use the legs, in bytes a second; default 10
    /// MiB.
    pub resync_least: u64,
    /// Maximum speed of a resync, in bytes a second; default 400 MiB.
    pub resync_most: u64,
    /// Time without writes after which the record says that a region's legs are alike: between once
    /// and twice this; default 5 s.
    pub clean_after: Duration,
    /// Time between two tries of a dropped leg; `None`, the default: only when
    /// [`Mirror::take_back`] asks for one.
    pub retry: Option<Duration>,
    /// The legs that may be missing at the beginning; by default those that were out when the
    /// mirror was last up.
    pub degraded: Degraded,
    /// Function that finds the device of a missing leg, by its number, when that is tried again;
    /// `None`: the leg stays out. Called on a worker, which may block; requests continue meanwhile.
    /// A panic in it is caught.
    pub find: Option<Arc<FindLeg>>,
    /// Size of the regions of a new mirror, as a power of two from 12 to 40. With `None`, and if
    /// there would be more than 65 536 regions, the mirror's size decides: 1 MiB up to 64 GiB.
    pub region_shift: Option<u32>,
    /// Function that is called at each event, on a worker; it may block, though nothing is recorded
    /// meanwhile. Dropped with the mirror. A panic in it is caught.
    pub observer: Option<Arc<MirrorObserver>>,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        Self {
            record: true,
            resync_least: 10 << 20,
            resync_most: 400 << 20,
            clean_after: Duration::from_secs(5),
            retry: None,
            degraded: Degraded::default(),
            find: None,
            region_shift: None,
            observer: None,
        }
    }
}

impl MirrorOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether a record is kept on the legs.
    #[must_use]
    pub fn record(mut self, yes: bool) -> Self {
        self.record = yes;
        self
    }

    /// Sets the minimum speed of a resync, in bytes a second.
    #[must_use]
    pub fn resync_least(mut self, bytes: u64) -> Self {
        self.resync_least = bytes;
        self
    }

    /// Sets the maximum speed of a resync, in bytes a second.
    #[must_use]
    pub fn resync_most(mut self, bytes: u64) -> Self {
        self.resync_most = bytes;
        self
    }

    /// Sets how long a region has to stay without writes.
    #[must_use]
    pub fn clean_after(mut self, time: Duration) -> Self {
        self.clean_after = time;
        self
    }

    /// Sets when a leg that was dropped is tried again.
    #[must_use]
    pub fn retry(mut self, after: Option<Duration>) -> Self {
        self.retry = after;
        self
    }

    /// Sets which legs may be missing at the beginning.
    #[must_use]
    pub fn degraded(mut self, degraded: Degraded) -> Self {
        self.degraded = degraded;
        self
    }

    /// Sets the size of the regions of a new mirror.
    #[must_use]
    pub fn region_shift(mut self, shift: Option<u32>) -> Self {
        self.region_shift = shift;
        self
    }

    /// Sets the finder of legs that were missing.
    #[must_use]
    pub fn find(
        mut self,
        find: impl Fn(usize) -> Result<Arc<dyn BlockDevice>, String> + Send + Sync + 'static,
    ) -> Self {
        self.find = Some(Arc::new(find));
        self
    }

    /// Sets the listener to the mirror's events.
    #[must_use]
    pub fn observer(mut self, observer: impl Fn(&MirrorEvent) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }
}

impl fmt::Debug for MirrorOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MirrorOptions")
            .field("record", &self.record)
            .field("resync_least", &self.resync_least)
            .field("resync_most", &self.resync_most)
            .field("clean_after", &self.clean_after)
            .field("retry", &self.retry)
            .field("degraded", &self.degraded)
            .field("region_shift", &self.region_shift)
            .finish_non_exhaustive()
    }
}

/// The listener to a mirror's events.
pub type MirrorObserver = dyn Fn(&MirrorEvent) + Send + Sync;

/// The finder of a leg's device; its error says why there is none.
pub type FindLeg = dyn Fn(usize) -> Result<Arc<dyn BlockDevice>, String> + Send + Sync;

/// An event of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MirrorEvent {
    /// The mirror began without a leg.
    Missing {
        /// Number of the leg.
        leg: usize,
        /// The reason.
        why: String,
    },
    /// A leg is out: it failed, or data that it lacks can't be read from its source.
    Dropped {
        /// Number of the leg.
        leg: usize,
        /// The reason.
        error: IoError,
    },
    /// A leg has another device, which lacks everything.
    Replaced {
        /// Number of the leg.
        leg: usize,
    },
    /// A new leg has joined, which lacks everything.
    Added {
        /// Number of the leg.
        leg: usize,
    },
    /// A leg was removed.
    Removed {
        /// Number that it had.
        leg: usize,
        /// Name of its device.
        device: String,
    },
    /// A resync has begun.
    ResyncBegan {
        /// Legs that lack data; none after a crash, since all have the acknowledged writes.
        legs: Vec<usize>,
        /// Bytes that it has to compare.
        bytes: u64,
    },
    /// A check is over, or was stopped.
    CheckEnded {
        /// The result of the check.
        check: MirrorCheck,
    },
    /// A resync is over. There is no event for one whose legs were all dropped meanwhile.
    ResyncEnded {
        /// Legs that have everything from now on.
        legs: Vec<usize>,
        /// Bytes that it has compared, and made alike if they differed.
        bytes: u64,
    },
}

/// The state of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MirrorStatus {
    /// Each leg, by its number.
    pub legs: Vec<LegState>,
    /// Bytes that a resync has yet to compare; 0 if none is needed.
    pub to_resync: u64,
    /// Bytes that it, or the last one, has compared.
    pub resynced: u64,
    /// Bytes of regions that may differ by the record: a crash now would have these resynced.
    pub dirty: u64,
    /// The present check, or the last one since the mirror was opened; `None`: there was none yet.
    pub check: Option<MirrorCheck>,
    /// The last check that came to its end. `None`: the record knows of none; without a record,
    /// there was none since it was opened.
    pub checked: Option<MirrorChecked>,
    /// Start of the time without a check, since 1970, to a second. It is the end of the last check,
    /// or the beginning of the record; without a record, that of the mirror.
    pub unchecked_since: Duration,
}

impl fmt::Display for MirrorStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = |state: LegState| self.legs.iter().filter(|leg| **leg == state).count();
        let legs = self.legs.len() - with(LegState::Removed);
        write!(f, "{} of {legs} legs in sync", with(LegState::InSync))?;
        let out = with(LegState::Out) + with(LegState::Returning);
        if out != 0 {
            write!(f, ", {out} out")?;
        }
        if self.to_resync != 0 {
            let (left, done) = (self.to_resync, self.resynced);
            let percent = u128::from(done) * 100 / (u128::from(done) + u128::from(left));
            write!(f, ", {} MiB to resync ({percent} % done)", left.div_ceil(1 << 20))?;
        }
        let Some(check) = &self.check else { return Ok(()) };
        if check.running {
            let percent = u128::from(check.checked) * 100 / u128::from(check.size.max(1));
            write!(f, ", {percent} % checked")?;
        }
        if check.differ + check.unreadable != 0 {
            let MirrorCheck { differ, unreadable, repaired, .. } = check;
            write!(
                f,
                ", the check found {differ} bytes that differ and {unreadable} that can't be read, and repaired {repaired}"
            )?;
        }
        Ok(())
    }
}

/// The state of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LegState {
    /// The leg has everything.
    InSync,
    /// The leg gets the data that it lacks. After a crash it has all acknowledged writes, and is
    /// made like the first one in sync in the regions that may differ.
    Resyncing,
    /// The leg failed, or is missing; no request goes there.
    Out,
    /// The leg is out, and is being retried.
    Returning,
    /// The leg was removed; the others keep their numbers.
    Removed,
}

impl fmt::Display for LegState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LegState::InSync => "in sync",
            LegState::Resyncing => "resyncing",
            LegState::Out => "out",
            LegState::Returning => "out, and being retried",
            LegState::Removed => "removed",
        })
    }
}

impl Mirror {
    /// Returns the count of numbers that legs have, or had: [removed](Mirror::remove) ones count
    /// too. Any context.
    pub fn legs(&self) -> usize {
        self.inner.legs.len()
    }

    /// Returns the name of leg `n`'s device; `None` if there is no such leg. Any context.
    pub fn leg_name(&self, n: usize) -> Option<String> {
        let legs = &self.inner.legs;
        self.inner.is_member(n).ok().map(|()| legs.name(n).to_string())
    }

    /// Returns the state of the mirror a moment ago. Any context.
    pub fn status(&self) -> MirrorStatus {
        let (legs, keeper) = (&self.inner.legs, &self.inner.keeper);
        let (to_resync, dirty) = keeper.amounts();
        let (in_sync, rebuilding) = (legs.states.in_sync(), legs.states.rebuilding());
        // If legs in sync may differ somewhere, they are made like the first one.
        let alike = if to_resync == 0 { in_sync } else { in_sync & in_sync.wrapping_neg() };
        let (called, removed) = (legs.called(), legs.removed());
        let state = |n: usize| match 1 << n {
            bit if removed & bit != 0 => LegState::Removed,
            bit if alike & bit != 0 => LegState::InSync,
            bit if (in_sync | rebuilding) & bit != 0 => LegState::Resyncing,
            bit if called & bit != 0 => LegState::Returning,
            _ => LegState::Out,
        };
        let resynced = keeper.resynced.load(Ordering::Relaxed);
        let guard = keeper.check.lock();
        let (check, checked, since) = (guard.report.clone(), guard.last(), guard.last.since);
        drop(guard);
        let legs = (0..legs.len()).map(state).collect();
        let unchecked_since = Duration::from_secs(since);
        MirrorStatus { legs, to_resync, resynced, dirty, check, checked, unchecked_since }
    }

    /// Returns the identity of the mirror, which is in its record on each leg, and which no other
    /// mirror has. It stays the same whatever legs come and go. `None` if there is no record.
    pub fn id(&self) -> Option<[u8; 16]> {
        self.has_record().then_some(self.inner.id)
    }

    /// Returns true if it keeps a record: which legs are in sync, and what the others lack.
    pub fn has_record(&self) -> bool {
        self.inner.keeper.has_record()
    }

    /// Returns why leg `n` is out; `None` if there is no such leg, or it isn't. Any context.
    pub fn why_out(&self, n: usize) -> Option<String> {
        let legs = &self.inner.legs;
        (n < legs.len() && legs.out() & 1 << n != 0).then(|| legs.why(n))
    }

    /// Asks for another try of leg `n`, which was dropped or missing. If its device is found and
    /// can be written to, it is resynced, and is in sync after that; else
    /// [`why_out`](Mirror::why_out) says why it isn't. Returns false if there is no such leg, it
    /// isn't out, the mirror has settled, or the worker pools were shut down. Any context; it
    /// happens on a worker.
    #[must_use = "false: there is nothing to take back"]
    pub fn take_back(&self, n: usize) -> bool {
        let inner = &self.inner;
        let keeper = &inner.keeper;
        let settled = keeper.settling.load(Ordering::Relaxed);
        if settled || n >= inner.legs.len() || inner.legs.out() & 1 << n == 0 {
            return false;
        }
        inner.take_back(keeper, 1 << n)
    }

    /// Replaces the device of leg `n`, in any state of the leg, while requests continue. The leg is
    /// then out and is resynced: it is in sync when it has everything. Until then the mirror has
    /// one leg less. Returns the former device, if there was one: the mirror sends nothing more to
    /// it. Blocks as long as it takes to write the record. The next [`open`](Mirror::open) has to
    /// be given the new device in that place.
    ///
    /// # Errors
    /// If there is no leg `n`. If it is the only one that has everything, or the first one of a
    /// mirror without a record. If the mirror has settled, or the worker pools were shut down. If
    /// the device is a leg already, is too small, lacks an ability that the mirror has, or holds
    /// other data where the record belongs (the record of this very leg is fine). If the record
    /// can't be written: then the leg is out, and keeps its device. A device that can't be written
    /// to afterwards is no error: the leg is out, and [`why_out`](Mirror::why_out) says why.
    pub fn replace(
        &self,
        n: usize,
        device: Arc<dyn BlockDevice>,
    ) -> Result<Option<Arc<dyn BlockDevice>>, StackError> {
        self.inner.replace(n, device)
    }

    /// Adds another leg, while requests continue. It is resynced: it is in sync when it has
    /// everything. Returns its number, which is higher than those of the others, as long as there
    /// is one up to 31; then that of a leg that was removed. Blocks as long as it takes to write
    /// the record. The next [`open`](Mirror::open) has to be given the device too, in the order of
    /// the numbers.
    ///
    /// # Errors
    /// The errors of [`replace`](Mirror::replace) that concern the device. Also if there are 32
    /// legs, or if the device or the record can't be written. Then there is no such leg. A device
    /// that can't be written to afterwards is no error: the leg is out, and
    /// [`why_out`](Mirror::why_out) says why.
    pub fn add(&self, device: Arc<dyn BlockDevice>) -> Result<usize, StackError> {
        self.inner.add(device)
    }

    /// Removes leg `n`, in any state, while requests continue. The others keep their numbers.
    /// Returns its device, if there was one: the mirror sends nothing more to it, and has noted
    /// that in its record. Blocks as long as it takes to write the record. The next
    /// [`open`](Mirror::open) has to be given the others alone, in the order of their numbers: it
    /// refuses this one, until that is [added](Mirror::add) again.
    ///
    /// # Errors
    /// If there is no leg `n`. If it is the only one that has everything, or the first one of a
    /// mirror without a record. If the record can't be written: then the leg is out. If the mirror
    /// has settled, or the worker pools were shut down.
    pub fn remove(&self, n: usize) -> Result<Option<Arc<dyn BlockDevice>>, StackError> {
        self.inner.remove(n)
    }

    /// Begins a check, while requests continue: all legs in sync are read and compared, at most
    /// `rate` bytes of the mirror a second (`None`: as fast as a resync). With `repair`, bytes that
    /// differ, or can't be read, are written anew with those of the first leg in sync that can be
    /// read there. Without it, they are only reported, by [`status`](Mirror::status) and
    /// [`CheckEnded`](MirrorEvent::CheckEnded). Returns false if a check is running, the mirror has
    /// settled, or the worker pools were shut down. Any context; workers do it.
    #[must_use = "false: no check was begun"]
    pub fn check(&self, rate: Option<u64>, repair: bool) -> bool {
        let keeper = &self.inner.keeper;
        if keeper.settling.load(Ordering::Relaxed) || keeper.end.has_come() {
            return false;
        }
        let (size, rate) = (self.inner.geometry.size, rate.unwrap_or(u64::MAX));
        let began = keeper.check.lock().begin(rate, repair, size);
        keeper.kick_resync();
        began
    }

    /// Stops the check; returns false if there is none. Any context.
    #[must_use = "false: there was no check"]
    pub fn stop_check(&self) -> bool {
        let stopped = self.inner.keeper.check.lock().end();
        let was = stopped.is_some();
        stopped.into_iter().for_each(|report| self.inner.tell_checked(&self.inner.keeper, report));
        was
    }

    /// Stops a resync, and brings the record up to date: without writes in flight, all legs are
    /// alike except for regions that are yet to be resynced. Call it when the queue over the mirror
    /// has been drained, before the legs close, and before the worker pools are shut down. After
    /// that the record stays as it is. May block.
    #[track_caller]
    pub fn settle(&self) {
        self.inner.keeper.settle();
    }
}

/// Returns the common abilities of the present legs.
fn check(legs: &Legs) -> Result<Geometry, StackError> {
    let all = below::combine(legs.devices());
    // A leg that lacks an ability of another one would be dropped.
    all.map(|all| Geometry { can_fast_zero: false, ..all }).ok_or_else(|| {
        StackError::new(format!("'{}' is missing, and so are all others", legs.name(0)))
    })
}

impl MirrorState {
    /// Drops leg `n`, which failed, unless it is the last one that has everything. Any context.
    fn drop_leg(&self, n: usize, error: &IoError) {
        match self.legs.states.drop_leg(n) {
            true => self.tell_dropped(n, error),
            false => self.tell_kept(n, error),
        }
    }

    /// Reports that leg `n` failed, and isn't dropped: no other one has everything, or it is out
    /// already.
    fn tell_kept(&self, n: usize, error: &IoError) {
        if error.is_logged() {
            return;
        }
        self.legs.kept(n).tell(|| {
            let (device, error) = (self.legs.name(n), error.clone());
            move |left_out: Option<u64>| {
                let below = error.device_below(&device);
                let errno = error.errno();
                tracing::warn!(leg = n, device = &*device, errno, %error, below, left_out, "a leg of a mirror failed a request, and is kept");
            }
        });
    }

    /// Reports that leg `n` was dropped.
    fn tell_dropped(&self, n: usize, error: &IoError) {
        let name = self.legs.name(n);
        let why = match error.device_below(&name) {
            Some(below) => format!("{below}: {error}"),
            None => error.to_string(),
        };
        self.legs.set_why(n, why);
        self.legs.dropped(n).tell(|| {
            let (device, error) = (name, error.clone());
            let in_sync = self.legs.states.in_sync().count_ones();
            // The message doesn't say that it failed: perhaps nothing can be copied to it.
            move |left_out: Option<u64>| {
                tracing::error!(target: EVENTS, leg = n, device = &*device, %error, left_out, in_sync, "a leg of a mirror is dropped");
            }
        });
        self.keeper.note(MirrorEvent::Dropped { leg: n, error: error.clone() });
        self.keeper.kick();
    }

    /// Drops the legs on which a request failed that succeeded on others.
    fn drop_failed(&self, ended: &disk::LegResults) {
        let (good, bad) = disk::masks(ended);
        let dropped = self.legs.states.settle(good, bad).unwrap_or_default();
        // It is reported once, although several of its pieces may have failed.
        let mut told = 0;
        for (n, end) in ended {
            let Err(error) = end else { continue };
            match told & 1 << n != 0 {
                true => {}
                false if dropped & 1 << n != 0 => self.tell_dropped(*n, error),
                false => self.tell_kept(*n, error),
            }
            told |= 1 << n;
        }
    }
}

/// Returns the legs of a mask, as numbers.
fn list(legs: u32) -> Vec<usize> {
    each(legs).collect()
}

impl Driver for Mirror {
    fn info(&self) -> Info {
        Info {
            hw_queues: usize::MAX,
            merges: false,
            knows_extents: true,
            ..Info::new("mirror", self.inner.geometry)
        }
    }

    fn is_outdated(&self) -> bool {
        self.inner.outdated
    }

    fn condition(&self) -> Option<String> {
        Some(self.status().to_string())
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        match rq.op() {
            Op::Read | Op::Extents | Op::Prefetch => self.inner.read(&Whole::new(rq)),
            _ => self.inner.change(rq),
        }
        Dispatch::Started
    }
}
