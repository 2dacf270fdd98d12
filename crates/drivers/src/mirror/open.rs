//! The start of a mirror with a record: it combines the legs' records, and writes them anew.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Weak};

use corewise_blockmq::{BlockDevice, Geometry};
use corewise_sync::time::wall;
use corewise_workqueue::Workqueue;

use crate::below::{StackError, holds_data_before};
use crate::mirror::disk::Disk;
use crate::mirror::keeper::{Keeper, KeeperState};
use crate::mirror::legs::{EVENTS, Legs, MirrorLeg, all, each};
use crate::mirror::record::{Assembled, Degraded, Head, SOURCE, assemble};
use crate::mirror::regions::Overlaps;
use crate::mirror::regions::Regions;
use crate::mirror::{Mirror, MirrorEvent, MirrorOptions, MirrorState, check, disk, leg_states};

impl Mirror {
    /// Opens a mirror over `legs`.
    ///
    /// With a record ([`MirrorOptions::record`]) it lies at the end of each leg, and takes 64 KiB
    /// up to 128 KiB (more with blocks above 16 KiB). Legs that have none are new. If all are new,
    /// they become a new mirror: it has the data of the first leg, and the others are in sync once
    /// they were copied from it. The resync covers a leg that was out, and regions that were being
    /// written at a crash; no request waits for that. Workers of `wq` do it. May block for as long
    /// as the legs do.
    ///
    /// Without a record the legs' states are unknown. The mirror has the data of the first leg.
    /// Each start compares the others with it, and copies the blocks that differ.
    ///
    /// A leg that is missing, or can't be read, is out from the beginning;
    /// [`MirrorOptions::degraded`] says whether that is allowed.
    ///
    /// # Errors
    /// If there are no legs, or more than 32. If a leg is missing that may not be, or is too small
    /// (a new mirror is as large as the first one). If legs belong to different mirrors, are in
    /// another order than when it was made, or were used without each other. If a leg without a
    /// record has other data in its place. If the first leg of a new mirror, or of one without a
    /// record, is empty, and would be copied over one that isn't. If no leg that has everything can
    /// be read, or the record can't be written. Without a record: if the first leg is missing, or
    /// one has a record all the same, of any mirror.
    pub fn open(
        legs: impl IntoIterator<Item = impl Into<MirrorLeg>>,
        options: MirrorOptions,
        wq: &Workqueue,
    ) -> Result<Self, StackError> {
        let legs = Legs::new(legs.into_iter().map(Into::into).collect())?;
        let inner = MirrorState::open(legs, options, wq)?;
        let told = Arc::downgrade(&inner);
        let notice = inner.keeper.queue.on_end(move || {
            if let Some(inner) = told.upgrade() {
                inner.workers_are_gone();
            }
        });
        Ok(Self { inner, _notice: notice })
    }
}

impl MirrorState {
    /// Opens a mirror that hasn't learned of the end of the workers yet.
    pub(super) fn open(
        mut legs: Legs,
        options: MirrorOptions,
        wq: &Workqueue,
    ) -> Result<Arc<Self>, StackError> {
        let geometry = check(&legs)?;
        let block = geometry.block_size;
        let mut disk = Disk::new(block, options.record);
        let mut room = u64::MAX;
        for device in legs.devices() {
            room = room.min(disk.room_on(device.name(), device.geometry().size)?);
        }
        let assembled = match options.record {
            true => from_record(&mut disk, &mut legs, options.degraded)?,
            false => from_nothing(&legs, options.degraded)?,
        };
        if !options.record {
            legs.states.pin(SOURCE);
        }
        let mut head = match &assembled.newest {
            Some(head) => {
                let mut head = checked(head.clone(), room, &geometry)?;
                // This comes before a client's first write: a mirror that begins with a copy of
                // these legs has another name.
                head.fork(chance());
                head.events = assembled.events;
                head.legs = legs.len() as u32;
                head
            }
            None => {
                // No head was found, so each leg still has the place in which it was given.
                may_be_first(&legs, room)?;
                fit_on_all(&disk, &legs)?;
                new_head(room, &options, legs.len())
            }
        };
        if head.checked.since == 0 {
            head.checked.since = wall().as_secs();
        }
        let regions = Regions::new(head.size, head.region_shift);
        legs.states.set(assembled.in_sync);
        let bits = bits(&disk, &legs, &assembled, regions.len())?;
        let (geometry, id) = (Geometry { size: head.size, ..geometry }, head.mirror);
        let outdated = assembled.is_outdated();
        let inner = Arc::new_cyclic(|weak: &Weak<MirrorState>| {
            let state = KeeperState::new(head, bits);
            let keeper = Keeper::new(disk, regions, options, state, wq, weak);
            MirrorState { legs, geometry, overlaps: Overlaps::default(), outdated, keeper, id }
        });
        inner.start(&assembled)?;
        Ok(inner)
    }
}

