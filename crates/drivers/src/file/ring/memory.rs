//! The memory that entries name: the bytes of a request, or the aligned memory that they are copied
//! through.

use corewise_blockmq::{AlignedBuf, Op, Request, RequestMut};

use io_uring::{Submitter, opcode, squeue, types};

use super::super::host_cache::Alignment;

/// Number of bytes of registered memory for a slot. A power of two.
const PIECE: usize = 8 << 10;
/// Number of slots with registered memory.
const PIECES: usize = 64;
/// Number of pieces that the kernel takes in one call (`IOV_MAX`).
const MAX_PIECES: usize = 1024;
/// Per-write flag of the kernel: durable on completion (`RWF_DSYNC`).
const RWF_DSYNC: u32 = 2;

/// The kernel's `iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Piece {
    base: *mut u8,
    len: usize,
}

// SAFETY: an address and a number; the address belongs to no thread.
unsafe impl Send for Piece {}

/// Aligned memory for requests whose own isn't aligned, registered with the kernel: a piece for
/// each slot of the first [`PIECES`]. It exists from the first such request on.
#[derive(Default)]
pub(super) struct Bounce {
    /// The whole memory. Code reaches it only by its address, since the kernel writes there.
    whole: Option<Piece>,
    /// True if it is registered with the ring.
    registered: bool,
    /// The owner of the memory that the piece points to.
    _memory: Option<AlignedBuf>,
}

impl Bounce {
    fn get(&mut self, ring: &Submitter<'_>) -> Piece {
        if let Some(whole) = self.whole {
            return whole;
        }
        let mut memory = AlignedBuf::zeroed(PIECES * PIECE, PIECE);
        let whole = Piece { base: memory.as_mut_ptr(), len: memory.len() };
        // SAFETY: a Piece is laid out as an iovec. The memory lives as long as the ring: an owner
        // of both drops the ring first.
        let told = unsafe {
            ring.register_buffers(std::slice::from_raw_parts((&raw const whole).cast(), 1))
        };
        match told {
            Ok(()) => self.registered = true,
            // For instance, this user may not have so much locked memory. Then the kernel pins
            // pages anew each time.
            Err(error) => tracing::info!(%error, "the system refuses to register buffers with \
                                                  io_uring"),
        }
        self._memory = Some(memory);
        *self.whole.insert(whole)
    }

    /// Returns the aligned memory of a slot, for `len` bytes, if there is a piece for it.
    fn of_slot(
        &mut self,
        slot: usize,
        len: usize,
        align: usize,
        ring: &Submitter<'_>,
    ) -> Option<Piece> {
        if slot >= PIECES || len > PIECE || align > PIECE {
            return None;
        }
        let whole = self.get(ring);
        // SAFETY: inside the memory, as was just checked.
        Some(Piece { base: unsafe { whole.base.add(slot * PIECE) }, len })
    }
}

/// Returns the size of a page, or more if the file system needs it.
fn page(align: Alignment) -> usize {
    align.memory.max(align.offset).max(4096) as usize
}

/// The memory of one slot, from its request's entry to the completion.
#[derive(Default)]
pub(super) struct Memory {
    /// The pieces for the kernel: a list of the request's own ones, or one of aligned memory.
    pieces: Vec<Piece>,
    /// True if the request goes through aligned memory: the slot's piece, or memory of its own.
    bounced: bool,
    own: Option<AlignedBuf>,
}

/// The place of an entry, and its file.
pub(super) struct EntryTarget<'a, 'r> {
    pub(super) slot: usize,
    pub(super) fd: types::Fd,
    pub(super) align: Option<Alignment>,
    pub(super) bounce: &'a mut Bounce,
    pub(super) ring: &'a Submitter<'r>,
}

