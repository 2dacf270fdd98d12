//! The file of a device, and the blocking operations on it.

use std::fs::File;
use std::io::{IoSlice, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use corewise_blockmq::{
    AlignedBuf, Flags, Geometry, IoError, IoErrorKind, Op, ReadOnlyLatch, Request, RequestMut,
};
use corewise_sync::atomic::{AtomicBool, Ordering};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::extents::ExtentCache;
use super::fault_reporter::{FaultReporter, FileDisplacement};
use super::host_cache::Alignment;
use super::lane::AT_ONCE;
use super::loss::{FlushDoubt, LossRecord, OnLoss};
use super::write_log::WriteLog;
use super::{host_cache, qemu_locks};
use crate::file_guard::FileGuard;

/// Number of bytes that are copied at once if memory doesn't fit, or that are zeroed at once.
const PIECE: usize = 64 << 10;

#[repr(align(4096))]
struct Zeroes([u8; PIECE]);

/// The zeroes to write if the file system can't zero a range; aligned for any file system.
static ZEROES: Zeroes = Zeroes([0; PIECE]);

/// A file, the way to reach it, and the record of whether its content can be trusted.
pub(super) struct Store {
    file: FileGuard,
    /// The reporter of faults, which also has the file's name.
    reporter: FaultReporter,
    align: Option<Alignment>,
    /// The record of losses of a regular file: a block device keeps its size.
    loss: Option<LossRecord>,
    /// The log of changes.
    log: Option<WriteLog>,
    doubt: FlushDoubt,
    found: ExtentCache,
    /// True if the file lies only in memory (tmpfs): no operation on it waits for a disk, and
    /// nothing of it becomes durable.
    in_memory: bool,
    /// True if QEMU's locks are taken.
    for_qemu: bool,
    /// A: true if the file system supports reads without waiting, until it rejects one. Relaxed: a
    /// hint.
    reads_now: AtomicBool,
    /// A: true once such a read has succeeded. Relaxed: a hint.
    has_read_now: AtomicBool,
    /// A: true if it supports writes without waiting, likewise.
    writes_now: AtomicBool,
}

impl Store {
    /// Creates the store. `align` is set if the device bypasses the cache, which needs this
    /// alignment.
    pub(super) fn new(file: FileGuard, reporter: FaultReporter, align: Option<Alignment>) -> Self {
        // Past the cache every operation waits for the disk.
        let now = || AtomicBool::new(align.is_none());
        Self {
            file,
            reporter,
            align,
            loss: None,
            log: None,
            doubt: FlushDoubt::default(),
            found: ExtentCache::default(),
            in_memory: false,
            for_qemu: false,
            reads_now: now(),
            has_read_now: AtomicBool::new(false),
            writes_now: now(),
        }
    }

    /// Sets the length that the file has to keep, if it is a regular one.
    pub(super) fn of_length(self, size: u64, on_loss: OnLoss) -> Self {
        // For a block device this would show the file system of its name.
        let in_memory = self.align.is_none() && lies_in_memory(self.file());
        self.file.grew(size);
        Self { loss: Some(LossRecord::new(on_loss)), in_memory, ..self }
    }

    /// Sets the log of its changes and flushes.
    pub(super) fn logged(self, log: WriteLog) -> Self {
        Self { log: Some(log), ..self }
    }

    /// Sets whether QEMU's locks are taken.
    pub(super) fn locked_for_qemu(self, for_qemu: bool) -> Self {
        Self { for_qemu, ..self }
    }

    pub(super) fn is_locked_for_qemu(&self) -> bool {
        self.for_qemu
    }

    pub(super) fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// Does a request that needs no waiting, and returns the result; `None` if it isn't done,
    /// although a read may have got its first bytes. Never blocks, except for memory.
    pub(super) fn now(&self, rq: &mut RequestMut<'_>) -> Option<Result<(), IoError>> {
        match rq.op() {
            Op::Read => self.read_now(rq).then_some(Ok(())),
            // Logging may wait.
            Op::Write | Op::Flush if self.is_logged() => None,
            Op::Write => self.write_now(rq).then_some(Ok(())),
            Op::Flush => self.in_memory.then(|| self.sync()),
            Op::Extents => self.in_memory.then(|| self.extents(rq)),
            _ => None,
        }
    }

    /// Checks that a request may begin: a change that would make the file longer may not.
    pub(super) fn admits(&self, rq: &Request) -> Result<(), IoError> {
        match (rq.op(), &self.loss) {
            (Op::Read | Op::Flush | Op::Extents | Op::Prefetch, _) | (_, None) => Ok(()),
            (_, Some(loss)) => loss.admits(&self.file, &self.reporter, rq.offset() + rq.len()),
        }
    }

    /// Adopts a longer size: `wanted` bytes, or all whole blocks that the file has by now. `least`
    /// is the size that it has to have already.
    pub(super) fn grow(
        &self,
        wanted: Option<u64>,
        least: u64,
        geometry: &Geometry,
    ) -> Result<u64, IoError> {
        use IoErrorKind::{InvalidInput, NoSpace};
        let block = u64::from(geometry.block_size);
        // This finds the end of a block device, too.
        let there = self.file().seek(SeekFrom::End(0));
        let there =
            there.map_err(|error| IoError::from_errno(error.raw_os_error().unwrap_or(0)))?;
        let size = wanted.unwrap_or(there / block * block);
        if size < least {
            let why = format!("the file has {least} bytes and can't shrink to {size}");
            return Err(IoError::with(InvalidInput, why));
        }
        if size % block != 0 {
            let why = format!("the new size {size} is not a multiple of the block size {block}");
            return Err(IoError::with(InvalidInput, why));
        }
        match &self.loss {
            Some(_) if size > there && !geometry.read_only => {
                let resize = || rustix::fs::ftruncate(self.file(), size);
                let resized = qemu_locks::resizing(self.file(), resize).map_err(|_| {
                    let why = "a program of QEMU has the file open and relies on its size; stop \
                               that program first";
                    IoError::with(IoErrorKind::Io(Errno::BUSY.raw_os_error()), why)
                })?;
                resized.map_err(|error| {
                    let why = format!("the file cannot grow to {size} bytes: {error}");
                    IoError::with(IoErrorKind::Io(error.raw_os_error()), why)
                })?;
            }
            _ if size > there => {
                let why = format!("there are {there} bytes, less than the new size; grow it first");
                return Err(IoError::with(NoSpace, why));
            }
            _ => {}
        }
        self.file.grew(size);
        Ok(size)
    }

    pub(super) fn file(&self) -> &File {
        self.file.file()
    }

    pub(super) fn reporter(&self) -> &FaultReporter {
        &self.reporter
    }

    /// Returns the latch that makes it read-only once data of it is lost.
    pub(super) fn read_only_latch(&self) -> ReadOnlyLatch {
        self.loss.as_ref().map_or_else(ReadOnlyLatch::never, LossRecord::read_only_latch)
    }

    pub(super) fn found(&self) -> &ExtentCache {
        &self.found
    }

    pub(super) fn align(&self) -> Option<Alignment> {
        self.align
    }

    /// Does a request, from byte `done` on if it is a write. (A read's progress is in the request.)
    /// Blocks.
    pub(super) fn perform(&self, rq: &mut RequestMut<'_>, done: u64) -> Result<(), IoError> {
        match &self.log {
            Some(log) => {
                if !matches!(rq.op(), Op::Read | Op::Extents | Op::Prefetch) {
                    // This comes before any change that the log wouldn't have.
                    log.verify().map_err(|displacement| {
                        let error = displacement.error();
                        self.reporter.report_displacement(Some(displacement));
                        error
                    })?;
                }
                log.around(rq, |rq| self.perform_unlogged(rq, done))
            }
            None => self.perform_unlogged(rq, done),
        }
    }

    fn perform_unlogged(&self, rq: &mut RequestMut<'_>, done: u64) -> Result<(), IoError> {
        self.admits(rq)?;
        let fua = rq.flags().fua;
        let sync_if_fua = |()| if fua { self.sync() } else { Ok(()) };
        match rq.op() {
            Op::Read => self.read(rq),
            Op::Write => self.write_rest(rq, done),
            Op::Flush => self.sync(),
            Op::Extents => self.extents(rq),
            Op::Prefetch => self.prefetch(rq.offset(), rq.len()),
            Op::Discard => self.discard(rq.offset(), rq.len()).and_then(sync_if_fua),
            Op::WriteZeroes => {
                self.write_zeroes(rq.offset(), rq.len(), rq.flags()).and_then(sync_if_fua)
            }
            _ => Err(IoError::new(IoErrorKind::NotSupported)),
        }
    }

    /// Reads the bytes of a request that the host's cache has, and returns true if those were all.
    /// Never blocks.
    fn read_now(&self, rq: &mut RequestMut<'_>) -> bool {
        if rq.len() > AT_ONCE || !self.reads_now.load(Ordering::Relaxed) {
            return false;
        }
        let flags = self.without_waiting();
        loop {
            let at = rq.offset() + rq.filled();
            let Some(room) = rq.rooms().next() else { return true };
            match host_cache::read(self.file(), room, at, flags) {
                Ok(n) if n > 0 => {
                    // SAFETY: this many bytes of the room are initialized now.
                    unsafe { rq.advance(n as u64) };
                    if !self.in_memory && !self.has_read_now.load(Ordering::Relaxed) {
                        self.has_read_now.store(true, Ordering::Relaxed);
                    }
                }
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                    self.reads_now.store(false, Ordering::Relaxed);
                    return false;
                }
                // It isn't there, or a worker finds out what is wrong.
                Ok(_) | Err(_) => return false,
            }
        }
    }

    /// Returns true if io_uring reads from the host's cache while it takes an entry. Where the file
    /// system can't be asked not to wait, it leaves each read to a thread of its own.
    pub(super) fn is_read_by_rings(&self) -> bool {
        self.has_read_now.load(Ordering::Relaxed)
    }

    /// Writes a request to the host's cache, and returns true if all of it was written. Otherwise
    /// some of it may be written: a second write of a block changes nothing. Never blocks, except
    /// for memory.
    fn write_now(&self, rq: &Request) -> bool {
        let durable = rq.flags().fua && !self.in_memory;
        if rq.len() > AT_ONCE || durable || !self.writes_now.load(Ordering::Relaxed) {
            return false;
        }
        // If it may not begin, a worker reports why.
        if self.admits(rq).is_err() {
            return false;
        }
        let flags = self.without_waiting();
        let mut at = rq.offset();
        for mut chunk in rq.chunks() {
            while !chunk.is_empty() {
                match rustix::io::pwritev2(self.file(), &[IoSlice::new(chunk)], at, flags) {
                    Ok(n) if n > 0 => {
                        at += n as u64;
                        chunk = &chunk[n..];
                    }
                    Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                        self.writes_now.store(false, Ordering::Relaxed);
                        return false;
                    }
                    // It has to wait, or a worker finds out what is wrong.
                    Ok(_) | Err(_) => return false,
                }
            }
        }
        !rq.flags().fua || self.is_whole().is_ok()
    }

    /// Returns the flags that ask the kernel not to wait. A file in memory needs none, and tmpfs
    /// doesn't support them.
    fn without_waiting(&self) -> ReadWriteFlags {
        if self.in_memory { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT }
    }

    /// Checks that the file has its full length, and a name.
    pub(super) fn is_whole(&self) -> Result<(), IoError> {
        self.loss.as_ref().map_or(Ok(()), |loss| loss.is_whole(&self.file, &self.reporter))
    }

    /// Checks that the file, and its write log, are unchanged, and in their places. Blocks as long
    /// as the lookup of a path does.
    pub(super) fn look(&self) -> Result<(), IoError> {
        self.is_whole()?;
        // Without its log it makes no change; that is worse than a next server that finds another
        // file.
        let log = self.log.as_ref().map_or(Ok(()), WriteLog::verify);
        let found = log.and_then(|()| match &self.loss {
            Some(_) => self.file.verify().map_err(|fault| FileDisplacement::file(&fault)),
            None => Ok(()),
        });
        self.reporter.report_displacement(found.as_ref().err().cloned());
        found.map_err(|displacement| displacement.error())
    }

    /// Returns the answer to a flush with this result.
    pub(super) fn synced(&self, result: Result<(), IoError>) -> Result<(), IoError> {
        // This comes after the sync: earlier writes are durable only in the rest of the file.
        let whole = self.is_whole();
        match (result, self.doubt.errno()) {
            (Ok(()), _) if whole.is_err() => whole,
            (Ok(()), 0) => Ok(()),
            (Ok(()), errno) => {
                let kind = IoError::from_errno(errno as i32).kind();
                let why = "an earlier flush failed, so data written before it may be lost; check \
                           the content, then open the device again";
                Err(IoError::with(kind, why))
            }
            (Err(error), _) => {
                self.doubt.failed(&self.reporter, &error);
                Err(error)
            }
        }
    }

    /// Returns the answer to a durable write that failed. Either the bytes couldn't be written,
    /// which harms no other change; or they were and the sync failed, which is reported only here.
    /// The kernel doesn't say which, but a write of some of the same bytes without the sync shows
    /// it. Blocks.
    pub(super) fn failed_fua(&self, rq: &Request, error: IoError) -> Result<(), IoError> {
        let len = usize::try_from(rq.len()).unwrap_or(PIECE).min(PIECE);
        let mut some = self.aligned(len, AlignedBuf::zeroed);
        let n = rq.copy_to(&mut some);
        self.write_some(rq.offset(), &some[..n], ReadWriteFlags::empty())?;
        self.synced(Err(error))
    }

    fn aligned(&self, len: usize, new: impl Fn(usize, usize) -> AlignedBuf) -> AlignedBuf {
        new(len, self.align.map_or(1, |align| align.memory.max(align.offset) as usize))
    }

    fn fits(&self, at: u64, address: usize, len: usize) -> bool {
        self.align.is_none_or(|align| align.fits(at, address, len))
    }

    /// Returns the last place at or before `at` where a transfer may begin.
    fn start_of(&self, at: u64) -> u64 {
        at - at % u64::from(self.align.map_or(1, |align| align.offset))
    }

    fn read(&self, rq: &mut RequestMut<'_>) -> Result<(), IoError> {
        let end = rq.offset() + rq.len();
        let mut bounce = None;
        loop {
            let at = rq.offset() + rq.filled();
            let Some(room) = rq.rooms().next() else { return Ok(()) };
            if self.fits(at, room.as_ptr().addr(), room.len()) {
                let n = self.read_some(room, at)?;
                // SAFETY: the kernel has filled the first `n` bytes of the room.
                unsafe { rq.advance(n as u64) };
                if n == 0 {
                    return Err(self.ended(at));
                }
                continue;
            }
            let bounce = bounce.get_or_insert_with(|| self.aligned(PIECE, AlignedBuf::new));
            let from = self.start_of(at);
            let want = usize::try_from(end - from).unwrap_or(PIECE).min(PIECE);
            bounce.clear();
            let n = self.read_some(&mut bounce.spare_capacity_mut()[..want], from)?;
            // SAFETY: the kernel has filled the first `n` bytes.
            unsafe { bounce.set_len(n) };
            match bounce.get((at - from) as usize..) {
                None | Some([]) => return Err(self.ended(at)),
                Some(got) => rq.put(got),
            };
        }
    }

    /// Handles a read that found the file's end: another program has made the file shorter.
    fn ended(&self, at: u64) -> IoError {
        match &self.loss {
            Some(loss) => loss.ended(&self.file, &self.reporter, at),
            None => {
                let why = format!("the device ends at or before byte {at}: it shrank while in use");
                IoError::with(IoErrorKind::Io(libc::EIO), why)
            }
        }
    }

    fn read_some(&self, room: &mut [MaybeUninit<u8>], at: u64) -> Result<usize, IoError> {
        retry(|| rustix::io::pread(self.file(), &mut *room, at).map(|(filled, _)| filled.len()))
    }

    fn write_rest(&self, rq: &Request, done: u64) -> Result<(), IoError> {
        if !rq.flags().fua {
            return self.write_chunks(rq, done, ReadWriteFlags::empty());
        }
        self.write_chunks(rq, done, ReadWriteFlags::DSYNC)
            .or_else(|error| self.failed_fua(rq, error))
            .and_then(|()| self.is_whole())
    }

    fn write_chunks(&self, rq: &Request, done: u64, flags: ReadWriteFlags) -> Result<(), IoError> {
        // A second write of a block changes nothing.
        let done = self.start_of(done);
        let rest = || {
            rq.chunks().scan(done as usize, |skip, chunk| {
                let here = (*skip).min(chunk.len());
                *skip -= here;
                Some(&chunk[here..])
            })
        };
        let mut at = rq.offset() + done;
        let fit = |at, chunk: &[u8]| {
            let fits = self.fits(at, chunk.as_ptr().addr(), chunk.len());
            fits.then_some(at + chunk.len() as u64)
        };
        if rest().try_fold(at, fit).is_some() {
            for chunk in rest() {
                self.write(at, chunk, flags)?;
                at += chunk.len() as u64;
            }
            return Ok(());
        }
        let mut bounce = self.aligned(PIECE, AlignedBuf::new);
        for mut chunk in rest() {
            while !chunk.is_empty() {
                if bounce.len() == PIECE {
                    self.write(at, &bounce, flags)?;
                    at += PIECE as u64;
                    bounce.clear();
                }
                let (now, later) = chunk.split_at(chunk.len().min(PIECE - bounce.len()));
                bounce.extend_from_slice(now);
                chunk = later;
            }
        }
        self.write(at, &bounce, flags)
    }

    fn write(&self, mut at: u64, mut data: &[u8], flags: ReadWriteFlags) -> Result<(), IoError> {
        while !data.is_empty() {
            let n = self.write_some(at, data, flags)?;
            at += n as u64;
            data = &data[n..];
        }
        Ok(())
    }

    /// Writes at least one byte, and ends at a place where the next write may begin.
    fn write_some(&self, at: u64, data: &[u8], flags: ReadWriteFlags) -> Result<usize, IoError> {
        let write = || rustix::io::pwritev2(self.file(), &[IoSlice::new(data)], at, flags);
        let n = retry(write)?;
        match self.start_of(n as u64) as usize {
            0 => Err(IoError::with(IoErrorKind::Io(libc::EIO), "the file accepts no more bytes")),
            n => Ok(n),
        }
    }

    fn sync(&self) -> Result<(), IoError> {
        self.synced(retry(|| rustix::fs::fdatasync(self.file())))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), IoError> {
        match self.fallocate(PUNCH, offset, len)? {
            // A discard is advice. A file system that can't follow it has lost nothing.
            Fallocate::Done | Fallocate::CannotDo => Ok(()),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: Flags) -> Result<(), IoError> {
        let modes: &[FallocateFlags] = if flags.no_unmap { &[ZERO] } else { &[PUNCH, ZERO] };
        for &mode in modes {
            if let Fallocate::Done = self.fallocate(mode, offset, len)? {
                return Ok(());
            }
        }
        if flags.fast {
            let why = "the file system can only write zeroes there";
            return Err(IoError::with(IoErrorKind::NotSupported, why));
        }
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let n = (end - at).min(PIECE as u64);
            self.write(at, &ZEROES.0[..n as usize], ReadWriteFlags::empty())?;
            at += n;
        }
        Ok(())
    }

    fn fallocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> Result<Fallocate, IoError> {
        loop {
            match rustix::fs::fallocate(self.file(), mode, offset, len) {
                Ok(()) => {
                    self.found.freed();
                    return Ok(Fallocate::Done);
                }
                Err(Errno::INTR) => {}
                // NODEV and INVAL: some file systems and block devices return these for the same.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::INVAL) => {
                    return Ok(Fallocate::CannotDo);
                }
                Err(error) => return Err(IoError::from_errno(error.raw_os_error())),
            }
        }
    }
}

