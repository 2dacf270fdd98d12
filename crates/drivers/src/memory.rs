//! `memory`: a device in anonymous memory, allocated page by page as it is written.
//!
//! The whole size is mapped at once and costs nothing: the kernel gives a page when it is first
//! written, and takes pages back when they are discarded (`MADV_DONTNEED`). So a large device costs
//! as much memory as its content.
//!
//! Several hardware queues may touch the same bytes at the same time, without a lock: all access is
//! by relaxed atomic words of 8 bytes. So overlapping requests in flight may tear, at multiples of
//! 8 bytes, as they may on any disk; nothing worse can happen. A caller that needs order waits for
//! completion.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use corewise_blockmq::{
    Dispatch, Driver, Extent, ExtentKind, Geometry, Info, IoError, IoErrorKind, Op, RequestMut,
    Started,
};
use corewise_sync::atomic::{AtomicU64, Ordering, fence};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes per atomic word.
const WORD: usize = 8;
/// Size of a page: discards free whole pages, and extents are known by page. If pages are larger,
/// the kernel refuses and zeroes are written.
const PAGE: u64 = 4096;

/// A device in memory. Its content is gone when it is dropped, so there is nothing to flush.
///
/// Reads and writes complete before their dispatch ends, on the thread that dispatches.
#[derive(Debug)]
pub struct Memory {
    map: Mapping,
    used: UsedPages,
    geometry: Geometry,
}

impl Memory {
    /// Creates a zeroed device of `size` bytes, rounded down to whole blocks of 512.
    ///
    /// # Errors
    /// If the address space or the limits of the process have no room for `size` bytes.
    pub fn new(size: u64) -> io::Result<Self> {
        let size = size & !511;
        let geometry = Geometry { can_flush: false, can_fast_zero: true, ..Geometry::new(size) };
        Ok(Self { map: Mapping::new(size)?, used: UsedPages::new(size)?, geometry })
    }

    fn perform(&self, rq: &mut RequestMut<'_>) -> Result<(), IoError> {
        let (offset, len) = (rq.offset(), rq.len());
        let words = self.words(offset, len)?;
        match rq.op() {
            Op::Read if self.used.is_empty(offset, len) => {
                // Without this the kernel would give pages for them.
                rq.put_zeroes(len);
            }
            Op::Read => {
                let filled = rq.filled() as usize;
                let mut at = filled;
                for room in rq.rooms() {
                    load(words, at, room);
                    at += room.len();
                }
                // SAFETY: just written.
                unsafe { rq.advance((at - filled) as u64) };
            }
            Op::Write => self.used.fill(offset, len, || {
                let mut at = 0;
                for bytes in rq.chunks() {
                    store(words, at, bytes);
                    at += bytes.len();
                }
            }),
            Op::Flush | Op::Prefetch => {}
            Op::WriteZeroes if rq.flags().no_unmap && rq.flags().fast => {
                let why = "zeroes in memory that stays allocated are written";
                return Err(IoError::with(IoErrorKind::NotSupported, why));
            }
            Op::WriteZeroes if rq.flags().no_unmap => {
                self.used.fill(offset, len, || zero(words));
            }
            Op::Discard | Op::WriteZeroes => self.zero(offset, words),
            Op::Extents => self.used.tell(rq),
            _ => return Err(IoError::new(IoErrorKind::NotSupported)),
        }
        Ok(())
    }

    fn words(&self, offset: u64, len: u64) -> Result<&[AtomicU64], IoError> {
        // The queue has checked the range; memory safety relies on this check.
        let all = self.map.words();
        let (first, n) = (offset as usize / WORD, len as usize / WORD);
        first
            .checked_add(n)
            .and_then(|end| all.get(first..end))
            .ok_or_else(|| IoError::with(IoErrorKind::OutOfRange, "memory device"))
    }

