//! The record of the losses of a device that each of its clients knows of.
//!
//! A device reports a loss once, to the first flush after it: a file of Linux does, and so does a
//! volume of another server. All clients of the device have lost data, so one flush of each must
//! fail. `errseq_t` arranges that in the kernel for each open file. The device counts its losses
//! ([`BlockDevice::losses`](corewise_blockmq::BlockDevice::losses)). For each client the server
//! records the number of losses that it has reported to the client.
//!
//! That alone would repeat a gap of the kernel that PostgreSQL found. A client that reconnects
//! between the loss and its flush takes its earlier writes for durable. An NBD client reconnects
//! without its user's knowledge, whenever its connection breaks. So a new client inherits the
//! knowledge of the last one from the same place, or with the same certificate: see
//! [`Losses::join`]. If they are two clients, one flush fails for nothing, which costs less than
//! silence. A client that reconnects from elsewhere, without a certificate, isn't recognised.

use std::sync::Arc;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};

use crate::access::Identity;

/// Largest number of departed clients of a device that are remembered by their origin, so that they
/// learn of its losses.
const MOST_ABSENT: usize = 256;

/// The device's losses that one client knows of.
#[derive(Debug)]
pub(crate) struct KnownLosses {
    /// A: number of losses that its last flush reported. Relaxed, as all fields here: a flush ends
    /// after it begins, and other threads read under the lock of `Losses`. A stale value there
    /// means a failure reported for nothing, or two events without an order.
    now: AtomicU64,
    /// A: number that the flush before the last one reported. The client has received that reply,
    /// since it sent another flush.
    sure: AtomicU64,
    /// A: number of its changes that aren't durable by themselves. Written by its reader alone.
    changes: AtomicU64,
    /// A: number of these changes that came before a flush that was answered, with success or
    /// failure.
    covered: AtomicU64,
    /// I: number of clients that had left when it came. The client may be one of those.
    behind: u64,
}

/// The changes and departed clients that a flush will have covered when it ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossScope {
    changes: u64,
    left: u64,
}

impl KnownLosses {
    /// Counts a change that isn't durable by itself. The reader only.
    pub(crate) fn change(&self) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes + 1, Ordering::Relaxed);
    }

    /// Records that all changes of the client are durable.
    pub(crate) fn all_is_durable(&self) {
        self.covered.store(u64::MAX, Ordering::Relaxed);
    }

    /// Makes the next flush fail, since changes that were answered before may be lost.
    pub(crate) fn owe_a_failure(&self) {
        // The number is larger than that of any device's losses.
        self.now.store(u64::MAX, Ordering::Relaxed);
    }

    /// Records the end of a flush. Returns true if the flush must fail for a loss.
    pub(crate) fn flushed(&self, covers: LossScope, losses: u64) -> bool {
        self.covered.fetch_max(covers.changes, Ordering::Relaxed);
        let before = self.now.swap(losses, Ordering::Relaxed);
        self.sure.store(before, Ordering::Relaxed);
        before != losses
    }

    /// Returns the number of losses that the client surely knows of, or `None` if it never made a
    /// change that a loss could take.
    fn unsure(&self) -> Option<u64> {
        let changes = self.changes.load(Ordering::Relaxed);
        (changes > 0).then(|| self.sure.load(Ordering::Relaxed))
    }
}

/// The clients of a device, and those that have left with a loss that they may not know.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// L: is the lock, a leaf; guards all of it. Taken when a client comes or goes, when a loss is
    /// reported, and by flushes after an unclean end.
    table: Mutex<Table>,
    /// A: number of clients that have ever left so. Relaxed: a flush that misses one leaves its
    /// record in place.
    left: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    present: Vec<(Identity, Arc<KnownLosses>)>,
    absent: Vec<AbsentClient>,
}

#[derive(Debug)]
struct AbsentClient {
    /// Identity of the client. `None` stands for any client.
    who: Option<Identity>,
    /// Number of losses that it knows of.
    told: u64,
    /// Sequence number of its departure.
    number: u64,
}

impl AbsentClient {
    fn is(&self, other: &Identity) -> bool {
        self.who.as_ref().is_none_or(|who| who.may_be(other))
    }
}

