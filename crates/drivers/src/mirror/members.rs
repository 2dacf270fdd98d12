//! Legs that are added and removed, while requests go on.

use std::ptr;
use std::sync::Arc;

use corewise_blockmq::{BlockDevice, Geometry};
use corewise_sync::atomic::Ordering;
use corewise_sync::panics::caught;

use crate::below::StackError;
use crate::mirror::keeper::{Keeper, KeeperState, errors};
use crate::mirror::legs::{MOST_LEGS, each};
use crate::mirror::open::{how_to_discard, unrecorded, vacant};
use crate::mirror::record::{Head, HeadRelation, diverged};
use crate::mirror::{MirrorEvent, MirrorState, disk, leg_states};

impl MirrorState {
    /// Adds the device as a leg, and returns its number.
    pub(super) fn add(self: &Arc<Self>, device: Arc<dyn BlockDevice>) -> Result<usize, StackError> {
        let keeper = &self.keeper;
        // This acts as a round of the keeper, which waits meanwhile.
        let mut state = keeper.state.lock();
        let added = self.may_change(keeper).and_then(|()| {
            let n = self
                .legs
                .free()
                .ok_or_else(|| StackError::new(format!("a mirror has at most {MOST_LEGS} legs")))?;
            self.may_come(keeper, &state, n, &device)?;
            self.enrol(keeper, &mut state, n, device)?;
            Ok(n)
        });
        let added = added.inspect(|&n| {
            keeper.note(MirrorEvent::Added { leg: n });
            self.resync_legs(keeper, &mut state, 1 << n);
        });
        drop(state);
        keeper.unless_alone();
        keeper.kick();
        added
    }

    /// Makes the device leg `n`, which is out, and makes the others record it (Enrol). If that
    /// fails, there is no such leg.
    fn enrol(
        &self,
        keeper: &Keeper,
        state: &mut KeeperState,
        n: usize,
        device: Arc<dyn BlockDevice>,
    ) -> Result<(), StackError> {
        let name = device.name().to_owned();
        // It lacks everything, and the others record that before it can be taken for one of them.
        let regions: Vec<usize> = (0..keeper.regions.len()).collect();
        self.set_bits(keeper, state, &regions)?;
        // No step of the resync is in progress.
        let step = keeper.cursor.lock();
        drop(self.legs.swap(n, device));
        drop(step);
        let (legs, removed) = (state.head.legs, state.head.removed);
        state.head.legs = legs.max(n as u32 + 1);
        state.head.removed &= !(1 << n);
        // The device comes first: one that can't be written to leaves the mirror as it was.
        let greeted = self.greet(keeper, state, n);
        if greeted.is_err() {
            (state.head.legs, state.head.removed) = (legs, removed);
        }
        let enrolled = greeted.and_then(|()| {
            self.legs.set_why(n, "the leg was just added".to_owned());
            self.legs.admit(n);
            state.unwritten = true;
            self.say_so(keeper, state, n).inspect_err(|_| {
                // If the head is there all the same, the next head states that this number is no
                // leg.
                self.legs.dismiss(n);
                state.head.removed |= 1 << n;
                state.unwritten = true;
            })
        });
        if let Err(why) = enrolled {
            let step = keeper.cursor.lock();
            drop(self.legs.take(n));
            drop(step);
            return Err(StackError::new(format!("'{name}' cannot be a leg of the mirror: {why}")));
        }
        tracing::info!(leg = n, device = name, "a leg was added to a mirror");
        Ok(())
    }

