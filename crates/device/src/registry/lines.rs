//! Asynchronous devices that are ready, beyond those that somebody was queued for: they stand in line.
//!
//! A work item is queued for the first devices of a node, as many as could ever run at once. The worker that runs such an item is a
//! *prober*: it probes the device that it was queued for, and then takes one after the other from the line.
//! The first one queues the others, so that the thread that made them ready may lose its CPU to it meanwhile.
//! So ten thousand devices cost no more items than threads, and take no more turns at the queue.

use super::devices::{Devices, Due, Effects};
use std::collections::VecDeque;

/// The lines of all nodes.
pub(super) struct Lines {
    /// So many probers of a node at most.
    most: usize,
    /// One a node for which something was queued; there are few.
    lines: Vec<Line>,
}

struct Line {
    /// Near which its devices are.
    node: Option<u32>,
    /// Those that stand in line. None do where there is no prober: the last one that leaves finds none.
    dues: VecDeque<Due>,
    /// Items that are queued for it, or run.
    probers: usize,
}

impl Lines {
    pub(super) fn new() -> Lines {
        Lines { most: usize::MAX, lines: Vec::new() }
    }

    fn of(&mut self, node: Option<u32>) -> &mut Line {
        let place = self.lines.iter().position(|line| line.node == node).unwrap_or_else(|| {
            self.lines.push(Line { node, dues: VecDeque::new(), probers: 0 });
            self.lines.len() - 1
        });
        &mut self.lines[place]
    }
}

impl Devices {
    /// No node has more probers than so many; at least one.
    pub(crate) fn limit_probers(&mut self, most: usize) {
        self.lines.most = most.max(1);
    }

    /// Stand: a ready device gets a prober of its own, or stands in line.
    pub(super) fn stand(&mut self, node: Option<u32>, due: Due, fx: &mut Effects) {
        let most = self.lines.most;
        let line = self.lines.of(node);
        if line.probers < most {
            line.probers += 1;
            fx.queue.push((due, node));
        } else {
            line.dues.push_back(due);
        }
    }

    /// Next: a prober is through with its device, and takes the next one; `None`: there is none, and it leaves.
    pub(crate) fn next_in_line(&mut self, node: Option<u32>) -> Option<Due> {
        let line = self.lines.of(node);
        let next = line.dues.pop_front();
        line.probers -= usize::from(next.is_none());
        next
    }

    /// Hand over: as Next, but another worker is to go on, when its pool sees fit.
    pub(crate) fn hand_line_over(&mut self, node: Option<u32>, fx: &mut Effects) {
        let next = self.next_in_line(node);
        fx.queue.extend(next.map(|due| (due, node)));
    }

    /// A prober will never come, as its pools are shut down. Those for whom none is left, which nobody probes.
    pub(crate) fn prober_is_lost(&mut self, node: Option<u32>) -> VecDeque<Due> {
        let line = self.lines.of(node);
        line.probers -= 1;
        if line.probers == 0 { std::mem::take(&mut line.dues) } else { VecDeque::new() }
    }
}

#[cfg(test)]
mod tests {
    use crate::error::ProbeError;
    use crate::registry::stepped::{Stepped, decl};

    /// Devices of one node, which has two probers at most.
    fn with_two_probers(names: &[&str]) -> Stepped {
        let mut s = Stepped::new();
        s.devices.limit_probers(2);
        s.again(names.iter().map(|name| decl(name, &[])).collect(), &[], true);
        s
    }

    fn next(s: &mut Stepped) -> Option<String> {
        let due = s.devices.next_in_line(None)?;
        s.devices.decl(due.key).map(|decl| decl.name.clone())
    }

    #[test]
    fn stepped_devices_beyond_a_node_s_probers_stand_in_line_and_are_taken_in_order() {
        let mut s = with_two_probers(&["a", "b", "c", "d", "e"]);
        assert_eq!(s.queue, ["a", "b"]);
        s.probe("a");
        assert_eq!(next(&mut s).as_deref(), Some("c"));
        s.probe("c");
        assert_eq!(next(&mut s).as_deref(), Some("d"));
        s.probe("b");
        s.step(|devices, _, fx| devices.hand_line_over(None, fx));
        assert_eq!(s.queue, ["e"], "another worker goes on");
        s.probe("d");
        assert_eq!((next(&mut s), s.queue.len()), (None, 1), "this prober leaves");
        s.probe("e");
        assert_eq!(next(&mut s), None);
        assert_eq!(s.caller(), "Done");
        s.again(vec![decl("f", &[]), decl("g", &[]), decl("h", &[])], &[], true);
        assert_eq!(s.queue, ["f", "g"], "those who have left are replaced");
    }

    #[test]
    fn stepped_devices_in_line_are_lost_only_with_the_last_prober() {
        let mut s = with_two_probers(&["a", "b", "c", "d"]);
        assert!(s.devices.prober_is_lost(None).is_empty(), "the other one takes them");
        let lost = s.devices.prober_is_lost(None);
        assert_eq!(lost.len(), 2);
        for due in lost {
            s.step(|devices, now, fx| devices.lost(due, ProbeError::failed("gone"), now, fx));
        }
        for name in ["c", "d"] {
            assert!(s.begin(name).is_none(), "{name} has failed");
        }
        s.again(vec![decl("e", &[])], &[], true);
    }
}
