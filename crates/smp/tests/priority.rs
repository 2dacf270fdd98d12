//! The scheduling of the targets' threads, by the kernel's word, and the log if it is refused.
#![cfg(not(loom))]

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use corewise_smp::{AllCpus, Priority, Smp};
use corewise_topology::{CpuId, Machine};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Returns how the calling thread is scheduled: policy, priority and niceness.
fn scheduled() -> (u32, u32, i32) {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux has it");
    // The name stands in parentheses, and may hold anything.
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let field = |number: usize| fields.split_whitespace().nth(number - 3).expect("as in proc(5)");
    let number = |n| field(n).parse().expect("a number");
    (number(41), number(40), field(19).parse().expect("a number"))
}

const OTHER: u32 = 0;
const FIFO: u32 = 1;

/// Takes from the calling thread, and those that it starts, the right to any priority.
fn renounce() {
    let have = capabilities(None).expect("one may ask");
    let effective = have.effective.difference(CapabilitySet::SYS_NICE);
    set_capabilities(None, CapabilitySets { effective, ..have }).expect("one may renounce");
}

/// Returns true if the system lets a thread of this process have that priority. A thread of its own
/// tries it. (A capability isn't enough if a control group has no time for such threads.)
fn permitted(fifo: i32) -> bool {
    let test = std::thread::spawn(move || {
        // The kernel's `sched_param` is one number.
        // SAFETY: 0 is the calling thread; the pointer is to a local, which is only read.
        let refused = unsafe {
            libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &raw const fifo)
        };
        refused == 0
    });
    test.join().expect("no panic")
}

