//! Devices that panic, complete elsewhere, are full or limited, or lose changes.

use super::*;

#[test]
fn a_device_that_panics_fails_its_requests_and_no_others() {
    for (panics, block_size, sectors) in [
        // Always, now and then; and for a change of a part of a block, which isn't queued.
        ((|_| true) as fn(usize) -> bool, 512, 8),
        (|n| n % 7 == 3, 512, 8),
        (|n| n % 7 == 3, 4096, 1),
    ] {
        let device = Arc::new(PanickingDevice { calls: AtomicUsize::new(0), panics, block_size });
        let shared = SharedDevice::new(device.clone());
        let mut kernel = Kernel::new(&shared, 40, MOST_BYTES, Rate::default());
        for _ in 0..10 {
            for tag in 0..40 {
                assert_eq!(kernel.deliver(tag, op::WRITE, 0, u64::from(tag) * 256, sectors), None);
            }
            kernel.submit();
            let mut answers = kernel.answers();
            answers.sort_unstable();
            assert!(answers.iter().map(|&(tag, _)| tag).eq(0..40), "{answers:?}");
            assert!(
                answers.iter().all(|&(_, result)| result == (sectors * 512) as i32 || result < 0)
            );
            assert!(answers.iter().any(|&(_, result)| result < 0));
            assert_eq!((kernel.in_flight(), kernel.queue.is_waiting()), (0, false));
        }
        assert_eq!(kernel.requests()[0], 400);
        // Each tag has its memory, and the client no places.
        kernel.queue.leave();
        assert!(
            kernel.queue.is_quiet()
                && kernel.queue.tags.iter().flatten().all(|tag| tag.buffer.is_some())
        );
        assert!(kernel.queue.feed.client().turn().is_empty());
    }
}

#[test]
fn a_device_that_completes_on_another_thread_answers_each_request_once() {
    const ROUNDS: u32 = 500;
    let ram = Ram::new(1 << 20);
    let (device, other) = ChannelDevice::on_a_thread(ram.device());
    let mut kernel = Kernel::over(device, 8);
    // Each tag writes and reads its own place by turns.
    let mut rounds = [0; 8];
    let place = |tag: u16| u64::from(tag) * 16;
    for tag in 0..8 {
        kernel.fill(tag, &[tag as u8; 512]);
        kernel.deliver(tag, op::WRITE, 0, place(tag), 1);
    }
    let mut at_work = 8;
    while at_work > 0 {
        kernel.submit();
        let (tag, result) = kernel.wait();
        assert_eq!(result, 512);
        let round = &mut rounds[usize::from(tag)];
        *round += 1;
        let byte = (*round / 2) as u8 ^ tag as u8;
        match *round {
            ROUNDS => at_work -= 1,
            n if n % 2 == 1 => {
                kernel.fill(tag, &[0xff; 512]);
                kernel.deliver(tag, op::READ, 0, place(tag), 1);
            }
            _ => {
                let before = (*round / 2 - 1) as u8 ^ tag as u8;
                assert_eq!(kernel.bytes(tag, 512), [before; 512]);
                kernel.fill(tag, &[byte; 512]);
                kernel.deliver(tag, op::WRITE, 0, place(tag), 1);
            }
        }
    }
    assert_eq!((kernel.requests(), kernel.in_flight()), ([8 * u64::from(ROUNDS), 0], 0));
    drop(kernel);
    other.join().unwrap();
    ram.end();
}

#[test]
fn a_limit_names_the_moment_at_which_a_request_passes() {
    let device = Keeper::new();
    let shared = SharedDevice::new(device.clone());
    let rate = Rate { requests: None, bytes: Some(4096) };
    let mut kernel = Kernel::new(&shared, 3, MOST_BYTES, rate);
    assert_eq!((kernel.queue.deadline(), kernel.queue.is_waiting()), (None, false));
    let before = time::now();
    (0..3).for_each(|tag| _ = kernel.deliver(tag, op::READ, 0, 0, 128));
    kernel.submit();
    let until = kernel.queue.deadline().expect("a full bucket lets one pass");
    assert!(until > before && kernel.queue.is_waiting());
    // Neither a wake nor an early call changes that.
    kernel.queue.submit(true, time::now());
    assert_eq!((device.len(), kernel.queue.deadline()), (1, Some(until)));
    assert_eq!((kernel.in_flight(), kernel.wakes.0.load(Ordering::Relaxed)), (3, 0));
    // A queue that is dropped ends what it has.
    kernel.queue.leave();
    assert!(!kernel.queue.is_quiet());
    drop(kernel);
    device.end(Ok(()));
}

#[test]
fn a_request_passes_its_limit_in_time() {
    let device = Keeper::new();
    let shared = SharedDevice::new(device.clone());
    // The second one passes 5 ms after the first.
    let rate = Rate { requests: None, bytes: Some(100 << 10) };
    let mut kernel = Kernel::new(&shared, 2, MOST_BYTES, rate);
    kernel.deliver(0, op::READ, 0, 0, 201);
    kernel.deliver(1, op::READ, 0, 0, 8);
    kernel.submit();
    while device.len() < 2 {
        thread::yield_now();
        kernel.submit();
    }
    assert_eq!((kernel.queue.deadline(), kernel.queue.is_waiting()), (None, false));
    (0..2).for_each(|_| device.end(Ok(())));
    assert_eq!(kernel.answers().len(), 2);
}

