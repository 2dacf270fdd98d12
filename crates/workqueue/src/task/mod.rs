//! Items of a pool: an item's header, its state word, and the handles that move it along. Of pools
//! and queues they know only what [schedules](ticket::Schedule) an instance.
//!
//! Read `state.md` beside this file first.

pub(crate) mod claim;
pub(crate) mod header;
pub(crate) mod running;
pub(crate) mod state;
pub(crate) mod ticket;
