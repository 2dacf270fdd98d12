//! Who of those on the list is stuck: found from those who aren't.
//!
//! In time that grows with what is on the list, and with what lies in the pools and lines that are seen:
//! each need is met once, and each who waits goes on once.

use std::collections::{HashMap, HashSet};
use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::thread::ThreadId;

use super::flushed::{Colour, Flushed};
use super::holders::Holders;
use super::{List, Next, Target, Wait};
use crate::pool::current_worker;
use crate::pool::group::Group;
use crate::pwq::limit_slot::Slot;
use crate::task::header::{Header, Queued};

/// The flush that would run the instances of a colour that lie in a pool.
type Helpers = HashMap<(Colour, (NonNull<()>, usize)), u64>;

/// What one that waits needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Need {
    /// The end of it.
    Item(NonNull<Header>),
    /// That the stack of this thread goes on.
    Stack(ThreadId),
    /// A worker of this pool.
    Pool(NonNull<()>, usize),
    /// A place in this slot.
    Place(NonNull<Slot<Queued>>),
    /// The end of the instances of this colour.
    Colour(Colour),
    /// A worker for what lies in this pool.
    Lying(NonNull<()>, usize),
}

/// Who keeps a need from being met.
#[derive(Default)]
struct Unmet {
    /// It isn't met while so many are stuck who keep it. `None`: it may always be.
    all: Option<usize>,
    /// So many are.
    stuck: usize,
    /// One of them.
    by: Option<usize>,
    /// Who needs it, by their places in the look.
    needed_by: Vec<usize>,
}

impl Unmet {
    fn lasts(&self) -> bool {
        self.all.is_some_and(|all| self.stuck >= all)
    }
}

/// One that waits or, behind all of these, a need that others make up.
struct Node {
    /// So many needs of its have to be met before it goes on.
    missing: usize,
    /// It doesn't go on, for all that is known.
    stuck: bool,
    /// The need that it is.
    is: Option<Need>,
}

/// Who is stuck, found by following from those who aren't to those who wait for them.
pub(super) struct Look<'a> {
    waits: Vec<(u64, &'a Wait)>,
    nexts: &'a [Next],
    nodes: Vec<Node>,
    needs: HashMap<Need, Unmet>,
    /// The last one of each thread: that one sleeps.
    innermost: HashMap<ThreadId, usize>,
    /// Who runs an instance of that colour and is stuck, if anybody is.
    runners: HashMap<Colour, usize>,
    /// Who can run something for a flush now.
    pub(super) helpers: Vec<u64>,
}

impl<'a> Look<'a> {
    pub(super) fn new(
        list: &'a List,
        nexts: &'a [Next],
        flushed: &Flushed,
        holders: &Holders,
    ) -> Self {
        let waits: Vec<_> = list.waits.iter().map(|(id, wait)| (*id, wait)).collect();
        let innermost: HashMap<ThreadId, usize> =
            waits.iter().enumerate().map(|(at, (_, wait))| (wait.thread, at)).collect();
        let node = || Node { missing: 1, stuck: true, is: None };
        let nodes = waits.iter().map(|_| node()).collect();
        let (needs, runners, helpers) = Default::default();
        let mut look = Look { waits, nexts, nodes, needs, innermost, runners, helpers };
        look.find_needs(flushed, holders);
        look.find_keepers();
        look.go_on();
        look.find_runners();
        look
    }

    fn sleeps(&self, at: usize) -> bool {
        self.innermost.get(&self.waits[at].1.thread) == Some(&at)
    }

    /// This one needs that; `all`: how many keep it, if it isn't known yet.
    fn add(&mut self, at: usize, need: Need, all: impl FnOnce() -> Option<usize>) {
        let unmet = self.needs.entry(need);
        let new = || Unmet { all: all(), ..Unmet::default() };
        unmet.or_insert_with(new).needed_by.push(at);
    }

