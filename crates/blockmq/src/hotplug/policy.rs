//! Policy: which hardware queue goes on for one that has lost its CPUs, and on which CPU a hardware queue is run
//! from afar. Pure functions over plain numbers.

use std::ops::Range;

/// Asynchronous runs that go to one CPU of a hardware queue before the next one's turn, as the kernel's
/// `BLK_MQ_CPU_WORK_BATCH`.
const BATCH: usize = 8;

/// For each hardware queue (given by its slots): the slot that gets its requests, where none of its own CPUs is
/// online; `None` where it has one. Slots are in the order of nodes, caches and cores, so the nearest online one
/// shares most with it. Where no CPU is online at all, everybody keeps what is theirs.
pub(crate) fn heirs(hctxs: &[Range<usize>], online: &[bool]) -> Vec<Option<usize>> {
    let heir = |slots: &Range<usize>| {
        if slots.clone().any(|slot| online[slot]) {
            return None;
        }
        let distance = |slot: usize| slot.abs_diff(slots.start);
        (0..online.len()).filter(|&slot| online[slot]).min_by_key(|&slot| distance(slot))
    };
    hctxs.iter().map(heir).collect()
}

/// The CPU slot on which a hardware queue with these slots is run when it is its `turn`th run from afar: its online
/// CPUs in turn, several runs each, so that the first one doesn't do everybody's work and the caches stay warm.
/// `None` where none is online: any CPU may do it.
pub(crate) fn slot_for_run(
    slots: Range<usize>,
    online: impl Fn(usize) -> bool,
    turn: usize,
) -> Option<usize> {
    let n = slots.len();
    let first = (turn / BATCH).checked_rem(n)?;
    (0..n).map(|i| slots.start + (first + i) % n).find(|&slot| online(slot))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardware_queue_with_an_online_cpu_keeps_its_requests() {
        assert_eq!(heirs(&[0..2, 2..4], &[true, false, false, true]), [None, None]);
    }

    #[test]
    fn one_without_any_gives_them_to_the_nearest_online_cpu() {
        let hctxs = [0..2, 2..4, 4..6];
        assert_eq!(heirs(&hctxs, &[true, true, false, false, false, true]), [None, Some(1), None]);
        assert_eq!(
            heirs(&hctxs, &[true, false, false, false, false, false]),
            [None, Some(0), Some(0)]
        );
    }

    #[test]
    fn with_no_cpu_online_everybody_keeps_what_is_theirs() {
        assert_eq!(heirs(&[0..1, 1..2], &[false, false]), [None, None]);
    }

    #[test]
    fn runs_from_afar_go_round_the_online_cpus_in_batches() {
        let on = |turn| slot_for_run(2..5, |slot| slot != 3, turn);
        let got: Vec<_> = (0..25).step_by(8).map(on).collect();
        assert_eq!(got, [Some(2), Some(4), Some(4), Some(2)]);
        assert_eq!(on(7), Some(2), "one batch, one CPU");
        assert_eq!(slot_for_run(2..5, |_| false, 0), None);
        assert_eq!(slot_for_run(0..0, |_| true, 3), None);
    }
}
