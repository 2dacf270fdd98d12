//! Reads that ask the store, and their number of requests.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use object_store::ObjectStore;
use tokio::time::Instant;

use super::faulty::{FaultOutcome, judged};
use super::{in_memory, open_as, passes, read, request, store_of, tuning, write};
use crate::format::{BLOCK, Chunk};
use crate::log::OpenRequest;
use crate::volume::{Tuning, Volume};

/// Creates a volume of `blocks` blocks, each of which holds its number, over a store with a
/// latency.
async fn written(blocks: u64, takes: Duration, cache: u64) -> Arc<Volume> {
    let inner = in_memory();
    let open = async |store: Arc<dyn ObjectStore>, nonce, cache| {
        let request = OpenRequest { size: Some(blocks * BLOCK), ..request(nonce) };
        let tuning = Tuning { cache, batch: 2048, dirty: 16384, few: 1000, ..tuning() };
        Volume::open(store_of(&store), request, tuning).await.unwrap()
    };
    let volume = open(Arc::clone(&inner), 4, 0).await;
    for block in 0..blocks {
        write(&volume, block, 1, block as u32 + 1).await.unwrap();
    }
    volume.close().await.unwrap();
    open(judged(&inner, move |_: &str| (FaultOutcome::Done, takes)), 5, cache).await
}

#[tokio::test(start_paused = true)]
async fn readers_of_one_frame_make_one_request_and_later_ones_none() {
    let volume = written(64, Duration::from_millis(20), 1 << 20).await;
    read(&volume, 60, 1).await.unwrap();
    let before = volume.store.usage();
    let all = join_all((0..8).map(|block| read(&volume, block, 1))).await;
    for (block, found) in all.into_iter().enumerate() {
        assert_eq!(found.unwrap(), [block as u32 + 1]);
    }
    let after = volume.store.usage();
    assert_eq!(after.gets - before.gets, 1);
    assert_eq!(read(&volume, 7, 2).await.unwrap(), [8, 9]);
    assert_eq!(volume.store.usage(), after);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_is_written_again_is_not_read_from_the_cache() {
    let inner = in_memory();
    let volume = open_as(&inner, 1, Tuning { cache: 1 << 20, ..tuning() }).await.unwrap();
    for what in 1..30 {
        write(&volume, 3, 2, what).await.unwrap();
        assert_eq!(read(&volume, 3, 2).await.unwrap(), [what; 2]);
        volume.flush().await.unwrap();
        assert_eq!(read(&volume, 3, 2).await.unwrap(), [what; 2]);
        assert_eq!(read(&volume, 3, 2).await.unwrap(), [what; 2]);
        passes(Duration::from_secs(1)).await;
    }
    // A cached block is trusted no longer than one that is fetched.
    let second = open_as(&inner, 2, tuning()).await.unwrap();
    write(&second, 3, 1, 99).await.unwrap();
    assert!(read(&volume, 3, 2).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn what_is_in_memory_is_read_and_written_at_once_and_nothing_that_would_have_to_wait() {
    let volume = written(64, Duration::from_millis(20), 1 << 20).await;
    let at_once = |block| volume.read_at_once(block, 1).is_some();
    let change = |block| volume.change_at_once(block, 1, || Chunk::Zero);
    assert!(!at_once(60), "it isn't known whether there is another writer");
    read(&volume, 60, 1).await.unwrap();
    let before = volume.cache.usage();
    assert!(at_once(61) && !at_once(3), "one frame is kept");
    let after = volume.cache.usage();
    assert_eq!((after.hits - before.hits, after.misses - before.misses), (1, 0));

    passes(Duration::from_millis(1100)).await;
    assert!(!at_once(61), "somebody has to look soon");
    read(&volume, 61, 1).await.unwrap();
    assert!(at_once(61), "somebody looks");
    passes(Duration::from_millis(500)).await;
    assert!(at_once(61), "somebody has looked");
    passes(Duration::from_secs(3)).await;
    assert!(!at_once(61), "it isn't known any more");

    read(&volume, 61, 1).await.unwrap();
    assert!(change(3) && at_once(3));
    assert_eq!(read(&volume, 3, 1).await.unwrap(), [0]);
    {
        let _looks = volume.state.read();
        assert!(at_once(61) && !change(3), "a reader keeps others from changing alone");
    }
    {
        let _changes = volume.state.write();
        assert!(!at_once(61) && !change(3));
    }

    volume.flush().await.unwrap();
    assert!((0..20_000).take_while(|_| change(7)).count() <= 16384, "there is room for so many");
    volume.close().await.unwrap();
    assert!(!at_once(3) && !change(3));
}

#[tokio::test(start_paused = true)]
async fn a_reader_in_a_row_waits_for_few_requests_and_random_ones_make_no_more() {
    let takes = Duration::from_millis(20);
    let mut found = Vec::new();
    for cache in [0, 16 << 20] {
        let volume = written(2048, takes, cache).await;
        read(&volume, 2000, 1).await.unwrap();
        let (before, began) = (volume.store.usage(), Instant::now());
        for block in (0..1024).step_by(8) {
            let said = read(&volume, block, 8).await.unwrap();
            assert_eq!(said[7], block as u32 + 8);
        }
        let after = volume.store.usage();
        found.push((after.gets - before.gets, began.elapsed()));

        let mut random = fastrand::Rng::with_seed(1);
        let volume = written(2048, takes, cache).await;
        let before = volume.store.usage().gets;
        let mut frames: Vec<u64> = (0..64).collect();
        random.shuffle(&mut frames);
        for frame in &frames[..32] {
            read(&volume, frame * 32 + random.u64(0..32), 1).await.unwrap();
        }
        let looks = 1;
        assert!((32..=32 + looks).contains(&(volume.store.usage().gets - before)));
    }
    let [(plain, slow), (ahead, quick)] = found[..] else { panic!() };
    assert!(ahead * 4 < plain && quick * 4 < slow, "{ahead} of {plain}, {quick:?} of {slow:?}");
}

#[tokio::test(start_paused = true)]
async fn reads_in_a_row_that_are_under_way_at_once_share_few_requests() {
    let volume = written(2048, Duration::from_millis(20), 64 << 20).await;
    let before = volume.store.usage();
    let reads = (0..2048).step_by(64).map(|block| {
        let volume = Arc::clone(&volume);
        tokio::spawn(async move {
            assert_eq!(read(&volume, block, 64).await.unwrap()[63], block as u32 + 64)
        })
    });
    for read in reads.collect::<Vec<_>>() {
        read.await.unwrap();
    }
    let gets = volume.store.usage().gets - before.gets;
    assert!(gets <= 12, "{gets} requests for 32 reads");
}
