//! Writing to the terminal: styles that vanish where nobody can see them, and its width.

use std::fmt;
use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};
use indicatif::{MultiProgress, ProgressBar};

use crate::log::{self, Grave};
use crate::streams;

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

/// The progress bars on stderr, if any is there: code that writes lines meanwhile writes them above.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bars(MultiProgress);

impl Bars {
    /// Shows a bar where stderr is a terminal; elsewhere it is never seen.
    pub(crate) fn show(&self, bar: ProgressBar) -> ProgressBar {
        self.0.add(bar)
    }

    /// Whether a bar can be seen.
    pub(crate) fn can_be_seen(&self) -> bool {
        !self.0.is_hidden()
    }

    /// Takes a bar off the screen, before something is printed.
    pub(crate) fn end(&self, bar: &ProgressBar) {
        bar.finish_and_clear();
        self.0.remove(bar);
    }

    /// Takes all of them off the screen while `write` writes to it.
    pub(crate) fn above<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.suspend(write)
    }
}

/// `text` in `style`. anstream takes the style out again where colours are not wanted (NO_COLOR,
/// no terminal).
pub(crate) fn styled(style: Style, text: impl fmt::Display) -> impl fmt::Display {
    format!("{style}{text}{style:#}")
}

/// Says on stderr that something failed.
pub(crate) fn error(message: fmt::Arguments<'_>) {
    say(Grave::Error, message, format_args!("{}: {message}", styled(ERROR, "error")));
}

/// Says on stderr that something is not as it should be, and that the run goes on.
pub(crate) fn warning(message: fmt::Arguments<'_>) {
    say(Grave::Warning, message, format_args!("{}: {message}", styled(WARNING, "warning")));
}

/// Says on stderr what is worth a word, and nothing is wrong about.
pub(crate) fn note(message: fmt::Arguments<'_>) {
    say(Grave::Note, message, format_args!("{}: {message}", styled(HELP, "note")));
}

/// Says on stderr what to do about the error before it.
pub(crate) fn help(message: fmt::Arguments<'_>) {
    say(Grave::Help, message, format_args!("  {}: {message}", styled(HELP, "help")));
}

fn say(grave: Grave, message: fmt::Arguments<'_>, styled: fmt::Arguments<'_>) {
    let lines = log::own(grave, &message.to_string(), &styled.to_string());
    streams::to_stderr(&lines, log::lost);
}

/// Columns for text: those of the terminal within what can be read well, 100 elsewhere.
pub(crate) fn width() -> usize {
    all_columns().clamp(60, 160)
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
