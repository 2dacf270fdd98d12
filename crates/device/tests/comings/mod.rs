//! Devices and drivers that come and go by several threads at once, and a shutdown. The rules, in
//! whatever order:
//!
//! * no callback begins while a consumer of the device is up, or is being brought up;
//! * each object is shut down once, and before it is dropped;
//! * when all is quiet, a device that is up has all that it needs, and one that has all that it
//!   needs doesn't wait;
//! * all of it ends.
//!
//! `torture_comings.rs` runs it on real threads, `tests/shuttle/random.rs` in shuttle's schedules.
//! The locks of the checks are standard ones, which are no scheduling points.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use crate::chance::Chance;
use corewise_device::{
    Bound, DeviceDecl, DeviceInfo, DeviceManager, DeviceState, Driver, ProbeContext, ProbeError,
    ProbeType, ShutdownError, ShutdownOptions,
};
use corewise_sync::thread;
use corewise_topology::Machine;
use corewise_workqueue::WorkerPools;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) devices: u64,
    pub(crate) actors: u64,
    /// Acts of each actor.
    pub(crate) acts: u64,
}

/// The record of each device's latest object: its number, and whether it was shut down.
#[derive(Default)]
struct Book {
    objects: Mutex<HashMap<String, (u64, bool)>>,
    numbers: AtomicU64,
    broken: Mutex<Vec<String>>,
    manager: OnceLock<Weak<DeviceManager>>,
}

impl Book {
    fn broken(&self, rule: String) {
        self.broken.lock().unwrap().push(rule);
    }

    fn manager(&self) -> Option<Arc<DeviceManager>> {
        self.manager.get()?.upgrade()
    }

    /// Checks that a callback may begin.
    fn goes_down(&self, name: &str) {
        let Some(manager) = self.manager() else { return };
        let infos: HashMap<String, DeviceInfo> =
            manager.devices().into_iter().map(|info| (info.name.clone(), info)).collect();
        let Some(its) = infos.get(name) else {
            return self.broken(format!("{name} is shut down, and doesn't exist"));
        };
        for feed in its.feeds.iter().filter_map(|feed| infos.get(feed)) {
            let up = match its.state {
                // A walk calls it.
                DeviceState::Leaving => matches!(
                    feed.state,
                    DeviceState::Bound | DeviceState::Leaving | DeviceState::Probing
                ),
                // The shutdown calls it; during that nothing changes.
                DeviceState::Unbound => {
                    self.objects.lock().unwrap().get(&feed.name).is_some_and(|(_, down)| !down)
                }
                _ => true,
            };
            if up {
                let (of, at, state) = (&feed.name, &its.state, &feed.state);
                self.broken(format!(
                    "{name} is shut down ({at}) before its consumer {of} ({state})"
                ));
            }
        }
    }
}

struct Unit<C: Chance> {
    name: String,
    number: u64,
    downs: AtomicU64,
    book: Arc<Book>,
    chance: Arc<Mutex<C>>,
}

impl<C: Chance> Bound for Unit<C> {
    fn shutdown(&self) -> Result<(), ShutdownError> {
        self.book.goes_down(&self.name);
        if self.downs.fetch_add(1, SeqCst) > 0 {
            self.book.broken(format!("{} is shut down twice", self.name));
        }
        dawdle(&self.chance);
        self.book.goes_down(&self.name);
        if let Some((number, down)) = self.book.objects.lock().unwrap().get_mut(&self.name) {
            *down |= *number == self.number;
        }
        Ok(())
    }
}

impl<C: Chance> Drop for Unit<C> {
    fn drop(&mut self) {
        if self.downs.load(SeqCst) == 0 {
            self.book.broken(format!("{} is dropped, and was not shut down", self.name));
        }
        dawdle(&self.chance);
    }
}

/// Lets others go on.
fn dawdle<C: Chance>(chance: &Mutex<C>) {
    let times = chance.lock().unwrap().below(4);
    (0..times).for_each(|_| thread::yield_now());
}

/// A driver that has any device that it is asked for.
struct RandomDriver<C: Chance> {
    name: &'static str,
    probe_type: ProbeType,
    book: Arc<Book>,
    chance: Arc<Mutex<C>>,
}

impl<C: Chance> Driver for RandomDriver<C> {
    fn name(&self) -> &str {
        self.name
    }

    fn matches(&self, decl: &DeviceDecl) -> bool {
        decl.driver.is_empty() || decl.driver == self.name
    }

    fn probe_type(&self) -> ProbeType {
        self.probe_type
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let end = self.chance.lock().unwrap().below(16);
        if end < 3 && !cx.name().contains('.') {
            // A child of its own, which goes with it, and at once where this probe fails.
            let child = DeviceDecl::new(format!("{}.c", cx.name()), "");
            if let Some(manager) = self.book.manager() {
                let _ = manager.add(child.parent(cx.name()));
            }
        }
        dawdle(&self.chance);
        match end {
            0 | 3 => return Err(ProbeError::failed("at random")),
            4 => return Err(ProbeError::defer("at random")),
            _ => {}
        }
        let number = self.book.numbers.fetch_add(1, SeqCst);
        self.book.objects.lock().unwrap().insert(cx.name().to_string(), (number, false));
        Ok(Arc::new(Unit {
            name: cx.name().to_string(),
            number,
            downs: AtomicU64::new(0),
            book: self.book.clone(),
            chance: self.chance.clone(),
        }))
    }
}

