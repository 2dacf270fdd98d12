//! The null device of a run, the queue in front of it, and the threads of both.

use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{Driver, HwQueues, Queue};
use corewise_drivers::{Null, NullOptions};
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::hint::spin_loop;
use corewise_sync::thread::{self, JoinHandle};
use corewise_sync::{Parker, time};
use corewise_topology::{CpuId, CpuSet, Machine};
use corewise_workqueue::{WorkerPools, Workqueue};

use crate::calls::priority;
use crate::error::BenchError;
use crate::meter::sleep_exactly;
use crate::start::Pools;

/// The priority of completion threads: that of the kernel's interrupt threads.
const COMPLETION: u8 = 50;
/// The priority of the thread that starts the reads. Completions can't delay it.
const STARTER: u8 = 60;
/// Requests that a completion thread gets in a row, as with the published driver.
const BATCH: usize = 16;
/// Bytes of the device, which stores nothing.
const SIZE: u64 = 1 << 40;
/// Approximate steps of the device's work in a microsecond. Each is a multiplication that needs the
/// one before. With the clock instead, a request whose thread is preempted would be cheaper.
const STEPS_PER_US: u128 = 900;

/// The priority of the urgent tasks, the period of each, and the length of its work.
const URGENT: (u8, Duration, Duration) =
    (80, Duration::from_micros(200), Duration::from_micros(20));

/// A queue over a device, and the workers that run it. A drop drains it first.
pub(crate) struct Layer {
    pub(crate) queue: Arc<Queue>,
    wq: Workqueue,
    machine: Machine,
    _pools: Pools,
}

impl Layer {
    /// Creates a queue over the device that `driver` makes.
    ///
    /// # Errors
    /// The queue or the device couldn't be made.
    pub(crate) fn new(
        machine: &Machine,
        hw_queues: Option<usize>,
        driver: impl FnOnce(&Workqueue) -> Result<Arc<dyn Driver>, BenchError>,
    ) -> Result<Layer, BenchError> {
        let pools = WorkerPools::new(machine);
        let wq = Workqueue::builder("blockmq").build(&pools)?;
        let queue = Queue::builder(machine, driver(&wq)?);
        let queue = match hw_queues {
            Some(count) => queue.hw_queues(HwQueues::Count(count)),
            None => queue,
        };
        let queue = queue.build(&wq);
        Ok(Layer { queue, wq, machine: machine.clone(), _pools: Pools(pools) })
    }

    /// Creates a queue over a null device with this number of completion threads and as many
    /// hardware queues. The threads have a real-time priority or not. The threads are pinned to the
    /// CPUs in turn, as the vectors of a device are. If there are fewer CPUs, the queue is made for
    /// a machine that has enough. The function is for this crate only: the device leaves the memory
    /// of reads as it is, and [`Stream`](super::stream::Stream) alone reads.
    ///
    /// # Errors
    /// The queue or a thread couldn't be made.
    pub(crate) fn null(
        machine: &Machine,
        threads: usize,
        cost: Duration,
        real_time: bool,
    ) -> Result<Layer, BenchError> {
        let cpus: Vec<CpuId> = machine.online().iter().collect();
        let pinned = machine.clone();
        let at_start = move |number: usize| {
            let cpu = cpus[number % cpus.len()];
            // If the thread can't be pinned, the system chooses its CPU.
            let _ = pinned.pin_current_thread(&CpuSet::from_iter([cpu]));
            if real_time {
                // This is asked for only if it is allowed.
                let _ = priority::real_time(COMPLETION);
            }
        };
        let steps = cost.as_nanos() * STEPS_PER_US / 1_000;
        // SAFETY: a stream reads into buffers that were zeroed, and nothing else reads.
        let options = unsafe { NullOptions::new(SIZE).leave_reads() }
            .work(u32::try_from(steps).unwrap_or(u32::MAX))
            .completion_threads(threads)
            .in_turn(BATCH)
            .hw_queues(threads)
            .at_thread_start(at_start);
        let device = Null::with(options).map_err(BenchError::Thread)?;
        let machine = match machine.online().len() < threads {
            true => &Machine::synthetic(&format!("core:{threads} pu:1"))?,
            false => machine,
        };
        Layer::new(machine, Some(threads), |_| Ok(Arc::new(device)))
    }

    /// Creates one more queue, over a device of its own, from which nothing reads.
    pub(crate) fn idle_queue(&self) -> Arc<Queue> {
        Queue::builder(&self.machine, Arc::new(Null::new(SIZE))).build(&self.wq)
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        self.queue.drain();
    }
}

/// A priority of the calling thread above completion threads, until it is dropped.
pub(crate) struct Starter(bool);

impl Starter {
    /// Raises the calling thread's priority. If completion threads are ordinary, this thread stays
    /// ordinary too.
    pub(crate) fn new(real_time: bool) -> Starter {
        Starter(real_time && priority::real_time(STARTER).is_ok())
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        if self.0 {
            // No system is known that refuses it.
            let _ = priority::ordinary();
        }
    }
}

/// A task on each CPU that is more urgent than completion threads, and preempts them until this is
/// dropped.
pub(crate) struct Urgent {
    /// A: true once the tasks end; Relaxed, since a thread that misses it sees it a period later.
    end: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Urgent {
    /// Starts the tasks.
    ///
    /// # Errors
    /// A thread couldn't be started.
    pub(crate) fn new(machine: &Machine) -> Result<Urgent, BenchError> {
        let mut urgent = Urgent { end: Arc::default(), threads: Vec::new() };
        for cpu in machine.online().iter() {
            let (machine, end) = (machine.clone(), Arc::clone(&urgent.end));
            let body = move || {
                let _ = machine.pin_current_thread(&CpuSet::from_iter([cpu]));
                let (level, period, work) = URGENT;
                let _ = priority::real_time(level);
                sleep_exactly();
                let (parker, mut next) = (Parker::new(), time::now());
                while !end.load(Ordering::Relaxed) {
                    let began = time::now();
                    while time::now() - began < work {
                        spin_loop();
                    }
                    next += period;
                    parker.park_timeout(next.saturating_duration_since(time::now()));
                }
            };
            let thread = thread::Builder::new().name(format!("urgent/{cpu}")).spawn(body);
            urgent.threads.push(thread.map_err(BenchError::Thread)?);
        }
        Ok(urgent)
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of a task only ends its disturbance.
            drop(thread.join());
        }
    }
}
