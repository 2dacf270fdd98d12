//! The orders in which a kernel, a device and an owner act, and kernels that lie.

use super::*;

#[test]
fn answers_of_a_kernel_about_tags_that_are_not_its_own_change_nothing() {
    let device = Keeper::new();
    let mut kernel = Kernel::over(device.clone(), 2);
    // Beyond the depth.
    assert_eq!(kernel.deliver(2, op::FLUSH, 0, 0, 0), None);
    kernel.queue.died(2);
    assert!(kernel.queue.ended(2, time::now()).is_none());
    assert_eq!(kernel.queue.ended(0, time::now()), None, "it has no request");
    // Twice.
    kernel.deliver(0, op::WRITE, 0, 0, 8);
    kernel.deliver(0, op::WRITE, 0, 8, 8);
    kernel.submit();
    assert_eq!((device.requests().len(), kernel.in_flight()), (1, 1));
    // The device has the memory of the tag, so the queue doesn't end without it.
    kernel.queue.died(0);
    kernel.queue.died(1);
    kernel.queue.died(1);
    assert!(!kernel.queue.is_gone());
    device.end(Ok(()));
    assert_eq!(kernel.answers(), [(0, 4096)]);
    assert!(kernel.queue.ended(0, time::now()).is_none(), "it was answered");
    kernel.queue.died(0);
    assert!(kernel.queue.is_gone());
    // After its death.
    kernel.deliver(0, op::WRITE, 0, 0, 8);
    kernel.submit();
    assert_eq!((device.len(), kernel.in_flight(), kernel.queue.is_gone()), (0, 0, true));
    assert_eq!(kernel.requests(), [1, 0]);
}

/// An event of a queue with two tags.
#[derive(Clone, Copy, Debug)]
enum Event {
    Delivered(u16),
    Died(u16),
    Ended(u16),
    Submit,
    Leave,
}

const EVENTS: [Event; 8] = [
    Event::Delivered(0),
    Event::Delivered(1),
    Event::Died(0),
    Event::Died(1),
    Event::Ended(0),
    Event::Ended(1),
    Event::Submit,
    Event::Leave,
];

/// Runs events and compares each step with a model of two words and a list.
fn check_order(device: &Arc<Keeper>, events: &[Event]) {
    let shared = SharedDevice::new(device.clone());
    let mut kernel = Kernel::new(&shared, 2, 4096, Rate::default());
    let (mut model, mut submitted, mut leaving) = ([TagState::Kernel; 2], [false; 2], false);
    let (mut accepted, mut answered) = (0, 0);
    for event in events {
        match *event {
            Event::Delivered(tag) => {
                assert_eq!(kernel.deliver(tag, op::WRITE, 0, u64::from(tag) * 8, 8), None);
                let at = &mut model[usize::from(tag)];
                if *at == TagState::Kernel {
                    *at = if leaving { TagState::Held } else { TagState::Device };
                    accepted += u64::from(!leaving);
                }
            }
            Event::Died(tag) => {
                kernel.queue.died(tag);
                let at = &mut model[usize::from(tag)];
                if *at == TagState::Kernel {
                    *at = TagState::Dead;
                }
            }
            Event::Ended(tag) => {
                let at = usize::from(tag);
                if std::mem::take(&mut submitted[at]) {
                    device.end_at(u64::from(tag) * 4096);
                    assert_eq!(kernel.answers(), [(tag, 4096)]);
                    (model[at], answered) = (TagState::Kernel, answered + 1);
                } else {
                    assert_eq!(kernel.queue.ended(tag, time::now()), None);
                }
            }
            Event::Submit => {
                kernel.submit();
                (0..2).for_each(|at| submitted[at] |= model[at] == TagState::Device);
            }
            Event::Leave => {
                kernel.queue.leave();
                leaving = true;
            }
        }
        assert!(kernel.answers().is_empty(), "no answer twice");
        let count = |state| model.iter().filter(|&&at| at == state).count();
        let in_device = count(TagState::Device);
        let waits = count(TagState::Kernel) + in_device;
        assert_eq!(kernel.queue.is_gone(), waits == 0);
        assert_eq!(kernel.queue.is_quiet(), leaving && in_device == 0);
        assert_eq!((kernel.in_flight(), accepted), (in_device as u64, answered + in_device as u64));
        assert_eq!(device.len(), submitted.iter().filter(|&&is| is).count());
        assert_eq!(kernel.requests(), [answered, 0]);
        assert_eq!(kernel.queue.states.to_vec(), model);
    }
    // Requests that the device has end without a queue.
    drop(kernel);
    while device.len() > 0 {
        device.end(Ok(()));
    }
}

#[test]
fn in_every_order_of_events_each_request_is_answered_once_or_held() {
    const LENGTH: u32 = 5;
    let device = Keeper::new();
    let kinds = EVENTS.len();
    for order in 0..kinds.pow(LENGTH) {
        let events: Vec<_> = (0..LENGTH).map(|n| EVENTS[order / kinds.pow(n) % kinds]).collect();
        let run = || check_order(&device, &events);
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
            panic!("in this order: {events:?}");
        }
    }
}

#[test]
fn in_long_random_orders_each_request_is_answered_once_or_held() {
    let device = Keeper::new();
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        // A queue that dies or is left early has nothing to show.
        let kinds = if seed % 3 == 0 { 8 } else { 7 };
        let next = || match EVENTS[rng.usize(..kinds)] {
            Event::Died(_) if rng.u8(..10) > 0 => Event::Submit,
            event => event,
        };
        let events: Vec<_> = iter::repeat_with(next).take(60).collect();
        check_order(&device, &events);
    }
}

#[test]
fn a_queue_that_is_left_answers_what_the_device_has_and_holds_the_rest() {
    let device = Keeper::new();
    let mut kernel = Kernel::over(device.clone(), 4);
    kernel.deliver(0, op::WRITE, 0, 0, 8);
    kernel.deliver(1, op::WRITE, 0, 8, 8);
    kernel.submit();
    kernel.deliver(2, op::WRITE, 0, 16, 8);
    kernel.queue.leave();
    assert_eq!(kernel.deliver(3, op::WRITE, 0, 24, 8), None);
    assert_eq!(kernel.deliver(3, 99, 0, 24, 8), None, "nobody answers for the next server");
    kernel.submit();
    assert_eq!((device.len(), kernel.in_flight()), (3, 3), "it was taken before");
    for (tag, is_last) in [(0, false), (1, false), (2, true)] {
        device.end(Ok(()));
        assert_eq!(kernel.answers(), [(tag, 4096)]);
        assert_eq!(kernel.queue.is_quiet(), is_last);
    }
    assert!(!kernel.queue.is_gone(), "the kernel has three tags");
    kernel.deliver(0, op::READ, 0, 0, 8);
    (1..3).for_each(|tag| kernel.queue.died(tag));
    assert!(kernel.queue.is_gone());
    assert_eq!(kernel.answers(), []);
}
