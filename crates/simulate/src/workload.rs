//! The workload that is run: a benchmark's, in the words of `corewise bench --run`.

use corewise_bench::BenchError;
use corewise_bench::line::Line;
use corewise_bench::process::Job;
use corewise_bench::{blockmq, calls, probe, shutdown, workqueue};

/// What the machine's first thread does. `None`: there is no such runtime.
pub(crate) type Run = Box<dyn FnOnce() -> Result<Option<Line>, BenchError>>;

/// The run that is asked for: the benchmark's name, `workqueue` where none stands first, and its words.
///
/// # Errors
/// There is no such benchmark, or it doesn't understand a word.
pub(crate) fn read(words: &[String]) -> Result<Run, String> {
    let (name, words) = match words.split_first() {
        Some((first, rest)) if !first.contains('=') => (first.as_str(), rest),
        _ => ("workqueue", words),
    };
    match name {
        "workqueue" => of::<workqueue::job::Job>(words),
        "calls" => of::<calls::job::Job>(words),
        "probe" => of::<probe::job::Job>(words),
        "shutdown" => of::<shutdown::job::Job>(words),
        "blockmq" => of::<blockmq::job::Job>(words),
        other => Err(format!(
            "there is no benchmark '{other}': say workqueue, calls, probe, shutdown or blockmq, and then \
             the words of its run"
        )),
    }
}

fn of<J: Job + 'static>(words: &[String]) -> Result<Run, String> {
    let job = J::from_words(words).map_err(|error| error.to_string())?;
    Ok(Box::new(move || job.run_own(None)))
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
}
