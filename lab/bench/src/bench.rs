//! A benchmark is a table of workloads and a list of headlines. A workload names its cases, their
//! numbers and their runtimes, and has the function that does one run.
//!
//! A *case* is a workload with its parameters, written as parts between slashes: `storm/boxed`,
//! `seqread/8/1000/fifo`. A *run* is one case on one runtime in a process of its own. A driver
//! starts `PROGRAM WORD...` with the words `key=value` of a [`Job`]. The program prints one
//! [`Line`] of JSON at its end. So a runtime of any language takes part, and no runtime warms
//! another's allocator. The driver can end a run that hangs.

use corewise_topology::{CpuSet, Machine, Topology};

use crate::calls::priority;
use crate::meter::Meter;
use crate::names::{Layout, Place};
use crate::rounds::{Cell, Series, values};
use crate::stats::PairedRatio;
use crate::{BenchError, Job, Line};

/// The reason that a simulated machine doesn't run a workload not made of `corewise_sync`.
pub(crate) const NOT_SIMULATED: &str = "it waits for the system or the standard library itself, which a simulated machine has no part of";

/// Every benchmark, in the order in which they are run.
pub static ALL: [&Bench; 5] = [
    &crate::workqueue::BENCH,
    &crate::calls::BENCH,
    &crate::probe::BENCH,
    &crate::shutdown::BENCH,
    &crate::blockmq::BENCH,
];

/// Returns the benchmark of this name.
pub fn named(name: &str) -> Option<&'static Bench> {
    ALL.into_iter().find(|bench| bench.name == name)
}

/// Length of the runs of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Runs long enough for figures to be published.
    Full,
    /// Shorter runs, for a first impression.
    Quick,
}

/// Place and length of runs, which decide on the cases and their numbers.
#[derive(Debug, Clone)]
pub struct On {
    /// The online CPUs.
    pub cpus: CpuSet,
    /// Length of the runs.
    pub effort: Effort,
    /// True if threads may have real-time priorities.
    pub urgent: bool,
    /// Scopes whose pods are the same.
    pub layout: Layout,
}

impl On {
    /// Describes the machine of this process.
    pub fn here(machine: &Machine, effort: Effort) -> On {
        let here = On::made_up(machine.topology(), effort);
        On { cpus: machine.online(), urgent: priority::may_be_real_time(), ..here }
    }

    /// Describes a machine on which no thread may have a real-time priority.
    pub fn made_up(topology: &Topology, effort: Effort) -> On {
        let layout = Layout::of(topology, &crate::workqueue::SHARD_SIZES);
        On { cpus: topology.allowed().clone(), effort, urgent: false, layout }
    }

    /// Returns the first number in a full call, and the second in a quick one.
    pub fn pick<T>(&self, full: T, short: T) -> T {
        if self.effort == Effort::Quick { short } else { full }
    }
}

/// A runtime on which a case is run, and its name in records.
#[derive(Debug, Clone)]
pub struct Variant {
    /// The name in records.
    pub name: &'static str,
    /// The runtime in the words of the run.
    pub runtime: String,
    /// The scope, which follows the case in records.
    pub place: Option<Place>,
    /// True if one more run, a short one, counts the allocations.
    pub count: bool,
}

impl Variant {
    /// Creates a variant with the name of its runtime.
    pub(crate) fn of(name: &'static str) -> Variant {
        Variant { name, runtime: name.to_owned(), place: None, count: false }
    }
}

/// Creates variants with the names of their runtimes. With `count`, runs of those that begin with
/// `corewise` count their allocations too.
pub(crate) fn variants(names: &[&'static str], count: bool) -> Vec<Variant> {
    let variant = |name: &&'static str| Variant {
        count: count && name.starts_with("corewise"),
        ..Variant::of(name)
    };
    names.iter().map(variant).collect()
}

/// The cases of a workload.
#[derive(Debug, Clone, Copy)]
pub enum Cases {
    /// Names between blanks.
    These(&'static str),
    /// Names that the first function accepts. The second lists the cases of a call.
    Fit(fn(&[&str]) -> bool, fn(&On) -> Vec<String>),
}

impl Cases {
    fn has(&self, case: &str) -> bool {
        match self {
            Cases::These(all) => all.split(' ').any(|one| one == case),
            Cases::Fit(fits, _) => fits(&case.split('/').collect::<Vec<_>>()),
        }
    }

