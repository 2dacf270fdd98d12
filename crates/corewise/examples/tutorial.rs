//! The program of docs/tutorial.md: a key-value service that starts by devices, works by work items
//! and calls, and stops in dependency order.
//!
//! `cargo run --release -p corewise --example tutorial`
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to its user")]

use std::collections::HashMap;
use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use corewise::device::{
    Bound, BringUpOptions, DeviceDecl, DeviceManager, Driver, ProbeContext, ProbeError,
    ShutdownError, ShutdownOptions,
};
use corewise::prelude::*;
use corewise::smp::PerCpu;

/// The time without progress after which work is reported on the terminal: the program has no log.
const STALL: Duration = Duration::from_secs(2);

/// One shard of the store: the keys of one CPU, and their values.
type Shard = HashMap<String, String>;

/// The store. Only functions that run on a CPU's call target touch the shard of that CPU, so its
/// lock is always free.
struct Store {
    smp: Smp,
    cpus: Vec<CpuId>,
    shards: PerCpu<Mutex<Shard>>,
}

impl Store {
    fn new(machine: &Machine) -> Result<Store, ProbeError> {
        Ok(Store {
            smp: Smp::builder(machine)
                .watchdog(Some(STALL))
                .on_stall(|stall| eprintln!("{stall}"))
                .build()
                .map_err(ProbeError::failed)?,
            cpus: machine.online().iter().collect(),
            shards: PerCpu::new(machine, |_| Mutex::default()),
        })
    }

    /// Returns the CPU that owns this key.
    fn owner(&self, key: &str) -> CpuId {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        self.cpus[hasher.finish() as usize % self.cpus.len()]
    }

    /// Runs `f` on the shard that has the key, on the CPU that owns it, and returns its value.
    fn on_shard<R: Send + 'static>(
        &self,
        key: &str,
        f: impl FnOnce(&mut Shard) -> R + Send,
    ) -> Result<R, String> {
        let cpu = self.owner(key);
        let shard = self.shards.on(cpu).ok_or("no such CPU")?;
        self.smp.run(cpu, || f(&mut lock(shard))).map_err(|error| error.to_string())
    }

    /// Counts the keys: each CPU counts its own, all at the same time.
    fn count(&self) -> Result<usize, String> {
        let keys = |cpu| self.shards.on(cpu).map_or(0, |shard| lock(shard).len());
        let counts = self.smp.run_each(&self.smp.online(), keys).into_values();
        Ok(counts.map_err(|error| error.to_string())?.iter().map(|(_, keys)| keys).sum())
    }
}

/// The journal: a file with one line for each change.
struct Journal {
    file: Arc<Mutex<File>>,
    unwritten: Arc<Mutex<String>>,
    queue: Workqueue,
    writer: Work,
}

impl Journal {
    fn open(path: &PathBuf, queue: Workqueue) -> std::io::Result<Journal> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        let (file, unwritten) = (Arc::new(Mutex::new(file)), Arc::<Mutex<String>>::default());
        let (its_file, its_lines) = (Arc::clone(&file), Arc::clone(&unwritten));
        let writer = Work::new(move || {
            let lines = std::mem::take(&mut *lock(&its_lines));
            let written = blocking("write", || lock(&its_file).write_all(lines.as_bytes()));
            written.expect("the disk has room");
        });
        Ok(Journal { file, unwritten, queue, writer })
    }

    /// Adds a line, and queues the writer. Many lines become few writes.
    fn append(&self, line: &str) -> Result<(), String> {
        lock(&self.unwritten).push_str(&format!("{line}\n"));
        self.queue.queue(&self.writer).map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// The front end: it turns request lines into work items.
struct Frontend {
    store: Arc<Store>,
    journal: Arc<Journal>,
    queue: Workqueue,
}

impl Frontend {
    /// Queues a request. The handle gives the answer.
    fn request(&self, line: String) -> JoinHandle<Result<String, String>> {
        let (store, journal) = (Arc::clone(&self.store), Arc::clone(&self.journal));
        self.queue.spawn(move || answer(&store, &journal, &line))
    }
}

/// Carries out one request.
fn answer(store: &Store, journal: &Journal, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["SET", key, value] => store.on_shard(key, |shard| {
            journal.append(line)?; // here, so that the journal has the order of the shard
            shard.insert(key.to_owned(), value.to_owned());
            Ok("OK".to_owned())
        })?,
        ["GET", key] => {
            let value = store.on_shard(key, |shard| shard.get(key).cloned())?;
            Ok(value.unwrap_or_else(|| "(none)".to_owned()))
        }
        ["COUNT"] => Ok(store.count()?.to_string()),
        _ => Err(format!("cannot understand {line:?}: write SET KEY VALUE, GET KEY or COUNT")),
    }
}

