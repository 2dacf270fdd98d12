//! Plugs hold back the requests of a thread that submits many, one by one. The requests reach their
//! queues together: one run dispatches them, adjacent ones are merged, and one call to the kernel
//! starts them.
//!
//! The kernel has `blk_start_plug` and `blk_finish_plug`. As there, the plug releases its requests
//! when it is dropped, when it holds enough, and when the thread is about to block. The thread may
//! wait for just these requests.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::sync::{Arc, Weak};

use corewise_sync::{context, per_thread};

use crate::state::core::Core;
use crate::state::driver::Started;
use crate::state::request::Request;

/// Size of a request that is worth a start of its own (`BLK_PLUG_FLUSH_SIZE`).
const PLUG_BYTES: u64 = 128 << 10;

/// Number of requests that a plug holds back at most, as the kernel's (`BLK_MAX_REQUEST_COUNT`).
const PLUG_REQUESTS: usize = 32;

per_thread! {
    /// O: the requests held back.
    static HELD: PluggedRequests = PluggedRequests(RefCell::new(Vec::new()));
    /// O: the work that the thread does by itself.
    static CHORES: PutOffWorkList = PutOffWorkList(RefCell::new(Vec::new()));
}

// The word of `context::puts_off`: a bit, and the number of plugs beside it. While a thread runs
// foreign code, or requests that were held back, it has none.
/// Flag of a thread that itself does the work for which a driver would wake a worker.
const WORKS: u32 = 1;
const ONE_PLUG: u32 = 2;

/// A request that a driver would wake a worker for.
#[derive(Debug)]
pub struct PutOffWork {
    /// The request.
    pub rq: Started,
    /// Does the work, outside of atomic sections, and returns false if a worker should do the next
    /// one. May block.
    pub here: fn(Started) -> bool,
    /// Wakes a worker after all. Never blocks.
    pub away: fn(Started),
}

/// Holds back the requests that this thread submits to [queues](crate::Queue), until it is dropped.
///
/// The requests go earlier if 32 are held back, and after one of 128 KiB or more. They also go when
/// the thread drops a queue, and when it is about to block in a
/// [`Completion`](corewise_sync::Completion) or in any other [blocking
/// region](corewise_sync::context::blocking). A thread that waits in other ways calls
/// [`Plug::flush`] before. Flushes and batches are never held back. A request that is held back
/// isn't inside its queue yet: a queue that goes meanwhile completes it as gone. Plugs nest; the
/// outermost one counts. Inside a blocking region a plug does nothing. Requests that are let go
/// reach the driver: those that completion functions and drivers submit meanwhile go at once, too.
///
/// A plug that is forgotten ([`std::mem::forget`]) lasts until its thread ends; then its requests
/// proceed. In a work item it lasts until the item ends, and the log gets a line. An item that this
/// thread runs while it waits for it has no plug.
///
/// ```
/// # use std::sync::{Arc, Weak};
/// # use corewise_blockmq::{BlockDevice, Plug, Request};
/// fn read_ahead(device: &dyn BlockDevice, first: u64) {
///     let _plug = Plug::start();
///     for n in 0..16 {
///         device.submit(Request::read(first + n * 4096, 4096).on_complete(|_done| {}));
///     }
/// }
/// ```
#[must_use = "the requests that are held back go on when the plug is dropped"]
pub struct Plug {
    /// A plug is its thread's.
    not_send: PhantomData<*const ()>,
}

impl Plug {
    /// Begins to hold requests back.
    pub fn start() -> Self {
        context::set_puts_off(context::puts_off() + ONE_PLUG);
        Self { not_send: PhantomData }
    }

    /// Runs `f` under a plug, on a thread that may block. At its end the thread itself does the
    /// work for which a driver would wake a worker. So no worker is woken, and the answer needn't
    /// cross threads. This covers writes to the host's page cache without `fua`, if the file driver
    /// can't try them without waiting (ext4) and none has waited lately.
    ///
    /// The thread may have dispatched requests of other submitters, and does these too. So `f`
    /// returns soon. If it waits in another way than [`Plug`] lists, it calls [`Plug::flush`]
    /// before, and a worker is woken then.
    ///
    /// Under another plug, in a blocking region and in an atomic section it is as [`Plug::start`].
    /// (Linux: the submitter runs a queue with `BLK_MQ_F_BLOCKING` if it may sleep.)
    pub fn working<R>(f: impl FnOnce(&Plug) -> R) -> R {
        let works = !is_plugged() && !context::is_blocking() && !context::in_atomic_section();
        // This is dropped after the plug.
        let _end = works.then(Working::begin);
        f(&Plug::start())
    }

    /// Releases the requests that are held back now. Like [`submit`](crate::BlockDevice::submit) it
    /// waits for room at most, and never in an atomic section.
    pub fn flush(&self) {
        let_go();
    }
}

/// A scope in which the thread does put-off work by itself. Its drop does the work, or wakes
/// workers for it if the thread panics or mustn't block any more.
struct Working;

impl Working {
    fn begin() -> Working {
        context::set_puts_off(context::puts_off() | WORKS);
        Working
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        context::set_puts_off(context::puts_off() & !WORKS);
        do_chores(!std::thread::panicking() && !context::in_atomic_section());
    }
}

/// Returns true if this thread does put-off work by itself ([`Plug::working`]). Inside a blocking
/// region it may wait for such work.
#[inline]
pub fn works() -> bool {
    context::puts_off() & WORKS != 0 && !context::is_blocking()
}

