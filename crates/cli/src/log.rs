//! Messages of the libraries, on stderr.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::Level;
use crate::screen::Bars;

/// Prints what the libraries tell from now on, if it is grave enough, above `bars`.
/// Called once.
pub(crate) fn start(level: Level, bars: Bars) {
    let level = match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    // News that `up` tells itself is not told twice: probes and shutdowns that fail, with the manifest's
    // line, and clients that are cut at the end of a drain, with their export.
    let told = if level == LevelFilter::WARN { LevelFilter::ERROR } else { level };
    let targets = Targets::new()
        .with_default(level)
        .with_target("corewise_device", told)
        .with_target("corewise_nbd::server::drain", told);
    let colours = io::stderr().is_terminal()
        && anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(Above(bars))
        .with_ansi(colours)
        .with_target(false)
        .without_time();
    tracing_subscriber::registry().with(lines.with_filter(targets)).init();
}

/// Writes above the progress bars: a line in the midst of one would stay there in pieces.
#[derive(Debug)]
struct Above(Bars);

impl<'w> MakeWriter<'w> for Above {
    type Writer = &'w Above;

    fn make_writer(&'w self) -> &'w Above {
        self
    }
}

impl Write for &Above {
    /// A message comes whole.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        self.0.above(|| io::stderr().write(message))
    }

    fn write_all(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.above(|| io::stderr().lock().write_all(message))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
