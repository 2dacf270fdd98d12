//! A watch of the clock: a thread that sleeps on a timer, and is woken by it alone.
//!
//! The runner of a callback can't see that the callback takes long. A thread that can has to be
//! there before, and must cost next to nothing if all goes quickly. So the thread is started
//! beforehand and sleeps on a kernel timer (`timerfd`). To set the timer is a system call of a few
//! hundred nanoseconds that wakes no thread. To start or wake a thread costs tens of microseconds.
//!
//! Guards: `I:` immutable, `L:` lock (what it guards is named). Lock order: `state` is taken last;
//! nothing is called while it is held but the setting of the timer.

use corewise_sync::sys::Timer;
use corewise_sync::thread::{Builder, JoinHandle, current};
use corewise_sync::{Mutex, panics};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// An object that a watch checks.
pub(crate) trait WatchTarget: Send + Sync {
    /// Checks the object, on the watch's thread. Returns how long to wait before the next check;
    /// `None`: there will be nothing to see any more.
    fn look(self: Arc<Self>) -> Option<Duration>;
}

/// A thread with a timer. It ends when this is dropped.
pub(crate) struct Watch {
    /// I: shared with the thread.
    shared: Arc<WatchShared>,
    /// I: until it is dropped.
    thread: Option<JoinHandle<()>>,
}

struct WatchShared {
    /// I: the timer.
    timer: Timer,
    /// L: is the lock; guards the object that is watched. The timer is set under it.
    state: Mutex<WatchState>,
}

struct WatchState {
    watched: Option<Arc<dyn WatchTarget>>,
    quit: bool,
}

/// A guard: while it lives, its run is watched.
pub(crate) struct WatchGuard<'a>(&'a WatchShared);

impl Watch {
    /// Starts the thread.
    ///
    /// # Errors
    /// An error if no timer or no thread can be had. In shuttle's schedules that is always so: they
    /// can't see a thread wait for the system, and it would hold up all the others.
    pub(crate) fn start() -> io::Result<Watch> {
        let timer = Timer::new()?;
        let shared = Arc::new(WatchShared {
            timer,
            state: Mutex::new(WatchState { watched: None, quit: false }),
        });
        let its = shared.clone();
        let thread = Builder::new().name("cw-watch".into()).spawn(move || its.run())?;
        Ok(Watch { shared, thread: Some(thread) })
    }

    /// Checks `watched`, `after` from now on and then as it says, until the guard is dropped. Wakes
    /// nobody. Returns `None` if the timer can't be set.
    pub(crate) fn watch(
        &self,
        watched: Arc<dyn WatchTarget>,
        after: Duration,
    ) -> Option<WatchGuard<'_>> {
        let mut state = self.shared.state.lock();
        self.shared.timer.set(after).ok()?;
        state.watched = Some(watched);
        Some(WatchGuard(&self.shared))
    }
}

impl Drop for WatchGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        // The timer is left as it is: setting it costs more than the one useless wake-up that it
        // may cause later and elsewhere.
        let watched = state.watched.take();
        drop(state);
        drop(watched);
    }
}

impl WatchShared {
    /// Runs the thread.
    fn run(&self) {
        loop {
            if let Err(error) = self.timer.wait() {
                tracing::error!(%error, "cannot read the timer of the device watch");
                return;
            }
            let watched = {
                let state = self.state.lock();
                if state.quit {
                    return;
                }
                state.watched.clone()
            };
            let Some(watched) = watched else { continue };
            let look = AssertUnwindSafe(|| watched.look());
            let next = catch_unwind(look).unwrap_or_else(|payload| {
                tracing::error!("a check of the running callbacks panicked");
                panics::discard(payload);
                None
            });
            let state = self.state.lock();
            if let (Some(next), true) = (next, state.watched.is_some()) {
                if let Err(error) = self.timer.set(next) {
                    tracing::error!(%error, "cannot set the timer of the device watch");
                }
            }
        }
    }
}

impl Drop for Watch {
    /// Ends the thread, and waits for it: it is asleep, or in a check that doesn't block.
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.quit = true;
        let set = self.shared.timer.set(Duration::ZERO);
        drop(state);
        let Some(thread) = self.thread.take() else { return };
        // The last handle of a manager may go with the watched object, on this very thread. And if
        // the timer can't be set there is no way to wake it.
        if set.is_ok() && thread.thread().id() != current().id() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// A target that reports each check, and wants that many in all.
    struct LookSender(Mutex<(Sender<String>, u32)>);

    impl WatchTarget for LookSender {
        fn look(self: Arc<Self>) -> Option<Duration> {
            let (tell, more) = &mut *self.0.lock();
            let name = current().name().map(String::from);
            tell.send(name.unwrap_or_default()).expect("the test listens");
            *more -= 1;
            (*more > 0).then_some(Duration::from_micros(10))
        }
    }

    #[test]
    fn a_watched_item_is_checked_as_often_as_it_asks() {
        let watch = Watch::start().expect("there is a timer");
        for _ in 0..3 {
            let (tell, told) = channel();
            let looks = Arc::new(LookSender(Mutex::new((tell, 2))));
            let watching = watch.watch(looks, Duration::from_micros(10)).expect("the timer is set");
            assert_eq!(told.recv().as_deref(), Ok("cw-watch"));
            assert_eq!(told.recv().as_deref(), Ok("cw-watch"));
            drop(watching);
            assert!(told.recv().is_err(), "it is let go, and was looked at twice");
        }
    }

    #[test]
    fn what_a_look_panics_with_is_dropped() {
        struct Panics(Arc<()>, Mutex<Sender<()>>);
        impl WatchTarget for Panics {
            fn look(self: Arc<Self>) -> Option<Duration> {
                self.1.lock().send(()).expect("the test listens");
                std::panic::panic_any(self.0.clone());
            }
        }
        let kept = Arc::new(());
        let watch = Watch::start().expect("there is a timer");
        let (tell, told) = channel();
        let looks = Arc::new(Panics(kept.clone(), Mutex::new(tell)));
        let watching = watch.watch(looks, Duration::from_micros(10)).expect("the timer is set");
        assert!(told.recv().is_ok());
        drop(watching);
        drop(watch);
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn an_item_released_in_time_is_never_checked() {
        let watch = Watch::start().expect("there is a timer");
        let (tell, told) = channel();
        let looks = Arc::new(LookSender(Mutex::new((tell, 1))));
        drop(watch.watch(looks, Duration::from_secs(3600)));
        assert!(told.recv().is_err(), "nobody holds it any more");
        drop(watch);
    }

    #[test]
    fn a_watch_that_is_dropped_by_its_own_look_ends() {
        struct Last(Mutex<Option<Watch>>, Mutex<Sender<()>>);
        impl WatchTarget for Last {
            fn look(self: Arc<Self>) -> Option<Duration> {
                drop(self.0.lock().take());
                self.1.lock().send(()).expect("the test listens");
                None
            }
        }
        let watch = Watch::start().expect("there is a timer");
        let shared = watch.shared.clone();
        let (tell, told) = channel();
        let last = Arc::new(Last(Mutex::new(None), Mutex::new(tell)));
        let mut state = shared.state.lock();
        state.watched = Some(last.clone());
        shared.timer.set(Duration::from_micros(10)).expect("the timer is set");
        *last.0.lock() = Some(watch);
        drop(state);
        assert!(told.recv().is_ok());
    }
}