    fn all(&self, on: &On) -> Vec<String> {
        match self {
            Cases::These(all) => all.split(' ').map(str::to_owned).collect(),
            Cases::Fit(_, all) => all(on),
        }
    }
}

/// A workload. Its functions get the parts of a case's name.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// The cases, in the order of the tables.
    pub cases: Cases,
    /// Function that selects the cases of a quick call: cases of the headlines, and some of the
    /// rest.
    pub quick: fn(&[&str], &On) -> bool,
    /// Function that sets the numbers of a run.
    pub numbers: fn(&mut Job, &[&str], &On),
    /// Function that lists the runtimes of a case.
    pub variants: fn(&[&str], &On) -> Vec<Variant>,
    /// Function that does one run in this process.
    pub run: fn(&Job, &mut Meter) -> Result<Line, BenchError>,
}

/// A benchmark.
#[derive(Debug)]
pub struct Bench {
    /// The name in records: `workqueue`.
    pub name: &'static str,
    /// Names of the numbers of a run, between blanks.
    pub words: &'static str,
    /// The workloads, in the order of the tables.
    pub workloads: &'static [Workload],
    /// Function that shortens a run, for one that counts allocations.
    pub counting: fn(&mut Job),
    /// Function that computes the headlines, the summary of a call: name and ratio, or `None` if
    /// the call didn't measure it.
    pub headlines: fn(&Pairs<'_>) -> Vec<(&'static str, Ratio)>,
}

impl PartialEq for Bench {
    fn eq(&self, other: &Bench) -> bool {
        self.name == other.name
    }
}

impl Eq for Bench {}

impl Bench {
    /// Returns the workload of a case.
    pub fn workload(&self, case: &str) -> Option<&'static Workload> {
        self.workloads.iter().find(|workload| workload.cases.has(case))
    }

    /// Returns every case, in the order of the tables.
    pub fn cases(&self, on: &On) -> Vec<String> {
        self.workloads.iter().flat_map(|workload| workload.cases.all(on)).collect()
    }

    /// Returns the run of a case.
    pub fn job(&'static self, case: &str, runtime: &str, on: &On) -> Job {
        let mut job = Job::plain(self, case, runtime);
        let parts: Vec<&str> = case.split('/').collect();
        if let Some(workload) = self.workload(case) {
            (workload.numbers)(&mut job, &parts, on);
        }
        job
    }

    /// Returns the cells of the cases that `wanted` accepts, grouped by case. The flag that
    /// `wanted` gets is true if a quick call has the case.
    pub fn cells(&'static self, on: &On, wanted: impl Fn(&str, bool) -> bool) -> Vec<Vec<Cell>> {
        let mut groups = Vec::new();
        for workload in self.workloads {
            for case in workload.cases.all(on) {
                let parts: Vec<&str> = case.split('/').collect();
                if !wanted(&case, (workload.quick)(&parts, on)) {
                    continue;
                }
                let cell = |variant: Variant| Cell {
                    job: self.job(&case, &variant.runtime, on),
                    case: variant.place.map_or(case.clone(), |place| format!("{case}/{place}")),
                    variant: variant.name.to_owned(),
                    count: variant.count,
                };
                groups.push((workload.variants)(&parts, on).into_iter().map(cell).collect());
            }
        }
        groups
    }
}

/// A ratio of pairs, or `None` if one side wasn't measured.
pub type Ratio = Option<PairedRatio>;

/// Measured values of a call, for ratios of pairs.
#[derive(Debug, Clone, Copy)]
pub struct Pairs<'s> {
    /// The values, round by round.
    pub series: &'s [Series],
    /// The seed of the intervals.
    pub seed: u64,
}

