//! Messages of the libraries, on stderr: a line each, with the time in UTC, as text or as JSON.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

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
use crate::{streams, units};

/// How lines on stderr look. Text, where nothing has said else yet.
static FORM: OnceLock<Form> = OnceLock::new();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// An object a line.
    Json,
    /// For the system's journal, which is told the level by a number.
    Journal,
}

/// How grave a message of the program's own is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Grave {
    Error,
    Warning,
    /// What to do about the one before.
    Help,
}

/// A message of the program's own as lines on stderr; `styled`: as people see it.
pub(crate) fn own(grave: Grave, message: &str, styled: &str) -> String {
    line(FORM.get().copied().unwrap_or(Form::Text), grave, message, styled)
}

fn line(form: Form, grave: Grave, message: &str, styled: &str) -> String {
    let (level, priority) = match grave {
        Grave::Error => ("ERROR", 3),
        Grave::Warning => ("WARN", 4),
        Grave::Help => ("INFO", 6),
    };
    match form {
        Form::Text => format!("{styled}\n"),
        Form::Journal => styled.lines().map(|line| format!("<{priority}>{line}\n")).collect(),
        Form::Json => {
            let plain = anstream::adapter::strip_str(message).to_string();
            let message = serde_json::Value::String(plain);
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let (day, [hour, minute, second]) = units::utc(now.as_secs());
            let micros = now.subsec_micros();
            format!(
                "{{\"timestamp\":\"{day}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z\",\"level\":\"{level}\",\"message\":{message}}}\n"
            )
        }
    }
}

/// Says that lines were left out on stderr, since nobody took them.
pub(crate) fn lost(lines: u64) -> String {
    let lines = units::count(lines, "line");
    let message = format!("{lines} of the log left out: nobody took them");
    own(Grave::Warning, &message, &format!("warning: {message}"))
}

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
    let form = match log.log_format {
        LogFormat::Json => Form::Json,
        LogFormat::Text if journal.is_ok_and(|stream| is_stderr(&stream)) => Form::Journal,
        LogFormat::Text => Form::Text,
    };
    let _ = FORM.set(form);
    match form {
        Form::Json => {
            let lines = lines.json().flatten_event(true);
            let lines = lines.with_current_span(false).with_span_list(false).with_target(false);
            all.with(lines.with_filter(targets)).init();
        }
        Form::Journal => {
            let plain = Format::default().without_time().with_target(false).with_level(false);
            let lines = lines.event_format(Journal(plain));
            all.with(lines.with_filter(targets)).init();
        }
        Form::Text => all.with(lines.with_target(false).with_filter(targets)).init(),
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
        self.write_all(message).map(|()| message.len())
    }

    fn write_all(&mut self, message: &[u8]) -> io::Result<()> {
        self.0.above(|| streams::log(message, lost));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_the_program_has_the_form_of_the_log() {
        let own = |form| {
            line(form, Grave::Error, "a \x1b[1mdisk\x1b[0m\n is gone", "error: a disk\n is gone")
        };
        assert_eq!(own(Form::Text), "error: a disk\n is gone\n");
        assert_eq!(own(Form::Journal), "<3>error: a disk\n<3> is gone\n");
        let json: serde_json::Value = serde_json::from_str(&own(Form::Json)).unwrap();
        assert_eq!(
            (&json["level"], &json["message"]),
            (&"ERROR".into(), &"a disk\n is gone".into())
        );
        assert!(
            json["timestamp"].as_str().unwrap().ends_with('Z')
                && own(Form::Json).lines().count() == 1
        );
    }
}
