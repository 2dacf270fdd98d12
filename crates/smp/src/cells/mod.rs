//! The descriptors of calls: their source, content and return. See `README.md` beside this file.

mod cell;
mod message;
pub(crate) mod pool;
mod shares;

pub(crate) use cell::{Cell, Outstanding, Phase};
pub(crate) use message::{
    Class, Message, Queue, RunOutcome, Waiting, call, detached, quietly, take_back, take_function,
};
pub(crate) use pool::{CallWatch, Pools, Watched};
pub(crate) use shares::{Answers, AnswersIter, DetachedSending, Sending, WaitingForMany};
