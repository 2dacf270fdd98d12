//! Tests of the `deadline` scheduler, on plain items and with a clock of their own.

use std::time::Duration;

use super::*;

/// A request: the numbers of those merged into it, by offset.
#[derive(Debug, PartialEq)]
struct Rq {
    read: bool,
    start: u64,
    end: u64,
    ids: Vec<u32>,
}

/// Longest request that merging may make.
const LIMIT: u64 = 32;

impl Item for Rq {
    fn is_read(&self) -> bool {
        self.read
    }
    fn start(&self) -> u64 {
        self.start
    }
    fn end(&self) -> u64 {
        self.end
    }
    fn merge(&mut self, other: Self) -> Result<(), Self> {
        assert_eq!(self.read, other.read);
        assert!(self.end == other.start || other.end == self.start, "they have to touch");
        if self.end.max(other.end) - self.start.min(other.start) > LIMIT {
            return Err(other);
        }
        (self.start, self.end) = (self.start.min(other.start), self.end.max(other.end));
        self.ids.extend(other.ids);
        Ok(())
    }
}

fn rq(read: bool, id: u32, start: u64, len: u64) -> Rq {
    Rq { read, start, end: start + len, ids: vec![id] }
}

/// Returns the time after this many milliseconds.
fn at(ms: u64) -> Stamp {
    Stamp::from_nanos(1_000_000_000).plus(Duration::from_millis(ms))
}

fn deadline(tuning: Deadline) -> Box<dyn Scheduler<Rq>> {
    IoScheduler::Deadline(tuning).make().unwrap()
}

/// Returns the offsets of all waiting requests, in the order in which they go.
fn drain(sched: &mut dyn Scheduler<Rq>, now: Stamp) -> Vec<u64> {
    std::iter::from_fn(|| sched.next(now)).map(|rq| rq.start).collect()
}

/// Returns the order of six reads and six writes that came together.
fn order_of_six_and_six(tuning: Deadline) -> String {
    let mut sched = deadline(tuning);
    for n in 0..6 {
        sched.insert(rq(true, 0, n * 10, 1), at(0));
        sched.insert(rq(false, 0, 1000 + n * 10, 1), at(0));
    }
    drain(&mut *sched, at(0)).iter().map(|&at| if at < 1000 { 'r' } else { 'w' }).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % n
    }
}

#[test]
fn none_is_no_scheduler_and_a_name_is_the_kernels() {
    assert!(IoScheduler::None.make::<Rq>().is_none());
    let names = [IoScheduler::default(), IoScheduler::Deadline(Deadline::default())];
    assert_eq!(names.map(|one| one.name()), ["none", "deadline"]);
}

#[test]
fn reads_go_by_offset_from_where_the_last_one_was() {
    let mut sched = deadline(Deadline::default());
    for start in [50, 10, 90] {
        sched.insert(rq(true, 0, start, 1), at(0));
    }
    assert_eq!(sched.next(at(0)).unwrap().start, 10);
    sched.insert(rq(true, 0, 5, 1), at(0));
    sched.insert(rq(true, 0, 60, 1), at(0));
    assert_eq!(drain(&mut *sched, at(0)), [50, 60, 90, 5], "one way, then to the oldest");
}

#[test]
fn reads_are_preferred_and_writes_are_passed_over_only_so_often() {
    let tuning = Deadline { fifo_batch: 1, writes_starved: 2, ..Deadline::default() };
    assert_eq!(order_of_six_and_six(tuning), "rrwrrwrrwwww");
}

#[test]
fn a_batch_is_of_one_direction_and_no_longer_than_allowed() {
    let tuning = Deadline { fifo_batch: 3, writes_starved: 1, ..Deadline::default() };
    assert_eq!(order_of_six_and_six(tuning), "rrrwwwrrrwww");
}

