//! Turns: the way in which the clients of one export share its device.
//!
//! A device serves its requests in its own order, mostly that of arrival. So the export admits a
//! limited amount at a time ([`PLACES`]), and its connections enter by turns. Each turn allows the
//! same number of bytes and requests ([`QUANTUM`]), however many of them wait. A connection without
//! requests in the device doesn't wait at all.
//!
//! A connection keeps its places until another one wants them. While there are enough for all, each
//! batch and each completion costs one operation on a word of the connection, and nothing shared.
//!
//! Steps, races and proof: `README.md` beside this file. Model: `tests/loom/turn.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use corewise_blockmq::{Flags, Op};
use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};

/// Bytes of a request that one place stands for.
const PLACE: u64 = 16 << 10;
/// Number of places in the device of an export.
pub const PLACES: u32 = 256;
/// Number of places that a connection gets in its turn.
pub const QUANTUM: u32 = 32;
/// Largest piece of a read, a write, or of written zeroes that is in the device as one request, in
/// bytes: one turn's worth.
pub const PIECE: u64 = PLACE * QUANTUM as u64;
/// Largest piece of a discard, or of zeroes that are only noted, that is in the device as one
/// request, in bytes. Each takes one turn.
pub const PIECE_NOTED: u64 = 8 << 20;

/// The kind of a request, which decides how the server cuts and counts the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A request that moves its bytes, or writes as many zeroes.
    Bytes,
    /// A request whose range is only noted: a discard, or zeroes that become holes.
    Noted,
    /// A query for holes. It counts as the read that follows it. The device bounds its work,
    /// whatever its length.
    Question,
    /// A request that counts as one, whatever its length: the device bounds its work.
    One,
}

impl Work {
    /// Returns the kind of a request. `can_fast_zero` is the device's ability.
    pub fn of(op: Op, flags: Flags, can_fast_zero: bool) -> Work {
        match op {
            Op::Read | Op::Write => Work::Bytes,
            Op::WriteZeroes if flags.no_unmap || !can_fast_zero => Work::Bytes,
            Op::Discard | Op::WriteZeroes => Work::Noted,
            Op::Extents => Work::Question,
            // A flush or a prefetch.
            _ => Work::One,
        }
    }

    /// Returns the length of the longest piece of such a request.
    pub fn piece(self) -> u64 {
        match self {
            Work::Bytes => PIECE,
            Work::Noted => PIECE_NOTED,
            Work::Question | Work::One => u64::MAX,
        }
    }

    /// Returns the number of places that a request takes, which is no longer than a piece.
    pub fn places(self, len: u64) -> u32 {
        let wanted = match self {
            Work::Bytes | Work::Question => len.div_ceil(PLACE),
            Work::Noted => len.div_ceil(PIECE_NOTED / u64::from(QUANTUM)),
            Work::One => 1,
        };
        wanted.clamp(1, QUANTUM.into()) as u32
    }
}

const FIELD_BITS: u32 = 20;
const FIELD: u64 = (1 << FIELD_BITS) - 1;
/// Places that the connection's requests have, in the lowest bits. The connection's reader adds to
/// them. While the reader waits, the holder of the lock adds for it. Completions subtract.
const ONE_USED: u64 = 1;
/// Places that the connection keeps. Changed by the holder of the lock.
const ONE_KEPT: u64 = 1 << FIELD_BITS;
/// The waiting reader was given its turn. Set by the holder of the lock, cleared by the reader.
const GRANTED: u64 = 1 << 62;
/// A waiter wants places: the next completion takes the lock. Set and cleared by the holder of the
/// lock.
const WANTED: u64 = 1 << 63;

/// The decoded word of a flow.
#[derive(Clone, Copy)]
struct FlowState {
    used: u32,
    kept: u32,
}

impl FlowState {
    fn of(word: u64) -> FlowState {
        FlowState { used: (word & FIELD) as u32, kept: (word >> FIELD_BITS & FIELD) as u32 }
    }

    /// Returns the number of places missing to enter with `places` more.
    fn lacks(self, places: u32) -> u32 {
        (self.used + places).saturating_sub(self.kept)
    }

    /// Returns the number of places that it keeps and doesn't use.
    fn spare(self) -> u32 {
        self.kept.saturating_sub(self.used)
    }
}

/// A connection at an export.
#[derive(Debug)]
pub struct Flow {
    /// A: places used, kept and granted, and `WANTED`, laid out as the constants above say. Changed
    /// by read-modify-writes only.
    word: AtomicU64,
    waker: Waker,
}

impl Flow {
    /// Creates the flow of a connection without places. The waker wakes the reader, the only thread
    /// that enters.
    pub fn new(waker: Waker) -> Arc<Flow> {
        Arc::new(Flow { word: AtomicU64::new(0), waker })
    }

    /// Enters with places that the connection keeps.
    fn enter_kept(&self, places: u32) -> bool {
        let enter = |word| {
            (FlowState::of(word).lacks(places) == 0).then(|| word + u64::from(places) * ONE_USED)
        };
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_ok()
    }

    fn state(&self) -> FlowState {
        FlowState::of(self.word.load(Ordering::Acquire))
    }

