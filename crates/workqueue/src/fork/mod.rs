//! Forks: closures that a running item lets others run, and joins.
//!
//! A fork is a part of the item that makes it, and no item of its own. It lies as one pointer in a
//! ring that the worker's lane owns ([`ring`]). Joining pops it and calls it, unless a thief has
//! stolen it meanwhile. Nobody allocates, locks or issues a fence for a fork that isn't stolen.
//!
//! `README.md` beside this file has the protocol, its steps and its argument.

pub(crate) mod lane;
pub(crate) mod record;
pub(crate) mod ring;
pub(crate) mod spawned;
pub(crate) mod stack;
