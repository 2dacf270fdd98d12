//! Overlays against a plain model: every request, of many clients at once, over groups and behind
//! the base's end; extents, growth, and the file that they leave.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{Held, Rig, Rng, pass_on, submit};
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Dispatch, ExtentKind, Geometry, IoErrorKind, Queue, Request,
};
use corewise_drivers::{FileDriver, FileOptions, Memory, Overlay, OverlayOptions};

const BLOCK: u64 = 4096;
/// Bytes of the device that one page of the map is about.
const GROUP: u64 = 32_256 * BLOCK;

fn base(rig: &Rig, size: u64, content: &[u8]) -> Arc<dyn BlockDevice> {
    let base = rig.named("base", Memory::new(size).unwrap());
    base.write_at(0, content.to_vec()).unwrap();
    base
}

fn overlay(rig: &Rig, base: &Arc<dyn BlockDevice>, options: OverlayOptions) -> Arc<Queue> {
    let size = options.size.unwrap_or(base.geometry().size);
    let file = Memory::new(Overlay::file_size(size, options.block_size).unwrap()).unwrap();
    let overlay = Overlay::open(rig.named("file", file), Some(Arc::clone(base)), options, &rig.wq);
    rig.named("overlay", overlay.unwrap())
}

#[test]
fn an_overlay_is_the_base_with_the_changes_that_were_made() {
    let rig = Rig::live();
    for (seed, shift) in (0..6).zip([12, 12, 13, 14, 16, 20]) {
        let mut rng = Rng::new(seed);
        let size = (1 << 20) + (seed << 12);
        let mut model: Vec<u8> = (0..size).map(|_| rng.next() as u8).collect();
        let base = base(&rig, size, &model);
        let original = model.clone();
        model.resize(size as usize + (300 << 10), 0);
        let size = model.len() as u64;
        let options = OverlayOptions::new().block_size(Some(1 << shift)).size(Some(size));
        let queue = overlay(&rig, &base, options);
        for _ in 0..400 {
            let sector = rng.below(size / 512);
            let longest = if rng.below(4) == 0 { 1000 } else { 24 };
            let len = (1 + rng.below(longest)).min(size / 512 - sector) * 512;
            let offset = sector * 512;
            let range = offset as usize..(offset + len) as usize;
            match rng.below(6) {
                0 => {
                    queue.write_zeroes(offset, len).unwrap();
                    model[range].fill(0);
                }
                1 => {
                    queue.discard(offset, len).unwrap();
                    let now = queue.read_at(offset, len as usize).unwrap();
                    let may = |(now, was): (&u8, &u8)| *now == 0 || now == was;
                    assert!(now.iter().zip(&model[range.clone()]).all(may));
                    model[range].copy_from_slice(&now);
                }
                2 | 3 => {
                    let byte = rng.next() as u8;
                    queue.write_at(offset, vec![byte; len as usize]).unwrap();
                    model[range].fill(byte);
                }
                _ => assert_eq!(queue.read_at(offset, len as usize).unwrap(), &model[range]),
            }
        }
        assert_eq!(queue.read_at(0, size as usize).unwrap(), &model[..]);
        assert_eq!(base.read_at(0, original.len()).unwrap(), &original[..], "the base stays");
        queue.drain();
    }
}

#[test]
fn clients_that_change_parts_of_one_block_at_once_lose_nothing() {
    let rig = Rig::live();
    let content: Vec<u8> = (0..1_u32 << 18).map(|at| (at / 512) as u8).collect();
    for seed in 0..20 {
        let base = base(&rig, content.len() as u64, &content);
        let queue = overlay(&rig, &base, OverlayOptions::new());
        std::thread::scope(|scope| {
            for client in 0..4_u64 {
                let (queue, content) = (&queue, &content);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed * 4 + client);
                    for _ in 0..100 {
                        // Each client has every fourth sector.
                        let sector = rng.below(16) * 4 + client;
                        let offset = sector * 512;
                        let was = queue.read_at(offset, 512).unwrap();
                        let first = content[offset as usize];
                        assert!(was[0] == first || was[0] == 100 + client as u8, "{}", was[0]);
                        queue.write_at(offset, vec![100 + client as u8; 512]).unwrap();
                        let now = queue.read_at(offset, 512).unwrap();
                        assert_eq!(now[0], 100 + client as u8);
                    }
                });
            }
        });
        let all = queue.read_at(0, 64 * 512).unwrap();
        for (sector, bytes) in all.chunks(512).enumerate() {
            let client = 100 + (sector % 4) as u8;
            assert!(bytes[0] == client || bytes[0] == content[sector * 512], "sector {sector}");
        }
        queue.drain();
    }
}

