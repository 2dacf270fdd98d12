//! Log lines of the libraries on stderr, each with the time in UTC, as text or as JSON.

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use anstyle::{AnsiColor, Style};
use corewise_server::units;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, MakeWriter};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::{Level, Log, LogFormat};
use crate::streams::Bars;
use crate::{escape, streams};

/// Form of the lines on stderr; text until it is set.
static FORM: OnceLock<Form> = OnceLock::new();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// One JSON object per line.
    Json,
    /// Lines for the system's journal, with the level as a number.
    Journal,
}

/// A function that gets warnings and errors even if the log leaves them out.
type LogListener = Box<dyn Fn(&Event<'_>) + Send + Sync>;

static LISTENER: OnceLock<LogListener> = OnceLock::new();

/// Passes warnings and errors to `tell`, too, on the thread that logs them. May be called once.
pub(crate) fn also(tell: impl Fn(&Event<'_>) + Send + Sync + 'static) {
    let _ = LISTENER.set(Box::new(tell));
}

/// Target of lines that `up` prints itself, as events of mirrors.
const MIRROR_EVENTS: &str = "corewise_drivers::mirror_events";

/// Passes warnings and errors on.
struct Forward;

impl<S: Subscriber> Layer<S> for Forward {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if let Some(tell) = LISTENER.get() {
            tell(event);
        }
    }
}

/// Severity of a message of the program itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MessageKind {
    Error,
    Warning,
    /// Information: nothing is wrong.
    Note,
    /// Advice about the message before it.
    Help,
}

/// Returns a message of the program as lines for stderr. `styled` is the message for terminals.
pub(crate) fn own(grave: MessageKind, message: &str, styled: &str) -> String {
    line(FORM.get().copied().unwrap_or(Form::Text), grave, message, styled)
}

fn line(form: Form, grave: MessageKind, message: &str, styled: &str) -> String {
    let (level, priority) = match grave {
        MessageKind::Error => ("ERROR", 3),
        MessageKind::Warning => ("WARN", 4),
        MessageKind::Note => ("INFO", 5),
        MessageKind::Help => ("INFO", 6),
    };
    match form {
        Form::Text => format!("{styled}\n"),
        Form::Journal => styled.lines().map(|line| format!("<{priority}>{line}\n")).collect(),
        Form::Json => {
            let plain = anstream::adapter::strip_str(message).to_string();
            let message = serde_json::Value::String(plain);
            let now = now();
            let line =
                format!("{{\"timestamp\":\"{now}\",\"level\":\"{level}\",\"message\":{message}}}");
            escape::json(&line).into_owned() + "\n"
        }
    }
}

/// Returns the time in UTC.
fn now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (day, [hour, minute, second]) = units::utc(now.as_secs());
    format!("{day}T{hour:02}:{minute:02}:{second:02}.{:06}Z", now.subsec_micros())
}

/// Returns the line that reports how many lines a blocked stderr has lost.
pub(crate) fn lost(lines: u64) -> String {
    let lines = units::count(lines, "line");
    let message = format!("stderr was blocked, so the log lost {lines}");
    own(MessageKind::Warning, &message, &format!("warning: {message}"))
}

/// Starts the log: prints lines of this level or above, over `bars`. May be called once.
pub(crate) fn start(log: &Log, bars: Bars) {
    let level = match log.level() {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    // `up` prints two kinds of news itself: probes and shutdowns that fail, with the manifest's
    // line, and legs that a mirror does without. The log leaves these out.
    let told = if level == LevelFilter::WARN { LevelFilter::ERROR } else { level };
    let events = if level <= LevelFilter::WARN { LevelFilter::OFF } else { level };
    let targets = Targets::new()
        .with_default(level)
        .with_target("corewise_device", told)
        .with_target(MIRROR_EVENTS, events);
    let colours = io::stderr().is_terminal()
        && anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never;
    let lines = tracing_subscriber::fmt::layer().with_writer(AboveBars(bars)).with_ansi(colours);
    // Listeners get the legs of mirrors as events of their own.
    let handed =
        Targets::new().with_default(LevelFilter::WARN).with_target(MIRROR_EVENTS, LevelFilter::OFF);
    let all = tracing_subscriber::registry().with(Forward.with_filter(handed));
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
        Form::Journal | Form::Text => {
            let lines = lines.fmt_fields(Pairs).event_format(Line(form));
            all.with(lines.with_filter(targets)).init();
        }
    }
}

/// Returns true if stderr is the stream that the journal's variable names, by device and inode. A
/// program may have inherited the variable and have another stderr.
fn is_stderr(stream: &str) -> bool {
    let found = rustix::fs::fstat(io::stderr().as_fd());
    found.is_ok_and(|found| stream == format!("{}:{}", found.st_dev, found.st_ino))
}

/// A line of text: time and level, the message, then pairs. The journal adds the time itself, and
/// takes the level from a number at the front of the line.
struct Line(Form);

