//! The storm's clients. Each has some blocks to itself and knows their content. It sends some
//! requests at once, and when the last of them has ended, the next ones. They are of any kind, with
//! buffers of any shape, and submitted in any way.

use corewise_topology::CpuId;
use std::sync::Arc;

use bytes::BytesMut;
use corewise_blockmq::model::ByHand;
use corewise_blockmq::{
    BlockDevice, Buffer, Completed, IoErrorKind, Op, Payload, Plug, Queue, Request,
};
use corewise_sync::Countdown;
use corewise_sync::atomic::{AtomicU64, Ordering};

use crate::common::Rng;
use crate::disk::{BAD, BLOCK, BLOCKS, CPUS, PIECES, Platter, number_in};
use crate::tally::Tally;

/// A client.
pub struct Lane {
    pub number: u64,
    pub queue: Arc<Queue>,
    pub platter: Arc<Platter>,
    pub tally: Arc<Tally>,
    /// Approximate number of requests that it sends in all.
    pub requests: u64,
    /// The waiter for all lanes.
    pub left: Arc<Countdown>,
    pub state: State,
}

/// The state of a lane. The thread that ends the last request of a round begins the next. So all
/// fields but `open` and `ended` belong to one thread at a time, and `open` passes them on.
#[derive(Default)]
pub struct State {
    /// A: number of the present round.
    round: AtomicU64,
    /// A: number of requests of all rounds.
    sent: AtomicU64,
    /// A: number of requests of this round that haven't ended. AcqRel.
    open: AtomicU64,
    /// A: the requests of this round that have ended, a bit each.
    ended: AtomicU64,
    /// A: the content of each block.
    holds: [AtomicU64; BLOCKS as usize],
}

/// One request of a round.
#[derive(Clone, Copy)]
struct Asked {
    round: u64,
    index: u8,
    op: Op,
    fua: bool,
    /// First block, counted from the lane's first.
    first: u8,
    n: u8,
}

impl Lane {
    /// Sends the next round. No request of the lane is in flight.
    pub fn go_on(self: &Arc<Self>) {
        let state = &self.state;
        if state.sent.load(Ordering::Relaxed) >= self.requests {
            let _last = self.left.done();
            return;
        }
        let round = state.round.fetch_add(1, Ordering::Relaxed) + 1;
        let mut rng = Rng::new(round ^ (self.number << 40));
        let asked = ask(round, &mut rng);
        let n = asked.len() as u64;
        state.sent.fetch_add(n, Ordering::Relaxed);
        self.tally.submitted.fetch_add(n, Ordering::Relaxed);
        state.ended.store(0, Ordering::Relaxed);
        state.open.store(n, Ordering::Release);
        let mut requests: Vec<_> =
            asked.into_iter().map(|asked| self.request(asked, &mut rng)).collect();
        if rng.below(2) == 0 {
            requests.reverse();
        }
        self.submit(requests, &mut rng);
    }

    /// Submits in one of all possible ways.
    fn submit(&self, requests: Vec<Request>, rng: &mut Rng) {
        let queue = &self.queue;
        match rng.below(6) {
            0 => requests.into_iter().for_each(|rq| queue.submit(rq)),
            1 => queue.submit_batch(&mut requests.into_iter()),
            2 => {
                let _plug = Plug::start();
                requests.into_iter().for_each(|rq| queue.submit(rq));
            }
            3 => {
                for rq in requests {
                    if let Err(refused) = queue.submit_nowait(rq) {
                        queue.submit(*refused.request);
                    }
                }
            }
            _ => {
                for rq in requests {
                    queue.submit_on(CpuId::new(rng.below(CPUS) as u32), rq);
                }
            }
        }
    }

    fn request(self: &Arc<Self>, asked: Asked, rng: &mut Rng) -> Request {
        let offset = (self.number * BLOCKS + u64::from(asked.first)) * BLOCK as u64;
        let len = usize::from(asked.n) * BLOCK;
        let rq = match asked.op {
            Op::Read => Request::read_vectored(
                offset,
                cut(len, rng).map(|len| (Buffer::from(BytesMut::new()), len)),
            ),
            Op::Write => {
                let data = asked.round.to_le_bytes().repeat(len / 8);
                let mut at = 0;
                let buffer = |len| {
                    at += len;
                    Buffer::from(data[at - len..at].to_vec())
                };
                Request::write_vectored(offset, cut(len, rng).map(buffer).collect())
            }
            Op::WriteZeroes => Request::write_zeroes(offset, len as u64),
            Op::Discard => Request::discard(offset, len as u64),
            Op::Flush => Request::flush(),
            op => unreachable!("no lane asks for {op:?}"),
        };
        let rq = if asked.fua { rq.fua() } else { rq };
        let this = Arc::clone(self);
        rq.on_complete(move |done| this.ended(asked, &done))
    }

