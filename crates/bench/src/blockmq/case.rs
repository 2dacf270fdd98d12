//! The cases: a workload with what is varied of it.

use std::fmt;
use std::str::FromStr;

use crate::calls::priority;
use crate::words::NoSuchCase;

/// How a queue is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// No dispatch; what the driver has isn't waited for.
    Quiesce,
    /// Nobody inside.
    Freeze,
}

impl Hold {
    /// Both.
    pub const ALL: [Hold; 2] = [Hold::Quiesce, Hold::Freeze];

    fn name(self) -> &'static str {
        match self {
            Hold::Quiesce => "quiesce",
            Hold::Freeze => "freeze",
        }
    }
}

/// How threads are scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// By a real-time priority (SCHED_FIFO), as interrupt threads are. Before anything is measured, a task of a
    /// higher priority runs on each CPU 20 of each 200 µs, and interrupts them.
    Fifo,
    /// As [`Class::Fifo`], without them.
    Alone,
    /// As any others: where no real-time priority may be had, and to compare.
    Ordinary,
}

impl Class {
    /// All of them, in the order in which headlines take them.
    pub const ALL: [Class; 3] = [Class::Fifo, Class::Ordinary, Class::Alone];

    /// The best one that this process may use.
    pub fn best() -> Class {
        if priority::may_be_real_time() { Class::Fifo } else { Class::Ordinary }
    }

    /// Whether completion threads have a real-time priority.
    pub fn is_real_time(self) -> bool {
        self != Class::Ordinary
    }

    fn name(self) -> &'static str {
        match self {
            Class::Fifo => "fifo",
            Class::Alone => "alone",
            Class::Ordinary => "ordinary",
        }
    }
}

/// What is read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// Nothing.
    Null,
    /// Memory.
    Memory,
    /// A file on a disk, past the page cache.
    File,
}

impl Device {
    /// All of them.
    pub const ALL: [Device; 3] = [Device::Null, Device::Memory, Device::File];

    fn name(self) -> &'static str {
        match self {
            Device::Null => "null",
            Device::Memory => "memory",
            Device::File => "file",
        }
    }
}

/// Reads or writes, of one block each, at random places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Reads.
    RandRead,
    /// Writes.
    RandWrite,
}

impl Mix {
    /// Both.
    pub const ALL: [Mix; 2] = [Mix::RandRead, Mix::RandWrite];

    /// As fio calls it.
    pub fn name(self) -> &'static str {
        match self {
            Mix::RandRead => "randread",
            Mix::RandWrite => "randwrite",
        }
    }
}

/// Random requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// To what.
    pub device: Device,
    /// Of which kind.
    pub mix: Mix,
    /// In flight, for each job.
    pub depth: u16,
    /// Jobs, which begin on a CPU each, in turn.
    pub jobs: u16,
}

impl Load {
    /// The one of the headlines.
    pub const fn headline(device: Device) -> Load {
        Load { device, mix: Mix::RandRead, depth: 32, jobs: 1 }
    }

    /// How many requests are in flight in all.
    pub fn in_flight(self) -> u32 {
        u32::from(self.depth) * u32::from(self.jobs)
    }
}

/// A workload with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    /// The published regression: sequential reads that so many threads complete, each of which then
    /// runs the hardware queue, where nothing is pending.
    SeqRead {
        /// Completion threads.
        threads: u16,
        /// What completing a request costs, in nanoseconds of CPU time.
        cost_ns: u32,
        /// How the completion threads are scheduled.
        class: Class,
    },
    /// Random requests.
    Io(Load),
    /// How long a hold takes.
    Hold {
        /// Of which kind.
        hold: Hold,
        /// While requests come and go; else the queue is idle.
        load: bool,
    },
    /// How long it takes to quiesce many queues, one of which has requests that come and go.
    QuiesceAll {
        /// So many.
        queues: u16,
    },
    /// Tags are taken and given back.
    Tags {
        /// By so many threads.
        submitters: u16,
        /// So many tags.
        depth: u32,
    },
}

/// Completion threads: those of the published machine first.
const THREADS: [u16; 5] = [8, 1, 2, 4, 16];
/// What a request costs: the one that is taken where nothing else is said first.
const COSTS: [u32; 4] = [1_000, 500, 2_000, 5_000];
/// Requests in flight for each job, and jobs.
const LOADS: [(u16, u16); 6] = [(1, 1), (32, 1), (128, 1), (1, 4), (32, 4), (128, 4)];
/// Queues that are quiesced together: disks of one controller.
const QUEUES: [u16; 3] = [4, 16, 64];
/// Submitters and tags: plenty of tags, then fewer than submitters.
const TAGS: [(u16, u32); 7] = [(1, 128), (2, 128), (4, 128), (8, 128), (16, 128), (4, 2), (16, 4)];

