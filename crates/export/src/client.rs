//! A client of a device, whatever its protocol.
//!
//! A client enters the device by [turns](crate::turn), keeps its changes apart from those that
//! cover [blocks in part](crate::range_lock), and learns of the device's [losses](crate::losses).

use std::sync::Arc;
use std::task::Waker;

use corewise_blockmq::{BlockDevice, Completed, IoError, IoErrorKind, Op, Request};

use crate::access::Identity;
use crate::device::SharedDevice;
use crate::losses::{KnownLosses, LossScope};
use crate::range_lock::Changes;
use crate::turn::{Turn, Work};

const EIO: i32 = 5;

/// The way in which a request is counted while it is in the device.
#[derive(Clone, Copy, Debug)]
pub struct InDevice {
    work: Work,
    /// True for a change that is counted, and not listed.
    counted: bool,
    /// Changes that a flush covers.
    covers: LossScope,
}

impl InDevice {
    /// Creates the record of a request that changes nothing.
    pub fn without_change(work: Work) -> InDevice {
        InDevice { work, counted: false, covers: LossScope::default() }
    }
}

/// One client of a device, whatever its protocol. One thread, its *reader*, begins requests; they
/// end on any thread.
#[derive(Debug)]
pub struct Client {
    shared: Arc<SharedDevice>,
    who: Identity,
    turn: Turn,
    changes: Changes<Request>,
    known_losses: Arc<KnownLosses>,
    /// True if zeroes cost the device less than a write.
    can_fast_zero: bool,
    /// True if the device takes `fua`. If it has nothing to flush, every write is as durable
    /// without it.
    can_fua: bool,
}

impl Client {
    /// Registers a client of a device. The waker wakes its reader.
    pub fn new(shared: &Arc<SharedDevice>, who: Identity, waker: Waker) -> Client {
        let device = shared.device();
        let geometry = device.geometry();
        Client {
            turn: Turn::new(&shared.turns, waker.clone()),
            changes: Changes::new(&shared.locks, waker),
            known_losses: shared.losses.join(&who, device.losses()),
            can_fast_zero: geometry.can_fast_zero,
            can_fua: geometry.can_fua,
            shared: Arc::clone(shared),
            who,
        }
    }

    /// Returns the device with the state that its clients share.
    pub fn shared(&self) -> &Arc<SharedDevice> {
        &self.shared
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        self.shared.device()
    }

    /// Returns the identity of the client.
    pub fn who(&self) -> &Identity {
        &self.who
    }

    /// Returns the client's place among those that take turns.
    pub fn turn(&self) -> &Turn {
        &self.turn
    }

    /// Returns the client's place among those that change the device.
    pub fn changes(&self) -> &Changes<Request> {
        &self.changes
    }

    /// Returns the kind of a request for its turn.
    pub fn work(&self, rq: &Request) -> Work {
        Work::of(rq.op(), rq.flags(), self.can_fast_zero)
    }

    /// Returns true if such a request goes to the device in several parts.
    pub fn goes_in_parts(&self, work: Work, op: Op, offset: u64, len: u64) -> bool {
        len > work.piece() || op.is_change() && self.shared.is_unaligned(offset, len)
    }

    /// Makes a change durable by itself, if the device has anything to flush.
    pub fn durable(&self, rq: Request) -> Request {
        if self.can_fua { rq.fua() } else { rq }
    }

    /// Counts a request that is about to go to the device. `counted` is true if its change is
    /// [counted](Changes::begin). `alone` is called for a flush, and returns true if every earlier
    /// request of the client has been answered. The reader only.
    pub fn begin(&self, rq: &Request, counted: bool, alone: impl FnOnce() -> bool) -> InDevice {
        if rq.op().is_change() {
            if !self.shared.was_changed() {
                self.shared.changes();
            }
            if !rq.flags().fua {
                self.known_losses.change();
            }
        }
        let covers = match rq.op() {
            Op::Flush => self.shared.losses.flush(&self.known_losses, alone()),
            _ => LossScope::default(),
        };
        InDevice { work: self.work(rq), counted, covers }
    }

    /// Returns the places of a request, or of a piece of one, that has left the device. Any
    /// context.
    pub fn left(&self, work: Work, len: u64) {
        self.turn.leave(work.places(len));
    }

    /// Returns the places of a request that went to the device in one piece and has left it. Any
    /// context.
    pub fn left_whole(&self, work: Work, done: &Completed) {
        if !self.goes_in_parts(work, done.op, done.offset, done.len) {
            self.left(work, done.len);
        }
    }

    /// Counts a request that has left the device. A flush fails if the client doesn't know of a
    /// loss yet. Any context.
    pub fn ended(&self, in_device: InDevice, done: &mut Completed) {
        // The pieces of a longer one have left before.
        self.left_whole(in_device.work, done);
        if in_device.counted {
            self.changes.end();
        }
        if done.op == Op::Flush {
            self.look_for_losses(in_device.covers, done);
        }
    }

    /// Fails a flush whose client doesn't know of a [loss](crate::losses) yet.
    ///
    /// A flush that was sent while the failing one is under way reaches the device after it
    /// ([`Queue`](corewise_blockmq::Queue)), so its end finds the loss counted. A failed change
    /// with FUA tells its client nothing about earlier changes. Their flush does.
    fn look_for_losses(&self, covers: LossScope, done: &mut Completed) {
        if done.result.as_ref().is_err_and(|error| !error.kind().may_be_a_loss(Op::Flush)) {
            return;
        }
        let losses = self.device().losses();
        if !self.known_losses.flushed(covers, losses) {
            if done.result.is_ok() {
                self.shared.losses.durable(covers, losses);
            }
            return;
        }
        self.shared.losses.tell(&self.who, &self.known_losses);
        if done.result.is_ok() {
            done.result = Err(IoError::with(
                IoErrorKind::Io(EIO),
                "an earlier flush of the device, or a durable change, failed: changes since the last one that succeeded may be lost",
            ));
        }
    }

    /// Makes the client's next flush fail, since changes that a former server answered may be lost.
    pub fn owe_a_failure(&self) {
        self.known_losses.owe_a_failure();
    }

    /// Records that all changes of the client are durable.
    pub fn all_is_durable(&self) {
        self.known_losses.all_is_durable();
    }

    /// Records that the client has left, and with it the losses that the next client from the same
    /// place learns of. `clean` is true if the client has taken all replies.
    pub fn leave(&self, clean: bool) {
        self.shared.losses.leave(&self.known_losses, clean);
    }
}