impl Memory {
    /// Makes the entry of a read or write; `None` if plain I/O has to do it.
    pub(super) fn entry(
        &mut self,
        rq: &Request,
        place: &mut EntryTarget<'_, '_>,
    ) -> Option<squeue::Entry> {
        if rq.filled() != 0 {
            return None;
        }
        self.pieces.clear();
        self.pieces.extend(rq.segments().map(|s| Piece { base: s.as_ptr(), len: s.len() }));
        if let Some(align) = place.align {
            if !fit(align, rq.offset(), &self.pieces) {
                self.bounce(rq, align, place)?;
            }
        }
        let (fd, offset) = (place.fd, rq.offset());
        let dsync = if rq.flags().fua { RWF_DSYNC as _ } else { 0 };
        let read = rq.op() == Op::Read;
        let first = *self.pieces.first()?;
        if self.pieces.len() > 1 {
            let (list, n) = (self.pieces.as_ptr().cast(), self.pieces.len().min(MAX_PIECES) as u32);
            return Some(if read {
                opcode::Readv::new(fd, list, n).offset(offset).build()
            } else {
                opcode::Writev::new(fd, list, n).offset(offset).rw_flags(dsync).build()
            });
        }
        let (base, len) = (first.base, u32::try_from(first.len).ok()?);
        let known = self.bounced && self.own.is_none() && place.bounce.registered;
        Some(match (read, known) {
            (true, true) => opcode::ReadFixed::new(fd, base, len, 0).offset(offset).build(),
            (true, false) => opcode::Read::new(fd, base, len).offset(offset).build(),
            (false, true) => {
                opcode::WriteFixed::new(fd, base, len, 0).offset(offset).rw_flags(dsync).build()
            }
            (false, false) => {
                opcode::Write::new(fd, base, len).offset(offset).rw_flags(dsync).build()
            }
        })
    }

    /// Makes the request go through aligned memory.
    fn bounce(
        &mut self,
        rq: &Request,
        align: Alignment,
        place: &mut EntryTarget<'_, '_>,
    ) -> Option<()> {
        let (len, page) = (usize::try_from(rq.len()).ok()?, page(align));
        let piece = place.bounce.of_slot(place.slot, len, page, place.ring).unwrap_or_else(|| {
            let own = self.own.insert(AlignedBuf::new(len, page));
            Piece { base: own.spare_capacity_mut().as_mut_ptr().cast(), len }
        });
        let mut to = piece.base;
        for chunk in rq.chunks() {
            // SAFETY: `to` is behind the bytes of the chunks before, and all chunks of a write
            // together have `len` bytes. The memory is this slot's, and the kernel has finished
            // with the slot's last request.
            unsafe {
                std::ptr::copy_nonoverlapping(chunk.as_ptr(), to, chunk.len());
                to = to.add(chunk.len());
            }
        }
        self.pieces.clear();
        self.pieces.push(piece);
        self.bounced = true;
        Some(())
    }

    /// Records that the kernel has read `done` bytes to the place in the entry.
    ///
    /// # Safety
    /// The kernel has done so.
    pub(super) unsafe fn read(&mut self, rq: &mut RequestMut<'_>, done: usize) {
        match self.pieces.first() {
            Some(piece) if self.bounced => {
                // SAFETY: the caller says that the kernel has filled them; it is one piece, and
                // ours.
                rq.put(unsafe { std::slice::from_raw_parts(piece.base, done) });
            }
            // SAFETY: the caller says so, and the pieces were the request's own.
            _ => unsafe { rq.advance(done as u64) },
        }
    }

    /// Ends the request's use of the memory.
    pub(super) fn end(&mut self) {
        self.bounced = false;
        self.own = None;
    }
}

/// Returns true if all pieces may go to (or come from) byte `at` and on as they are.
fn fit(align: Alignment, mut at: u64, pieces: &[Piece]) -> bool {
    pieces.iter().all(|piece| {
        let fits = align.fits(at, piece.base.addr(), piece.len);
        at += piece.len as u64;
        fits
    })
}