impl Losses {
    /// Registers a client of a device that has had `losses` losses. The client inherits the
    /// knowledge of its possible earlier connections: those that left, and one whose connection
    /// broke unnoticed.
    pub(crate) fn join(&self, who: &Identity, losses: u64) -> Arc<KnownLosses> {
        let mut table = self.table.lock();
        let present = table.present.iter().filter(|(other, _)| other.may_be(who));
        let known = present
            .filter_map(|(_, told)| told.unsure())
            .chain(table.absent.iter().filter(|absent| absent.is(who)).map(|absent| absent.told))
            .min()
            .map_or(losses, |known| known.min(losses));
        let told = Arc::new(KnownLosses {
            now: AtomicU64::new(known),
            sure: AtomicU64::new(known),
            // Changes of its earlier connection.
            changes: AtomicU64::new((known < losses).into()),
            covered: AtomicU64::new(0),
            behind: self.left.load(Ordering::Relaxed),
        });
        table.present.push((who.clone(), Arc::clone(&told)));
        told
    }

    /// Returns the number of departed clients that don't know of all `losses` losses.
    pub(crate) fn untold(&self, losses: u64) -> usize {
        if self.left.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.table.lock().absent.iter().filter(|absent| absent.told < losses).count()
    }

    /// Begins a flush of the client `told`. `alone` is true if every earlier request of the client
    /// has been answered.
    pub(crate) fn flush(&self, told: &KnownLosses, alone: bool) -> LossScope {
        let changes = if alone { told.changes.load(Ordering::Relaxed) } else { 0 };
        LossScope { changes, left: self.left.load(Ordering::Relaxed) }
    }

    /// Records a flush that succeeded after `losses` losses. Clients that had left before it have
    /// lost nothing since their last report.
    pub(crate) fn durable(&self, covers: LossScope, losses: u64) {
        if covers.left == 0 {
            return;
        }
        self.table.lock().absent.retain(|a| a.number > covers.left || a.told != losses);
    }

    /// Records that a loss is being reported to a client, and so to its possible earlier
    /// connections.
    pub(crate) fn tell(&self, who: &Identity, told: &KnownLosses) {
        let is_it = |absent: &AbsentClient| absent.is(who) && absent.number <= told.behind;
        self.table.lock().absent.retain(|absent| !is_it(absent));
    }

