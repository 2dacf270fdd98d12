//! The mirror's own requests to its legs: reading and writing the record, and flushes. All of it
//! blocks.

use std::sync::Arc;

use bytes::Bytes;
use corewise_blockmq::{BlockDevice, BlockDeviceExt, Completed, IoError, IoErrorKind, Request};
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::{Countdown, Mutex};

use super::legs::{Legs, MOST_LEGS, each};
use super::record::{Head, RecordLayout};
use crate::below::StackError;

/// The records of all legs.
pub(super) struct Disk {
    /// The mirror's block size.
    block_size: u32,
    /// True if there are records. Else writes succeed without effect, and no record is ever found.
    pub(super) is_kept: bool,
    /// A: the slot of each leg's newest head, or `NO_HEAD`; the next head goes to the other slot,
    /// whose content may be lost. Relaxed: changed by the keeper, and before that by the opener.
    slots: Box<[AtomicUsize]>,
}

/// The slot of a leg that has no head.
const NO_HEAD: usize = 2;

/// The results of a request on each leg.
pub(super) type LegResults = Vec<(usize, Result<(), IoError>)>;

impl Disk {
    /// Creates the records; if not `is_kept`, nothing is written down.
    pub(super) fn new(block_size: u32, is_kept: bool) -> Self {
        let slots = (0..MOST_LEGS).map(|_| AtomicUsize::new(NO_HEAD)).collect();
        Self { block_size, is_kept, slots }
    }

    /// Renumbers the legs: see [`Legs::renumber`].
    pub(super) fn renumber(&mut self, numbers: &[usize]) {
        for (at, &n) in numbers.iter().enumerate().rev() {
            self.slots.swap(at, n);
        }
    }

    /// Returns how many bytes of a leg of `size` are for data: those in front of the record.
    pub(super) fn room_on(&self, name: &str, size: u64) -> Result<u64, StackError> {
        if !self.is_kept {
            return Ok(size / u64::from(self.block_size) * u64::from(self.block_size));
        }
        let place = RecordLayout::on(size, self.block_size).ok_or_else(|| {
            StackError::new(format!("'{name}' has {size} bytes, too few for a mirror's record"))
        })?;
        Ok(place.start)
    }

    /// Returns the place of the record on leg `n`, which is there.
    fn place(&self, legs: &Legs, n: usize) -> RecordLayout {
        self.place_on(&*legs.device(n))
    }

    fn place_on(&self, device: &dyn BlockDevice) -> RecordLayout {
        let size = device.geometry().size;
        RecordLayout::on(size, self.block_size).expect("a leg has room for a record")
    }

    /// Reads the newest head on leg `n`; `None` if there is none.
    pub(super) fn read_head(&self, legs: &Legs, n: usize) -> Result<Option<Head>, IoError> {
        if !self.is_kept {
            return Ok(None);
        }
        let place = self.place(legs, n);
        let mut newest: Option<Head> = None;
        self.slots[n].store(NO_HEAD, Ordering::Relaxed);
        for slot in [0, 1] {
            let piece = legs.device(n).read_at(place.head(slot), place.piece as usize)?;
            let head = Head::decode(&piece);
            if newest.as_ref().map(|h| h.events) < head.as_ref().map(|h| h.events) {
                newest = head;
                self.slots[n].store(slot, Ordering::Relaxed);
            }
        }
        Ok(newest)
    }

    /// Returns true if the place of the record on a leg, all that a mirror ever writes there, holds
    /// nothing but zeroes, and perhaps half of a first head.
    pub(super) fn is_vacant(&self, device: &dyn BlockDevice) -> Result<bool, IoError> {
        if !self.is_kept {
            return Ok(true);
        }
        let place = self.place_on(device);
        let (start, len) = (place.start, place.bits(2) - place.start);
        let found = device.read_at(start, len as usize)?;
        let (first, rest) = found.split_at(place.piece as usize);
        let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
        Ok(is_zero(rest) && (is_zero(first) || Head::is_half_written(first)))
    }

    /// Reads the bits on leg `n`.
    pub(super) fn read_bits(
        &self,
        legs: &Legs,
        n: usize,
        regions: usize,
    ) -> Result<Vec<u8>, IoError> {
        let place = self.place(legs, n);
        let len = place.pieces(regions) * place.piece as usize;
        let mut bits = legs.device(n).read_at(place.bits(0), len)?.to_vec();
        bits.truncate(regions.div_ceil(8));
        Ok(bits)
    }

    /// Writes a head to these legs, and makes it durable. If that fails, the head may be there, or
    /// half of it: the one before it stays, and the next one takes its place.
    pub(super) fn write_head(&self, legs: &Legs, which: u32, head: &Head) -> LegResults {
        let slot = |n: usize| self.slots[n].load(Ordering::Relaxed);
        let next = |n: usize| if slot(n) == 0 { 1 } else { 0 };
        let first = each(which).filter(|&n| slot(n) == NO_HEAD).fold(0, |legs, n| legs | 1 << n);
        // It is a block of its own, which is written as a whole: half of the head is then
        // recognized as such.
        let mut ended = self.write_durably(legs, first, |n| {
            let block = legs.device(n).geometry().block_size as usize;
            vec![(self.place(legs, n).head(0), Head::beginning(block))]
        });
        let (_, bad) = masks(&ended);
        ended.retain(|(n, _)| bad & 1 << n != 0);
        ended.extend(self.write_durably(legs, which & !bad, |n| {
            let place = self.place(legs, n);
            let head = Head { leg: n as u32, ..head.clone() };
            vec![(place.head(next(n)), head.encode(place.piece as usize))]
        }));
        each(masks(&ended).0).for_each(|n| self.slots[n].store(next(n), Ordering::Relaxed));
        ended
    }

