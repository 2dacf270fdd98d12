//! The descriptors of calls: where they come from, what they hold, and how they are given back. See
//! `README.md` beside this file.

mod cell;
mod diagnosis;
pub(crate) mod free_list;
mod kinds;
mod message;
mod pool;
mod queue;
mod shares;

pub(crate) use cell::Cell;
pub(crate) use diagnosis::{Outstanding, Phase};
pub(crate) use kinds::{Class, Ended, quietly};
pub(crate) use message::{Message, Waiting, call, forgotten, take_back, take_function};
pub(crate) use pool::{CallWatch, Pools, Watched};
pub(crate) use queue::Queue;
pub(crate) use shares::{Answers, AnswersIter, Casting, Sending, Waiting as WaitingForMany};
