//! Several servers that want the same volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::Mutex;

use super::faulty::{FAILS, by_chance, judged};
use super::{
    BLOCKS, in_memory, open, passes, read, request, run, sealed_by, store_of, tuning, write,
};
use crate::log::{NotOpen, OpenRequest};
use crate::volume::{Fault, Volume};

fn fenced<T>(result: Result<T, Fault>) -> bool {
    matches!(result, Err(Fault::Fenced(_)))
}

#[tokio::test(start_paused = true)]
async fn the_second_one_that_opens_a_volume_fences_the_first() {
    let inner = in_memory();
    let first = open(&inner, 1).await.unwrap();
    write(&first, 0, 1, 7).await.unwrap();
    first.flush().await.unwrap();
    write(&first, 1, 1, 8).await.unwrap();

    let second = open(&inner, 2).await.unwrap();
    // Until the second one changes something, there is no old data.
    assert_eq!(read(&first, 0, 2).await.unwrap(), [7, 8]);
    assert_eq!(read(&second, 0, 2).await.unwrap(), [7, 0]);
    write(&second, 0, 1, 9).await.unwrap();
    assert!(fenced(read(&first, 0, 1).await));
    assert!(fenced(first.flush().await));
    assert!(fenced(write(&first, 0, 1, 1).await));
    assert!(fenced(first.close().await));
    second.flush().await.unwrap();
    assert_eq!(read(&second, 0, 2).await.unwrap(), [9, 0]);
    second.close().await.unwrap();
    let third = open(&inner, 3).await.unwrap();
    assert_eq!(read(&third, 0, 2).await.unwrap(), [9, 0], "the first one's flush isn't there");
}

#[tokio::test(start_paused = true)]
async fn after_a_close_the_next_one_does_not_wait() {
    let inner = in_memory();
    let first = open(&inner, 1).await.unwrap();
    first.close().await.unwrap();
    let began = tokio::time::Instant::now();
    let second = open(&inner, 2).await.unwrap();
    write(&second, 0, 1, 7).await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(500));
    let third = open(&inner, 3).await.unwrap();
    write(&third, 0, 1, 8).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(2), "the second one was not closed");
}

#[tokio::test(start_paused = true)]
async fn a_volume_becomes_longer_and_never_shorter() {
    let inner = in_memory();
    drop(open(&inner, 1).await.unwrap());
    let size = BLOCKS * crate::format::BLOCK;
    let open = async |size| {
        let request = OpenRequest { size, ..request(9) };
        Volume::open(store_of(&inner), request, tuning()).await.map(|v| v.opening.size)
    };
    assert_eq!(open(Some(size * 2)).await, Ok(size * 2));
    assert_eq!(open(Some(size)).await, Err(NotOpen::Size { has: size * 2 }));
    assert_eq!(open(None).await, Ok(size * 2));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_only_gathers_does_not_shorten_the_wait_of_the_next_one() {
    let inner = in_memory();
    let first = open(&inner, 1).await.unwrap();
    for block in 0..BLOCKS {
        write(&first, block, 1, 7).await.unwrap();
        first.flush().await.unwrap();
    }
    // These have a shorter lease than the first one.
    let next = async |nonce| {
        let request = OpenRequest { lease: Duration::from_millis(10), ..request(nonce) };
        Volume::open(store_of(&inner), request, tuning()).await.unwrap()
    };
    let began = tokio::time::Instant::now();
    let _second = next(2).await;
    passes(Duration::from_millis(100)).await;
    let third = next(6).await;
    write(&third, 0, 1, 9).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(2), "the first one may be believed until then");
    assert!(fenced(read(&first, 0, 1).await));
}

/// Number of blocks that are fought for.
const FOUGHT: usize = 12;

/// The last number that was given out, and the highest flushed number of each block.
#[derive(Default)]
struct FlushHistory {
    last: u32,
    flushed: [u32; FOUGHT],
    /// Flushed content before each snapshot that was taken; those that were to be deleted.
    snapshots: BTreeMap<u64, [u32; FOUGHT]>,
    deleted: BTreeSet<u64>,
}

