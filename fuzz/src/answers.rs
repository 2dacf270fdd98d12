//! The target for a server's answers in the transmission phase, to a volume that is its export. The
//! first byte of an input tells whether chunks were agreed on, and the size of the pieces of the
//! rest.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use corewise_blockmq::{
    BlockDevice, Dispatch, Driver, Extent, Geometry, Info, Op, Payload, Queue, Request, Started,
};
use corewise_nbd::model::fuzzed;
use corewise_nbd::wire::{
    Form, ReplyError, ReplyFlags, STATE_HOLE, STATE_ZERO, SimpleReply, StatusExtent, Tag,
    encode_block_status, encode_data, encode_done, encode_error, encode_hole,
};
use corewise_sync::Mutex;
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};

use crate::seeds::Seed;

const SIZE: u64 = 1 << 20;
const CONTEXT: u32 = 5;

/// Returns the requests to the volume, by number. The last one hasn't been sent completely.
fn asked() -> [Request; 8] {
    [
        Request::read(0, 4096),
        Request::read(8192, 1536),
        Request::write(16384, vec![1; 512]),
        Request::flush(),
        Request::extents_of(0, SIZE, 3),
        Request::discard(32768, 512),
        Request::prefetch(0, 4096),
        Request::write(65536, vec![1; 512]),
    ]
}

/// Passes the requests that reach it to its listener.
#[derive(Debug)]
struct Catcher {
    /// L: is the lock; guards the listener.
    caught: Mutex<Option<Sender<Started>>>,
}

impl Driver for Catcher {
    fn info(&self) -> Info {
        let mut geometry = Geometry::new(SIZE);
        (geometry.can_discard, geometry.can_prefetch) = (true, true);
        Info { knows_extents: true, ..Info::new("catcher", geometry) }
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        if let Some(caught) = &*self.caught.lock() {
            caught.send(rq).expect("the other end is held as long as this one");
        }
        Dispatch::Started
    }
}

/// Returns a queue for all inputs, and its driver. Both live to the end.
fn queue() -> &'static (Arc<Queue>, Arc<Catcher>) {
    static QUEUE: OnceLock<(Arc<Queue>, Arc<Catcher>)> = OnceLock::new();
    QUEUE.get_or_init(|| {
        let machine = Machine::live().expect("this machine");
        let pools = WorkerPools::new(&machine);
        let wq = Workqueue::builder("fuzz").build(&pools).expect("a workqueue");
        let driver = Arc::new(Catcher { caught: Mutex::new(None) });
        let queue = Queue::builder(&machine, driver.clone()).name("fuzz").build(&wq);
        std::mem::forget((machine, pools, wq));
        (queue, driver)
    })
}

/// Result of a request.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    ok: bool,
    bytes: Vec<u8>,
    extents: Vec<Extent>,
}

/// Returns the results of the requests if the server sends these bytes in such pieces. Also returns
/// the order of the answers, and true if the connection continues.
fn answer(structured: bool, said: &[u8], piece: usize) -> (Vec<Told>, Vec<usize>, bool) {
    // Inputs come one at a time, except from tests that run in parallel.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (queue, driver) = queue();
    let (tell, told) = channel();
    let (send, caught) = channel();
    *driver.caught.lock() = Some(send);
    let started: Vec<Started> = asked()
        .into_iter()
        .enumerate()
        .map(|(n, rq)| {
            let tell = tell.clone();
            queue.submit(rq.on_complete(move |done| _ = tell.send((n, done))));
            caught.recv().expect("each request reaches the driver")
        })
        .collect();
    let pieces = said.chunks(piece);
    let (order, goes_on) = fuzzed::answers(structured, CONTEXT, started, pieces);
    let mut all: Vec<_> = asked().iter().map(|_| told.recv().expect("each one ends")).collect();
    all.sort_by_key(|(n, _)| *n);
    let all = all.into_iter().map(|(_, done)| {
        let (op, len, ok) = (done.op, done.len, done.result.is_ok());
        let extents = match &done.payload {
            Payload::Extents(extents) => extents.iter().collect(),
            _ => Vec::new(),
        };
        let bytes = match op {
            Op::Read if ok => done.into_data().expect("it ended well").to_vec(),
            _ => Vec::new(),
        };
        assert!(op != Op::Read || !ok || bytes.len() as u64 == len, "a read that isn't whole");
        assert!(extents.iter().map(|extent| extent.len).sum::<u64>() <= len);
        Told { ok, bytes, extents }
    });
    (all.collect(), order, goes_on)
}

/// Feeds a server's answers to some requests.
///
/// # Panics
/// If a request ends twice or not at all, a read succeeds without its bytes, or another cut of the
/// bytes gives another result.
pub fn answers(data: &[u8]) {
    let Some((&choice, said)) = data.split_first() else { return };
    let (structured, piece) = (choice & 1 != 0, usize::from(choice >> 1) + 1);
    let whole = answer(structured, said, said.len().max(1));
    let mut order = whole.1.clone();
    order.sort_unstable();
    order.dedup();
    assert_eq!(order.len(), whole.1.len(), "one was answered twice");
    for (n, told) in whole.0.iter().enumerate() {
        assert!(!told.ok || order.contains(&n), "{n} ended well without an answer");
    }
    assert_eq!(answer(structured, said, piece), whole, "it matters how the bytes are cut");
}

fn tag(n: usize) -> Tag {
    Tag { cookie: fuzzed::cookie(n), offset: 0 }
}

/// Returns the seeds of this target.
pub(crate) fn seeds() -> Vec<Seed> {
    let (form, more, last) = (Form::Structured, ReplyFlags::empty(), ReplyFlags::DONE);
    let data = |out: &mut Vec<u8>, flags, n, at, bytes: &[u8]| {
        encode_data(out, form, flags, tag(n), at, bytes.len() as u32);
        out.extend_from_slice(bytes);
    };
    let mut good = vec![1 | 12 << 1];
    data(&mut good, last, 1, 8192, &[3; 1536]);
    data(&mut good, more, 0, 2048, &[2; 2048]);
    encode_hole(&mut good, form, more, tag(0), 0, 1024);
    data(&mut good, more, 0, 1024, &[1; 1024]);
    encode_done(&mut good, form, tag(0));
    let extents = [(4096, 0), (1 << 19, STATE_HOLE | STATE_ZERO), (512, STATE_ZERO), (1 << 20, 0)]
        .map(|(length, flags)| StatusExtent { length, flags });
    encode_block_status(&mut good, form, last, tag(4), CONTEXT, &extents);
    for n in [2, 3, 5, 6] {
        encode_done(&mut good, form, tag(n));
    }
    let mut bad = vec![1];
    encode_error(&mut bad, form, more, tag(0), ReplyError::Io, "sector lost", Some(512));
    data(&mut bad, last, 0, 0, &[1; 4096]);
    encode_error(&mut bad, form, last, tag(1), ReplyError::Shutdown, "", None);
    encode_error(&mut bad, form, last, tag(7), ReplyError::NoSpc, "no room", None);
    data(&mut bad, last, 4, 0, &[1; 512]);
    let mut simple = vec![0];
    simple.extend_from_slice(&SimpleReply::new(tag(1).cookie, Ok(())).encode());
    simple.extend_from_slice(&[5; 1536]);
    for (n, result) in [(2, Ok(())), (3, Err(ReplyError::Io)), (6, Ok(())), (7, Ok(()))] {
        simple.extend_from_slice(&SimpleReply::new(tag(n).cookie, result).encode());
    }
    vec![("chunks", good), ("errors", bad), ("simple", simple)]
}
