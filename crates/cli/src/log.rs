//! Messages of the libraries, on stderr.

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::LevelFilter;

use crate::args::Level;

/// Prints what the libraries tell from now on, if it is grave enough. Called once.
pub(crate) fn start(level: Level) {
    let level = match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let colours = io::stderr().is_terminal()
        && anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never;
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(colours)
        .with_target(false)
        .without_time()
        .init();
}
