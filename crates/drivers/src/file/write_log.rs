//! A log of the changes to a file, in the format of the kernel's `dm-log-writes` (QEMU's
//! `blklogwrites` writes it too, and `replay-log` of xfstests reads it). From it, each possible
//! content of the file after a crash can be made, moment by moment.
//!
//! ```text
//! sector 0   magic, version, number of entries, bytes of a sector
//! sector 1   an entry: sector, number of sectors, flags, bytes of a mark; a mark's text
//!      ...   its data, except of a flush, a discard and a mark
//! ```
//!
//! All words are little-endian, of 64 bits but for the last of the super block. A change is logged
//! when it is done, before it is acknowledged: the super block's number of entries counts it then.
//! A flush has its entry before it is sent to the disk. In front of it are the changes that it
//! makes durable; those that end while it runs are behind it, as in `dm-log-writes`. If the flush
//! fails, its entry becomes a mark: it has made nothing durable. Changes that overlap wait for one
//! another, from the disk to the log, so both have them in the same order.
//!
//! The log survives the server, not the machine: it lies in the host's cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use corewise_blockmq::{IoError, Op, Request, RequestMut};
use corewise_sync::{Condvar, Mutex};
use rustix::fs::FlockOperation;

use super::fault_reporter::FileDisplacement;
use crate::file_guard::FileGuard;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
/// Size of the smallest block that a device can have.
const SECTOR: u64 = 512;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// A log that is being written.
pub(super) struct WriteLog {
    /// The log's file, which has to be in its place, and as long as the written part.
    file: FileGuard,
    /// Name of the log, for people.
    name: String,
    /// L: is the lock, held while an entry is written; guards the end of the log.
    end: Mutex<LogEnd>,
    /// L: is the lock; guards the byte ranges of changes that aren't logged yet. No two overlap.
    under_way: Mutex<Vec<Range<u64>>>,
    /// Signals that one of them has ended.
    ended: Condvar,
}

/// A change in flight, which no other may overlap.
struct ActiveChange<'a> {
    log: &'a WriteLog,
    bytes: Range<u64>,
}

impl<'a> ActiveChange<'a> {
    /// Waits for changes that overlap. They wait for no other while they have their bytes.
    fn begin(log: &'a WriteLog, rq: &Request) -> Self {
        let bytes = rq.offset()..rq.offset().saturating_add(rq.len());
        let overlap = |other: &Range<u64>| other.start < bytes.end && bytes.start < other.end;
        let mut under_way = log.under_way.lock();
        while under_way.iter().any(overlap) {
            under_way = log.ended.wait(under_way);
        }
        under_way.push(bytes.clone());
        drop(under_way);
        Self { log, bytes }
    }
}