    /// Zeroes a range, and gives its whole pages back.
    fn zero(&self, offset: u64, words: &[AtomicU64]) {
        let end = offset + (words.len() * WORD) as u64;
        let (first, last) = (offset.next_multiple_of(PAGE), end & !(PAGE - 1));
        if first >= last {
            return self.zero_some(offset, words);
        }
        let (head, rest) = words.split_at((first - offset) as usize / WORD);
        let (pages, tail) = rest.split_at((last - first) as usize / WORD);
        self.zero_some(offset, head);
        if !self.used.is_empty(first, last - first) {
            self.used.clear(first, last - first);
            if self.map.give_back(first, last - first).is_err() {
                self.used.fill(first, last - first, || zero(pages));
            }
        }
        self.zero_some(last, tail);
    }

    /// Zeroes parts of pages, which stay.
    fn zero_some(&self, offset: u64, words: &[AtomicU64]) {
        let len = (words.len() * WORD) as u64;
        // Bytes that were never written are zero, and stay a hole.
        if !self.used.is_empty(offset, len) {
            self.used.fill(offset, len, || zero(words));
        }
    }
}

impl Driver for Memory {
    fn info(&self) -> Info {
        Info {
            hw_queues: usize::MAX,
            merges: false,
            knows_extents: true,
            ..Info::new("memory", self.geometry)
        }
    }

    fn queue_request(&self, _hctx: usize, mut rq: Started) -> Dispatch {
        let result = self.perform(&mut RequestMut::from(&mut rq));
        rq.complete(result);
        Dispatch::Started
    }
}

/// Copies `bytes` to memory of their length.
///
/// # Panics
/// If the lengths differ.
#[inline]
fn write_copy(room: &mut [MaybeUninit<u8>], bytes: &[u8]) {
    // SAFETY: an initialized byte is a `MaybeUninit<u8>`, which has the same layout.
    room.copy_from_slice(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) });
}

// Relaxed throughout: a request's words are ordered by its completion, not by each other.

