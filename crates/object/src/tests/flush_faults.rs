//! A flush file that is unlinked, renamed, truncated or overwritten while its volume is served.
//! Flushes wait for the store, nothing that was answered is lost, and the file is used again once
//! it is restored.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use corewise_drivers::FileFault;
use object_store::ObjectStore;

use super::disk::Disk;
use super::faulty::{FaultOutcome, adjustable};
use super::local::open_with;
use super::{BLOCKS, in_memory, passes, read, run, tuning, write};
use crate::log::NotOpen;
use crate::volume::Volume;
use crate::volume::{ObjectEvent, Observer};

/// Bytes of a head. Two of them are at the beginning of the file.
const HEAD: usize = 4096;

fn moved() -> FileFault {
    FileFault::Moved { found: "leads to no file".into(), now: None }
}

/// Creates a volume with a flush file, and a channel that gets the reason why the file is out, and
/// an empty text when it is back.
async fn served(inner: &Arc<dyn ObjectStore>, disk: &Arc<Disk>) -> (Arc<Volume>, Receiver<String>) {
    let volume = open_with(inner, disk, 4, tuning()).await.unwrap();
    let (tell, told) = channel();
    volume.observe(Observer::new(move |event| {
        let told = match event {
            ObjectEvent::FlushFileOut { why } => why.clone(),
            ObjectEvent::FlushFileBack => String::new(),
            other => panic!("{other:?}"),
        };
        tell.send(told).unwrap();
    }));
    write(&volume, 0, 1, 2).await.unwrap();
    volume.flush().await.unwrap();
    (volume, told)
}

/// Returns the content that a server finds after a kill, with this disk.
async fn killed(inner: &Arc<dyn ObjectStore>, disk: &Arc<Disk>) -> Result<Vec<u32>, NotOpen> {
    let volume = open_with(inner, disk, 8, tuning()).await?;
    read(&volume, 0, 6).await.map_err(|why| panic!("{why:?}"))
}

