//! A machine that is suspended while another one opens its volume. Timers stand still meanwhile,
//! and the clock of leases continues.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::time::BootStamp;
use object_store::ObjectStore;
use tokio::time::Instant;

use super::{in_memory, open, read, request, store_of, tuning, write};
use crate::format::Chunk;
use crate::local::Medium;
use crate::volume::opening;
use crate::volume::{Fault, Volume};

// Each test is a thread, and has its own.
std::thread_local! {
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
    static ASLEEP: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Returns the clock of leases: that of the timers, plus the time that the machine has slept.
pub(super) fn clock() -> BootStamp {
    let now = Instant::now();
    let began = BEGAN.get().unwrap_or(now);
    BEGAN.set(Some(began));
    BootStamp::from_nanos(1).plus(now - began + ASLEEP.get())
}

/// Suspends the machine for `time`, for all volumes of the test, of which one has nothing to do
/// meanwhile.
fn suspend(time: Duration) {
    ASLEEP.set(ASLEEP.get() + time);
}

const HOUR: Duration = Duration::from_secs(3600);

/// Suspends a volume whose lease has just begun and whose reads come from memory. Another one
/// writes meanwhile; by its own timers no time passes.
async fn slept(volume: &Arc<Volume>, inner: &Arc<dyn ObjectStore>) {
    write(volume, 0, 8, 7).await.unwrap();
    volume.flush().await.unwrap();
    assert_eq!(read(volume, 0, 8).await.unwrap(), [7; 8]);
    let began = Instant::now();
    let other = super::open_giving_up(inner, 4).await;
    assert!(!other.change_at_once(0, 1, || Chunk::Zero), "it holds its changes");
    suspend(HOUR);
    write(&other, 0, 8, 8).await.unwrap();
    other.flush().await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO, "it was no sleep");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_suspended_answers_nothing_from_before_though_its_timers_stood_still() {
    let inner = in_memory();
    // This one has a cache.
    let volume = open(&inner, 2).await.unwrap();
    slept(&volume, &inner).await;
    assert!(volume.read_at_once(0, 8).is_none());
    let extents = volume.extents(0, 8).await;
    assert!(matches!(extents, Err(Fault::Fenced(_))), "{extents:?}");
    let found = read(&volume, 0, 8).await;
    assert!(matches!(found, Err(Fault::Fenced(_))), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_flush_in_a_file_is_not_answered_by_a_server_that_was_suspended() {
    let inner = in_memory();
    let file: Arc<dyn Medium> = Arc::new(super::disk::Disk::default());
    let volume = opening::open(file, store_of(&inner), request(2), tuning()).await.unwrap();
    slept(&volume, &inner).await;
    // The volume's own check may find the other server before the write does.
    let flushed = match write(&volume, 0, 1, 9).await {
        Ok(()) => volume.flush().await,
        refused => refused,
    };
    assert!(matches!(flushed, Err(Fault::Fenced(_))), "{flushed:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_in_flight_at_a_suspend_has_its_time_to_run() {
    let inner = in_memory();
    let takes = Duration::from_secs(10);
    let slow = super::faulty::but_for(&inner, "get a/volume/log/0000000000000000000", move || {
        (super::faulty::FaultOutcome::Done, takes)
    });
    let volume = open(&slow, 3).await.unwrap();
    // A check for the next record takes ten seconds. During an hour of it, the machine sleeps.
    let looks = tokio::spawn({
        let volume = Arc::clone(&volume);
        async move { read(&volume, 0, 4).await }
    });
    super::passes(takes / 2).await;
    suspend(HOUR);
    assert_eq!(looks.await.unwrap().unwrap(), [0; 4]);
}
