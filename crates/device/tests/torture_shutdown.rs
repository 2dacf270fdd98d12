//! Shutdowns of random graphs of many quick callbacks, on the worker pools of this machine, against
//! a plain model: for two seconds, or a minute with `COREWISE_LONG`. A seed
//! (`COREWISE_TORTURE_SEED`) repeats the choices, not the schedule.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use corewise_device::{
    Bound, BringUpOptions, Cancel, DeviceDecl, DeviceManager, Driver, Event, HangPolicy,
    ProbeContext, ProbeError, ProbeType, ShutdownDone, ShutdownError, ShutdownOptions,
    ShutdownReport,
};
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_topology::Machine;
use corewise_workqueue::WorkerPools;
use fastrand::Rng;
use std::collections::BTreeSet;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{ThreadId, current};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Callback {
    Quick,
    Fails,
    Panics,
    /// The callback ends on another thread.
    Later,
    Blocks,
    None,
}

/// A web of devices, and what has become of them.
struct Web {
    callbacks: Vec<Callback>,
    /// True by device if its callback may run beside others.
    asyncs: Vec<bool>,
    /// The thread of the synchronous callbacks, once one has begun.
    sync_thread: OnceLock<ThreadId>,
    /// Suppliers by device.
    needs: Vec<Vec<usize>>,
    /// Time that a callback computes.
    burn: Duration,
    /// Number of the callback that aborts all.
    aborts_at: Option<usize>,
    abort: Cancel,
    /// A: callbacks begun.
    begun: AtomicUsize,
    /// L: is the lock; guards by device when its callbacks began and ended, counted in events.
    seen: Mutex<Vec<Seen>>,
    /// A: synchronous callbacks on another thread than the first one.
    strays: AtomicUsize,
    /// A: events so far.
    events: AtomicUsize,
    later: Mutex<Sender<(usize, ShutdownDone)>>,
}

#[derive(Clone, Default)]
struct Seen {
    calls: usize,
    begun: Option<usize>,
    ended: Option<usize>,
}

impl Web {
    fn random(rng: &mut Rng, later: Sender<(usize, ShutdownDone)>) -> Web {
        let n = [60, 400, 1_500, 4_000][rng.usize(..4)] + rng.usize(..50);
        let mut places: Vec<usize> = (0..n).collect();
        if rng.usize(..2) == 0 {
            (1..n).rev().for_each(|i| places.swap(i, rng.usize(..i + 1)));
        }
        let mut needs = vec![Vec::new(); n];
        let shape = rng.usize(..5);
        for i in 1..n {
            let suppliers = match shape {
                0 => 0,
                1 => 1,
                2 => rng.usize(..3),
                3 => usize::from(rng.usize(..10) == 0),
                _ => {
                    // Four chains.
                    needs[places[i]].extend(i.checked_sub(4).map(|before| places[before]));
                    0
                }
            };
            let chosen: BTreeSet<usize> = (0..suppliers).map(|_| places[rng.usize(..i)]).collect();
            needs[places[i]].extend(chosen);
        }
        let mix = rng.usize(..3);
        let callback = |rng: &mut Rng| match (mix, rng.usize(..200)) {
            (0, _) => Callback::Quick,
            (_, 0) => Callback::Blocks,
            (1, 1..5) => Callback::Fails,
            (1, 5..9) => Callback::Panics,
            (_, 9..13) => Callback::Later,
            (2, 13..106) => Callback::None,
            _ => Callback::Quick,
        };
        let synchronous = [None, None, Some(3), Some(20)][rng.usize(..4)];
        Web {
            callbacks: (0..n).map(|_| callback(rng)).collect(),
            asyncs: (0..n)
                .map(|_| synchronous.is_none_or(|one_in| rng.usize(..one_in) > 0))
                .collect(),
            sync_thread: OnceLock::new(),
            needs,
            burn: Duration::from_micros([1, 3, 8, 20, 60][rng.usize(..5)]),
            aborts_at: (rng.usize(..6) == 0).then(|| rng.usize(..n)),
            abort: Cancel::new(),
            begun: AtomicUsize::new(0),
            seen: Mutex::new(vec![Seen::default(); n]),
            strays: AtomicUsize::new(0),
            events: AtomicUsize::new(0),
            later: Mutex::new(later),
        }
    }

