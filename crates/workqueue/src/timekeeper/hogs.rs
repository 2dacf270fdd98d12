//! The functions that were caught keeping a core from others, and how often.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::panic::Location;

use super::policy::worth_a_report;
use crate::pool::excuse::Excuse;

/// How many functions are remembered: the kernel's `WCI_MAX_ENTS`. Those that come later are
/// counted in their queue and not reported.
const FUNCTIONS: usize = 128;

/// A function's name, where it was queued, and how it keeps its core.
type Function = (&'static str, &'static Location<'static>, Excuse);

/// How often each function was caught.
#[derive(Debug, Default)]
pub(crate) struct Hogs {
    hits: HashMap<Function, u64>,
}

impl Hogs {
    /// It was caught once more. How often so far, where that is worth a report.
    pub(crate) fn caught(
        &mut self,
        name: &'static str,
        site: &'static Location<'static>,
        why: Excuse,
    ) -> Option<u64> {
        let full = self.hits.len() == FUNCTIONS;
        let hits = match self.hits.entry((name, site, why)) {
            Entry::Vacant(_) if full => return None,
            entry => entry.or_default(),
        };
        *hits += 1;
        worth_a_report(*hits).then_some(*hits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn automatic_cpu_intensive_is_reported_from_the_fourth_hit_with_doubling_back_off() {
        let mut hogs = Hogs::default();
        let here = Location::caller();
        let mut caught = |name| hogs.caught(name, here, Excuse::Intensive);
        let reports: Vec<u64> = (0..40).filter_map(|_| caught("f")).collect();
        assert_eq!(reports, [4, 8, 16, 32]);
        assert_eq!(caught("g"), None, "each function has its own count");
    }

    #[test]
    fn automatic_cpu_intensive_tracks_128_functions() {
        let mut hogs = Hogs::default();
        let names: Vec<&'static str> =
            (0..130).map(|n| &*Box::leak(format!("f{n}").into_boxed_str())).collect();
        for _ in 0..4 {
            for name in &names {
                let here = Location::caller();
                let reported = hogs.caught(name, here, Excuse::Asleep).is_some();
                let tracked = names[..128].contains(name);
                assert!(tracked || !reported, "{name} came too late");
            }
        }
        assert_eq!(hogs.hits.len(), 128);
        assert!(hogs.hits.iter().all(|(_, hits)| *hits == 4));
    }
}