    /// Writes the first head of leg `n`, which is new (Greet).
    fn greet(&self, keeper: &Keeper, state: &mut KeeperState, n: usize) -> Result<(), StackError> {
        for (_, end) in disk::flush(&self.legs, 1 << n) {
            end?;
        }
        // It may have been a leg before: of its own heads the highest one is the newest.
        if let Some(head) = keeper.disk.read_head(&self.legs, n)? {
            if head.mirror == state.head.mirror
                && head.relation_to(&state.head) == HeadRelation::Diverged
            {
                return Err(diverged(&self.legs.name(n)));
            }
            state.head.events = state.head.events.max(head.events);
        }
        let head = state.next_head(self.legs.states.in_sync());
        let ended = keeper.disk.write_head(&self.legs, 1 << n, &head);
        match errors(ended).next() {
            Some((_, error)) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Removes leg `n`; its former device is returned.
    pub(super) fn remove(
        self: &Arc<Self>,
        n: usize,
    ) -> Result<Option<Arc<dyn BlockDevice>>, StackError> {
        let keeper = &self.keeper;
        self.is_member(n)?;
        let mut state = keeper.state.lock();
        let removed = self
            .may_change(keeper)
            .and_then(|()| self.is_member(n))
            .and_then(|()| self.strike(keeper, &mut state, n));
        let removed = removed.map(|()| {
            self.bid_farewell(keeper, &state, n);
            // No step of the resync is in progress: it would find nothing there.
            let step = keeper.cursor.lock();
            let former = self.legs.take(n);
            drop(step);
            keeper.note(MirrorEvent::Removed { leg: n, device: self.legs.name(n).to_string() });
            former
        });
        drop(state);
        keeper.unless_alone();
        keeper.kick();
        removed
    }

    /// Puts leg `n` out, and makes the others record that it is removed (Strike).
    fn strike(&self, keeper: &Keeper, state: &mut KeeperState, n: usize) -> Result<(), StackError> {
        self.put_out(n, "it was removed")?;
        self.legs.dismiss(n);
        state.head.removed |= 1 << n;
        state.unwritten = true;
        self.say_so(keeper, state, n).inspect_err(|_| {
            // It is out, as after any failure. If the head is there all the same, the leg is
            // refused at the next start.
            state.head.removed &= !(1 << n);
            state.unwritten = true;
            self.legs.admit(n);
        })
    }

    /// Notes the removal in the leg's own record too, so that it is never taken for a disk without
    /// this mirror (Farewell). This comes behind the others' heads; if it can't be written, only
    /// the others have it.
    fn bid_farewell(&self, keeper: &Keeper, state: &KeeperState, n: usize) {
        if !self.legs.is_there(n) {
            return;
        }
        for (_, error) in errors(keeper.disk.write_head(&self.legs, 1 << n, &state.head)) {
            let device = &*self.legs.name(n);
            tracing::warn!(leg = n, device, %error, "a leg that was removed doesn't have that in its own record");
        }
    }
}

// Another device in the place of a leg, while requests go on.

impl MirrorState {
    /// Puts the device in the place of leg `n`, whose former device is returned.
    pub(super) fn replace(
        self: &Arc<Self>,
        n: usize,
        device: Arc<dyn BlockDevice>,
    ) -> Result<Option<Arc<dyn BlockDevice>>, StackError> {
        let keeper = &self.keeper;
        self.is_member(n)?;
        // This acts as a round of the keeper, which waits meanwhile.
        let mut state = keeper.state.lock();
        let replaced = self
            .may_change(keeper)
            .and_then(|()| self.may_come(keeper, &state, n, &device))
            .and_then(|()| {
                let why = format!("'{}' takes its place", device.name());
                self.put_out(n, &why)?;
                self.say_so(keeper, &mut state, n)
            });
        let replaced = replaced.map(|()| {
            // No step of the resync is in progress: it would read this one for the former.
            let step = keeper.cursor.lock();
            let former = self.legs.swap(n, device);
            drop(step);
            keeper.note(MirrorEvent::Replaced { leg: n });
            match self.may_return(keeper, &mut state, n) {
                Ok(()) => self.resync_legs(keeper, &mut state, 1 << n),
                Err(why) => self.legs.set_why(n, why.to_string()),
            }
            former
        });
        drop(state);
        keeper.unless_alone();
        keeper.kick();
        replaced
    }

    /// Checks that there is a leg `n`.
    pub(super) fn is_member(&self, n: usize) -> Result<(), StackError> {
        match n < self.legs.len() && self.legs.members() & 1 << n != 0 {
            true => Ok(()),
            false => Err(StackError::new(format!("the mirror has no leg {n}"))),
        }
    }

    /// Checks that legs may change at all.
    pub(super) fn may_change(&self, keeper: &Keeper) -> Result<(), StackError> {
        if keeper.settling.load(Ordering::Relaxed) || keeper.end.has_come() {
            return Err(StackError::new("the mirror is being shut down"));
        }
        Ok(())
    }

    /// Checks that the device can be leg `n`, which has another one, or is new.
    pub(super) fn may_come(
        &self,
        keeper: &Keeper,
        state: &KeeperState,
        n: usize,
        device: &Arc<dyn BlockDevice>,
    ) -> Result<(), StackError> {
        let name = device.name();
        let same = |other: Arc<dyn BlockDevice>| ptr::addr_eq(&*other, &**device);
        if self.legs.devices().any(same) {
            return Err(StackError::new(format!("'{name}' is a leg of the mirror already")));
        }
        self.fits(keeper, name, &device.geometry())?;
        if !keeper.has_record() {
            return unrecorded(name, &**device);
        }
        let Some((start, head)) = disk::find_head(&**device)? else {
            return vacant(&keeper.disk, &**device);
        };
        // It was this leg before it was replaced: it comes back like one that was out. A new leg
        // gets everything, whatever it was before.
        let is_new = self.legs.members() & 1 << n == 0;
        let is_this = is_new || head.leg as usize == n || self.legs.members() & head.bit() == 0;
        let returns = head.mirror == state.head.mirror && is_this;
        if returns && head.relation_to(&state.head) != HeadRelation::Diverged {
            return Ok(());
        }
        Err(StackError::new(format!(
            "'{name}' holds the record of a mirror, as leg {} of {}. {}",
            u64::from(head.leg) + 1,
            head.legs,
            how_to_discard(name, &**device, start)
        )))
    }

    /// Puts leg `n` out.
    pub(super) fn put_out(&self, n: usize, reason: &str) -> Result<(), StackError> {
        let (name, states) = (self.legs.name(n), &self.legs.states);
        if states.active() & 1 << n != 0 && !states.drop_leg(n) && states.active() & 1 << n != 0 {
            let why = match states.in_sync() == 1 << n {
                true => "is the only leg in sync, from which the mirror copies the others",
                false => {
                    "is the first leg of a mirror without a record, which can't run without it"
                }
            };
            return Err(StackError::new(format!("'{name}' {why}")));
        }
        self.legs.set_why(n, reason.to_owned());
        tracing::info!(leg = n, device = &*name, reason, "a leg of a mirror is being removed");
        Ok(())
    }

    /// Makes the others record durably that leg `n` is out (Leave).
    pub(super) fn say_so(
        &self,
        keeper: &Keeper,
        state: &mut KeeperState,
        n: usize,
    ) -> Result<(), StackError> {
        self.record(keeper, state).map_err(|error| {
            let why = format!("the record of the mirror cannot be written: {error}");
            self.legs.set_why(n, why.clone());
            StackError::new(why)
        })
    }
}

// Legs of a mirror that are out, and come back: the search for them, and the regions that they
// lack.

impl MirrorState {
    /// Asks for another try of legs that are out; false if there are no workers for that. Any
    /// context.
    pub(super) fn take_back(&self, keeper: &Keeper, legs: u32) -> bool {
        self.legs.call(legs);
        keeper.asked.fetch_or(legs, Ordering::Release);
        // False means that it is queued already, or that the end is near.
        let _ = keeper.queue.queue(&keeper.search);
        // Ask.
        let alone = keeper.end.has_come();
        if alone {
            self.legs.answered(legs);
        }
        !alone
    }

    /// Looks for the devices of legs that have none, and gives all that are wanted to the keeper.
    pub(super) fn search(&self, keeper: &Keeper) {
        let asked = keeper.asked.swap(0, Ordering::Acquire);
        for n in each(asked & self.legs.out()).filter(|&n| !self.legs.is_there(n)) {
            if let Err(error) = self.find(keeper, n) {
                self.legs.set_why(n, error.to_string());
            }
        }
        keeper.wanted.fetch_or(asked, Ordering::Release);
        keeper.kick();
    }

    fn find(&self, keeper: &Keeper, n: usize) -> Result<(), StackError> {
        let Some(find) = &keeper.options.find else { return Ok(()) };
        let found = caught(|| find(n))
            .unwrap_or_else(|| Err("the search for the leg's device panicked".to_owned()));
        let device = found.map_err(StackError::new)?;
        let (name, theirs) = (self.legs.name(n), device.geometry());
        self.fits(keeper, &name, &theirs)?;
        if !keeper.has_record() {
            unrecorded(&name, &*device)?;
        }
        self.legs.put(n, device);
        Ok(())
    }

    /// Checks that a device can be a leg of the mirror, which others use already.
    pub(super) fn fits(
        &self,
        keeper: &Keeper,
        name: &str,
        theirs: &Geometry,
    ) -> Result<(), StackError> {
        if let Some(why) = leg_states::misfit(&self.geometry, theirs) {
            return Err(StackError::new(format!("'{name}' cannot be a leg of the mirror: {why}")));
        }
        let room = keeper.disk.room_on(name, theirs.size)?;
        if room < self.geometry.size {
            let size = self.geometry.size;
            return Err(StackError::new(format!(
                "'{name}' has room for {room} bytes, but the mirror has {size}"
            )));
        }
        Ok(())
    }

    /// Checks that leg `n`, which is out, may come back. If so, the bits name the regions that it
    /// lacks.
    pub(super) fn may_return(
        &self,
        keeper: &Keeper,
        state: &mut KeeperState,
        n: usize,
    ) -> Result<(), StackError> {
        if !self.legs.is_there(n) {
            return Err(StackError::new(self.legs.why(n)));
        }
        // A process that was killed may have left its head in its cache.
        for (_, end) in disk::flush(&self.legs, 1 << n) {
            end?;
        }
        let found = keeper.disk.read_head(&self.legs, n)?;
        let known = |head: &Head| head.mirror == state.head.mirror && head.leg as usize == n;
        match found.filter(known).map(|head| (head.relation_to(&state.head), head.events)) {
            Some((HeadRelation::Behind, _)) if !self.legs.device(n).is_outdated() => return Ok(()),
            Some((HeadRelation::Diverged, _)) => return Err(diverged(&self.legs.name(n))),
            // Its own heads may have higher numbers than ours, and the highest one is the newest.
            Some((_, events)) => state.head.events = state.head.events.max(events),
            None => vacant(&keeper.disk, &*self.legs.device(n))?,
        }
        // It isn't the same leg as before: everything is to be copied.
        let regions: Vec<usize> = (0..keeper.regions.len()).collect();
        Ok(self.set_bits(keeper, state, &regions)?)
    }

    /// Tries legs again that are out, and starts their resync.
    pub(super) fn take_legs_back(&self, keeper: &Keeper, state: &mut KeeperState) {
        let wanted = keeper.wanted.swap(0, Ordering::Acquire);
        let mut back = 0;
        for n in each(wanted & self.legs.out()) {
            match self.may_return(keeper, state, n) {
                Ok(()) => back |= 1 << n,
                Err(why) => {
                    let why = why.to_string();
                    self.legs.stays(n).tell(|| {
                        let (device, why) = (self.legs.name(n), why.clone());
                        move |left_out: Option<u64>| {
                            tracing::warn!(
                                leg = n,
                                device = &*device,
                                why,
                                left_out,
                                "a leg of a mirror stays out"
                            );
                        }
                    });
                    self.legs.set_why(n, why);
                }
            }
        }
        if back != 0 {
            self.resync_legs(keeper, state, back);
        }
        self.legs.answered(wanted);
    }

    /// Lets changes go to these legs, which are out, and starts their resync: the bits name the
    /// regions that they lack.
    pub(super) fn resync_legs(&self, keeper: &Keeper, state: &mut KeeperState, back: u32) {
        // Join: their own record calls them not in sync before anything else is written there.
        let joined = match self.write_heads(keeper, state, back) {
            Ok(joined) => joined,
            Err(error) => {
                return tracing::error!(%error, "legs of a mirror stay out: the record cannot be \
                                                written");
            }
        };
        if joined == 0 {
            return;
        }
        // No step of the resync is in progress: it could take a region for synced that these legs
        // have no copy of.
        let step = keeper.cursor.lock();
        self.legs.states.rebuild(joined);
        // Each write while they were out has its bit: none is cleared meanwhile.
        let dirty = state.dirty();
        dirty.iter().for_each(|&n| keeper.regions.mark_stale(n));
        drop(step);
        // Their own bits count from the moment that they are in sync.
        let ended = keeper.disk.write_bits(&self.legs, joined, &state.bits, &dirty);
        for (n, error) in errors(ended) {
            self.drop_leg(n, &error);
        }
        self.begin_resync(keeper, state, joined);
    }
}