/// Combines the legs' records, and checks that the mirror may begin with them.
fn from_record(
    disk: &mut Disk,
    legs: &mut Legs,
    degraded: Degraded,
) -> Result<Assembled, StackError> {
    let found = heads(disk, legs);
    for n in (0..legs.len()).filter(|&n| matches!(found[n], Some(None))) {
        vacant(disk, &*legs.device(n))?;
    }
    let is_outdated = |at: &usize| legs.there(*at).is_some_and(|it| it.device.is_outdated());
    let outdated = (0..legs.len()).filter(is_outdated).fold(0, |mask, at| mask | 1 << at);
    let assembled = assemble(&found, outdated, |at| legs.name(at).to_string())?;
    let removed = assembled.newest.as_ref().map_or(0, |head| head.removed);
    legs.renumber(&assembled.numbers, removed);
    disk.renumber(&assembled.numbers);
    assembled.may_start(degraded, |n| legs.name(n).to_string())?;
    Ok(assembled)
}

/// Returns the state without a record: the first leg has everything, as it did the last time, since
/// it is never dropped.
fn from_nothing(legs: &Legs, degraded: Degraded) -> Result<Assembled, StackError> {
    for n in (0..legs.len()).filter(|&n| legs.is_there(n)) {
        unrecorded(&legs.name(n), &*legs.device(n))?;
    }
    let here = (0..legs.len()).filter(|&n| legs.is_there(n)).fold(0, |here, n| here | 1 << n);
    let missing = all(legs.len()) & !here;
    let needed = if degraded == Degraded::Never { missing } else { missing & SOURCE };
    if let Some(n) = each(needed).next() {
        let (name, why) = (legs.name(n), legs.why(n));
        return Err(StackError::new(format!(
            "'{name}' is missing ({why}), but a mirror without a record needs all its legs"
        )));
    }
    Ok(Assembled { in_sync: SOURCE, blank: here & !SOURCE, missing, ..Assembled::default() })
}

/// Reads the newest head of each leg; `None` if the leg can't be read.
fn heads(disk: &Disk, legs: &Legs) -> Vec<Option<Option<Head>>> {
    let head = |n: usize| {
        if !legs.is_there(n) {
            return None;
        }
        let read = disk.read_head(legs, n);
        read.inspect_err(|error| legs.set_why(n, error.to_string())).ok()
    };
    (0..legs.len()).map(head).collect()
}

impl MirrorState {
    /// Writes the record anew, and begins the resync that it asks for.
    fn start(self: &Arc<Self>, assembled: &Assembled) -> Result<(), StackError> {
        let keeper = &self.keeper;
        let failed =
            |error| StackError::new(format!("cannot write the record of the mirror: {error}"));
        let mut state = keeper.state.lock();
        // A killed process may have left this in the disks' caches: it has to be durable before
        // anything depends on it.
        let here = assembled.in_sync | assembled.behind | assembled.blank;
        self.drop_failed(&disk::flush(&self.legs, here));
        // A new mirror consists of its source alone before anything else is written to any leg.
        if assembled.newest.is_none() {
            self.record(keeper, &mut state).map_err(failed)?;
        }
        for leg in each(assembled.outdated) {
            let device = &*self.legs.name(leg);
            let what = match assembled.in_sync & 1 << leg != 0 {
                true => "no other leg is in sync, so the mirror lacks these changes, too",
                false => "the mirror copies this leg in full from a leg in sync",
            };
            tracing::warn!(
                leg,
                device,
                "a leg of a mirror lacks changes that were flushed to it; {what}"
            );
        }
        let dirty = state.dirty();
        // The bits come first: a leg with a head counts as lacking only the regions with bits.
        if !dirty.is_empty() {
            self.set_bits(keeper, &mut state, &dirty).map_err(failed)?;
        }
        for leg in each(assembled.missing) {
            let (device, why) = (self.legs.name(leg), self.legs.why(leg));
            tracing::error!(target: EVENTS, leg, device = &*device, why, "a mirror starts without this leg");
            keeper.note(MirrorEvent::Missing { leg, why });
            // Reports the events, and schedules the next try.
            keeper.kick();
        }
        // A single leg differs from no other.
        if self.legs.states.in_sync().count_ones() > 1 {
            dirty.into_iter().for_each(|n| keeper.regions.mark_stale(n));
        }
        self.resync_legs(keeper, &mut state, assembled.behind | assembled.blank);
        self.record(keeper, &mut state).map_err(failed)?;
        // The second head: only then the record says that all legs in sync have a head of this
        // start, which distinguishes them from earlier copies.
        state.unwritten = true;
        self.record(keeper, &mut state).map_err(failed)?;
        // This doesn't happen if a resync has begun, even if its legs are out again by now.
        if keeper.regions.stale() != 0 && state.resyncing.is_none() {
            self.begin_resync(keeper, &mut state, 0);
        }
        Ok(())
    }
}