    /// Returns the number of places that its requests have.
    pub fn used(&self) -> u32 {
        self.state().used
    }

    /// Returns how the waiting reader has entered. After that it waits no more. Reader only.
    pub fn granted(&self) -> TurnEntry {
        if self.word.load(Ordering::Acquire) & GRANTED == 0 {
            return TurnEntry::Queued;
        }
        self.word.fetch_and(!GRANTED, Ordering::AcqRel);
        TurnEntry::Turn
    }

    /// Enters unconditionally, with requests that end at once, or are likely to. Reader only.
    pub fn force(&self, places: u32) {
        self.word.fetch_add(u64::from(places) * ONE_USED, Ordering::AcqRel);
    }
}

/// The way in which a connection got its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEntry {
    /// All requests entered at once.
    All,
    /// The first request entered alone, since the connection had nothing in the device.
    First,
    /// The connection had its turn.
    Turn,
    /// The connection waits for its turn. [`Flow::granted`] returns when it comes, and the thread
    /// is woken.
    Queued,
}

/// Places that a connection has left over from its turns. Below 0: places that it has had too many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deficit(i64);

impl Deficit {
    /// Returns the demand of a connection whose requests need these numbers of places.
    pub fn demand(self, requests: impl IntoIterator<Item = u32>) -> Demand {
        let mut demand = Demand { first: 0, turn: 0, all: 0, pass: 0 };
        let mut allowance = self.0 + i64::from(QUANTUM);
        for places in requests {
            if demand.all == 0 {
                demand.first = places;
                while allowance < i64::from(places) {
                    allowance += i64::from(QUANTUM);
                    demand.pass += 1;
                }
            }
            let whole = demand.turn == demand.all;
            demand.all += places;
            if whole && i64::from(demand.all) <= allowance {
                demand.turn = demand.all;
            }
        }
        demand
    }

    /// Returns the number of places that the entry granted, and records the rest.
    pub fn entered(&mut self, demand: Demand, entry: TurnEntry) -> u32 {
        let (left, places) = match entry {
            TurnEntry::All => (0, demand.all),
            TurnEntry::First => (self.0 - i64::from(demand.first), demand.first),
            TurnEntry::Turn => {
                let turns = i64::from(QUANTUM) * i64::from(demand.pass + 1);
                (self.0 + turns - i64::from(demand.turn), demand.turn)
            }
            TurnEntry::Queued => (self.0, 0),
        };
        // A client without further requests carries nothing over.
        self.0 = if places == demand.all { 0 } else { left };
        places
    }
}

/// The places that a connection's waiting requests need. Each includes the ones before it.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Places of its first request.
    pub first: u32,
    /// Places of the requests that it may send in its next turn.
    pub turn: u32,
    /// Places of all requests.
    pub all: u32,
    /// Number of turns that it lets pass first, since it has entered past the queue so often.
    pub pass: u32,
}

/// The places of one export, and the queue of connections that wait for them.
#[derive(Debug)]
pub struct Turns {
    /// L: is the lock; guards everything in `State`. A leaf: inside it threads are woken, and
    /// nothing else is locked.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: u32,
    /// Connections that keep places.
    keepers: Vec<Arc<Flow>>,
    /// Connections that wait, in the order of their turns.
    queue: VecDeque<(Arc<Flow>, Demand)>,
}

impl Turns {
    /// Creates a pool of `places` free places.
    pub fn new(places: u32) -> Turns {
        let (keepers, queue) = (Vec::new(), VecDeque::new());
        Turns { state: Mutex::new(State { free: places, keepers, queue }) }
    }

    /// Enters, or joins the queue for a turn. Reader only.
    pub fn enter(&self, flow: &Arc<Flow>, demand: Demand) -> TurnEntry {
        if flow.enter_kept(demand.all) {
            return TurnEntry::All;
        }
        let mut state = self.state.lock();
        if state.queue.is_empty() && state.gather(flow, demand.all) {
            return TurnEntry::All;
        }
        if flow.used() == 0 {
            flow.force(demand.first);
            return TurnEntry::First;
        }
        state.queue.push_back((Arc::clone(flow), demand));
        state.want();
        state.serve();
        drop(state);
        flow.granted()
    }

    /// Leaves the queue, unless its turn has come meanwhile. Reader only.
    pub fn give_up(&self, flow: &Arc<Flow>) -> TurnEntry {
        let mut state = self.state.lock();
        state.queue.retain(|(waiting, _)| !Arc::ptr_eq(waiting, flow));
        state.serve();
        drop(state);
        flow.granted()
    }

    /// Returns the places of a request that has left the device. Any context; blocks for a few
    /// instructions at most.
    pub fn leave(&self, flow: &Arc<Flow>, places: u32) {
        let was = flow.word.fetch_sub(u64::from(places) * ONE_USED, Ordering::AcqRel);
        debug_assert!(FlowState::of(was).used >= places, "more goes out than came in");
        if was & WANTED != 0 {
            self.leave_to_others(flow);
        }
    }

