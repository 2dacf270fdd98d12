//! The events of a server, for clients that listen on the control socket.
//!
//! Publishing never waits. Each listener has an inbox of limited size. If the inbox is full,
//! further lines are left out, and the listener gets their number. Without listeners an event costs
//! one load.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use corewise::sync::Mutex;
use corewise::sync::atomic::{AtomicUsize, Ordering};
use rustix::event::{EventfdFlags, eventfd};

/// Maximum of lines that wait for one listener.
const ROOM: usize = 1024;
/// Maximum of listeners at a time.
const LISTENERS: usize = 16;

/// The listeners and their inboxes.
#[derive(Debug)]
pub(crate) struct Events {
    /// L: is the lock; guards the inboxes.
    inboxes: Mutex<Vec<Arc<Inbox>>>,
    /// A: number of listeners. Relaxed: a listener gets only the events after its answer.
    listeners: AtomicUsize,
    /// The eventfd that wakes the thread that sends the lines.
    wake: OwnedFd,
}

/// The lines that one listener has not been sent yet.
#[derive(Debug, Default)]
struct Inbox {
    /// L: is the lock; guards the lines.
    lines: Mutex<PendingLines>,
}

#[derive(Debug, Default)]
struct PendingLines {
    waiting: VecDeque<Arc<str>>,
    /// Number of lines left out after the waiting ones.
    lost: u64,
    /// First line left out. If no other line is left out, the listener gets it after all.
    first: Option<Arc<str>>,
}

/// The place of one listener.
pub(crate) struct ListenerSlot {
    events: Arc<Events>,
    inbox: Arc<Inbox>,
}

impl ListenerSlot {
    /// Takes a place. Returns `None` if none is free.
    pub(crate) fn new(events: Arc<Events>) -> Option<ListenerSlot> {
        let inbox = events.listen()?;
        Some(ListenerSlot { events, inbox })
    }

    /// Moves the waiting lines to `out`.
    pub(crate) fn take(&self, out: &mut Vec<u8>) {
        self.inbox.take(out);
    }
}

impl Drop for ListenerSlot {
    fn drop(&mut self) {
        self.events.leave(&self.inbox);
    }
}

impl Events {
    pub(crate) fn new() -> io::Result<Events> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Events { inboxes: Mutex::default(), listeners: AtomicUsize::new(0), wake })
    }

    /// Returns true if there is a listener.
    pub(crate) fn are_heard(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) != 0
    }

    /// Adds a line, which ends with its newline, to the inboxes of all listeners. Any thread may
    /// call it. It waits for no listener.
    pub(crate) fn tell(&self, line: &str) {
        let line: Arc<str> = line.into();
        for inbox in self.inboxes.lock().iter() {
            inbox.put(Arc::clone(&line));
        }
        // The write fails only if the counter is full. In that case the thread is being woken.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Adds a listener. Returns `None` if there are too many.
    fn listen(&self) -> Option<Arc<Inbox>> {
        let mut inboxes = self.inboxes.lock();
        if inboxes.len() == LISTENERS {
            return None;
        }
        let inbox = Arc::new(Inbox::default());
        inboxes.push(Arc::clone(&inbox));
        self.listeners.store(inboxes.len(), Ordering::Relaxed);
        Some(inbox)
    }

    /// Removes a listener.
    fn leave(&self, gone: &Arc<Inbox>) {
        let mut inboxes = self.inboxes.lock();
        inboxes.retain(|inbox| !Arc::ptr_eq(inbox, gone));
        self.listeners.store(inboxes.len(), Ordering::Relaxed);
    }

    /// Returns a descriptor that becomes readable when a line is published.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Clears the descriptor, so that it is no longer readable.
    pub(crate) fn clear_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
    }
}

impl Inbox {
    fn put(&self, line: Arc<str>) {
        let mut lines = self.lines.lock();
        // Once a line is left out, all following lines are left out too, until `take` reports their
        // number.
        match lines.lost != 0 || lines.waiting.len() == ROOM {
            true => {
                lines.lost += 1;
                lines.first = (lines.lost == 1).then_some(line);
            }
            false => lines.waiting.push_back(line),
        }
    }

    /// Moves the waiting lines to `out`, followed by the number of lines left out.
    fn take(&self, out: &mut Vec<u8>) {
        let mut lines = self.lines.lock();
        let PendingLines { waiting, lost, first } = &mut *lines;
        waiting.drain(..).for_each(|line| out.extend_from_slice(line.as_bytes()));
        if let Some(line) = first.take() {
            out.extend_from_slice(line.as_bytes());
            *lost = 0;
        }
        if *lost != 0 {
            out.extend_from_slice(format!("{{\"event\":\"lost\",\"events\":{lost}}}\n").as_bytes());
            *lost = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(inbox: &Inbox) -> Vec<String> {
        let mut out = Vec::new();
        inbox.take(&mut out);
        String::from_utf8(out).unwrap().lines().map(str::to_string).collect()
    }

    #[test]
    fn a_listener_that_takes_nothing_loses_lines_and_is_told_how_many_and_others_lose_none() {
        let events = Events::new().unwrap();
        assert!(!events.are_heard());
        let (slow, fast) = (events.listen().unwrap(), events.listen().unwrap());
        let mut heard = Vec::new();
        for n in 0..ROOM + 10 {
            events.tell(&format!("{n}\n"));
            heard.extend(taken(&fast));
        }
        assert_eq!(heard.len(), ROOM + 10);
        let late = taken(&slow);
        assert_eq!((late.len(), late[ROOM - 1].as_str()), (ROOM + 1, "1023"));
        assert_eq!(late[ROOM], r#"{"event":"lost","events":10}"#);
        events.tell("again\n");
        assert_eq!(taken(&slow), ["again"]);
        for n in 0..=ROOM {
            events.tell(&format!("{n}\n"));
        }
        assert_eq!(taken(&slow).last().map(String::as_str), Some("1024"), "one alone isn't lost");
        events.leave(&slow);
        events.leave(&fast);
        assert!(!events.are_heard());
    }

    #[test]
    fn there_are_so_many_listeners_and_no_more() {
        let events = Events::new().unwrap();
        let all: Vec<_> = (0..LISTENERS).map(|_| events.listen().unwrap()).collect();
        assert!(events.listen().is_none());
        events.leave(&all[3]);
        assert!(events.listen().is_some());
    }
}