impl Case {
    /// The published one, as far as it is known: eight threads.
    pub const fn published(class: Class) -> Case {
        Case::SeqRead { threads: THREADS[0], cost_ns: COSTS[0], class }
    }

    /// Every case where threads may be scheduled so, the published one first.
    pub fn all(best: Class) -> Vec<Case> {
        let seqread = |threads, cost_ns| Case::SeqRead { threads, cost_ns, class: best };
        let mut all = vec![Case::published(best)];
        all.extend(THREADS[1..].iter().map(|threads| seqread(*threads, COSTS[0])));
        all.extend(COSTS[1..].iter().map(|cost| seqread(THREADS[0], *cost)));
        let others = Class::ALL.into_iter().filter(|class| *class != best);
        all.extend(others.filter(|_| best.is_real_time()).map(Case::published));
        for device in Device::ALL {
            for mix in Mix::ALL {
                all.extend(LOADS.map(|(depth, jobs)| Case::Io(Load { device, mix, depth, jobs })));
            }
        }
        for hold in Hold::ALL {
            all.extend([false, true].map(|load| Case::Hold { hold, load }));
        }
        all.extend(QUEUES.map(|queues| Case::QuiesceAll { queues }));
        all.extend(TAGS.map(|(submitters, depth)| Case::Tags { submitters, depth }));
        all
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Case::SeqRead { threads, cost_ns, class } => {
                write!(f, "seqread/{threads}/{cost_ns}/{}", class.name())
            }
            Case::Io(Load { device, mix, depth, jobs }) => {
                write!(f, "{}/{}/{depth}/{jobs}", device.name(), mix.name())
            }
            Case::Hold { hold, load } => {
                write!(f, "{}/{}", hold.name(), if *load { "load" } else { "idle" })
            }
            Case::QuiesceAll { queues } => write!(f, "quiesce_all/{queues}"),
            Case::Tags { submitters, depth } => write!(f, "tags/{submitters}/{depth}"),
        }
    }
}

impl FromStr for Case {
    type Err = NoSuchCase;

    fn from_str(text: &str) -> Result<Case, NoSuchCase> {
        /// A number, and not 0.
        fn count<N: FromStr + PartialEq + Default>(word: &str) -> Option<N> {
            word.parse().ok().filter(|number| *number != N::default())
        }
        let words: Vec<&str> = text.split('/').collect();
        let find = || {
            Some(match words[..] {
                ["seqread", threads, cost_ns, class] => Case::SeqRead {
                    threads: count(threads)?,
                    cost_ns: cost_ns.parse().ok()?,
                    class: Class::ALL.into_iter().find(|known| known.name() == class)?,
                },
                ["quiesce_all", queues] => Case::QuiesceAll { queues: count(queues)? },
                ["tags", submitters, depth] => {
                    Case::Tags { submitters: count(submitters)?, depth: count(depth)? }
                }
                [device, mix, depth, jobs] => Case::Io(Load {
                    device: Device::ALL.into_iter().find(|known| known.name() == device)?,
                    mix: Mix::ALL.into_iter().find(|known| known.name() == mix)?,
                    depth: count(depth)?,
                    jobs: count(jobs)?,
                }),
                [hold, load] => Case::Hold {
                    hold: Hold::ALL.into_iter().find(|known| known.name() == hold)?,
                    load: ["idle", "load"].iter().position(|known| *known == load)? == 1,
                },
                _ => return None,
            })
        };
        find().ok_or_else(|| NoSuchCase(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own_and_is_found_by_it() {
        for best in Class::ALL {
            let all = Case::all(best);
            assert_eq!(all[0], Case::published(best));
            for (n, case) in all.iter().enumerate() {
                assert_eq!(case.to_string().parse(), Ok(*case));
                assert!(!all[..n].contains(case));
            }
        }
        assert_eq!(Case::published(Class::Fifo).to_string(), "seqread/8/1000/fifo");
        for wrong in [
            "",
            "seqread",
            "seqread/8",
            "seqread/8/1000",
            "seqread/0/1000/fifo",
            "seqread/8/1000/fifo/x",
            "quiesce",
            "tags/0/4",
            "tags/4",
            "freeze/x",
            "hold/idle",
            "file",
            "file/randread/1",
            "file/randread/0/1",
            "file/read/1/1",
            "quiesce_all",
            "quiesce_all/0",
        ] {
            assert_eq!(wrong.parse::<Case>(), Err(NoSuchCase(wrong.to_owned())));
        }
    }
}
