//! The control device: commands that make, start, stop and describe a disk.
//!
//! A command may take as long as the device's requests do (a start reads the partition table, a
//! stop waits for requests), so each operation has a ring of its own. One that takes too long is
//! left behind with its memory: the kernel may still write there.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use corewise_sync::{Parker, time};
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::abi::{ControlCommand, DeviceInfo, Params, control};
use crate::error::Error;

/// The path of the control device.
pub(crate) const CONTROL: &str = "/dev/ublk-control";

/// Time that the kernel has for a command that waits for no request.
pub(crate) const PROMPT: Duration = Duration::from_secs(10);
/// Pause between two tries of a command that the kernel isn't ready for.
const PAUSE: Duration = Duration::from_millis(10);

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// The control device, opened for one operation.
pub(crate) struct Control {
    /// File and ring; `None` once a command took too long.
    open: Option<(File, Ring)>,
    deadline: Instant,
}

/// A command without the memory that it uses.
#[derive(Clone, Copy)]
pub(crate) struct Command {
    code: u32,
    device: u32,
    data: u64,
    queue: u16,
}

impl Command {
    pub(crate) fn new(code: u32, device: u32) -> Command {
        Command { code, device, data: 0, queue: u16::MAX }
    }

    pub(crate) fn data(self, data: u64) -> Command {
        Command { data, ..self }
    }

    pub(crate) fn queue(self, queue: u16) -> Command {
        Command { queue, ..self }
    }
}

impl Control {
    /// Opens the control device for an operation that has `time`.
    pub(crate) fn open(time: Duration) -> Result<Control, Error> {
        let file = OpenOptions::new().read(true).write(true).open(CONTROL);
        let file = file.map_err(Error::no_control)?;
        let ring = IoUring::builder().dontfork().build(4).map_err(Error::Ring)?;
        let now = time::now();
        let deadline = now.checked_add(time).unwrap_or(now + Duration::from_secs(86_400));
        Ok(Control { open: Some((file, ring)), deadline })
    }

    /// Returns the time that the operation has left.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(time::now())
    }

    /// Runs a command, whose memory is `memory`, and returns the memory as the kernel left it.
    /// Blocks.
    fn run<T: Copy + 'static>(
        &mut self,
        command: Command,
        memory: T,
        length: usize,
    ) -> io::Result<(i32, T)> {
        let timed_out = || io::Error::from(io::ErrorKind::TimedOut);
        let Some((file, ring)) = &mut self.open else { return Err(timed_out()) };
        let mut memory = Box::new(memory);
        let sent = ControlCommand {
            device: command.device,
            queue: command.queue,
            length: length as u16,
            address: (&raw mut *memory).expose_provenance() as u64,
            data: command.data,
            ..ControlCommand::default()
        };
        let entry = opcode::UringCmd80::new(types::Fd(file.as_raw_fd()), command.code)
            .cmd(sent.bytes())
            .build();
        // SAFETY: the file is open, and the memory is boxed: it stays in place until the command
        // has ended. A command that doesn't end in time takes both along (`forget` below).
        unsafe { ring.submission().push(&entry) }.map_err(|_| io::ErrorKind::WouldBlock)?;
        loop {
            let left = self.deadline.saturating_duration_since(time::now());
            let left = Timespec::new().sec(left.as_secs()).nsec(left.subsec_nanos());
            let waited = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&left));
            if let Some(done) = ring.completion().next() {
                return match done.result() {
                    result @ 0.. => Ok((result, *memory)),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
            }
            match waited {
                Err(error) if error.raw_os_error() == Some(libc::ETIME) => {
                    mem::forget((self.open.take(), memory));
                    return Err(timed_out());
                }
                Err(error) if error.raw_os_error() != Some(libc::EINTR) => {
                    mem::forget((self.open.take(), memory));
                    return Err(error);
                }
                _ => {}
            }
        }
    }

    /// Runs a command without memory of its own.
    pub(crate) fn plain(&mut self, command: Command) -> io::Result<i32> {
        Ok(self.run(command, (), 0)?.0)
    }

    /// Runs a command again while the kernel says that it is busy, until the deadline.
    pub(crate) fn patiently(&mut self, command: Command) -> io::Result<i32> {
        loop {
            match self.plain(command) {
                Err(error)
                    if error.raw_os_error() == Some(libc::EBUSY) && time::now() < self.deadline =>
                {
                    Parker::new().park_timeout(PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Returns what the kernel's ublk can do.
    pub(crate) fn features(&mut self) -> io::Result<u64> {
        let command = Command::new(control::GET_FEATURES, u32::MAX);
        Ok(self.run(command, 0u64, size_of::<u64>())?.1)
    }

    /// Returns the description of a device.
    pub(crate) fn info(&mut self, device: u32) -> io::Result<DeviceInfo> {
        let command = Command::new(control::GET_DEV_INFO, device);
        Ok(self.run(command, DeviceInfo::default(), size_of::<DeviceInfo>())?.1)
    }

    /// Makes a device, and returns its description with its number.
    pub(crate) fn add(&mut self, info: DeviceInfo) -> io::Result<DeviceInfo> {
        let command = Command::new(control::ADD_DEV, info.device);
        Ok(self.run(command, info, size_of::<DeviceInfo>())?.1)
    }

    /// Sets size and limits of a device that has no disk yet.
    pub(crate) fn set_params(&mut self, device: u32, params: Params) -> io::Result<()> {
        let command = Command::new(control::SET_PARAMS, device);
        self.run(command, params, Params::LENGTH as usize).map(drop)
    }

    /// Returns size and limits of a device.
    pub(crate) fn params(&mut self, device: u32) -> io::Result<Params> {
        let asked = Params { length: Params::LENGTH, ..Params::default() };
        let command = Command::new(control::GET_PARAMS, device);
        Ok(self.run(command, asked, Params::LENGTH as usize)?.1)
    }

    /// Returns the CPUs whose requests a queue gets, as bits.
    pub(crate) fn affinity(&mut self, device: u32, queue: u16) -> io::Result<[u8; 128]> {
        let command = Command::new(control::GET_QUEUE_AFFINITY, device).data(queue.into());
        Ok(self.run(command.queue(queue), [0; 128], 128)?.1)
    }
}
