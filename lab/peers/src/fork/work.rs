//! The workloads themselves, by whatever forks: the program of Forte has this file too, so it knows
//! the standard library alone.

use std::hint::black_box;

/// A way to fork.
pub(crate) trait Forks {
    /// The handle that a part of the work forks with.
    type Here<'h>;

    /// Calls both, in parallel where somebody has the time.
    fn join<A: Send, B: Send>(
        here: &mut Self::Here<'_>,
        a: impl FnOnce(&mut Self::Here<'_>) -> A + Send,
        b: impl FnOnce(&mut Self::Here<'_>) -> B + Send,
    ) -> (A, B);

    /// Calls a function with each of the items. Where a library has no such thing: by halves, down
    /// to one item.
    fn map(
        here: &mut Self::Here<'_>,
        items: &[u64],
        f: impl Fn(u64) -> u64 + Sync + Copy + Send,
    ) -> Vec<u64> {
        let mut results = vec![0; items.len()];
        halves::<Self>(here, items, &mut results, f);
        results
    }

    /// Sets each number to one, in a task of its own of one scope. A library without scopes takes
    /// no part in that.
    fn scope(_here: &mut Self::Here<'_>, numbers: &mut [u64]) {
        numbers.fill(1);
    }
}

fn halves<F: Forks + ?Sized>(
    here: &mut F::Here<'_>,
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
    type Here<'h> = ();

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
    /// The tree, and how often a pass sums it.
    Tree(Node, usize),
    /// The numbers, in no order.
    Sort(Vec<u32>),
    /// The length of an edge.
    Matrix(usize),
    /// The number of tasks.
    Scope(usize),
    /// The items, the steps of an item on average, and the steps of one item given both.
    Map(Vec<u64>, u64, fn(u64, u64) -> u64),
}

/// The result of a pass; or, before it, the memory that the pass writes into.
#[derive(Debug)]
pub(crate) enum Output {
    Number(u64),
    Sorted(Vec<u32>),
    Product(Vec<f64>, Box<[Vec<f64>; 2]>),
    Mapped(Vec<u64>),
}

/// A binary tree, each node in an allocation of its own.
#[derive(Debug)]
pub(crate) struct Node {
    value: u64,
    children: Option<[Box<Node>; 2]>,
}

/// Slices of at most so many numbers are left to the standard library.
const SORTED_AT_ONCE: usize = 4_096;
/// The edge of a block that is multiplied at once: some 8 µs.
const BLOCK: usize = 32;

impl Work {
    /// The input of a case; `None` where there is no such case.
    pub(crate) fn new(case: &str, items: usize, times: usize, steps: u64) -> Option<Work> {
        Some(match case.split('/').next()? {
            "forks" | "fib" => Work::Fib(u32::try_from(items).ok()?),
            "tree" => Work::Tree(Node::of(items.max(1).ilog2(), 1), times),
            "sort" => Work::Sort((0..items as u64).map(|n| mixed(n, 2) as u32).collect()),
            // Quarters of quarters, down to one block.
            "matrix" => Work::Matrix(items.next_power_of_two().max(BLOCK)),
            "scope" => Work::Scope(items),
            "map-tiny" => Work::Map((0..items as u64).collect(), steps, |_, steps| steps),
            "map-uneven" => Work::Map((0..items as u64).collect(), steps, uneven),
            _ => return None,
        })
    }

    /// The number of items of a pass: forks, nodes, numbers, blocks, tasks, or the items of a map.
    pub(crate) fn items(&self) -> usize {
        match self {
            Work::Fib(n) => (fib_of(n + 1) - 1).max(1) as usize,
            Work::Tree(root, times) => root.sum() as usize * times,
            Work::Sort(numbers) => numbers.len(),
            Work::Matrix(edge) => (edge / BLOCK).pow(3),
            Work::Scope(tasks) => *tasks,
            Work::Map(items, ..) => items.len(),
        }
    }

    /// Makes the memory that a pass writes into. Not timed.
    pub(crate) fn blank(&self) -> Output {
        match self {
            Work::Sort(numbers) => Output::Sorted(numbers.clone()),
            Work::Matrix(edge) => {
                let of = |value| vec![value; edge * edge];
                Output::Product(of(0.0), Box::new([of(1.0), of(2.0)]))
            }
            Work::Scope(tasks) => Output::Mapped(vec![0; *tasks]),
            _ => Output::Number(0),
        }
    }

    /// Does it once.
    pub(crate) fn pass<F: Forks>(&self, here: &mut F::Here<'_>, blank: Output) -> Output {
        match (self, blank) {
            (Work::Fib(n), _) => Output::Number(fib::<F>(here, *n)),
            (Work::Tree(root, times), _) => Output::Number(
                (0..*times).map(|_| black_box(sum::<F>(here, black_box(root)))).sum(),
            ),
            (Work::Sort(_), Output::Sorted(mut numbers)) => {
                sort::<F>(here, &mut numbers);
                Output::Sorted(numbers)
            }
            (Work::Matrix(_), Output::Product(mut product, factors)) => {
                multiply::<F>(here, &mut product, &factors[0], &factors[1]);
                Output::Product(product, factors)
            }
            (Work::Scope(_), Output::Mapped(mut numbers)) => {
                F::scope(here, &mut numbers);
                Output::Mapped(numbers)
            }
            (Work::Map(items, steps, of), _) => {
                let (steps, of) = (*steps, *of);
                Output::Mapped(F::map(here, items, move |item| mixed(item, of(item, steps))))
            }
            (_, blank) => blank,
        }
    }

    /// Whether the result of a pass is right. Of a map, some items are verified.
    pub(crate) fn is_right(&self, output: &Output) -> bool {
        match (self, output) {
            (Work::Fib(n), Output::Number(number)) => *number == fib_of(*n),
            (Work::Tree(..), Output::Number(number)) => *number == self.items() as u64,
            (Work::Sort(numbers), Output::Sorted(sorted)) => {
                let sum = |all: &[u32]| all.iter().map(|n| u64::from(*n)).sum::<u64>();
                sorted.is_sorted() && sum(numbers) == sum(sorted) && numbers.len() == sorted.len()
            }
            (Work::Matrix(edge), Output::Product(product, _)) => {
                product.iter().all(|number| *number == 2.0 * *edge as f64)
            }
            (Work::Scope(tasks), Output::Mapped(numbers)) => {
                numbers.len() == *tasks && numbers.iter().all(|number| *number == 1)
            }
            (Work::Map(items, steps, of), Output::Mapped(results)) => {
                let is_right = |n: usize| results[n] == mixed(items[n], of(items[n], *steps));
                results.len() == items.len() && (0..items.len()).step_by(199).all(is_right)
            }
            _ => false,
        }
    }
}

/// The Fibonacci number, by a loop.
fn fib_of(n: u32) -> u64 {
    (0..n).fold((0, 1), |(a, b), _| (b, a + b)).0
}

/// The steps of an uneven item: none to twice the mean.
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

fn fib<F: Forks>(here: &mut F::Here<'_>, n: u32) -> u64 {
    if n < 2 {
        return n.into();
    }
    let (a, b) = F::join(here, |here| fib::<F>(here, n - 1), |here| fib::<F>(here, n - 2));
    a + b
}

impl Node {
    /// Returns a full tree with so many levels below its root, which has this place: the children
    /// of place `n` have the places `2n` and `2n + 1`. A number made from the place says which
    /// child is allocated first. Otherwise a library that calls the second closure first, as chili
    /// does, would walk the memory in one direction, and be four times as fast.
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

fn sum<F: Forks>(here: &mut F::Here<'_>, node: &Node) -> u64 {
    let Some([left, right]) = &node.children else { return node.value };
    let (a, b) = F::join(here, |here| sum::<F>(here, left), |here| sum::<F>(here, right));
    node.value + a + b
}

fn sort<F: Forks>(here: &mut F::Here<'_>, numbers: &mut [u32]) {
    if numbers.len() <= SORTED_AT_ONCE {
        return numbers.sort_unstable();
    }
    let (left, right) = parted(numbers);
    F::join(here, |here| sort::<F>(here, left), |here| sort::<F>(here, right));
}

/// Two parts of a slice, neither of them empty: nothing in the first is larger than anything in the
/// second (Hoare's partition by the median of three).
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

/// Adds the product of two square matrices to a third. A matrix is its four quarters, one after the
/// other, down to blocks, which are rows.
fn multiply<F: Forks>(here: &mut F::Here<'_>, product: &mut [f64], a: &[f64], b: &[f64]) {
    if product.len() <= BLOCK * BLOCK {
        return multiply_block(product, a, b);
    }
    let quarter = product.len() / 4;
    let part = |of: usize| quarter * of..quarter * (of + 1);
    // The two halves of each sum add to the same quarter: one after the other.
    for half in 0..2 {
        let (a, b) =
            ([&a[part(half)], &a[part(2 + half)]], [&b[part(2 * half)], &b[part(2 * half + 1)]]);
        let (upper, lower) = product.split_at_mut(2 * quarter);
        let row = |here: &mut F::Here<'_>, of: usize, row: &mut [f64]| {
            let (left, right) = row.split_at_mut(quarter);
            F::join(
                here,
                |here| multiply::<F>(here, left, a[of], b[0]),
                |here| multiply::<F>(here, right, a[of], b[1]),
            );
        };
        F::join(here, |here| row(here, 0, upper), |here| row(here, 1, lower));
    }
}

fn multiply_block(product: &mut [f64], a: &[f64], b: &[f64]) {
    for (row, a) in product.chunks_exact_mut(BLOCK).zip(a.chunks_exact(BLOCK)) {
        for (a, b) in a.iter().zip(b.chunks_exact(BLOCK)) {
            for (sum, b) in row.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
}
