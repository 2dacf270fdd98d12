//! The memory that entries name: where a request's bytes lie, or the aligned memory through which they go.

use io_uring::{Submitter, opcode, squeue, types};

use super::super::direct::Alignment;
use crate::request::{AlignedBuf, BufferPool, Op, Request};

/// Bytes of the registered buffer for each tag.
const PIECE: usize = 16 << 10;
/// Pieces that the kernel takes in one call (`IOV_MAX`).
const MAX_PIECES: usize = 1024;
/// Per-write flag of the kernel: durable on completion (`RWF_DSYNC`).
const RWF_DSYNC: u32 = 2;

/// What the kernel calls an `iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Piece {
    base: *mut u8,
    len: usize,
}

// SAFETY: an address and a number; the address belongs to no thread.
unsafe impl Send for Piece {}

/// Memory that the kernel is told of beforehand: the buffers of pools, and aligned memory for requests whose
/// own isn't.
pub(super) struct Buffers {
    align: Option<Alignment>,
    /// Where a device goes past the cache: a piece for each tag. Only reached by way of its address, since
    /// the kernel writes there.
    bounce: Option<Piece>,
    /// What is registered with the ring, by number.
    registered: Vec<Piece>,
    /// Own what the pieces point to.
    _bounce: Option<AlignedBuf>,
    pools: Vec<BufferPool>,
}

impl Buffers {
    pub(super) fn new(align: Option<Alignment>, depth: u32, pools: &[BufferPool]) -> Self {
        let mut memory = align.map(|align| AlignedBuf::zeroed(depth as usize * PIECE, page(align)));
        let bounce =
            memory.as_mut().map(|memory| Piece { base: memory.as_mut_ptr(), len: memory.len() });
        Self { align, bounce, registered: Vec::new(), _bounce: memory, pools: pools.to_vec() }
    }

    /// Registers them with the ring.
    pub(super) fn register(&mut self, ring: &Submitter<'_>) {
        let pools = self.pools.iter().map(|pool| {
            let (base, len) = pool.whole();
            Piece { base: base.as_ptr(), len }
        });
        let all: Vec<Piece> = self.bounce.into_iter().chain(pools).collect();
        if all.is_empty() {
            return;
        }
        // SAFETY: a Piece is laid out as an iovec. The memory lives as long as the ring: an owner of both
        // drops the ring first.
        let registered = unsafe {
            ring.register_buffers(std::slice::from_raw_parts(all.as_ptr().cast(), all.len()))
        };
        match registered {
            Ok(()) => self.registered = all,
            // More memory locked than this user may, say. Then the kernel pins pages anew each time.
            Err(error) => tracing::info!(%error, "the system refuses to register buffers with \
                                                  io_uring"),
        }
    }

    /// The number of the registered memory in which a piece lies.
    fn number(&self, piece: Piece) -> Option<u16> {
        let begin = piece.base.addr();
        let inside = |known: &Piece| {
            let first = known.base.addr();
            begin >= first && begin - first <= known.len && known.len - (begin - first) >= piece.len
        };
        self.registered.iter().position(inside).and_then(|n| u16::try_from(n).ok())
    }

    /// The aligned memory of a tag, for at most [`PIECE`] bytes.
    fn of_tag(&self, tag: usize, len: usize) -> Option<Piece> {
        let bounce = self.bounce?;
        let begin = tag * PIECE;
        (len <= PIECE && begin + PIECE <= bounce.len)
            // SAFETY: inside the memory, as was just checked.
            .then(|| Piece { base: unsafe { bounce.base.add(begin) }, len })
    }
}

/// A page, or more where the file system asks for it.
fn page(align: Alignment) -> usize {
    align.memory.max(align.offset).max(4096) as usize
}

/// The memory of one tag, from its entry to its completion.
#[derive(Default)]
pub(super) struct Memory {
    /// What the kernel is given: a list of the request's own pieces, or one of aligned memory.
    pieces: Vec<Piece>,
    /// The request goes through aligned memory: the bounce buffer's, or this.
    bounced: bool,
    own: Option<AlignedBuf>,
}

impl Memory {
    /// The entry of a read or write; `None` where plain I/O has to do it.
    pub(super) fn entry(
        &mut self,
        rq: &Request,
        tag: usize,
        buffers: &Buffers,
        fd: types::Fixed,
    ) -> Option<squeue::Entry> {
        if rq.filled() != 0 {
            return None;
        }
        self.pieces.clear();
        self.pieces.extend(rq.segments().map(|s| Piece { base: s.as_ptr(), len: s.len() }));
        if let Some(align) = buffers.align {
            if !fit(align, rq.offset(), &self.pieces) {
                self.bounce(rq, tag, align, buffers)?;
            }
        }
        let (offset, dsync) = (rq.offset(), if rq.flags().fua { RWF_DSYNC as _ } else { 0 });
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
        Some(match (read, buffers.number(first)) {
            (true, Some(n)) => opcode::ReadFixed::new(fd, base, len, n).offset(offset).build(),
            (true, None) => opcode::Read::new(fd, base, len).offset(offset).build(),
            (false, Some(n)) => {
                opcode::WriteFixed::new(fd, base, len, n).offset(offset).rw_flags(dsync).build()
            }
            (false, None) => {
                opcode::Write::new(fd, base, len).offset(offset).rw_flags(dsync).build()
            }
        })
    }

    /// Has the request go through aligned memory.
    fn bounce(
        &mut self,
        rq: &Request,
        tag: usize,
        align: Alignment,
        buffers: &Buffers,
    ) -> Option<()> {
        let len = usize::try_from(rq.len()).ok()?;
        let piece = buffers.of_tag(tag, len).unwrap_or_else(|| {
            let own = self.own.insert(AlignedBuf::new(len, page(align)));
            Piece { base: own.spare_capacity_mut().as_mut_ptr().cast(), len }
        });
        let mut to = piece.base;
        for chunk in rq.chunks() {
            // SAFETY: `to` is behind the bytes of the chunks before, and all chunks of a write together have
            // `len` bytes. The memory is this tag's, and the kernel is done with the tag's last request.
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

    /// Says that the kernel has read `done` bytes to where the entry said.
    ///
    /// # Safety
    /// It has.
    pub(super) unsafe fn read(&mut self, rq: &mut Request, done: usize) {
        match self.pieces.first() {
            Some(piece) if self.bounced => {
                // SAFETY: the caller says that the kernel has filled them; it is one piece, and ours.
                rq.put(unsafe { std::slice::from_raw_parts(piece.base, done) });
            }
            // SAFETY: the caller says so, and the pieces were the request's own.
            _ => unsafe { rq.advance(done as u64) },
        }
    }

    /// The request is done with it.
    pub(super) fn end(&mut self) {
        self.bounced = false;
        self.own = None;
    }
}

/// Whether all pieces may go to (or come from) byte `at` and on as they are.
fn fit(align: Alignment, mut at: u64, pieces: &[Piece]) -> bool {
    pieces.iter().all(|piece| {
        let fits = align.fits(at, piece.base.addr(), piece.len);
        at += piece.len as u64;
        fits
    })
}
