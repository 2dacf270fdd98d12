//! The requests of a client on their way to the device, for a thread that never waits.
//!
//! A thread that serves many clients can't sleep until one of them may go on. It
//! [pushes](Feed::push) each request, and [submits](Feed::submit) after each batch and whenever the
//! client's waker was woken. The feed keeps requests that the limits or the turns hold back.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use corewise_blockmq::{Completed, Plug, Request, Whole};
use corewise_sync::time;

use crate::access::Limiter;
use crate::blocks::piece_end;
use crate::client::{Client, InDevice};
use crate::device::submit_listed;
use crate::turn::{self, Deficit, Demand, TurnEntry, Work};

/// Places that a batch may take without a turn, if the device completed the last batch on the spot.
const PROMPT: u32 = 2 * turn::QUANTUM;

/// The time at which a feed has to be submitted again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing waits in the feed.
    Idle,
    /// Requests wait for a limit until then.
    At(Instant),
    /// Requests wait for their turn: the client's waker is woken when it comes.
    Woken,
}

impl Next {
    /// Returns true if requests wait in the feed.
    pub fn is_waiting(self) -> bool {
        self != Next::Idle
    }
}

/// A function that takes the result of a request.
type Ending = Box<dyn FnOnce(Completed) + Send>;

/// A request on its way, and true if its change is listed.
struct Ready {
    rq: Request,
    listed: bool,
}

/// The requests of one client that haven't reached its device yet.
///
/// Dropping it ends them: they complete as [gone](corewise_blockmq::IoErrorKind::Gone).
pub struct Feed {
    client: Arc<Client>,
    limiters: Vec<Arc<Limiter>>,
    /// Requests behind a limit, in order.
    limited: VecDeque<(Request, Ending)>,
    /// Time at which the first of them may pass, once it has taken its part of the limits.
    passes: Option<Instant>,
    /// Requests that wait for their turn, in order.
    ready: VecDeque<Ready>,
    deficit: Deficit,
    /// Demand with which the client stands in the queue for a turn.
    queued: Option<Demand>,
    /// True if the device had completed all of the last batch when its submission returned.
    prompt: bool,
}

impl Feed {
    /// Creates the feed of a client whose requests keep to these limits.
    pub fn new(client: Arc<Client>, limiters: Vec<Arc<Limiter>>) -> Feed {
        Feed {
            client,
            limiters,
            limited: VecDeque::new(),
            passes: None,
            ready: VecDeque::new(),
            deficit: Deficit::default(),
            queued: None,
            prompt: false,
        }
    }

    /// Returns the client.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Takes a request. `then` gets the result, on any thread, in an atomic section. A change of a
    /// part of a block is refused by the device.
    pub fn push(&mut self, rq: Request, then: impl FnOnce(Completed) + Send + 'static) {
        if self.limiters.is_empty() {
            self.make_ready(rq, then);
        } else {
            self.limited.push_back((rq, Box::new(then)));
        }
    }

    /// Submits the requests that may go, and returns the time of the next call. Blocks for as long
    /// as [`BlockDevice::submit`](corewise_blockmq::BlockDevice::submit) does.
    pub fn submit(&mut self) -> Next {
        loop {
            self.pass_limits();
            if self.ready.is_empty() {
                return self.passes.map_or(Next::Idle, Next::At);
            }
            let Some(count) = self.enter() else { return Next::Woken };
            self.send(count);
        }
    }

    /// Makes requests ready that the limits let pass.
    fn pass_limits(&mut self) {
        while let Some((rq, _)) = self.limited.front() {
            let now = time::now();
            let until = self.passes.unwrap_or_else(|| {
                let bytes = if rq.op().has_bytes() { rq.len() } else { 0 };
                let waits = self.limiters.iter().map(|limiter| limiter.take(now, bytes));
                let wait = waits.max().unwrap_or_default();
                now.checked_add(wait).unwrap_or(now)
            });
            if until > now {
                self.passes = Some(until);
                return;
            }
            self.passes = None;
            if let Some((rq, then)) = self.limited.pop_front() {
                self.make_ready(rq, then);
            }
        }
    }

