//! Trees of joins, scopes and maps that chance makes, on queues whose workers steal: they come to
//! what a plain recursion does. `it/forks.rs` runs them on real threads, `shuttle/forks.rs` in
//! random schedules.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

use corewise_sync::context::AtomicSection;
use corewise_sync::{hint, per_thread, thread};
use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::{JoinError, QueueKind, WorkerPools, Workqueue, blocking};

use crate::chance::Chance;

/// The size of a run.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// Trees, each of which is an item, or called from outside of the queue.
    pub(crate) trees: u64,
    /// Levels of each.
    pub(crate) depth: u32,
    /// Longest time of a leaf, in rounds of a loop.
    pub(crate) rounds: u64,
}

per_thread! {
    /// Number of the tree that the calling thread is in; 0 where it is in none.
    static WITHIN: Cell<u64> = Cell::new(0);
}

/// The node of a tree.
enum Node {
    Leaf(Leaf),
    /// Panics with this number.
    Panics(u64),
    Join(Box<[Node; 2]>),
    Scope(Vec<Node>),
    Map(Vec<Node>),
    /// An item of the other queue.
    Elsewhere(Box<Node>),
    /// Inside a blocking region.
    Blocks(Box<Node>),
    /// Inside an atomic section.
    Atomic(Box<Node>),
    /// A panic ends here.
    Catches(Box<Node>),
    /// Spawns so many closures that nobody joins, some of which spawn again.
    Spawns(u64),
}

/// Closures that trees spawn and nobody joins.
#[derive(Default)]
struct Spawned {
    made: AtomicU64,
    taken: AtomicU64,
    ran: AtomicU64,
    dropped: AtomicU64,
}

/// One of them, until it is dropped.
struct One(Arc<Spawned>);

impl One {
    fn new(of: &Arc<Spawned>) -> One {
        of.made.fetch_add(1, SeqCst);
        One(Arc::clone(of))
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, SeqCst);
    }
}

fn spawn_closures(queue: &Workqueue, of: &Arc<Spawned>, many: u64) {
    for number in 0..many {
        let one = One::new(of);
        let taken = match number % 3 {
            0 => queue.execute(move || _ = one.0.ran.fetch_add(1, SeqCst)).is_ok(),
            1 => {
                // One that is large.
                let (own, all) = (queue.clone(), [number; 8]);
                let closure = move || {
                    one.0.ran.fetch_add(1, SeqCst);
                    spawn_closures(&own, &one.0, all[7] / 2);
                };
                queue.execute(closure).is_ok()
            }
            _ => {
                let own = queue.clone();
                let closure = move || {
                    one.0.ran.fetch_add(1, SeqCst);
                    spawn_closures(&own, &one.0, number / 2);
                };
                queue.execute(closure).is_ok()
            }
        };
        of.taken.fetch_add(u64::from(taken), SeqCst);
    }
}

struct Leaf {
    value: u64,
    rounds: u64,
    calls: AtomicU32,
}

/// The parts that may be below a node.
#[derive(Clone, Copy)]
struct Below {
    depth: u32,
    /// Nodes that may block.
    blocking: bool,
    /// Items of the other queue.
    elsewhere: bool,
}

impl Node {
    fn new<C: Chance>(chance: &mut C, size: Size, mut below: Below) -> Node {
        let kind = if below.depth == 0 { 0 } else { chance.below(15) };
        below.depth = below.depth.saturating_sub(1);
        let node = |chance: &mut C, below| Node::new(chance, size, below);
        let boxed = |chance: &mut C, below| Box::new(node(chance, below));
        let some = |chance: &mut C| (0..chance.below(4)).map(|_| node(chance, below)).collect();
        match kind {
            0 if chance.one_in(10) => Node::Panics(chance.below(1000)),
            0 => Node::Leaf(Leaf {
                value: chance.below(1000),
                rounds: chance.below(size.rounds + 1),
                calls: AtomicU32::new(0),
            }),
            1 if below.blocking => Node::Scope(some(chance)),
            2 if below.blocking => Node::Map(some(chance)),
            3 if below.blocking => Node::Blocks(boxed(chance, below)),
            4 if below.elsewhere && below.blocking => {
                Node::Elsewhere(boxed(chance, Below { elsewhere: false, ..below }))
            }
            5 => Node::Atomic(boxed(chance, Below { blocking: false, ..below })),
            6 => Node::Catches(boxed(chance, below)),
            7 => Node::Spawns(chance.below(6)),
            _ => Node::Join(Box::new([node(chance, below), node(chance, below)])),
        }
    }