/// Copies bytes out from byte `at` of the words on. A piece of memory may begin and end within a
/// word.
fn load(words: &[AtomicU64], at: usize, room: &mut [MaybeUninit<u8>]) {
    let bytes_of = |w: usize| words[w].load(Ordering::Relaxed).to_ne_bytes();
    let skip = at % WORD;
    let (head, rest) = room.split_at_mut(room.len().min((WORD - skip) % WORD));
    if !head.is_empty() {
        write_copy(head, &bytes_of(at / WORD)[skip..skip + head.len()]);
    }
    let first = at.div_ceil(WORD);
    let last = first + rest.len() / WORD;
    let mut whole = rest.chunks_exact_mut(WORD);
    for (word, bytes) in words[first..last].iter().zip(&mut whole) {
        write_copy(bytes, &word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let tail = whole.into_remainder();
    if !tail.is_empty() {
        write_copy(tail, &bytes_of(last)[..tail.len()]);
    }
}

/// Copies `data` to byte `at` of the words, as [`load`]. A word belongs to one block, so no other
/// request has a part of it.
fn store(words: &[AtomicU64], at: usize, data: &[u8]) {
    let patch = |w: usize, skip: usize, part: &[u8]| {
        let mut bytes = words[w].load(Ordering::Relaxed).to_ne_bytes();
        bytes[skip..skip + part.len()].copy_from_slice(part);
        words[w].store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    };
    let skip = at % WORD;
    let (head, rest) = data.split_at(data.len().min((WORD - skip) % WORD));
    if !head.is_empty() {
        patch(at / WORD, skip, head);
    }
    let whole = rest.chunks_exact(WORD);
    let tail = whole.remainder();
    let first = at.div_ceil(WORD);
    for (word, bytes) in words[first..].iter().zip(whole) {
        let bytes = bytes.try_into().expect("so long is each chunk");
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
    if !tail.is_empty() {
        patch(first + rest.len() / WORD, 0, tail);
    }
}

fn zero(words: &[AtomicU64]) {
    for word in words {
        word.store(0, Ordering::Relaxed);
    }
}

/// Private anonymous memory, unmapped when it is dropped.
#[derive(Debug)]
struct Mapping {
    /// A: the words that the base points to, by any thread, Relaxed; the pointer itself never
    /// changes.
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping is owned by this value and reached only as `&[AtomicU64]`, which is Send.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&[AtomicU64]` is Sync.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(size: u64) -> io::Result<Self> {
        let too_large = || io::Error::from_raw_os_error(libc::ENOMEM);
        let len = usize::try_from(size).map_err(|_| too_large())?;
        if len > isize::MAX as usize {
            return Err(too_large());
        }
        if len == 0 {
            return Ok(Self { base: NonNull::dangling(), words: 0 });
        }
        // SAFETY: a fresh private mapping at an address of the kernel's choice touches nothing that
        // exists.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or_else(too_large)?;
        Ok(Self { base, words: len / WORD })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, readable and writable, zero-initialized (a valid
        // AtomicU64), `words * 8` bytes long and lives as long as `self`. It is reached through
        // atomics only. Freeing pages makes them read as zeroes, which to other threads is as if
        // zeroes had been stored. With no words the dangling base is aligned, as it must be.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// Frees whole pages; they read as zeroes afterwards. The range lies in the mapping.
    fn give_back(&self, offset: u64, len: u64) -> io::Result<()> {
        debug_assert!(offset + len <= (self.words * WORD) as u64);
        // SAFETY: the range is inside our own private anonymous mapping, so after this call it
        // reads as zeroes and stays mapped. `words` argues that this is sound for concurrent
        // readers.
        unsafe {
            let start = self.base.as_ptr().cast::<u8>().add(offset as usize);
            rustix::mm::madvise(start.cast(), len as usize, Advice::LinuxDontNeed)?;
        }
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.words != 0 {
            // SAFETY: the mapping is ours, and no reference into it is left: references borrow
            // `self`.
            let unmapped =
                unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.words * WORD) };
            if let Err(error) = unmapped {
                tracing::error!(%error, "a memory device could not be unmapped");
            }
        }
    }
}

// The pages of a memory device that were written: one bit a page. The others read as zeroes and
// have no memory.
//
// A bit may be set without need, and must not be clear where bytes aren't zero. A write sets its
// bits, stores (`Store`), and looks at them again (`Look`); a discard clears bits (`Clear`) and
// then zeroes (`Zero`). If a caller has both in flight at once, they may overlap, and either may
// win:
//
// ```text
// write                    discard
// Store                    Clear
// full fence               full fence
// Look                     Zero
// ```
//
// If bytes of a write remain when both are over, they were stored after `Zero`. So `Clear` came
// before `Look`, by the two fences, and `Look` sets the bit again. The kernel zeroes in `madvise`,
// and a later store gets a fresh page.

/// Maximum of words that one request reads: 64 Ki, or 16 GiB of the device.
const WORDS: u64 = 64 << 10;
/// Number of pages of a word.
const BITS: u64 = 64;

/// The bits: a mapping too, so that unwritten parts cost nothing.
#[derive(Debug)]
pub(super) struct UsedPages(Mapping);

impl UsedPages {
    pub(super) fn new(size: u64) -> io::Result<Self> {
        Ok(Self(Mapping::new(size.div_ceil(PAGE).div_ceil(BITS) * size_of::<u64>() as u64)?))
    }

    /// Iterates over the words of a range of bytes, each with the bits of the range in it.
    fn masks(&self, offset: u64, len: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let (first, end) = (offset / PAGE, (offset + len).div_ceil(PAGE));
        let words = if len == 0 { 0..0 } else { first / BITS..end.div_ceil(BITS) };
        let all = self.0.words();
        words.filter_map(move |w| {
            let from = first.max(w * BITS) - w * BITS;
            let to = end.min((w + 1) * BITS) - w * BITS;
            let mask = (u64::MAX >> (BITS - (to - from))) << from;
            all.get(w as usize).map(|word| (word, mask))
        })
    }

    /// Returns true if no page of the range was written: all of it reads as zeroes.
    pub(super) fn is_empty(&self, offset: u64, len: u64) -> bool {
        // Relaxed: the completion of a write orders it before this, and for others there is no
        // promise.
        self.masks(offset, len).all(|(word, mask)| word.load(Ordering::Relaxed) & mask == 0)
    }

    fn set(&self, offset: u64, len: u64) {
        for (word, mask) in self.masks(offset, len) {
            if word.load(Ordering::Relaxed) & mask != mask {
                word.fetch_or(mask, Ordering::Relaxed);
            }
        }
    }

    /// Lets `store` fill the range.
    pub(super) fn fill(&self, offset: u64, len: u64, store: impl FnOnce()) {
        self.set(offset, len);
        store();
        fence(Ordering::SeqCst);
        self.set(offset, len);
    }

    /// Marks whole pages as unused; the caller is about to zero them.
    pub(super) fn clear(&self, offset: u64, len: u64) {
        for (word, mask) in self.masks(offset, len) {
            word.fetch_and(!mask, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Answers a request for extents.
    pub(super) fn tell(&self, rq: &mut RequestMut<'_>) {
        let (offset, end) = (rq.offset(), rq.offset() + rq.len());
        let most = (offset / PAGE / BITS).saturating_add(WORDS) * BITS * PAGE;
        let (mut at, end) = (offset, end.min(most));
        while at < end {
            let page = at / PAGE;
            let word = self.0.words().get((page / BITS) as usize);
            let bits = word.map_or(u64::MAX, |word| word.load(Ordering::Relaxed)) >> (page % BITS);
            let kind = if bits & 1 == 0 { ExtentKind::Hole } else { ExtentKind::Data };
            let alike = if bits & 1 == 0 { bits.trailing_zeros() } else { bits.trailing_ones() };
            // The shift brought zeroes in that stand for no page of this word.
            let pages = u64::from(alike).min(BITS - page % BITS);
            let to = ((page + pages) * PAGE).min(end);
            if !rq.put_extent(Extent { len: to - at, kind }) {
                return;
            }
            at = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use corewise_blockmq::Request;

    use super::*;

    const HOLE: ExtentKind = ExtentKind::Hole;
    const DATA: ExtentKind = ExtentKind::Data;

    fn told(used: &UsedPages, offset: u64, len: u64) -> Vec<(u64, ExtentKind)> {
        let mut rq = Request::extents_of(offset, len, 100);
        used.tell(&mut RequestMut::from(&mut rq));
        rq.extents().unwrap().iter().map(|e| (e.len, e.kind)).collect()
    }

    #[test]
    fn pages_that_were_written_are_data_and_all_others_are_holes() {
        let size = 1 << 20;
        let used = UsedPages::new(size).unwrap();
        assert_eq!(told(&used, 0, size), [(size, HOLE)]);
        let mut pages = vec![false; (size / PAGE) as usize];
        let mut x = 1u64;
        for _ in 0..2000 {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let offset = (x >> 20) % size / 512 * 512;
            let len = (1 + (x >> 40) % 300 * 512).min(size - offset) / 512 * 512;
            let (first, end) = (offset.div_ceil(PAGE), (offset + len) / PAGE);
            if x >> 63 == 0 && first < end {
                used.clear(first * PAGE, (end - first) * PAGE);
                pages[first as usize..end as usize].fill(false);
            } else if x >> 62 & 1 == 1 && len != 0 {
                used.fill(offset, len, || {});
                pages[(offset / PAGE) as usize..(offset + len).div_ceil(PAGE) as usize].fill(true);
            }
            let at = (x >> 30) % size / 512 * 512;
            let found = told(&used, at, size - at);
            assert_eq!(found.iter().map(|(len, _)| len).sum::<u64>(), size - at);
            let mut from = at;
            for (len, kind) in found {
                for page in from / PAGE..(from + len).div_ceil(PAGE) {
                    assert_eq!(pages[page as usize], kind == DATA, "{from} {len}");
                }
                from += len;
            }
        }
    }

    #[test]
    fn one_request_looks_at_a_bounded_part_of_a_huge_device() {
        let used = UsedPages::new(1 << 40).unwrap();
        let found = told(&used, PAGE, (1 << 40) - PAGE);
        assert_eq!(found, [(WORDS * BITS * PAGE - PAGE, HOLE)]);
        used.fill((1 << 40) - 512, 512, || {});
        assert_eq!(told(&used, (1 << 40) - 2 * PAGE, 2 * PAGE), [(PAGE, HOLE), (PAGE, DATA)]);
    }
}