impl<'s> Pairs<'s> {
    /// Returns the values of one metric of one variant in one case.
    pub fn values(&self, case: &str, variant: &str, metric: &str) -> Option<&'s [f64]> {
        values(self.series, case, variant, metric)
    }

    /// Returns the ratio of two lists of values, pair by pair, or `None` if one is missing.
    pub fn ratio(&self, over: Option<&[f64]>, under: Option<&[f64]>) -> Ratio {
        let (over, under) = (over?, under?);
        let pairs = over.len().min(under.len());
        PairedRatio::of(&over[..pairs], &under[..pairs], self.seed)
    }

    /// Returns the ratio of one metric of `corewise` in a case to that of another variant.
    pub fn over(&self, case: &str, metric: &str, other: &str) -> Ratio {
        self.ratio(self.values(case, "corewise", metric), self.values(case, other, metric))
    }
}

/// Returns the worst of some ratios, of which less is better.
pub fn worst(ratios: impl IntoIterator<Item = PairedRatio>) -> Ratio {
    ratios.into_iter().max_by(|a, b| a.summary.median.total_cmp(&b.summary.median))
}

/// Returns true if this part of a case's name is a number other than 0.
pub(crate) fn count(part: &str) -> bool {
    part.parse::<u32>().is_ok_and(|number| number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::unit;
    use crate::names::{Better, HEADLINE};

    fn on(machine: &str, effort: Effort) -> On {
        On::made_up(&Topology::synthetic(machine).unwrap(), effort)
    }

    #[test]
    fn every_case_has_cells_that_are_told_apart_and_words_that_are_read_back() {
        for (effort, urgent) in [(Effort::Full, true), (Effort::Quick, false)] {
            let on = On { urgent, ..on("l3:2 core:4 pu:2", effort) };
            for bench in ALL {
                let cases = bench.cases(&on);
                assert!(cases.iter().all(|case| bench.workload(case).is_some()), "{cases:?}");
                let groups = bench.cells(&on, |_, _| true);
                assert_eq!(groups.len(), cases.len());
                let cells = groups.iter().flatten();
                let mut names: Vec<_> =
                    cells.clone().map(|one| (&one.case, &one.variant)).collect();
                names.sort_unstable();
                assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
                for cell in cells {
                    for job in [cell.job.clone(), cell.job.clone().counting()] {
                        let counts = job.count && bench.words.contains("count");
                        let read = Job::from_words(bench, job.to_words());
                        assert_eq!(read, Ok(Job { count: counts, ..job }));
                    }
                }
                let quick = bench.cells(&on, |_, is_quick| is_quick);
                assert!(quick.len() < groups.len(), "{bench:?}");
                let first = [&quick[0][0].case, &groups[0][0].case];
                assert_eq!(first[0], first[1], "what counts most is never left out");
            }
        }
    }

    #[test]
    fn a_case_or_a_word_that_is_none_is_named() {
        for (bench, words, named) in [
            ("workqueue", "runtime=x", "case"),
            ("workqueue", "case=idle", "runtime"),
            ("workqueue", "case=storm runtime=x", "'storm'"),
            ("workqueue", "case=idle runtime=x fast=1", "fast=1"),
            ("workqueue", "case=idle runtime=x items=many", "items=many"),
            ("workqueue", "case=idle runtime=x items=0", "items=0"),
            ("workqueue", "case=idle runtime", "'runtime'"),
            ("calls", "case=roundtrip/warm runtime=x", "warm"),
            ("calls", "case=broadcast/0 runtime=x", "broadcast/0"),
            ("calls", "case=reads/ runtime=x", "reads/"),
            ("calls", "case=reads runtime=x ring=1", "ring=1"),
            ("probe", "case=sync/4 runtime=x", "sync/4"),
            ("probe", "case=devices/x runtime=x", "devices/x"),
            ("shutdown", "case=flat/2/3 runtime=x", "flat/2/3"),
            ("shutdown", "case=azure/x runtime=x", "azure/x"),
            ("blockmq", "case=seqread/0/1000/fifo runtime=x", "seqread/0"),
            ("blockmq", "case=seqread/8/1000/fifo/x runtime=x", "fifo/x"),
            ("blockmq", "case=file/read/1/1 runtime=x", "file/read"),
            ("blockmq", "case=tags/4 runtime=x", "tags/4"),
            ("blockmq", "case=quiesce_all runtime=x", "quiesce_all"),
        ] {
            let bench = super::named(bench).unwrap();
            let problem = Job::from_words(bench, words.split(' ')).unwrap_err().to_string();
            assert!(problem.contains(named), "{words}: {problem}");
        }
    }

    /// Small runs of cases that run different code.
    const SMALL: [&str; 5] = [
        "workers=2 producers=2 items=50 rate=10000 block_us=10 short_us=1 rest_ms=1",
        "items=20 length_ms=150",
        "pieces=2 burn_ns=20000 wait_ns=20000 passes=2",
        "passes=2 shortest_ms=1 longest_ms=4",
        "items=50 gap_us=50 length_ms=20",
    ];
    const RUN: [&[&str]; 5] = [
        &[],
        &[],
        &["devices/5", "overhead/7", "sync/3", "no_node/3"],
        &["flat/150/6", "deep/60/0", "wide/60/2", "stacked/150/6", "inverted/60/0"],
        &[
            "seqread/3/200/ordinary",
            "seqread/2/200/fifo",
            "null/randwrite/3/2",
            "memory/randread/3/2",
            "quiesce/idle",
            "quiesce/load",
            "freeze/idle",
            "freeze/load",
            "quiesce_all/3",
            "tags/1/8",
            "tags/3/128",
            "tags/4/2",
        ],
    ];

    /// Reports of runs have names and values. A wrong read, order or answer is an error.
    #[test]
    fn every_variant_runs_its_cases_small_or_says_why_not() {
        let on = On::here(&Machine::live().unwrap(), Effort::Quick);
        for ((bench, small), run) in ALL.into_iter().zip(SMALL).zip(RUN) {
            let cases = match run {
                [] => bench.cases(&on),
                some => some.iter().map(|case| (*case).to_owned()).collect(),
            };
            for case in cases {
                let parts: Vec<&str> = case.split('/').collect();
                let workload = bench.workload(&case).unwrap();
                for variant in (workload.variants)(&parts, &on) {
                    let asked = [format!("case={case}"), format!("runtime={}", variant.runtime)];
                    let words = small.split(' ').map(str::to_owned);
                    let job = Job::from_words(bench, asked.into_iter().chain(words)).unwrap();
                    let line = job.run_own(None).unwrap();
                    assert_eq!((&line.case, &line.runtime), (&case, &variant.runtime));
                    let known =
                        |(name, value): (&String, &f64)| unit(name).is_some() && value.is_finite();
                    assert!(line.metrics.iter().all(known), "{line:?}");
                    assert_eq!(line.unsupported.is_some(), line.metrics.is_empty(), "{line:?}");
                    let cannot = match (bench.name, variant.name, parts[0]) {
                        ("probe", "nested", "sync") => true,
                        ("probe", "threads", first) => first != "devices",
                        (_, "fio", _) | ("blockmq", _, "seqread") | ("calls", _, "held_span") => {
                            line.unsupported.is_some()
                        }
                        _ => false,
                    };
                    assert_eq!(line.unsupported.is_some(), cannot, "{line:?}");
                }
            }
            let case = bench.workloads[0].cases.all(&on).remove(0);
            let other = Job::plain(bench, &case, "tokio").run_own(None);
            assert!(matches!(other, Err(BenchError::NoRuntime { .. })), "others' aren't ours");
            let counting = Job::plain(bench, &case, "corewise").counting().run_own(None).unwrap();
            assert!(counting.unsupported.is_some(), "this program counts nothing");
        }
    }

    /// Values of two rounds (case, variant, metric) for each benchmark. The headlines that follow
    /// from them stand behind a colon. A `+` marks a headline of which higher is better.
    const HEADLINES: [(&str, &str); 5] = [
        (
            "workqueue",
            "kernel_test/cache before items_per_second 100 10
             kernel_test/cache_shard corewise items_per_second 500 50
             kernel_test/cache before call_p50 600 6000
             kernel_test/cache_shard corewise call_p50 100 1000
             : cache_shard_vs_before_items 5 +
             : cache_shard_vs_before_p50 6 +",
        ),
        (
            "calls",
            "held_span/priority corewise held_p99 1 2
             held_span/priority before held_p99 100 200
             roundtrip/hot corewise latency_p50 300 400
             roundtrip/hot eventfd latency_p50 3000 4000
             roundtrip/cold corewise latency_p50 30 300
             roundtrip/cold eventfd latency_p50 20 200
             : held_span_p99_vs_before 0.01 -
             : roundtrip_p50_vs_eventfd 1.5 -",
        ),
        (
            "probe",
            "devices/3 corewise cost_mean 34 17
             devices/3 before cost_mean 50 25
             devices/3 corewise makespan_p50 36 36
             devices/3 corewise bound 36 36
             devices/9 corewise makespan_p50 150 150
             devices/9 corewise bound 100 100
             : mean_cost_vs_before 0.68 -
             : makespan_vs_bound 1.5 -",
        ),
        (
            "shutdown",
            "flat/500/24 corewise makespan_p50 102 204
             flat/500/24 corewise critical_path 100 200
             flat/500/0 corewise makespan_p50 90 90
             flat/500/0 serial makespan_p50 100 100
             wide/50000/0 corewise makespan_p50 98 98
             wide/50000/0 serial makespan_p50 100 100
             azure/serial corewise makespan_p50 45 45
             azure/serial serial makespan_p50 100 100
             : makespan_vs_critical_path 1.02 -
             : no_slow_vs_serial 0.98 -
             : azure_vs_serial 0.45 -",
        ),
        (
            "blockmq",
            "seqread/8/1000/ordinary corewise bytes_per_second 100 100
             seqread/8/1000/ordinary before bytes_per_second 50 50
             seqread/8/1000/fifo corewise bytes_per_second 100 200
             seqread/8/1000/fifo before bytes_per_second 20 40
             seqread/8/1000/fifo unchecked bytes_per_second 100 200
             null/randread/32/1 corewise overhead_ns_per_request 250 250
             null/randread/32/1 corewise allocations_per_item 0 0
             file/randread/32/1 corewise items_per_second 90 90
             file/randread/32/1 corewise latency_p99 90 90
             file/randread/32/1 fio items_per_second 100 100
             file/randread/32/1 fio latency_p99 60 60
             : seqread_vs_before 5 +
             : seqread_vs_unchecked 1 +
             : file_iops_vs_fio 0.9 +
             : file_p99_vs_fio 1.5 -
             : overhead_ns_per_request 250 -
             : allocations_per_item 0 -",
        ),
    ];

    #[test]
    fn headlines_are_ratios_of_pairs_of_what_was_measured() {
        for (bench, text) in HEADLINES {
            let bench = super::named(bench).unwrap();
            let lines: Vec<Vec<&str>> =
                text.lines().map(|line| line.split_whitespace().collect()).collect();
            let (expected, series): (Vec<_>, Vec<_>) =
                lines.iter().partition(|line| line[0] == ":");
            let number = |text: &str| text.parse::<f64>().unwrap();
            let made_up = |line: &&Vec<&str>| {
                let values = [number(line[3]), number(line[4])];
                Series::of(line[0], line[1], line[2], &values)
            };
            let series: Vec<Series> = series.iter().map(made_up).collect();
            let of = |series| {
                let all = (bench.headlines)(&Pairs { series, seed: 1 });
                all.into_iter().filter_map(|(name, of)| Some((name, of?))).collect::<Vec<_>>()
            };
            assert!(of(&series[..1]).is_empty(), "what wasn't measured has no headline");
            let records = crate::rounds::records(bench.name, &series, &of(&series));
            // Each headline also has an interval. The headlines come before all intervals.
            let headlines = &records[series.len() + expected.len()..];
            assert_eq!(headlines.len(), expected.len());
            for (record, line) in headlines.iter().zip(expected) {
                let better = if line[3] == "+" { Better::Higher } else { Better::Lower };
                assert_eq!((&*record.metric, record.median), (line[1], number(line[2])));
                assert_eq!((&*record.case, Better::of_headline(record)), (HEADLINE, Some(better)));
            }
        }
    }
}
