//! Descriptor chains: from a head in the descriptor table to a request's header, data and status.
//!
//! The walk believes nothing. It ends after a bounded number of descriptors, so a chain that loops
//! is too long. Each descriptor is read once. A driver may cut its bytes into descriptors as it
//! likes: the first 16 readable bytes are the header, the last writable byte is the status.

use corewise_blockmq::Payload;
use virtio_bindings::virtio_blk;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress};

use crate::config::SEG_MAX;
use crate::memory::GuestRam;

/// Most descriptors of a chain: the segments, the header and the status, each in several pieces.
const MOST_DESCRIPTORS: usize = 4 * SEG_MAX as usize;
/// Bytes of a request's header.
const HEADER: usize = 16;
const DESCRIPTOR: u64 = size_of::<Descriptor>() as u64;

/// A piece of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) at: GuestAddress,
    pub(super) len: u32,
}

/// A request as the guest made it, with the spans of its memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RawRequest {
    /// The type, one of `VIRTIO_BLK_T_*`.
    pub(super) kind: u32,
    pub(super) sector: u64,
    /// The bytes that the guest sends, behind the header.
    pub(super) output: Vec<Span>,
    /// The bytes that the guest gets, in front of the status.
    pub(super) input: Vec<Span>,
    pub(super) status: GuestAddress,
}

