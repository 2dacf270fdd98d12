//! Plain file I/O on workers: the way where io_uring is refused, and the way out where a ring's
//! answer isn't a plain yes (short, interrupted, cancelled because the submitting thread ended, not
//! supported): here the request is carried on until it has succeeded or failed for good.

use std::fs::File;
use std::io::IoSlice;
use std::sync::Arc;

use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::context;
use corewise_workqueue::Workqueue;
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

use crate::driver::Started;
use crate::error::{IoError, IoErrorKind, errno};
use crate::request::{Op, Request};

/// Zeroes to write where the file system can't zero a range.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A file, and the workers that do its I/O.
#[derive(Clone)]
pub(super) struct Plain {
    file: Arc<File>,
    wq: Workqueue,
    doubt: Arc<Doubt>,
}

/// Whether a sync of the file has ever failed.
///
/// The kernel tells of a failed write-back once for each open file, takes the pages for clean, and
/// lets the next `fdatasync` succeed although the bytes never reached the disk. So the failure is
/// remembered here, and from then on no flush succeeds any more: whoever asks again must not be told
/// that the data is safe.
#[derive(Default)]
pub(super) struct Doubt {
    /// A: error number of the first sync that failed; 0 while none has. Set before that sync's
    /// request completes, so whoever was told of the failure flushes in vain. Release and Acquire.
    errno: AtomicU32,
}

impl Doubt {
    /// How a flush that ended like this is to be answered.
    pub(super) fn synced(&self, result: Result<(), IoError>) -> Result<(), IoError> {
        match (result, self.errno.load(Ordering::Acquire)) {
            (Ok(()), 0) => Ok(()),
            (Ok(()), errno) => {
                let kind = IoError::from_errno(errno.cast_signed()).kind();
                let why = "an earlier flush failed, so data from before it may be lost; open the \
                           device again once its content is checked";
                Err(IoError::with(kind, why))
            }
            (Err(error), _) => {
                self.failed(&error);
                Err(error)
            }
        }
    }

    fn failed(&self, error: &IoError) {
        let errno = error.errno().cast_unsigned();
        let (new, old) = (Ordering::AcqRel, Ordering::Acquire);
        if self.errno.compare_exchange(0, errno, new, old).is_ok() {
            tracing::error!(%error, "data could not be made durable: every flush fails from now on");
        }
    }
}

