//! The search for the stuck waits on the list: it reads the items, limits and pools, and draws the
//! conclusions.
//!
//! It visits each pool and each line of held instances once, and searches only pools for which no
//! worker can come.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::thread::ThreadId;

use crate::attributes::QueueKind;
use crate::pool::current_worker;
use crate::pool::group::Group;
use crate::pwq::Pwq;
use crate::pwq::limit::LimitSlot;
use crate::pwq::queue_core::QueueCore;
use crate::task::header::{Header, LentItem, Queued};
use crate::wait::stuck::graph::{Circle, Colour, Fact, Graph, PoolKey, Rule};
use crate::wait::stuck::{Dependency, Need, Wait};

/// The objects that the scan reads: kept meanwhile, and dropped after the list's lock.
#[derive(Default)]
pub(super) struct KeptObjects {
    /// The queues that are flushed, and the queues at whose limits a thread waits.
    queues: HashMap<NonNull<QueueCore>, Arc<QueueCore>>,
    /// The pools from which a worker is needed.
    pools: HashMap<PoolKey, Arc<Group>>,
}

/// The target that a waiter would run, if no worker can come for it.
#[derive(PartialEq, Eq, Hash)]
enum HelpTarget {
    Item(NonNull<Header>),
    /// Instances that lie in a pool, some of them near.
    Lying(Colour, PoolKey),
}

/// The next need of an item that doesn't run.
enum Next {
    /// A place in this slot of the queue.
    Place(NonNull<LimitSlot<Queued>>, Arc<QueueCore>),
    /// A worker of this pool.
    Worker(Arc<Group>, usize),
}

