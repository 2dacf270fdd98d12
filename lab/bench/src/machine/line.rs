//! Locked operations and fences of one CPU, on a line that no other CPU touches.

use corewise_topology::CpuId;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use corewise_costs::Line;

use crate::error::BenchError;

use super::lab::{Apart, Lab};

/// Time of each figure.
const EACH: Duration = Duration::from_millis(250);

pub(super) fn measure(lab: &Lab<'_>, cpu: CpuId) -> Result<Line, BenchError> {
    let own = Apart(AtomicU64::new(0));
    let word = &own.0;
    Ok(Line {
        locked_ns: lab.repeat_on(cpu, EACH, |count| {
            for _ in 0..count {
                word.fetch_add(1, Ordering::AcqRel);
            }
        })?,
        fence_ns: lab.repeat_on(cpu, EACH, |count| {
            for number in 0..u64::from(count) {
                word.store(number, Ordering::Relaxed);
                fence(Ordering::SeqCst);
            }
        })?,
    })
}