impl Plain {
    pub(super) fn new(file: Arc<File>, wq: Workqueue) -> Self {
        Self { file, wq, doubt: Arc::default() }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Has a worker do the request, or its rest: the first `done` bytes of a write are written. (A
    /// read's progress is in its buffer.) Where the workers are shut down, the request completes as
    /// gone.
    pub(super) fn start(&self, mut rq: Started, done: u64) {
        let (file, doubt) = (Arc::clone(&self.file), Arc::clone(&self.doubt));
        // Nobody waits for the handle: the request's completion tells.
        let _detached = self.wq.spawn(move || {
            let result = context::blocking("file I/O", || perform(&file, &doubt, &mut rq, done));
            rq.complete(result);
        });
    }

    /// Completes a flush that ended like this in a ring.
    pub(super) fn synced(&self, rq: Started, result: Result<(), IoError>) {
        rq.complete(self.doubt.synced(result));
    }

    /// Has a worker find out why a write with `fua` failed in a ring.
    pub(super) fn failed_fua(&self, rq: Started, error: IoError) {
        let (file, doubt) = (Arc::clone(&self.file), Arc::clone(&self.doubt));
        let _detached = self.wq.spawn(move || {
            // Its first bytes tell as much as all of them.
            let data = rq.chunks().next().unwrap_or_default();
            let why = || failed_fua(&file, &doubt, rq.offset(), data, error);
            let result = context::blocking("file I/O", why);
            rq.complete(result);
        });
    }

    /// Has a worker do something that may block.
    pub(super) fn on_worker(&self, f: impl FnOnce() + Send + 'static) {
        let _detached = self.wq.spawn(move || context::blocking("io_uring_enter", f));
    }
}

/// Does a request, from byte `done` on where it is a write. Blocks.
fn perform(file: &File, doubt: &Doubt, rq: &mut Request, done: u64) -> Result<(), IoError> {
    let fua = rq.flags().fua;
    let sync_if_fua = |()| if fua { sync(file, doubt) } else { Ok(()) };
    match rq.op() {
        Op::Read => read(file, rq),
        Op::Write => {
            let (mut at, mut skip) = (rq.offset(), done as usize);
            for chunk in rq.chunks() {
                let here = skip.min(chunk.len());
                let (data, from) = (&chunk[here..], at + here as u64);
                if fua { write_fua(file, doubt, from, data) } else { write(file, from, data) }?;
                skip -= here;
                at += chunk.len() as u64;
            }
            Ok(())
        }
        Op::Flush => sync(file, doubt),
        Op::Discard => discard(file, rq.offset(), rq.len()).and_then(sync_if_fua),
        Op::WriteZeroes => {
            write_zeroes(file, rq.offset(), rq.len(), rq.flags().no_unmap).and_then(sync_if_fua)
        }
    }
}

fn read(file: &File, rq: &mut Request) -> Result<(), IoError> {
    loop {
        let at = rq.offset() + rq.filled();
        let Some(room) = rq.rooms().next() else { return Ok(()) };
        let n = retry(|| rustix::io::pread(file, &mut *room, at).map(|(filled, _)| filled.len()))?;
        if n == 0 {
            return Err(ended(at));
        }
        // SAFETY: the kernel has filled the first `n` bytes of the room.
        unsafe { rq.advance(n as u64) };
    }
}

/// Somebody has made the file shorter behind our back.
fn ended(at: u64) -> IoError {
    IoError::with(
        IoErrorKind::Io(errno::EIO),
        format!("the file ends at or before byte {at}: it was truncated while in use"),
    )
}

fn write(file: &File, mut at: u64, mut data: &[u8]) -> Result<(), IoError> {
    while !data.is_empty() {
        let n = write_some(file, at, data, ReadWriteFlags::empty())?;
        at += n as u64;
        data = &data[n..];
    }
    Ok(())
}

fn write_fua(file: &File, doubt: &Doubt, mut at: u64, mut data: &[u8]) -> Result<(), IoError> {
    while !data.is_empty() {
        let n = match write_some(file, at, data, ReadWriteFlags::DSYNC) {
            Ok(n) => n,
            Err(error) => return failed_fua(file, doubt, at, data, error),
        };
        at += n as u64;
        data = &data[n..];
    }
    Ok(())
}

/// Writes one byte at least.
fn write_some(file: &File, at: u64, data: &[u8], flags: ReadWriteFlags) -> Result<usize, IoError> {
    match retry(|| rustix::io::pwritev2(file, &[IoSlice::new(data)], at, flags))? {
        0 => Err(IoError::with(IoErrorKind::Io(errno::EIO), "the file takes no more bytes")),
        n => Ok(n),
    }
}

/// How a durable write that failed is to be answered. Either the bytes couldn't be written, which
/// harms nobody else, or they were and the sync failed, which is the last that anybody hears of it.
/// The kernel doesn't say which; writing the same bytes without the sync does.
fn failed_fua(
    file: &File,
    doubt: &Doubt,
    at: u64,
    data: &[u8],
    error: IoError,
) -> Result<(), IoError> {
    write_some(file, at, data, ReadWriteFlags::empty())?;
    doubt.synced(Err(error))
}

fn sync(file: &File, doubt: &Doubt) -> Result<(), IoError> {
    doubt.synced(retry(|| rustix::fs::fdatasync(file)))
}

/// The mode of `fallocate` that frees a range.
pub(super) const PUNCH: FallocateFlags =
    FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
/// The mode of `fallocate` that zeroes a range and keeps it allocated.
pub(super) const ZERO: FallocateFlags = FallocateFlags::ZERO_RANGE.union(FallocateFlags::KEEP_SIZE);

fn discard(file: &File, offset: u64, len: u64) -> Result<(), IoError> {
    match fallocate(file, PUNCH, offset, len)? {
        // A discard is advice. A file system that can't follow it has lost nothing.
        Fallocate::Done | Fallocate::CannotDo => Ok(()),
    }
}

fn write_zeroes(file: &File, offset: u64, len: u64, no_unmap: bool) -> Result<(), IoError> {
    let modes: &[FallocateFlags] = if no_unmap { &[ZERO] } else { &[PUNCH, ZERO] };
    for &mode in modes {
        if let Fallocate::Done = fallocate(file, mode, offset, len)? {
            return Ok(());
        }
    }
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let n = (end - at).min(ZEROES.len() as u64);
        write(file, at, &ZEROES[..n as usize])?;
        at += n;
    }
    Ok(())
}

enum Fallocate {
    Done,
    CannotDo,
}

fn fallocate(
    file: &File,
    mode: FallocateFlags,
    offset: u64,
    len: u64,
) -> Result<Fallocate, IoError> {
    loop {
        match rustix::fs::fallocate(file, mode, offset, len) {
            Ok(()) => return Ok(Fallocate::Done),
            Err(Errno::INTR) => {}
            // NODEV and INVAL: what some file systems and block devices say for the same.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::INVAL) => {
                return Ok(Fallocate::CannotDo);
            }
            Err(error) => return Err(IoError::from_errno(error.raw_os_error())),
        }
    }
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
    use super::*;
    use std::io::{Read, Seek};