    /// Removes a client. `clean` is true if the client has taken all replies.
    pub(crate) fn leave(&self, told: &Arc<KnownLosses>, clean: bool) {
        let mut table = self.table.lock();
        let of = |(_, other): &(Identity, Arc<KnownLosses>)| Arc::ptr_eq(other, told);
        let Some(place) = table.present.iter().position(of) else { return };
        let (who, told) = table.present.swap_remove(place);
        let [now, sure, changes, covered] = [&told.now, &told.sure, &told.changes, &told.covered]
            .map(|a| a.load(Ordering::Relaxed));
        let knows = if clean { now } else { sure };
        if changes <= covered && knows == now {
            return;
        }
        let number = self.left.fetch_add(1, Ordering::Relaxed) + 1;
        let absent = &mut table.absent;
        absent.push(AbsentClient { who: Some(who), told: knows, number });
        if absent.len() > MOST_ABSENT {
            // The record of the oldest client is dropped. The next one stands for both, and for any
            // client.
            let oldest = absent.remove(0);
            absent[0].who = None;
            absent[0].told = absent[0].told.min(oldest.told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Peer;

    fn user(uid: u32) -> Identity {
        Identity { peer: Peer::User(uid), pid: None, names: Vec::new() }
    }

    /// Joins as a client that has changed something.
    fn writer(losses: &Losses, who: &Identity, lost: u64) -> Arc<KnownLosses> {
        let told = losses.join(who, lost);
        told.change();
        told
    }

    /// Flushes once, and returns true if the flush fails for an earlier loss.
    fn flush(losses: &Losses, who: &Identity, told: &KnownLosses, lost: u64) -> bool {
        let covers = losses.flush(told, true);
        let news = told.flushed(covers, lost);
        match news {
            true => losses.tell(who, told),
            false => losses.durable(covers, lost),
        }
        news
    }

    #[test]
    fn each_client_is_told_once() {
        let (losses, [a, b]) = (Losses::default(), [1, 2].map(user));
        let clients = [&a, &b].map(|who| writer(&losses, who, 0));
        let told =
            |lost| [(&a, &clients[0]), (&b, &clients[1])].map(|(w, c)| flush(&losses, w, c, lost));
        assert_eq!([told(0), told(2), told(2)], [[false; 2], [true; 2], [false; 2]]);
    }

    #[test]
    fn one_that_comes_again_is_told_what_it_lost_before_and_others_are_not() {
        let (losses, [a, b]) = (Losses::default(), [1, 2].map(user));
        for clean in [true, false] {
            let neighbour = losses.join(&a, 0);
            losses.leave(&writer(&losses, &a, 0), clean);
            assert_eq!([losses.untold(0), losses.untold(1)], [0, 1]);
            assert!(flush(&losses, &a, &neighbour, 1));
            // The loss comes now and is reported to another client from the same place. A client
            // from elsewhere had nothing to lose.
            let other = losses.join(&b, 1);
            assert!(!flush(&losses, &b, &other, 1));
            let again = [losses.join(&a, 1), losses.join(&a, 1)];
            assert!(again.iter().all(|told| flush(&losses, &a, told, 1)), "each connection of it");
            assert_eq!(losses.untold(1), 0);
            again.iter().chain([&other, &neighbour]).for_each(|told| losses.leave(told, true));
            let later = losses.join(&a, 1);
            assert!(!flush(&losses, &a, &later, 1), "it was told");
            losses.leave(&later, true);
        }
    }

    #[test]
    fn one_that_left_with_all_durable_is_told_nothing_of_what_is_lost_later() {
        let (losses, a) = (Losses::default(), user(1));
        let flushed = writer(&losses, &a, 0);
        flush(&losses, &a, &flushed, 0);
        losses.leave(&flushed, true);
        // A flush of another client, which came after the end, …
        losses.leave(&writer(&losses, &a, 0), false);
        let b = losses.join(&user(2), 0);
        assert!(!flush(&losses, &user(2), &b, 0));
        // … or the server's own flush.
        let drained = writer(&losses, &a, 0);
        drained.all_is_durable();
        losses.leave(&drained, true);
        assert!(!flush(&losses, &a, &losses.join(&a, 1), 1));
        assert!(losses.table.lock().absent.is_empty());
        // A flush that was on its way covers less: no changes that came beside others, and no
        // client that left meanwhile.
        let (c, early) = (writer(&losses, &a, 1), losses.flush(&b, true));
        let busy = losses.flush(&c, false);
        assert!(!c.flushed(busy, 1));
        losses.leave(&c, true);
        losses.durable(early, 1);
        assert!(flush(&losses, &a, &losses.join(&a, 2), 2));
    }

    #[test]
    fn an_answer_that_may_not_have_come_is_given_again() {
        let (losses, a) = (Losses::default(), user(1));
        let told = writer(&losses, &a, 0);
        assert!(flush(&losses, &a, &told, 1));
        // The connection broke, but the server hasn't noticed.
        let again = losses.join(&a, 1);
        losses.leave(&told, false);
        let last = losses.join(&a, 1);
        assert!(flush(&losses, &a, &again, 1) && flush(&losses, &a, &last, 1));
        // A client that sends another flush has received the last answer.
        assert!(!flush(&losses, &a, &last, 1));
        losses.leave(&again, true);
        losses.leave(&last, false);
        assert!(!flush(&losses, &a, &losses.join(&a, 1), 1));
    }

    #[test]
    fn a_certificate_tells_who_comes_again_from_another_address() {
        let losses = Losses::default();
        let at = |ip: [u8; 4], name: &[&str]| Identity {
            pid: None,
            peer: Peer::Address(ip.into()),
            names: name.iter().map(|name| name.to_string()).collect(),
        };
        losses.leave(&writer(&losses, &at([127, 0, 0, 1], &["vm1"]), 0), false);
        for (who, told) in [
            (at([127, 0, 0, 2], &[]), false),
            (at([127, 0, 0, 2], &["vm2"]), false),
            (at([127, 0, 0, 1], &["vm2"]), false),
            (at([127, 0, 0, 2], &["vm1"]), true),
        ] {
            assert_eq!(flush(&losses, &who, &losses.join(&who, 1), 1), told, "{who}");
        }
    }

    #[test]
    fn where_too_many_have_left_to_be_known_anybody_may_be_one_of_them() {
        let losses = Losses::default();
        let most = u32::try_from(MOST_ABSENT).unwrap();
        (0..=most).for_each(|uid| losses.leave(&writer(&losses, &user(uid), 0), true));
        assert_eq!(losses.table.lock().absent.len(), MOST_ABSENT);
        let comes = |uid| flush(&losses, &user(uid), &losses.join(&user(uid), 1), 1);
        assert_eq!([comes(most + 1), comes(most + 2), comes(most)], [true, false, true]);
    }
}
