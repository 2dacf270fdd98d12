//! `crypt`: encrypts another block device, by AES-256-XTS, in the format of LUKS2 or of plain
//! dm-crypt.
//!
//! A read goes below into the request's own memory and is decrypted there. A write is encrypted
//! into memory of its own, since its caller's must not change. A small request is encrypted by the
//! thread that submits or completes it, a large one by a worker, so that no thread of the device
//! below is busy for long. The queue cuts requests at [`MOST`], so several workers share a large
//! one.

pub(crate) mod luks;
mod secret;
mod xts;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use corewise_blockmq::{
    AlignedBuf, BlockDevice, Dispatch, Driver, Flags, Geometry, Info, IoError, IoErrorKind, Op,
    Request, Started, Whole,
};
use corewise_sync::SpinLock;
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_workqueue::Workqueue;

use crate::below::{StackError, holds_data, is_zero, pass_on};
use luks::{Cost, Luks};
pub use secret::Secret;
use secret::{Locked, VolumeKey, no_memory};
use xts::{DataArea, Direction, KEY, Xts};

/// Maximum bytes of a request.
const MOST: u32 = 256 << 10;

/// Maximum bytes of a request that is encrypted without a worker. That takes about as long as
/// waking one.
const MOST_INLINE: u64 = 64 << 10;

/// Bytes of large writes that have their encrypted copies at once.
const COPIES: u64 = 16 << 20;

/// The place of the header that says where the data is and wraps its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CryptHeader {
    /// A LUKS2 header at the begin of the device. The secret is the passphrase of a key slot.
    Luks2,
    /// No header: all of the device is data, as for `cryptsetup open --type plain`. The secret is
    /// the volume key, 64 bytes.
    None,
}

/// The options of a [`Crypt`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct CryptOptions {
    header: CryptHeader,
    create: bool,
    discard: bool,
}

impl CryptOptions {
    /// Returns the options of a device with this header that exists already, and takes no discards.
    pub fn new(header: CryptHeader) -> Self {
        Self { header, create: false, discard: false }
    }

    /// Sets whether a new volume is made if the device below is empty.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets whether discards pass. They show which blocks are in use to a reader of the device
    /// below.
    pub fn discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }
}

/// An encrypted device over another one.
///
/// Bytes that were never written read as noise, as they do with dm-crypt. So all of the device
/// counts as data, and zeroes are written as encrypted zeroes.
pub struct Crypt {
    state: Arc<CryptState>,
    created: bool,
    /// Damage of a copy of the header, in words.
    damage: Option<&'static str>,
}

struct CryptState {
    below: Arc<dyn BlockDevice>,
    xts: Locked<Xts>,
    area: DataArea,
    geometry: Geometry,
    /// A: size in bytes. Release and Acquire: a grown size is seen with the growth below.
    size: AtomicU64,
    workers: Workqueue,
    /// L: is the lock, for some nanoseconds; guards the memory for copies, and the writes that wait
    /// for it.
    copies: SpinLock<Copies>,
}

/// The memory for encrypted copies of large writes, in bytes.
struct Copies {
    left: u64,
    /// Writes that wait for memory, in order. The queue bounds their number.
    waiting: VecDeque<Started>,
}

impl Crypt {
    /// Opens the volume on `below`, or makes one. Workers of the queue [below](Workqueue::below)
    /// `wq` encrypt and decrypt large requests. Blocks on the device; a passphrase takes about a
    /// second, and up to 1 GiB of memory.
    ///
    /// # Errors
    /// The header can't be read, is damaged, or has a form that isn't supported. The secret opens
    /// no key slot, or is no volume key. There is no volume, and none may be made since the device
    /// has other data.
    pub fn open(
        below: Arc<dyn BlockDevice>,
        secret: &Secret,
        options: CryptOptions,
        wq: &Workqueue,
    ) -> Result<Self, StackError> {
        Self::open_at_cost(below, secret, options, wq, Cost::USUAL)
    }

