//! The program, as its users and its clients meet it.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod changes;
mod checkpoints;
mod crashes;
mod crypt;
mod dump;
mod extended;
mod front_ends;
mod guests;
mod hanging;
mod hanging_up;
mod health;
mod io_errors;
mod kernel;
mod limits;
mod mirrors;
mod mirrors_degraded;
mod mirrors_legs;
mod mirrors_members;
mod new_parts;
mod newest_kernel;
#[cfg(feature = "object")]
mod object;
#[cfg(feature = "object")]
mod object_flush_files;
#[cfg(feature = "object")]
mod object_kills;
#[cfg(feature = "object")]
mod object_snapshots;
mod overlays;
mod pages;
mod pauses;
mod protocol;
mod qemu_locks;
mod real_clients;
mod real_clients_holes;
#[cfg(feature = "tls")]
mod real_clients_tls;
mod remote;
mod service;
mod stacks;
mod timeline;
mod topo;
mod tuning;
mod up;
mod watching;
