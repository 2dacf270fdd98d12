//! Parts that models build by hand, and wrong variants, which have to fail.

use std::panic::Location;
use std::sync::Arc;

use corewise_sync::atomic::Ordering;
use corewise_topology::CpuId;

use crate::call::Call;
use crate::cells::{self, Message};
use crate::error::SkipReason;
use crate::smp::Smp;
use crate::target::{CallTarget, Runner, Step};
use crate::target_state::{PARKED, TargetState, Wake};

pub use crate::cells::pool::FreeList;
pub use crate::sleepers::{Sleeper, Sleepers};
pub use crate::watch::Alert;

impl TargetState {
    /// Pushes wrongly: the check of the state that decided is not part of the push. For the model
    /// that has to fail.
    fn push_unguarded(&self, message: Message) -> Result<Wake, (SkipReason, Message)> {
        if let Some(reason) = self.hint_refusal() {
            return Err((reason, message));
        }
        let cell = message.into_cell();
        let mut now = self.snapshot();
        loop {
            // SAFETY: no other thread has it before the exchange below.
            unsafe { cell.as_ref().set_next(now.newest()) };
            let next = cell.as_ptr().map_addr(|cell| cell | now.flags() & !PARKED);
            match self.exchange(now, next, Ordering::Release, Ordering::Relaxed) {
                Ok(()) if now.is_parked() => return Ok(Wake::Owner),
                Ok(()) => return Ok(Wake::Nobody),
                Err(found) => now = found,
            }
        }
    }
}

impl Sleepers {
    /// Lists a sleeper like [`Sleepers::wake_or_list`] if there is help, though it may be in
    /// another list: wrong, for the model that has to fail.
    pub fn list_unclaimed(&self, sleeper: &Sleeper) {
        self.list(self.top.load(Ordering::Relaxed), sleeper);
    }
}

impl CallTarget {
    /// Runs like [`CallTarget::run`], but without Announce: wrong, for the model that has to fail.
    pub fn run_unannounced(&mut self) {
        let target = Arc::clone(&self.target);
        let _runner = Runner::enter(&target);
        loop {
            match self.step_as_runner() {
                Step::Ran(_) => {}
                Step::Idle | Step::Offline => self.parker.park(),
                Step::Left | Step::Stopped => return,
            }
        }
    }
}

impl Smp {
    /// Calls like [`Smp::call`], but the check of the target is no part of the push: wrong, for the
    /// model that has to fail.
    pub fn call_unguarded<F, R>(&self, cpu: CpuId, f: F) -> Option<Call<R>>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let target = self.shared.target(cpu)?;
        let site = Location::caller();
        let (message, waiting) = cells::call(&self.shared.pools, CpuId::new(0), site, cpu, f);
        if target.state().push_unguarded(message).ok()? == Wake::Owner {
            target.wake_again();
        }
        Some(Call::sent(cpu, waiting))
    }
}
