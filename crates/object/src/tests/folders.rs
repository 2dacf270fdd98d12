//! A volume whose store is a folder that is renamed or deleted, or loses its objects, before an
//! orderly end.

use std::fs;
use std::path::Path as FilePath;
use std::sync::Arc;

use corewise_sync::Mutex;
use futures_util::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt};

use super::{in_memory, open_as, read, request, tuning, write};
use crate::format::names;
use crate::options::ObjectOptions;
use crate::volume::ObjectEvent;
use crate::volume::{Fault, Volume};

/// Events of a volume, in order.
type Events = Arc<Mutex<Vec<ObjectEvent>>>;

fn observe(volume: &Volume) -> Events {
    let events = Events::default();
    let theirs = Arc::clone(&events);
    // The options have the limit.
    let options = ObjectOptions::new("memory:");
    volume.observe(options.observer(move |event| theirs.lock().push(event.clone())).observer);
    events
}

async fn open_in(folder: &FilePath, nonce: u128) -> Arc<Volume> {
    let location = format!("file://{}", folder.display());
    let (store, _) = ObjectOptions::new(&location).size(1 << 20).there().unwrap();
    Volume::open(Arc::new(store), request(nonce), tuning()).await.unwrap()
}

#[tokio::test]
async fn a_folder_that_is_renamed_gets_what_is_written_and_the_end_says_that_it_is_not_found() {
    let root = tempfile::tempdir().unwrap();
    let [own, old] = ["disk", "old"].map(|name| root.path().join(name));
    let volume = open_in(&own, 1).await;
    assert!(volume.is_new());
    let events = observe(&volume);
    write(&volume, 0, 4, 7).await.unwrap();
    volume.flush().await.unwrap();
    fs::rename(&own, &old).unwrap();
    write(&volume, 4, 4, 8).await.unwrap();
    volume.flush().await.unwrap();
    let closed = volume.close().await;
    assert!(matches!(&closed, Err(Fault::Moved(why)) if why.contains("disk")), "{closed:?}");
    assert!(matches!(&events.lock()[..], [ObjectEvent::Moved { .. }]));
    assert!(!own.exists(), "it was made again");
    // It ended in order.
    let volume = open_in(&old, 2).await;
    assert!(!volume.is_new());
    assert_eq!(read(&volume, 0, 8).await.unwrap(), [7, 7, 7, 7, 8, 8, 8, 8]);
    write(&volume, 0, 1, 9).await.unwrap();
    volume.close().await.unwrap();
}

#[tokio::test]
async fn a_folder_that_is_deleted_is_lost_and_not_made_again() {
    let root = tempfile::tempdir().unwrap();
    let own = root.path().join("disk");
    let volume = open_in(&own, 1).await;
    let events = observe(&volume);
    write(&volume, 0, 4, 7).await.unwrap();
    volume.flush().await.unwrap();
    // Its own objects appear meanwhile.
    while fs::remove_dir_all(&own).is_err() {
        tokio::task::yield_now().await;
    }
    // It may be known already.
    let _ = write(&volume, 0, 4, 8).await;
    let flushed = volume.flush().await;
    assert!(matches!(&flushed, Err(Fault::Damaged(_))), "{flushed:?}");
    assert!(matches!(&events.lock()[..], [ObjectEvent::Lost { .. }]));
    let closed = volume.close().await;
    let is_deleted = |why: &str| why.contains("was deleted; recent writes may be lost");
    assert!(matches!(&closed, Err(Fault::Damaged(why)) if is_deleted(why)), "{closed:?}");
    assert!(!own.exists(), "it was made again");
}

#[tokio::test]
async fn a_volume_that_is_not_there_makes_no_folder_without_a_size() {
    let root = tempfile::tempdir().unwrap();
    let own = root.path().join("disk");
    let location = format!("file://{}", own.display());
    let failed = ObjectOptions::new(&location).there().unwrap_err();
    assert!(failed.to_string().contains("there is no volume; give a size"), "{failed}");
    assert!(!own.exists());
}

#[tokio::test(start_paused = true)]
async fn an_orderly_end_finds_that_what_was_written_is_gone() {
    // All of it, or an older state: the newest record is another one's, or was written behind that.
    for older in [false, true] {
        let inner = in_memory();
        let volume = open_as(&inner, 3, tuning()).await.unwrap();
        let events = observe(&volume);
        for what in [7, 8] {
            write(&volume, 0, 4, what).await.unwrap();
            volume.flush().await.unwrap();
        }
        let all: Vec<_> = inner.list(None).try_collect().await.unwrap();
        let last = names::record(3);
        for one in all.iter().filter(|one| !older || !one.location.as_ref().ends_with(&last)) {
            inner.delete(&one.location).await.unwrap();
        }
        let closed = volume.close().await;
        let is_lost = |why: &str| why.contains("older state");
        assert!(matches!(&closed, Err(Fault::Damaged(why)) if is_lost(why)), "{closed:?}");
        assert!(matches!(&events.lock()[..], [ObjectEvent::Lost { .. }]));
    }
}
