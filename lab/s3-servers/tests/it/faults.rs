//! A volume behind connections that are cut, and a server that refuses, lies and is slow.

use std::sync::Arc;
use std::time::Duration;

use crate::disk::{Place, agrees};
use crate::inside::{Creation, Inside};
use crate::proxy::{Fate, Proxy};
use corewise_blockmq::IoErrorKind;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::{Mutex, thread};

#[test]
fn a_volume_is_what_was_written() {
    let server = Inside::new(Creation::Atomic);
    let place = Place::new(server.address(), "a/volume");
    agrees(&place, &place, 1, 4, 200);
}

#[test]
fn a_connection_may_be_cut_in_each_request() {
    let fates = [Fate::CutBefore, Fate::CutAmid, Fate::CutAfter, Fate::CutAnswer];
    // The four run at once, since most of their time is a wait for leases.
    let cut = fates.map(|fate| thread::spawn(move || cut_each(fate)));
    cut.into_iter().for_each(|cut| cut.join().unwrap());
}

/// Cuts each request in one of a few volumes, several in each. A volume for each cut would make
/// dozens of volumes.
fn cut_each(fate: Fate) {
    /// Requests from one cut to the next, by which the volume has recovered from the first.
    const STRIDE: usize = 13;
    let server = Inside::new(Creation::Atomic);
    let mut cut = 0;
    for first in 0..STRIDE {
        let place = Place::new(server.address(), &format!("{fate:?}/{first}"));
        let asked = Arc::new(AtomicUsize::new(0));
        let theirs = Arc::clone(&asked);
        let judge = move |_: &_| {
            let n = theirs.fetch_add(1, Ordering::Relaxed);
            (if n % STRIDE == first { fate } else { Fate::Done }, Duration::ZERO)
        };
        let proxy = Proxy::new(place.address(), Box::new(judge));
        agrees(&place, &place.by(proxy.address()), 1, 2, 12);
        cut += (asked.load(Ordering::Relaxed) + STRIDE - 1 - first) / STRIDE;
    }
    assert!(cut > 20, "{cut} requests were cut");
}

/// Does random work while each request has a random fate of these, after a pause of at most `most`.
fn agrees_under(fates: &'static [Fate], most: Duration) {
    // All run at once, since a request that failed is made again after a pause.
    let all = [0, 1, 2, 3].map(|seed| thread::spawn(move || agrees_once(fates, most, seed)));
    all.into_iter().for_each(|one| one.join().unwrap());
}

fn agrees_once(fates: &'static [Fate], most: Duration, seed: u64) {
    let server = Inside::new(Creation::Atomic);
    let place = Place::new(server.address(), &format!("by-chance/{seed}"));
    let random = Mutex::new(fastrand::Rng::with_seed(seed));
    let judge = move |_: &_| {
        let mut random = random.lock();
        (fates[random.usize(0..fates.len())], most.mul_f64(random.f64()))
    };
    let proxy = Proxy::new(place.address(), Box::new(judge));
    agrees(&place, &place.by(proxy.address()), seed, 3, 40);
}

#[test]
fn a_server_that_refuses_half_of_the_time_is_asked_again() {
    let half = &[Fate::Done, Fate::Done, Fate::Refused(503), Fate::Refused(500)];
    agrees_under(half, Duration::ZERO);
}

#[test]
fn a_server_that_calls_successes_failures_and_the_other_way_round_is_not_believed() {
    let fates = &[Fate::Done, Fate::Done, Fate::Unsaid(500), Fate::Forgotten];
    agrees_under(fates, Duration::from_millis(2));
}

#[test]
fn a_server_that_refuses_everything_gets_the_requests_that_are_counted_and_no_more() {
    let server = Inside::new(Creation::Atomic);
    let place = Place::new(server.address(), "refused");
    let (asked, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (theirs, fate) = (Arc::clone(&asked), Arc::clone(&refused));
    let judge = move |_: &_| {
        theirs.fetch_add(1, Ordering::Relaxed);
        let fate = [Fate::Done, Fate::Refused(503)][fate.load(Ordering::Relaxed)];
        (fate, Duration::ZERO)
    };
    let proxy = Proxy::new(place.address(), Box::new(judge));
    let mut way = place.by(proxy.address());
    way.patience = Duration::from_secs(2);
    let disk = way.open(8).unwrap();
    disk.write(0, 8, 1).unwrap();
    disk.flush().unwrap();
    refused.store(1, Ordering::Relaxed);
    let counted = || disk.requests() as usize;
    let (before, ours) = (asked.load(Ordering::Relaxed), counted());
    let why = disk.read(0, 8).unwrap_err();
    assert_eq!(why.kind(), IoErrorKind::TimedOut, "{why}");
    let (after, our) = (asked.load(Ordering::Relaxed) - before, counted() - ours);
    // The pauses begin with 20 ms, and each is twice as long as the one before. Seven of them are
    // longer than the volume's patience, and a busy machine has time for fewer. The volume may
    // check as often whether another server has it, and ask for the length of the object after each
    // failure.
    assert!(after <= our && (3..=30).contains(&after), "{after} requests, {our} were counted");
}

#[test]
fn a_slow_server_is_waited_for() {
    agrees_under(&[Fate::Done], Duration::from_millis(100));
}

#[test]
fn connections_may_be_cut_at_any_time() {
    const DONE: [Fate; 4] = [Fate::Done; 4];
    let cut = [Fate::CutBefore, Fate::CutAmid, Fate::CutAfter, Fate::CutAnswer];
    agrees_under([DONE, cut].concat().leak(), Duration::ZERO);
}
