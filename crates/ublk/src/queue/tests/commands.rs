//! Each command, its bytes and its answer.

use super::*;

#[test]
fn bytes_go_from_a_tag_s_memory_to_the_device_and_back_to_another_s() {
    let ram = Ram::new(1 << 20);
    let mut kernel = Kernel::over(ram.device(), 3);
    let data: Vec<u8> = (0..MOST_BYTES).map(|n| (n % 251) as u8).collect();
    kernel.fill(0, &data);
    assert_eq!(kernel.run(0, op::WRITE, 0, 8, MOST_BYTES / 512), MOST_BYTES as i32);
    assert_eq!(kernel.run(1, op::READ, 0, 8, MOST_BYTES / 512), MOST_BYTES as i32);
    assert_eq!(kernel.bytes(1, data.len()), data);
    // A part of it, into memory that has other bytes.
    assert_eq!(kernel.run(1, op::READ, 0, 9, 2), 1024);
    assert_eq!(kernel.bytes(1, 1024), data[512..1536]);
    assert_eq!(kernel.bytes(1, 2048)[1024..], data[1024..2048], "no more than was asked for");
    kernel.fill(2, &[9; 512]);
    assert_eq!(kernel.run(2, op::WRITE, FUA, 10, 1), 512);
    assert_eq!(kernel.run(0, op::READ, 0, 9, 3), 1536);
    assert_eq!(kernel.bytes(0, 1536), [&data[512..1024], &[9; 512], &data[1536..2048]].concat());
    drop(kernel);
    ram.end();
}

#[test]
fn each_command_reaches_the_device_as_the_request_that_it_means() {
    let device = Keeper::new();
    let mut kernel = Kernel::over(device.clone(), 8);
    let fua = Flags { fua: true, ..Flags::default() };
    let no_unmap = Flags { no_unmap: true, ..Flags::default() };
    let none = Flags::default();
    for (op, flags, sector, sectors, expected, result) in [
        (op::READ, 0, 3, 2, (Op::Read, 1536, 1024, none), 1024),
        (op::READ, FUA, 3, 2, (Op::Read, 1536, 1024, none), 1024),
        (op::WRITE, 0, 4, 1, (Op::Write, 2048, 512, none), 512),
        (op::WRITE, FUA, 4, 1, (Op::Write, 2048, 512, fua), 512),
        // Its place means nothing.
        (op::FLUSH, 0, u64::MAX, 0, (Op::Flush, 0, 0, none), 0),
        (op::FLUSH, FUA, u64::MAX, 9, (Op::Flush, 0, 0, none), 0),
        (op::DISCARD, 0, 8, 16, (Op::Discard, 4096, 8192, none), 0),
        (op::WRITE_ZEROES, 0, 8, 16, (Op::WriteZeroes, 4096, 8192, none), 0),
        (op::WRITE_ZEROES, NO_UNMAP, 8, 16, (Op::WriteZeroes, 4096, 8192, no_unmap), 0),
    ] {
        assert_eq!(kernel.deliver(5, op, flags, sector, sectors), None);
        assert_eq!((device.len(), kernel.in_flight()), (0, 1), "it waits for the batch");
        kernel.submit();
        assert_eq!(device.requests(), [expected]);
        assert_eq!(kernel.answers(), []);
        // Nobody has filled the memory of a read.
        let (is_read, end) = (op == op::READ, Ok(()));
        device.end(end);
        assert_eq!(kernel.answers(), [(5, if is_read { EIO } else { result })]);
        assert_eq!(kernel.in_flight(), 0);
    }
    assert_eq!(kernel.requests(), [9, 2]);
    for unknown in [4, 6, 7, 18, 255] {
        assert_eq!(kernel.deliver(5, unknown, FUA, 0, 8), Some(-libc::EOPNOTSUPP));
    }
    assert_eq!((device.len(), kernel.in_flight()), (0, 0));
    assert!(!kernel.queue.is_gone());
}

