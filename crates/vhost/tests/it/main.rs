//! The server against a frontend of the crate `vhost` and rings made by hand.

mod commands;
mod device;
mod guest;
mod hostile;
mod life;
mod model;
mod recovery;
