//! The arrival of a frontend's messages: each whole, and in time.
//!
//! The crate `vhost` reads from the socket and writes to it without a limit of time. So it gets a
//! message only once the whole message is in the socket, and there is room for an answer.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use corewise_sync::time::PausableClock;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::HEADER;

/// Time that a frontend has for the messages up to `SET_OWNER`, for the rest of a message, and for
/// the answers to earlier ones. A frontend needs no guest and no user for these, and does them
/// within milliseconds. The rest is for a machine that is short of memory.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest message, behind its header: `vhost` refuses longer ones by their header.
const MOST_BODY: usize = 0x1000;

/// A time by which a frontend has to do something. Pauses of this process don't count.
struct Deadline {
    clock: PausableClock,
    at: Instant,
}

impl Deadline {
    fn after(timeout: Duration) -> Deadline {
        let mut clock = PausableClock::for_timeout(timeout);
        let at = clock.now() + timeout;
        Deadline { clock, at }
    }

    /// Returns the longest wait from now on, and true if it is the last one.
    fn wait(&mut self) -> (Timespec, bool) {
        let left = self.at.saturating_duration_since(self.clock.now());
        let wait = left.min(self.clock.slice());
        // Less than a second, or the slice of the timeout: both fit.
        let of = |time: Duration| Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: time.subsec_nanos().into(),
        };
        (of(wait), left.is_zero())
    }
}

/// The messages of a frontend, as they arrive.
pub(super) struct Arrivals<'a> {
    socket: &'a OwnedFd,
    timeout: Duration,
    /// Deadline of the handshake, until it is done.
    handshake: Option<Deadline>,
}

impl<'a> Arrivals<'a> {
    /// Begins with the connection.
    pub(super) fn new(socket: &'a OwnedFd, timeout: Duration) -> Self {
        Self { socket, timeout, handshake: Some(Deadline::after(timeout)) }
    }

    /// Records that the handshake is done: from now on there may be any time between messages.
    pub(super) fn handshake_done(&mut self) {
        self.handshake = None;
    }

    /// Waits until a whole message is there, and room for its answer. Returns also if the frontend
    /// has left.
    ///
    /// # Errors
    /// The frontend is late, in words.
    pub(super) fn wait(&mut self) -> Result<(), String> {
        let (socket, timeout) = (self.socket, self.timeout);
        if !wait_for(socket, PollFlags::IN, self.handshake.as_mut()) {
            // Debug: a length of time.
            return Err(format!(
                "the frontend didn't begin (SET_OWNER) within {timeout:?}, and others wait"
            ));
        }
        if let Some((came, of)) = missing(socket) {
            self.wait_for_rest().map_err(|()| {
                // Debug: a length of time.
                format!("{came} of the {of} bytes of a message came, and no more in {timeout:?}")
            })?;
        }
        match wait_for(socket, PollFlags::OUT, Some(&mut Deadline::after(timeout))) {
            true => Ok(()),
            // Debug: a length of time.
            false => Err(format!("the frontend took none of its answers in {timeout:?}")),
        }
    }

    /// Waits for the rest of a message whose begin is there.
    fn wait_for_rest(&self) -> Result<(), ()> {
        let mut deadline = Deadline::after(self.timeout);
        // Each arrival is an edge; the level is there all the time.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|_| ())?;
        epoll::add(&epoll, self.socket, epoll::EventData::new_u64(0), flags).map_err(|_| ())?;
        let mut events = Vec::with_capacity(1);
        while missing(self.socket).is_some() {
            let (wait, is_last) = deadline.wait();
            events.clear();
            let into = rustix::buffer::spare_capacity(&mut events);
            let came = epoll::wait(&epoll, into, Some(&wait));
            if is_last && came != Err(Errno::INTR) && missing(self.socket).is_some() {
                return Err(());
            }
        }
        Ok(())
    }
}

/// Waits until the socket is ready, or the frontend has left. Returns false at the deadline.
fn wait_for(socket: &OwnedFd, flags: PollFlags, mut deadline: Option<&mut Deadline>) -> bool {
    loop {
        let wait = deadline.as_mut().map(|deadline| deadline.wait());
        let mut fds = [PollFd::new(socket, flags)];
        match poll(&mut fds, wait.as_ref().map(|(wait, _)| wait)) {
            Ok(0) if wait.is_some_and(|(_, is_last)| is_last) => return false,
            Ok(0) | Err(Errno::INTR) => {}
            // An error is found by the read or the write that follows.
            Ok(_) | Err(_) => return true,
        }
    }
}