    fn begins(&self, device: usize) {
        let at = self.events.fetch_add(1, Ordering::SeqCst);
        let mut seen = self.seen.lock().unwrap();
        seen[device].calls += 1;
        seen[device].begun = Some(at);
        drop(seen);
        let me = current().id();
        let in_place = self.asyncs[device] || *self.sync_thread.get_or_init(|| me) == me;
        self.strays.fetch_add(usize::from(!in_place), Ordering::SeqCst);
        if Some(self.begun.fetch_add(1, Ordering::SeqCst)) == self.aborts_at {
            self.abort.cancel();
        }
        let since = Instant::now();
        match self.callbacks[device] {
            // Blocks, as a device that takes its time.
            Callback::Blocks => _ = mpsc::channel::<()>().1.recv_timeout(Duration::from_millis(2)),
            _ => while since.elapsed() < self.burn {},
        }
    }

    fn ends(&self, device: usize) {
        let at = self.events.fetch_add(1, Ordering::SeqCst);
        self.seen.lock().unwrap()[device].ended = Some(at);
    }

    fn count(&self, callback: Callback) -> usize {
        self.callbacks.iter().filter(|its| **its == callback).count()
    }

    /// Checks that every callback that began did so after those of all that need its device,
    /// through devices without a callback too. Each was called once, unless the shutdown was
    /// aborted.
    fn check(&self, report: &ShutdownReport, told: Option<usize>) {
        assert_eq!(self.strays.load(Ordering::SeqCst), 0, "synchronous ones run in one thread");
        let seen = self.seen.lock().unwrap();
        let aborted = self.aborts_at.is_some_and(|at| self.begun.load(Ordering::SeqCst) > at);
        for (device, its) in seen.iter().enumerate() {
            let has = self.callbacks[device] != Callback::None;
            assert!(its.calls <= usize::from(has), "device {device}");
            assert!(aborted || its.calls == usize::from(has), "device {device}");
            if its.begun.is_none() {
                continue;
            }
            let (mut next, mut known) = (self.needs[device].clone(), BTreeSet::new());
            while let Some(supplier) = next.pop().filter(|_| known.len() < 50) {
                if !known.insert(supplier) {
                    continue;
                }
                if self.callbacks[supplier] == Callback::None {
                    next.extend(&self.needs[supplier]);
                } else if let Some(begun) = seen[supplier].begun {
                    assert!(its.ended < Some(begun), "{supplier} before {device}");
                    assert!(its.ended.is_some(), "{supplier} before {device}");
                }
            }
        }
        if aborted {
            return;
        }
        let n = self.needs.len();
        assert_eq!((report.remaining.len(), report.order().count()), (0, n));
        let timeline = report.timeline();
        assert_eq!((timeline.spans().len(), timeline.edges_not_kept().count()), (n, 0));
        let bad = self.count(Callback::Fails) + self.count(Callback::Panics);
        assert!(report.failed.len() >= bad && report.overdue.is_empty());
        assert!(told.is_none_or(|told| told == n - self.count(Callback::None)), "{told:?}");
    }
}

struct Unit(Arc<Web>, usize);

impl Bound for Unit {
    fn has_shutdown(&self) -> bool {
        self.0.callbacks[self.1] != Callback::None
    }

    fn start_shutdown(self: Arc<Self>, done: ShutdownDone) {
        let Unit(web, device) = &*self;
        web.begins(*device);
        match web.callbacks[*device] {
            Callback::Later => web.later.lock().unwrap().send((*device, done)).unwrap(),
            callback => {
                web.ends(*device);
                assert!(callback != Callback::Panics, "as it was told to");
                let fails = callback == Callback::Fails;
                done.finish(if fails { Err(ShutdownError::new("no")) } else { Ok(()) });
            }
        }
    }
}