/// The mode of `fallocate` that frees a range.
pub(super) const PUNCH: FallocateFlags =
    FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
/// The mode of `fallocate` that zeroes a range and keeps it allocated.
pub(super) const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);

enum Fallocate {
    Done,
    CannotDo,
}

/// Returns true if a regular file lies on a file system that has no disk (tmpfs, ramfs), so that no
/// read of it waits for one.
pub fn lies_in_memory(file: impl AsFd) -> bool {
    // `TMPFS_MAGIC` and `RAMFS_MAGIC`.
    let found = rustix::fs::fstatfs(file).map(|found| found.f_type as u64 & 0xffff_ffff);
    matches!(found, Ok(0x0102_1994 | 0x8584_58f6))
}

fn retry<T>(mut f: impl FnMut() -> rustix::io::Result<T>) -> Result<T, IoError> {
    loop {
        match f() {
            Ok(value) => return Ok(value),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(IoError::from_errno(error.raw_os_error())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::os::unix::fs::FileExt;

    use super::*;
    use corewise_blockmq::Buffer;

    fn store(align: Option<Alignment>) -> Store {
        Store::new(
            FileGuard::without_path(tempfile::tempfile().unwrap()),
            FaultReporter::of_test("a test"),
            align,
        )
    }

    /// The alignment that a file system without a cache would need; the temporary file accepts it.
    const ALIGN: Option<Alignment> = Some(Alignment { memory: 512, offset: 512 });

    #[test]
    fn zeroes_are_written_where_the_file_system_cannot_zero_a_range() {
        // The loop itself, with a length that is no multiple of the block of zeroes.
        let store = store(None);
        let len = 3 * PIECE as u64 - 512;
        store.write(0, &vec![7; len as usize + 512], ReadWriteFlags::empty()).unwrap();
        store.write_zeroes(0, len, Flags { no_unmap: true, ..Flags::default() }).unwrap();
        let mut all = Vec::new();
        (&mut store.file()).rewind().unwrap();
        (&mut store.file()).read_to_end(&mut all).unwrap();
        assert!(all[..len as usize].iter().all(|&b| b == 0));
        assert!(all[len as usize..].iter().all(|&b| b == 7));
    }

    #[test]
    fn a_write_is_carried_on_from_where_it_stopped() {
        for (align, done, from) in [(None, 512, 512), (ALIGN, 512, 512), (ALIGN, 700, 512)] {
            for cut in [1, 511, 512, 513, 1023] {
                let store = store(align);
                store.file().set_len(1024).unwrap();
                let pieces: Vec<Buffer> = vec![vec![9; cut].into(), vec![9; 1024 - cut].into()];
                let mut rq = Request::write_vectored(0, pieces);
                store.perform(&mut RequestMut::from(&mut rq), done).unwrap();
                let mut data = vec![1; 1024];
                store.file().read_exact_at(&mut data, 0).unwrap();
                assert!(data[..from].iter().all(|&b| b == 0), "{align:?} {done} {cut}");
                assert!(data[from..].iter().all(|&b| b == 9), "{align:?} {done} {cut}");
            }
        }
    }

    #[test]
    fn bytes_in_memory_that_does_not_fit_arrive_in_their_order() {
        // The length is more than is copied at once, in pieces that fit neither memory nor each
        // other.
        let len = 3 * PIECE + 1024;
        let bytes: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
        let cuts = [0, 1, 512, 513, 70_000, 70_001, len];
        let pieces = || cuts.windows(2).map(|cut| cut[0]..cut[1]);
        let store = store(ALIGN);
        let written = pieces().map(|piece| bytes[piece].to_vec().into()).collect();
        store
            .perform(&mut RequestMut::from(&mut Request::write_vectored(512, written)), 0)
            .unwrap();
        let mut data = vec![0; len];
        store.file().read_exact_at(&mut data, 512).unwrap();
        assert!(data == bytes);
        let buffers = pieces().map(|piece| (bytes::BytesMut::new().into(), piece.len()));
        let (tell, told) = std::sync::mpsc::channel();
        let mut rq = Request::read_vectored(512, buffers.collect::<Vec<(Buffer, usize)>>())
            .on_complete(move |done| tell.send(done).unwrap());
        store.perform(&mut RequestMut::from(&mut rq), 0).unwrap();
        rq.complete(Ok(()));
        let done = told.recv().unwrap();
        done.result.unwrap();
        let read: Vec<u8> =
            done.payload.buffers().iter().flat_map(|b| b.as_slice().to_vec()).collect();
        assert!(read == bytes);
    }

    #[test]
    fn cached_bytes_and_no_others_are_read_without_a_worker() {
        let store = store(None);
        store.file().write_all_at(&[7; 2048], 0).unwrap();
        let mut rq =
            Request::read_vectored(512, [512, 512].map(|len| (bytes::BytesMut::new().into(), len)));
        drop(rq.rooms());
        if !store.read_now(&mut RequestMut::from(&mut rq)) {
            assert!(!store.reads_now.load(Ordering::Relaxed), "the file system can't be asked");
            return;
        }
        assert_eq!(rq.filled(), 1024);
        // The file ends: the bytes before count, and a worker finds out the rest.
        let mut rq = Request::read(1024, 2048);
        drop(rq.rooms());
        assert!(!store.read_now(&mut RequestMut::from(&mut rq)));
        assert_eq!(rq.filled(), 1024);
        assert!(store.perform(&mut RequestMut::from(&mut rq), 0).is_err());
        let mut large = Request::read(0, AT_ONCE as usize + 512);
        drop(large.rooms());
        assert!(!store.read_now(&mut RequestMut::from(&mut large)) && large.filled() == 0);
    }

    #[test]
    fn a_file_in_memory_is_read_and_written_and_flushed_on_the_spot() {
        let Ok(file) = tempfile::tempfile_in("/dev/shm") else { return println!("no tmpfs here") };
        file.set_len(4096).unwrap();
        let store =
            Store::new(FileGuard::without_path(file), FaultReporter::of_test("a test"), None)
                .of_length(4096, OnLoss::Error);
        if !store.in_memory {
            return println!("no tmpfs here");
        }
        store
            .now(&mut RequestMut::from(&mut Request::write(512, vec![7; 512]).fua()))
            .unwrap()
            .unwrap();
        store.now(&mut RequestMut::from(&mut Request::flush())).unwrap().unwrap();
        let mut rq = Request::read(0, 1024);
        drop(rq.rooms());
        store.now(&mut RequestMut::from(&mut rq)).unwrap().unwrap();
        assert_eq!(rq.filled(), 1024);
        // The file was shortened: a worker reports that.
        store.file().set_len(512).unwrap();
        assert!(store.now(&mut RequestMut::from(&mut Request::write(512, vec![7; 512]))).is_none());
        assert!(
            store.now(&mut RequestMut::from(&mut Request::write(0, vec![7; 512]))).unwrap().is_ok()
        );
        assert!(
            store.now(&mut RequestMut::from(&mut Request::write(0, vec![7; 512]).fua())).is_none()
        );
        assert!(
            store.now(&mut RequestMut::from(&mut Request::flush())).unwrap().is_err(),
            "what was written is gone"
        );
    }

    #[test]
    fn a_read_beyond_the_end_of_a_truncated_file_is_an_error_not_zeroes() {
        for align in [None, ALIGN] {
            let store = store(align).of_length(1024, OnLoss::Error);
            store.file().set_len(512).unwrap();
            let error =
                store.perform(&mut RequestMut::from(&mut Request::read(0, 1024)), 0).unwrap_err();
            assert_eq!(error.kind(), IoErrorKind::Io(libc::EIO));
            assert!(error.to_string().contains("truncated"), "{error}");
        }
    }

    #[test]
    fn a_durable_write_whose_sync_failed_leaves_no_flush_that_succeeds() {
        let store = store(None);
        store.sync().unwrap();
        // The kernel's answer if the bytes are written and the sync fails.
        let error = IoError::from_errno(libc::EIO);
        let rq = Request::write(0, vec![1; 512]);
        assert_eq!(store.failed_fua(&rq, error.clone()), Err(error));
        let error = store.sync().unwrap_err();
        assert_eq!(error.kind(), IoErrorKind::Io(libc::EIO));
        assert!(error.to_string().contains("earlier flush"), "{error}");
    }

    #[test]
    fn a_durable_write_that_could_not_write_puts_no_flush_in_doubt() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let store =
            Store::new(FileGuard::without_path(full), FaultReporter::of_test("a test"), None);
        let error = store
            .perform(&mut RequestMut::from(&mut Request::write(0, vec![1; 512]).fua()), 0)
            .unwrap_err();
        assert_eq!(error.kind(), IoErrorKind::NoSpace);
        store.synced(Ok(())).unwrap();
    }
}