/// Returns a device that needs some of those before it, so that nobody needs itself.
fn random_decl(n: u64, chance: &mut impl Chance) -> DeviceDecl {
    let name = format!("d{n}");
    let mut decl = match chance.below(3) {
        0 => DeviceDecl::new(name, ""),
        1 => DeviceDecl::new(name, "sync"),
        _ => DeviceDecl::new(name, "async"),
    };
    if n > 0 {
        for _ in 0..chance.below(3) {
            decl = decl.supplier(format!("d{}", chance.below(n)));
        }
        if chance.one_in(4) {
            decl = decl.parent(format!("d{}", chance.below(n)));
        }
    }
    decl.async_shutdown(chance.one_in(2))
}

fn driver<C: Chance>(name: &'static str, book: &Arc<Book>, chance: &mut C) -> Arc<RandomDriver<C>> {
    let probe_type = match name {
        "sync" => ProbeType::ForceSynchronous,
        _ => ProbeType::PreferAsynchronous,
    };
    let chance = Arc::new(Mutex::new(chance.another()));
    Arc::new(RandomDriver { name, probe_type, book: book.clone(), chance })
}

/// Does one thing. It may be refused, as another thread has done another one.
fn act(manager: &DeviceManager, book: &Arc<Book>, devices: u64, chance: &mut impl Chance) {
    let n = chance.below(devices);
    let mut name = format!("d{n}");
    if chance.one_in(12) {
        name += ".c";
    }
    match chance.below(16) {
        0..=3 => drop(manager.bind(&name)),
        4..=7 => drop(manager.unbind(&name)),
        8 => drop(manager.remove(&name)),
        9 | 10 => drop(manager.add(random_decl(n, chance))),
        11 | 12 if n > 0 => {
            drop(manager.link(&name, &format!("d{}", chance.below(n))));
        }
        13 if n > 0 => drop(manager.unlink(&name, &format!("d{}", chance.below(n)))),
        14 => drop(manager.unregister(["sync", "async"][chance.below(2) as usize])),
        _ => {
            let driver = driver(["sync", "async"][chance.below(2) as usize], book, chance);
            drop(manager.register(driver));
        }
    }
}

/// Checks the rules when nothing is in progress.
fn check_quiet(manager: &DeviceManager, book: &Book) {
    let in_progress =
        |info: &DeviceInfo| matches!(info.state, DeviceState::Queued | DeviceState::Probing);
    let infos = loop {
        manager.wait_for_probes().unwrap();
        let infos = manager.devices();
        // In shuttle's schedules the deferral timeout may end at any moment: deferred ones are
        // tried once more.
        if !infos.iter().any(in_progress) {
            break infos;
        }
    };
    for info in infos {
        let is_up = |need: &corewise_device::Need| need.state == Some(DeviceState::Bound);
        let all_up = info.needs.iter().all(is_up);
        let fine = match info.state {
            DeviceState::Bound => all_up,
            DeviceState::Waiting => !all_up,
            DeviceState::Leaving => false,
            _ => true,
        };
        if !fine {
            book.broken(format!(
                "in the end {} is {} with {:?}",
                info.name, info.state, info.needs
            ));
        }
    }
}

/// Runs the scenario.
///
/// # Panics
/// If a rule is broken.
pub(crate) fn scenario<C: Chance>(mut chance: C, size: Size) {
    let pools = WorkerPools::builder(&Machine::synthetic("core:2 pu:1").unwrap()).build();
    let manager = Arc::new(DeviceManager::new(&pools).unwrap());
    manager.set_deferral_timeout(Duration::from_secs(1_000_000_000));
    let book = Arc::new(Book::default());
    book.manager.set(Arc::downgrade(&manager)).unwrap();
    for name in ["sync", "async"] {
        manager.register(driver(name, &book, &mut chance)).unwrap();
    }
    for n in 0..size.devices {
        drop(manager.add(random_decl(n, &mut chance)));
    }
    // Shuttle has no waits that end by themselves, and helpers of a shutdown have such ones.
    let options = ShutdownOptions::new().asynchronous(!cfg!(shuttle));
    let actors: Vec<_> = (0..size.actors)
        .map(|_| {
            let (manager, book, mut chance) = (manager.clone(), book.clone(), chance.another());
            thread::spawn(move || {
                (0..size.acts).for_each(|_| act(&manager, &book, size.devices, &mut chance));
            })
        })
        .collect();
    if chance.one_in(4) {
        // While the actors act.
        (0..chance.below(20)).for_each(|_| thread::yield_now());
        let _ = manager.shutdown(&options).unwrap();
        actors.into_iter().for_each(|actor| actor.join().unwrap());
    } else {
        actors.into_iter().for_each(|actor| actor.join().unwrap());
        check_quiet(&manager, &book);
        let _ = manager.shutdown(&options).unwrap();
    }
    drop(manager);
    pools.shutdown();
    let broken = std::mem::take(&mut *book.broken.lock().unwrap());
    assert!(broken.is_empty(), "{broken:#?}");
}
