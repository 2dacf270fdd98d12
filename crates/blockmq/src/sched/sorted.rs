//! The requests of a scheduler in two orders at once: by place on the device, and by age. An insert
//! allocates nothing unless more wait than ever before.
//!
//! The kernel has a red-black tree and a list through each request. Here the nodes lie in one
//! vector and point to each other by number. They form a treap (a tree that is ordered by key, and
//! a heap by random priorities) and a doubly linked list.

/// The number that points to no node.
const NONE: u32 = u32::MAX;

/// The place of an item, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(u32);

struct Node<T> {
    /// The item; `None` if the node is free.
    item: Option<T>,
    /// Items with the same key are ordered by their age.
    key: (u64, u64),
    priority: u32,
    left: u32,
    /// The right child; of a free node, the next free one.
    right: u32,
    older: u32,
    younger: u32,
}

/// Items sorted by a key, and by the order in which they came.
pub(crate) struct Sorted<T> {
    nodes: Vec<Node<T>>,
    root: u32,
    free: u32,
    oldest: u32,
    youngest: u32,
    len: usize,
    /// Number of items that came so far.
    came: u64,
    /// State of the generator of priorities: only the shape of the tree depends on it.
    random: u32,
}

/// A pointer to a subtree.
#[derive(Clone, Copy)]
enum Edge {
    Root,
    Left(u32),
    Right(u32),
}

impl<T> Sorted<T> {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            root: NONE,
            free: NONE,
            oldest: NONE,
            youngest: NONE,
            len: 0,
            came: 0,
            random: 0x9E37_79B9,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, at: Handle) -> &T {
        self.nodes[at.0 as usize].item.as_ref().expect(PRESENT)
    }

    pub(crate) fn get_mut(&mut self, at: Handle) -> &mut T {
        self.nodes[at.0 as usize].item.as_mut().expect(PRESENT)
    }

    /// Returns the oldest item.
    pub(crate) fn oldest(&self) -> Option<Handle> {
        handle(self.oldest)
    }

    /// Returns the first item by key whose key isn't below `key`; among equal ones the oldest.
    pub(crate) fn at_or_after(&self, key: u64) -> Option<Handle> {
        let (mut at, mut best) = (self.root, NONE);
        while at != NONE {
            let node = &self.nodes[at as usize];
            if node.key.0 >= key {
                best = at;
                at = node.left;
            } else {
                at = node.right;
            }
        }
        handle(best)
    }

    /// Returns the last item by key whose key is below `key`; among equal ones the youngest.
    pub(crate) fn before(&self, key: u64) -> Option<Handle> {
        let (mut at, mut best) = (self.root, NONE);
        while at != NONE {
            let node = &self.nodes[at as usize];
            if node.key.0 < key {
                best = at;
                at = node.right;
            } else {
                at = node.left;
            }
        }
        handle(best)
    }

    /// Puts an item in, as the youngest.
    pub(crate) fn insert(&mut self, key: u64, item: T) -> Handle {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.came += 1;
        let node = Node {
            item: Some(item),
            key: (key, self.came),
            priority: self.random,
            left: NONE,
            right: NONE,
            older: self.youngest,
            younger: NONE,
        };
        let new = if self.free == NONE {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        } else {
            let new = self.free;
            self.free = self.nodes[new as usize].right;
            self.nodes[new as usize] = node;
            new
        };
        match self.youngest {
            NONE => self.oldest = new,
            last => self.nodes[last as usize].younger = new,
        }
        self.youngest = new;
        self.len += 1;
        self.link(new);
        Handle(new)
    }

    /// Takes an item out.
    pub(crate) fn remove(&mut self, at: Handle) -> T {
        let item = self.lift(at);
        self.forget(at);
        item
    }

    /// Takes an item out for a moment. Its place is kept until it is put back there, or the place
    /// is forgotten.
    pub(crate) fn lift(&mut self, at: Handle) -> T {
        self.nodes[at.0 as usize].item.take().expect(PRESENT)
    }

    /// Puts an item that was lifted back.
    pub(crate) fn put_back(&mut self, at: Handle, item: T) {
        self.nodes[at.0 as usize].item = Some(item);
    }

    /// Frees the place of an item that was lifted.
    pub(crate) fn forget(&mut self, at: Handle) {
        let at = at.0;
        self.unlink(at);
        let node = &mut self.nodes[at as usize];
        let (older, younger) = (node.older, node.younger);
        node.right = self.free;
        self.free = at;
        self.len -= 1;
        match older {
            NONE => self.oldest = younger,
            older => self.nodes[older as usize].younger = younger,
        }
        match younger {
            NONE => self.youngest = older,
            younger => self.nodes[younger as usize].older = older,
        }
    }

    /// Gives an item another key. It keeps its age.
    pub(crate) fn rekey(&mut self, at: Handle, key: u64) {
        self.unlink(at.0);
        self.nodes[at.0 as usize].key.0 = key;
        self.link(at.0);
    }

    fn follow(&self, edge: Edge) -> u32 {
        match edge {
            Edge::Root => self.root,
            Edge::Left(of) => self.nodes[of as usize].left,
            Edge::Right(of) => self.nodes[of as usize].right,
        }
    }

    fn set(&mut self, edge: Edge, to: u32) {
        match edge {
            Edge::Root => self.root = to,
            Edge::Left(of) => self.nodes[of as usize].left = to,
            Edge::Right(of) => self.nodes[of as usize].right = to,
        }
    }

    /// Puts a node into the tree: below those of higher priority, on top of the rest, which is
    /// split by its key.
    fn link(&mut self, new: u32) {
        let (key, priority) = (self.nodes[new as usize].key, self.nodes[new as usize].priority);
        let mut edge = Edge::Root;
        loop {
            let at = self.follow(edge);
            if at == NONE || self.nodes[at as usize].priority < priority {
                break;
            }
            edge = if key < self.nodes[at as usize].key { Edge::Left(at) } else { Edge::Right(at) };
        }
        let mut rest = self.follow(edge);
        self.set(edge, new);
        let (mut less, mut more) = (Edge::Left(new), Edge::Right(new));
        while rest != NONE {
            if self.nodes[rest as usize].key < key {
                self.set(less, rest);
                less = Edge::Right(rest);
                rest = self.follow(less);
            } else {
                self.set(more, rest);
                more = Edge::Left(rest);
                rest = self.follow(more);
            }
        }
        self.set(less, NONE);
        self.set(more, NONE);
    }

    /// Takes a node out of the tree: its two subtrees are merged in its place.
    fn unlink(&mut self, old: u32) {
        let key = self.nodes[old as usize].key;
        let mut edge = Edge::Root;
        loop {
            let at = self.follow(edge);
            debug_assert!(at != NONE, "a node that is in no tree");
            if at == old || at == NONE {
                break;
            }
            edge = if key < self.nodes[at as usize].key { Edge::Left(at) } else { Edge::Right(at) };
        }
        let (mut left, mut right) = (self.nodes[old as usize].left, self.nodes[old as usize].right);
        while left != NONE && right != NONE {
            if self.nodes[left as usize].priority > self.nodes[right as usize].priority {
                self.set(edge, left);
                edge = Edge::Right(left);
                left = self.follow(edge);
            } else {
                self.set(edge, right);
                edge = Edge::Left(right);
                right = self.follow(edge);
            }
        }
        self.set(edge, if left == NONE { right } else { left });
    }
}