    #[test]
    fn zeroes_are_written_where_the_file_system_cannot_zero_a_range() {
        // The loop itself, with a length that is no multiple of the block of zeroes.
        let mut file = tempfile::tempfile().unwrap();
        let len = 3 * ZEROES.len() as u64 - 512;
        write(&file, 0, &vec![7; len as usize + 512]).unwrap();
        write_zeroes(&file, 0, len, true).unwrap();
        let mut all = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut all).unwrap();
        assert!(all[..len as usize].iter().all(|&b| b == 0));
        assert!(all[len as usize..].iter().all(|&b| b == 7));
    }

    #[test]
    fn a_write_is_carried_on_from_where_it_stopped() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1024).unwrap();
        for cut in [1, 511, 512, 513, 1024] {
            let pieces = vec![vec![9; cut].into(), vec![9; 1024 - cut].into()];
            let mut rq = Request::write_vectored(0, pieces);
            perform(&file, &Doubt::default(), &mut rq, 512).unwrap();
            let mut data = vec![1; 1024];
            rustix::io::pread(&file, &mut data[..], 0).unwrap();
            assert!(data[..512].iter().all(|&b| b == 0) && data[512..].iter().all(|&b| b == 9));
        }
    }

    #[test]
    fn a_read_beyond_the_end_of_a_truncated_file_is_an_error_not_zeroes() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(512).unwrap();
        let mut rq = Request::read(0, 1024);
        let error = perform(&file, &Doubt::default(), &mut rq, 0).unwrap_err();
        assert_eq!(error.kind(), IoErrorKind::Io(errno::EIO));
        assert!(error.to_string().contains("truncated"), "{error}");
    }

    #[test]
    fn a_durable_write_whose_sync_failed_leaves_no_flush_that_succeeds() {
        let file = tempfile::tempfile().unwrap();
        let doubt = Doubt::default();
        sync(&file, &doubt).unwrap();
        // What the kernel says where the bytes are written and the sync fails.
        let error = IoError::from_errno(errno::EIO);
        let told = failed_fua(&file, &doubt, 0, &[1; 512], error.clone());
        assert_eq!(told, Err(error));
        let error = sync(&file, &doubt).unwrap_err();
        assert_eq!(error.kind(), IoErrorKind::Io(errno::EIO));
        assert!(error.to_string().contains("earlier flush"), "{error}");
    }

    #[test]
    fn a_durable_write_that_could_not_write_puts_no_flush_in_doubt() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let doubt = Doubt::default();
        let error = write_fua(&full, &doubt, 0, &[1; 512]).unwrap_err();
        assert_eq!(error.kind(), IoErrorKind::NoSpace);
        sync(&tempfile::tempfile().unwrap(), &doubt).unwrap();
    }
}