#[test]
fn a_request_whose_time_is_up_begins_the_next_batch() {
    let mut sched = deadline(Deadline { fifo_batch: 2, ..Deadline::default() });
    sched.insert(rq(true, 0, 50, 1), at(0));
    assert_eq!(sched.next(at(0)).unwrap().start, 50);
    sched.insert(rq(true, 0, 10, 1), at(0));
    for start in [60, 70, 80, 90] {
        sched.insert(rq(true, 0, start, 1), at(400));
    }
    let mut next = |ms| sched.next(at(ms)).unwrap().start;
    assert_eq!([next(499), next(499)], [60, 70], "the one at 10 lies behind, and has time");
    assert_eq!(next(500), 80, "its time is up in the middle of a batch");
    assert_eq!([next(500), next(500)], [10, 90]);
}

#[test]
fn requests_that_touch_are_merged_behind_in_front_and_into_a_gap() {
    for front in [true, false] {
        let mut sched = deadline(Deadline { front_merges: front, ..Deadline::default() });
        sched.insert(rq(false, 1, 10, 5), at(0));
        sched.insert(rq(false, 2, 15, 5), at(1)); // behind
        sched.insert(rq(false, 3, 5, 5), at(2)); // in front
        sched.insert(rq(true, 4, 20, 5), at(3)); // a read: not of these
        sched.insert(rq(false, 5, 30, 2), at(4));
        sched.insert(rq(false, 6, 20, 10), at(5)); // closes the gap
        let mut all: Vec<_> = std::iter::from_fn(|| sched.next(at(6))).collect();
        assert_eq!(all.remove(0), rq(true, 4, 20, 5));
        let ranges: Vec<_> = all.iter().map(|rq| (rq.start, rq.end)).collect();
        assert_eq!(ranges, if front { vec![(5, 32)] } else { vec![(5, 10), (10, 32)] });
        assert_eq!(all.iter().map(|rq| rq.ids.len()).sum::<usize>(), 5);
    }
}

#[test]
fn a_merge_over_the_limit_is_not_made_and_loses_nothing() {
    let mut sched = deadline(Deadline::default());
    sched.insert(rq(false, 1, 0, 20), at(0));
    sched.insert(rq(false, 2, 40, 20), at(0));
    sched.insert(rq(false, 3, 20, 12), at(0)); // behind the first
    sched.insert(rq(false, 4, 32, 8), at(0)); // touches both: the first is full
    assert_eq!(sched.len(), 2);
    assert_eq!(drain(&mut *sched, at(0)), [0, 32]);
}

#[test]
fn a_merge_that_is_not_made_costs_nobody_its_place_by_age() {
    let mut sched = deadline(Deadline { fifo_batch: 1, ..Deadline::default() });
    sched.insert(rq(true, 1, 100, 30), at(0));
    sched.insert(rq(true, 2, 500, 1), at(1));
    // Merged into one that then touches the oldest, and is too long for it.
    sched.insert(rq(true, 3, 80, 10), at(2));
    sched.insert(rq(true, 4, 90, 10), at(3));
    assert_eq!(sched.len(), 3);
    assert_eq!(drain(&mut *sched, at(600)), [100, 500, 80]);
}

