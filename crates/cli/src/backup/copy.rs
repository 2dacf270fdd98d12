//! The copy of a device at a checkpoint into a file, which continues where an earlier one ended.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Seek, SeekFrom, Write};
use std::path::Path;

use corewise::blockmq::{BlockDevice, BlockDeviceExt, IoError, Queue};

use super::format::{BadBackup, HEADER, Header, MOST_DATA, Record};
use super::{Pace, at};
use crate::exit::Failure;

/// Extents of one request.
const EXTENTS: u32 = 256;
/// Most bytes of one question about extents.
const MOST_ASKED: u64 = 1 << 30;

/// A backup that has no end yet.
pub(super) struct Unfinished {
    file: File,
    pub(super) header: Header,
    progress: Progress,
}

/// The content of a backup so far.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// End of the last record on the device.
    offset: u64,
    records: u64,
    /// Bytes of data.
    bytes: u64,
}

impl Progress {
    fn add(&mut self, record: &Record) {
        self.records += 1;
        match record {
            Record::Data(offset, data) => {
                self.bytes += data.len() as u64;
                self.offset = offset + data.len() as u64;
            }
            Record::Zeroes(offset, len) => self.offset = offset + len,
            Record::End(..) => {}
        }
    }
}

impl Unfinished {
    /// Opens a backup that was interrupted. Its last record may be incomplete: it is cut off.
    pub(super) fn open(path: &Path) -> Result<Unfinished, Failure> {
        let failed = |why: BadBackup| at(path, format!("{why}. Remove it to begin anew"));
        let io = |error| at(path, error);
        let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
        let mut input = BufReader::new(&file);
        let header = Header::read(&mut input).map_err(failed)?;
        let (mut progress, mut end) = (Progress::default(), HEADER as u64);
        loop {
            match Record::read(&mut input, header.size, progress.offset) {
                Ok(Record::End(..)) | Err(BadBackup::Truncated | BadBackup::Damaged(_)) => break,
                Ok(record) => {
                    progress.add(&record);
                    end += record.len();
                }
                Err(error) => return Err(failed(error)),
            }
        }
        drop(input);
        file.set_len(end).map_err(io)?;
        file.seek(SeekFrom::Start(end)).map_err(io)?;
        Ok(Unfinished { file, header, progress })
    }

    fn create(path: &Path, header: Header) -> Result<Unfinished, Failure> {
        let io = |error| at(path, error);
        let mut file = File::create_new(path).map_err(io)?;
        file.write_all(&header.encode()).map_err(io)?;
        Ok(Unfinished { file, header, progress: Progress::default() })
    }

    fn add(&mut self, path: &Path, record: &Record) -> Result<(), Failure> {
        let written = self.file.write_all(&record.head()).and_then(|()| match record {
            Record::Data(_, data) => self.file.write_all(data),
            _ => Ok(()),
        });
        written.map_err(|error| at(path, error))?;
        self.progress.add(record);
        Ok(())
    }
}

/// Copies `image` into the file at `path`: the bytes that `changes` calls changed, or all. Returns
/// the bytes of data in the backup.
pub(super) fn copy(
    path: &Path,
    header: Header,
    found: Option<Unfinished>,
    image: &Queue,
    changes: Option<&Queue>,
    rate: Option<u64>,
) -> Result<u64, Failure> {
    let size = image.geometry().size;
    let mut backup = match found {
        Some(found) if found.header.size == size => found,
        Some(found) => {
            let why =
                format!("it was begun of {} bytes, and the device has {size}", found.header.size);
            return Err(at(path, why));
        }
        None => Unfinished::create(path, Header { size, ..header })?,
    };
    let mut pace = Pace::new(rate);
    let from = backup.progress.offset;
    let mut range = from..size;
    while !range.is_empty() {
        // One question to each side a time: what changed, and what of it is zero.
        let asked = match changes {
            Some(changes) => extents(changes, range.start, range.end).map_err(|e| failed(&e))?,
            None => vec![(range.end - range.start, false)],
        };
        for (len, unchanged) in asked {
            let end = range.start + len;
            if !unchanged {
                copy_range(path, &mut backup, image, (range.start, end), &mut pace)?;
            }
            range.start = end;
        }
    }
    let Progress { records, bytes, .. } = backup.progress;
    backup.add(path, &Record::End(records, bytes))?;
    backup.file.sync_all().map_err(|error| at(path, error))?;
    Ok(bytes)
}

fn copy_range(
    path: &Path,
    backup: &mut Unfinished,
    image: &Queue,
    (mut from, end): (u64, u64),
    pace: &mut Pace,
) -> Result<(), Failure> {
    while from < end {
        for (len, is_zero) in extents(image, from, end).map_err(|error| failed(&error))? {
            let until = from + len;
            if is_zero {
                backup.add(path, &Record::Zeroes(from, len))?;
                from = until;
            }
            while from < until {
                let len = (until - from).min(MOST_DATA as u64);
                pace.spend(len);
                let data = image.read_at(from, len as usize).map_err(|error| failed(&error))?;
                let is_zero = data.iter().all(|byte| *byte == 0);
                backup.add(
                    path,
                    &match is_zero {
                        true => Record::Zeroes(from, len),
                        false => Record::Data(from, data.to_vec()),
                    },
                )?;
                from += len;
            }
        }
    }
    Ok(())
}

/// Returns the lengths of the next extents of a device, and which of them read as zeroes. They end
/// at `end` or before it.
fn extents(device: &Queue, from: u64, end: u64) -> Result<Vec<(u64, bool)>, IoError> {
    let len = (end - from).min(MOST_ASKED);
    let found = device.extents_of(from, len, EXTENTS)?;
    Ok(found.iter().map(|extent| (extent.len, extent.kind.is_zero())).collect())
}

fn failed(error: &IoError) -> Failure {
    Failure::new(error.to_string())
}
