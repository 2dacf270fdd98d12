//! The CPUs that have each cache line, and the cost of the next access to it.

use rustc_hash::FxHashMap;

use crate::costs::Costs;
use crate::machine::{Distance, Machine, Mask};

/// Kind of an access to a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A read.
    Load,
    /// A write. The store buffer waits for the line, the CPU doesn't.
    Store,
    /// A read and a write in one locked step.
    Locked,
}

/// A line. One CPU wrote it last and has it alone, or any CPUs have read it since.
#[derive(Debug, Clone)]
struct Line {
    /// The last CPU that wrote to the line.
    writer: u16,
    /// True if no other CPU has read the line since.
    modified: bool,
    /// The CPUs that have the line.
    holders: Mask,
    /// Time of the last write. An earlier fetch has to be repeated.
    written_at: f64,
    /// Earliest time of the next hand-over.
    free_at: f64,
    /// True if the last hand-over was for a locked operation.
    locked: bool,
    /// The CPU that has prefetched the line, and the time of its arrival.
    coming: Option<(u16, f64)>,
}

/// Number of places in the code whose misses a core remembers.
const STREAMS: usize = 32;
/// The largest stride that a prefetcher sees, in lines.
const STRIDE: usize = 4;

/// Lines that one place in the code missed in a row, at equal distances.
#[derive(Debug, Clone, Copy)]
struct Stream {
    place: usize,
    last: usize,
    stride: isize,
}

/// The streams of a CPU. A new one replaces the oldest.
#[derive(Debug, Clone)]
struct Streams {
    known: [Stream; STREAMS],
    next: usize,
}

impl Streams {
    const fn new() -> Streams {
        Streams { known: [Stream { place: 0, last: 0, stride: 0 }; STREAMS], next: 0 }
    }

    /// Notes a miss. Returns true if the line was prefetched. A prefetch ends with a page, since
    /// the next page lies anywhere.
    fn missed(&mut self, place: usize, line: usize) -> bool {
        let Some(stream) = self.known.iter_mut().find(|stream| stream.place == place) else {
            self.known[self.next] = Stream { place, last: line, stride: 0 };
            self.next = (self.next + 1) % STREAMS;
            return false;
        };
        let step = line as isize - stream.last as isize;
        let goes_on = stream.stride != 0
            && step % stream.stride == 0
            && (1..=2).contains(&(step / stream.stride));
        let ahead = goes_on && stream.last >> 6 == line >> 6;
        if !goes_on {
            stream.stride = if step.unsigned_abs() <= STRIDE { step } else { 0 };
        }
        stream.last = line;
        ahead
    }
}

/// The lines of a machine.
#[derive(Debug)]
pub(crate) struct Lines {
    lines: FxHashMap<usize, Line>,
    /// The last misses of each CPU.
    streams: Vec<Streams>,
}

/// An access to a line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccessRequest {
    pub(crate) cpu: usize,
    pub(crate) line: usize,
    pub(crate) kind: Access,
    /// The place in the code.
    pub(crate) place: usize,
    /// Time at which all that comes before is done.
    pub(crate) now: f64,
    /// Time of the line's fetch: a core looks ahead.
    pub(crate) issued: f64,
}

/// Result of an access.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    /// Time at which the CPU goes on.
    pub(crate) until: f64,
    /// Time at which a store is seen. `until` for other accesses.
    pub(crate) seen: f64,
    /// Distance over which the line came.
    pub(crate) from: Distance,
}

impl Lines {
    pub(crate) fn new(cpus: usize) -> Lines {
        Lines { lines: FxHashMap::default(), streams: vec![Streams::new(); cpus] }
    }

