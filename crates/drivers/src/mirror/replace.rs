//! Another device in the place of a leg, while requests go on.

use std::ptr;
use std::sync::Arc;

use corewise_blockmq::BlockDevice;
use corewise_sync::atomic::Ordering;

use super::keeper::{Keeper, State};
use super::open::{how_to_discard, unrecorded, vacant};
use super::record::Follows;
use super::{Inner, MirrorEvent, disk};
use crate::below::StackError;

impl Inner {
    /// The device takes the place of leg `n`, whose former device is returned.
    pub(super) fn replace(
        self: &Arc<Self>,
        n: usize,
        device: Arc<dyn BlockDevice>,
    ) -> Result<Option<Arc<dyn BlockDevice>>, StackError> {
        let keeper = &self.keeper;
        self.is_member(n)?;
        // As a round of the keeper, which waits meanwhile.
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
            // No step of the resync is in the middle: one that was would read this one for the former.
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

    /// Whether there is a leg `n`.
    pub(super) fn is_member(&self, n: usize) -> Result<(), StackError> {
        match n < self.legs.len() && self.legs.members() & 1 << n != 0 {
            true => Ok(()),
            false => Err(StackError::new(format!("the mirror has no leg {n}"))),
        }
    }

    /// Whether legs may change at all.
    pub(super) fn may_change(&self, keeper: &Keeper) -> Result<(), StackError> {
        if keeper.settling.load(Ordering::Relaxed) || keeper.end.has_come() {
            return Err(StackError::new("the mirror has come to its end"));
        }
        Ok(())
    }

    /// Whether the device can be leg `n`, which has another one, or is new.
    pub(super) fn may_come(
        &self,
        keeper: &Keeper,
        state: &State,
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
        // It was this leg before it was replaced: it comes back like one that was out. A new leg gets everything, whichever it was.
        let is_new = self.legs.members() & 1 << n == 0;
        let is_this = is_new || head.leg as usize == n || self.legs.members() & head.bit() == 0;
        let returns = head.mirror == state.head.mirror && is_this;
        if returns && head.follows(&state.head) != Follows::Apart {
            return Ok(());
        }
        Err(StackError::new(format!(
            "'{name}' holds the record of a mirror, as leg {} of {}. {}",
            u64::from(head.leg) + 1,
            head.legs,
            how_to_discard(name, &**device, start)
        )))
    }

    /// Leg `n` is out from here on.
    pub(super) fn put_out(&self, n: usize, reason: &str) -> Result<(), StackError> {
        let (name, states) = (self.legs.name(n), &self.legs.states);
        if states.active() & 1 << n != 0 && !states.drop_leg(n) && states.active() & 1 << n != 0 {
            let why = match states.in_sync() == 1 << n {
                true => "is the only complete leg of the mirror, which the others are copied from",
                false => "is the first leg of a mirror without a record, and stands for the mirror",
            };
            return Err(StackError::new(format!("'{name}' {why}")));
        }
        self.legs.set_why(n, reason.to_owned());
        tracing::info!(leg = n, device = &*name, reason, "a leg of a mirror leaves");
        Ok(())
    }

    /// Leave: the others say, durably, what has become of leg `n`, which is out.
    pub(super) fn say_so(
        &self,
        keeper: &Keeper,
        state: &mut State,
        n: usize,
    ) -> Result<(), StackError> {
        self.record(keeper, state).map_err(|error| {
            let why = format!("the record of the mirror cannot be written: {error}");
            self.legs.set_why(n, why.clone());
            StackError::new(why)
        })
    }
}