/// A subscriber that keeps every event at `info` or above, as text.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Subscriber for Heard {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::INFO
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        self.0.lock().expect("nobody panics with it").push(text.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn targets_run_as_the_kernel_s_interrupt_threads_where_that_is_asked_for_and_permitted() {
    let machine = Machine::live().expect("Linux");
    let smp = Smp::builder(&machine).priority(Priority::OF_INTERRUPT_THREADS).build();
    let smp = smp.expect("threads");
    let granted: Vec<_> = smp.dump().cpus.iter().map(|cpu| (cpu.cpu, cpu.priority)).collect();
    for (cpu, found) in
        smp.call_each(AllCpus, |_| scheduled()).wait().into_values().expect("no panics")
    {
        if permitted(50) {
            assert_eq!((found.0, found.1), (FIFO, 50));
        } else {
            assert!(found.0 == FIFO || found.2 <= 0, "the nearest that it may: {found:?}");
        }
        let said = granted.iter().find(|(of, _)| *of == cpu).and_then(|(_, granted)| *granted);
        let kernel_s = match found {
            (FIFO, fifo, _) => format!("SCHED_FIFO {fifo}"),
            (_, _, 0) => "plain".into(),
            (_, _, nice) => format!("nice {nice}"),
        };
        assert_eq!(said.map(|said| said.to_string()), Some(kernel_s), "what the dump says is true");
    }
}

/// Returns policy and priority of a thread of this process, and whether it sleeps.
fn scheduled_is(thread: i32) -> (u32, u32, bool) {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let field = |number: usize| fields.split_whitespace().nth(number - 3).expect("as in proc(5)");
    let number = |n| field(n).parse().expect("a number");
    (number(41), number(40), field(3) == "S")
}

#[test]
fn a_target_that_is_called_without_a_gap_goes_on_as_an_ordinary_thread_and_sleeps_as_an_urgent_one()
{
    let machine = Machine::live().expect("Linux");
    let online: Vec<CpuId> = machine.online().iter().collect();
    let [here, there, ..] = online[..] else { return };
    if !permitted(50) {
        return;
    }
    let smp = Smp::builder(&machine).priority(Priority::OF_INTERRUPT_THREADS).build();
    let smp = smp.expect("threads");
    machine.pin_current_thread(&[here].into_iter().collect()).expect("it is online");
    let call = |smp: &Smp| smp.call(there, || ()).expect("online").wait().expect("no panic");
    let thread = smp.call(there, || rustix::thread::gettid().as_raw_nonzero().get());
    let thread = thread.expect("online").wait().expect("no panic");
    for round in 0..3 {
        while scheduled_is(thread).0 != OTHER {
            (0..1000).for_each(|_| call(&smp));
        }
        // No call comes any more.
        let asleep = loop {
            let (policy, priority, sleeps) = scheduled_is(thread);
            if sleeps {
                break (policy, priority);
            }
            std::thread::yield_now();
        };
        assert_eq!(asleep, (FIFO, 50), "round {round}");
    }
}

#[test]
fn a_target_whose_queue_is_never_empty_goes_on_as_an_ordinary_thread_and_sleeps_as_an_urgent_one() {
    /// Queues itself again until its thread is an ordinary one.
    fn flood(smp: Arc<Smp>, cpu: CpuId) {
        if scheduled().0 != OTHER {
            let again = Arc::clone(&smp);
            smp.detached().call(cpu, move || flood(again, cpu)).expect("online");
        }
    }
    let machine = Machine::live().expect("Linux");
    let online: Vec<CpuId> = machine.online().iter().collect();
    let [here, there, ..] = online[..] else { return };
    if !permitted(50) {
        return;
    }
    let smp = Smp::builder(&machine).priority(Priority::OF_INTERRUPT_THREADS).build();
    let smp = Arc::new(smp.expect("threads"));
    machine.pin_current_thread(&[here].into_iter().collect()).expect("it is online");
    let thread = smp.call(there, || rustix::thread::gettid().as_raw_nonzero().get());
    let thread = thread.expect("online").wait().expect("no panic");
    let begun = Arc::clone(&smp);
    smp.detached().call(there, move || flood(begun, there)).expect("online");
    // It sleeps only once the flood is over.
    let asleep = loop {
        let (policy, priority, sleeps) = scheduled_is(thread);
        if sleeps {
            break (policy, priority);
        }
        std::thread::yield_now();
    };
    assert_eq!(asleep, (FIFO, 50));
}

/// Returns urgent targets, and the CPU of one; the caller is pinned to another CPU. `None` if there
/// is no other one, or no target is raised, or all would be by the limits alone.
fn urgent_target() -> Option<(Smp, CpuId)> {
    let machine = Machine::live().expect("Linux");
    let online: Vec<CpuId> = machine.online().iter().collect();
    let [here, there, ..] = online[..] else { return None };
    let without = std::thread::spawn(|| {
        renounce();
        permitted(50)
    });
    if !permitted(50) || without.join().expect("no panic") {
        return None;
    }
    let smp = Smp::builder(&machine).priority(Priority::OF_INTERRUPT_THREADS).build();
    machine.pin_current_thread(&[here].into_iter().collect()).expect("it is online");
    Some((smp.expect("threads"), there))
}

fn priority_in_dump(smp: &Smp, of: CpuId) -> Option<Priority> {
    smp.dump().cpus.iter().find(|cpu| cpu.cpu == of).and_then(|cpu| cpu.priority)
}

#[test]
fn a_target_that_could_not_take_its_priority_back_does_not_give_it_up() {
    let Some((smp, there)) = urgent_target() else { return };
    let call = |f: fn() -> u32| smp.call(there, f).expect("online").wait().expect("no panic");
    call(|| {
        renounce();
        0
    });
    for _ in 0..20_000 {
        assert_eq!(call(|| scheduled().0), FIFO);
    }
    assert_eq!(priority_in_dump(&smp, there), Some(Priority::Fifo(50)));
}

#[test]
fn a_target_that_can_not_take_its_priority_back_says_so_and_goes_on_as_an_ordinary_thread() {
    let Some((smp, there)) = urgent_target() else { return };
    // The right to it is gone while it is an ordinary thread.
    let renounces = || {
        let ordinary = scheduled().0 == OTHER;
        if ordinary {
            renounce();
        }
        ordinary
    };
    while !smp.call(there, renounces).expect("online").wait().expect("no panic") {}
    while priority_in_dump(&smp, there) != Some(Priority::Plain) {
        std::thread::yield_now();
    }
    let after = smp.call(there, scheduled).expect("online").wait().expect("no panic");
    assert_eq!(after.0, OTHER);
}

#[test]
fn threads_that_a_handler_starts_inherit_no_raised_priority() {
    let machine = Machine::live().expect("Linux");
    let smp = Smp::builder(&machine).priority(Priority::OF_INTERRUPT_THREADS).build();
    let smp = smp.expect("threads");
    let child = smp.call(machine.online().first().expect("a CPU"), || {
        // The test joins it: the handler doesn't wait for it.
        std::thread::spawn(scheduled)
    });
    let child = child.expect("online").wait().expect("no panic").join().expect("no panic");
    assert_eq!((child.0, child.1), (OTHER, 0));
    assert!(child.2 >= 0);
}

#[test]
fn a_priority_can_be_asked_for_and_none_is_raised_unless_it_was() {
    let machine = Machine::live().expect("Linux");
    let asked = |priority| Smp::builder(&machine).priority(priority);
    for (builder, policy, niceness) in [
        (asked(Priority::Nice(7)), OTHER, 7),
        (asked(Priority::Plain), OTHER, 0),
        (Smp::builder(&machine), OTHER, 0),
    ] {
        let asked = format!("{builder:?}");
        let smp = builder.build().expect("threads");
        for (_, found) in
            smp.call_each(AllCpus, |_| scheduled()).wait().into_values().expect("no panics")
        {
            assert_eq!((found.0, found.2), (policy, niceness), "{asked}");
        }
    }
}

#[test]
fn a_refused_priority_is_said_once_for_each_handle_and_how_to_permit_it() {
    let test = std::thread::spawn(|| {
        renounce();
        let heard = Heard::default();
        let machine = Machine::synthetic("core:3 pu:1").expect("a valid description");
        tracing::subscriber::with_default(heard.clone(), || {
            for _ in 0..2 {
                let smp = Smp::builder(&machine).priority(Priority::Fifo(99)).build();
                let smp = smp.expect("a refused priority is no failure");
                let answers = smp.call_each(AllCpus, |_| scheduled()).wait().into_values();
                for (_, found) in answers.expect("no panics") {
                    assert_ne!((found.0, found.1), (FIFO, 99));
                }
                smp.cpu_offline(CpuId::new(1)).wait();
                smp.cpu_online(CpuId::new(1))
                    .expect("the thread is refused again, and again it is no failure");
            }
            // A granted priority is not logged.
            drop(Smp::builder(&machine).priority(Priority::Plain).build().expect("threads"));
        });
        let heard = heard.0.lock().expect("nobody panics with it").clone();
        assert_eq!(heard.len(), 2, "{heard:#?}");
        for text in heard {
            assert!(text.starts_with("INFO "), "{text}");
            assert!(text.contains("wanted=SCHED_FIFO 99") && text.contains("granted="), "{text}");
            assert!(text.contains("CAP_SYS_NICE") && text.contains("ulimit -r 99"), "{text}");
        }
    });
    test.join().expect("the test passes");
}
