//! The end of the server, for those that listen: they get the events up to now.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Client;

/// How long the end of the server waits for those that listen to take their last events.
pub(super) const AT_MOST: Duration = Duration::from_secs(2);

/// Sends those that listen the events up to now, and waits at most so long until they have taken
/// them.
pub(super) fn send(mut clients: Vec<Client>, at_most: Duration) {
    let until = Instant::now() + at_most;
    loop {
        clients.retain_mut(|client| {
            let sent = client.listens.is_some() && client.send_events().is_ok();
            sent && !client.output.is_empty()
        });
        let left = until.saturating_duration_since(Instant::now());
        if clients.is_empty() || left.is_zero() {
            return;
        }
        let mut polled: Vec<PollFd<'_>> = (clients.iter())
            .map(|client| PollFd::from_borrowed_fd(client.stream.as_fd(), PollFlags::OUT))
            .collect();
        let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::super::Listening;
    use super::*;
    use crate::events::Events;

    #[test]
    fn the_end_waits_until_listeners_have_all_events_but_not_for_one_that_takes_nothing() {
        let events = Arc::new(Events::new().unwrap());
        let listener = || {
            let (stream, theirs) = UnixStream::pair().unwrap();
            stream.set_nonblocking(true).unwrap();
            let listens = Listening::new(Arc::clone(&events));
            let (input, output, heard) = (Vec::new(), Vec::new(), Instant::now());
            (Client { stream, input, output, ended: false, heard, listens }, theirs)
        };
        let read = |mut stream: UnixStream| {
            let mut read = String::new();
            stream.read_to_string(&mut read).unwrap();
            read
        };
        let ((quick, its), (stuck, unread)) = (listener(), listener());
        // More than a socket holds.
        let lines: String = (0..1000).map(|n| format!("{n:1000}\n")).collect();
        lines.split_inclusive('\n').for_each(|line| events.tell(line));
        send(vec![stuck], Duration::from_millis(1));
        let part = read(unread);
        assert!(lines.starts_with(&part) && part.len() < lines.len(), "{}", part.len());
        let reader = std::thread::spawn(move || read(its));
        send(vec![quick], Duration::from_secs(600));
        assert!(reader.join().unwrap() == lines);
    }
}
