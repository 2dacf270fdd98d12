//! Workqueues, as a user of the crate sees them.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

#[path = "../support/chance.rs"]
mod chance;
#[path = "../support/spin.rs"]
mod spin;
#[path = "../support/futures.rs"]
mod support;
#[path = "../support/trees.rs"]
mod trees;

mod attributes;
mod below;
mod blocking;
mod bounds;
mod closing;
mod drops;
mod dump;
mod execute;
mod flush_inside;
mod follow;
mod forks;
mod futures;
mod held;
mod item_rules;
mod max_active;
mod nested;
mod pool_rules;
mod queue;
mod queue_rules;
mod quota;
mod scoped;
mod setup;
mod shutdown;
mod stuck;
mod take_back;
mod threads;
mod time;
mod waiting_futures;