    /// Returns the number of lines that were ever touched.
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Accesses a line.
    pub(crate) fn access(
        &mut self,
        machine: &Machine,
        costs: &Costs,
        asked: AccessRequest,
    ) -> Outcome {
        let AccessRequest { cpu, line, kind, place, now, issued } = asked;
        let (extra, prefetched) = match kind {
            Access::Locked => (costs.locked, costs.prefetched_locked),
            _ => (costs.hit, costs.prefetched),
        };
        let Some(entry) = self.lines.get_mut(&line) else {
            // Untouched memory costs as much as a line that others only read.
            let ahead = self.streams[cpu].missed(place, line);
            let far = if ahead { costs.prefetched } else { costs.shared.cache };
            let mut holders = Mask::EMPTY;
            holders.set(cpu);
            let arrives = (issued + far).max(now);
            let until = if kind == Access::Store { now } else { arrives } + extra;
            let entry = Line {
                writer: cpu as u16,
                modified: kind != Access::Load,
                holders,
                written_at: until,
                free_at: now,
                locked: false,
                coming: None,
            };
            self.lines.insert(line, entry);
            return Outcome { until, seen: arrives + extra, from: Distance::Here };
        };
        let has = entry.holders.has(cpu);
        if has && (kind == Access::Load || entry.modified && usize::from(entry.writer) == cpu) {
            let here = match entry.coming {
                Some((to, at)) if usize::from(to) == cpu => at.max(now),
                _ => now,
            };
            let until = here + extra;
            if kind != Access::Load {
                entry.written_at = until;
            }
            return Outcome { until, seen: until, from: Distance::Here };
        }
        let (from, latency) = if entry.modified {
            let from = machine.distance(usize::from(entry.writer), cpu);
            (from, costs.modified.of(from))
        } else if has {
            // For an upgrade, the farthest other holder has to let go.
            let others = entry.holders.iter().filter(|other| *other != cpu);
            let from = others.map(|other| machine.distance(other, cpu)).max();
            let from = from.unwrap_or(Distance::Here);
            (from, costs.shared.of(from))
        } else {
            let from = machine.distance(usize::from(entry.writer), cpu);
            let from = if from == Distance::Here { Distance::Cache } else { from };
            (from, costs.shared.of(from))
        };
        // A prefetch of a line that is still being written is wasted.
        let ahead = self.streams[cpu].missed(place, line) && entry.written_at + 2.0 * latency < now;
        // Locked operations that meet at a line follow each other faster than the line could travel
        // to and fro. A core that has the line does several.
        let queued = kind == Access::Locked && entry.locked && entry.free_at > now;
        let arrives = if ahead {
            now + prefetched
        } else if queued {
            entry.free_at + costs.service - extra
        } else {
            (issued.max(entry.written_at) + latency).max(entry.free_at + costs.service).max(now)
        };
        if !ahead {
            entry.free_at = if queued { arrives + extra } else { arrives };
            entry.locked = kind == Access::Locked;
        }
        entry.coming = None;
        match kind {
            Access::Load => {
                entry.modified = false;
                entry.holders.set(cpu);
            }
            Access::Store | Access::Locked => {
                entry.modified = true;
                entry.writer = cpu as u16;
                entry.holders = Mask::EMPTY;
                entry.holders.set(cpu);
                entry.written_at = arrives + extra;
            }
        }
        let until = if kind == Access::Store { now } else { arrives } + extra;
        Outcome { until, seen: arrives + extra, from }
    }

