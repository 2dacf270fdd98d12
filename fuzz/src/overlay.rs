//! The target for the headers and the map of an overlay: its file may come from anywhere.

use std::sync::{Arc, OnceLock};

use corewise_blockmq::{BlockDevice, BlockDeviceExt, Geometry, Op, Queue, Request};
use corewise_drivers::{Memory, Overlay, OverlayOptions};
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};

use crate::partition_table::crc32;
use crate::seeds::Seed;

/// Bytes of the base, and of the data in the file.
const SIZE: usize = 16 << 10;
/// Bytes in front of the data: two headers, a page of the directory and a page of the map.
const META: usize = 16 << 10;
/// Offsets of these two pages.
const DIRECTORY: usize = 8192;
const MAP: usize = 12288;
const SECTOR: usize = 512;

/// The parts that all runs share.
struct Rig {
    machine: Machine,
    wq: Workqueue,
}

/// A base that is only read: a commit into it would change it for the next inputs.
struct Base;

impl BlockDevice for Base {
    fn name(&self) -> &str {
        "base"
    }

    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..Geometry::new(SIZE as u64) }
    }

    fn submit(&self, mut rq: Request) {
        assert_eq!(rq.op(), Op::Read, "a base is only read");
        let range = rq.offset() as usize..(rq.offset() + rq.len()) as usize;
        rq.put(base_content().get(range).expect("a read inside the base"));
        rq.complete(Ok(()));
    }
}

fn rig() -> &'static Rig {
    static RIG: OnceLock<Rig> = OnceLock::new();
    RIG.get_or_init(|| {
        let machine = Machine::synthetic("l3:1 core:1 pu:1").expect("a description");
        let pools = WorkerPools::new(&machine);
        let wq = Workqueue::builder("fuzz").build(&pools).expect("a workqueue");
        Rig { machine, wq }
    })
}

fn base_content() -> Vec<u8> {
    (0..SIZE).map(|at| (at / SECTOR + 1) as u8).collect()
}

fn own_content() -> Vec<u8> {
    (0..SIZE).map(|at| (at / SECTOR + 101) as u8).collect()
}

/// Opens a file that begins with these bytes: unchanged, and with corrected checksums, so that lies
/// get past them.
///
/// # Panics
/// If a read returns anything but the base's bytes or the file's at that place, a request leaves
/// the file, or a flushed write is lost by closing the overlay.
pub fn overlay(data: &[u8]) {
    let mut meta = data.to_vec();
    meta.resize(META, 0);
    open(&meta);
    correct(&mut meta);
    open(&meta);
}

fn open(meta: &[u8]) {
    let rig = rig();
    let memory = Memory::new((META + SIZE) as u64).expect("32 KiB");
    let file = Queue::builder(&rig.machine, Arc::new(memory)).build(&rig.wq);
    file.write_at(0, [meta, &own_content()].concat()).expect("a write to memory");
    let Some(queue) = up(&file) else { return };
    let size = queue.geometry().size as usize;
    assert!(size <= SIZE, "an overlay of {size} bytes in a file with room for {SIZE}");
    let mut content = Vec::new();
    for at in (0..size).step_by(SECTOR) {
        let Ok(read) = queue.read_at(at as u64, SECTOR) else { return };
        let (base, own) = (&base_content()[at..at + SECTOR], &own_content()[at..at + SECTOR]);
        assert!(read == base || read == own || read.iter().all(|byte| *byte == 0), "byte {at}");
        content.extend_from_slice(&read);
    }
    content[..SECTOR].fill(7);
    queue.write_at(0, vec![7; SECTOR]).expect("a write to memory");
    queue.flush().expect("a flush of memory");
    queue.drain();
    drop(queue);
    let queue = up(&file).expect("an overlay that was closed");
    let read = queue.read_at(0, size).expect("a read of memory");
    let differs = read.iter().zip(&content).position(|(now, was)| now != was);
    assert_eq!(differs, None, "an overlay that was closed has other content");
    queue.drain();
}

fn up(file: &Arc<Queue>) -> Option<Arc<Queue>> {
    let rig = rig();
    let base: Arc<dyn BlockDevice> = Arc::new(Base);
    let options = OverlayOptions::new();
    let overlay = Overlay::open(Arc::clone(file), Some(base), options, &rig.wq).ok()?;
    Some(Queue::builder(&rig.machine, Arc::new(overlay)).build(&rig.wq))
}

