//! A model of an export: a plain vector of bytes, and the promises of flushes. A random client with
//! several connections sends every command, and each reply is compared with the model. So is the
//! disk, or the file, behind the export.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::common::answers::Answer;
use crate::common::*;
use corewise_blockmq::{
    BlockDevice, Extent, ExtentKind, Geometry, Op, Queue, Request as DeviceRequest,
};
use corewise_drivers::{FileDriver, FileOptions, IoPath};
use corewise_nbd::wire::*;
use corewise_nbd::{Export, Options, Server};
use corewise_sync::Mutex;
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};
use fastrand::Rng;

const SIZE: usize = 1 << 20;
const BLOCK: usize = 512;
/// Number of parts of the export. Each request of a round has its own.
const LANES: usize = 8;

/// A disk with a cache that a crash would lose. It reports zeroes as holes, which is true by
/// construction.
struct Disk {
    /// L: is the lock; guards the contents that reads return, and the flushed ones.
    state: Mutex<(Vec<u8>, Vec<u8>)>,
}

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        "model"
    }

    fn geometry(&self) -> Geometry {
        Geometry { can_fast_zero: true, can_prefetch: true, ..Geometry::new(SIZE as u64) }
    }

    fn submit(&self, mut rq: DeviceRequest) {
        let (from, to) = (rq.offset() as usize, (rq.offset() + rq.len()) as usize);
        let mut state = self.state.lock();
        let (now, durable) = &mut *state;
        match rq.op() {
            Op::Read => _ = rq.put(&now[from..to]),
            Op::Write => _ = rq.copy_to(&mut now[from..to]),
            Op::Flush => durable.copy_from_slice(now),
            Op::Discard | Op::WriteZeroes => now[from..to].fill(0),
            Op::Extents => {
                for block in now[from..to].chunks(BLOCK) {
                    let zero = block.iter().all(|byte| *byte == 0);
                    let kind = if zero { ExtentKind::Hole } else { ExtentKind::Data };
                    rq.put_extent(Extent { len: BLOCK as u64, kind });
                }
            }
            _ => {}
        }
        if rq.flags().fua {
            durable[from..to].copy_from_slice(&now[from..to]);
        }
        drop(state);
        rq.complete(Ok(()));
    }
}

/// The contents that the export has to have.
struct Model {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Blocks of which more may be durable than was promised: a part of each was written with
    /// `FUA`.
    loose: Vec<bool>,
}

impl Model {
    fn check(&self, request: &Request, answer: &Answer, form: Form) {
        let (from, to) = range(request);
        match request.command {
            // A flag that was not offered, or a range outside of the export.
            _ if answer.error != 0 => {
                assert!(is_wrong(request, form), "{request:?}: {answer:?}");
            }
            Command::READ => {
                assert!(answer.data == self.now[from..to], "{request:?}");
                assert_eq!(answer.chunks > 0, form.has_chunks());
            }
            Command::BLOCK_STATUS => {
                let mut at = from;
                for extent in &answer.extents {
                    let bytes = &self.now[at..at + extent.length as usize];
                    let zero = bytes.iter().all(|byte| *byte == 0);
                    assert!(zero || extent.flags & STATE_ZERO == 0, "{request:?}: {answer:?}");
                    at += extent.length as usize;
                }
                assert!(at > from);
            }
            _ => {}
        }
        assert!(answer.error != 0 || !is_wrong(request, form), "{request:?}: {answer:?}");
    }

    fn apply(&mut self, request: &Request, payload: &[u8]) {
        let (mut from, mut to) = range(request);
        match request.command {
            Command::WRITE => self.now[from..to].copy_from_slice(payload),
            Command::WRITE_ZEROES => self.now[from..to].fill(0),
            Command::TRIM => {
                (from, to) = (from.next_multiple_of(BLOCK), to / BLOCK * BLOCK);
                if from >= to {
                    return;
                }
                self.now[from..to].fill(0);
            }
            Command::FLUSH => {
                self.loose.fill(false);
                self.durable.copy_from_slice(&self.now);
            }
            _ => return,
        }
        if request.flags.contains(CommandFlags::FUA) {
            self.durable[from..to].copy_from_slice(&self.now[from..to]);
            for edge in [from, to] {
                if edge % BLOCK != 0 {
                    self.loose[edge / BLOCK] = true;
                }
            }
        }
    }

    fn check_durable(&self, durable: &[u8]) {
        let blocks = durable.chunks(BLOCK).zip(self.durable.chunks(BLOCK));
        for (n, (is, promised)) in blocks.enumerate() {
            assert!(self.loose[n] || is == promised, "block {n} is not what was promised");
        }
    }
}

fn range(request: &Request) -> (usize, usize) {
    (request.offset as usize, request.offset as usize + request.length as usize)
}

