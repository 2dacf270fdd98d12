//! Events of the frontend: eventfds that it shares with this server.
//!
//! A `write` to an eventfd whose counter is full waits until somebody reads it. `O_NONBLOCK`
//! doesn't help, since it belongs to the open file, which the frontend has too and can change at
//! any time. The kernel itself never waits when it signals an eventfd. So each event is registered
//! with an `io_uring` of its own, and one request that does nothing has the kernel signal it.

use std::fs::File;
use std::io::{self, IoSliceMut};

use io_uring::{IoUring, opcode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags};

/// An eventfd of the frontend, which one thread signals.
pub(super) enum Event {
    /// The kernel signals it at each end of a request of this `io_uring`.
    Registered(Box<IoUring>),
    /// The kernel refuses an `io_uring`, so the thread writes to the eventfd.
    Written(File),
}

impl Event {
    /// Creates the event of this eventfd.
    pub(super) fn new(eventfd: File) -> Result<Event, String> {
        let registered = match IoUring::builder().dontfork().build(1) {
            Ok(uring) => register(uring, &eventfd),
            Err(error) => Err(error),
        };
        match registered {
            Ok(uring) => Ok(Event::Registered(uring)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Err("an event of the frontend is no eventfd".to_owned())
            }
            Err(_) => Ok(Event::Written(eventfd)),
        }
    }

    /// Signals the event. A frontend that lets it fill up has its event.
    pub(super) fn signal(&mut self) {
        match self {
            Event::Registered(uring) => {
                // The ends of former requests make room.
                uring.completion().for_each(drop);
                // SAFETY: the request has no memory and no file.
                let pushed = unsafe { uring.submission().push(&opcode::Nop::new().build()) };
                // There is room for one: each call submits its own.
                if pushed.is_ok() {
                    while let Err(error) = uring.submit() {
                        if error.kind() != io::ErrorKind::Interrupted {
                            tracing::debug!(%error, "an event of a frontend isn't signalled");
                            break;
                        }
                    }
                }
            }
            Event::Written(eventfd) => {
                if has_room(eventfd) {
                    let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
                }
            }
        }
    }
}

fn register(uring: IoUring, eventfd: &File) -> io::Result<Box<IoUring>> {
    uring.submitter().register_eventfd(std::os::fd::AsRawFd::as_raw_fd(eventfd))?;
    Ok(Box::new(uring))
}

/// Returns true if an eventfd can be written to without waiting. A frontend that fills it and
/// clears `O_NONBLOCK` right after this still has the thread of its own ring wait.
fn has_room(eventfd: &File) -> bool {
    let mut polled = [PollFd::new(eventfd, PollFlags::OUT)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready == 1)
}

/// Clears an eventfd, whatever the frontend does with it meanwhile.
pub(super) fn clear(eventfd: &File) {
    let mut bytes = [0; 8];
    // An offset of -1 stands for the file's own.
    while rustix::io::preadv2(
        eventfd,
        &mut [IoSliceMut::new(&mut bytes)],
        u64::MAX,
        ReadWriteFlags::NOWAIT,
    ) == Err(Errno::INTR)
    {}
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn event() -> (File, File) {
        let file = File::from(eventfd(0, EventfdFlags::empty()).unwrap());
        (file.try_clone().unwrap(), file)
    }

    fn count(mut eventfd: &File) -> u64 {
        let mut bytes = [0; 8];
        io::Read::read_exact(&mut eventfd, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn each_signal_counts_and_none_waits_for_room() {
        let written = |file: File| Ok(Event::Written(file));
        for make in [Event::new, written] {
            let (ours, theirs) = event();
            let mut event = make(ours).unwrap();
            (0..1000).for_each(|_| event.signal());
            assert_eq!(count(&theirs), 1000);
            rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            event.signal();
            assert!(count(&theirs) >= u64::MAX - 1);
        }
    }

    #[test]
    fn clearing_never_waits() {
        let (ours, theirs) = event();
        clear(&ours);
        rustix::io::write(&theirs, &7_u64.to_ne_bytes()).unwrap();
        clear(&ours);
        let mut event = Event::new(ours).unwrap();
        event.signal();
        assert_eq!(count(&theirs), 1);
    }

    #[test]
    fn a_pipe_is_no_event() {
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        assert!(Event::new(File::from(writer)).is_err());
    }
}
