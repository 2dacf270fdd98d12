//! Messages of the libraries, on stderr: a line each, with the time in UTC, as text or as JSON.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use tracing::{Event, Subscriber};
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::{Level, Log, LogFormat};
use crate::screen::Bars;

/// Prints what the libraries tell from now on, if it is grave enough, above `bars`.
/// Called once.
pub(crate) fn start(log: &Log, bars: Bars) {
    let level = match log.level() {
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
    let lines = tracing_subscriber::fmt::layer().with_writer(Above(bars)).with_ansi(colours);
    let all = tracing_subscriber::registry();
    let journal = std::env::var("JOURNAL_STREAM");
    match log.log_format {
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true);
            let lines = lines.with_current_span(false).with_span_list(false).with_target(false);
            all.with(lines.with_filter(targets)).init();
        }
        LogFormat::Text if journal.is_ok_and(|stream| is_stderr(&stream)) => {
            let plain = Format::default().without_time().with_target(false).with_level(false);
            let lines = lines.event_format(Journal(plain));
            all.with(lines.with_filter(targets)).init();
        }
        LogFormat::Text => all.with(lines.with_target(false).with_filter(targets)).init(),
    }
}

/// Whether stderr is what the journal's variable names, by device and inode: a program may have been started with another one.
fn is_stderr(stream: &str) -> bool {
    let found = rustix::fs::fstat(io::stderr().as_fd());
    found.is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

/// The journal has the time itself, and is told the level by a number in front of the line.
struct Journal(Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let priority = match *event.metadata().level() {
            tracing::Level::ERROR => 3,
            tracing::Level::WARN => 4,
            tracing::Level::INFO => 6,
            _ => 7,
        };
        write!(writer, "<{priority}>")?;
        self.0.format_event(context, writer, event)
    }
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
