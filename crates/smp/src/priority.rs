//! The scheduling priority of the threads that run call targets.
//!
//! A call to a CPU is only as prompt as the target's thread there: on a core that is busy with
//! ordinary work that thread has to run first. The kernel's threaded interrupt handlers run at
//! `SCHED_FIFO` 50 for the same reason. A library doesn't take such a priority by itself: a program
//! asks for it.

use std::fmt;
use std::io;

use corewise_sync::sys::{self, Limits, Policy};

/// The scheduling of the threads of the call targets. See
/// [`SmpBuilder::priority`](crate::SmpBuilder::priority).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// `SCHED_FIFO` at this priority: 1 to 99 (others are taken as the nearest). The thread runs
    /// ahead of all ordinary threads on its CPU, for as long as a handler takes. The kernel limits
    /// such threads to 95 % of a second together, unless `/proc/sys/kernel/sched_rt_runtime_us`
    /// says otherwise. If calls come to a target without a gap for 150 us, it continues as an
    /// ordinary thread until no more come. It makes no difference whether it spins between them or
    /// finds the next one in its queue. A call that comes while another thread has the CPU then
    /// waits for that one's slice, some milliseconds. If another program changes the thread's
    /// priority meanwhile (`chrt`, `renice`), that is lost when the thread takes its own back.
    Fifo(u8),
    /// The ordinary scheduler, with this niceness: -20 (most urgent) to 19 (others are taken as the
    /// nearest).
    Nice(i32),
    /// The ordinary scheduler and a niceness of 0, also if the starting thread has another.
    Plain,
}

impl Priority {
    /// Priority of the kernel's threaded interrupt handlers. Ask for it if calls have to be prompt
    /// on CPUs that are busy with ordinary work, and every handler is short.
    pub const OF_INTERRUPT_THREADS: Priority = Priority::Fifo(50);

    /// Returns it within the ranges that the system knows.
    pub(crate) fn in_range(self) -> Priority {
        match self {
            Priority::Fifo(n) => Priority::Fifo(n.clamp(1, 99)),
            Priority::Nice(n) => Priority::Nice(n.clamp(-20, 19)),
            Priority::Plain => Priority::Plain,
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Priority::Fifo(n) => write!(f, "SCHED_FIFO {n}"),
            Priority::Nice(n) => write!(f, "nice {n}"),
            Priority::Plain => f.write_str("plain"),
        }
    }
}

/// Returns the priorities to request from the system, in order, until it grants one: the wanted
/// priority, then the nearest ones within the limits. Ends with [`Priority::Plain`], which is
/// always granted.
pub(crate) fn attempts(wanted: Priority, limits: Limits) -> impl Iterator<Item = Priority> {
    let wanted = wanted.in_range();
    let mut list = [None; 5];
    list[0] = Some(wanted);
    if let Priority::Fifo(n) = wanted {
        let most = u8::try_from(limits.fifo).unwrap_or(99).min(n);
        list[1] = (most > 0 && most < n).then_some(Priority::Fifo(most));
        list[2] = Some(Priority::Nice(-20));
    }
    if matches!(wanted, Priority::Fifo(_) | Priority::Nice(..0)) {
        let least = 20 - i32::try_from(limits.nice.min(40)).unwrap_or(0);
        let asked = if let Priority::Nice(n) = wanted { n } else { -20 };
        list[3] = (least < 0 && least > asked).then_some(Priority::Nice(least));
    }
    list[4] = (wanted != Priority::Plain).then_some(Priority::Plain);
    list.into_iter().flatten()
}

/// Returns advice how to permit a refused priority.
pub(crate) fn how_to_permit(wanted: Priority) -> String {
    match wanted.in_range() {
        Priority::Fifo(n) => format!(
            "give the process the capability CAP_SYS_NICE, or a limit of at least {n} \
             (`ulimit -r {n}`; in a systemd unit `LimitRTPRIO={n}`)"
        ),
        Priority::Nice(n) => {
            let limit = 20 - n;
            format!(
                "give the process the capability CAP_SYS_NICE, or a limit of at least {limit} \
                 (`ulimit -e {limit}`; in a systemd unit `LimitNICE={limit}`)"
            )
        }
        Priority::Plain => String::from("the ordinary priority needs no permission"),
    }
}

/// Gives the calling thread the wanted priority, or the nearest that the system grants; returns
/// that.
pub(crate) fn apply(wanted: Priority) -> Priority {
    let granted = attempts(wanted, sys::limits()).find(|&attempt| match set(attempt) {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(priority = %attempt, %error, "a priority for a call target was refused");
            false
        }
    });
    granted.unwrap_or(Priority::Plain)
}

/// Returns true if the calling thread, which has this priority, could take it again after it gave
/// it up.
pub(crate) fn can_be_taken_again(granted: Priority) -> bool {
    let may = match granted {
        Priority::Fifo(n) => sys::limits().fifo >= u64::from(n),
        Priority::Nice(n) => i64::try_from(sys::limits().nice).unwrap_or(40) >= i64::from(20 - n),
        Priority::Plain => true,
    };
    may || sys::may_have_any_priority()
}

pub(crate) fn set(priority: Priority) -> io::Result<()> {
    match priority {
        Priority::Fifo(n) => sys::set_policy(Policy::Fifo(n)),
        Priority::Nice(n) => {
            sys::set_policy(Policy::Ordinary)?;
            sys::set_niceness(n)
        }
        Priority::Plain => {
            // A thread that inherited a higher niceness and may not lower it is plain enough.
            sys::set_policy(Policy::Ordinary).and_then(|()| sys::set_niceness(0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(wanted: Priority, fifo: u64, nice: u64) -> Vec<Priority> {
        attempts(wanted, Limits { fifo, nice, files: 1024 }).collect()
    }

    #[test]
    fn a_refused_priority_falls_back_to_the_nearest_that_the_limits_allow() {
        use Priority::{Fifo, Nice, Plain};
        assert_eq!(list(Fifo(50), 0, 0), [Fifo(50), Nice(-20), Plain]);
        assert_eq!(list(Fifo(50), 10, 30), [Fifo(50), Fifo(10), Nice(-20), Nice(-10), Plain]);
        assert_eq!(list(Fifo(50), u64::MAX, 40), [Fifo(50), Nice(-20), Plain]);
        assert_eq!(list(Nice(-15), 99, 30), [Nice(-15), Nice(-10), Plain]);
        assert_eq!(list(Nice(-5), 0, 30), [Nice(-5), Plain]);
        assert_eq!(list(Nice(5), 0, 40), [Nice(5), Plain]);
        assert_eq!(list(Plain, 99, 40), [Plain]);
    }

    #[test]
    fn a_priority_out_of_range_is_the_nearest_that_there_is() {
        assert_eq!(Priority::Fifo(0).in_range(), Priority::Fifo(1));
        assert_eq!(Priority::Fifo(200).in_range(), Priority::Fifo(99));
        assert_eq!(Priority::Nice(-99).in_range(), Priority::Nice(-20));
        assert_eq!(Priority::Nice(99).in_range(), Priority::Nice(19));
    }

    #[test]
    fn a_refused_priority_names_both_ways_to_permit_it() {
        let fifo = how_to_permit(Priority::Fifo(50));
        assert!(fifo.contains("CAP_SYS_NICE") && fifo.contains("ulimit -r 50"), "{fifo}");
        assert!(how_to_permit(Priority::Nice(-5)).contains("LimitNICE=25"));
    }
}