    #[cold]
    fn leave_to_others(&self, flow: &Arc<Flow>) {
        let mut state = self.state.lock();
        state.take_spare(flow);
        state.serve();
        if state.queue.is_empty() {
            flow.word.fetch_and(!WANTED, Ordering::AcqRel);
        }
    }

    /// Removes a connection without requests in the device.
    pub fn remove(&self, flow: &Arc<Flow>) {
        let mut state = self.state.lock();
        state.take_spare(flow);
        state.keepers.retain(|keeper| !Arc::ptr_eq(keeper, flow));
        state.serve();
    }

    /// Returns the number of places that no connection keeps.
    pub fn free(&self) -> u32 {
        self.state.lock().free
    }
}

impl State {
    /// Takes the places that a flow keeps and doesn't use.
    fn take_spare(&mut self, flow: &Flow) {
        let take = |word| match FlowState::of(word).spare() {
            0 => None,
            spare => Some(word - u64::from(spare) * ONE_KEPT),
        };
        if let Ok(was) = flow.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, take) {
            self.free += FlowState::of(was).spare();
        }
    }

    /// Lets the flow keep `more` places, and adds `add` to its word.
    fn give(&mut self, flow: &Arc<Flow>, more: u32, add: u64) {
        self.free -= more;
        let was = flow.word.fetch_add(u64::from(more) * ONE_KEPT + add, Ordering::AcqRel);
        if FlowState::of(was).kept == 0 && more > 0 {
            self.keepers.push(Arc::clone(flow));
        }
    }

    /// Enters with `places`, for which other connections give up unused ones. Returns false if
    /// these are too few.
    fn gather(&mut self, flow: &Arc<Flow>, places: u32) -> bool {
        // Its own completions can only reduce the number.
        let lacks = flow.state().lacks(places);
        let mut at = 0;
        while self.free < lacks && at < self.keepers.len() {
            let keeper = Arc::clone(&self.keepers[at]);
            if !Arc::ptr_eq(&keeper, flow) {
                self.take_spare(&keeper);
            }
            match keeper.state().kept {
                0 => drop(self.keepers.swap_remove(at)),
                _ => at += 1,
            }
        }
        let enough = self.free >= lacks;
        if enough {
            self.give(flow, lacks, u64::from(places) * ONE_USED);
        }
        enough
    }

    /// Makes completions take the lock: those of the last in the queue and, if it is the only one,
    /// those of all that keep places.
    fn want(&mut self) {
        let Some((last, _)) = self.queue.back() else { return };
        last.word.fetch_or(WANTED, Ordering::AcqRel);
        if self.queue.len() > 1 {
            // The first one in the queue has marked the keepers. A connection that got places since
            // then had been in the queue.
            return;
        }
        // A completion before the mark has left something to take; one after it takes the lock.
        for keeper in std::mem::take(&mut self.keepers) {
            keeper.word.fetch_or(WANTED, Ordering::AcqRel);
            self.take_spare(&keeper);
            if keeper.state().kept > 0 {
                self.keepers.push(keeper);
            }
        }
    }

    /// Lets the next connections in while there are places.
    fn serve(&mut self) {
        while let Some((flow, demand)) = self.queue.front_mut() {
            if demand.pass > 0 {
                demand.pass -= 1;
                self.queue.rotate_left(1);
                continue;
            }
            let lacks = flow.state().lacks(demand.turn);
            if self.free < lacks {
                return;
            }
            let (flow, turn) = (Arc::clone(flow), u64::from(demand.turn));
            self.queue.pop_front();
            self.give(&flow, lacks, turn * ONE_USED + GRANTED);
            flow.waker.wake_by_ref();
        }
    }
}

/// A connection's flow, which is removed at the end.
#[derive(Debug)]
pub struct Turn {
    turns: Arc<Turns>,
    flow: Arc<Flow>,
}

impl Turn {
    /// Creates the flow of a connection. The waker wakes its reader.
    pub fn new(turns: &Arc<Turns>, waker: Waker) -> Turn {
        Turn { turns: Arc::clone(turns), flow: Flow::new(waker) }
    }

    /// Enters, or joins the queue for a turn. Reader only.
    pub fn enter(&self, demand: Demand) -> TurnEntry {
        self.turns.enter(&self.flow, demand)
    }

    /// Returns how the waiting reader has entered. After that it waits no more. Reader only.
    pub fn granted(&self) -> TurnEntry {
        self.flow.granted()
    }

    /// Leaves the queue, unless its turn has come meanwhile. Reader only.
    pub fn give_up(&self) -> TurnEntry {
        self.turns.give_up(&self.flow)
    }

    /// Returns true if no request of the connection is in the device.
    pub fn is_empty(&self) -> bool {
        self.flow.used() == 0
    }

    /// Enters unconditionally, with requests that end at once, or are likely to. Reader only.
    pub fn force(&self, places: u32) {
        self.flow.force(places);
    }

    /// Returns the places of a request that has left the device. Any context; blocks for a few
    /// instructions at most.
    pub fn leave(&self, places: u32) {
        self.turns.leave(&self.flow, places);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.remove(&self.flow);
    }
}

#[cfg(test)]
mod tests;
