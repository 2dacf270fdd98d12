//! Output to the terminal: its width, and styles, which vanish if the stream is no terminal.

use std::fmt;
use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};

use crate::log::{self, MessageKind};
use crate::{escape, streams};

/// Titles.
pub(crate) const TITLE: Style = Style::new().bold();
/// Style of text that is less important than its neighbours.
pub(crate) const FAINT: Style = Style::new().dimmed();
/// Style of commands to copy.
pub(crate) const COMMAND: Style = AnsiColor::Cyan.on_default();
/// Style of success.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
/// Style of failure.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
const ERROR: Style = BAD;
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const HELP: Style = AnsiColor::Cyan.on_default().bold();

/// Returns `text` in `style`. anstream removes the style if colours are not wanted (NO_COLOR, no
/// terminal).
pub(crate) fn styled(style: Style, text: impl fmt::Display) -> impl fmt::Display {
    format!("{style}{text}{style:#}")
}

/// Prints an error on stderr.
pub(crate) fn error(message: fmt::Arguments<'_>) {
    say(MessageKind::Error, &styled(ERROR, "error").to_string(), message);
}

/// Prints a warning on stderr: something is wrong, and the run continues.
pub(crate) fn warning(message: fmt::Arguments<'_>) {
    say(MessageKind::Warning, &styled(WARNING, "warning").to_string(), message);
}

/// Prints information on stderr.
pub(crate) fn note(message: fmt::Arguments<'_>) {
    say(MessageKind::Note, &styled(HELP, "note").to_string(), message);
}

/// Prints the remedy for the error before on stderr.
pub(crate) fn help(message: fmt::Arguments<'_>) {
    say(MessageKind::Help, &format!("  {}", styled(HELP, "help")), message);
}

/// Prints a message on stderr. The message may contain names that others chose, and line ends; all
/// other invisible characters are escaped.
fn say(grave: MessageKind, word: &str, message: fmt::Arguments<'_>) {
    let message = message.to_string();
    let message = message.split('\n').map(escape::visible).collect::<Vec<_>>().join("\n");
    let lines = log::own(grave, &message, &format!("{word}: {message}"));
    streams::to_stderr(&lines, log::lost);
}

/// Returns the columns for text: the terminal's, up to a readable width, or 100 without a terminal.
pub(crate) fn width() -> usize {
    all_columns().clamp(60, 160)
}

/// Returns the columns for text that is never cut: the terminal's, up to a readable width, or no
/// limit without a terminal.
pub(crate) fn whole_width() -> usize {
    if std::io::stdout().is_terminal() { width() } else { usize::MAX }
}

/// Returns the columns for pictures made of text: all of the terminal, or 100 without a terminal.
pub(crate) fn all_columns() -> usize {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return 100;
    }
    let columns = rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| size.ws_col);
    match usize::from(columns) {
        0 => 100,
        columns => columns,
    }
}