/// A chain that isn't a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadChain {
    /// The status can be told, and is an error.
    Refused(GuestAddress, &'static str),
    /// There is no place for a status: the chain is given back as it is.
    Unanswerable(&'static str),
}

/// Returns the number of bytes of these spans.
pub(super) fn total(spans: &[Span]) -> u64 {
    spans.iter().map(|span| u64::from(span.len)).sum()
}

/// Reads the chain that begins at `head` of a table of `size` descriptors.
pub(super) fn read(
    ram: &GuestRam,
    table: GuestAddress,
    size: u16,
    head: u16,
) -> Result<RawRequest, BadChain> {
    let (mut output, mut input) = (Vec::new(), Vec::new());
    let walked = walk(ram, table, size, head, |span, writable| {
        if writable {
            input.push(span);
        } else if input.is_empty() {
            output.push(span);
        } else {
            return Err("a chain has readable memory behind writable memory");
        }
        Ok(())
    });
    walked.map_err(BadChain::Unanswerable)?;
    let status = take_last(&mut input)
        .ok_or(BadChain::Unanswerable("a chain has no writable byte for a status"))?;
    let mut header = [0; HEADER];
    if !take_first(ram, &mut output, &mut header) {
        return Err(BadChain::Refused(status, "a chain has no whole header"));
    }
    let word = |at: usize| header[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    // The second word of four bytes is reserved.
    let (kind, sector) = (word(0) as u32, word(8));
    if [&output, &input].iter().any(|spans| spans.len() > SEG_MAX as usize) {
        return Err(BadChain::Refused(status, "a chain has more segments than the disk allows"));
    }
    Ok(RawRequest { kind, sector, output, input, status })
}

/// Calls `take` for each span of a chain, with true if it is writable.
fn walk(
    ram: &GuestRam,
    mut table: GuestAddress,
    mut size: u16,
    head: u16,
    mut take: impl FnMut(Span, bool) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    let (mut next, mut indirect) = (head, false);
    for _ in 0..MOST_DESCRIPTORS {
        if next >= size {
            return Err("a chain leads out of its descriptor table");
        }
        let at = table.checked_add(u64::from(next) * DESCRIPTOR);
        let found = at.and_then(|at| ram.map_ref().read_obj::<Descriptor>(at).ok());
        let Some(descriptor) = found else {
            return Err("a descriptor table isn't in guest memory");
        };
        if descriptor.refers_to_indirect_table() {
            let len = u64::from(descriptor.len());
            let entries = u16::try_from(len / DESCRIPTOR).unwrap_or(0);
            if indirect || len % DESCRIPTOR != 0 || entries == 0 {
                return Err("an indirect descriptor table is nested, or has an impossible length");
            }
            (table, size, next, indirect) = (descriptor.addr(), entries, 0, true);
            continue;
        }
        let span = Span { at: descriptor.addr(), len: descriptor.len() };
        if span.len > 0 {
            if !ram.has(span.at, span.len as usize) {
                return Err("a chain has bytes that aren't in guest memory");
            }
            take(span, descriptor.is_write_only())?;
        }
        if !descriptor.has_next() {
            return Ok(());
        }
        next = descriptor.next();
    }
    Err("a chain has too many descriptors, or loops")
}

/// Cuts the last byte off, and returns its address.
fn take_last(spans: &mut Vec<Span>) -> Option<GuestAddress> {
    let last = spans.last_mut()?;
    last.len -= 1;
    let (at, len) = (last.at, last.len);
    if len == 0 {
        spans.pop();
    }
    at.checked_add(u64::from(len))
}

/// Cuts the first bytes off and copies them out. Returns false if there aren't as many.
fn take_first(ram: &GuestRam, spans: &mut Vec<Span>, mut out: &mut [u8]) -> bool {
    let mut empty = 0;
    for span in spans.iter_mut() {
        let here = out.len().min(span.len as usize);
        let (now, rest) = out.split_at_mut(here);
        if ram.map_ref().read_slice(now, span.at).is_err() {
            return false;
        }
        out = rest;
        span.len -= here as u32;
        // The span was found in guest memory, so its end has an address.
        span.at = GuestAddress(span.at.0.wrapping_add(here as u64));
        if span.len > 0 {
            break;
        }
        empty += 1;
    }
    let whole = out.is_empty();
    spans.drain(..empty);
    whole
}

/// Copies the bytes `skip..skip + out.len()` of these spans out of guest memory.
pub(super) fn copy_out(ram: &GuestRam, spans: &[Span], skip: u64, out: &mut [u8]) -> bool {
    let mut rest = out;
    for (at, len) in parts(spans, skip, rest.len()) {
        let (now, later) = std::mem::take(&mut rest).split_at_mut(len);
        if ram.map_ref().read_slice(now, at).is_err() {
            return false;
        }
        rest = later;
    }
    rest.is_empty()
}

/// Copies `bytes` into these spans of guest memory, from the byte `skip` on.
pub(super) fn copy_in(ram: &GuestRam, spans: &[Span], skip: u64, bytes: &[u8]) -> bool {
    let mut rest = bytes;
    for (at, len) in parts(spans, skip, rest.len()) {
        let (now, later) = rest.split_at(len);
        if ram.map_ref().write_slice(now, at).is_err() {
            return false;
        }
        rest = later;
    }
    rest.is_empty()
}

/// Copies what a read has got into guest memory.
pub(super) fn copy_payload(
    ram: &GuestRam,
    raw: &RawRequest,
    mut skip: u64,
    payload: &Payload,
) -> bool {
    payload.buffers().iter().all(|buffer| {
        let bytes = buffer.as_slice();
        let copied = copy_in(ram, &raw.input, skip, bytes);
        skip += bytes.len() as u64;
        copied
    })
}

/// Returns the pieces of guest memory that hold `len` bytes from the byte `skip` of these spans on.
fn parts(
    spans: &[Span],
    mut skip: u64,
    mut len: usize,
) -> impl Iterator<Item = (GuestAddress, usize)> {
    spans.iter().filter_map(move |span| {
        let before = skip.min(u64::from(span.len));
        skip -= before;
        let here = len.min(span.len as usize - before as usize);
        len -= here;
        (here > 0).then(|| (GuestAddress(span.at.0.wrapping_add(before)), here))
    })
}

/// The status of a request, as the guest reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    Ok = virtio_blk::VIRTIO_BLK_S_OK as u8,
    Failed = virtio_blk::VIRTIO_BLK_S_IOERR as u8,
    Unsupported = virtio_blk::VIRTIO_BLK_S_UNSUPP as u8,
}
