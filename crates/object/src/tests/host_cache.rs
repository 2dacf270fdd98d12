//! Reads of a volume in a folder by the thread that submits them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{SEALED, lies_in, read, request, tuning, write_all};
use crate::format::{BLOCK, Compression};
use crate::log::OpenRequest;
use crate::options::ObjectOptions;
use crate::volume::{Fault, Part, Tuning, Volume};

/// Blocks of the volume.
const ALL: u64 = 60;

/// Opens the volume in a folder, without a read cache.
async fn open(folder: &FilePath, request: OpenRequest) -> Arc<Volume> {
    let location = format!("file://{}", folder.display());
    let (store, _) = ObjectOptions::new(&location).size(1 << 20).there().unwrap();
    let tuning = Tuning { cache: 0, inline: 0, batch: 48, dirty: 96, ..tuning() };
    Volume::open(Arc::new(store), request, tuning).await.unwrap()
}

/// Makes a volume whose blocks hold their numbers, and opens it anew. `None`: this system can't be
/// asked to read without waiting.
async fn written(folder: &FilePath, nonce: u128, compression: Compression) -> Option<Arc<Volume>> {
    let size = Some(ALL * BLOCK);
    // No check becomes due while the test runs.
    let lease = Duration::from_secs(3600);
    let request = |nonce| OpenRequest { compression, size, lease, ..request(nonce) };
    let volume = open(folder, request(nonce)).await;
    for block in 0..ALL {
        write_all(&volume, block, 1, block as u32 + 1).await;
    }
    volume.close().await.unwrap();
    let volume = open(folder, request(nonce + 6)).await;
    // This verifies that there is no other writer.
    read(&volume, 0, 1).await.unwrap();
    let segment = volume.state.read().map.segments.iter().next().map(|(_, segment)| *segment);
    let segment = segment.unwrap();
    let file = volume.store.open_file(segment.id, || segment.name());
    if !file.is_some_and(|file| file.read(&mut [0; 64], 0)) {
        println!("the system can't open or read a cached file without waiting");
        return None;
    }
    Some(volume)
}

fn segments(volume: &Volume, folder: &FilePath) -> Vec<PathBuf> {
    lies_in(volume).iter().map(|name| folder.join(name)).collect()
}

#[tokio::test]
async fn blocks_that_the_host_has_are_read_at_once_and_only_they_are_fetched() {
    for (nonce, compression) in
        [(1, Compression::None), (1, Compression::Lz4), (1 | SEALED, Compression::None)]
    {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("disk");
        let Some(volume) = written(&folder, nonce, compression).await else { return };
        let before = volume.store.usage();
        for (start, len) in [(0, 1), (5, 1), (31, 3), (40, 20), (0, ALL), (59, 1)] {
            let parts = volume.read_at_once(start, len).unwrap();
            let said: Vec<u32> = (parts.iter())
                .flat_map(|part| match part {
                    Part::Data(data) => data.chunks(BLOCK as usize),
                    Part::Zero(_) => panic!("all blocks have data"),
                })
                .map(|block| u32::from_le_bytes(block[..4].try_into().unwrap()))
                .collect();
            assert!(said.iter().copied().eq(start as u32 + 1..(start + len) as u32 + 1));
        }
        let after = volume.store.usage();
        assert!(after.gets > before.gets);
        if compression == Compression::None && nonce & SEALED == 0 {
            let heads = 20 * 256;
            let data = (1 + 1 + 3 + 20 + ALL + 1) * BLOCK;
            assert!((data..data + heads).contains(&(after.received - before.received)));
        }
    }
}

#[tokio::test]
async fn a_wrong_byte_fails_the_reads_of_its_block_at_once_or_not() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("disk");
    let Some(volume) = written(&folder, 1, Compression::None).await else { return };
    let bad = 50;
    let place = volume.state.read().map.places.parts(bad, 1)[0].2.unwrap();
    let blocks = u64::from(place.stored) / BLOCK;
    let at = u64::from(place.at + place.stored) - (blocks - u64::from(place.skip)) * BLOCK;
    let segment = volume.state.read().map.segments.get(place.segment).unwrap().name();
    let file = File::options().write(true).open(folder.join(segment)).unwrap();
    file.write_all_at(&[0xee], at + 77).unwrap();
    for block in 0..ALL {
        assert_eq!(volume.read_at_once(block, 1).is_some(), block != bad);
    }
    assert!(matches!(read(&volume, bad, 1).await, Err(Fault::Damaged(_))));
}

#[tokio::test]
async fn an_object_that_was_deleted_is_missed_although_it_is_open() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("disk");
    let Some(volume) = written(&folder, 1, Compression::None).await else { return };
    (0..ALL).for_each(|block| assert!(volume.read_at_once(block, 1).is_some()));
    for segment in segments(&volume, &folder) {
        fs::remove_file(segment).unwrap();
    }
    (0..ALL).for_each(|block| assert!(volume.read_at_once(block, 1).is_none()));
    assert!(matches!(read(&volume, 6, 1).await, Err(Fault::Damaged(_))));
}