    /// Writes the bits of these regions, and with them others of the same pieces, to these legs,
    /// and makes them durable.
    pub(super) fn write_bits(
        &self,
        legs: &Legs,
        which: u32,
        bits: &[u8],
        changed: &[usize],
    ) -> LegResults {
        self.write_durably(legs, which, |n| {
            let place = self.place(legs, n);
            let size = place.piece as usize;
            let mut pieces: Vec<usize> = changed.iter().map(|region| region / 8 / size).collect();
            pieces.dedup();
            let piece = |n: usize| {
                let mut bytes = bits[(n * size).min(bits.len())..].to_vec();
                bytes.resize(size, 0);
                (place.bits(n), bytes)
            };
            pieces.into_iter().map(piece).collect()
        })
    }

    fn write_durably(
        &self,
        legs: &Legs,
        which: u32,
        pieces: impl Fn(usize) -> Vec<(u64, Vec<u8>)>,
    ) -> LegResults {
        if !self.is_kept {
            return each(which).map(|n| (n, Ok(()))).collect();
        }
        let requests = each(which).flat_map(|n| {
            let fua = |rq: Request| {
                let geometry = legs.device(n).geometry();
                if geometry.can_fua || !geometry.can_flush { rq.fua() } else { rq }
            };
            let write = move |(at, bytes): (u64, Vec<u8>)| (n, fua(Request::write(at, bytes)));
            pieces(n).into_iter().map(write).collect::<Vec<_>>()
        });
        let written = together(legs, requests);
        let good = |n: &usize| written.iter().all(|(leg, end)| leg != n || end.is_ok());
        let unflushed = each(which).filter(good).filter(|&n| {
            let geometry = legs.device(n).geometry();
            geometry.can_flush && !geometry.can_fua
        });
        let flushed = together(legs, unflushed.map(|n| (n, Request::flush())));
        written.into_iter().chain(flushed).collect()
    }
}

/// Finds a head at the end of `device`, and the start of its record. The mirror may have had other
/// legs beside it, with larger blocks, so each block size is tried.
pub(super) fn find_head(device: &dyn BlockDevice) -> Result<Option<(u64, Head)>, IoError> {
    let geometry = device.geometry();
    let sizes = (12..=16).map(|shift| 1 << shift).filter(|size| *size >= geometry.block_size);
    for place in sizes.filter_map(|size| RecordLayout::on(geometry.size, size)) {
        for slot in [0, 1] {
            let piece = device.read_at(place.head(slot), place.piece as usize)?;
            if let Some(head) = Head::decode(&piece) {
                return Ok(Some((place.start, head)));
            }
        }
    }
    Ok(None)
}

/// Returns the legs on which all requests succeeded, and those on which one failed.
pub(super) fn masks(ended: &LegResults) -> (u32, u32) {
    let of = |good: bool| {
        ended.iter().filter(|(_, end)| end.is_ok() == good).fold(0, |legs, (n, _)| legs | 1 << n)
    };
    (of(true) & !of(false), of(false))
}

/// Makes the content of these legs durable.
pub(super) fn flush(legs: &Legs, which: u32) -> LegResults {
    together(legs, each(which).map(|n| (n, Request::flush())))
}

/// Sends requests to legs, all at once, and waits for all of them. The caller reports those that
/// fail.
fn together(legs: &Legs, requests: impl Iterator<Item = (usize, Request)>) -> LegResults {
    let requests: Vec<_> = requests.collect();
    let ended = Arc::new((Countdown::new(requests.len()), Mutex::new(Vec::new())));
    for (n, rq) in requests {
        let theirs = Arc::clone(&ended);
        legs.device(n).submit(rq.quiet().on_complete(move |done: Completed| {
            theirs.1.lock().push((n, done.result));
            theirs.0.done();
        }));
    }
    ended.0.wait();
    let mut ended = std::mem::take(&mut *ended.1.lock());
    ended.sort_by_key(|(n, _)| *n);
    ended
}

/// Copies a range from leg `from` to those of the legs `to` that differ there. `Err`: it can't be
/// read. `Ok`: the legs that could not be written, with the errors; with `read_only`, no leg is
/// written.
pub(super) fn copy(
    legs: &Legs,
    from: usize,
    to: u32,
    (offset, len): (u64, usize),
    read_only: bool,
) -> Result<Vec<(usize, IoError)>, IoError> {
    let data = legs.device(from).read_at(offset, len)?.freeze();
    let mut failed = Vec::new();
    for n in each(to) {
        // Most of the regions that a crash left open are alike, and reading costs less than
        // writing. Sparse files stay sparse, too.
        let alike = legs.device(n).read_at(offset, len).is_ok_and(|theirs| theirs[..] == data[..]);
        let written = match (alike, read_only) {
            (true, _) => Ok(()),
            (false, true) => Err(IoError::with(
                IoErrorKind::ReadOnly,
                format!("it differs from '{}', and the mirror is read-only", legs.name(from)),
            )
            .at(offset..offset + len as u64)),
            (false, false) => {
                let write = Request::write(offset, Bytes::clone(&data));
                together(legs, std::iter::once((n, write))).pop().map_or(Ok(()), |(_, end)| end)
            }
        };
        if let Err(error) = written {
            failed.push((n, error));
        }
    }
    Ok(failed)
}
