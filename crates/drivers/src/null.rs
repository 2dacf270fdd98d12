//! `null`: reads zeroes and forgets writes. It measures the queue itself, or plays a device of a
//! known speed. The kernel's is `null_blk`.
//!
//! By default, a request completes in its dispatch. Completion threads imitate a device that has an
//! interrupt vector for each of several CPUs. The dispatch puts the request into the inbox of a
//! thread, chosen by its tag or in turn, and that thread completes it.
//!
//! A completion thread alone owns the requests that wait for their time. They come in the order in
//! which they are due, since all take equally long. It sleeps until the first is due, or until a
//! push finds its inbox empty and wakes it.

use std::collections::VecDeque;
use std::fmt;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::for_drivers::Queued;
use corewise_blockmq::{
    DEFAULT_DEPTH, Dispatch, Driver, Extent, ExtentKind, Geometry, Info, Op, Started,
};
use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::hint::{computed, spin_loop};
use corewise_sync::inbox::Inbox;
use corewise_sync::panics::caught;
use corewise_sync::sys::wake_on_time;
use corewise_sync::thread::{Builder, JoinHandle, current};
use corewise_sync::time::Stamp;
use corewise_sync::{CachePadded, Parker, Unparker};

/// The function that each completion thread first calls with its number.
type StartHook = Arc<dyn Fn(usize) + Send + Sync>;

/// Approximate time of a step of [`CompletionCost::Work`], for a machine that doesn't measure it.
const STEP: Duration = Duration::from_nanos(1);

/// The cost of a request for its completer.
#[derive(Clone, Copy, Debug)]
enum CompletionCost {
    None,
    Time(Duration),
    Work(u32),
}

impl CompletionCost {
    fn pay(self) {
        match self {
            CompletionCost::None => {}
            CompletionCost::Time(time) => {
                let end = Stamp::precise().plus(time);
                while Stamp::precise() < end {
                    spin_loop();
                }
            }
            CompletionCost::Work(steps) => {
                let mut x = 1u64;
                for _ in 0..steps {
                    x = black_box(x.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1));
                }
                computed(STEP * steps);
            }
        }
    }
}

/// The options of a null device.
#[derive(Clone)]
#[must_use]
pub struct NullOptions {
    size: u64,
    cost: CompletionCost,
    latency: Duration,
    completion_threads: usize,
    /// Number of requests in a row for one completion thread; 0: the tag chooses.
    in_turn: usize,
    leave_reads: bool,
    hw_queues: usize,
    depth: u32,
    at_start: Option<StartHook>,
}

impl NullOptions {
    /// Describes a device of `size` bytes, rounded down to whole blocks of 512, whose requests
    /// complete in their dispatch and cost nothing.
    pub fn new(size: u64) -> Self {
        Self {
            size: size & !511,
            cost: CompletionCost::None,
            latency: Duration::ZERO,
            completion_threads: 0,
            in_turn: 0,
            leave_reads: false,
            hw_queues: usize::MAX,
            depth: DEFAULT_DEPTH,
            at_start: None,
        }
    }

    /// Sets how long each request keeps the CPU that completes it busy, as an interrupt handler
    /// would. The clock measures this, to some 50 ns: time in which the thread is preempted counts.
    /// Replaces [`NullOptions::work`].
    pub fn cost(mut self, each: Duration) -> Self {
        self.cost = if each.is_zero() { CompletionCost::None } else { CompletionCost::Time(each) };
        self
    }

    /// Sets the same as a number of multiplications, each of which needs the one before: some
    /// nanoseconds each, whether the thread is preempted or not.
    pub fn work(mut self, steps: u32) -> Self {
        self.cost = if steps == 0 { CompletionCost::None } else { CompletionCost::Work(steps) };
        self
    }

    /// Makes reads succeed and leave the memory as it is, so that a measurement doesn't include the
    /// time to write zeroes.
    ///
    /// # Safety
    /// All reads, also those of a device over this one, go to memory that is initialized: a cleared
    /// [`AlignedBuf::zeroed`](corewise_blockmq::AlignedBuf::zeroed), for instance.
    pub unsafe fn leave_reads(mut self) -> Self {
        self.leave_reads = true;
        self
    }

    /// Sets the least time that a request takes. No CPU is busy meanwhile; the system's timers may
    /// make it complete later. This makes one completion thread if their number wasn't set.
    pub fn latency(mut self, each: Duration) -> Self {
        self.latency = each;
        self
    }

    /// Sets the number of threads that complete requests, each for its share of the tags. 0: the
    /// dispatch completes them.
    pub fn completion_threads(mut self, n: usize) -> Self {
        self.completion_threads = n;
        self
    }

    /// Makes completion threads take requests in turn, `batch` in a row, whatever their tags.
    /// Drivers that spread a busy device over its vectors do so (megaraid_sas: 16 in a row). 0: by
    /// their tags.
    pub fn in_turn(mut self, batch: usize) -> Self {
        self.in_turn = batch;
        self
    }

    /// Sets the function that each completion thread first calls with its number: to set its
    /// priority, say, or its CPU. A panic there is caught.
    pub fn at_thread_start(mut self, f: impl Fn(usize) + Send + Sync + 'static) -> Self {
        self.at_start = Some(Arc::new(f));
        self
    }

    /// Sets for how many hardware queues there is room, at least 1; any number unless set.
    pub fn hw_queues(mut self, n: usize) -> Self {
        self.hw_queues = n.max(1);
        self
    }

    /// Sets the requests in flight for each hardware queue, at least 1.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth.max(1);
        self
    }
}