    /// The node of a need that others make up; and whether it is new.
    fn node_of(&mut self, need: Need, nodes: &mut HashMap<Need, usize>) -> (usize, bool) {
        let next = self.nodes.len();
        let at = *nodes.entry(need).or_insert(next);
        if at == next {
            self.nodes.push(Node { missing: 0, stuck: true, is: Some(need) });
        }
        (at, at == next)
    }

    fn find_needs(&mut self, flushed: &Flushed, holders: &Holders) {
        let nexts = self.nexts;
        let mut nodes = HashMap::new();
        // One who would run an item does that for all who wait for it.
        let helped: HashSet<_> = self.waits.iter().filter_map(|(_, wait)| wait.helps()).collect();
        for (at, next) in nexts.iter().enumerate() {
            match (next, &self.waits[at].1.target) {
                (Next::Something, _) => self.nodes[at].missing = 0,
                (Next::Runner, Target::Item { item, .. }) => {
                    self.add(at, Need::Item(*item), || Some(1));
                }
                (Next::Worker(..), Target::Item { item, .. }) if helped.contains(item) => {
                    self.nodes[at].missing = 0;
                }
                (Next::Worker(group, pool), _) => self.add_workers(at, group, *pool),
                (Next::Place { slot, .. }, _) => self.add_place(at, *slot),
                (Next::Colours(queue, awaited), _) => {
                    let mut many = 0;
                    for colour in awaited.colours().map(|colour| (*queue, colour)) {
                        self.node_of(Need::Colour(colour), &mut nodes);
                        self.add(at, Need::Colour(colour), || Some(1));
                        many += 1;
                    }
                    self.nodes[at].missing = if awaited.any { 1 } else { many };
                }
                (Next::Runner, Target::Queue { .. }) => unreachable!("a flush waits for colours"),
            }
        }
        let helpers = self.helpers_of_colours();
        self.find_needs_of_colours(flushed, &helpers, &mut nodes);
        self.find_needs_of_places(holders, (&helped, &helpers), &mut nodes);
    }

    /// What those need that have a place and lie in a pool: a worker, and till then they keep the place.
    fn find_needs_of_places(
        &mut self,
        holders: &Holders,
        (helped, helpers): (&HashSet<NonNull<Header>>, &Helpers),
        nodes: &mut HashMap<Need, usize>,
    ) {
        for holder in &holders.lying {
            let pool = (current_worker::key(&holder.group), holder.pool);
            let flushed = holder.near && helpers.contains_key(&(holder.colour, pool));
            let place = Need::Place(holder.slot);
            if flushed || helped.contains(&holder.item) || !self.needs.contains_key(&place) {
                continue;
            }
            let need = Need::Lying(pool.0, pool.1);
            let (node, new) = self.node_of(need, nodes);
            if new {
                self.nodes[node].missing = 1;
                self.add_workers(node, &holder.group, holder.pool);
            }
            self.nodes.push(Node { missing: 1, stuck: true, is: Some(place) });
            self.add(self.nodes.len() - 1, need, || Some(1));
        }
    }

    /// What the colours wait for that somebody flushes.
    fn find_needs_of_colours(
        &mut self,
        flushed: &Flushed,
        helpers: &Helpers,
        nodes: &mut HashMap<Need, usize>,
    ) {
        let sleepers: Vec<_> = self.innermost.values().map(|at| self.waits[*at].1).collect();
        for wait in sleepers {
            for colour in &wait.colours {
                if let Some(at) = nodes.get(&Need::Colour(*colour)).copied() {
                    self.nodes[at].missing += 1;
                    self.add(at, Need::Stack(wait.thread), || Some(1));
                }
            }
        }
        for (colour, slot) in &flushed.held {
            if let Some(at) = nodes.get(&Need::Colour(*colour)).copied() {
                self.nodes[at].missing += 1;
                self.add_place(at, *slot);
            }
        }
        for lying in &flushed.lying {
            let Some(at) = nodes.get(&Need::Colour(lying.colour)).copied() else { continue };
            let pool = (current_worker::key(&lying.group), lying.pool);
            if lying.near
                && let Some(id) = helpers.get(&(lying.colour, pool))
            {
                self.helpers.push(*id);
                continue;
            }
            let need = Need::Lying(pool.0, pool.1);
            let (node, new) = self.node_of(need, nodes);
            if new {
                self.nodes[node].missing = 1;
                self.add_workers(node, &lying.group, lying.pool);
            }
            self.nodes[at].missing += 1;
            self.add(at, need, || Some(1));
        }
    }