/// Checks that the content of a new mirror's first leg fits on the others.
fn fit_on_all(disk: &Disk, legs: &Legs) -> Result<(), StackError> {
    let mut rooms = Vec::new();
    for device in legs.devices() {
        rooms
            .push((device.name().to_owned(), disk.room_on(device.name(), device.geometry().size)?));
    }
    let Some(((first, size), others)) = rooms.split_first() else { return Ok(()) };
    match others.iter().find(|(_, room)| room < size) {
        None => Ok(()),
        Some((name, room)) => Err(StackError::new(format!(
            "'{name}' has room for {room} bytes, but a new mirror starts with the {size} bytes of \
             '{first}'. Use a larger device in place of '{name}'"
        ))),
    }
}

/// Makes the head of a new mirror.
fn new_head(size: u64, options: &MirrorOptions, legs: usize) -> Head {
    let fits = |shift: &u32| {
        (12..=40).contains(shift) && size.div_ceil(1 << shift) <= leg_states::MOST_REGIONS
    };
    let asked = options.region_shift.filter(fits);
    let region_shift = asked.unwrap_or_else(|| leg_states::region_shift(size));
    let mut mirror = [0; 16];
    for half in mirror.chunks_exact_mut(8) {
        half.copy_from_slice(&chance().to_le_bytes());
    }
    let legs = legs as u32;
    Head { mirror, size, region_shift, legs, in_sync: SOURCE, ..Head::default() }
}

/// Returns the standard library's randomness: enough to tell two mirrors apart.
fn chance() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Checks that a disk without a record has nothing of value in the record's place.
pub(super) fn vacant(disk: &Disk, device: &dyn BlockDevice) -> Result<(), StackError> {
    // A place that can't be read now fails when it is written.
    if disk.is_vacant(device).unwrap_or(true) {
        return Ok(());
    }
    Err(StackError::new(format!(
        "'{}' has other data at its end, where a mirror keeps its record. To discard that data, \
         overwrite the last 256 KiB of the device with zeroes",
        device.name()
    )))
}

/// Checks that a leg of a mirror without a record is part of no mirror that has one. The leg is
/// compared with the first one, and overwritten: it may be the only leg of the other mirror that
/// has everything.
pub(super) fn unrecorded(name: &str, device: &dyn BlockDevice) -> Result<(), StackError> {
    // A place that can't be read now is no usable record.
    let Ok(Some((start, head))) = disk::find_head(device) else { return Ok(()) };
    Err(StackError::new(format!(
        "'{name}' holds the record of a mirror, as leg {} of {}. The record knows which legs are \
         complete; without it, complete legs would be overwritten. Open the mirror with its \
         record (bitmap = true) and its legs in their order. {}",
        u64::from(head.leg) + 1,
        head.legs,
        how_to_discard(name, device, start),
    )))
}

/// Returns advice how to remove the record that begins at `start` from a device.
pub(super) fn how_to_discard(name: &str, device: &dyn BlockDevice, start: u64) -> String {
    let bytes = device.geometry().size - start;
    format!(
        "To discard the record, overwrite the last {} KiB of '{name}' with zeroes: dd if=/dev/zero \
         of=PATH bs=512 seek={} count={} conv=notrunc",
        bytes.div_ceil(1024),
        start / 512,
        bytes / 512,
    )
}

