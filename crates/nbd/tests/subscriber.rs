//! Tests of a `tracing` subscriber, which is the user's code. Its panics keep no client from a
//! reply, and it gets no event for ordinary failures.
#![cfg(not(loom))]

mod common;

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use corewise_blockmq::{Geometry, IoErrorKind};
use corewise_nbd::wire::{Command, CommandFlags, ReplyError};
use corewise_sync::{Mutex, MutexGuard};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// A subscriber that panics in each event.
struct Angry;

/// A: a count of warnings. Relaxed: read after the end of the connections that are warned about.
static WARNINGS: AtomicUsize = AtomicUsize::new(0);
/// L: is the lock; guards the count: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    static SET: Once = Once::new();
    let alone = ALONE.lock();
    // The subscriber is set for all threads, since a connection has its own.
    SET.call_once(|| tracing::subscriber::set_global_default(Angry).expect("there is none yet"));
    alone
}

impl Subscriber for Angry {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() == Level::WARN {
            WARNINGS.fetch_add(1, Ordering::Relaxed);
        }
        panic!("on purpose, in a subscriber");
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_subscriber_that_panics_keeps_no_client_from_the_error_that_it_gets() {
    let _alone = alone();
    let device = TestDevice::new(1 << 20);
    let server = server(device.clone());
    let mut client = client(&server);
    client.request(Command::READ, 1, 1 << 20, 512);
    assert_ne!(client.reply(0).error, 0, "refused by the server");
    device.fail(IoErrorKind::Io(5));
    client.request(Command::READ, 2, 0, 512);
    assert_eq!(client.reply(0), Reply { cookie: 2, error: 5, data: vec![] });
}

#[test]
fn a_client_that_leaves_in_a_long_request_is_no_failure_of_the_device() {
    let _alone = alone();
    let before = WARNINGS.load(Ordering::Relaxed);
    let geometry = Geometry { can_fast_zero: true, ..Geometry::new(64 << 20) };
    let device = TestDevice::with(geometry);
    device.hold();
    let server = server(device.clone());
    let mut wiper = client(&server);
    wiper.request(Command::WRITE_ZEROES, 1, 0, 64 << 20);
    wiper.request(Command::WRITE_ZEROES, 2, 0, 64 << 20);
    device.wait_for_seen(8);
    drop(wiper);
    device.release();
    wait_for_connections(&server, 0);
    let seen = device.seen().len();
    assert!(seen < 16, "all {seen} pieces were wiped: there was nothing to give up");
    assert_eq!(WARNINGS.load(Ordering::Relaxed), before);
}

#[test]
fn zeroes_that_would_not_be_fast_are_no_failure_of_the_device() {
    let _alone = alone();
    let geometry = Geometry { can_fast_zero: true, ..Geometry::new(1 << 20) };
    let device = TestDevice::with(geometry);
    let server = server(device.clone());
    let mut client = client(&server);
    device.fail(IoErrorKind::NotSupported);
    for (flags, warnings) in [(CommandFlags::FAST_ZERO, 0), (CommandFlags::empty(), 1)] {
        let before = WARNINGS.load(Ordering::Relaxed);
        client.request_with(flags, Command::WRITE_ZEROES, 1, 0, 4096);
        let error = client.reply(0).error;
        assert_eq!(ReplyError::from_code(error), Some(ReplyError::NotSup));
        assert_eq!(WARNINGS.load(Ordering::Relaxed) - before, warnings);
    }
}