pub(super) struct Scan<'a> {
    waits: &'a BTreeMap<u64, Wait>,
    graph: Graph,
    /// The last wait on each stack, which sleeps.
    innermost: HashMap<ThreadId, u64>,
    /// The needs of the waits for an item, if they may never come about.
    needs: HashMap<u64, Need>,
    /// The wait whose thread would run the target.
    helped: HashMap<HelpTarget, u64>,
    /// The threads that can run an item for a flush now.
    pub(super) helpers: Vec<u64>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(waits: &'a BTreeMap<u64, Wait>, kept: &mut KeptObjects) -> Scan<'a> {
        let mut look = Scan::at(waits);
        for (id, wait) in waits {
            look.needs_of_wait(*id, wait, kept);
        }
        let queues: Vec<_> = kept.queues.values().cloned().collect();
        for queue in queues {
            look.needs_of_queue(&queue, kept);
        }
        for (pool, group) in &kept.pools {
            look.needs_of_pool(*pool, group, &kept.queues);
        }
        look.graph.run();
        look
    }

    /// Creates a scan with the facts that the waits keep, and none of their needs.
    fn at(waits: &'a BTreeMap<u64, Wait>) -> Scan<'a> {
        let innermost: HashMap<_, _> = waits.iter().map(|(id, wait)| (wait.thread, *id)).collect();
        let mut graph = Graph::default();
        for id in innermost.values() {
            for fact in &waits[id].keeps {
                graph.after(*fact, Fact::Wait(*id));
            }
        }
        let helps = |(id, wait): (&u64, &Wait)| match (&wait.waits_for, &wait.helps) {
            (Dependency::Item { item, .. }, Some(pools)) if !pools.is_empty() => {
                Some((HelpTarget::Item(*item), *id))
            }
            _ => None,
        };
        let helped = waits.iter().filter_map(helps).collect();
        let needs = HashMap::new();
        Scan { waits, graph, innermost, needs, helped, helpers: Vec::new() }
    }

    fn needs_of_wait(&mut self, id: u64, wait: &Wait, kept: &mut KeptObjects) {
        if wait.waits_for.is_over() {
            // The waiter is about to wake, whatever has become of the item since.
            return;
        }
        let Some(helps) = &wait.helps else { return };
        let end = Fact::Wait(id);
        match &wait.waits_for {
            Dependency::Fork(fork) => self.graph.after(end, Fact::Fork(*fork)),
            Dependency::Item { item, .. } => {
                // SAFETY: the waiter has it, and is on the list.
                let item = unsafe { LentItem::new(*item) };
                if let Some(needs) = self.needs_of_item(end, item, wait.home, kept) {
                    self.needs.insert(id, needs);
                }
            }
            Dependency::Queue { queue, over } => {
                // SAFETY: as above.
                let over = unsafe { over.as_ref() };
                let Some(awaited) = queue.colours.awaited_by(over) else { return };
                for colour in awaited.colours() {
                    let colour = (NonNull::from(&**queue), colour);
                    self.graph.after(end, Fact::Colour(colour));
                    if !awaited.any {
                        let helped =
                            helps.iter().map(|pool| (HelpTarget::Lying(colour, *pool), id));
                        self.helped.extend(helped);
                    }
                }
                if awaited.any {
                    self.graph.rule(end, || Rule::Any);
                }
                kept.add_queue(Arc::clone(queue));
            }
        }
    }

    /// `home` is the place of the item when its waiter said which items it would run.
    fn needs_of_item(
        &mut self,
        end: Fact,
        item: LentItem<'_>,
        home: Option<PoolKey>,
        kept: &mut KeptObjects,
    ) -> Option<Need> {
        let pointer = item.pointer();
        if item.state.snapshot().running() {
            self.graph.after(end, Fact::Item(pointer));
            return Some(Need::End);
        }
        let next = item.look(|job| {
            let pwq = Pwq::of(job.ticket.as_ref()?);
            if home != Some((current_worker::key(&pwq.group), pwq.pool)) {
                // The item was put elsewhere, where its waiter may run it.
                None
            } else if item.is_held() {
                Some(Next::Place(NonNull::from(&*pwq.slot), Arc::clone(&pwq.shared)))
            } else {
                let needs = pwq.shared.rescuer.is_none();
                needs.then(|| Next::Worker(Arc::clone(&pwq.group), pwq.pool))
            }
        });
        match next.flatten() {
            Some(Next::Place(slot, queue)) => {
                // SAFETY: it is a part of the queue.
                self.needs_place(end, unsafe { slot.as_ref() });
                let next = queue.traits.kind != QueueKind::Ordered || queue.before(item) == 0;
                kept.add_queue(queue);
                Some(if next { Need::Place } else { Need::Turn })
            }
            Some(Next::Worker(group, pool)) => {
                let pool = kept.add_pool(group, pool);
                if !self.helped.contains_key(&HelpTarget::Item(pointer)) {
                    self.graph.after(end, Fact::Taken(pool));
                }
                Some(Need::Worker)
            }
            None => None,
        }
    }

    fn needs_place(&mut self, fact: Fact, slot: &LimitSlot<Queued>) {
        let place = Fact::Place(NonNull::from(slot));
        self.graph.after(fact, place);
        self.graph.rule(place, || match slot.in_the_way() {
            (Some(all), changes) => Rule::OneOf { all, changes },
            (None, _) => Rule::Free,
        });
    }

    /// Adds the needs of the held instances.
    fn needs_of_queue(&mut self, queue: &Arc<QueueCore>, kept: &mut KeptObjects) {
        let mut lines = HashSet::new();
        queue.colours.each(|pwq_slot, pwq| {
            if pwq_slot.tally.in_flight() == 0 {
                return;
            }
            if lines.insert((NonNull::from(&*pwq.slot), pwq.line())) {
                for colour in pwq.colours_held() {
                    self.needs_place(Fact::Colour((NonNull::from(&**queue), colour)), &pwq.slot);
                }
            }
            if queue.rescuer.is_none() {
                kept.add_pool(Arc::clone(&pwq.group), pwq.pool);
            }
        });
    }

    /// Adds the needs of these queues' items in pools: each needs a worker, and keeps its place
    /// until then.
    fn needs_of_pool(
        &mut self,
        key: PoolKey,
        group: &Arc<Group>,
        queues: &HashMap<NonNull<QueueCore>, Arc<QueueCore>>,
    ) {
        let taken = Fact::Taken(key);
        let others = if group.soft { 0..group.pools.len() } else { key.1..key.1 + 1 };
        for pool in others {
            let worker = Fact::Worker((key.0, pool));
            self.graph.after(taken, worker);
            let rule = || {
                let all = group.all_it_has(pool);
                all.map_or(Rule::Free, |all| Rule::OneOf { all, changes: 0 })
            };
            self.graph.rule(worker, rule);
        }
        self.graph.rule(taken, || Rule::Any);
        if group.all_it_has(key.1).is_none() {
            return;
        }
        let mut colours = HashMap::new();
        let mut places = Vec::new();
        group.see_waiting(key.1, |item, ticket, near| {
            let pwq = Pwq::of(ticket);
            let queue = NonNull::from(&*pwq.shared);
            let goes_on = pwq.shared.rescuer.is_some()
                || self.helped.contains_key(&HelpTarget::Item(NonNull::from(item)));
            if goes_on || !queues.contains_key(&queue) {
                return;
            }
            let colour = (queue, ticket.colour());
            *colours.entry(colour).or_insert(false) |= near;
            if ticket.is_counted() {
                places.push((colour, Fact::Place(NonNull::from(&*pwq.slot))));
            }
        });
        let helper = |colour| self.helped.get(&HelpTarget::Lying(colour, key)).copied();
        colours.retain(|colour, near| match helper(*colour).filter(|_| *near) {
            Some(id) => {
                self.helpers.push(id);
                false
            }
            None => true,
        });
        places.retain(|(colour, _)| colours.contains_key(colour));
        let colours = colours.into_keys().map(Fact::Colour);
        for fact in colours.chain(places.into_iter().map(|(_, place)| place)) {
            self.graph.after(fact, taken);
        }
    }

    fn is_stuck(&self, id: u64) -> bool {
        self.graph.is_stuck(Fact::Wait(id))
    }

    /// Returns the stuck waiter that runs the awaited item of this one.
    fn runner(&self, id: u64) -> Option<u64> {
        let stuck = |fact: &Fact| match fact {
            Fact::Wait(by) if self.is_stuck(*by) => Some(*by),
            _ => None,
        };
        let runner = |fact: &Fact| match fact {
            Fact::Item(_) | Fact::Fork(_) | Fact::Colour(_) => {
                self.graph.kept_by(*fact).iter().find_map(stuck)
            }
            _ => None,
        };
        self.graph.kept_by(Fact::Wait(id)).iter().find_map(runner)
    }

    /// Returns true if it may be given up. It sleeps, and isn't a scope whose part runs, nor a join
    /// whose fork does.
    fn may_end(&self, id: u64) -> bool {
        let wait = &self.waits[&id];
        let runs = |fact: &Fact| matches!(fact, Fact::Item(_));
        let stays = matches!(wait.waits_for, Dependency::Item { stays: true, .. })
            && self.graph.kept_by(Fact::Wait(id)).iter().any(runs);
        let is_owner = matches!(wait.waits_for, Dependency::Fork(_));
        self.innermost.get(&wait.thread) == Some(&id) && !stays && !is_owner
    }

    /// Returns some stuck waits that wait only for each other: those that this one waits for, if it
    /// is stuck.
    pub(super) fn circle(&self, own: u64) -> Circle {
        self.graph.circle(Fact::Wait(own))
    }

    /// Returns the wait of a circle that is given up, and what it needs. One that may be let
    /// through comes before one that has to panic. One for which none of the others runs anything
    /// comes before others. `own` comes before others.
    pub(super) fn to_give_up(&self, circle: &Circle, own: u64) -> Option<(u64, Need)> {
        let of_it = self.waits.keys().copied().filter(|id| circle.has(Fact::Wait(*id)));
        let of_it: Vec<u64> = of_it.collect();
        if of_it.iter().any(|id| self.waits[id].ends) {
            // That wait is about to be given up.
            return None;
        }
        let needs = |id: u64| self.needs.get(&id).copied().unwrap_or(Need::Colours);
        let order =
            |id: &u64| (needs(*id) != Need::Place, self.runner(*id).is_some(), *id != own, *id);
        let found = of_it.into_iter().filter(|id| self.may_end(*id)).min_by_key(order);
        found.map(|id| (id, needs(id)))
    }
}

impl KeptObjects {
    fn add_queue(&mut self, queue: Arc<QueueCore>) {
        self.queues.entry(NonNull::from(&*queue)).or_insert(queue);
    }

    fn add_pool(&mut self, group: Arc<Group>, pool: usize) -> PoolKey {
        let key = (current_worker::key(&group), pool);
        self.pools.entry(key).or_insert(group);
        key
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use corewise_sync::{Parker, thread};

    use super::*;

    /// Returns the pointer to an item, only to be compared.
    fn item(n: usize) -> NonNull<Header> {
        let at = ptr::without_provenance_mut(n * align_of::<Header>());
        NonNull::new(at).expect("not 0")
    }

    /// Returns the wait of an item on a thread of its own for another one.
    fn wait(waits_for: usize, own: usize) -> Wait {
        Wait {
            waits_for: Dependency::Item {
                item: item(waits_for),
                over: NonNull::dangling(),
                stays: false,
            },
            helps: Some(Vec::new()),
            home: None,
            held: false,
            thread: thread::spawn(|| thread::current().id()).join().expect("it ends"),
            keeps: vec![Fact::Item(item(own))],
            unparker: Parker::new().unparker(),
            ends: false,
        }
    }

    /// Returns the wait that is given up when the one with the number `own` looks, of those that
    /// wait for a running item.
    fn given_up<const N: usize>(waits: [Wait; N], own: u64) -> Option<u64> {
        let waits = (1..).zip(waits).collect();
        let mut look = Scan::at(&waits);
        for (id, wait) in &waits {
            let Dependency::Item { item, .. } = wait.waits_for else {
                unreachable!("they are items'")
            };
            look.graph.after(Fact::Wait(*id), Fact::Item(item));
        }
        look.graph.run();
        look.to_give_up(&look.circle(own), own).map(|(id, _)| id)
    }

    #[test]
    fn a_scope_is_not_given_up_while_its_part_runs_whoever_looks() {
        for own in 1..=3 {
            // The first one is the scope, the second one its part.
            let over = NonNull::dangling();
            let waits_for = Dependency::Item { item: item(2), over, stays: true };
            let scope = Wait { waits_for, ..wait(2, 1) };
            let given_up = given_up([scope, wait(3, 2), wait(1, 3)], own);
            assert!(matches!(given_up, Some(2 | 3)), "{given_up:?}, where {own} looks");
        }
    }

    #[test]
    fn of_a_circle_nobody_else_is_given_up_before_the_one_that_was_has_gone() {
        for own in 1..=2 {
            assert_eq!(given_up([wait(2, 1), wait(1, 2)], own), Some(own));
            let ends = Wait { ends: true, ..wait(2, 1) };
            assert_eq!(given_up([ends, wait(1, 2)], own), None);
        }
    }

    #[test]
    fn a_wait_for_a_running_item_is_not_stuck_nor_is_a_wait_for_that_waiter() {
        assert_eq!(given_up([wait(9, 1), wait(1, 2)], 2), None);
        assert_eq!(given_up([wait(9, 1), wait(1, 2), wait(4, 3), wait(3, 4)], 2), Some(3));
    }

    #[test]
    fn a_waiter_outside_a_circle_is_not_given_up_before_one_inside() {
        let slot = LimitSlot::<Queued>::new(1);
        slot.lend();
        let waits = BTreeMap::from([(1, wait(2, 9)), (2, wait(3, 2)), (3, wait(2, 3))]);
        for own in 1..=3 {
            let mut look = Scan::at(&waits);
            look.needs_place(Fact::Wait(1), &slot);
            look.graph.after(Fact::Place(NonNull::from(&slot)), Fact::Wait(2));
            look.graph.after(Fact::Wait(2), Fact::Item(item(3)));
            look.graph.after(Fact::Wait(3), Fact::Item(item(2)));
            look.graph.run();
            assert!(look.is_stuck(1), "it is, until that circle has ended");
            let given_up = look.to_give_up(&look.circle(own), own);
            let given_up = given_up.map(|(id, _)| id);
            assert!(matches!(given_up, Some(2 | 3)), "{given_up:?}, where {own} looks");
        }
    }

    #[test]
    fn a_circle_that_is_read_again_is_the_same_where_nobody_has_changed_a_limit_meanwhile() {
        let slot = LimitSlot::<Queued>::new(1);
        slot.lend();
        let waits = BTreeMap::from([(1, wait(2, 1))]);
        let read = || {
            let mut look = Scan::at(&waits);
            look.needs_place(Fact::Wait(1), &slot);
            look.graph.after(Fact::Place(NonNull::from(&slot)), Fact::Wait(1));
            look.graph.run();
            (look.is_stuck(1), look.circle(1))
        };
        let before = read();
        assert!(before.0 && before == read());
        slot.set_limit(2);
        assert!(!read().0, "the item is about to be let through");
        slot.set_limit(1);
        let after = read();
        assert!(after.0 && after != before, "it could have gone on between the two");
    }

    #[test]
    fn a_place_that_was_given_back_and_that_nobody_has_taken_yet_keeps_nobody() {
        let slot = LimitSlot::<Queued>::new(1);
        let waits = BTreeMap::from([(1, wait(2, 1))]);
        let mut look = Scan::at(&waits);
        look.needs_place(Fact::Wait(1), &slot);
        look.graph.run();
        assert!(!look.is_stuck(1));
    }
}