    /// Who would run what lies in a pool for a flush.
    fn helpers_of_colours(&self) -> Helpers {
        let mut all = HashMap::new();
        for ((id, wait), next) in self.waits.iter().zip(self.nexts) {
            if let (Next::Colours(queue, awaited), Target::Queue { helps, .. }) =
                (next, &wait.target)
                && !awaited.any
            {
                let colours = awaited.colours().map(|colour| (*queue, colour));
                all.extend(colours.flat_map(|c| helps.iter().map(move |pool| ((c, *pool), *id))));
            }
        }
        all
    }

    fn add_workers(&mut self, at: usize, group: &Arc<Group>, pool: usize) {
        let pools = if group.soft { 0..group.pools.len() } else { pool..pool + 1 };
        for pool in pools {
            self.add(at, Need::Pool(current_worker::key(group), pool), || group.all_it_has(pool));
        }
    }

    fn add_place(&mut self, at: usize, slot: NonNull<Slot<Queued>>) {
        self.add(at, Need::Place(slot), || {
            // SAFETY: it is a part of the queue, which is kept.
            let slot = unsafe { slot.as_ref() };
            (!slot.gate().frozen()).then(|| slot.sizes().0)
        });
    }

    /// Each is stuck, to begin with.
    fn find_keepers(&mut self) {
        let keeps = |at: usize| self.waits[at].1.keeps().map(move |need| (at, need));
        let waits = self.innermost.values().copied().flat_map(keeps);
        let nodes = self.nodes.iter().enumerate();
        let made_up = nodes.filter_map(|(at, node)| Some((at, node.is?)));
        for (at, need) in waits.chain(made_up) {
            if let Some(unmet) = self.needs.get_mut(&need) {
                unmet.stuck += 1;
                unmet.by = Some(at);
            }
        }
    }

    /// From those who go on to those who need them.
    fn go_on(&mut self) {
        let free = |at: &usize| self.nodes[*at].missing == 0;
        let mut go_on: Vec<_> = (0..self.nodes.len()).filter(free).collect();
        let met: Vec<_> = self.needs.values().filter(|unmet| !unmet.lasts()).collect();
        for at in met.iter().flat_map(|unmet| &unmet.needed_by) {
            self.nodes[*at].meets(*at, &mut go_on);
        }
        while let Some(at) = go_on.pop() {
            if !std::mem::replace(&mut self.nodes[at].stuck, false) {
                continue;
            }
            let (waits, made_up) = match self.nodes[at].is {
                Some(need) => (None, Some(need)),
                None => (self.sleeps(at).then(|| self.waits[at].1.keeps()), None),
            };
            for need in waits.into_iter().flatten().chain(made_up) {
                let Some(unmet) = self.needs.get_mut(&need) else { continue };
                let lasted = unmet.lasts();
                unmet.stuck -= 1;
                if lasted && !unmet.lasts() {
                    for at in &unmet.needed_by {
                        self.nodes[*at].meets(*at, &mut go_on);
                    }
                }
            }
        }
    }

    fn find_runners(&mut self) {
        for at in self.innermost.values().copied().filter(|at| self.nodes[*at].stuck) {
            let colours = self.waits[at].1.colours.iter().copied();
            self.runners.extend(colours.map(|colour| (colour, at)));
        }
    }

    /// Which of those who are stuck runs what this one waits for.
    fn runner(&self, at: usize) -> Option<usize> {
        match (&self.nexts[at], &self.waits[at].1.target) {
            (Next::Colours(queue, awaited), _) => {
                awaited.colours().find_map(|colour| self.runners.get(&(*queue, colour)).copied())
            }
            (_, Target::Item { item, .. }) => {
                let unmet = self.needs.get(&Need::Item(*item))?;
                unmet.by.filter(|by| self.nodes[*by].stuck)
            }
            (_, Target::Queue { .. }) => None,
        }
    }