#[test]
fn a_queue_beyond_its_places_waits_to_be_woken_for_its_turn() {
    let device = Keeper::new();
    let mut kernel = Kernel::over(device.clone(), 40);
    (0..40).for_each(|tag| _ = kernel.deliver(tag, op::WRITE, 0, u64::from(tag) * 256, 256));
    kernel.submit();
    let places = device.len();
    assert!((1..40).contains(&places), "{places}");
    assert_eq!((kernel.queue.is_waiting(), kernel.queue.deadline()), (true, None));
    kernel.queue.submit(true, time::now());
    assert_eq!((device.len(), kernel.queue.is_waiting()), (places, true), "woken for nothing");
    let mut answers = 0;
    while kernel.queue.is_waiting() {
        let (before, wakes) = (device.len(), kernel.wakes.0.load(Ordering::Relaxed));
        device.end(Ok(()));
        answers += kernel.answers().len();
        kernel.submit();
        assert_eq!(device.len(), before - 1, "it isn't submitted unless it is woken");
        let woken = kernel.wakes.0.load(Ordering::Relaxed) > wakes;
        kernel.queue.submit(woken, time::now());
    }
    assert!(kernel.wakes.0.load(Ordering::Relaxed) > 0);
    while device.len() > 0 {
        device.end(Ok(()));
    }
    assert_eq!(answers + kernel.answers().len(), 40);
}

#[test]
fn each_queue_of_a_disk_is_told_of_a_loss_by_one_flush() {
    let device = Keeper::new();
    let shared = SharedDevice::new(device.clone());
    let mut queues = [(); 2].map(|()| Kernel::new(&shared, 2, 4096, Rate::default()));
    let flush = |kernel: &mut Kernel, result| {
        kernel.deliver(0, op::FLUSH, 0, u64::MAX, 0);
        kernel.submit();
        device.end(result);
        kernel.answers()[0].1
    };
    assert!(queues.iter_mut().all(|queue| flush(queue, Ok(())) == 0));
    device.losses.store(1, Ordering::Relaxed);
    for expected in [EIO, 0] {
        assert!(queues.iter_mut().all(|queue| flush(queue, Ok(())) == expected));
    }
    // The flush that fails itself tells its queue, and the other one learns it too.
    device.losses.store(2, Ordering::Relaxed);
    let lost = Err(IoError::new(IoErrorKind::Io(libc::ENOSPC)));
    assert_eq!(flush(&mut queues[0], lost), -libc::ENOSPC);
    assert_eq!(queues.iter_mut().map(|queue| flush(queue, Ok(()))).collect::<Vec<_>>(), [0, EIO]);
}

#[test]
fn a_queue_that_owes_a_failure_fails_one_flush_and_no_other_request() {
    let ram = Ram::new(1 << 20);
    let mut kernel = Kernel::over(ram.device(), 1);
    kernel.queue.feed.client().owe_a_failure();
    assert_eq!(kernel.run(0, op::WRITE, FUA, 0, 8), 4096);
    let flushes = [(); 3].map(|()| kernel.run(0, op::FLUSH, 0, u64::MAX, 0));
    assert_eq!(flushes, [EIO, 0, 0]);
    drop(kernel);
    ram.end();
}

#[test]
fn a_request_that_comes_back_without_its_memory_fails_and_the_tag_gets_other_memory() {
    let ram = Ram::new(1 << 20);
    let mut kernel = Kernel::over(ram.device(), 1);
    for (op, expected) in [(op::READ, EIO), (op::WRITE, EIO), (op::DISCARD, 0)] {
        let before = kernel.addresses[0];
        assert_eq!(kernel.deliver(0, op, 0, 0, 8), None);
        kernel.submit();
        let slot = kernel.ended.recv().unwrap();
        let mut done = slot.done.lock();
        let lost = std::mem::take(&mut done.as_mut().unwrap().payload);
        drop(done);
        assert_eq!(kernel.answer(&slot), Some((0, expected)));
        // The lost memory is still there, so the new one is elsewhere.
        assert_eq!(kernel.addresses[0] != before, expected == EIO);
        drop(lost);
        kernel.fill(0, &[op; 4096]);
        assert_eq!(kernel.run(0, op::WRITE, 0, 0, 8), 4096);
    }
    assert_eq!(kernel.run(0, op::READ, 0, 0, 8), 4096);
    assert_eq!(kernel.bytes(0, 4096), [op::DISCARD; 4096]);
    // The kernel knows the other memory, so a rest leaves it.
    let address = kernel.addresses[0];
    kernel.queue.rest(kernel.queue.rests);
    assert_eq!(kernel.queue.tags[0].as_ref().map(|tag| tag.address), Some(address));
    drop(kernel);
    ram.end();
}

#[test]
fn a_queue_at_rest_has_no_tags_and_serves_as_before() {
    let ram = Ram::new(1 << 20);
    let mut kernel = Kernel::over(ram.device(), 2);
    let tags = |kernel: &Kernel| kernel.queue.tags.iter().flatten().count();
    assert_eq!(tags(&kernel), 0);
    kernel.fill(0, &[7; 4096]);
    assert_eq!(kernel.run(0, op::WRITE, 0, 0, 8), 4096);
    // A request in the device keeps all tags.
    let late = kernel.queue.rests;
    kernel.deliver(1, op::FLUSH, 0, 0, 0);
    kernel.queue.rest(late);
    assert_eq!(tags(&kernel), 2);
    kernel.submit();
    assert_eq!(kernel.answers(), [(1, 0)]);
    kernel.queue.rest(kernel.queue.rests);
    assert_eq!((tags(&kernel), kernel.bytes(0, 4096)), (0, vec![0; 4096]));
    assert_eq!(kernel.run(0, op::READ, 0, 0, 8), 4096);
    assert_eq!(kernel.bytes(0, 4096), [7; 4096]);
    drop(kernel);
    ram.end();
}
