//! A volume in another one's folder: it isn't made, and does no harm where it exists.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path;

use super::{BLOCKS, in_memory, passes, read, request, tuning, write};
use crate::driver::ObjectDriver;
use crate::error::OpenErrorKind;
use crate::format::{BLOCK, names};
use crate::log::NotOpen;
use crate::options::ObjectOptions;
use crate::store::{Overlap, Store};
use crate::volume::{Tuning, Volume};

fn store(inner: &Arc<dyn ObjectStore>, place: &str) -> Store {
    Store::new(Arc::clone(inner), Path::from(place))
}

async fn open_at(
    inner: &Arc<dyn ObjectStore>,
    place: &str,
    nonce: u128,
) -> Result<Arc<Volume>, NotOpen> {
    // All in segments, so that each folder is in use.
    let tuning = Tuning { inline: 0, ..tuning() };
    Volume::open(Arc::new(store(inner, place)), request(nonce), tuning).await
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_not_made_inside_another_one_nor_around_it() {
    for (first, second, overlap) in [
        ("a", "a/log", Overlap::Around("a".into())),
        ("a", "a/b/c", Overlap::Around("a".into())),
        ("", "a/b", Overlap::Around(String::new())),
        ("a/seg", "a", Overlap::Inside("seg".into())),
        ("a/b/log", "a", Overlap::Inside("b/log".into())),
        ("a/b", "", Overlap::Inside("a/b".into())),
    ] {
        let inner = in_memory();
        // Another server serves it.
        let there = open_at(&inner, first, 1).await.unwrap();
        let made = open_at(&inner, second, 2).await.map(drop);
        assert_eq!(made, Err(NotOpen::Overlap(overlap)), "{first} and {second}");
        let beside = open_at(&inner, "a2/log", 3).await.map(drop);
        assert!(beside.is_ok() || first.is_empty(), "{beside:?}");
        write(&there, 0, 4, 7).await.unwrap();
        there.close().await.unwrap();
        assert!(open_at(&inner, first, 4).await.is_ok(), "one that is there opens");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_lost_its_records_is_not_taken_for_none() {
    let inner = in_memory();
    let volume = open_at(&inner, "a", 1).await.unwrap();
    super::write_all(&volume, 0, BLOCKS, 7).await;
    volume.flush().await.unwrap();
    volume.snapshot(None).await.unwrap();
    volume.close().await.unwrap();
    let at = store(&inner, "a");
    at.put(names::RESERVED, &[], false).await.unwrap();
    assert_eq!(at.overlap().await, Ok(None), "its first record is there");
    for record in at.list("log").await.unwrap() {
        at.delete(&format!("log/{record}")).await.unwrap();
    }
    let mut left = vec![names::RESERVED.to_owned()];
    for folder in ["map", "seg", "snap"] {
        let names = at.list(folder).await.unwrap();
        assert!(!names.is_empty(), "{folder}");
        left.extend(names.iter().map(|name| format!("{folder}/{name}")));
    }
    // Each of them alone is enough to recognize it.
    while let Some(last) = left.pop() {
        for name in &left {
            at.delete(name).await.unwrap();
        }
        let made = open_at(&inner, "a", 2).await.map(drop);
        assert_eq!(made, Err(NotOpen::Overlap(Overlap::Remains(last.clone()))));
        at.delete(&last).await.unwrap();
        for name in &left {
            at.put(name, &[], false).await.unwrap();
        }
    }
    // Another program's object, and what a start left behind that ended before it made the volume.
    for name in ["seg/notes", "try/1", "x/00000000000000000001"] {
        at.put(name, &[], false).await.unwrap();
    }
    assert!(open_at(&inner, "a", 3).await.is_ok());
}

#[test]
fn a_folder_without_its_log_is_left_as_it_is_and_so_is_the_flush_file() {
    let folder = tempfile::tempdir().unwrap();
    let (at, file) = (folder.path().join("v"), folder.path().join("flushes"));
    let options = ObjectOptions::new(&format!("file://{}", at.display())).size(BLOCKS * BLOCK);
    let options = options.flush_file(&file);
    ObjectDriver::open(options.clone()).unwrap().close().unwrap();
    std::fs::create_dir_all(at.join("seg")).unwrap();
    std::fs::write(at.join("seg").join(format!("{:020}-{:020}", 2, 1)), "").unwrap();
    std::fs::remove_dir_all(at.join("log")).unwrap();
    let heads = std::fs::read(&file).unwrap();
    let error = ObjectDriver::open(options).unwrap_err();
    assert_eq!(error.kind(), OpenErrorKind::Damaged);
    assert!(error.to_string().contains("Restore the log"), "{error}");
    assert!(!at.join("log").exists());
    assert!(std::fs::read(&file).unwrap() == heads);
}

#[tokio::test(start_paused = true)]
async fn volumes_that_lie_in_one_another_leave_each_other_alone() {
    for folder in ["log", "map", "seg", "snap", "clones", "gone", "try", "x"] {
        let inner = in_memory();
        // Two servers that make them at the same moment: elsewhere, and then moved.
        let inside = in_memory();
        let place = format!("a/{folder}");
        for (nonce, what) in [(1, 7), (3, 8), (5, 9)] {
            let outer = open_at(&inner, "a", nonce).await.unwrap();
            let other = if what == 7 { &inside } else { &inner };
            let lower = open_at(other, &place, nonce + 1).await.unwrap();
            for volume in [&outer, &lower] {
                if what != 7 {
                    assert_eq!(read(volume, 0, BLOCKS).await.unwrap(), [what - 1; BLOCKS as usize]);
                }
                for _ in 0..3 {
                    super::write_all(volume, 0, BLOCKS, what).await;
                    volume.flush().await.unwrap();
                }
                volume.snapshot(None).await.unwrap();
                passes(std::time::Duration::from_secs(60)).await;
                volume.close().await.unwrap();
            }
            if what == 7 {
                super::copy(&inside, &inner).await;
            }
        }
    }
}

#[tokio::test]
async fn a_folder_in_a_volume_and_one_around_it_are_refused_before_anything_is_made_there() {
    let root = tempfile::tempdir().unwrap();
    let open = |place: &str| {
        let location = format!("file://{}", root.path().join(place).display());
        tokio::task::spawn_blocking(move || {
            crate::ObjectDriver::open(ObjectOptions::new(&location).size(1 << 20))
        })
    };
    let first = open("a/b").await.unwrap().unwrap();
    for (place, says) in [
        ("a/b/log", "around this location, at "),
        ("a", "in this location, at b"),
        ("a/b/c/d", "a/b:"),
    ] {
        let failed = open(place).await.unwrap().unwrap_err();
        assert_eq!(failed.kind(), OpenErrorKind::InvalidInput);
        assert!(failed.to_string().contains(says), "{failed}");
    }
    for made in ["a/log", "a/b/log/log", "a/b/c"] {
        assert!(!root.path().join(made).exists(), "{made} was made");
    }
    open("a/c").await.unwrap().unwrap();
    drop(first);
}
