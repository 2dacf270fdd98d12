//! Timelines and kernel logs, as a user of the crate sees them.

#[path = "../common/mod.rs"]
mod common;
#[path = "../samples/mod.rs"]
mod samples;

mod coarse_stamps;
mod how_probes_ended;
mod how_sure;
mod kernel_log_carriers;
mod kernel_log_forms;
mod kernel_log_notes;
mod kernel_log_wrappers;
mod kernel_logs;
mod pictures;
mod render;
mod threads_unknown;
mod what_if;