    fn make_ready(&mut self, rq: Request, then: impl FnOnce(Completed) + Send + 'static) {
        let client = &self.client;
        let (op, offset, len) = (rq.op(), rq.offset(), rq.len());
        let is_change = op.is_change();
        if is_change && client.shared().is_unaligned(offset, len) {
            // The device refuses it at once, and holds no place meanwhile.
            return client.device().submit(rq.quiet().on_complete(then));
        }
        let counted = is_change && client.changes().begin();
        let listed = is_change && !counted;
        let alone = || self.ready.is_empty() && client.turn().is_empty();
        let in_device = client.begin(&rq, counted, alone);
        let work = client.work(&rq);
        let rq = complete(rq, client, in_device, then);
        if client.goes_in_parts(work, op, offset, len) {
            self.push_parts(rq, work, listed);
        } else {
            self.ready.push_back(Ready { rq, listed });
        }
    }

    /// Cuts a long request into pieces that take a turn each.
    fn push_parts(&mut self, rq: Request, work: Work, listed: bool) {
        let (offset, end) = (rq.offset(), rq.offset() + rq.len());
        let whole = Whole::new(rq);
        let mut from = offset;
        while from < end {
            let to = piece_end(from, end, work.piece(), self.client.shared().block());
            let client = Arc::clone(&self.client);
            let rq = whole.part_with(from - offset, to - from, from, move |done| {
                client.left(work, to - from);
                done.record();
            });
            self.ready.push_back(Ready { rq, listed });
            from = to;
        }
    }

    fn places(&self, rq: &Request) -> u32 {
        self.client.work(rq).places(rq.len())
    }

    /// Enters the device with the first requests, and returns their number. Returns `None` if the
    /// client waits for its turn.
    fn enter(&mut self) -> Option<usize> {
        let turn = self.client.turn();
        let (demand, entry) = match self.queued.take() {
            Some(demand) => (demand, turn.granted()),
            None => {
                let demand = self.deficit.demand(self.ready.iter().map(|it| self.places(&it.rq)));
                // A device that completes on the spot has no queue, so it needs no turns.
                if self.prompt && demand.all <= PROMPT {
                    turn.force(demand.all);
                    return Some(self.ready.len());
                }
                (demand, turn.enter(demand))
            }
        };
        if entry == TurnEntry::Queued {
            self.queued = Some(demand);
            return None;
        }
        let mut left = self.deficit.entered(demand, entry);
        let entering = self.ready.iter().take_while(|it| {
            let goes = left > 0;
            left = left.saturating_sub(self.places(&it.rq));
            goes
        });
        Some(entering.count())
    }

    /// Submits the first `count` ready requests together.
    fn send(&mut self, count: usize) {
        let Feed { client, ready, .. } = self;
        let plug = Plug::start();
        let device = client.device();
        if ready.iter().take(count).any(|it| it.listed) {
            for Ready { rq, listed } in ready.drain(..count) {
                match listed {
                    true => submit_listed(client.shared(), rq),
                    false => device.submit(rq),
                }
            }
        } else {
            device.submit_batch(&mut ready.drain(..count).map(|it| it.rq));
        }
        drop(plug);
        self.prompt = self.client.turn().is_empty();
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        let client = &self.client;
        if let Some(demand) = self.queued.take() {
            let entry = client.turn().give_up();
            if entry != TurnEntry::Queued {
                // The client got places meanwhile. It returns them, and the requests below enter by
                // force.
                let got = self.deficit.entered(demand, entry);
                client.turn().leave(got);
            }
        }
        for Ready { rq, .. } in self.ready.drain(..) {
            client.turn().force(client.work(&rq).places(rq.len()));
        }
        for (rq, then) in self.limited.drain(..) {
            drop(rq.quiet().on_complete(then));
        }
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.limited.len() + self.ready.len();
        f.debug_struct("Feed").field("waiting", &waiting).finish_non_exhaustive()
    }
}

