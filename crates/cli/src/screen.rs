//! Writing to the terminal: styles that vanish where nobody can see them, and its width.

use std::fmt;
use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};

use crate::log::{self, MessageKind};
use crate::{escape, streams};

/// Titles.
pub(crate) const TITLE: Style = Style::new().bold();
/// What is less important than its neighbours.
pub(crate) const FAINT: Style = Style::new().dimmed();
/// What to copy.
pub(crate) const COMMAND: Style = AnsiColor::Cyan.on_default();
/// What went well.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
/// What went wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
const ERROR: Style = BAD;
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const HELP: Style = AnsiColor::Cyan.on_default().bold();

/// `text` in `style`. anstream takes the style out again where colours are not wanted (NO_COLOR,
/// no terminal).
pub(crate) fn styled(style: Style, text: impl fmt::Display) -> impl fmt::Display {
    format!("{style}{text}{style:#}")
}

/// Says on stderr that something failed.
pub(crate) fn error(message: fmt::Arguments<'_>) {
    say(MessageKind::Error, &styled(ERROR, "error").to_string(), message);
}

/// Says on stderr that something is not as it should be, and that the run goes on.
pub(crate) fn warning(message: fmt::Arguments<'_>) {
    say(MessageKind::Warning, &styled(WARNING, "warning").to_string(), message);
}

/// Says on stderr what is worth a word, and nothing is wrong about.
pub(crate) fn note(message: fmt::Arguments<'_>) {
    say(MessageKind::Note, &styled(HELP, "note").to_string(), message);
}

/// Says on stderr what to do about the error before it.
pub(crate) fn help(message: fmt::Arguments<'_>) {
    say(MessageKind::Help, &format!("  {}", styled(HELP, "help")), message);
}

/// A message may name what others chose, and have several lines; nothing else in it is left unseen.
fn say(grave: MessageKind, word: &str, message: fmt::Arguments<'_>) {
    let message = message.to_string();
    let message = message.split('\n').map(escape::visible).collect::<Vec<_>>().join("\n");
    let lines = log::own(grave, &message, &format!("{word}: {message}"));
    streams::to_stderr(&lines, log::lost);
}

/// Columns for text: those of the terminal within what can be read well, 100 elsewhere.
pub(crate) fn width() -> usize {
    all_columns().clamp(60, 160)
}

/// Columns for text that is cut nowhere: a terminal's, within what can be read well, and no limit
/// where there is none.
pub(crate) fn whole_width() -> usize {
    if std::io::stdout().is_terminal() { width() } else { usize::MAX }
}

/// Columns for pictures made of text: all that the terminal has, 100 elsewhere.
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
