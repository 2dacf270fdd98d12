//! Legs of a mirror that are out, and come back: who looks for them, and what they lack.

use corewise_blockmq::Geometry;
use corewise_sync::atomic::Ordering;
use corewise_sync::panics::caught;

use super::keeper::{Keeper, State, errors};
use super::legs::each;
use super::open::{unrecorded, vacant};
use super::record::{Follows, Head, apart};
use super::{Inner, disk, policy};
use crate::below::StackError;

impl Inner {
    /// Legs that are out are to be tried again; false where there are no workers who could. Any context.
    pub(super) fn take_back(&self, keeper: &Keeper, legs: u32) -> bool {
        self.legs.call(legs);
        keeper.asked.fetch_or(legs, Ordering::Release);
        // False: it is queued already, or the end is near.
        let _ = keeper.queue.queue(&keeper.search);
        // Ask.
        let alone = keeper.end.has_come();
        if alone {
            self.legs.answered(legs);
        }
        !alone
    }

    /// Looks for the devices of legs that have none, and hands all that are wanted to the keeper.
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
        let found =
            caught(|| find(n)).unwrap_or_else(|| Err("the search for it panicked".to_owned()));
        let device = found.map_err(StackError::new)?;
        let (name, theirs) = (self.legs.name(n), device.geometry());
        self.fits(keeper, &name, &theirs)?;
        if !keeper.has_record() {
            unrecorded(&name, &*device)?;
        }
        self.legs.put(n, device);
        Ok(())
    }

    /// Whether a device can be a leg of the mirror, which others use already.
    pub(super) fn fits(
        &self,
        keeper: &Keeper,
        name: &str,
        theirs: &Geometry,
    ) -> Result<(), StackError> {
        if let Some(why) = policy::misfit(&self.geometry, theirs) {
            return Err(StackError::new(format!("'{name}' cannot be its leg: {why}")));
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

    /// Whether leg `n`, which is out, may come back. If so, the bits say what it lacks.
    pub(super) fn may_return(
        &self,
        keeper: &Keeper,
        state: &mut State,
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
        match found.filter(known).map(|head| (head.follows(&state.head), head.events)) {
            Some((Follows::Yes, _)) if !self.legs.device(n).is_outdated() => return Ok(()),
            Some((Follows::Apart, _)) => return Err(apart(&self.legs.name(n))),
            // Its own heads may have higher numbers than ours, and the highest one is the newest.
            Some((_, events)) => state.head.events = state.head.events.max(events),
            None => vacant(&keeper.disk, &*self.legs.device(n))?,
        }
        // It isn't what it was: everything is to be copied.
        let regions: Vec<usize> = (0..keeper.regions.len()).collect();
        Ok(self.set_bits(keeper, state, &regions)?)
    }

    /// Tries legs again that are out, and has them resynced.
    pub(super) fn take_legs_back(&self, keeper: &Keeper, state: &mut State) {
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

    /// Lets changes go to these legs, which are out, and has them resynced: the bits say what they lack.
    pub(super) fn resync_legs(&self, keeper: &Keeper, state: &mut State, back: u32) {
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
        // No step of the resync is in the middle: one that was could take a region for synced that these
        // legs have no copy of.
        let step = keeper.cursor.lock();
        self.legs.states.rebuild(joined);
        // Each write while they were out has its bit: none is cleared meanwhile.
        let dirty = state.dirty();
        dirty.iter().for_each(|&n| keeper.regions.mark_stale(n));
        drop(step);
        // Their own bits count from the moment in which they are in sync.
        let ended = keeper.disk.write_bits(&self.legs, joined, &state.bits, &dirty);
        for (n, error) in errors(ended) {
            self.drop_leg(n, &error);
        }
        self.begin_resync(keeper, state, joined);
    }
}