    fn ended(self: Arc<Self>, asked: Asked, done: &Completed) {
        let state = &self.state;
        self.tally.completed.fetch_add(1, Ordering::Relaxed);
        let bit = 1 << asked.index;
        let again = state.ended.fetch_or(bit, Ordering::Relaxed) & bit != 0;
        if again || state.round.load(Ordering::Relaxed) != asked.round {
            return self.tally.bad(format!("completed twice: {done:?}"));
        }
        if let Err(what) = self.check(asked, done) {
            self.tally.bad(format!("{what}, in lane {}: {done:?}", self.number));
        }
        if state.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.go_on();
        }
    }

    fn check(&self, asked: Asked, done: &Completed) -> Result<(), &'static str> {
        let Asked { round, op, fua, first, n, .. } = asked;
        let mine = usize::from(first)..usize::from(first + n);
        if mine.contains(&(BAD as usize)) {
            let Err(error) = &done.result else { return Err("read or changed the bad block") };
            let whole = done.offset..done.offset + done.len;
            let known = error.kind() == IoErrorKind::Io(5) && error.range() == Some(whole);
            return if known { Ok(()) } else { Err("the wrong error") };
        }
        if done.result.is_err() {
            return Err("failed");
        }
        let value = match op {
            Op::Read => {
                let Payload::Many(buffers) = &done.payload else { return Err("other buffers") };
                let data: Vec<u8> =
                    buffers.iter().flat_map(|buffer| buffer.as_slice()).copied().collect();
                let good = data.len() == mine.len() * BLOCK
                    && data.chunks(BLOCK).zip(&self.state.holds[mine]).all(|(block, holds)| {
                        number_in(block) == Some(holds.load(Ordering::Relaxed))
                    });
                return if good { Ok(()) } else { Err("wrong data") };
            }
            Op::Flush => {
                // A flush is sent alone: all earlier writes are durable.
                return if self.is_durable(0..BLOCKS as usize) {
                    Ok(())
                } else {
                    Err("not flushed")
                };
            }
            Op::Write => round,
            Op::WriteZeroes => 0,
            _ => return Ok(()),
        };
        for holds in &self.state.holds[mine.clone()] {
            holds.store(value, Ordering::Relaxed);
        }
        if fua && !self.is_durable(mine) { Err("not durable") } else { Ok(()) }
    }

    /// Returns true if the content of these blocks would survive a crash.
    fn is_durable(&self, blocks: std::ops::Range<usize>) -> bool {
        blocks.into_iter().filter(|block| *block != BAD as usize).all(|block| {
            let holds = self.state.holds[block].load(Ordering::Relaxed);
            self.platter.durable(self.number * BLOCKS + block as u64) == holds
        })
    }
}

/// Chooses the requests of a round: ranges of the lane's blocks that don't overlap, or a flush.
fn ask(round: u64, rng: &mut Rng) -> Vec<Asked> {
    let mut asked = Vec::new();
    let none = Asked { round, index: 0, op: Op::Flush, fua: false, first: 0, n: 0 };
    if rng.below(24) == 0 {
        asked.push(none);
        return asked;
    }
    let most = 1 + rng.below(BLOCKS);
    let same = kind(rng);
    let alike = rng.below(2) == 0;
    let mut first = rng.below(2);
    while first < BLOCKS && (asked.len() as u64) < most {
        // The bad block has requests of its own.
        let end = if first < BAD { BAD } else { BLOCKS };
        let n = if first == BAD { 1 } else { 1 + rng.below(end - first) };
        // Requests of one kind that touch can be merged.
        let op = if alike { same } else { kind(rng) };
        let fua = matches!(op, Op::Write | Op::WriteZeroes) && rng.below(16) == 0;
        let index = asked.len() as u8;
        asked.push(Asked { index, op, fua, first: first as u8, n: n as u8, ..none });
        first += n + rng.below(3) / 2;
    }
    asked
}

fn kind(rng: &mut Rng) -> Op {
    match rng.below(20) {
        0..9 => Op::Read,
        9..18 => Op::Write,
        18 => Op::WriteZeroes,
        _ => Op::Discard,
    }
}

/// Returns the lengths of the buffers of a request: one to three, at random.
fn cut(len: usize, rng: &mut Rng) -> impl Iterator<Item = usize> {
    let pieces = 1 + rng.below(u64::from(PIECES));
    let mut cuts: Vec<usize> = (1..pieces).map(|_| rng.below(len as u64 + 1) as usize).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    cuts.dedup();
    (1..cuts.len()).map(move |i| cuts[i] - cuts[i - 1])
}
