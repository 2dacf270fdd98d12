//! Made-up timelines of any size, equal for equal arguments, for tests and the gallery example.

use corewise_timeline::{EdgeKind, Outcome, Span, SpanId, SpanKind, Timeline};
use std::time::Duration;

const US: fn(u64) -> Duration = Duration::from_micros;

/// Lays out `devices` devices as a scheduler with `workers` workers would: disks first, then
/// volumes over two disks each, then one export for each volume. Some fail, some have no callback.
pub(crate) fn bring_up(devices: usize, workers: usize) -> Timeline {
    let mut t = Timeline::new("bring-up");
    let mut free_at = vec![0u64; workers];
    let mut ends: Vec<(SpanId, u64, String, bool)> = Vec::new();
    let disks = devices / 2 + 1;
    for i in 0..devices {
        let noise = (i as u64).wrapping_mul(2_654_435_761) >> 7;
        let (name, needs) = if i < disks {
            (format!("disk-{i}"), vec![])
        } else if (i - disks) % 2 == 0 {
            (format!("stripe-{}", i - disks), vec![(i - disks) % disks, (i - disks + 1) % disks])
        } else {
            (format!("export-of-stripe-{}", i - disks - 1), vec![i - 1])
        };
        let last = needs.iter().map(|&n| &ends[n]).max_by_key(|e| e.1);
        let failed_before = needs.iter().find(|&&n| !ends[n].3).map(|&n| ends[n].2.clone());
        let queued = last.map_or(0, |e| e.1);
        let released_by = last.map(|e| e.2.clone());
        let worker = (0..workers).min_by_key(|&w| free_at[w]).expect("there is a worker");
        let start = queued.max(free_at[worker]) + 15;
        let no_callback = i % 7 == 5 && i >= disks;
        let fails = i % 29 == 17;
        let took = match (&failed_before, no_callback) {
            (Some(_), _) | (_, true) => 0,
            _ if i < disks => 3_000 + noise % 40_000,
            _ => 500 + noise % 9_000,
        };
        let mut span = Span::new(name.clone(), SpanKind::Probe, US(start), US(start + took));
        span = span.on(format!("worker {worker}"), Some(worker as u32 * 2));
        span.queued = US(queued);
        span.node = Some((worker % 2) as u32);
        span.released_by = released_by;
        span.no_callback = no_callback;
        span.outcome = match (failed_before, fails) {
            (Some(supplier), _) => {
                Outcome::Skipped(format!("its supplier {supplier} did not come up"))
            }
            (_, true) => Outcome::Failed("cannot open <disk.img> & co: permission denied".into()),
            _ => Outcome::Ok,
        };
        free_at[worker] = start + took;
        let ok = span.outcome.is_ok();
        let id = t.push(span);
        for &n in &needs {
            let kind = if i < disks { EdgeKind::Parent } else { EdgeKind::Supplier };
            t.push_edge(ends[n].0, id, kind);
        }
        ends.push((id, start + took, name, ok));
    }
    t
}
