//! SIGINT, SIGTERM and SIGHUP: the first stops the server in order, a later one at once. If there
//! is a manifest to read again, SIGHUP does that instead. `corewise attach` waits for them, too.

use std::ffi::c_int;
use std::io;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

/// Time after the first signal in which another one repeats the same request. coreutils' `timeout`
/// sends SIGTERM to the server and, some microseconds later, to its process group. Shells and
/// terminals do the same.
const REPEAT: Duration = Duration::from_secs(1);

/// Request of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopRequest {
    /// Stop in order.
    InOrder,
    /// Repetition of an earlier request.
    Repeated,
    /// End now.
    AtOnce,
}

/// Requests so far.
#[derive(Debug, Default)]
pub(super) struct StopRequests {
    first: Option<Instant>,
}

impl StopRequests {
    /// Records a signal and returns its request.
    pub(super) fn signal(&mut self, now: Instant) -> StopRequest {
        match self.first {
            None => self.other(now),
            Some(first) if now.saturating_duration_since(first) < REPEAT => StopRequest::Repeated,
            Some(_) => StopRequest::AtOnce,
        }
    }

    /// Records a request to stop that isn't a signal. Such a request never ends the server at once.
    pub(super) fn other(&mut self, now: Instant) -> StopRequest {
        if self.first.is_some() {
            return StopRequest::Repeated;
        }
        self.first = Some(now);
        StopRequest::InOrder
    }
}

/// Starts the thread that waits for signals. The thread runs `came` with the name of each, which
/// may block. Signals that arrive together count as one. A SIGHUP that `hang_up` takes counts as
/// none.
///
/// SIGHUP counts only if it is not ignored: a server started under nohup outlives its terminal.
/// SIGXFSZ never counts: a client that writes beyond the largest file size (`ulimit -f`) gets an
/// error, and the other clients continue.
pub(crate) fn watch(
    hang_up: impl Fn() -> bool + Send + 'static,
    came: impl Fn(&'static str) + Send + 'static,
) -> io::Result<()> {
    let mut wanted: Vec<c_int> = vec![SIGINT, SIGTERM, SIGXFSZ];
    if !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    let mut signals = Signals::new(wanted)?;
    std::thread::Builder::new().name("signals".to_string()).spawn(move || {
        // The loop ends if the signals are closed, which no code does.
        while !signals.is_closed() {
            let mut name = None;
            for signal in signals.wait() {
                if signal == SIGXFSZ || signal == SIGHUP && hang_up() {
                    continue;
                }
                name.get_or_insert(match signal {
                    SIGINT => "SIGINT",
                    SIGTERM => "SIGTERM",
                    _ => "SIGHUP",
                });
            }
            if let Some(name) = name {
                came(name);
            }
        }
    })?;
    Ok(())
}

/// Returns true if the program was started with this signal ignored.
fn is_ignored(signal: c_int) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_within_a_second_of_the_first_says_the_same_and_a_later_one_is_another_request() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut requests = StopRequests::default();
        assert_eq!(requests.signal(at(0)), StopRequest::InOrder);
        for ms in [0, 1, 500, 999] {
            assert_eq!(requests.signal(at(ms)), StopRequest::Repeated, "{ms}");
        }
        assert_eq!(requests.other(at(5000)), StopRequest::Repeated);
        for ms in [1000, 60_000] {
            assert_eq!(requests.signal(at(ms)), StopRequest::AtOnce, "{ms}");
        }
        let mut requests = StopRequests::default();
        assert_eq!(requests.other(at(0)), StopRequest::InOrder);
        assert_eq!(requests.signal(at(10)), StopRequest::Repeated);
        assert_eq!(requests.signal(at(1010)), StopRequest::AtOnce);
    }
}