#[test]
fn requests_over_the_end_of_a_group_are_done_in_its_two_parts() {
    let rig = Rig::live();
    let base = base(&rig, GROUP + (1 << 20), &[7; 4096]);
    base.write_at(GROUP - 8192, vec![9; 16 << 10]).unwrap();
    let queue = overlay(&rig, &base, OverlayOptions::new());
    let around = |queue: &Queue| queue.read_at(GROUP - 8192, 16 << 10).unwrap();
    assert_eq!(around(&queue), vec![9; 16 << 10]);
    queue.write_at(GROUP - 512, vec![1; 1024]).unwrap();
    let mut want = vec![9; 16 << 10];
    want[8192 - 512..8192 + 512].fill(1);
    assert_eq!(around(&queue), want);
    // The same blocks, once they are own.
    queue.write_at(GROUP - 1024, vec![2; 2048]).unwrap();
    want[8192 - 1024..8192 + 1024].fill(2);
    assert_eq!(around(&queue), want);
    queue.discard(GROUP - 8192, 16 << 10).unwrap();
    assert_eq!(around(&queue), vec![0; 16 << 10]);
}

/// Returns the extents of a device from `offset` on.
fn extents(queue: &Queue, offset: u64, len: u64) -> Vec<(u64, ExtentKind)> {
    let found = queue.extents_of(offset, len, 100).unwrap();
    found.iter().map(|extent| (extent.len, extent.kind)).collect()
}

#[test]
fn extents_are_those_of_the_base_until_a_block_is_own() {
    use ExtentKind::{Data, Hole};
    let rig = Rig::live();
    let base = base(&rig, 16 * BLOCK, &[7; 4 * BLOCK as usize]);
    let queue = overlay(&rig, &base, OverlayOptions::new().size(Some(20 * BLOCK)));
    assert_eq!(extents(&queue, 0, 20 * BLOCK), [(4 * BLOCK, Data), (16 * BLOCK, Hole)]);
    queue.write_at(6 * BLOCK, vec![1; BLOCK as usize]).unwrap();
    queue.write_zeroes(BLOCK, BLOCK).unwrap();
    let want = [
        (BLOCK, Data),
        (BLOCK, Hole),
        (2 * BLOCK, Data),
        (2 * BLOCK, Hole),
        (BLOCK, Data),
        (13 * BLOCK, Hole),
    ];
    assert_eq!(extents(&queue, 0, 20 * BLOCK), want);
}