#[test]
fn a_write_is_not_asked_to_be_durable_by_itself_if_the_device_has_nothing_to_flush() {
    let device = Keeper::with(Geometry { can_fua: false, ..Geometry::new(1 << 20) });
    let mut kernel = Kernel::over(device.clone(), 1);
    kernel.deliver(0, op::WRITE, FUA, 0, 1);
    kernel.submit();
    assert_eq!(device.requests(), [(Op::Write, 0, 512, Flags::default())]);
    device.end(Ok(()));
}

#[test]
fn an_error_of_the_device_is_a_negative_number_of_the_system() {
    let device = Keeper::new();
    let mut kernel = Kernel::over(device.clone(), 1);
    for (kind, expected) in [
        (IoErrorKind::NoSpace, -libc::ENOSPC),
        (IoErrorKind::NotSupported, -libc::EOPNOTSUPP),
        (IoErrorKind::TimedOut, -libc::ETIMEDOUT),
        (IoErrorKind::Io(libc::EREMOTEIO), -libc::EREMOTEIO),
        // Nonsense is an error all the same.
        (IoErrorKind::Io(0), -1),
        (IoErrorKind::Io(-libc::EIO), EIO),
        (IoErrorKind::Io(i32::MIN), -i32::MAX),
    ] {
        assert_eq!(kernel.deliver(0, op::WRITE, 0, 0, 8), None);
        kernel.submit();
        device.end(Err(IoError::new(kind)));
        assert_eq!(kernel.answers(), [(0, expected)]);
    }
    assert_eq!(kernel.requests(), [7, 7]);
}

#[test]
fn a_device_answers_as_a_plain_vector_does() {
    const SECTORS: u64 = 2048;
    let ram = Ram::new(SECTORS * 512);
    for seed in 0..6 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut kernel = Kernel::over(ram.device(), 4);
        let mut model = vec![0; (SECTORS * 512) as usize];
        assert_eq!(kernel.run(0, op::WRITE_ZEROES, 0, 0, SECTORS as u32), 0);
        for _ in 0..200 {
            // Requests in flight together have quarters of their own.
            let (turn, tags) = (rng.u16(..4), rng.u16(1..=4));
            let mut expected = Vec::new();
            for tag in 0..tags {
                let begin = u64::from((tag + turn) % 4) * (SECTORS / 4);
                let sector = begin + rng.u64(..SECTORS / 4);
                let sectors = rng.u64(1..=(begin + SECTORS / 4 - sector).min(256));
                let range = (sector * 512) as usize..((sector + sectors) * 512) as usize;
                let flags = [0, FUA, NO_UNMAP][rng.usize(..3)];
                let op =
                    [op::READ, op::WRITE, op::FLUSH, op::DISCARD, op::WRITE_ZEROES][rng.usize(..5)];
                let mut read = None;
                match op {
                    op::READ => read = Some(model[range.clone()].to_vec()),
                    op::WRITE => {
                        let data: Vec<u8> =
                            iter::repeat_with(|| rng.u8(..)).take(range.len()).collect();
                        kernel.fill(tag, &data);
                        model[range.clone()].copy_from_slice(&data);
                    }
                    op::FLUSH => {}
                    _ => model[range.clone()].fill(0),
                }
                let has_bytes = op == op::READ || op == op::WRITE;
                expected.push((tag, if has_bytes { range.len() as i32 } else { 0 }, read));
                assert_eq!(kernel.deliver(tag, op, flags, sector, sectors as u32), None);
            }
            kernel.submit();
            let mut answers = kernel.answers();
            answers.sort_unstable();
            assert_eq!(answers.len(), expected.len(), "seed {seed}");
            for ((tag, result), (theirs, expected, read)) in answers.into_iter().zip(expected) {
                assert_eq!((tag, result), (theirs, expected), "seed {seed}");
                if let Some(read) = read {
                    assert!(kernel.bytes(tag, read.len()) == read, "seed {seed}");
                }
            }
        }
        for sector in (0..SECTORS).step_by(256) {
            assert_eq!(kernel.run(3, op::READ, 0, sector, 256), MOST_BYTES as i32);
            let range = sector as usize * 512..(sector as usize + 256) * 512;
            assert!(kernel.bytes(3, MOST_BYTES as usize) == model[range], "seed {seed}");
        }
        // Ranges that end behind the device change nothing.
        assert_eq!(kernel.run(0, op::WRITE, 0, SECTORS - 1, 2), -libc::ENOSPC);
        assert_eq!(kernel.run(0, op::READ, 0, SECTORS, 1), EINVAL);
        assert_eq!(kernel.run(0, op::READ, 0, SECTORS - 1, 1), 512);
        assert!(kernel.bytes(0, 512) == model[model.len() - 512..]);
    }
    ram.end();
}