impl NullOptions {
    fn finish(&self, mut rq: Started) {
        self.cost.pay();
        if rq.op() == Op::Extents {
            let len = rq.len();
            rq.put_extent(Extent { len, kind: ExtentKind::Hole });
        }
        if rq.op() == Op::Read {
            let len = rq.len();
            if self.leave_reads {
                // SAFETY: as `leave_reads` was promised; nothing is filled yet, and `len` is the
                // whole length.
                unsafe { rq.advance(len) };
            } else {
                rq.put_zeroes(len);
            }
        }
        rq.complete(Ok(()));
    }
}

impl fmt::Debug for NullOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NullOptions")
            .field("size", &self.size)
            .field("cost", &self.cost)
            .field("latency", &self.latency)
            .field("completion_threads", &self.completion_threads)
            .finish_non_exhaustive()
    }
}

/// A device without content.
#[derive(Debug)]
pub struct Null {
    options: NullOptions,
    vectors: Vec<CompletionThread>,
    /// A: requests so far, if threads take them in turn; Relaxed: it orders nothing else.
    turn: CachePadded<AtomicUsize>,
}

impl Null {
    /// Creates a null device of `size` bytes, rounded down to whole blocks of 512, whose requests
    /// complete before their dispatch ends.
    pub fn new(size: u64) -> Self {
        Self { options: NullOptions::new(size), vectors: Vec::new(), turn: CachePadded::default() }
    }

    /// Creates a null device with these options.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn with(options: NullOptions) -> io::Result<Self> {
        let least = usize::from(!options.latency.is_zero());
        let vectors = (0..options.completion_threads.max(least))
            .map(|n| CompletionThread::spawn(n, &options))
            .collect::<io::Result<_>>()?;
        Ok(Self { options, vectors, turn: CachePadded::default() })
    }
}

impl Driver for Null {
    fn info(&self) -> Info {
        Info {
            hw_queues: self.options.hw_queues,
            depth: self.options.depth,
            merges: false,
            // Reads that leave the memory as it is don't read as zeroes.
            knows_extents: !self.options.leave_reads,
            ..Info::new(
                "null",
                Geometry {
                    can_flush: false,
                    can_fast_zero: true,
                    ..Geometry::new(self.options.size)
                },
            )
        }
    }

    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        if self.vectors.is_empty() {
            self.options.finish(rq);
        } else {
            let n = match self.options.in_turn {
                0 => hctx + rq.tag() as usize,
                batch => self.turn.fetch_add(1, Ordering::Relaxed) / batch,
            };
            self.vectors[n % self.vectors.len()].push(rq);
        }
        Dispatch::Started
    }
}

/// A completion thread's inbox.
#[derive(Debug)]
struct Vector {
    fresh: Inbox<Queued>,
    /// A: true once the device is dropped; Release and Acquire.
    end: AtomicBool,
}

/// A completion thread, ended when it is dropped.
#[derive(Debug)]
struct CompletionThread {
    vector: Arc<CachePadded<Vector>>,
    unparker: Unparker,
    thread: Option<JoinHandle<()>>,
}

impl CompletionThread {
    fn spawn(n: usize, options: &NullOptions) -> io::Result<Self> {
        let vector = Vector { fresh: Inbox::new(), end: AtomicBool::new(false) };
        let vector = Arc::new(CachePadded::new(vector));
        let parker = Parker::new();
        let unparker = parker.unparker();
        let (theirs, options) = (Arc::clone(&vector), options.clone());
        let thread = Builder::new().name(format!("cw-null/{n}")).spawn(move || {
            if let Some(at_start) = &options.at_start {
                if caught(|| at_start(n)).is_none() {
                    tracing::error!(n, "the start function of a null completion thread panicked");
                }
            }
            if !options.latency.is_zero() {
                // The system may wake a sleeper 50 us late unless asked not to; it may refuse that.
                let _ = wake_on_time();
            }
            theirs.run(&parker, &options);
        })?;
        Ok(Self { vector, unparker, thread: Some(thread) })
    }

    fn push(&self, rq: Started) {
        if self.vector.fresh.push(Queued(rq)) {
            self.unparker.unpark();
        }
    }
}

impl Drop for CompletionThread {
    /// Ends the threads. No request waits here: each keeps its queue, and with it the driver,
    /// alive.
    fn drop(&mut self) {
        self.vector.end.store(true, Ordering::Release);
        self.unparker.unpark();
        if let Some(thread) = self.thread.take() {
            // The last request's completion may drop the driver on the thread itself.
            if thread.thread().id() != current().id() && thread.join().is_err() {
                tracing::error!("a null completion thread panicked");
            }
        }
    }
}

impl Vector {
    fn run(&self, parker: &Parker, options: &NullOptions) {
        let latency = options.latency;
        let mut waiting: VecDeque<(Stamp, Started)> = VecDeque::new();
        loop {
            if latency.is_zero() {
                for Queued(rq) in self.fresh.take() {
                    options.finish(rq);
                }
            } else {
                let due = Stamp::precise().plus(latency);
                waiting.extend(self.fresh.take().map(|Queued(rq)| (due, rq)));
            }
            let now = Stamp::precise();
            let next = match waiting.front() {
                Some((due, _)) if *due <= now => {
                    if let Some((_, rq)) = waiting.pop_front() {
                        options.finish(rq);
                    }
                    continue;
                }
                Some((due, _)) => Some(due.since(now)),
                None => None,
            };
            // A thread that pushes while this is awake leaves a token, so no request is slept
            // through.
            match next {
                Some(next) => {
                    parker.park_timeout(next);
                }
                None if self.end.load(Ordering::Acquire) => return,
                None => parker.park(),
            }
        }
    }
}
