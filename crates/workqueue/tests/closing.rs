//! What is left in pools that are closed is run or cancelled: nobody waits for ever.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::Mutex;
use corewise_topology::Machine;
use corewise_workqueue::{JoinError, Work, WorkerPools, Workqueue};

fn machine(cpus: u32) -> Machine {
    Machine::synthetic(&format!("numa:1 l3:1 core:{cpus} pu:1")).expect("a valid description")
}

#[test]
fn a_shutdown_cancels_what_has_no_worker_and_gets_none() {
    // A spawn handler that says that it will run the workers, and then doesn't; and an end that comes
    // when the timekeeper has just looked.
    let (kept, to_end) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
    let (keeps, ends) = (Arc::clone(&kept), Arc::clone(&to_end));
    let pools = WorkerPools::builder(&machine(1))
        .spawn_handler(move |worker| {
            keeps.lock().push(worker);
            Ok(())
        })
        .stall_after(Duration::from_millis(1))
        .on_stall(move |_| {
            let pools: Option<WorkerPools> = ends.lock().take();
            pools.expect("it stalls once").shutdown();
        })
        .build();
    let queue = Workqueue::builder("alone").build(&pools).expect("it was promised a worker");
    let (task, work) = (queue.spawn(|| ()), Work::new(|| ()));
    assert!(queue.queue(&work));
    let workers = std::mem::take(&mut *kept.lock());
    *to_end.lock() = Some(pools);
    drop(workers);
    assert!(matches!(task.join(), Err(JoinError::Cancelled)));
    queue.flush();
    assert!(!work.is_pending());
}