/// The reason why the expectations above hold.
const PRESENT: &str = "a handle is used until its item is removed";

fn handle(at: u32) -> Option<Handle> {
    (at != NONE).then_some(Handle(at))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use super::*;

    /// Returns the tree's keys in order, with its depth; checks the heap.
    fn walk(tree: &Sorted<u64>, at: u32, keys: &mut Vec<(u64, u64)>) -> usize {
        if at == NONE {
            return 0;
        }
        let node = &tree.nodes[at as usize];
        for child in [node.left, node.right] {
            assert!(child == NONE || tree.nodes[child as usize].priority <= node.priority);
        }
        let left = walk(tree, node.left, keys);
        keys.push(node.key);
        1 + left.max(walk(tree, node.right, keys))
    }

    #[test]
    fn random_inserts_and_removals_agree_with_a_map_and_a_queue() {
        let mut random = 7_u64;
        let mut below = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % n
        };
        let mut tree = Sorted::new();
        let mut map = BTreeMap::new();
        let mut queue = VecDeque::new();
        for n in 0..20_000_u64 {
            // The tree grows to some hundreds, and shrinks again.
            if below(100) < if n % 4000 < 2000 { 60 } else { 40 } {
                let key = below(500);
                let at = tree.insert(key, n);
                map.insert((key, n), at);
                queue.push_back(n);
            } else if !map.is_empty() {
                let (&(key, item), &at) = map.iter().nth(below(map.len() as u64) as usize).unwrap();
                assert_eq!(tree.remove(at), item);
                map.remove(&(key, item));
                queue.retain(|&one| one != item);
            }
            let key = below(510);
            let after = map.range((key, 0)..).next().map(|(_, &at)| at);
            let before = map.range(..(key, 0)).next_back().map(|(_, &at)| at);
            assert_eq!((tree.at_or_after(key), tree.before(key)), (after, before));
            assert_eq!(tree.oldest().map(|at| *tree.get(at)), queue.front().copied());
            assert_eq!((tree.len(), tree.is_empty()), (map.len(), map.is_empty()));
            if n % 500 == 0 {
                let mut keys = Vec::new();
                let depth = walk(&tree, tree.root, &mut keys);
                assert!(keys.is_sorted() && keys.len() == map.len());
                assert!(depth <= 40, "{depth} for {}", keys.len());
            }
        }
    }

    #[test]
    fn nodes_are_used_again_and_ordered_keys_make_no_chain() {
        let mut tree = Sorted::new();
        for _ in 0..3 {
            let all: Vec<_> = (0..1000).map(|key| tree.insert(key, key)).collect();
            assert!(walk(&tree, tree.root, &mut Vec::new()) < 40);
            for at in all {
                tree.remove(at);
            }
        }
        assert_eq!(tree.nodes.len(), 1000);
    }

    #[test]
    fn an_item_with_another_key_keeps_its_age() {
        let mut tree = Sorted::new();
        let [a, b, c] = [10, 20, 30].map(|key| tree.insert(key, key));
        tree.rekey(a, 25);
        assert_eq!(
            (tree.at_or_after(11), tree.before(30), tree.before(25)),
            (Some(b), Some(a), Some(b))
        );
        assert_eq!(tree.oldest(), Some(a));
        *tree.get_mut(a) += 1;
        assert_eq!(tree.remove(a), 11);
        assert_eq!((tree.len(), tree.at_or_after(21), tree.oldest()), (2, Some(c), Some(b)));
    }
}
