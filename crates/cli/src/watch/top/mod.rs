//! `corewise top`: a screen that shows the work of a running server. A thread sends the questions,
//! so a server that hangs delays no key.

mod picture;
mod sheet;

use std::io::{self, IsTerminal};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use corewise::sync::atomic::{AtomicBool, Ordering};
use corewise_server::control::Question;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args::{ServerArgs, Top};
use crate::client::Client;
use crate::exit::Failure;
use picture::View;
use sheet::{Part, Sample};

/// Longest time between two checks for an answer while the screen waits for a key.
const GLANCE: Duration = Duration::from_millis(100);
/// Longest time for an answer until the screen says that it is missing.
const LATE: Duration = Duration::from_secs(2);

/// Shows the screen until the user leaves it.
pub(crate) fn run(args: &Top) -> Result<(), Failure> {
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        return Err(Failure::new("`corewise top` needs a terminal")
            .help("`corewise dump --monitor` and `corewise clients` print lines"));
    }
    // The server is found before the screen is taken, since without a server there is only an error
    // to print.
    let client = Client::find(&args.server)?;
    let signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])
        .map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?;
    let (wish, wishes) = channel();
    let (tell, answers) = channel();
    let server = args.server.clone();
    std::thread::Builder::new()
        .name("ask".to_string())
        .spawn(move || ask(&server, client, &wishes, &tell))
        .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
    // A panic restores the terminal, too: ratatui's hook does so before the panic is printed.
    let terminal = ratatui::try_init()
        .map_err(|error| Failure::new(format!("cannot use this terminal: {error}")))?;
    let mut screen = Screen(ManuallyDrop::new(terminal));
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
    std::thread::Builder::new()
        .name("signals".to_string())
        .spawn(move || leave_at(signals, &end))
        .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
    let mut view = View::new();
    let (mut asked, mut waits, mut changed) = (None::<Instant>, false, true);
    while !ended.load(Ordering::Relaxed) {
        if !waits && asked.is_none_or(|asked| asked.elapsed() >= args.every) {
            // The loop below sees the end of the thread.
            let _ = wish.send(());
            (asked, waits) = (Some(Instant::now()), true);
        }
        while let Ok(answer) = answers.try_recv() {
            match answer {
                Ok(look) => view.look(*look),
                Err(why) => view.gone = Some(why),
            }
            (waits, changed) = (false, true);
        }
        let late = asked.filter(|_| waits).map(|asked| asked.elapsed());
        if let Some(late) = late.filter(|late| *late >= LATE) {
            let why = format!("no answer for {} s", late.as_secs());
            changed |= view.gone.as_ref() != Some(&why);
            view.gone = Some(why);
        }
        if changed {
            screen.0.draw(|frame| view.draw(frame))?;
            changed = false;
        }
        if !wait_for_key(GLANCE.min(args.every))? {
            break;
        }
        if event::poll(Duration::ZERO)? {
            let happened = event::read()?;
            if matches!(happened, Event::Key(key) if key.kind != KeyEventKind::Release && !press(&mut view, key))
            {
                break;
            }
            changed = true;
        }
    }
    Ok(())
}

/// Waits for a key, at most `time`. Returns false if the terminal is gone: crossterm would read it
/// forever.
fn wait_for_key(time: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut terminal = [PollFd::new(&stdin, PollFlags::IN)];
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match poll(&mut terminal, Some(&time)) {
        // A terminal that is resized interrupts the wait.
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(!terminal[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL))
}

/// Waits for a signal and ends the screen. If the screen doesn't react, it is in a read of a
/// terminal that went at that very moment, and the process ends by force.
fn leave_at(mut signals: Signals, end: &AtomicBool) {
    if signals.forever().next().is_some() {
        end.store(true, Ordering::Relaxed);
        std::thread::sleep(10 * GLANCE);
        let _ = ratatui::try_restore();
        std::process::exit(0);
    }
}

/// The screen. At the end of its scope it restores the terminal, and ignores a terminal that is
/// gone: ratatui's own end would panic in reporting that.
struct Screen(ManuallyDrop<DefaultTerminal>);

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// Handles a key; returns false if it ends the screen.
fn press(view: &mut View, key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    match key.code {
        KeyCode::Char('c' | 'd') if control => return false,
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char(digit @ '1'..='7') => view.show(Part::ALL[digit as usize - '1' as usize]),
        KeyCode::Tab => view.turn(1),
        KeyCode::BackTab => view.turn(Part::ALL.len() - 1),
        KeyCode::Right => view.sort_by(1),
        KeyCode::Left => view.sort_by(view.part.head().len() - 1),
        KeyCode::Char('r') => view.reverse(),
        KeyCode::Char(' ') => view.held = !view.held,
        KeyCode::Up => view.scroll(-1),
        KeyCode::Down => view.scroll(1),
        KeyCode::PageUp => view.scroll(-10),
        KeyCode::PageDown => view.scroll(10),
        KeyCode::Home => view.scroll(isize::MIN),
        KeyCode::End => view.scroll(isize::MAX),
        _ => {}
    }
    true
}

/// Sends a question for each wish, and looks for a new server if the old one doesn't answer any
/// more.
fn ask(
    server: &ServerArgs,
    client: Client,
    wishes: &Receiver<()>,
    tell: &Sender<Result<Box<Sample>, String>>,
) {
    let mut client = Some(client);
    while wishes.recv().is_ok() {
        let answer =
            client.take().map_or_else(|| Client::find(server), Ok).and_then(|mut found| {
                let answer = found.ask(&Question::new("dump"))?;
                client = Some(found);
                serde_json::from_value(answer)
                    .map_err(|error| Failure::new(format!("the answer is not a dump: {error}")))
            });
        if tell.send(answer.map(Box::new).map_err(|failure| failure.words())).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_choose_what_is_shown_and_some_of_them_leave() {
        let mut view = View::new();
        let mut press = |code, control| {
            let modifiers = if control { KeyModifiers::CONTROL } else { KeyModifiers::NONE };
            (super::press(&mut view, KeyEvent::new(code, modifiers)), view.part, view.held)
        };
        assert_eq!(press(KeyCode::Char('3'), false), (true, Part::Volumes, false));
        assert_eq!(press(KeyCode::Tab, false), (true, Part::Mirrors, false));
        assert_eq!(press(KeyCode::BackTab, false), (true, Part::Volumes, false));
        assert_eq!(press(KeyCode::Char(' '), false), (true, Part::Volumes, true));
        for code in [KeyCode::Left, KeyCode::Right, KeyCode::End, KeyCode::Char('r')] {
            assert!(press(code, false).0);
        }
        assert!(press(KeyCode::Char('c'), false).0);
        for (code, control) in
            [(KeyCode::Char('q'), false), (KeyCode::Char('c'), true), (KeyCode::Esc, false)]
        {
            assert!(!press(code, control).0);
        }
    }
}
