//! The timekeeper: what has to happen at a time, and what has to be looked at now and then. Its
//! parts stand here first; the thread that uses them comes with the items' claim protocol.
#![allow(dead_code, reason = "used once the timekeeper's thread is there")]

pub(crate) mod alarm;
mod cpu_time;
mod heap;
mod hogs;
mod policy;