#[test]
fn a_request_that_no_memory_or_device_can_hold_is_answered_with_an_error() {
    let device = Keeper::new();
    let mut kernel = Kernel::over(device.clone(), 2);
    let too_many = MOST_BYTES / 512 + 1;
    let last = u64::MAX / 512;
    for (op, sector, sectors) in [
        (op::READ, 0, too_many),
        (op::WRITE, 0, too_many),
        (op::WRITE, 0, u32::MAX),
        (op::READ, u64::MAX, 1),
        (op::WRITE, last + 1, 1),
        // The first byte has a number, and the one behind the last has none.
        (op::READ, last, 1),
        (op::WRITE, last, 2),
        (op::DISCARD, last, 1 << 21),
        (op::WRITE_ZEROES, last - 1, u32::MAX),
        (op::WRITE_ZEROES, u64::MAX, 0),
    ] {
        assert_eq!(kernel.deliver(1, op, 0, sector, sectors), Some(EINVAL), "{op} {sector}");
    }
    assert_eq!((device.len(), kernel.in_flight()), (0, 0));
    // The tag has its memory still.
    kernel.fill(1, &[5; 512]);
    assert_eq!(kernel.deliver(1, op::WRITE, 0, 0, 1), None);
    kernel.submit();
    let mut written = [0; 512];
    device.kept.lock()[0].copy_to(&mut written);
    assert_eq!(written, [5; 512]);
    device.end(Ok(()));
    assert_eq!(kernel.answers(), [(1, 512)]);
}

#[test]
fn a_request_without_sectors_is_answered() {
    let ram = Ram::new(1 << 20);
    let mut kernel = Kernel::over(ram.device(), 1);
    for op in [op::READ, op::WRITE, op::DISCARD, op::WRITE_ZEROES] {
        assert_eq!(kernel.run(0, op, 0, 0, 0), 0, "{op}");
    }
    drop(kernel);
    ram.end();
}

#[test]
fn a_queue_has_memory_for_the_largest_request_of_the_disk_that_it_took_over() {
    let ram = Ram::new(1 << 20);
    let shared = SharedDevice::new(ram.device());
    let mut kernel = Kernel::new(&shared, 3, 4096, Rate::default());
    assert_eq!(kernel.run(0, op::WRITE, 0, 0, 8), 4096);
    assert_eq!(kernel.run(0, op::WRITE, 0, 0, 9), EINVAL);
    let apart = kernel.addresses.windows(2).all(|two| two[0].abs_diff(two[1]) >= 4096);
    assert!(apart && kernel.addresses.iter().all(|address| address % 4096 == 0));
    drop(kernel);
    ram.end();
}

#[test]
fn a_request_is_counted_from_its_arrival_to_its_answer() {
    let device = Keeper::new();
    let mut kernel = Kernel::over(device.clone(), 1);
    let second = std::time::Duration::from_secs(1);
    let came = time::now() + second;
    let descriptor = Descriptor { op_and_flags: op::FLUSH.into(), ..Descriptor::default() };
    assert_eq!(kernel.queue.delivered(0, descriptor, came), None);
    kernel.submit();
    device.end(Ok(()));
    assert!(kernel.queue.ended(0, came + second).is_some());
    let longest = kernel.facts.counts.read().of(Op::Flush).latency.longest();
    assert!(longest >= Some(second) && longest < Some(2 * second), "{longest:?}");
}