/// Performs one action of a server. Each write has a unique number. A read that began after a flush
/// was answered must not return a lower one.
async fn act(
    volume: &Arc<Volume>,
    told: &Mutex<FlushHistory>,
    random: &mut fastrand::Rng,
) -> Result<(), Fault> {
    let block = random.usize(0..FOUGHT);
    if random.u8(0..8) == 0 {
        let before = told.lock().flushed;
        let taken = volume.snapshot(None).await?;
        told.lock().snapshots.insert(taken.number, before);
        return Ok(());
    }
    if random.u8(0..8) == 0 {
        let Some(&number) = told.lock().snapshots.keys().next() else { return Ok(()) };
        told.lock().deleted.insert(number);
        return match volume.delete_snapshot(number.to_string()).await {
            Err(Fault::Refused(_)) => Ok(()),
            other => other.map(drop),
        };
    }
    if random.u8(0..3) == 0 {
        let before = told.lock().flushed;
        let found = read(volume, 0, FOUGHT as u64).await?;
        assert!(found.iter().zip(before).all(|(found, before)| *found >= before), "old data");
        return Ok(());
    }
    let number = {
        let mut told = told.lock();
        told.last += 1;
        told.last
    };
    write(volume, block as u64, 1, number).await?;
    volume.flush().await?;
    let mut told = told.lock();
    told.flushed[block] = told.flushed[block].max(number);
    Ok(())
}

/// Runs servers that open, work and are fenced, over a store that is slow and fails. Returns the
/// number of segments that they moved.
fn fight(seed: u64) -> u64 {
    run(async {
        let inner = in_memory();
        let told = Arc::new(Mutex::new(FlushHistory::default()));
        let servers = (0..3u64).map(|me| {
            let mut random = fastrand::Rng::with_seed(seed * 10 + me);
            let store = judged(&inner, by_chance(random.fork(), FAILS, 80));
            let told = Arc::clone(&told);
            tokio::spawn(async move {
                let mut moved = 0;
                for life in 0..4 {
                    passes(Duration::from_millis(random.u64(0..9000))).await;
                    let nonce = u128::from(me) << 64 | life | sealed_by(seed);
                    let Ok(volume) = open(&store, nonce).await else { continue };
                    for _ in 0..30 {
                        passes(Duration::from_millis(random.u64(0..400))).await;
                        match act(&volume, &told, &mut random).await {
                            Ok(()) | Err(Fault::Store(_)) => {}
                            Err(Fault::Fenced(_)) => break,
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                    moved += volume.moves.usage().puts;
                }
                moved
            })
        });
        let servers: Vec<_> = servers.collect();
        let mut moved = 0;
        for server in servers {
            moved += server.await.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
        let volume = open(&inner, 1 << 100 | sealed_by(seed)).await.unwrap();
        let found = read(&volume, 0, FOUGHT as u64).await.unwrap();
        let told = std::mem::take(&mut *told.lock());
        let there: Vec<u64> = volume.state.read().map.snapshots.keys().copied().collect();
        let mut must = told.snapshots.keys().filter(|one| !told.deleted.contains(one));
        let lost = must.find(|one| !there.contains(one));
        assert!(lost.is_none(), "seed {seed}: snapshot {lost:?}");
        for number in there {
            let found = super::snapshots::held(&volume, &inner, number).await;
            // A snapshot whose taker got no answer has to be whole.
            let before = told.snapshots.get(&number).copied().unwrap_or_default();
            let kept = found.iter().zip(before).all(|(found, before)| *found >= before);
            assert!(kept, "seed {seed}: snapshot {number} lacks what was flushed before");
        }
        let kept = found.iter().zip(told.flushed).all(|(found, flushed)| *found >= flushed);
        assert!(kept, "seed {seed}: a flush is lost");
        moved
    })
}

#[test]
fn of_servers_that_fight_at_most_one_is_believed() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    let moved: u64 = (0..if long { 4000 } else { 40 }).map(fight).sum();
    assert!(moved > 40, "only {moved} moves");
}