impl Drop for ActiveChange<'_> {
    fn drop(&mut self) {
        let mut under_way = self.log.under_way.lock();
        if let Some(at) = under_way.iter().position(|other| *other == self.bytes) {
            under_way.swap_remove(at);
        }
        drop(under_way);
        self.log.ended.notify_all();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LogEnd {
    at: u64,
    entries: u64,
}

/// The data that follows an entry.
enum EntryData<'a> {
    None,
    /// Text in the entry's own sector.
    Text(&'a str),
    Of(&'a Request),
    Zeroes,
}

impl WriteLog {
    /// Begins a log, or goes on with the one that is there. A mark shows the place.
    pub(super) fn open(path: &Path) -> io::Result<WriteLog> {
        let name = path.display().to_string();
        let wrong = |what: &str| io::Error::other(format!("{name}: {what}"));
        let there = path.metadata().ok();
        if there.is_some_and(|there| !there.is_file()) {
            return Err(wrong(
                "the path leads to something else than a regular file; name another path",
            ));
        }
        let mut how = OpenOptions::new();
        let file = how.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| wrong(&error.to_string()))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| wrong("another device, or another server, has it locked"))?;
        let end = match file.metadata()?.len() {
            0 => LogEnd { at: SECTOR, entries: 0 },
            len => find_end(&file, len)?.ok_or_else(|| {
                wrong("the file is no whole log of writes; move it away, or name another path")
            })?,
        };
        // A process that was killed may have left half an entry.
        file.set_len(end.at)?;
        let file = FileGuard::new(file, path).map_err(|error| wrong(&error.to_string()))?;
        let (end, under_way, ended) = (Mutex::new(end), Mutex::default(), Condvar::new());
        let log = WriteLog { file, name, end, under_way, ended };
        log.append(0, 0, MARK, EntryData::Text("opened"))?;
        Ok(log)
    }

    /// Checks that the log is where it was opened. Blocks as long as the lookup of its path does.
    pub(super) fn verify(&self) -> Result<(), FileDisplacement> {
        self.file.verify().map_err(|fault| FileDisplacement::log(&self.name, &fault))
    }

    /// Does a request, and logs its changes. Blocks.
    pub(super) fn around(
        &self,
        rq: &mut RequestMut<'_>,
        perform: impl FnOnce(&mut RequestMut<'_>) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        let fua = if rq.flags().fua { FUA } else { 0 };
        let (first, sectors) = (rq.offset() / SECTOR, rq.len() / SECTOR);
        let append = |flags, data| {
            self.append(first, sectors, flags, data).map_err(|error| {
                let kind = IoError::from_errno(error.raw_os_error().unwrap_or(libc::EIO)).kind();
                let why = format!("the write log {} cannot be written: {error}", self.name);
                IoError::with(kind, why)
            })
        };
        match rq.op() {
            Op::Flush => {
                let at = append(FLUSH, EntryData::None)?;
                return perform(rq).inspect_err(|_| self.take_back(at));
            }
            Op::Write | Op::WriteZeroes | Op::Discard => {}
            _ => return perform(rq),
        }
        let _alone = ActiveChange::begin(self, rq);
        perform(rq)?;
        match rq.op() {
            Op::Write => append(fua, EntryData::Of(rq)),
            Op::WriteZeroes => append(fua, EntryData::Zeroes),
            _ => append(DISCARD | fua, EntryData::None),
        }
        .map(drop)
    }

    /// Writes an entry behind all others, and returns its place.
    fn append(&self, first: u64, sectors: u64, flags: u64, data: EntryData<'_>) -> io::Result<u64> {
        let mut end = self.end.lock();
        let at = end.at;
        let behind = at + SECTOR;
        let written = match &data {
            EntryData::Of(rq) => self.write_data(behind, rq),
            EntryData::Zeroes => {
                let after = behind + sectors * SECTOR;
                // Behind the end there is nothing: an addition reads as zeroes, and takes no room.
                self.file.file().set_len(after).map(|()| after)
            }
            EntryData::None | EntryData::Text(_) => Ok(behind),
        };
        let text = if let EntryData::Text(text) = data { text } else { "" };
        let entry = sector(&[first, sectors, flags, text.len() as u64], text);
        let new = written.and_then(|after| {
            self.file.file().write_all_at(&entry, at)?;
            let new = LogEnd { at: after, entries: end.entries + 1 };
            // From here on the entry counts.
            self.file.file().write_all_at(&super_block(new.entries), 0)?;
            Ok(new)
        });
        match new {
            Ok(new) => {
                *end = new;
                self.file.grew(new.at);
            }
            Err(error) => {
                // No rest of it may be taken for a later entry's data.
                let _ = self.file.file().set_len(at);
                return Err(error);
            }
        }
        Ok(at)
    }

    fn write_data(&self, mut at: u64, rq: &Request) -> io::Result<u64> {
        for chunk in rq.chunks() {
            self.file.file().write_all_at(chunk, at)?;
            at += chunk.len() as u64;
        }
        Ok(at)
    }

    /// Takes back the entry of a flush that has failed.
    fn take_back(&self, at: u64) {
        const TEXT: &str = "a flush that failed";
        let entry = sector(&[0, 0, MARK, TEXT.len() as u64], TEXT);
        if let Err(error) = self.file.file().write_all_at(&entry, at) {
            tracing::error!(log = self.name, %error, "a write log keeps the entry of a flush that failed");
        }
    }
}

/// Finds the end of the log; `None` if it is no log, or not of this kind.
fn find_end(file: &File, len: u64) -> io::Result<Option<LogEnd>> {
    let word = |bytes: &[u8], n: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[n * 8..n * 8 + 8]);
        u64::from_le_bytes(word)
    };
    let mut bytes = [0; 36];
    if len < SECTOR {
        return Ok(None);
    }
    file.read_exact_at(&mut bytes, 0)?;
    let size = u64::from(u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]));
    if (word(&bytes, 0), word(&bytes, 1), size) != (MAGIC, VERSION, SECTOR) {
        return Ok(None);
    }
    let entries = word(&bytes, 2);
    let mut at = SECTOR;
    for _ in 0..entries {
        if at + SECTOR > len {
            return Ok(None);
        }
        file.read_exact_at(&mut bytes, at)?;
        // An entry without sectors is a flush or a mark, and has a flag: another program wrote
        // zeroes over it.
        if (word(&bytes, 1), word(&bytes, 2)) == (0, 0) {
            return Ok(None);
        }
        let data = if word(&bytes, 2) & DISCARD == 0 { word(&bytes, 1) } else { 0 };
        let end = data.checked_mul(SECTOR).and_then(|data| at.checked_add(SECTOR + data));
        match end.filter(|end| *end <= len) {
            Some(end) => at = end,
            None => return Ok(None),
        }
    }
    Ok(Some(LogEnd { at, entries }))
}

