//! A run as text: words `key=value`, which a program in any language can read.

use corewise_topology::CpuId;
use std::time::Duration;

use crate::bench::{Bench, Workload};
use crate::meter::{Allocations, Meter};
use crate::{BenchError, Line};

/// The words of a run aren't understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadJob(String);

/// A number of a run, written as a whole number without a sign, or left out.
trait Number: Sized {
    fn read(value: u64) -> Option<Self>;
    fn write(&self) -> Option<u64>;
}

macro_rules! numbers {
    ($($kind:ty),*) => {$(
        impl Number for $kind {
            fn read(value: u64) -> Option<Self> {
                value.try_into().ok()
            }
            fn write(&self) -> Option<u64> {
                (*self).try_into().ok()
            }
        }
    )*};
}
numbers!(u32, u64, usize);

impl Number for CpuId {
    fn read(value: u64) -> Option<Self> {
        value.try_into().ok().map(CpuId::new)
    }
    fn write(&self) -> Option<u64> {
        Some(self.number().into())
    }
}

impl Number for bool {
    fn read(value: u64) -> Option<Self> {
        Some(value != 0)
    }
    fn write(&self) -> Option<u64> {
        Some((*self).into())
    }
}

impl<N: Number> Number for Option<N> {
    fn read(value: u64) -> Option<Self> {
        N::read(value).map(Some)
    }
    fn write(&self) -> Option<u64> {
        self.as_ref().and_then(N::write)
    }
}

fn at_least(value: u64, least: u64) -> bool {
    value >= least
}

