//! The descriptors of calls: where they come from, what they hold, and who gives them back. See
//! `README.md` beside this file.

mod cell;
mod diagnosis;
mod free_list;
mod kinds;
mod message;
#[cfg(not(loom))]
mod pool;
mod queue;
mod shares;

pub(crate) use cell::Cell;
#[cfg(not(loom))]
pub(crate) use diagnosis::{Outstanding, Phase};
#[cfg(loom)]
pub use free_list::FreeList;
pub(crate) use kinds::{Class, Ended, quietly};
pub(crate) use message::{Message, Waiting, call, forgotten, take_back, take_function};
#[cfg(not(loom))]
pub(crate) use pool::Pools;
pub(crate) use queue::Queue;
pub(crate) use shares::{Answers, AnswersIter, Casting, Sending, Waiting as WaitingForMany};

/// In the models each cell is a box of its own: the pool's free list has a model, and would multiply all others.
#[cfg(loom)]
pub(crate) struct Pools;

#[cfg(loom)]
impl Pools {
    pub(crate) fn new(_pools: usize) -> Self {
        Pools
    }

    pub(crate) fn get(&self, _source: u32) -> std::ptr::NonNull<Cell> {
        std::ptr::NonNull::from(Box::leak(Box::new(Cell::new())))
    }
}