/// Makes a sector that begins with these words, and a text.
fn sector(words: &[u64], text: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(text.as_bytes());
    bytes.resize(SECTOR as usize, 0);
    bytes
}

fn super_block(entries: u64) -> Vec<u8> {
    // The last word has 32 bits, and zeroes follow it.
    sector(&[MAGIC, VERSION, entries, SECTOR], "")
}

#[cfg(test)]
mod tests {
    use corewise_sync::atomic::{AtomicBool, Ordering};
    use corewise_sync::thread;

    use super::*;
    use corewise_blockmq::IoErrorKind;

    fn log() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        (dir, path)
    }

    fn words(path: &Path, at: usize) -> [u64; 4] {
        let bytes = std::fs::read(path).unwrap();
        std::array::from_fn(|n| {
            u64::from_le_bytes(bytes[at + n * 8..at + n * 8 + 8].try_into().unwrap())
        })
    }

    fn done(_: &mut RequestMut<'_>) -> Result<(), IoError> {
        Ok(())
    }

    #[test]
    fn each_change_is_an_entry_with_its_data_and_the_super_block_counts_it() {
        let (_dir, path) = log();
        let log = WriteLog::open(&path).unwrap();
        log.around(&mut RequestMut::from(&mut Request::write(1024, vec![7; 1024]).fua()), done)
            .unwrap();
        log.around(&mut RequestMut::from(&mut Request::write_zeroes(0, 512)), done).unwrap();
        log.around(&mut RequestMut::from(&mut Request::discard(512, 512)), done).unwrap();
        log.around(&mut RequestMut::from(&mut Request::read(0, 512)), done).unwrap();
        log.around(&mut RequestMut::from(&mut Request::flush()), done).unwrap();
        assert_eq!(words(&path, 0), [MAGIC, VERSION, 5, 512]);
        assert_eq!(words(&path, 512), [0, 0, MARK, 6]);
        assert_eq!(words(&path, 1024), [2, 2, FUA, 0]);
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(&bytes[544..550], b"opened");
        assert!(bytes[1536..2560].iter().all(|byte| *byte == 7));
        assert_eq!(words(&path, 2560), [0, 1, 0, 0]);
        assert!(bytes[3072..3584].iter().all(|byte| *byte == 0));
        assert_eq!(words(&path, 3584), [1, 1, DISCARD, 0]);
        assert_eq!(words(&path, 4096), [0, 0, FLUSH, 0]);
        assert_eq!(bytes.len(), 4608);
    }

    #[test]
    fn what_failed_is_no_entry_and_a_flush_that_failed_is_a_mark() {
        let (_dir, path) = log();
        let log = WriteLog::open(&path).unwrap();
        let fails = |_: &mut RequestMut<'_>| Err(IoError::new(IoErrorKind::Gone));
        log.around(&mut RequestMut::from(&mut Request::write(0, vec![1; 512])), fails).unwrap_err();
        assert_eq!(words(&path, 0)[2], 1);
        log.around(&mut RequestMut::from(&mut Request::flush()), fails).unwrap_err();
        assert_eq!((words(&path, 0)[2], words(&path, 1024)[2]), (2, MARK));
    }

    #[test]
    fn a_flush_stands_in_front_of_what_ends_while_it_runs() {
        let (_dir, path) = log();
        let log = WriteLog::open(&path).unwrap();
        let during = |_: &mut RequestMut<'_>| {
            log.around(&mut RequestMut::from(&mut Request::write(0, vec![1; 512])), done)
        };
        log.around(&mut RequestMut::from(&mut Request::flush()), during).unwrap();
        assert_eq!(
            (words(&path, 1024)[2], words(&path, 1536)[..3].to_vec()),
            (FLUSH, vec![0, 1, 0])
        );
    }

    /// Returns true if a change that comes when another one is done, and not logged yet, is over
    /// before that one. The test waits for one for which `may` holds; any other gets some chances.
    fn goes_by(first: &mut RequestMut<'_>, second: &mut RequestMut<'_>, may: bool) -> bool {
        let (_dir, path) = log();
        let (log, over) = (&WriteLog::open(&path).unwrap(), &AtomicBool::new(false));
        let begun = [first.offset() / SECTOR, second.offset() / SECTOR];
        std::thread::scope(|scope| {
            let meanwhile = move |_: &mut RequestMut<'_>| {
                scope.spawn(move || {
                    log.around(second, done).unwrap();
                    over.store(true, Ordering::Relaxed);
                });
                let over = || over.load(Ordering::Relaxed);
                (0..2_000).take_while(|_| !over()).for_each(|_| thread::yield_now());
                while may && !over() {
                    thread::yield_now();
                }
                Ok(())
            };
            log.around(first, meanwhile).unwrap();
        });
        let bytes = std::fs::read(&path).unwrap();
        let entries = bytes.chunks(SECTOR as usize).skip(2);
        let offsets = entries.filter(|entry| entry[8] == 3).map(|entry| u64::from(entry[0]));
        let logged: Vec<u64> = offsets.collect();
        assert_eq!(logged.len(), 2);
        logged != begun
    }

    #[test]
    fn changes_that_overlap_come_in_the_log_as_the_disk_had_them() {
        let write = |at: u64, len: u64| Request::write(at, vec![0; len as usize]);
        let kinds: [fn(u64, u64) -> Request; 3] = [write, Request::write_zeroes, Request::discard];
        for first in kinds {
            for second in kinds {
                for at in [512, 1024, 2048] {
                    assert!(!goes_by(
                        &mut RequestMut::from(&mut first(1024, 1536)),
                        &mut RequestMut::from(&mut second(at, 1536)),
                        false
                    ));
                }
            }
        }
        assert!(
            goes_by(
                &mut RequestMut::from(&mut write(1536, 1536)),
                &mut RequestMut::from(&mut write(0, 1536)),
                true
            ),
            "these have no byte in common"
        );
        assert!(
            goes_by(
                &mut RequestMut::from(&mut write(0, 1536)),
                &mut RequestMut::from(&mut write(1536, 1536)),
                true
            ),
            "these have no byte in common"
        );
    }

    #[test]
    fn a_log_goes_on_behind_its_last_whole_entry_and_nothing_else_is_written_over() {
        let (_dir, path) = log();
        let first = WriteLog::open(&path).unwrap();
        assert!(WriteLog::open(&path).is_err_and(|error| error.to_string().contains("locked")));
        first.around(&mut RequestMut::from(&mut Request::write(0, vec![1; 512])), done).unwrap();
        // Half an entry of a process that was killed.
        first.file.file().write_all_at(&[0xFF; 700], first.end.lock().at).unwrap();
        drop(first);
        let next = WriteLog::open(&path).unwrap();
        next.around(&mut RequestMut::from(&mut Request::write_zeroes(0, 512)), done).unwrap();
        assert_eq!((words(&path, 0)[2], words(&path, 2048)[2]), (4, MARK));
        assert!(std::fs::read(&path).unwrap()[3072..].iter().all(|byte| *byte == 0));
        drop(next);
        let mut zeroed = std::fs::read(&path).unwrap();
        zeroed[512..1024].fill(0);
        for damaged in [zeroed, vec![b'x'; 600]] {
            std::fs::write(&path, &damaged).unwrap();
            let error = WriteLog::open(&path).err().unwrap().to_string();
            assert!(error.contains("no whole log"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), damaged);
        }
    }

    #[test]
    fn a_change_that_cannot_be_logged_fails_and_says_so() {
        let (_dir, path) = log();
        let mut log = WriteLog::open(&path).unwrap();
        log.file = FileGuard::new(File::open(&path).unwrap(), &path).unwrap();
        let error = log
            .around(&mut RequestMut::from(&mut Request::write(0, vec![1; 512])), done)
            .unwrap_err();
        assert!(error.to_string().contains("write log"), "{error}");
    }
}