    /// Who is stuck, and given up: one that nobody of the others could help, else one of a circle;
    /// `own` sooner than others.
    pub(super) fn to_give_up(&self, own: u64) -> Option<u64> {
        let stuck = || (0..self.waits.len()).filter(|at| self.nodes[*at].stuck);
        if stuck().any(|at| self.waits[at].1.ends) {
            // It is about to.
            return None;
        }
        let own = stuck().find(|at| self.waits[*at].0 == own);
        let first = own.or_else(|| stuck().next())?;
        let may = |at: usize| {
            let wait = self.waits[at].1;
            let stays = matches!(wait.target, Target::Item { stays: true, .. })
                && matches!(self.nexts[at], Next::Runner);
            self.sleeps(at) && !stays
        };
        let found =
            own.into_iter().chain(stuck()).find(|at| may(*at) && self.runner(*at).is_none());
        if let Some(at) = found {
            return Some(self.waits[at].0);
        }
        // From one to the next, for so long that all that remains is a circle; then once around.
        let mut at = first;
        for _ in stuck() {
            at = self.runner(at)?;
        }
        for _ in stuck() {
            if may(at) {
                return Some(self.waits[at].0);
            }
            at = self.runner(at)?;
        }
        None
    }
}

impl Node {
    /// A need is met.
    fn meets(&mut self, at: usize, go_on: &mut Vec<usize>) {
        self.missing = self.missing.saturating_sub(1);
        if self.missing == 0 {
            go_on.push(at);
        }
    }
}

impl Wait {
    /// Others who need one of these can't go on for as long as this one can't.
    fn keeps(&self) -> impl Iterator<Item = Need> {
        let items = self.inside.iter().copied().map(Need::Item);
        let places = self.places.iter().copied().map(Need::Place);
        let worker = self.worker.map(|(group, pool)| Need::Pool(group, pool));
        items.chain(places).chain(worker).chain([Need::Stack(self.thread)])
    }

    /// The item that it would run.
    fn helps(&self) -> Option<NonNull<Header>> {
        match self.target {
            Target::Item { item, helps: true, .. } => Some(item),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use corewise_sync::{Parker, thread};

    use super::*;

    /// It is only compared.
    fn item(n: usize) -> NonNull<Header> {
        let at = ptr::without_provenance_mut(n * align_of::<Header>());
        NonNull::new(at).expect("not 0")
    }

    /// An item on a thread of its own that waits for another one.
    fn wait(waits_for: usize, own: usize) -> Wait {
        Wait {
            target: Target::Item { item: item(waits_for), helps: false, stays: false },
            over: NonNull::dangling(),
            thread: thread::spawn(|| thread::current().id()).join().expect("it ends"),
            inside: vec![item(own)],
            colours: Vec::new(),
            places: Vec::new(),
            worker: None,
            unparker: Parker::new().unparker(),
            ends: false,
        }
    }

    /// Of those that wait for a running item, the one that is given up when the one with the number `own` looks.
    fn given_up<const N: usize>(waits: [Wait; N], own: u64) -> Option<u64> {
        let list = List { waits: (1..).zip(waits).collect(), last: N as u64 };
        let nexts = [const { Next::Runner }; N];
        Look::new(&list, &nexts, &Flushed::default(), &Holders::default()).to_give_up(own)
    }

    #[test]
    fn a_scope_is_not_given_up_while_its_part_runs_whoever_looks() {
        for own in 1..=3 {
            // The first one is the scope, the second one its part.
            let target = Target::Item { item: item(2), helps: false, stays: true };
            let scope = Wait { target, ..wait(2, 1) };
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
    fn who_waits_for_what_runs_elsewhere_is_not_stuck_nor_is_who_waits_for_that_one() {
        assert_eq!(given_up([wait(9, 1), wait(1, 2)], 2), None);
        assert_eq!(given_up([wait(9, 1), wait(1, 2), wait(4, 3), wait(3, 4)], 2), Some(3));
    }
}