    /// Returns what plain recursion comes to, or with what it may panic.
    fn plain(&self) -> Result<u64, BTreeSet<u64>> {
        let all = |nodes: &[Node]| {
            let (mut sum, mut panics) = (0, BTreeSet::new());
            nodes.iter().for_each(|node| match node.plain() {
                Ok(value) => sum += value,
                Err(numbers) => panics.extend(numbers),
            });
            if panics.is_empty() { Ok(sum) } else { Err(panics) }
        };
        match self {
            Node::Leaf(leaf) => Ok(leaf.value),
            Node::Spawns(many) => Ok(*many),
            Node::Panics(number) => Err(BTreeSet::from([*number])),
            Node::Join(two) => {
                // The first closure's panic wins.
                let [a, b] = [two[0].plain(), two[1].plain()];
                Ok(a? + b?)
            }
            Node::Scope(nodes) | Node::Map(nodes) => all(nodes),
            Node::Elsewhere(node) | Node::Blocks(node) | Node::Atomic(node) => node.plain(),
            Node::Catches(node) => Ok(node.plain().unwrap_or(1)),
        }
    }

    /// Runs the same on a queue.
    fn run(&self, place: &Place<'_>) -> u64 {
        let _within = place.enter();
        let queue = place.queue;
        match self {
            Node::Leaf(leaf) => {
                leaf.calls.fetch_add(1, SeqCst);
                black_box((0..leaf.rounds).fold(0, |a, b| a ^ black_box(b)));
                leaf.value
            }
            Node::Panics(number) => resume_unwind(Box::new(*number)),
            Node::Spawns(many) => {
                spawn_closures(queue, place.spawned, *many);
                *many
            }
            Node::Join(two) => {
                let (a, b) = queue.join(|| two[0].run(place), || two[1].run(place));
                a + b
            }
            Node::Scope(nodes) => {
                let sum = AtomicU64::new(0);
                queue.scope(|scope| {
                    for node in nodes {
                        drop(scope.spawn(|| sum.fetch_add(node.run(place), SeqCst)));
                    }
                });
                sum.into_inner()
            }
            Node::Map(nodes) => queue.map(nodes, |node| node.run(place)).into_iter().sum(),
            Node::Elsewhere(node) => {
                let there = Place { queue: place.other, ..*place };
                let value = place.other.scope(|scope| scope.spawn(|| node.run(&there)).join());
                value.unwrap_or_else(|error| error.resume())
            }
            Node::Blocks(node) => blocking("the test", || node.run(place)),
            Node::Atomic(node) => {
                let _section = AtomicSection::enter("the test");
                node.run(place)
            }
            Node::Catches(node) => match catch_unwind(AssertUnwindSafe(|| node.run(place))) {
                Ok(value) => value,
                Err(payload) => {
                    node.may_panic_with(payload);
                    1
                }
            },
        }
    }

    /// Checks that this is one of its panics, or else that of an assertion.
    fn may_panic_with(&self, payload: Box<dyn Any + Send>) {
        let number = *payload.downcast::<u64>().unwrap_or_else(|other| resume_unwind(other));
        let numbers = self.plain().expect_err("nothing in it panics");
        assert!(numbers.contains(&number), "{number} isn't among {numbers:?}");
    }

    /// Checks that each leaf was called once. `skips`: a map drops what has not begun when it
    /// panics.
    fn check_calls(&self, skips: bool) {
        let below = |nodes: &[Node], skips| nodes.iter().for_each(|node| node.check_calls(skips));
        match self {
            Node::Leaf(leaf) => {
                let calls = leaf.calls.load(SeqCst);
                assert!(calls == 1 || calls == 0 && skips, "a leaf was called {calls} times");
            }
            Node::Panics(_) | Node::Spawns(_) => {}
            Node::Join(two) => below(&two[..], skips),
            Node::Scope(nodes) => below(nodes, skips),
            Node::Map(nodes) => below(nodes, skips || self.plain().is_err()),
            Node::Elsewhere(node)
            | Node::Blocks(node)
            | Node::Atomic(node)
            | Node::Catches(node) => node.check_calls(skips),
        }
    }
}

/// The place where a tree is worked on.
#[derive(Clone, Copy)]
struct Place<'a> {
    queue: &'a Workqueue,
    other: &'a Workqueue,
    /// Number of the tree.
    tree: u64,
    spawned: &'a Arc<Spawned>,
}

impl Place<'_> {
    /// Enters a part of the tree that is called here.
    ///
    /// # Panics
    /// Inside of another tree: a lock that is held there might be wanted here.
    fn enter(&self) -> impl Drop + use<> {
        struct Leave(u64);
        impl Drop for Leave {
            fn drop(&mut self) {
                WITHIN.with(|within| within.set(self.0));
            }
        }
        let outer = WITHIN.with(|within| within.replace(self.tree));
        assert!(outer == 0 || outer == self.tree, "{} is called inside {outer}", self.tree);
        Leave(outer)
    }
}

/// A tree, and the queues that it is for.
struct Tree {
    number: u64,
    root: Node,
    queues: [Workqueue; 2],
    spawned: Arc<Spawned>,
}