/// Adds work that this thread, which [works](works), does when its plug is gone.
pub fn put_off(chore: PutOffWork) {
    let mut chore = Some(chore);
    let first = CHORES.try_with(|chores| {
        let mut chores = chores.0.borrow_mut();
        chores.extend(chore.take());
        chores.len() == 1
    });
    match (first, chore) {
        (Ok(true), _) => context::before_blocking(Some(let_go)),
        // A thread that is about to end has no list any more.
        (Err(_), Some(PutOffWork { rq, away, .. })) => away(rq),
        _ => {}
    }
}

/// Does the work that was put off. From the first item on that a worker should do, wakes workers
/// for the rest.
fn do_chores(mut here: bool) {
    let mut chores = CHORES.try_with(|chores| chores.0.take()).unwrap_or_default();
    if chores.is_empty() {
        return;
    }
    for chore in chores.drain(..) {
        match here {
            true => here = (chore.here)(chore.rq),
            false => (chore.away)(chore.rq),
        }
    }
    // The list's room is used again.
    let _ = CHORES.try_with(|empty| {
        let mut empty = empty.0.borrow_mut();
        if empty.capacity() == 0 {
            *empty = chores;
        }
    });
}

impl Drop for Plug {
    fn drop(&mut self) {
        // Saturating: code that is run at once may drop a plug from before.
        let left = context::puts_off().saturating_sub(ONE_PLUG);
        context::set_puts_off(left);
        if left < ONE_PLUG {
            submit_held();
        }
    }
}

impl fmt::Debug for Plug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plug")
    }
}

/// Returns true if this thread has a plug.
#[inline]
pub(crate) fn is_plugged() -> bool {
    context::puts_off() >= ONE_PLUG
}

/// Holds a request back, in a thread that has a plug.
pub(crate) fn hold(core: &Arc<Core>, rq: Request) {
    let bytes = rq.len();
    let mut rq = Some(rq);
    let held = HELD.try_with(|held| {
        let mut held = held.0.borrow_mut();
        held.extend(rq.take().map(|rq| (Arc::downgrade(core), rq)));
        held.len()
    });
    let Ok(held) = held else {
        // A thread that is about to end has no list any more.
        return core.submit_all(&mut rq.into_iter());
    };
    // A thread inside a blocking region gets no second call before it blocks.
    if context::is_blocking() {
        let_go();
    } else if held >= PLUG_REQUESTS || bytes >= PLUG_BYTES {
        submit_held();
    } else if held == 1 {
        context::before_blocking(Some(let_go));
    }
}

/// Releases the requests that this thread holds back, and wakes workers for the work that it put
/// off.
pub(crate) fn let_go() {
    // All requests that this begins go on at once: a stripe's parts, and requests of completion
    // functions. Otherwise the caller would wait for them in vain.
    context::at_once(|| {
        submit_held();
        do_chores(false);
    });
}

/// Sends the held requests to their queues, each queue's requests in their order, with one run.
///
/// One queue goes after the other, and the others' requests stay held until then. A queue without
/// room makes this thread wait, and the requests that make room there may be among them. Their hook
/// releases them before that wait.
fn submit_held() {
    // Requests held back meanwhile are for the next call: completion functions that submit again
    // would keep this going.
    let mut left = HELD.try_with(|held| held.0.borrow().len()).unwrap_or(0);
    while left > 0 {
        let Some((core, mut here)) = next_queue() else { break };
        left -= left.min(here.len());
        send(&core, &mut here);
        // The list's room is used again.
        let _ = HELD.try_with(|held| {
            let mut held = held.0.borrow_mut();
            if held.capacity() == 0 {
                *held = here;
            }
        });
    }
}

type Requests = Vec<(Weak<Core>, Request)>;

fn send(core: &Weak<Core>, here: &mut Requests) {
    match core.upgrade() {
        Some(core) => core.submit_all(&mut here.drain(..).map(|(_, rq)| rq)),
        // Dropped, they complete as gone.
        None => here.clear(),
    }
}

/// Takes the held requests of the first queue.
fn next_queue() -> Option<(Weak<Core>, Requests)> {
    let (next, others) = HELD.try_with(|held| held.next_queue()).ok().flatten()?;
    let more = others || CHORES.try_with(|chores| !chores.0.borrow().is_empty()).unwrap_or(false);
    context::before_blocking(more.then_some(let_go));
    Some(next)
}

/// The requests that a thread holds back. If the thread ends before its plug does, they proceed.
struct PluggedRequests(RefCell<Requests>);

impl PluggedRequests {
    /// Takes the held requests of the first queue, and returns whether there are others.
    fn next_queue(&self) -> Option<((Weak<Core>, Requests), bool)> {
        let mut held = self.0.borrow_mut();
        let core = Weak::clone(&held.first()?.0);
        let mut here = mem::take(&mut *held);
        let is_its = |(theirs, _): &(Weak<Core>, Request)| Weak::ptr_eq(&core, theirs);
        // As a rule all are of one queue, and stay where they are.
        if !here.iter().all(is_its) {
            (here, *held) = here.into_iter().partition(is_its);
        }
        Some(((core, here), !held.is_empty()))
    }
}

impl Drop for PluggedRequests {
    fn drop(&mut self) {
        while let Some(((core, mut here), _)) = self.next_queue() {
            send(&core, &mut here);
        }
    }
}

/// The work that a thread has put off.
struct PutOffWorkList(RefCell<Vec<PutOffWork>>);

impl Drop for PutOffWorkList {
    fn drop(&mut self) {
        for chore in self.0.take() {
            (chore.away)(chore.rq);
        }
    }
}