struct Units(Arc<Web>);

impl Driver for Units {
    fn name(&self) -> &'static str {
        "unit"
    }

    fn probe_type(&self) -> ProbeType {
        ProbeType::ForceSynchronous
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        Ok(Arc::new(Unit(self.0.clone(), *cx.config::<usize>()?)))
    }
}

/// Ends what is to end later, in some order; some by dropping the handle.
fn end_later(web: &Web, later: &Receiver<(usize, ShutdownDone)>, rng: &mut Rng) {
    let mut waiting = Vec::new();
    while let Ok(one) = later.recv() {
        waiting.push(one);
        waiting.extend(later.try_iter());
        while !waiting.is_empty() {
            let (device, done) = waiting.swap_remove(rng.usize(..waiting.len()));
            web.ends(device);
            if rng.usize(..9) > 0 {
                done.finish(Ok(()));
            }
        }
    }
}

fn run(machine: &Machine, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (sender, later) = mpsc::channel();
    let web = Arc::new(Web::random(&mut rng, sender));
    let pools = WorkerPools::new(machine);
    let devices = DeviceManager::new(&pools).unwrap();
    devices.register(Arc::new(Units(web.clone()))).unwrap();
    let decl = |(device, needs): (usize, &Vec<usize>)| {
        let decl = DeviceDecl::new(format!("d{device}"), "unit");
        let decl = decl.async_shutdown(web.asyncs[device]);
        needs.iter().fold(decl.config(device), |decl, need| decl.supplier(format!("d{need}")))
    };
    let decls = web.needs.iter().enumerate().map(decl).collect();
    assert!(devices.bring_up(decls, &BringUpOptions::new()).unwrap().is_complete());
    if rng.usize(..12) == 0 {
        pools.shutdown();
    }
    let told = (rng.usize(..4) == 0).then(|| Arc::new(AtomicUsize::new(0)));
    let mut options = ShutdownOptions::new().abort(web.abort.clone());
    if let Some(told) = told.clone() {
        options = options.observer(Arc::new(move |event| {
            if let Event::Finished { .. } = event {
                told.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    options = match rng.usize(..6) {
        most @ (0 | 1) => options.max_helpers(most),
        // A deadline that nothing passes.
        2 => options.on_hang(HangPolicy::Skip).device_timeout(Some(Duration::from_secs(60))),
        _ => options,
    };
    let its = web.clone();
    let finisher = std::thread::spawn(move || end_later(&its, &later, &mut rng));
    let report = devices.shutdown(&options).unwrap();
    web.check(&report, told.map(|told| told.load(Ordering::SeqCst)));
    *web.later.lock().unwrap() = mpsc::channel().0;
    finisher.join().unwrap();
    drop(devices);
    pools.shutdown();
}

/// Time after which one shutdown, which takes milliseconds, counts as stuck.
const STUCK: Duration = Duration::from_secs(120);

#[test]
fn torture_random_webs_of_quick_callbacks_go_down_in_order_and_each_is_called_once() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    let end = Instant::now() + Duration::from_secs(if long { 60 } else { 2 });
    let asked = std::env::var("COREWISE_TORTURE_SEED").ok();
    let mut seed = asked.map_or(1, |seed| seed.parse().expect("COREWISE_TORTURE_SEED is a number"));
    let machine = Machine::live().unwrap();
    while Instant::now() < end {
        let (done, over) = mpsc::channel();
        let machine = machine.clone();
        let runner = std::thread::spawn(move || {
            run(&machine, seed);
            done.send(()).unwrap();
        });
        let ended = over.recv_timeout(STUCK);
        assert!(ended != Err(RecvTimeoutError::Timeout), "stuck: COREWISE_TORTURE_SEED={seed}");
        assert!(runner.join().is_ok(), "see above: COREWISE_TORTURE_SEED={seed}");
        seed += 1;
    }
}
