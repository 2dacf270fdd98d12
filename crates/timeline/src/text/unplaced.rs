//! Rows of what ran nobody knows when: its length, and no bar.

use super::{Lines, Noun, analysis, rest};
use crate::Driver;
use crate::model::{Timeline, Unplaced};
use crate::select::{Rest, needs_seeing};
use std::cmp::Reverse;

/// Writes at most `rows` of them, what failed first (up to half the room), then the longest. Gives
/// those that it wrote.
pub(super) fn table<'t>(
    out: &mut Lines,
    t: &'t Timeline,
    rows: usize,
    noun: &Noun,
) -> Vec<&'t Unplaced> {
    let mut all: Vec<&Unplaced> = t.unplaced().iter().collect();
    if all.is_empty() {
        return all;
    }
    all.sort_by_key(|u| Reverse(u.took.told()));
    let mut urgent_left = rows / 2;
    all.sort_by_cached_key(|u| {
        let urgent = urgent_left > 0 && needs_seeing(&u.outcome, u.took, u.kind);
        urgent_left -= usize::from(urgent);
        !urgent
    });
    let mut left_out = Rest::default();
    for u in all.drain(rows.min(all.len())..) {
        left_out.add(u.took, u.outcome.is_ok());
    }
    all.sort_by_key(|u| Reverse(u.took.told()));
    let known = all.iter().any(|u| u.took.told().is_some());
    let order = if known { ", the longest first" } else { "" };
    out.wrapped(&format!("without a place in time{order}:"), 2);
    let cells = |u: &&Unplaced| {
        let beside = if u.asynchronous { "asynchronous" } else { "" };
        vec![
            u.name.clone(),
            u.driver.as_ref().map(Driver::to_string).unwrap_or_default(),
            u.kind.as_str().to_owned(),
            u.worker.clone(),
            u.took.to_string(),
            u.outcome.as_str().to_owned(),
            beside.to_owned(),
        ]
    };
    let columns = [
        (noun.one, false),
        ("driver", false),
        ("kind", false),
        ("worker", false),
        ("took", true),
        ("state", false),
        ("", false),
    ];
    analysis::table(out, &columns, &all.iter().map(cells).collect::<Vec<_>>());
    rest(out, &Rest::default(), &left_out, noun);
    out.line("");
    all
}