/// Checks that a head fits these legs.
fn checked(head: Head, room: u64, geometry: &Geometry) -> Result<Head, StackError> {
    let regions = head.size.checked_shr(head.region_shift).unwrap_or(u64::MAX);
    let in_blocks = head.size.checked_rem(geometry.block_size.into()) == Some(0);
    if head.size == 0 || head.size > room || !in_blocks {
        return Err(StackError::new(format!(
            "the mirror's record says {} bytes, but its legs have room for {room}",
            head.size
        )));
    }
    if !(12..=40).contains(&head.region_shift) || regions > leg_states::MOST_REGIONS {
        return Err(StackError::new(format!(
            "the mirror's record has an invalid region size, 2 to the power of {} bytes",
            head.region_shift
        )));
    }
    Ok(head)
}

/// Returns the regions that may differ, by the records of the legs that are in sync.
fn bits(
    disk: &Disk,
    legs: &Legs,
    assembled: &Assembled,
    regions: usize,
) -> Result<Vec<u8>, StackError> {
    let all = |n: usize| if (n + 1) * 8 <= regions { 0xFF } else { 0xFF >> (8 - regions % 8) };
    let everything = (0..regions.div_ceil(8)).map(all).collect();
    if assembled.newest.is_none() || assembled.blank != 0 || assembled.is_outdated() {
        return Ok(everything);
    }
    let mut bits = vec![0; regions.div_ceil(8)];
    for n in each(assembled.in_sync) {
        match disk.read_bits(legs, n, regions) {
            // A crash may have come between the writes to two legs.
            Ok(theirs) => bits.iter_mut().zip(theirs).for_each(|(bit, theirs)| *bit |= theirs),
            Err(error) if legs.states.drop_leg(n) => {
                tracing::error!(leg = &*legs.name(n), %error, "the record cannot be read");
            }
            Err(error) => {
                return Err(StackError::new(format!(
                    "'{}' is the only leg in sync, and its record cannot be read: {error}",
                    legs.name(n)
                )));
            }
        }
    }
    // Bits beyond the last region have no meaning.
    if let (Some(last), false) = (bits.last_mut(), regions % 8 == 0) {
        *last &= 0xFF >> (8 - regions % 8);
    }
    Ok(bits)
}

// Checks that a mirror doesn't begin with a first leg that is empty or outdated, which would be
// copied over data.

/// Checks a mirror without a record, which will copy `size` bytes of its first leg to the others.
pub(super) fn may_be_first(legs: &Legs, size: u64) -> Result<(), StackError> {
    if legs.len() == 1 {
        // Nothing is copied, and the check would go through all mirrors below.
        return Ok(());
    }
    let Some(first) = legs.there(0).map(|there| there.device.clone()) else { return Ok(()) };
    if legs.devices().any(|device| device.geometry().read_only) {
        // Nothing is copied.
        return Ok(());
    }
    let (is_new, is_outdated) = (legs.is_new(0), first.is_outdated());
    if !is_outdated && holds_data_before(&*first, size).unwrap_or(!is_new) {
        return Ok(());
    }
    let at_risk = (1..legs.len()).find_map(|n| {
        let device = legs.there(n)?.device.clone();
        if is_outdated && device.is_outdated() {
            return None;
        }
        match holds_data_before(&*device, size) {
            Some(true) => Some((legs.name(n), "holds")),
            None if !legs.is_new(n) => Some((legs.name(n), "may hold")),
            _ => None,
        }
    });
    let Some((other, holds)) = at_risk else { return Ok(()) };
    if is_outdated {
        let first = legs.name(0);
        return Err(StackError::new(format!(
            "the first leg '{first}' lacks changes that were flushed to it. It would be copied \
             over '{other}', which {holds} data, perhaps with these changes. To start with the \
             data of '{other}', name '{other}' first. To discard that data, zero '{other}'"
        )));
    }
    let (first, state) = (legs.name(0), if is_new { "new" } else { "empty" });
    Err(StackError::new(format!(
        "the first leg '{first}' is {state}, and would be copied over '{other}', which {holds} \
         data. If '{first}' had data, bring that back (is its disk mounted?). Otherwise, to start \
         with the data of '{other}', name '{other}' first. To discard that data, zero '{other}'"
    )))
}