    /// Opens or makes a volume as [`Crypt::open`] does. A new key slot costs the least that there
    /// is, for tests.
    #[doc(hidden)]
    pub fn open_cheaply(
        below: Arc<dyn BlockDevice>,
        secret: &Secret,
        options: CryptOptions,
        wq: &Workqueue,
    ) -> Result<Self, StackError> {
        Self::open_at_cost(below, secret, options, wq, Cost::LEAST)
    }

    fn open_at_cost(
        below: Arc<dyn BlockDevice>,
        secret: &Secret,
        options: CryptOptions,
        wq: &Workqueue,
        cost: Cost,
    ) -> Result<Self, StackError> {
        let name = below.name().to_owned();
        let failed = |why: String| StackError::new(format!("'{name}': {why}"));
        if options.header == CryptHeader::None {
            let sector = xts::UNIT as u32;
            let area = DataArea { start: 0, size: None, sector, first: 0 };
            let key = raw_key(secret).map_err(failed)?;
            return Self::over(below, &key, area, options, wq).map_err(failed);
        }
        if let Some(luks) = Luks::find(&*below).map_err(failed)? {
            let key = luks.unlock(&*below, secret).map_err(failed)?;
            let crypt = Self::over(below, &key, luks.area, options, wq).map_err(failed)?;
            return Ok(Self { damage: luks.damage, ..crypt });
        }
        if !options.create {
            return Err(failed(
                "there is no LUKS header. create = true makes a new volume on an empty device; \
                 header = \"none\" opens data without a header"
                    .to_string(),
            ));
        }
        may_be_made(&*below).map_err(failed)?;
        let (key, area) = luks::create(&*below, secret, cost).map_err(failed)?;
        let crypt = Self::over(below, &key, area, options, wq).map_err(failed)?;
        Ok(Self { created: true, ..crypt })
    }

    /// Creates the device over an area whose key is known.
    fn over(
        below: Arc<dyn BlockDevice>,
        key: &VolumeKey,
        area: DataArea,
        options: CryptOptions,
        wq: &Workqueue,
    ) -> Result<Self, String> {
        let whole = below.geometry();
        let block_size = whole.block_size.max(area.sector);
        if area.start % u64::from(whole.block_size) != 0 {
            return Err(format!(
                "the data begins at byte {}, which is no multiple of the block size {}. Use a \
                 smaller block size",
                area.start, whole.block_size
            ));
        }
        let size = area.size_on(whole.size, block_size).ok_or_else(|| too_small(&area, &whole))?;
        let geometry = Geometry {
            size,
            block_size,
            preferred: whole.preferred.max(block_size),
            physical_block: whole.physical_block.max(block_size),
            max_transfer: whole.max_transfer.min(MOST).max(block_size),
            // Boundaries below that aren't ours are the business of the queue there.
            chunk: if area.start % u64::from(whole.chunk.max(1)) == 0 { whole.chunk } else { 0 },
            can_discard: whole.can_discard && options.discard,
            can_write_zeroes: true,
            can_fast_zero: false,
            max_write_zeroes: MOST.max(block_size).into(),
            ..whole
        };
        let xts =
            Locked::new(Xts::new(key, area.sector as usize, area.first)).map_err(no_memory)?;
        xts.warn_if_refused(below.name());
        let state = Arc::new(CryptState {
            below,
            xts,
            area,
            geometry,
            size: AtomicU64::new(size),
            workers: wq.below(),
            copies: SpinLock::new(Copies { left: COPIES, waiting: VecDeque::new() }),
        });
        Ok(Self { state, created: false, damage: None })
    }

    /// Returns true if this call of [`Crypt::open`] made the volume.
    pub fn created(&self) -> bool {
        self.created
    }

    /// Returns the first byte of the data on the device below.
    pub fn data_start(&self) -> u64 {
        self.state.area.start
    }
}

fn too_small(area: &DataArea, whole: &Geometry) -> String {
    let needs = area.start.saturating_add(area.size.unwrap_or(u64::from(area.sector)));
    format!("it has {} bytes, but the volume ends at byte {needs} or later", whole.size)
}