/// Returns the bytes that are there, and those of the whole message, if the message isn't whole and
/// the frontend may send the rest.
fn missing(socket: &OwnedFd) -> Option<(usize, usize)> {
    let there = rustix::io::ioctl_fionread(socket).ok()? as usize;
    let mut header = [0; HEADER];
    let of = match there {
        0 => return None,
        there if there < HEADER => HEADER,
        _ => {
            recv(socket, &mut header, RecvFlags::PEEK | RecvFlags::DONTWAIT).ok()?;
            let body = header[8..].try_into().map_or(0, u32::from_le_bytes) as usize;
            HEADER + if body > MOST_BODY { 0 } else { body }
        }
    };
    let has_left = || {
        let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    };
    (there < of && !has_left()).then_some((there, of))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn pair() -> (OwnedFd, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours.into(), theirs)
    }

    /// Returns a message with a body of this length.
    fn message(body: u32) -> Vec<u8> {
        let mut bytes = [1_u32, 1, body].iter().flat_map(|word| word.to_le_bytes()).collect();
        Vec::resize(&mut bytes, HEADER + body as usize, 7);
        bytes
    }

    #[test]
    fn a_frontend_that_says_nothing_is_late_until_its_handshake_is_done() {
        let (ours, mut theirs) = pair();
        let mut arrivals = Arrivals::new(&ours, Duration::ZERO);
        let why = arrivals.wait().unwrap_err();
        assert!(why.contains("SET_OWNER"), "{why}");
        // A message that is there isn't late.
        theirs.write_all(&message(8)).unwrap();
        assert_eq!(arrivals.wait(), Ok(()));
        theirs.write_all(&message(0)).unwrap();
        assert_eq!(arrivals.wait(), Ok(()));
        (&UnixStream::from(ours.try_clone().unwrap())).read_exact(&mut [0; 32]).unwrap();
        assert!(arrivals.wait().is_err());
        arrivals.handshake_done();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| arrivals.wait());
            theirs.write_all(&message(0)).unwrap();
            assert_eq!(waits.join().unwrap(), Ok(()), "it may be idle for any time");
        });
    }

    #[test]
    fn a_message_that_stops_in_its_middle_is_late() {
        for (part, says) in [(5, "5 of the 12 bytes"), (12, "12 of the 20"), (19, "19 of the 20")] {
            let (ours, mut theirs) = pair();
            let mut arrivals = Arrivals::new(&ours, Duration::ZERO);
            arrivals.handshake_done();
            theirs.write_all(&message(8)[..part]).unwrap();
            let why = arrivals.wait().unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn a_message_that_comes_byte_by_byte_is_whole_in_the_end() {
        let (ours, mut theirs) = pair();
        let mut arrivals = Arrivals::new(&ours, LONG);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| arrivals.wait());
            message(60).iter().for_each(|byte| theirs.write_all(&[*byte]).unwrap());
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
        assert_eq!(missing(&ours), None);
        assert_eq!(rustix::io::ioctl_fionread(&ours), Ok(72));
    }

    #[test]
    fn a_frontend_that_leaves_in_the_middle_of_a_message_is_not_waited_for() {
        let (ours, mut theirs) = pair();
        let mut arrivals = Arrivals::new(&ours, LONG);
        theirs.write_all(&message(8)[..7]).unwrap();
        drop(theirs);
        assert_eq!(arrivals.wait(), Ok(()));
    }

    #[test]
    fn a_length_that_no_message_has_is_not_waited_for() {
        let (ours, mut theirs) = pair();
        let mut arrivals = Arrivals::new(&ours, LONG);
        theirs.write_all(&message(MOST_BODY as u32 + 1)[..HEADER]).unwrap();
        assert_eq!(arrivals.wait(), Ok(()));
    }

    #[test]
    fn a_frontend_that_takes_no_answers_is_late() {
        let (ours, mut theirs) = pair();
        let mut arrivals = Arrivals::new(&ours, Duration::ZERO);
        theirs.write_all(&message(0)).unwrap();
        assert_eq!(arrivals.wait(), Ok(()));
        rustix::io::ioctl_fionbio(&ours, true).unwrap();
        while rustix::io::write(&ours, &[0; 4096]).is_ok() {}
        let why = arrivals.wait().unwrap_err();
        assert!(why.contains("took none of its answers"), "{why}");
    }
}