#[test]
fn a_file_that_was_closed_has_the_overlay_and_gives_the_space_of_trims_back() {
    let rig = Rig::live();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vm.cow");
    let base = base(&rig, 64 << 20, &[7; 1 << 20]);
    let open = |size: Option<u64>| {
        let options = FileOptions::new(&path);
        let options = match size {
            Some(size) => options.size(Overlay::file_size(size, None).unwrap()),
            None => options,
        };
        let file = rig.named("file", FileDriver::open(options, &rig.wq).unwrap());
        let (base, options) = (Some(base.clone()), OverlayOptions::new());
        let overlay = Overlay::open(file, base, options, &rig.wq).unwrap();
        rig.named("overlay", overlay)
    };
    let queue = open(Some(64 << 20));
    queue.write_at(1000 << 10, vec![1; 2 << 20]).unwrap();
    queue.discard(2 << 20, 512 << 10).unwrap();
    assert_eq!(queue.grow(Some(300 << 20)).unwrap(), 300 << 20);
    queue.write_at(299 << 20, vec![2; 4096]).unwrap();
    queue.flush().unwrap();
    queue.drain();
    drop(queue);

    let queue = open(None);
    assert_eq!(queue.geometry().size, 300 << 20);
    assert_eq!(queue.read_at(0, 1000 << 10).unwrap(), vec![7; 1000 << 10]);
    assert_eq!(queue.read_at(1000 << 10, 4096).unwrap(), vec![1; 4096]);
    assert_eq!(queue.read_at(2 << 20, 4096).unwrap(), vec![0; 4096]);
    assert_eq!(queue.read_at(298 << 20, 4096).unwrap(), vec![0; 4096]);
    assert_eq!(queue.read_at(299 << 20, 4096).unwrap(), vec![2; 4096]);
    let hole = extents(&queue, 2 << 20, 4096)[0];
    assert!(
        hole == (4096, ExtentKind::Hole)
            || extents(&queue, 50 << 20, 4096)[0].1 == ExtentKind::Data
    );
    assert_eq!(queue.grow(Some(64 << 20)).unwrap_err().kind(), IoErrorKind::InvalidInput);
    queue.drain();
}

#[test]
fn a_first_change_of_whole_blocks_reads_nothing_of_the_base() {
    let rig = Rig::live();
    let base = base(&rig, 1 << 20, &[7; 1 << 20]);
    let file = Memory::new(Overlay::file_size(1 << 20, None).unwrap()).unwrap();
    let file = rig.named("file", file);
    drop(Overlay::open(file.clone(), Some(base.clone()), OverlayOptions::new(), &rig.wq).unwrap());
    // From here on each read of the base waits for this test.
    let held = Held { geometry: Some(base.geometry()), ..Held::default() };
    held.instead(|mut rq| {
        rq.put(&vec![7; rq.len() as usize]);
        rq.complete(Ok(()));
        Dispatch::Started
    });
    let slow = rig.named("base", held.clone());
    let overlay = Overlay::open(file, Some(slow), OverlayOptions::new(), &rig.wq).unwrap();
    let queue = rig.named("overlay", overlay);
    held.keep();
    queue.write_at(8192, vec![1; 8192]).unwrap();
    queue.write_zeroes(16 << 10, 4096).unwrap();
    assert_eq!(held.held(), 0);
    // A part of a block needs the rest; a second change of it waits, and reads nothing more.
    let first = submit(&*queue, Request::write(512, vec![2; 512]));
    let second = submit(&*queue, Request::write(1024, vec![3; 512]));
    assert!(held.held() == 1 && first.try_recv().is_err() && second.try_recv().is_err());
    let more = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&more);
    held.instead(move |mut rq| {
        theirs.fetch_add(1, Ordering::Relaxed);
        rq.put(&vec![7; rq.len() as usize]);
        rq.complete(Ok(()));
        Dispatch::Started
    });
    let mut rq = held.requests.lock().pop_front().unwrap();
    let len = rq.len();
    rq.put(&vec![7; len as usize]);
    rq.complete(Ok(()));
    first.recv().unwrap().result.unwrap();
    second.recv().unwrap().result.unwrap();
    assert_eq!(queue.read_at(512, 1024).unwrap(), [[2; 512], [3; 512]].concat());
    // One read for the bytes in front of the change, one for those behind it.
    assert_eq!(more.load(Ordering::Relaxed), 1);
    queue.drain();
}

