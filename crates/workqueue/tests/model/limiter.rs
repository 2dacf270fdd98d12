//! Doors into the limiter for `tests/loom/limiter.rs`.

use corewise_sync::Mutex;
use corewise_sync::fence::FencePolicy;

use crate::pwq::limit::effective;
use crate::pwq::limit::{Admission, Hold, LimitSlot};

/// An instance in a model of the limiter: a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(pub u32);

impl Hold for Token {
    type List = std::collections::VecDeque<Token>;
    fn append(self, list: &mut Self::List) {
        list.push_back(self);
    }
    fn take(list: &mut Self::List) -> Option<Token> {
        list.pop_front()
    }
    fn len(list: &Self::List) -> usize {
        list.len()
    }
}

/// A slot of the limiter, and the list that stands for the pool. An instance let through is counted
/// beside it, so that a model can check the maximum.
pub struct SlotModel<F: FencePolicy> {
    slot: LimitSlot<Token, F>,
    /// L: is the lock; guards what was let through.
    out: Mutex<Vec<u32>>,
}

impl<F: FencePolicy> SlotModel<F> {
    /// Creates a limiter with a maximum; 0: none.
    pub fn new(max: usize) -> Self {
        SlotModel { slot: LimitSlot::new(effective(max)), out: Mutex::default() }
    }

    /// Queues as a queuer does with its instance, after it has counted it in its pwq.
    pub fn queue(&self, pwq: usize, token: u32) {
        match self.slot.admit(self.slot.gate()) {
            Admission::Wait => self.slot.hold(pwq, Token(token), &mut |t| self.push(t)),
            Admission::Free | Admission::Counted => self.push(Token(token)),
        }
    }

    /// Gives the place of a counted instance back, which is over.
    pub fn put(&self) {
        self.slot.put(&mut |t| self.push(t));
    }

    /// Accepts only chained work from now on.
    pub fn set_draining(&self) {
        self.slot.set_draining(true);
    }

    /// Returns true if an instance that is queued now, from outside, is accepted.
    pub fn accepts(&self) -> bool {
        !self.slot.gate().draining()
    }

    /// Takes out one that is held back, if it still is.
    pub fn cancel(&self, pwq: usize, token: u32) -> bool {
        let taken = self.slot.take_held(pwq, |list| {
            let position = list.iter().position(|t| t.0 == token);
            list.remove(position?)
        });
        taken.is_some()
    }

    /// Returns what was let through, in order.
    pub fn out(&self) -> Vec<u32> {
        self.out.lock().clone()
    }

    /// Returns the numbers of active and held instances.
    pub fn sizes(&self) -> (usize, usize) {
        let (active, _, held) = self.slot.sizes();
        (active, held)
    }

    fn push(&self, token: Token) {
        self.out.lock().push(token.0);
    }
}
