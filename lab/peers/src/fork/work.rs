//! The workloads, generic over the way to fork. The program of Forte includes this file too, so it
//! uses the standard library alone.

use std::hint::black_box;

/// A way to fork.
pub(crate) trait Forks {
    /// The handle that a part of the work forks with.
    type Handle<'h>;

    /// Calls both, in parallel if a thread is idle.
    fn join<A: Send, B: Send>(
        here: &mut Self::Handle<'_>,
        a: impl FnOnce(&mut Self::Handle<'_>) -> A + Send,
        b: impl FnOnce(&mut Self::Handle<'_>) -> B + Send,
    ) -> (A, B);

    /// Calls a function with each of the items. For a library without such a function it forks
    /// halves, down to one item.
    fn map(
        here: &mut Self::Handle<'_>,
        items: &[u64],
        f: impl Fn(u64) -> u64 + Sync + Copy + Send,
    ) -> Vec<u64> {
        let mut results = vec![0; items.len()];
        halves::<Self>(here, items, &mut results, f);
        results
    }
}

fn halves<F: Forks + ?Sized>(
    here: &mut F::Handle<'_>,
    items: &[u64],
    results: &mut [u64],
    f: impl Fn(u64) -> u64 + Sync + Copy + Send,
) {
    if let ([item], [result]) = (items, &mut *results) {
        *result = f(*item);
    } else if !items.is_empty() {
        let half = items.len() / 2;
        let ((items, others), (results, their)) =
            (items.split_at(half), results.split_at_mut(half));
        F::join(
            here,
            |here| halves::<F>(here, items, results, f),
            |here| halves::<F>(here, others, their, f),
        );
    }
}

/// Plain calls.
#[derive(Debug)]
pub(crate) struct Serial;

impl Forks for Serial {
    type Handle<'h> = ();

    #[inline]
    fn join<A: Send, B: Send>(
        (): &mut (),
        a: impl FnOnce(&mut ()) -> A + Send,
        b: impl FnOnce(&mut ()) -> B + Send,
    ) -> (A, B) {
        (a(&mut ()), b(&mut ()))
    }

    fn map((): &mut (), items: &[u64], f: impl Fn(u64) -> u64 + Sync + Copy + Send) -> Vec<u64> {
        items.iter().map(|item| f(*item)).collect()
    }
}

/// A run's input.
#[derive(Debug)]
pub(crate) enum Work {
    /// The number whose Fibonacci number is computed.
    Fib(u32),
    /// The tree, and the number of times that a pass sums it.
    Tree(Node, usize),
    /// The numbers, in no order.
    Sort(Vec<u32>),
    /// The items, the steps of an item on average, and the steps of one item given both.
    Map(Vec<u64>, u64, fn(u64, u64) -> u64),
}

/// The result of a pass. Before the pass it is the memory that the pass writes into.
#[derive(Debug)]
pub(crate) enum Output {
    Number(u64),
    Sorted(Vec<u32>),
    Mapped(Vec<u64>),
}

/// A binary tree, each node in an allocation of its own.
#[derive(Debug)]
pub(crate) struct Node {
    value: u64,
    children: Option<[Box<Node>; 2]>,
}

/// Largest number of numbers in a slice that the standard library sorts.
const SORTED_AT_ONCE: usize = 4_096;

impl Work {
    /// Returns the input of a case, or `None` if there is no such case.
    pub(crate) fn new(case: &str, items: usize, times: usize, steps: u64) -> Option<Work> {
        Some(match case.split('/').next()? {
            "forks" | "fib" => Work::Fib(u32::try_from(items).ok()?),
            "tree" => Work::Tree(Node::of(items.max(1).ilog2(), 1), times),
            "sort" => Work::Sort((0..items as u64).map(|n| mixed(n, 2) as u32).collect()),
            "map-tiny" => Work::Map((0..items as u64).collect(), steps, |_, steps| steps),
            "map-uneven" => Work::Map((0..items as u64).collect(), steps, uneven),
            _ => return None,
        })
    }

    /// Returns the number of items of a pass: forks, nodes, numbers, or the items of a map.
    pub(crate) fn items(&self) -> usize {
        match self {
            Work::Fib(n) => (fib_of(n + 1) - 1).max(1) as usize,
            Work::Tree(root, times) => root.sum() as usize * times,
            Work::Sort(numbers) => numbers.len(),
            Work::Map(items, ..) => items.len(),
        }
    }

    /// Makes the memory that a pass writes into. This isn't timed.
    pub(crate) fn blank(&self) -> Output {
        match self {
            Work::Sort(numbers) => Output::Sorted(numbers.clone()),
            _ => Output::Number(0),
        }
    }

    /// Does one pass.
    pub(crate) fn pass<F: Forks>(&self, here: &mut F::Handle<'_>, blank: Output) -> Output {
        match (self, blank) {
            (Work::Fib(n), _) => Output::Number(fib::<F>(here, *n)),
            (Work::Tree(root, times), _) => Output::Number(
                (0..*times).map(|_| black_box(sum::<F>(here, black_box(root)))).sum(),
            ),
            (Work::Sort(_), Output::Sorted(mut numbers)) => {
                sort::<F>(here, &mut numbers);
                Output::Sorted(numbers)
            }
            (Work::Map(items, steps, of), _) => {
                let (steps, of) = (*steps, *of);
                Output::Mapped(F::map(here, items, move |item| mixed(item, of(item, steps))))
            }
            (_, blank) => blank,
        }
    }

    /// Returns true if the result of a pass is right. Of a map, it checks some items.
    pub(crate) fn is_right(&self, output: &Output) -> bool {
        match (self, output) {
            (Work::Fib(n), Output::Number(number)) => *number == fib_of(*n),
            (Work::Tree(..), Output::Number(number)) => *number == self.items() as u64,
            (Work::Sort(numbers), Output::Sorted(sorted)) => {
                let sum = |all: &[u32]| all.iter().map(|n| u64::from(*n)).sum::<u64>();
                sorted.is_sorted() && sum(numbers) == sum(sorted) && numbers.len() == sorted.len()
            }
            (Work::Map(items, steps, of), Output::Mapped(results)) => {
                let is_right = |n: usize| results[n] == mixed(items[n], of(items[n], *steps));
                results.len() == items.len() && (0..items.len()).step_by(199).all(is_right)
            }
            _ => false,
        }
    }
}

/// Returns the Fibonacci number, by a loop.
fn fib_of(n: u32) -> u64 {
    (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0
}

/// Returns the steps of an uneven item: none to twice the mean.
fn uneven(item: u64, mean: u64) -> u64 {
    mixed(item, 2) % (2 * mean + 1)
}

/// Mixes a number in some steps, each of which needs the one before.
#[inline]
fn mixed(number: u64, steps: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    for _ in 0..steps {
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }
    mixed ^ (mixed >> 31)
}

fn fib<F: Forks>(here: &mut F::Handle<'_>, n: u32) -> u64 {
    if n < 2 {
        return n.into();
    }
    let (a, b) = F::join(here, |here| fib::<F>(here, n - 1), |here| fib::<F>(here, n - 2));
    a + b
}

impl Node {
    /// Returns a full tree with this number of levels below its root, which has this place. The
    /// children of place `n` have the places `2n` and `2n + 1`. A number made from the place
    /// decides which child is allocated first. Otherwise a library that calls the second closure
    /// first, as chili does, would walk the memory in one direction. It would be four times as
    /// fast.
    fn of(levels: u32, place: u64) -> Node {
        let child = |place| Box::new(Node::of(levels - 1, place));
        let children = (levels > 0).then(|| {
            if place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 0 {
                [2 * place, 2 * place + 1].map(child)
            } else {
                let [right, left] = [2 * place + 1, 2 * place].map(child);
                [left, right]
            }
        });
        Node { value: 1, children }
    }

    fn sum(&self) -> u64 {
        self.value + self.children.iter().flatten().map(|child| child.sum()).sum::<u64>()
    }
}

fn sum<F: Forks>(here: &mut F::Handle<'_>, node: &Node) -> u64 {
    let Some([left, right]) = &node.children else { return node.value };
    let (a, b) = F::join(here, |here| sum::<F>(here, left), |here| sum::<F>(here, right));
    node.value + a + b
}

fn sort<F: Forks>(here: &mut F::Handle<'_>, numbers: &mut [u32]) {
    if numbers.len() <= SORTED_AT_ONCE {
        return numbers.sort_unstable();
    }
    let (left, right) = parted(numbers);
    F::join(here, |here| sort::<F>(here, left), |here| sort::<F>(here, right));
}

/// Splits a slice into two parts, neither of them empty. No number in the first is larger than any
/// in the second (Hoare's partition by the median of three).
fn parted(numbers: &mut [u32]) -> (&mut [u32], &mut [u32]) {
    let last = numbers.len() - 1;
    let mut three = [numbers[0], numbers[last / 2], numbers[last]];
    three.sort_unstable();
    let pivot = three[1];
    let (mut left, mut right) = (0, last);
    loop {
        while numbers[left] < pivot {
            left += 1;
        }
        while numbers[right] > pivot {
            right -= 1;
        }
        if left >= right {
            break;
        }
        numbers.swap(left, right);
        left += 1;
        right -= 1;
    }
    numbers.split_at_mut(left)
}