/// Corrects the checksums of both headers, and of the map by the first one's identity.
fn correct(meta: &mut [u8]) {
    for header in [0, 4096] {
        meta[header + 8..header + 12].fill(0);
        let crc = crc32(&meta[header..header + SECTOR]);
        meta[header + 8..header + 12].copy_from_slice(&crc.to_le_bytes());
    }
    let id = meta[16..32].to_vec();
    for (page, first) in [(DIRECTORY, 1_u64 << 63), (MAP, 0)] {
        for sector in 0..8 {
            let at = page + sector as usize * SECTOR;
            if meta[at..at + SECTOR].iter().any(|byte| *byte != 0) {
                let bits = &meta[at + 8..at + SECTOR];
                let crc = crc32(&[&id[..], &(first + sector).to_le_bytes(), bits].concat());
                meta[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
            }
        }
    }
}

/// Returns headers and a map with these first bits, and one word of the headers changed.
fn meta(bits: u64, word: usize, value: u64) -> Vec<u8> {
    let mut meta = vec![0; META];
    let base = base_content();
    // The base is small, so each sample is a block of 4 KiB: 32 samples lie at multiples of 512.
    let samples = (0..32).flat_map(|n| {
        let at = SIZE / 32 * n / 4096 * 4096;
        base[at..at + 4096].to_vec()
    });
    let samples = crc32(&samples.collect::<Vec<_>>());
    for header in [0, 4096] {
        let mut bytes = b"cw-over2\0\0\0\0".to_vec();
        bytes.extend(12_u32.to_le_bytes());
        bytes.extend([7; 16]);
        bytes.extend([1, SIZE as u64].map(u64::to_le_bytes).concat());
        bytes.extend([0_u32, 1].map(u32::to_le_bytes).concat());
        bytes.extend((SIZE as u64).to_le_bytes());
        bytes.extend([crc32(&base), samples].map(u32::to_le_bytes).concat());
        bytes.extend(1_u64.to_le_bytes());
        meta[header..header + bytes.len()].copy_from_slice(&bytes);
        if word != 0 {
            meta[header + word..header + word + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    for sector in 0..8 {
        for page in [DIRECTORY, MAP] {
            let at = page + sector * SECTOR;
            meta[at..at + 4].copy_from_slice(b"cwb1");
        }
    }
    meta[DIRECTORY + 8] = 1;
    meta[MAP + 8..MAP + 16].copy_from_slice(&bits.to_le_bytes());
    correct(&mut meta);
    meta
}

/// Returns the seeds of this target.
pub(crate) fn seeds() -> Vec<Seed> {
    let mut torn = meta(1, 0, 0);
    torn[4096..DIRECTORY].fill(0);
    let mut without_map = meta(1, 0, 0);
    without_map[MAP..MAP + SECTOR].fill(0);
    let mut unnamed = meta(0b0110, 0, 0);
    unnamed[DIRECTORY + 8] = 0;
    correct(&mut unnamed);
    vec![
        ("all-of-the-base", meta(0, 0, 0)),
        ("some-own-blocks", meta(0b0110, 0, 0)),
        ("bits-behind-the-end", meta(u64::MAX, 0, 0)),
        ("one-header", torn),
        ("a-size-far-away", meta(1, 40, 1 << 60)),
        ("a-small-size", meta(1, 40, 512)),
        ("large-blocks", meta(1, 12, 20)),
        ("a-reset-under-way", meta(3, 48, 1 | 1 << 32)),
        ("a-commit-under-way", meta(3, 48, 2 | 1 << 32)),
        ("without-a-base", meta(1, 48, 0)),
        ("another-base", meta(1, 64, 0)),
        ("a-flatten-under-way", meta(1, 48, 3 << 32)),
        ("no-directory", meta(1, 72, 0)),
        ("a-long-directory", meta(1, 72, 2)),
        ("a-zeroed-map-sector", without_map),
        ("an-unnamed-page", unnamed),
        ("new", Vec::new()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_overlays() {
        let rig = rig();
        let memory = Memory::new((META + SIZE) as u64).expect("32 KiB");
        let file = Queue::builder(&rig.machine, Arc::new(memory)).build(&rig.wq);
        file.write_at(0, [meta(0b10, 0, 0), own_content()].concat()).expect("a write to memory");
        let queue = up(&file).expect("the format that this file knows");
        let read = queue.read_at(0, 8192).expect("a read of memory");
        assert_eq!(read, [&base_content()[..4096], &own_content()[4096..8192]].concat());
        queue.drain();
    }
}