/// A fault of a file in use, the text that is reported, and whether it passes by itself.
type Case = (fn(&Disk), &'static str, bool);

const CASES: [Case; 6] = [
    (|disk| disk.state.lock().fault = Some(moved()), "leads to no file", false),
    (|disk| disk.state.lock().fault = Some(FileFault::Unlinked), "unlinked", false),
    (|disk| disk.state.lock().fault = Some(FileFault::NoAccess), "permissions", false),
    (|disk| disk.state.lock().now[..2 * HEAD].fill(0), "overwritten", true),
    (|disk| disk.state.lock().now[HEAD + 20] ^= 1, "overwritten", true),
    (
        |disk| {
            let mut state = disk.state.lock();
            state.now.fill(0);
            state.fault = Some(FileFault::Truncated { from: 9, to: 0 });
        },
        "truncated",
        true,
    ),
];

#[test]
fn flushes_wait_for_the_store_while_the_file_is_not_what_it_was_and_need_no_file_then() {
    for (harm, words, by_itself) in CASES {
        let (inner, disk) = (in_memory(), Arc::new(Disk::default()));
        run(async {
            let (volume, told) = served(&inner, &disk).await;
            harm(&disk);
            write(&volume, 1, 1, 4).await.unwrap();
            volume.flush().await.unwrap();
            write(&volume, 2, 1, 6).await.unwrap();
            volume.flush().await.unwrap();
            passes(Duration::ZERO).await;
            let told: Vec<String> = told.try_iter().filter(|told| !told.is_empty()).collect();
            assert!(told.len() == 1 && told[0].contains(words), "{words}: {told:?}");
        });
        // This goes without the file, unless the file is in use again by now.
        let left = if by_itself { disk.killed() } else { Arc::default() };
        run(async {
            assert_eq!(killed(&inner, &left).await, Ok(vec![2, 4, 6, 0, 0, 0]), "{words}");
        });
    }
}

#[test]
fn the_store_gets_what_only_the_file_had_though_nobody_flushes() {
    for (harm, words, _) in CASES {
        let (inner, disk) = (in_memory(), Arc::new(Disk::default()));
        run(async {
            let (volume, told) = served(&inner, &disk).await;
            harm(&disk);
            passes(Duration::from_millis(1500)).await;
            let told: Vec<String> = told.try_iter().collect();
            assert!(told.first().is_some_and(|why| why.contains(words)), "{words}: {told:?}");
            drop(volume);
        });
        run(async {
            let found = killed(&inner, &Arc::default()).await;
            // If the file is used again, it is needed again.
            match &found {
                Ok(found) => assert_eq!(found[0], 2),
                Err(why) => {
                    assert!(matches!(why, NotOpen::FlushesMissing(_)), "{why:?}");
                    assert_eq!(killed(&inner, &disk.killed()).await.unwrap()[0], 2, "{words}");
                }
            }
        });
    }
}

#[test]
fn a_file_that_is_in_order_again_is_used_again_and_needed_again() {
    for (harm, words, by_itself) in CASES {
        let (inner, disk) = (in_memory(), Arc::new(Disk::default()));
        run(async {
            let (volume, told) = served(&inner, &disk).await;
            harm(&disk);
            write(&volume, 1, 1, 4).await.unwrap();
            volume.flush().await.unwrap();
            passes(Duration::from_secs(5)).await;
            assert_eq!(volume.flush_file_fault().is_none(), by_itself, "{words}");
            disk.state.lock().fault = None;
            passes(Duration::from_secs(2)).await;
            assert_eq!(volume.flush_file_fault(), None, "{words}");
            assert_eq!(
                told.try_iter().map(|told| told.is_empty()).collect::<Vec<_>>(),
                [false, true]
            );
            let before = volume.store.usage().puts;
            for n in 0..8 {
                write(&volume, 2, 1, 6 + 2 * n).await.unwrap();
                volume.flush().await.unwrap();
            }
            assert!(volume.store.usage().puts <= before + 2, "{words}: flushes go to the file");
        });
        run(async {
            let refused = killed(&inner, &Arc::default()).await;
            assert!(matches!(refused, Err(NotOpen::FlushesMissing(_))), "{words}: {refused:?}");
            let found = killed(&inner, &disk.killed()).await;
            assert_eq!(found, Ok(vec![2, 4, 20, 0, 0, 0]), "{words}");
        });
    }
}

#[test]
fn a_file_that_another_program_writes_to_is_left_to_it() {
    let (inner, disk) = (in_memory(), Arc::new(Disk::default()));
    run(async {
        let (volume, told) = served(&inner, &disk).await;
        disk.state.lock().now[..2 * HEAD].fill(b'x');
        write(&volume, 1, 1, 4).await.unwrap();
        volume.flush().await.unwrap();
        passes(Duration::from_secs(30)).await;
        assert!(
            volume.flush_file_fault().is_some_and(|why| why.contains("another program's data"))
        );
        assert!(volume.displaced().is_some_and(|todo| todo.ends_with("another flush_file")));
        assert_eq!(told.try_iter().count(), 1);
        assert!(disk.state.lock().now[..2 * HEAD].iter().all(|byte| *byte == b'x'));
        volume.close().await.unwrap();
    });
    run(async {
        assert_eq!(killed(&inner, &Arc::default()).await.unwrap()[..2], [2, 4]);
    });
}

#[test]
fn while_the_store_is_silent_too_no_flush_is_answered_and_a_later_one_is() {
    let (inner, disk) = (in_memory(), Arc::new(Disk::default()));
    let (failing, fate) = adjustable(&inner);
    run(async {
        let (volume, told) = served(&failing, &disk).await;
        fate.lock().0 = FaultOutcome::Refused;
        disk.state.lock().fault = Some(FileFault::Unlinked);
        write(&volume, 1, 1, 4).await.unwrap();
        volume.flush().await.unwrap_err();
        passes(Duration::from_secs(300)).await;
        assert_eq!(told.try_iter().count(), 1);
        assert!(volume.displaced().is_some_and(|todo| todo.ends_with("makes a new one")));
        fate.lock().0 = FaultOutcome::Done;
        volume.flush().await.unwrap();
    });
    run(async {
        assert_eq!(killed(&inner, &Arc::default()).await.unwrap()[..2], [2, 4]);
    });
}

/// Works on a volume while its file disappears and returns, and is killed at any time.
async fn work(
    volume: &Arc<Volume>,
    disk: &Disk,
    random: &mut fastrand::Rng,
) -> (Vec<Vec<u32>>, usize) {
    let mut states = vec![read(volume, 0, BLOCKS).await.unwrap()];
    let mut flushed = 0;
    for _ in 0..random.usize(5..60) {
        match random.u8(0..10) {
            0 | 1 => {
                if volume.flush().await.is_ok() {
                    flushed = states.len() - 1;
                }
            }
            2 => passes(Duration::from_millis(random.u64(..1500))).await,
            3 => {
                let (harm, ..) = CASES[random.usize(..CASES.len())];
                harm(disk);
            }
            4 | 5 => disk.state.lock().fault = None,
            _ => {
                let (start, what) = (random.u64(..BLOCKS - 4), random.u32(1..));
                let mut state = states.last().unwrap().clone();
                state[start as usize..start as usize + 3].fill(what);
                write(volume, start, 3, what).await.unwrap();
                states.push(state);
            }
        }
    }
    (states, flushed)
}

#[test]
fn nothing_flushed_is_lost_without_a_word_however_the_file_goes_and_comes() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..if long { 5000 } else { 150 } {
        let mut random = fastrand::Rng::with_seed(seed);
        let (inner, disk) = (in_memory(), Arc::new(Disk::default()));
        let mut states = Vec::new();
        let mut flushed = 0;
        run(async {
            let volume = open_with(&inner, &disk, 4, tuning()).await.unwrap();
            (states, flushed) = work(&volume, &disk, &mut random).await;
        });
        let left = match disk.state.lock().fault {
            None | Some(FileFault::NoAccess) => Some(disk.clone()),
            _ => None,
        };
        let left = left.map_or_else(Arc::default, |disk| disk.after(&mut random));
        let found = run(async {
            let volume = open_with(&inner, &left, 8, tuning()).await?;
            Ok::<_, NotOpen>(read(&volume, 0, BLOCKS).await.unwrap())
        });
        match found {
            Ok(found) => {
                opened += 1;
                let kept = states.iter().rposition(|state| *state == found);
                assert!(
                    kept.is_some_and(|kept| kept >= flushed),
                    "seed {seed}: kept {kept:?}, flushed {flushed} of {}",
                    states.len()
                );
            }
            Err(NotOpen::FlushesMissing(_) | NotOpen::Local(_)) => refused += 1,
            Err(other) => panic!("seed {seed}: {other:?}"),
        }
    }
    assert!(opened > 3 * refused && refused > 0, "{opened} opened, {refused} refused");
}