macro_rules! job {
    ($($(#[$doc:meta])* $word:ident: $kind:ty = $default:expr, $least:literal;)*) => {
        /// One run: a case of a benchmark on a runtime, and every number that its program needs.
        /// The module of the benchmark documents their meaning there.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Job {
            /// The benchmark.
            pub bench: &'static Bench,
            /// The case.
            pub case: String,
            /// The runtime: `corewise/cache_shard`, `before`, `tokio`.
            pub runtime: String,
            $($(#[$doc])* pub $word: $kind,)*
        }

        impl Job {
            /// Creates a run with the default numbers.
            pub(crate) fn plain(bench: &'static Bench, case: &str, runtime: &str) -> Job {
                let (case, runtime) = (case.to_owned(), runtime.to_owned());
                Job { bench, case, runtime, $($word: $default,)* }
            }

            fn numbers(&self) -> Vec<(&'static str, Option<u64>)> {
                vec![$((stringify!($word), self.$word.write()),)*]
            }

            fn set(&mut self, word: &str, value: u64) -> Option<()> {
                match word {
                    $(stringify!($word) if at_least(value, $least) => self.$word = Number::read(value)?,)*
                    _ => return None,
                }
                Some(())
            }
        }
    };
}

job! {
    /// Worker threads.
    workers: usize = 1, 1;
    /// Threads that queue from outside.
    producers: usize = 1, 1;
    /// Items of a pass. The case defines its item.
    items: usize = 1, 1;
    /// Repetitions of a short operation in a pass.
    times: usize = 1, 1;
    /// Measured passes.
    passes: usize = 1, 1;
    /// Reused items of each producer.
    ring: usize = 1, 1;
    /// Microseconds that a client sleeps before each item.
    gap_us: u32 = 0, 0;
    /// Items per second of an open loop.
    rate: u64 = 0, 0;
    /// Microseconds that a blocking item sleeps.
    block_us: u32 = 0, 0;
    /// Microseconds that a short item spins.
    short_us: u32 = 0, 0;
    /// True if blocking items announce that they block.
    hint: bool = false, 0;
    /// Milliseconds of rest.
    rest_ms: u64 = 0, 0;
    /// The CPU of the client, if it is pinned.
    client_cpu: Option<CpuId> = None, 0;
    /// The CPU of the worker, if it is pinned.
    worker_cpu: Option<CpuId> = None, 0;
    /// The called CPU.
    server_cpu: CpuId = CpuId::new(0), 0;
    /// Milliseconds that the run takes, if no number of items ends it.
    length_ms: u64 = 0, 0;
    /// Microseconds between two times at which an urgent task wants its core.
    tick_us: u32 = 4_000, 0;
    /// Milliseconds of an interval, of which the longest wait counts.
    interval_ms: u32 = 20, 0;
    /// Bytes of a request.
    bytes: u32 = 4_096, 1;
    /// Requests in flight for each completion thread.
    depth: u32 = 1, 1;
    /// Pieces of a probe, each of which burns CPU time and waits.
    pieces: u32 = 0, 0;
    /// CPU time of a piece, in nanoseconds.
    burn_ns: u64 = 0, 0;
    /// Wait after the CPU time of a piece, in nanoseconds.
    wait_ns: u64 = 0, 0;
    /// Steps of a quick callback.
    quick_steps: u32 = 0, 0;
    /// The shortest slow callback, in milliseconds.
    shortest_ms: u32 = 100, 1;
    /// The longest slow callback, in milliseconds.
    longest_ms: u32 = 5_000, 1;
    /// Seed of random choices.
    seed: u64 = 1, 0;
    /// True if the run counts allocations and reports nothing else.
    count: bool = false, 0;
}

impl Job {
    /// Reads the words that [`Job::to_words`] writes. A missing key has its default; `case` and
    /// `runtime` are required.
    ///
    /// # Errors
    /// The error names the word that isn't understood.
    pub fn from_words<W: AsRef<str>>(
        bench: &'static Bench,
        words: impl IntoIterator<Item = W>,
    ) -> Result<Job, BadJob> {
        let mut job = Job::plain(bench, "", "");
        for word in words {
            let word = word.as_ref();
            let bad = || {
                BadJob(format!(
                    "'{word}' is no word of a run of {}, or no number it may have",
                    bench.name
                ))
            };
            let (key, value) = word.split_once('=').ok_or_else(bad)?;
            match key {
                "case" => value.clone_into(&mut job.case),
                "runtime" => value.clone_into(&mut job.runtime),
                _ if !bench.words.split(' ').any(|word| word == key) => return Err(bad()),
                _ => value.parse().ok().and_then(|value| job.set(key, value)).ok_or_else(bad)?,
            }
        }
        if job.runtime.is_empty() {
            return Err(BadJob("a run needs a runtime".to_owned()));
        }
        match bench.workload(&job.case) {
            Some(_) => Ok(job),
            None => Err(BadJob(format!("there is no case '{}'", job.case))),
        }
    }

    /// Writes the run as words `key=value`.
    pub fn to_words(&self) -> Vec<String> {
        let mut words = vec![format!("case={}", self.case), format!("runtime={}", self.runtime)];
        let numbers = self.numbers();
        words.extend(self.bench.words.split(' ').filter_map(|word| {
            let (_, number) = numbers.iter().find(|(known, _)| *known == word)?;
            Some(format!("{word}={}", (*number)?))
        }));
        words
    }

    /// Returns the parts of the case's name.
    pub fn parts(&self) -> Vec<&str> {
        self.case.split('/').collect()
    }

    /// Returns the number that is this part of the case's name.
    pub(crate) fn part(&self, at: usize) -> u32 {
        self.case.split('/').nth(at).and_then(|part| part.parse().ok()).unwrap_or(0)
    }

    /// Returns case and runtime for a reader: `storm/boxed on tokio`.
    pub fn name(&self) -> String {
        format!("{} on {}", self.case, self.runtime)
    }

    /// Returns the same run, shortened, which counts its allocations and times nothing.
    #[must_use]
    pub fn counting(mut self) -> Job {
        (self.bench.counting)(&mut self);
        self.count = true;
        self
    }

    /// Returns [`Job::client_cpu`], or the first CPU.
    pub fn client(&self) -> CpuId {
        self.client_cpu.unwrap_or(CpuId::new(0))
    }

    /// Returns [`Job::gap_us`].
    pub(crate) fn gap(&self) -> Duration {
        Duration::from_micros(self.gap_us.into())
    }

    /// Creates the line of the run, without metrics.
    pub fn line(&self) -> Line {
        Line::new(&self.case, &self.runtime)
    }

    /// Creates the line of a run that its runtime can't do.
    pub fn cannot(&self, why: &str) -> Line {
        Line { unsupported: Some(why.to_owned()), ..self.line() }
    }

    /// Returns the error of a run that isn't for a runtime of this program.
    ///
    /// # Errors
    /// It always fails.
    pub fn unknown<T>(&self) -> Result<T, BenchError> {
        Err(BenchError::NoRuntime { runtime: self.runtime.clone() })
    }

    /// Does the run in this process, on one of the runtimes of this crate.
    ///
    /// # Errors
    /// The run is for another runtime, or the workload couldn't be run.
    pub fn run_own(&self, allocations: Option<Allocations>) -> Result<Line, BenchError> {
        if self.count && allocations.is_none() {
            return Ok(self.cannot("this program counts no allocations"));
        }
        let meter = &mut Meter::new(self.count, allocations);
        let run = |workload: &Workload| (workload.run)(self, meter);
        self.bench.workload(&self.case).map_or_else(|| self.unknown(), run)
    }
}