impl Bound for Journal {
    fn shutdown(&self) -> Result<(), ShutdownError> {
        self.writer.flush();
        lock(&self.file).sync_all().map_err(ShutdownError::new)
    }
}

impl Bound for Store {
    fn has_shutdown(&self) -> bool {
        false // memory only: the journal has everything
    }
}

impl Bound for Frontend {
    fn shutdown(&self) -> Result<(), ShutdownError> {
        self.queue.destroy(); // refuses new requests, and waits for the accepted ones
        Ok(())
    }
}

/// Brings up journals. The device's configuration is the path of the file.
struct Journals(WorkerPools);

impl Driver for Journals {
    fn name(&self) -> &str {
        "journal"
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let path = cx.config::<PathBuf>()?;
        let queue = Workqueue::builder("journal").build(&self.0).map_err(ProbeError::failed)?;
        let journal = Journal::open(path, queue);
        Ok(Arc::new(
            journal.map_err(|why| {
                ProbeError::failed(format!("cannot open {}: {why}", path.display()))
            })?,
        ))
    }
}

/// Brings up stores: each fills itself from the journal's file.
struct Stores(Machine);

impl Driver for Stores {
    fn name(&self) -> &str {
        "store"
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let store = Store::new(&self.0)?;
        let lines = fs::read_to_string(cx.config::<PathBuf>()?).map_err(ProbeError::failed)?;
        for line in lines.lines() {
            if let ["SET", key, value] = line.split_whitespace().collect::<Vec<_>>()[..] {
                let (its_key, value) = (key.to_owned(), value.to_owned());
                let filled = store.on_shard(key, |shard| drop(shard.insert(its_key, value)));
                filled.map_err(ProbeError::failed)?;
            }
        }
        Ok(Arc::new(store))
    }
}

/// Brings up front ends, once the store and the journal are up.
struct Frontends(WorkerPools);

impl Driver for Frontends {
    fn name(&self) -> &str {
        "frontend"
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let queue = Workqueue::builder("requests").build(&self.0).map_err(ProbeError::failed)?;
        let (store, journal) = (cx.supplier("store")?, cx.supplier("journal")?);
        Ok(Arc::new(Frontend { store, journal, queue }))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::temp_dir().join(format!("tutorial-{}.log", std::process::id()));
    let machine = Machine::live()?;
    let pools = WorkerPools::builder(&machine)
        .stall_after(STALL)
        .on_stall(|stall| eprintln!("{stall}"))
        .build();

    let devices = DeviceManager::new(&pools)?;
    devices.register(Arc::new(Journals(pools.clone())))?;
    devices.register(Arc::new(Stores(machine)))?;
    devices.register(Arc::new(Frontends(pools.clone())))?;
    let service = vec![
        DeviceDecl::new("frontend", "frontend").supplier("store").supplier("journal"),
        DeviceDecl::new("store", "store").supplier("journal").config(file.clone()),
        DeviceDecl::new("journal", "journal").config(file.clone()),
    ];
    let up = devices.bring_up(service, &BringUpOptions::new())?;
    if let Some(device) = up.not_bound().next() {
        return Err(format!("{} did not come up: {:?}", device.name, device.outcome).into());
    }
    println!("{}", up.timeline());

    let frontend = devices.bound::<Frontend>("frontend").ok_or("the front end is not up")?;
    thread::scope(|clients| {
        for client in 0..4 {
            let frontend = &frontend;
            clients.spawn(move || {
                for n in 0..250 {
                    let set = frontend.request(format!("SET {client}/{n} {}", n * n));
                    assert_eq!(set.join().expect("no panic"), Ok("OK".to_owned()));
                }
            });
        }
    });
    println!("3/12 is {}", frontend.request("GET 3/12".to_owned()).join()??);
    println!("{} keys", frontend.request("COUNT".to_owned()).join()??);

    let deadline = ShutdownOptions::new().device_timeout(Some(Duration::from_secs(5)));
    let down = devices.shutdown(&deadline)?;
    println!("{}", down.timeline());
    println!("{} lines in the journal", fs::read_to_string(&file)?.lines().count());
    pools.shutdown();
    fs::remove_file(&file)?;
    Ok(())
}

/// Locks a mutex, also after a panic of another thread that had it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
