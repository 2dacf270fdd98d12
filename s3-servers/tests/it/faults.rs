//! A volume behind connections that are cut, and a server that refuses, lies and is slow.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use s3_servers::disk::{Place, agrees};
use s3_servers::inside::{Creation, Inside};
use s3_servers::proxy::{Fate, Proxy};

#[test]
fn a_volume_is_what_was_written() {
    let server = Inside::new(Creation::Atomic);
    let place = Place::new(server.address(), "a/volume");
    agrees(&place, &place, 1, 4, 200);
}

#[test]
fn a_connection_may_be_cut_in_each_request() {
    let server = Inside::new(Creation::Atomic);
    let fates = [Fate::CutBefore, Fate::CutAmid, Fate::CutAfter, Fate::CutAnswer];
    for fate in fates {
        let mut at = 0;
        loop {
            let place = Place::new(server.address(), &format!("{fate:?}/{at}"));
            let asked = Arc::new(AtomicUsize::new(0));
            let theirs = Arc::clone(&asked);
            let judge = move |_: &_| {
                let n = theirs.fetch_add(1, Ordering::Relaxed);
                (if n == at { fate } else { Fate::Done }, Duration::ZERO)
            };
            let proxy = Proxy::new(place.address(), Box::new(judge));
            agrees(&place, &place.by(proxy.address()), 1, 2, 12);
            if asked.load(Ordering::Relaxed) <= at {
                break;
            }
            at += 1;
        }
        assert!(at > 20, "{at} requests were cut");
    }
}

/// Random work while each request has a fate of these, by chance, after a pause of at most so long.
fn agrees_under(fates: &'static [Fate], most: Duration) {
    let server = Inside::new(Creation::Atomic);
    for seed in 0..4 {
        let place = Place::new(server.address(), &format!("by-chance/{seed}"));
        let random = Mutex::new(fastrand::Rng::with_seed(seed));
        let judge = move |_: &_| {
            let mut random = random.lock();
            (fates[random.usize(0..fates.len())], most.mul_f64(random.f64()))
        };
        let proxy = Proxy::new(place.address(), Box::new(judge));
        agrees(&place, &place.by(proxy.address()), seed, 3, 40);
    }
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
fn a_slow_server_is_waited_for() {
    agrees_under(&[Fate::Done], Duration::from_millis(100));
}

#[test]
fn connections_may_be_cut_at_any_time() {
    const DONE: [Fate; 4] = [Fate::Done; 4];
    let cut = [Fate::CutBefore, Fate::CutAmid, Fate::CutAfter, Fate::CutAnswer];
    agrees_under([DONE, cut].concat().leak(), Duration::ZERO);
}
