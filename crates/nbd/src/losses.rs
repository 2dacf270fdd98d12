//! Which client knows of which loss of its device.
//!
//! A device tells once what it has lost, to the flush that comes first: a file of Linux does, and a
//! volume of another server. All clients of the device lose it, so a flush of each fails, as
//! `errseq_t` has it in the kernel for each open file. A count
//! ([`BlockDevice::losses`](corewise_blockmq::BlockDevice::losses)) says how much there is to tell;
//! each client has how much of that it was told.
//!
//! That much would lose what the kernel loses, and PostgreSQL found: a client that opens anew
//! between the loss and its flush takes for durable what it wrote before. An NBD client does that
//! without its user's knowing, whenever its connection breaks. So what a client knows is inherited
//! by the next one that comes from the same place, or with the same certificate: see
//! [`Losses::join`]. It may be another one, whose flush then fails once for nothing; that costs
//! less than the silence. A client that comes again from elsewhere, without a certificate, isn't
//! known.

use std::sync::Arc;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};

use crate::access::Identity;
use crate::policy;

/// What one client knows of its device's losses.
#[derive(Debug)]
pub(crate) struct KnownLosses {
    /// A: how many its last flush has told, as all here: Relaxed. The end of a flush comes behind
    /// its beginning, and others ask under the lock of `Losses`, where being a moment late is a
    /// failure told for nothing, or the order of two events that have none.
    now: AtomicU64,
    /// A: how many the flush before that one has told: it has come, since the client has asked
    /// again.
    sure: AtomicU64,
    /// A: its changes that don't stand for themselves; written by its reader alone.
    changes: AtomicU64,
    /// A: how many of them came before a flush that was answered, one way or the other.
    covered: AtomicU64,
    /// I: how many had left when it came: it may be one of those.
    behind: u64,
}

/// What a flush will have answered for when it ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossScope {
    changes: u64,
    left: u64,
}

impl KnownLosses {
    /// A change comes that isn't durable by itself. The reader only.
    pub(crate) fn change(&self) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes + 1, Ordering::Relaxed);
    }

    /// All of its changes are durable.
    pub(crate) fn all_is_durable(&self) {
        self.covered.store(u64::MAX, Ordering::Relaxed);
    }

    /// A flush has ended: whether there is something to tell.
    pub(crate) fn flushed(&self, covers: LossScope, losses: u64) -> bool {
        self.covered.fetch_max(covers.changes, Ordering::Relaxed);
        let before = self.now.swap(losses, Ordering::Relaxed);
        self.sure.store(before, Ordering::Relaxed);
        before != losses
    }

    /// How many it is sure to know of, where it may have lost something by the others.
    fn unsure(&self) -> Option<u64> {
        let changes = self.changes.load(Ordering::Relaxed);
        (changes > 0).then(|| self.sure.load(Ordering::Relaxed))
    }
}

/// The clients of a device, and those that have left it with something that they may not know.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// L: is the lock, a leaf; guards all of it. Taken where a client comes or goes, a loss is
    /// told, and by flushes behind an unclean end.
    table: Mutex<Table>,
    /// A: how many have left so, ever. Relaxed: a flush that doesn't see one of them leaves it
    /// there.
    left: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    present: Vec<(Identity, Arc<KnownLosses>)>,
    absent: Vec<AbsentClient>,
}

#[derive(Debug)]
struct AbsentClient {
    /// `None`: anybody.
    who: Option<Identity>,
    /// How many losses it knows of.
    told: u64,
    /// The how many-th it was that left.
    number: u64,
}

impl AbsentClient {
    fn is(&self, other: &Identity) -> bool {
        self.who.as_ref().is_none_or(|who| who.may_be(other))
    }
}

impl Losses {
    /// A client comes to a device that has had so many losses. It knows what those know that it may
    /// have been before: one that left, or one whose broken connection nobody has noticed yet.
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
            // Those of its former life.
            changes: AtomicU64::new((known < losses).into()),
            covered: AtomicU64::new(0),
            behind: self.left.load(Ordering::Relaxed),
        });
        table.present.push((who.clone(), Arc::clone(&told)));
        told
    }

    /// How many have left that don't know of one of so many losses.
    pub(crate) fn untold(&self, losses: u64) -> usize {
        if self.left.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.table.lock().absent.iter().filter(|absent| absent.told < losses).count()
    }

    /// A flush of `told` comes; `alone`: all that the client has sent before is answered.
    pub(crate) fn flush(&self, told: &KnownLosses, alone: bool) -> LossScope {
        let changes = if alone { told.changes.load(Ordering::Relaxed) } else { 0 };
        LossScope { changes, left: self.left.load(Ordering::Relaxed) }
    }

    /// A flush has succeeded behind so many losses: those that had left before it have lost nothing
    /// since they were told.
    pub(crate) fn durable(&self, covers: LossScope, losses: u64) {
        if covers.left == 0 {
            return;
        }
        self.table.lock().absent.retain(|a| a.number > covers.left || a.told != losses);
    }

    /// A client is being told, and so are those that it may have been before.
    pub(crate) fn tell(&self, who: &Identity, told: &KnownLosses) {
        let is_it = |absent: &AbsentClient| absent.is(who) && absent.number <= told.behind;
        self.table.lock().absent.retain(|absent| !is_it(absent));
    }

    /// A client leaves. `clean`: it has taken all answers.
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
        if absent.len() > policy::ABSENT {
            // No longer who it was, but that there was one.
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

    /// A client that has changed something.
    fn writer(losses: &Losses, who: &Identity, lost: u64) -> Arc<KnownLosses> {
        let told = losses.join(who, lost);
        told.change();
        told
    }

    /// Whether a flush that the device does fails for what was lost before.
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
            // Lost now, and told to another one from there; one that comes from elsewhere had
            // nothing to lose.
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
        // By a flush of another one, which came behind its end,
        losses.leave(&writer(&losses, &a, 0), false);
        let b = losses.join(&user(2), 0);
        assert!(!flush(&losses, &user(2), &b, 0));
        // or by the server's.
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
        // Nobody has noticed that its connection broke.
        let again = losses.join(&a, 1);
        losses.leave(&told, false);
        let last = losses.join(&a, 1);
        assert!(flush(&losses, &a, &again, 1) && flush(&losses, &a, &last, 1));
        // One that asks again has had the answer.
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
        let most = u32::try_from(policy::ABSENT).unwrap();
        (0..=most).for_each(|uid| losses.leave(&writer(&losses, &user(uid), 0), true));
        assert_eq!(losses.table.lock().absent.len(), policy::ABSENT);
        let comes = |uid| flush(&losses, &user(uid), &losses.join(&user(uid), 1), 1);
        assert_eq!([comes(most + 1), comes(most + 2), comes(most)], [true, false, true]);
    }
}