impl<S, N> FormatEvent<S, N> for Line
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
        let (level, priority, colour) = match *event.metadata().level() {
            tracing::Level::ERROR => ("ERROR", 3, AnsiColor::Red),
            tracing::Level::WARN => ("WARN", 4, AnsiColor::Yellow),
            tracing::Level::INFO => ("INFO", 6, AnsiColor::Green),
            tracing::Level::DEBUG => ("DEBUG", 7, AnsiColor::Blue),
            tracing::Level::TRACE => ("TRACE", 7, AnsiColor::Magenta),
        };
        let faint = styled(&writer, Style::new().dimmed());
        match self.0 {
            Form::Journal => write!(writer, "<{priority}>")?,
            Form::Text | Form::Json => {
                let (now, colour) = (now(), styled(&writer, colour.on_default()));
                write!(writer, "{faint}{now}{faint:#} {colour}{level:>5}{colour:#} ")?;
            }
        }
        let mut fields =
            MessageFields { message: String::new(), pairs: String::new(), style: faint };
        event.record(&mut fields);
        escape::words(&mut writer, "message", &fields.message)?;
        writer.write_str(&fields.pairs)?;
        for span in context.event_scope().into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                writer.write_str(fields)?;
            }
        }
        writeln!(writer)
    }
}

fn styled(writer: &Writer<'_>, style: Style) -> Style {
    if writer.has_ansi_escapes() { style } else { Style::new() }
}

/// Pairs of a span's fields.
struct Pairs;

impl<'w> FormatFields<'w> for Pairs {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> fmt::Result {
        let style = styled(&writer, Style::new().dimmed());
        let mut found = MessageFields { message: String::new(), pairs: String::new(), style };
        fields.record(&mut found);
        writer.write_str(&found.pairs)
    }
}

/// Fields of a message.
struct MessageFields {
    message: String,
    /// Pairs, each after a blank.
    pairs: String,
    /// Style of keys.
    style: Style,
}

impl Visit for MessageFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
            return;
        }
        let MessageFields { pairs, style, .. } = self;
        // Writing to a String can't fail.
        let _ = write!(pairs, " {style}{}={style:#}", field.name());
        let _ = escape::value(pairs, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Debug: a field that its callsite shows so.
        self.record_str(field, &format!("{value:?}"));
    }
}

/// A writer above the progress bars: a bar would overwrite a part of any other line.
#[derive(Debug)]
struct AboveBars(Bars);

impl<'w> MakeWriter<'w> for AboveBars {
    type Writer = &'w AboveBars;

    fn make_writer(&'w self) -> &'w AboveBars {
        self
    }
}

impl Write for &AboveBars {
    /// Writes a whole message.
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        self.write_all(message).map(|()| message.len())
    }

    fn write_all(&mut self, message: &[u8]) -> io::Result<()> {
        let json = FORM.get() == Some(&Form::Json);
        let escaped = json
            .then(|| String::from_utf8_lossy(message))
            .map(|line| escape::json(&line).into_owned());
        let message = escaped.as_ref().map_or(message, |line| line.as_bytes());
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
            line(
                form,
                MessageKind::Error,
                "a \x1b[1mdisk\x1b[0m\n is gone",
                "error: a disk\n is gone",
            )
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
    /// Destination of a test's lines.
    #[derive(Clone, Default)]
    struct Lines(std::sync::Arc<corewise::sync::Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_parser_of_logfmt_reads_each_line_with_values_of_all_kinds() {
        let told = Lines::default();
        let make = told.clone();
        let all =
            tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || make.clone());
        let all = all.fmt_fields(Pairs).event_format(Line(Form::Text));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(all), || {
            let error = io::Error::other("I/O error: \"x\" = y");
            let (none, name) = (None::<u64>, "a\nb");
            tracing::error!(device = "d", file = name, peer = %"user 0", %error, none, n = 7, "a client's data is lost");
            tracing::warn!(list = ?["a", "b"], at = ?Some(3), empty = "", yes = true, "set a=\"b\"");
            let _span = tracing::error_span!("run", function = "a::b {c}").entered();
            tracing::info!("it runs");
        });
        let told = String::from_utf8(told.0.lock().clone()).unwrap();
        let lines: Vec<_> = told.lines().map(|line| escape::tests::parsed(line).unwrap()).collect();
        let pairs = |n: usize| -> Vec<(&str, &str)> {
            lines[n].iter().filter_map(|(key, value)| Some((&**key, value.as_deref()?))).collect()
        };
        let words: Vec<&str> = lines[0].iter().map(|(key, _)| &**key).skip(1).take(6).collect();
        assert_eq!(words, ["ERROR", "a", "client's", "data", "is", "lost"]);
        assert_eq!(
            pairs(0),
            [
                ("device", "d"),
                ("file", "a\nb"),
                ("peer", "user 0"),
                ("error", "I/O error: \"x\" = y"),
                ("n", "7")
            ]
        );
        let expected = [
            ("message", "set a=\"b\""),
            ("list", "[\"a\", \"b\"]"),
            ("at", "Some(3)"),
            ("empty", ""),
            ("yes", "true"),
        ];
        assert_eq!(pairs(1), expected);
        assert_eq!(pairs(2), [("function", "a::b {c}")]);
        assert_eq!(lines.len(), 3, "{told}");
    }
}
