//! Kernel logs, as a user of the crate sees them.

mod carriers;
mod coarse_stamps;
mod common;
mod facts;
mod forms;
mod how_probes_ended;
mod how_sure;
mod notes;
mod real_logs;
mod threads_unknown;
mod units;
mod wrappers;
