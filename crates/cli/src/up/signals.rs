//! SIGINT, SIGTERM and SIGHUP: the first stops the server in order, the second at once. Where there is a manifest to read
//! again SIGHUP does that.

use std::ffi::c_int;
use std::io;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

/// Starts the thread that waits for signals. It runs `first` with the name of the first one and
/// `again` with that of each later one; all run on that thread and may block. A SIGHUP that `hang_up` takes counts as none.
///
/// SIGHUP counts only where it is not ignored: a server started under nohup outlives its terminal. SIGXFSZ never does: a client that writes beyond
/// the size that the system lets files have (`ulimit -f`) gets an error, and the others go on.
pub(crate) fn watch(
    hang_up: impl Fn() -> bool + Send + 'static,
    first: impl FnOnce(&'static str) + Send + 'static,
    again: impl Fn(&'static str) + Send + 'static,
) -> io::Result<()> {
    let mut wanted: Vec<c_int> = vec![SIGINT, SIGTERM, SIGXFSZ];
    if !is_ignored(SIGHUP) {
        wanted.push(SIGHUP);
    }
    let mut signals = Signals::new(wanted)?;
    std::thread::Builder::new().name("signals".to_string()).spawn(move || {
        let mut first = Some(first);
        for signal in signals.forever() {
            if signal == SIGXFSZ || signal == SIGHUP && hang_up() {
                continue;
            }
            let name = match signal {
                SIGINT => "SIGINT",
                SIGTERM => "SIGTERM",
                _ => "SIGHUP",
            };
            match first.take() {
                Some(first) => first(name),
                None => again(name),
            }
        }
    })?;
    Ok(())
}

/// Whether our starter had this signal ignored.
fn is_ignored(signal: c_int) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}