impl Tree {
    fn run(&self) -> u64 {
        let [queue, other] = &self.queues;
        self.root.run(&Place { queue, other, tree: self.number, spawned: &self.spawned })
    }

    /// Checks what it came to.
    fn check(&self, came_to: thread::Result<u64>) {
        match came_to {
            Ok(value) => assert_eq!(self.root.plain(), Ok(value), "tree {}", self.number),
            Err(payload) => self.root.may_panic_with(payload),
        }
        self.root.check_calls(false);
    }
}

/// Returns a queue for the trees, and one for items that they wait for.
fn queues<C: Chance>(chance: &mut C) -> (WorkerPools, [Workqueue; 2]) {
    let two_nodes = "numa:2 l3:1 core:1 pu:1";
    let machines = ["core:1 pu:1", "core:2 pu:1", "core:4 pu:1", "l3:2 core:2 pu:1", two_nodes];
    // Or this one, on whose CPUs a thread outside of the queue may take part.
    let machine = machines.get(chance.below(7) as usize).copied().unwrap_or("live");
    // Each node has a limit of its own. Circles of waits that lead through two limits are found by
    // the clock, which a model hasn't got.
    let limited = !(hint::IN_MODEL && machine == two_nodes);
    let machine = match machine {
        "live" if !hint::IN_MODEL => Machine::live(),
        "live" => Machine::synthetic("core:2 pu:1"),
        description => Machine::synthetic(description),
    };
    let machine = machine.expect("a machine");
    let pools = WorkerPools::builder(&machine).max_workers(8).build();
    let scopes = [AffinityScope::System, AffinityScope::Cache, AffinityScope::Cpu];
    let builder = Workqueue::builder("trees").scope(scopes[chance.below(3) as usize]);
    let builder = match chance.below(8) {
        0 if limited => builder.max_active(1),
        1 if limited => builder.max_active(2),
        2 if limited => builder.kind(QueueKind::Ordered),
        3 => builder.strict(true),
        _ => builder,
    };
    let other = Workqueue::builder("other").scope(AffinityScope::System);
    let queues = [builder, other].map(|builder| builder.build(&pools).expect("a queue"));
    (pools, queues)
}

/// Runs the scenario once.
///
/// # Panics
/// If a tree comes to something else than plain recursion, or a rule doesn't hold.
pub(crate) fn scenario<C: Chance>(mut chance: C, size: Size) {
    let (pools, queues) = queues(&mut chance);
    let below = Below { depth: size.depth, blocking: true, elsewhere: true };
    let all = Arc::<Spawned>::default();
    let trees = (1..=size.trees).map(|number| {
        let root = Node::new(&mut chance, size, below);
        Arc::new(Tree { number, root, queues: queues.clone(), spawned: Arc::clone(&all) })
    });
    let trees: Vec<_> = trees.collect();
    let closing = Arc::new(AtomicBool::new(false));
    let spawned: Vec<_> = trees
        .iter()
        .map(|tree| {
            let its = Arc::clone(tree);
            if chance.one_in(4) {
                // From outside.
                return Err(thread::spawn(move || {
                    its.check(catch_unwind(AssertUnwindSafe(|| its.run())));
                }));
            }
            Ok(queues[0].spawn(move || its.run()))
        })
        .collect();
    let meanwhile = {
        let (queues, pools, closing) = (queues.clone(), pools.clone(), Arc::clone(&closing));
        let what = chance.below(6);
        thread::spawn(move || match what {
            0 => queues.iter().for_each(Workqueue::flush),
            1 => {
                closing.store(true, SeqCst);
                pools.shutdown();
            }
            2 => drop(pools.dump()),
            3 => queues[0].drain(),
            _ => {}
        })
    };
    for (tree, spawned) in trees.iter().zip(spawned) {
        match spawned {
            Err(outside) => outside.join().expect("the tree is as it should be"),
            Ok(item) => match item.join() {
                Ok(value) => tree.check(Ok(value)),
                Err(JoinError::Panicked(payload)) => tree.check(Err(payload.into_inner())),
                Err(error) => assert!(error.is_cancelled() && closing.load(SeqCst), "{error}"),
            },
        }
    }
    meanwhile.join().expect("no panic");
    // A closure that was spawned spawns again.
    while all.dropped.load(SeqCst) != all.made.load(SeqCst) {
        queues.iter().for_each(Workqueue::flush);
    }
    for queue in &queues {
        queue.flush();
        let stats = queue.stats();
        assert_eq!(stats.queued, stats.completed, "at rest");
    }
    let count = |count: &AtomicU64| count.load(SeqCst);
    if !closing.load(SeqCst) {
        assert_eq!(count(&all.ran), count(&all.taken), "each closure that was taken ran");
    }
    assert_eq!(count(&all.dropped), count(&all.made), "each closure is over");
    if chance.one_in(2) {
        pools.shutdown();
    }
}