    /// Prefetches a line, to read it or to have it alone, and doesn't wait.
    pub(crate) fn prefetch(&mut self, machine: &Machine, costs: &Costs, asked: AccessRequest) {
        let here = |entry: &Line| match asked.kind {
            Access::Load => entry.holders.has(asked.cpu),
            _ => entry.modified && usize::from(entry.writer) == asked.cpu,
        };
        if self.lines.get(&asked.line).is_some_and(here) {
            return;
        }
        let outcome = self.access(machine, costs, asked);
        if let Some(entry) = self.lines.get_mut(&asked.line) {
            entry.coming = Some((asked.cpu as u16, outcome.seen));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> (Machine, Costs, Lines) {
        (Machine::flat(16), Costs::sapphire_rapids_16(), Lines::new(16))
    }

    /// Returns the nanoseconds of one access, and the distance of its line.
    fn cost(
        world: &mut (Machine, Costs, Lines),
        cpu: usize,
        line: usize,
        kind: Access,
        now: f64,
    ) -> (f64, Distance) {
        let (machine, costs, lines) = world;
        let outcome = lines.access(
            machine,
            costs,
            AccessRequest { cpu, line, kind, place: 7, now, issued: now },
        );
        (outcome.until - now, outcome.from)
    }

    #[test]
    fn a_line_that_is_here_costs_a_hit_and_one_that_another_wrote_a_transfer() {
        let mut world = setup();
        cost(&mut world, 0, 10, Access::Locked, 0.0);
        let (time, from) = cost(&mut world, 0, 10, Access::Load, 1000.0);
        assert!((time - 1.2).abs() < 1e-6 && from == Distance::Here, "{time}");
        let (time, from) = cost(&mut world, 5, 10, Access::Load, 2000.0);
        assert!((time - 91.2).abs() < 1e-6 && from == Distance::Cache, "{time}");
        assert_eq!(cost(&mut world, 5, 10, Access::Load, 3000.0).1, Distance::Here);
        assert_eq!(cost(&mut world, 0, 10, Access::Load, 3000.0).1, Distance::Here, "both have it");
        assert_eq!(
            cost(&mut world, 0, 10, Access::Locked, 4000.0).1,
            Distance::Cache,
            "alone again"
        );
        assert_eq!(cost(&mut world, 5, 10, Access::Load, 5000.0).1, Distance::Cache);
    }

    #[test]
    fn a_store_does_not_wait_for_its_line() {
        let mut world = setup();
        cost(&mut world, 0, 10, Access::Locked, 0.0);
        let (time, from) = cost(&mut world, 1, 10, Access::Store, 1000.0);
        assert!(time < 2.0 && from == Distance::Cache);
    }

    #[test]
    fn operations_on_a_contended_line_queue_up() {
        let mut world = setup();
        cost(&mut world, 0, 10, Access::Locked, 0.0);
        let times: Vec<f64> =
            (1..16).map(|cpu| cost(&mut world, cpu, 10, Access::Locked, 1000.0).0).collect();
        assert!(times.windows(2).all(|pair| pair[1] > pair[0]), "{times:?}");
        // On the measured machine each of sixteen waits 378 ns for its turn.
        assert!((300.0..450.0).contains(&times[14]), "{}", times[14]);
    }

    #[test]
    fn lines_at_a_stride_are_fetched_ahead_until_their_page_ends_and_others_are_not() {
        let mut world = setup();
        for line in 0..1024 {
            cost(&mut world, 15, line, Access::Store, 0.0);
        }
        let stride: f64 =
            (0..64).map(|n| cost(&mut world, 0, n * 4, Access::Load, 1e6).0).sum::<f64>() / 64.0;
        let scattered: f64 =
            (0..64).map(|n| cost(&mut world, 0, 512 + n * 37 % 512, Access::Load, 2e6).0).sum();
        assert!(stride < 15.0 && scattered / 64.0 > 80.0, "{stride} {scattered}");
    }

    #[test]
    fn a_line_that_was_asked_for_early_is_here_early_unless_it_was_written_since() {
        let mut world = setup();
        let (machine, costs, lines) = &mut world;
        let mut access = |cpu, kind, issued, now| {
            let asked = AccessRequest { cpu, line: 900, kind, place: 7, now, issued };
            lines.access(machine, costs, asked).until - now
        };
        access(15, Access::Locked, 0.0, 0.0);
        assert!(access(0, Access::Locked, 1000.0, 1090.0) < 10.0, "it came meanwhile");
        access(15, Access::Locked, 2000.0, 2000.0);
        let late = access(0, Access::Load, 2000.0, 2100.0);
        assert!(late > 80.0, "that of before was lost again: {late}");
    }

    #[test]
    fn a_prefetched_line_is_waited_for_only_as_long_as_it_is_on_its_way() {
        let mut world = setup();
        cost(&mut world, 15, 500, Access::Store, 0.0);
        let (machine, costs, lines) = &mut world;
        let asked = AccessRequest {
            cpu: 0,
            line: 500,
            kind: Access::Load,
            place: 1,
            now: 1000.0,
            issued: 1000.0,
        };
        lines.prefetch(machine, costs, asked);
        let soon = cost(&mut world, 0, 500, Access::Load, 1050.0).0;
        let late = cost(&mut world, 0, 500, Access::Load, 2000.0).0;
        assert!(soon > 30.0 && soon < 60.0 && late < 2.0, "{soon} {late}");
    }
}
