//! Asynchronous devices that are ready, by urgency.

use crate::graph::DeviceId;
use std::collections::BTreeMap;

/// How urgent a ready device is: how long the longest chain behind a ready device is expected to take, then its rank.
pub(super) type Urgency = (u64, u32);

/// Those devices. The one with the greatest urgency goes first.
///
/// Most become ready in order, when the counting begins: these make a list, of which a thread takes a
/// piece at the cost of a few cache lines that lie beside each other.
#[derive(Default)]
pub(super) struct Ready {
    /// In order; what comes is put here where it is the most urgent of these.
    listed: Vec<(Urgency, DeviceId)>,
    /// All others.
    mapped: BTreeMap<Urgency, DeviceId>,
}

impl Ready {
    pub(super) fn insert(&mut self, urgency: Urgency, device: DeviceId) {
        if self.listed.last().is_none_or(|(last, _)| *last < urgency) {
            self.listed.push((urgency, device));
        } else {
            self.mapped.insert(urgency, device);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.listed.len() + self.mapped.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.mapped.is_empty()
    }

    pub(super) fn pop_last(&mut self) -> Option<DeviceId> {
        let listed = self.listed.last().map(|(urgency, _)| *urgency);
        if listed > self.mapped.last_key_value().map(|(urgency, _)| *urgency) {
            self.listed.pop().map(|(_, device)| device)
        } else {
            self.mapped.pop_last().map(|(_, device)| device)
        }
    }

    pub(super) fn remove(&mut self, urgency: Urgency) -> Option<DeviceId> {
        let listed = self.listed.binary_search_by_key(&urgency, |(urgency, _)| *urgency);
        listed.map_or_else(
            |_| self.mapped.remove(&urgency),
            |place| Some(self.listed.remove(place).1),
        )
    }

    /// The most urgent first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Urgency, DeviceId)> {
        let mut listed = self.listed.iter().rev().copied().peekable();
        let mut mapped = self.mapped.iter().rev().map(|(u, d)| (*u, *d)).peekable();
        std::iter::from_fn(move || match (listed.peek(), mapped.peek()) {
            (Some(a), Some(b)) if a < b => mapped.next(),
            (Some(_), _) => listed.next(),
            _ => mapped.next(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_come_out_by_urgency_in_whatever_order_they_went_in() {
        for order in [[1, 2, 3, 4], [4, 3, 2, 1], [3, 1, 4, 2], [2, 4, 1, 3]] {
            let mut ready = Ready::default();
            order.iter().for_each(|&n| ready.insert((0, n), DeviceId(n)));
            let listed: Vec<u32> = ready.iter().map(|(_, device)| device.0).collect();
            assert_eq!((listed, ready.len()), (vec![4, 3, 2, 1], 4), "{order:?}");
            assert_eq!(ready.remove((0, 2)), Some(DeviceId(2)), "{order:?}");
            assert_eq!(ready.remove((0, 2)), None);
            let popped: Vec<u32> = std::iter::from_fn(|| ready.pop_last()).map(|d| d.0).collect();
            assert_eq!((popped, ready.is_empty()), (vec![4, 3, 1], true), "{order:?}");
        }
    }
}