/// Sends random streams, with one that always asks for what lies just ahead. Each waiting request
/// is dispatched within the bound that `deadline.rs` argues, and everything is dispatched once.
#[test]
fn under_any_load_every_request_whose_time_is_up_goes_within_the_bound_and_none_is_lost() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let tuning = Deadline {
            read_expire: Duration::from_millis(1 + random.below(50)),
            write_expire: Duration::from_millis(1 + random.below(500)),
            writes_starved: random.below(4) as u32, // 0 is taken for 1
            fifo_batch: random.below(20) as u32,    // as well
            front_merges: random.below(2) == 0,
        };
        let (batch, starved) =
            (tuning.fifo_batch.max(1) as u64, tuning.writes_starved.max(1) as u64);
        let mut sched = deadline(tuning);
        // The requests by id: direction, time of arrival, and latest dispatch.
        let mut waiting: Vec<(u32, bool, u64, Option<u64>)> = Vec::new();
        let (mut now, mut dispatched, mut ids, mut head) = (0, 0, 0_u32, 0);
        let mut seen = std::collections::HashSet::new();
        for step in 0..3000 {
            now += random.below(3);
            let busy = step < 2000;
            for _ in 0..if busy { random.below(3) } else { 0 } {
                let read = random.below(3) != 0;
                // Most lie ahead of the head; the others lie in a small range, where requests touch
                // and are merged.
                let start = match random.below(8) {
                    0 => random.below(1 << 20) * 4,
                    1 => random.below(64),
                    _ => head + 4,
                };
                sched.insert(rq(read, ids, start, 1), at(now));
                waiting.push((ids, read, now, None));
                ids += 1;
            }
            // A request that is late by now must go after this many dispatches.
            for i in 0..waiting.len() {
                let (_, read, came, limit) = waiting[i];
                let expire = if read { tuning.read_expire } else { tuning.write_expire };
                if limit.is_none() && at(came).plus(expire) <= at(now) {
                    let elders = waiting[..=i].iter().filter(|one| one.1 == read).count() as u64;
                    waiting[i].3 = Some(dispatched + batch * (1 + elders * (starved + 1)));
                }
            }
            let Some(got) = sched.next(at(now)) else {
                assert!(waiting.is_empty(), "seed {seed}: something is left behind");
                continue;
            };
            dispatched += 1;
            head = got.start;
            for id in got.ids {
                let i = waiting.iter().position(|one| one.0 == id).unwrap();
                let (_, _, _, limit) = waiting.remove(i);
                assert!(seen.insert(id), "seed {seed}: {id} twice");
                assert!(limit.is_none_or(|limit| dispatched <= limit), "seed {seed}: {id} starved");
            }
            for (id, _, _, limit) in &waiting {
                assert!(limit.is_none_or(|limit| dispatched <= limit), "seed {seed}: {id} starves");
            }
        }
        while let Some(rq) = sched.next(at(now)) {
            assert!(rq.ids.into_iter().all(|id| seen.insert(id)), "seed {seed}: twice");
        }
        assert_eq!((seen.len(), sched.len()), (ids as usize, 0), "seed {seed}");
    }
}

/// Sends random streams of requests that do touch: each byte's request comes out once, within its
/// merged whole.
#[test]
fn whatever_is_merged_everything_comes_out_once_where_it_belongs() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let mut sched = deadline(Deadline { front_merges: seed % 2 == 0, ..Deadline::default() });
        let mut places = Vec::new();
        let mut out = Vec::new();
        let mut merged = 0;
        let mut take = |rq: Rq, places: &[(u64, u64)]| {
            let bytes: u64 = rq.ids.iter().map(|&id| places[id as usize].1).sum();
            assert_eq!(rq.end - rq.start, bytes, "no gap, nothing twice");
            for &id in &rq.ids {
                let (start, len) = places[id as usize];
                assert!(rq.start <= start && start + len <= rq.end);
            }
            merged += rq.ids.len() - 1;
            out.extend(rq.ids);
        };
        for id in 0..400 {
            let (start, len) = (random.below(100) * 4, 4);
            places.push((start, len));
            // Each place has one direction, so that the two never mix.
            sched
                .insert(rq((start % 8 == 0 && start < 200) || start >= 300, id, start, len), at(0));
            if random.below(3) == 0 {
                take(sched.next(at(0)).unwrap(), &places);
            }
        }
        while let Some(rq) = sched.next(at(0)) {
            take(rq, &places);
        }
        out.sort_unstable();
        assert_eq!(out, (0..400).collect::<Vec<_>>(), "seed {seed}");
        assert!(merged > 20, "seed {seed}: {merged}");
    }
}
