//! Extents of a stripe: what each child knows of its part, and how that lies on the device.

use std::sync::Arc;

use corewise_blockmq::{Extent, ExtentKind, Extents, IoError, Request, Started};
use corewise_sync::SpinLock;

use super::{Layout, Stripe};

/// A request for extents, and what the children have said so far.
struct Asked {
    layout: Layout,
    offset: u64,
    /// L: is the lock, taken once by each child's answer; guards the request until the last of them.
    state: SpinLock<State>,
}

struct State {
    rq: Option<Started>,
    /// Of each child, in its own terms.
    found: Vec<Extents>,
    missing: usize,
    error: Option<(usize, IoError)>,
}

/// Asks each child for its part, and answers when all have.
pub(super) fn ask(stripe: &Stripe, rq: Started) {
    let (offset, len) = (rq.offset(), rq.len());
    let most = rq.extents().map_or(1, Extents::most);
    let layout = stripe.layout;
    let parts: Vec<_> = (0..layout.n).map(|child| layout.range_on(child, offset, len)).collect();
    let found = vec![Extents::default(); parts.len()];
    let missing = parts.iter().filter(|part| part.len != 0).count();
    let state = SpinLock::new(State { rq: Some(rq), found, missing, error: None });
    let asked = Arc::new(Asked { layout, offset, state });
    for part in parts.into_iter().filter(|part| part.len != 0) {
        let asked = Arc::clone(&asked);
        let rq = Request::extents_of(part.offset, part.len, most);
        let child = part.child;
        stripe.children[child].submit(rq.on_complete(move |done| {
            asked.answered(child, done.into_extents());
        }));
    }
}

impl Asked {
    fn answered(&self, child: usize, answer: Result<Extents, IoError>) {
        let mut state = self.state.lock();
        match answer {
            Ok(extents) => state.found[child] = extents,
            // A place on the child says nothing on the device.
            Err(error) if state.error.as_ref().is_none_or(|(first, _)| child < *first) => {
                state.error = Some((child, error));
            }
            Err(_) => {}
        }
        state.missing -= 1;
        if state.missing != 0 {
            return;
        }
        let (rq, found, error) =
            (state.rq.take(), std::mem::take(&mut state.found), state.error.take());
        drop(state);
        let Some(mut rq) = rq else { return };
        if let Some((_, error)) = error {
            let (from, to) = (rq.offset(), rq.offset() + rq.len());
            return rq.complete(Err(error.at(from..to)));
        }
        let lists: Vec<Vec<Extent>> = found.iter().map(|found| found.iter().collect()).collect();
        let lists: Vec<&[Extent]> = lists.iter().map(Vec::as_slice).collect();
        let end = rq.offset() + rq.len();
        merge(self.layout, self.offset..end, &lists, |extent| rq.put_extent(extent));
        rq.complete(Ok(()));
    }
}

/// Gives the extents of a range of the device, as long as they are wanted and each child has said something. Pure.
fn merge(
    layout: Layout,
    range: std::ops::Range<u64>,
    lists: &[&[Extent]],
    mut put: impl FnMut(Extent) -> bool,
) {
    // For each child: what is left of its list, and where on the child the first of that begins.
    let mut rest: Vec<(&[Extent], u64)> = (0..layout.n)
        .zip(lists)
        .map(|(child, list)| (*list, layout.bytes_before(child, range.start)))
        .collect();
    let mut at = range.start;
    while at < range.end {
        for (child, (list, from)) in (0..).zip(&mut rest) {
            let reached = layout.bytes_before(child, at);
            while let Some(first) = list.first().filter(|first| *from + first.len <= reached) {
                *from += first.len;
                *list = &list[1..];
            }
        }
        let (chunk, within) = (at / layout.chunk, at % layout.chunk);
        let child = (chunk % layout.n) as usize;
        let Some(here) = rest[child].0.first() else { return };
        let kind: ExtentKind = here.kind;
        // A whole stretch at once where all children have the same there, or have nothing more in the range.
        let mut to = range.end;
        let mut all_alike = true;
        for (n, (list, from)) in (0..).zip(&rest) {
            match list.first() {
                Some(first) if first.kind == kind => {
                    to = to.min(layout.place_of(n, *from + first.len));
                }
                None if layout.bytes_before(n, range.end) == layout.bytes_before(n, at) => {}
                _ => all_alike = false,
            }
        }
        if !all_alike {
            let in_child = rest[child].1 + here.len - layout.bytes_before(child as u64, at);
            to = (at + in_child.min(layout.chunk - within)).min(range.end);
        }
        if !put(Extent { len: to - at, kind }) {
            return;
        }
        at = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_extents_say_of_each_byte_what_its_child_says() {
        let kinds = [ExtentKind::Data, ExtentKind::Hole, ExtentKind::Zero];
        let mut rng = fastrand::Rng::with_seed(7);
        let mut rnd = |below: u64| rng.u64(..below);
        for round in 0..3000 {
            let layout = Layout { n: 1 + rnd(4), chunk: 1 + rnd(4) };
            let rows = 1 + rnd(6);
            let bytes = rows * layout.chunk;
            let size = bytes * layout.n;
            let disks: Vec<Vec<ExtentKind>> = (0..layout.n)
                .map(|_| {
                    let mut kind = kinds[rnd(3) as usize];
                    (0..bytes)
                        .map(|_| {
                            if rnd(4) == 0 {
                                kind = kinds[rnd(3) as usize];
                            }
                            kind
                        })
                        .collect()
                })
                .collect();
            let start = rnd(size);
            let range = start..start + 1 + rnd(size - start);
            // A child may know the beginning of its part only, but always something.
            let lists: Vec<Vec<Extent>> = (0..layout.n)
                .map(|child| {
                    let part = layout.range_on(child, range.start, range.end - range.start);
                    let known = if part.len == 0 { 0 } else { 1 + rnd(part.len) };
                    let bytes = &disks[child as usize][part.offset as usize..][..known as usize];
                    bytes
                        .chunk_by(|a, b| a == b)
                        .map(|run| Extent { len: run.len() as u64, kind: run[0] })
                        .collect()
                })
                .collect();
            let lists: Vec<&[Extent]> = lists.iter().map(Vec::as_slice).collect();
            let mut got = Vec::new();
            merge(layout, range.clone(), &lists, |extent| {
                assert_ne!(extent.len, 0);
                got.extend(std::iter::repeat_n(extent.kind, extent.len as usize));
                true
            });
            assert!(!got.is_empty() && got.len() as u64 <= range.end - range.start);
            for (at, kind) in (range.start..).zip(&got) {
                let (child, place) = (
                    at / layout.chunk % layout.n,
                    at / layout.chunk / layout.n * layout.chunk + at % layout.chunk,
                );
                assert_eq!(
                    *kind, disks[child as usize][place as usize],
                    "round {round}, byte {at}"
                );
            }
        }
    }

    #[test]
    fn stretches_that_are_alike_everywhere_take_one_step() {
        let layout = Layout { n: 4, chunk: 64 << 10 };
        let hole = [Extent { len: 1 << 38, kind: ExtentKind::Hole }];
        let mut steps = 0;
        merge(layout, 0..1 << 40, &[&hole[..]; 4], |extent| {
            steps += 1;
            assert_eq!(extent.len, 1 << 40);
            true
        });
        assert_eq!(steps, 1);
    }
}
