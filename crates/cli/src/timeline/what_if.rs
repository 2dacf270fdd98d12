//! The predictions that the user asked for, for each timeline.

use corewise::timeline::analysis::{Prediction, WhatIf};
use corewise::timeline::{Driver, Timeline};
use corewise_server::text;

use super::source::{Log, names};
use crate::args::timeline::{Args, Faster};
use crate::exit::Failure;

/// Conditions of a prediction.
#[derive(Debug)]
pub(super) struct WhatIfArgs {
    all_async: bool,
    workers: Option<usize>,
    faster: Vec<Faster>,
}

/// One timeline as it would have been.
#[derive(Debug)]
pub(super) struct NamedPrediction {
    /// Index of the timeline in its log.
    pub(super) of: usize,
    /// Conditions in words.
    pub(super) asked: String,
    pub(super) what_if: WhatIf,
    pub(super) prediction: Prediction,
}

impl WhatIfArgs {
    pub(super) fn of(args: &Args) -> WhatIfArgs {
        WhatIfArgs {
            all_async: args.all_async,
            workers: args.workers.and_then(|n| usize::try_from(n).ok()),
            faster: args.faster.clone(),
        }
    }

    fn is_nothing(&self) -> bool {
        !self.all_async && self.workers.is_none() && self.faster.is_empty()
    }

    /// Returns the predictions for each log; none if the user asked for none.
    pub(super) fn predict(&self, logs: &[Log]) -> Result<Vec<Vec<NamedPrediction>>, Failure> {
        if self.is_nothing() {
            return Ok(logs.iter().map(|_| Vec::new()).collect());
        }
        for Faster { name, .. } in &self.faster {
            known(name, logs)?;
        }
        let mut all = logs.iter().flat_map(|log| &log.timelines);
        if all.all(|t| t.spans().is_empty()) {
            let message = "a prediction needs an order in time, but the log has no stamps finer \
                           than a second";
            return Err(Failure::new(message)
                .help("use 'dmesg' without -T, or 'journalctl -k -o short-monotonic'"));
        }
        let each = |log: &Log| {
            let each = |(of, t): (usize, &Timeline)| {
                let what_if = self.what_if(t)?;
                let prediction = what_if.predict(t);
                Some(NamedPrediction { of, asked: self.words(), what_if, prediction })
            };
            log.timelines.iter().enumerate().filter_map(each).collect()
        };
        Ok(logs.iter().map(each).collect())
    }

    /// Returns the conditions for one timeline; `None` if nothing in it would change.
    fn what_if(&self, t: &Timeline) -> Option<WhatIf> {
        if t.spans().is_empty() {
            return None;
        }
        let mut what_if = WhatIf::new();
        if self.all_async {
            what_if = what_if.all_async();
        }
        if let Some(workers) = self.workers {
            what_if = what_if.workers(workers);
        }
        for Faster { name, factor } in &self.faster {
            let meant = t.iter().filter(|(_, span)| {
                names(name, &span.name, span.driver.as_ref().map(Driver::name))
            });
            what_if = what_if.scaled(meant.map(|(id, _)| id), *factor);
        }
        (!what_if.is_empty()).then_some(what_if)
    }

    fn words(&self) -> String {
        let mut words = Vec::new();
        match (self.workers, self.all_async) {
            (Some(1), _) => words.push("1 worker".to_owned()),
            (Some(n), _) => words.push(format!("{n} workers")),
            (None, true) => words.push("all asynchronous".to_owned()),
            (None, false) => {}
        }
        for Faster { name, factor } in &self.faster {
            words.push(format!("{name} takes {factor} of its time"));
        }
        words.join(", ")
    }
}

/// Fails if no log contains the name.
fn known(name: &str, logs: &[Log]) -> Result<(), Failure> {
    let timelines = || logs.iter().flat_map(|log| &log.timelines);
    let spans = timelines()
        .flat_map(Timeline::spans)
        .map(|s| (s.name.as_str(), s.driver.as_ref().map(Driver::name)));
    let others = timelines().flat_map(Timeline::unplaced);
    let others = others.map(|u| (u.name.as_str(), u.driver.as_ref().map(Driver::name)));
    let all: Vec<(&str, Option<&str>)> = spans.chain(others).collect();
    if all.iter().any(|&(its, driver)| names(name, its, driver)) {
        return Ok(());
    }
    let failure = Failure::new(format!("there is no device, init function or driver '{name}'"));
    let names = all.iter().flat_map(|&(name, driver)| [Some(name), driver]);
    Err(match text::closest(name, names.flatten()) {
        Some(meant) => failure.help(format!("did you mean '{meant}'?")),
        None => failure.help("'*' matches any letters"),
    })
}