/// Returns true if the server has to refuse the request.
fn is_wrong(request: &Request, form: Form) -> bool {
    let flags = request.flags.without(CommandFlags::FUA);
    let extended = form == Form::Extended;
    let payload = CommandFlags::empty().with_if(extended, CommandFlags::PAYLOAD_LEN);
    if request.command == Command::WRITE && !flags.contains(payload) {
        return true;
    }
    let allowed = match request.command {
        Command::READ if form.has_chunks() => CommandFlags::DF,
        Command::WRITE_ZEROES => CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO,
        Command::BLOCK_STATUS if form.has_chunks() => CommandFlags::REQ_ONE,
        Command::BLOCK_STATUS => return true,
        Command::WRITE => payload,
        _ => CommandFlags::empty(),
    };
    let end = request.offset.checked_add(request.length);
    let is_unaligned = (request.offset | request.length) % BLOCK as u64 != 0;
    !flags.without(allowed).is_empty()
        || end.is_none_or(|end| end > SIZE as u64)
        || is_unaligned && flags.contains(CommandFlags::FAST_ZERO)
}

fn peer(server: &Server, form: Form) -> Client<UnixStream> {
    let mut client = Client::fixed(connect(server));
    client.choose(form, form.has_chunks().then_some("disk"));
    client.go("disk");
    client
}

fn random(rng: &mut Rng, form: Form, lane: usize, cookie: u64, unaligned: bool) -> Request {
    let command = [
        Command::READ,
        Command::READ,
        Command::WRITE,
        Command::WRITE,
        Command::TRIM,
        Command::WRITE_ZEROES,
        Command::CACHE,
        Command::BLOCK_STATUS,
    ][rng.usize(..8)];
    // Neighbours share a block.
    let edge = |lane| lane * (SIZE / LANES) + if lane % LANES == 0 { 0 } else { 100 + lane };
    let (begin, end) = (edge(lane), edge(lane + 1));
    let most = if rng.usize(..3) == 0 { SIZE / LANES } else { 8 * BLOCK };
    let (mut from, mut to);
    loop {
        from = begin + rng.usize(..end - begin);
        to = end.min(from + 1 + rng.usize(..most));
        if unaligned {
            break;
        }
        // At the ends of the lane, too, there are whole blocks only.
        (from, to) = (from.next_multiple_of(BLOCK), to / BLOCK * BLOCK);
        if from < to {
            break;
        }
    }
    let (mut offset, mut length) = (from as u64, (to - from) as u64);
    let mut flags = [
        CommandFlags::FUA,
        CommandFlags::NO_HOLE,
        CommandFlags::DF,
        CommandFlags::REQ_ONE,
        CommandFlags::FAST_ZERO,
    ]
    .into_iter()
    .fold(CommandFlags::empty(), |flags, flag| flags.with_if(rng.usize(..6) == 0, flag));
    if rng.usize(..2) == 0 {
        flags = CommandFlags::empty();
    }
    if rng.usize(..40) == 0 {
        offset += SIZE as u64;
    }
    if form == Form::Extended {
        // Without a payload, a length may be too large for a compact request.
        if command == Command::WRITE {
            flags = flags.with_if(rng.usize(..20) != 0, CommandFlags::PAYLOAD_LEN);
        } else if rng.usize(..20) == 0 {
            length += 1 << [32, 40, 63][rng.usize(..3)];
        }
    }
    Request { flags, command, cookie, offset, length }
}

/// The storage behind the export, while nothing is in flight.
trait Behind {
    /// Compares it with the model. If `flushed` is true, a flush ran beside the `changed` requests,
    /// and may have come before or after each of them.
    fn check(&self, model: &mut Model, changed: &[Request], flushed: bool);
}

impl Behind for Disk {
    fn check(&self, model: &mut Model, changed: &[Request], flushed: bool) {
        let state = self.state.lock();
        assert!(state.0 == model.now, "the disk holds something else");
        for request in changed.iter().filter(|_| flushed) {
            let fua = request.flags.contains(CommandFlags::FUA);
            let (mut from, end) = range(request);
            // Block by block: the first and the last may be changed by themselves.
            while from < end {
                let to = end.min((from / BLOCK + 1) * BLOCK);
                let (is, new) = (&state.1[from..to], &model.now[from..to]);
                let was = &model.durable[from..to];
                assert!(is == new || is == was && !fua, "neither before nor after {request:?}");
                model.durable[from..to].copy_from_slice(is);
                from = to;
            }
        }
        model.check_durable(&state.1);
    }
}

/// A file, as any other process sees it.
struct Path(std::path::PathBuf);

impl Behind for Path {
    fn check(&self, model: &mut Model, _changed: &[Request], _flushed: bool) {
        assert!(std::fs::read(&self.0).unwrap() == model.now, "the file holds something else");
    }
}

