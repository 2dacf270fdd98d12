//! Legs that are added and removed, while requests go on.

use std::sync::Arc;

use super::keeper::{Keeper, State, errors};

use corewise_blockmq::BlockDevice;

use super::legs::MOST_LEGS;
use super::record::{Follows, apart};
use super::{Inner, MirrorEvent, disk};
use crate::below::StackError;

impl Inner {
    /// The device becomes a leg, whose number is returned.
    pub(super) fn add(self: &Arc<Self>, device: Arc<dyn BlockDevice>) -> Result<usize, StackError> {
        let keeper = &self.keeper;
        // As a round of the keeper, which waits meanwhile.
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

    /// Enrol: the device is leg `n`, which is out, and the others say so. Where that fails there is no such leg.
    fn enrol(
        &self,
        keeper: &Keeper,
        state: &mut State,
        n: usize,
        device: Arc<dyn BlockDevice>,
    ) -> Result<(), StackError> {
        let name = device.name().to_owned();
        // It lacks everything, and the others say so before it can be taken for one of them.
        let regions: Vec<usize> = (0..keeper.regions.len()).collect();
        self.set_bits(keeper, state, &regions)?;
        // No step of the resync is in the middle.
        let step = keeper.cursor.lock();
        drop(self.legs.swap(n, device));
        drop(step);
        let (legs, removed) = (state.head.legs, state.head.removed);
        state.head.legs = legs.max(n as u32 + 1);
        state.head.removed &= !(1 << n);
        // The device first: one that can't be written to leaves the mirror as it was.
        let greeted = self.greet(keeper, state, n);
        if greeted.is_err() {
            (state.head.legs, state.head.removed) = (legs, removed);
        }
        let enrolled = greeted.and_then(|()| {
            self.legs.set_why(n, "it was just added".to_owned());
            self.legs.admit(n);
            state.unwritten = true;
            self.say_so(keeper, state, n).inspect_err(|_| {
                // Should the head be there all the same, the next one says that this number is no leg.
                self.legs.dismiss(n);
                state.head.removed |= 1 << n;
                state.unwritten = true;
            })
        });
        if let Err(why) = enrolled {
            let step = keeper.cursor.lock();
            drop(self.legs.take(n));
            drop(step);
            return Err(StackError::new(format!("'{name}' cannot be its leg: {why}")));
        }
        tracing::info!(leg = n, device = name, "a mirror has another leg");
        Ok(())
    }

    /// Greet: the first head of leg `n`, which is new.
    fn greet(&self, keeper: &Keeper, state: &mut State, n: usize) -> Result<(), StackError> {
        for (_, end) in disk::flush(&self.legs, 1 << n) {
            end?;
        }
        // It may have been a leg before: of its own heads the highest one is the newest.
        if let Some(head) = keeper.disk.read_head(&self.legs, n)? {
            if head.mirror == state.head.mirror && head.follows(&state.head) == Follows::Apart {
                return Err(apart(&self.legs.name(n)));
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

    /// Leg `n` is none any more; its former device is returned.
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
            // No step of the resync is in the middle: one that was would find nothing there.
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

    /// Strike: leg `n` is out, and the others say that it is none any more.
    fn strike(&self, keeper: &Keeper, state: &mut State, n: usize) -> Result<(), StackError> {
        self.put_out(n, "it was removed")?;
        self.legs.dismiss(n);
        state.head.removed |= 1 << n;
        state.unwritten = true;
        self.say_so(keeper, state, n).inspect_err(|_| {
            // It is out, as after any failure. Should the head be there all the same, the leg is refused at the next start.
            state.head.removed &= !(1 << n);
            state.unwritten = true;
            self.legs.admit(n);
        })
    }

    /// Farewell: the leg has it in its own record too, so that it is never taken for a disk that has nothing of this mirror. Behind the
    /// others' heads; where it can't be written they alone know.
    fn bid_farewell(&self, keeper: &Keeper, state: &State, n: usize) {
        if !self.legs.is_there(n) {
            return;
        }
        for (_, error) in errors(keeper.disk.write_head(&self.legs, 1 << n, &state.head)) {
            let device = &*self.legs.name(n);
            tracing::warn!(leg = n, device, %error, "a leg that was removed doesn't have that in its own record");
        }
    }
}
