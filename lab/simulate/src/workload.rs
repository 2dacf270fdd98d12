//! The workload of a run: a benchmark's, by its case's name or in the words of
//! `corewise-bench --run`.

use std::collections::BTreeMap;

use corewise_bench::BenchError;
use corewise_bench::bench::{self, Bench, Effort, On};
use corewise_bench::job::Job;
use corewise_bench::line::Line;
use corewise_topology::Topology;

/// The code of the machine's first thread.
pub(crate) type Run = Box<dyn FnOnce() -> Result<Line, BenchError>>;

/// Reads a run: the benchmark's name (`workqueue` if none stands first), and its words.
///
/// # Errors
/// There is no such benchmark, or the benchmark doesn't know a word.
pub(crate) fn read(words: &[String]) -> Result<Run, String> {
    let (name, words) = match words.split_first() {
        Some((first, rest)) if !first.contains('=') => (first.as_str(), rest),
        _ => ("workqueue", words),
    };
    let bench = bench::named(name).ok_or_else(|| {
        format!(
            "there is no benchmark '{name}': say workqueue, calls, probe, shutdown or blockmq, and then \
             the words of its run"
        )
    })?;
    let job = Job::from_words(bench, words).map_err(|error| error.to_string())?;
    Ok(Box::new(move || job.run_own(None)))
}

/// Greatest number of items by default: enough for steady figures, in some seconds.
const ITEMS: u64 = 100_000;

/// Returns the words of a named workload: one pass of the benchmark's short run, with some numbers
/// changed (`key=value`).
///
/// # Errors
/// No benchmark has such a workload.
pub(crate) fn named(
    workload: &str,
    runtime: &str,
    cpus: usize,
    changes: &[String],
) -> Result<Vec<String>, String> {
    let on = machine(cpus);
    let found = bench::ALL.into_iter().find_map(|bench| Some((bench, case(workload, bench, &on)?)));
    let (bench, case) = found.ok_or_else(|| {
        format!("there is no workload '{workload}': 'cargo xtask sim --help' lists them")
    })?;
    let mut words = words(&bench.job(&case, runtime, &on));
    for change in changes {
        let (key, value) =
            change.split_once('=').ok_or_else(|| format!("'{change}' is no KEY=VALUE"))?;
        words.insert(key.to_owned(), value.to_owned());
    }
    let words = words.into_iter().map(|(key, value)| format!("{key}={value}"));
    Ok(std::iter::once(bench.name.to_owned()).chain(words).collect())
}

/// Returns the names of all workloads, by benchmark.
pub(crate) fn list() -> String {
    let on = machine(4);
    let line = |bench: &Bench| format!("  {:10} {}\n", bench.name, bench.cases(&on).join(" "));
    bench::ALL.map(line).concat()
}

/// Describes a machine with this number of CPUs, without real-time priorities.
fn machine(cpus: usize) -> On {
    let topology = Topology::synthetic(&format!("core:{cpus} pu:1"));
    On::made_up(&topology.expect("it is a description, of one CPU or more"), Effort::Quick)
}

/// Returns the case of a name, or the first whose name begins with it.
fn case(name: &str, bench: &Bench, on: &On) -> Option<String> {
    let begins = |case: &String| case.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
    match bench.workload(name) {
        Some(_) => Some(name.to_owned()),
        None => bench.cases(on).into_iter().find(begins),
    }
}

/// Returns the words of a run, by key, with one pass and at most [`ITEMS`] items.
fn words(job: &Job) -> BTreeMap<String, String> {
    let words = job.to_words();
    let pairs = words.iter().filter_map(|word| word.split_once('='));
    pairs
        .map(|(key, value)| {
            let least = |most: u64| value.parse().map_or(most, |items: u64| items.min(most));
            let value = match key {
                "items" => least(ITEMS).to_string(),
                "passes" => least(1).to_string(),
                _ => value.to_owned(),
            };
            (key.to_owned(), value)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(words: &str) -> Option<String> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        read(&words).err()
    }

    #[test]
    fn the_first_word_names_the_benchmark_and_workqueue_needs_no_name() {
        for words in [
            "case=idle runtime=corewise",
            "workqueue case=idle runtime=corewise",
            "calls case=roundtrip/hot runtime=corewise client_cpu=1",
            "probe case=devices/3 runtime=corewise",
            "shutdown case=flat/5/0 runtime=corewise",
            "blockmq case=tags/4/128 runtime=corewise",
        ] {
            assert_eq!(problem(words), None, "{words}");
        }
        let unknown = problem("nbd case=idle runtime=corewise").expect("there is none");
        assert!(unknown.contains("'nbd'") && unknown.contains("blockmq"), "{unknown}");
        let wrong = problem("calls case=idle runtime=corewise").expect("not one of its cases");
        assert!(wrong.contains("idle"), "{wrong}");
    }

    #[test]
    fn every_workload_that_is_listed_can_be_asked_for_by_its_name() {
        for line in list().lines() {
            let mut names = line.split_whitespace();
            let benchmark = names.next().expect("the benchmark");
            for name in names {
                let words = named(name, "corewise", 4, &[]).expect(name);
                assert_eq!(words[0], benchmark, "{name}");
                assert!(words.contains(&format!("case={name}")), "{words:?}");
                assert!(read(&words).is_ok(), "{words:?}");
            }
        }
    }

    #[test]
    fn the_beginning_of_a_name_will_do_and_numbers_can_be_changed() {
        let changes = ["producers=7".to_owned(), "items=12".to_owned()];
        let words = named("storm", "corewise/cpu", 72, &changes).expect("there is one");
        for word in
            ["case=storm/reused", "runtime=corewise/cpu", "workers=72", "producers=7", "items=12"]
        {
            assert!(words.contains(&word.to_owned()), "{word}: {words:?}");
        }
        assert!(
            named("storms", "corewise", 4, &[]).expect_err("there is none").contains("'storms'")
        );
    }
}