fn flush(cookie: u64) -> Request {
    let (flags, command) = (CommandFlags::empty(), Command::FLUSH);
    Request { flags, command, cookie, offset: 0, length: 0 }
}

fn converse(
    seed: u64,
    forms: &[Form],
    rounds: usize,
    device: Arc<dyn BlockDevice>,
    behind: &dyn Behind,
) {
    let server = Server::new(Options::new().extended_headers(true));
    server.add_export(Export::new("disk", device)).unwrap();
    let mut peers: Vec<_> = forms.iter().map(|&form| peer(&server, form)).collect();
    let (now, loose) = (vec![0; SIZE], vec![false; SIZE / BLOCK]);
    let mut model = Model { durable: now.clone(), now, loose };
    let mut rng = Rng::with_seed(seed);
    let mut cookie = 0;
    for round in 0..rounds {
        // The first rounds change whole blocks, later ones also parts of blocks.
        let unaligned = round > rounds / 3 && rng.usize(..4) != 0;
        // In a round each connection has several requests in flight, and none touches another's
        // bytes.
        let mut rounds: Vec<Vec<(Request, Vec<u8>)>> = peers.iter().map(|_| Vec::new()).collect();
        for lane in 0..LANES {
            let n = rng.usize(..peers.len());
            cookie += 1;
            let form = peers[n].form;
            let request = random(&mut rng, form, lane, cookie, unaligned);
            let byte = rng.usize(..3) as u8;
            let payload = vec![byte; request.payload_len(form) as usize];
            rounds[n].push((request, payload));
        }
        // A flush beside them covers the changes that were answered before, on any connection.
        let flushed = rng.usize(..4) == 0;
        if flushed {
            cookie += 1;
            model.apply(&flush(cookie), &[]);
            let round = rng.usize(..peers.len());
            let at = rng.usize(..rounds[round].len() + 1);
            rounds[round].insert(at, (flush(cookie), Vec::new()));
        }
        for (peer, round) in peers.iter_mut().zip(&rounds) {
            for (request, payload) in round {
                peer.send_request(*request);
                peer.send(payload);
            }
        }
        let mut changed = Vec::new();
        for (peer, round) in peers.iter_mut().zip(&rounds) {
            let mut open: Vec<_> = round.iter().map(|(rq, _)| (*rq, Answer::default())).collect();
            while !open.is_empty() {
                let (request, answer) = peer.answer(&mut open);
                model.check(&request, &answer, peer.form);
                if answer.error != 0 || request.command == Command::FLUSH {
                    assert_eq!(answer.error == 0, request.command == Command::FLUSH);
                    continue;
                }
                let sent = round.iter().find(|(rq, _)| rq.cookie == request.cookie);
                // With a flush beside it, only the change's own promise is known.
                model.apply(&request, &sent.unwrap().1);
                if request.payload_len(peer.form) > 0
                    || [Command::TRIM, Command::WRITE_ZEROES].contains(&request.command)
                {
                    changed.push(request);
                }
            }
        }
        behind.check(&mut model, &changed, flushed);
        if rng.usize(..4) == 0 {
            // Any connection will do: a flush covers the answered changes of all.
            let n = rng.usize(..peers.len());
            cookie += 1;
            assert_eq!(peers[n].ask(flush(cookie)).error, 0);
            model.apply(&flush(cookie), &[]);
            behind.check(&mut model, &[], false);
        }
    }
}

#[test]
fn every_reply_of_an_export_is_what_the_model_says() {
    for seed in 1..4 {
        use Form::{Extended, Simple, Structured};
        for forms in [&[Simple][..], &[Structured], &[Extended], &[Structured, Simple, Extended]] {
            let disk = Arc::new(Disk { state: Mutex::new((vec![0; SIZE], vec![0; SIZE])) });
            converse(seed, forms, 300, disk.clone(), &*disk);
        }
    }
}

#[test]
fn every_reply_of_a_file_is_what_the_model_says_and_what_is_answered_is_in_the_file() {
    let machine = Machine::live().unwrap();
    let pools = WorkerPools::new(&machine);
    let wq = Workqueue::builder("model").build(&pools).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (seed, io) in [(11, IoPath::Auto), (12, IoPath::Threads)] {
        let path = folder.path().join(seed.to_string());
        let file = FileOptions::new(&path).size(SIZE as u64).io(io);
        let file = FileDriver::open(file, &wq).unwrap();
        let disk = Queue::builder(&machine, Arc::new(file)).build(&wq);
        converse(
            seed,
            &[Form::Structured, Form::Simple, Form::Extended],
            100,
            disk.clone(),
            &Path(path),
        );
        disk.drain();
    }
    pools.shutdown();
}