#[test]
fn a_durable_change_of_a_block_waits_for_the_commit_that_has_its_bit() {
    let rig = Rig::live();
    let base = base(&rig, 1 << 20, &[7; 4096]);
    let memory = Memory::new(Overlay::file_size(1 << 20, None).unwrap()).unwrap();
    let memory: Arc<dyn BlockDevice> = rig.named("memory", memory);
    let geometry = Geometry { can_flush: true, can_fua: true, ..memory.geometry() };
    let held = Held { geometry: Some(geometry), ..Held::default() };
    let pass = |memory: &Arc<dyn BlockDevice>| {
        let memory = memory.clone();
        held.instead(move |rq| {
            pass_on(rq, &memory);
            Dispatch::Started
        });
    };
    pass(&memory);
    let file = rig.named("file", held.clone());
    let overlay = Overlay::open(file, Some(base), OverlayOptions::new(), &rig.wq).unwrap();
    let queue = rig.named("overlay", overlay);
    queue.flush().unwrap();
    queue.write_at(0, vec![1; 4096]).unwrap();
    held.keep();
    let flush = submit(&*queue, Request::flush());
    assert_eq!(held.held(), 1, "the first sync of a commit that has taken the mark");
    let change = submit(&*queue, Request::write(0, vec![2; 4096]).fua());
    assert_eq!(held.held(), 2, "the block is own, so the change goes to the file");
    pass_on(held.requests.lock().pop_back().unwrap(), &memory);
    assert!(change.try_recv().is_err(), "no page on disk calls the block own");
    pass(&memory);
    pass_on(held.requests.lock().pop_front().unwrap(), &memory);
    flush.recv().unwrap().result.unwrap();
    change.recv().unwrap().result.unwrap();
    queue.drain();
}

#[test]
fn a_base_is_the_same_in_whichever_order_it_answers() {
    let rig = Rig::live();
    let content: Vec<u8> = (0..1_u32 << 20).map(|at| (at / 512 % 251) as u8).collect();
    let base = base(&rig, 1 << 20, &content);
    let file = Memory::new(Overlay::file_size(1 << 20, None).unwrap()).unwrap();
    let file = rig.named("file", file);
    let options = OverlayOptions::new;
    drop(Overlay::open(file.clone(), Some(base.clone()), options(), &rig.wq).unwrap());
    let held = Held { geometry: Some(base.geometry()), ..Held::default() };
    let requests = held.requests.clone();
    let backwards = rig.named("base", held);
    let opened = std::thread::scope(|scope| {
        let opened =
            scope.spawn(|| Overlay::open(file, Some(backwards), options(), &rig.wq).map(drop));
        // All samples are asked for at once.
        while requests.lock().len() < 33 {
            std::thread::yield_now();
        }
        while let Some(mut rq) = { requests.lock().pop_back() } {
            let (at, len) = (rq.offset() as usize, rq.len() as usize);
            rq.put(&content[at..at + len]);
            rq.complete(Ok(()));
        }
        opened.join().unwrap()
    });
    opened.unwrap();
}

#[test]
fn own_blocks_of_one_group_need_no_tag_and_all_other_requests_go_to_the_driver() {
    let rig = Rig::live();
    let base = base(&rig, 8 * BLOCK, &vec![3; 8 * BLOCK as usize]);
    let queue = overlay(&rig, &base, OverlayOptions::new());
    let counts = || {
        let all = queue.stats();
        let sum = |count: fn(&corewise_blockmq::HctxStats) -> u64| all.iter().map(count).sum();
        let counts: (u64, u64) = (sum(|hctx| hctx.remapped), sum(|hctx| hctx.dispatched));
        counts
    };
    queue.write_at(BLOCK, vec![4; 2 * BLOCK as usize]).unwrap();
    assert_eq!(queue.read_at(0, 512).unwrap(), [3; 512][..]);
    assert_eq!(queue.read_at(0, 2 * BLOCK as usize).unwrap()[BLOCK as usize..], [4; 4096]);
    assert_eq!(counts(), (0, 3));
    assert_eq!(queue.read_at(BLOCK + 512, 1024).unwrap(), [4; 1024][..]);
    queue.write_at(2 * BLOCK, vec![5; 512]).unwrap();
    queue.write_zeroes(BLOCK, 512).unwrap();
    assert_eq!(counts(), (3, 3));
    let durable = || queue.execute(Request::write(2 * BLOCK, vec![6; 512]).fua()).result;
    durable().unwrap();
    assert_eq!(counts(), (3, 4), "the map on disk lacks the bit");
    durable().unwrap();
    assert_eq!(counts(), (4, 4));
    assert_eq!(queue.read_at(2 * BLOCK, 1024).unwrap()[..], [[6; 512], [4; 512]].concat()[..]);
}