/// Returns the bytes of a device that the LUKS2 header there says are data, and whether a copy of
/// the header is damaged; for fuzz tests. `None`: there is no header.
pub fn header_data(device: &dyn BlockDevice) -> Result<Option<(Range<u64>, bool)>, String> {
    let whole = device.geometry();
    Ok(Luks::find(device)?.map(|luks| {
        let (area, damaged) = (luks.area, luks.damage.is_some());
        let size = area.size_on(whole.size, whole.block_size.max(area.sector)).unwrap_or_default();
        (area.start..area.start + size, damaged)
    }))
}

/// Returns the volume key that a secret is.
fn raw_key(secret: &Secret) -> Result<VolumeKey, String> {
    let mut key = Locked::new([0; KEY]).map_err(no_memory)?;
    if secret.len() != KEY {
        return Err(format!(
            "a volume key has {KEY} bytes, but this one has {}: make one by 'head -c {KEY} \
             /dev/urandom'",
            secret.len()
        ));
    }
    key.copy_from_slice(secret);
    let (data, tweak) = key.split_at(KEY / 2);
    if data == tweak {
        return Err("both halves of the volume key are the same, so it protects nothing".into());
    }
    Ok(key)
}

/// Checks that a new volume destroys nothing.
///
/// A device that doesn't know its holes counts as empty if all bytes are zero that a new volume
/// overwrites at once.
fn may_be_made(below: &dyn BlockDevice) -> Result<(), String> {
    let geometry = below.geometry();
    if geometry.read_only {
        return Err("there is no LUKS header, and the device is read-only".to_string());
    }
    let mut places = luks::overwritten(geometry.size).into_iter();
    let is_empty = match holds_data(below) {
        Some(holds) => !holds,
        None => {
            places.all(|place| is_zero(below, place.start, place.end - place.start) == Some(true))
        }
    };
    if is_empty {
        return Ok(());
    }
    Err("there is no LUKS header, and the device holds other data, which a new volume would \
         overwrite. To give that data up, use a new file, zero the device (blkdiscard --zeroout), \
         or run cryptsetup luksFormat"
        .to_string())
}

impl Driver for Crypt {
    fn info(&self) -> Info {
        let over = Info::over("crypt", &*self.state.below);
        let size = self.state.size.load(Ordering::Acquire);
        Info { geometry: Geometry { size, ..self.state.geometry }, ..over }
    }

    fn is_outdated(&self) -> bool {
        self.state.below.is_outdated()
    }

    /// Returns the damage of a copy of the header, the only condition of this driver.
    fn condition(&self) -> Option<String> {
        self.damage.map(str::to_owned)
    }

    /// Grows the device to the size of the one below, or to `size` if that has room.
    fn grow(&self, size: Option<u64>) -> Result<u64, IoError> {
        let state = &*self.state;
        let refused = |kind, why: String| Err(IoError::with(kind, why));
        if state.area.size.is_some() {
            let why = "its LUKS header says a fixed size";
            return refused(IoErrorKind::NotSupported, why.to_string());
        }
        let (block, has) = (state.geometry.block_size, state.size.load(Ordering::Acquire));
        let room = state.area.size_on(state.below.geometry().size, block).unwrap_or(has);
        let size = size.unwrap_or(room);
        if size < has || size % u64::from(block) != 0 {
            let why = format!("{size} bytes are less than {has}, or no multiple of {block}");
            return refused(IoErrorKind::InvalidInput, why);
        }
        if size > room {
            let below = state.below.name();
            let why = format!("'{below}' has room for {room} bytes. Grow '{below}' first");
            return refused(IoErrorKind::NoSpace, why);
        }
        state.size.store(size, Ordering::Release);
        Ok(size)
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        let state = &self.state;
        match rq.op() {
            Op::Read => CryptState::read(state, rq),
            Op::Write | Op::WriteZeroes if rq.len() <= MOST_INLINE => {
                CryptState::write(state, rq, 0);
            }
            Op::Write | Op::WriteZeroes => CryptState::write_large(state, rq),
            Op::Flush => pass_on(&*state.below, rq, 0),
            _ => {
                let offset = state.area.start + rq.offset();
                pass_on(&*state.below, rq, offset);
            }
        }
        Dispatch::Started
    }
}