fn complete(
    rq: Request,
    client: &Arc<Client>,
    in_device: InDevice,
    then: impl FnOnce(Completed) + Send + 'static,
) -> Request {
    let client = Arc::clone(client);
    rq.quiet().on_complete(move |mut done| {
        client.ended(in_device, &mut done);
        then(done);
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    use corewise_blockmq::{BlockDevice, Geometry, IoError, IoErrorKind};
    use corewise_sync::Mutex;

    use super::*;
    use crate::access::{Peer, Rate};
    use crate::device::SharedDevice;
    use crate::turn::PIECE;

    /// A device that keeps its requests until a test ends them.
    #[derive(Default)]
    struct Keeper {
        kept: Mutex<Vec<Request>>,
        losses: AtomicUsize,
    }

    impl Keeper {
        fn len(&self) -> usize {
            self.kept.lock().len()
        }

        /// Ends the `count` oldest requests.
        fn end(&self, count: usize) {
            let ended: Vec<_> = self.kept.lock().drain(..count).collect();
            ended.into_iter().for_each(|rq| rq.complete(Ok::<(), IoError>(())));
        }
    }

    impl BlockDevice for Keeper {
        fn name(&self) -> &str {
            "keeper"
        }

        fn geometry(&self) -> Geometry {
            Geometry::new(1 << 40)
        }

        fn submit(&self, rq: Request) {
            self.kept.lock().push(rq);
        }

        fn losses(&self) -> u64 {
            self.losses.load(Ordering::Relaxed) as u64
        }
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct World {
        device: Arc<Keeper>,
        shared: Arc<SharedDevice>,
        /// L: is the lock; guards how each request ended, in order.
        ends: Arc<Mutex<Vec<Result<(), IoErrorKind>>>>,
    }

    impl World {
        fn new() -> World {
            let device = Arc::new(Keeper::default());
            let shared = SharedDevice::new(device.clone());
            World { device, shared, ends: Arc::default() }
        }

        fn feed(&self, wakes: &Arc<Wakes>, rate: Rate) -> Feed {
            let waker = Waker::from(Arc::clone(wakes));
            let client = Client::new(&self.shared, Peer::Kernel.into(), waker);
            Feed::new(Arc::new(client), Limiter::new(rate).map(Arc::new).into_iter().collect())
        }

        fn push(&self, feed: &mut Feed, rq: Request) {
            let ends = Arc::clone(&self.ends);
            feed.push(rq, move |done| ends.lock().push(done.result.map_err(|error| error.kind())));
        }

        fn ends(&self) -> Vec<Result<(), IoErrorKind>> {
            std::mem::take(&mut *self.ends.lock())
        }
    }

    #[test]
    fn a_client_alone_has_all_places_and_waits_for_its_own_requests_behind_them() {
        let (world, wakes) = (World::new(), Arc::new(Wakes::default()));
        let mut feed = world.feed(&wakes, Rate::default());
        let whole = |n| Request::write_zeroes(n * PIECE, PIECE);
        let places = (turn::PLACES / turn::QUANTUM) as usize;
        (0..places as u64).for_each(|n| world.push(&mut feed, whole(n)));
        assert_eq!(feed.submit(), Next::Idle);
        world.push(&mut feed, whole(9));
        assert_eq!((feed.submit(), world.device.len()), (Next::Woken, places));
        assert_eq!(feed.submit(), Next::Woken, "its turn hasn't come");
        world.device.end(1);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!((feed.submit(), world.device.len()), (Next::Idle, places));
        world.device.end(places);
        assert_eq!(world.ends(), vec![Ok(()); places + 1]);
    }

    #[test]
    fn a_client_beside_a_greedy_one_enters_at_once_and_has_its_turns() {
        let (world, wakes) = (World::new(), Arc::new(Wakes::default()));
        let [mut greedy, mut small] =
            [(); 2].map(|()| world.feed(&Arc::default(), Rate::default()));
        (0..100).for_each(|n| world.push(&mut greedy, Request::read(n * PIECE, PIECE as usize)));
        assert_eq!(greedy.submit(), Next::Woken);
        let before = world.device.len();
        let mut other = world.feed(&wakes, Rate::default());
        world.push(&mut other, Request::read(0, 4096));
        assert_eq!((other.submit(), world.device.len()), (Next::Idle, before + 1));
        world.push(&mut other, Request::read(4096, 4096));
        assert_eq!(other.submit(), Next::Woken);
        // One turn of the greedy client comes before its own.
        let quantum = (u64::from(turn::QUANTUM) * (16 << 10) / PIECE) as usize;
        let mut ended = 0;
        while other.submit().is_waiting() {
            world.device.end(1);
            ended += 1;
            assert_eq!(greedy.submit(), Next::Woken);
        }
        assert!(ended <= 2 * quantum, "{ended}");
        world.push(&mut small, Request::flush());
        assert_eq!(small.submit(), Next::Idle);
        drop(greedy);
        while world.device.len() > 0 {
            world.device.end(1);
        }
        assert_eq!(world.ends().len(), 103);
    }

    #[test]
    fn a_long_request_is_in_the_device_in_pieces_and_ends_once() {
        let (world, wakes) = (World::new(), Arc::new(Wakes::default()));
        let mut feed = world.feed(&wakes, Rate::default());
        world.push(&mut feed, Request::discard(0, 1 << 30));
        let mut most = 0;
        while feed.submit().is_waiting() {
            most = most.max(world.device.len());
            world.device.end(1);
        }
        assert!((1..128).contains(&most), "{most}");
        assert_eq!(world.ends(), []);
        world.device.end(world.device.len());
        assert_eq!(world.ends(), [Ok(())]);
    }

    #[test]
    fn a_limit_holds_requests_back_until_their_time() {
        let (world, wakes) = (World::new(), Arc::new(Wakes::default()));
        let rate = Rate { requests: None, bytes: Some(4096) };
        let mut feed = world.feed(&wakes, rate);
        let before = time::now();
        (0..3).for_each(|_| world.push(&mut feed, Request::read(0, 64 << 10)));
        // A full bucket lets one pass, of any length.
        let Next::At(until) = feed.submit() else { panic!() };
        assert!(until > before, "it holds back");
        assert_eq!((feed.submit(), world.device.len()), (Next::At(until), 1), "and goes on to");
        drop(feed);
        assert_eq!(world.ends(), [Err(IoErrorKind::Gone); 2]);
        world.device.end(1);
    }

    #[test]
    fn a_feed_that_is_dropped_ends_its_requests_and_keeps_no_place() {
        let (world, wakes) = (World::new(), Arc::new(Wakes::default()));
        for granted in [false, true] {
            let mut feed = world.feed(&wakes, Rate::default());
            let rest = world.feed(&wakes, Rate::default());
            (0..20).for_each(|n| world.push(&mut feed, Request::read(n * PIECE, PIECE as usize)));
            assert_eq!(feed.submit(), Next::Woken);
            if granted {
                world.device.end(3);
            }
            drop(feed);
            world.device.end(world.device.len());
            assert_eq!(world.ends().len(), 20);
            drop(rest);
            assert_eq!(world.shared.turns.free(), turn::PLACES);
        }
    }

    #[test]
    fn a_flush_fails_once_for_a_loss_before_it() {
        let (world, wakes) = (World::new(), Arc::new(Wakes::default()));
        let mut feed = world.feed(&wakes, Rate::default());
        world.device.losses.store(1, Ordering::Relaxed);
        for expected in [Err(IoErrorKind::Io(5)), Ok(())] {
            world.push(&mut feed, Request::flush());
            assert_eq!(feed.submit(), Next::Idle);
            world.device.end(1);
            assert_eq!(world.ends(), [expected]);
        }
    }

    #[test]
    fn a_change_of_a_part_of_a_block_goes_to_the_device_that_refuses_it() {
        let (world, wakes) = (World::new(), Arc::new(Wakes::default()));
        let mut feed = world.feed(&wakes, Rate::default());
        world.push(&mut feed, Request::write(1, vec![7]));
        assert_eq!((feed.submit(), world.device.len()), (Next::Idle, 1));
        world.device.end(1);
        assert_eq!(world.shared.turns.free(), turn::PLACES);
    }
}