/// Returns the bytes that count for the copy of a large write. A block larger than all of them
/// takes its turn alone.
fn copied(rq: &Started) -> u64 {
    rq.len().min(COPIES)
}

impl CryptState {
    /// Reads below into the memory of the request, and decrypts there.
    fn read(this: &Arc<Self>, rq: Started) {
        let (offset, len) = (rq.offset(), rq.len());
        let state = Arc::clone(this);
        let whole = Whole::with(rq, move |mut rq, result| {
            if result.is_err() {
                return rq.complete(result);
            }
            let theirs = Arc::clone(&state);
            let decrypt = move || {
                theirs.xts.decrypt_pieces(rq.offset(), rq.filled_mut());
                rq.complete(result);
            };
            if len <= MOST_INLINE { decrypt() } else { state.on_worker(decrypt) }
        });
        let part = whole.part(0, len, this.area.start + offset);
        drop(whole);
        this.below.submit(part);
    }

    /// Encrypts on a worker, once there is memory for the copy.
    fn write_large(this: &Arc<Self>, rq: Started) {
        let len = copied(&rq);
        let mut copies = this.copies.lock();
        // A write that comes later doesn't overtake those that wait.
        if !copies.waiting.is_empty() || copies.left < len {
            return copies.waiting.push_back(rq);
        }
        copies.left -= len;
        drop(copies);
        Self::write_on_worker(this, rq);
    }

    fn write_on_worker(this: &Arc<Self>, rq: Started) {
        let (state, len) = (Arc::clone(this), copied(&rq));
        this.on_worker(move || Self::write(&state, rq, len));
    }

    /// Frees the memory of a copy, and starts the writes that wait for it.
    fn give_back(this: &Arc<Self>, bytes: u64) {
        let mut copies = this.copies.lock();
        copies.left += bytes;
        while let Some(len) = copies.waiting.front().map(copied) {
            if copies.left < len {
                return;
            }
            copies.left -= len;
            let next = copies.waiting.pop_front();
            drop(copies);
            next.into_iter().for_each(|rq| Self::write_on_worker(this, rq));
            copies = this.copies.lock();
        }
    }

    /// Writes an encrypted copy of the bytes, or encrypted zeroes. `counted` are the bytes of it
    /// that are given back at the end.
    fn write(this: &Arc<Self>, rq: Started, counted: u64) {
        let (offset, len) = (rq.offset(), rq.len() as usize);
        let align = this.geometry.memory_alignment as usize;
        let mut bytes = match rq.op() {
            Op::WriteZeroes => AlignedBuf::zeroed(len, align),
            _ => AlignedBuf::new(len, align),
        };
        rq.chunks().for_each(|chunk| bytes.extend_from_slice(chunk));
        this.xts.crypt(Direction::Encrypt, offset, &mut bytes);
        let (state, start) = (Arc::clone(this), this.area.start);
        let write = Request::write(start + offset, bytes)
            .with_flags(Flags { fua: rq.flags().fua, ..Flags::default() })
            .on_complete(move |done| {
                drop(done.payload);
                if counted != 0 {
                    Self::give_back(&state, counted);
                }
                rq.complete(done.result.map_err(|error| match error.range() {
                    Some(range) => error.at(range.start - start..range.end - start),
                    None => error,
                }));
            });
        this.below.submit(write);
    }

    /// Runs this on a worker; here, if there are none any more.
    fn on_worker(&self, run: impl FnOnce() + Send + 'static) {
        if let Err(refused) = self.workers.execute(run) {
            (refused.closure)();
        }
    }
}
