//! Errors of disks.

use std::io;

use std::fmt;

/// The reason why a device isn't a disk of this machine.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no ublk, or its module isn't loaded.
    NoModule,
    /// The process may not use the control device.
    NotAllowed,
    /// The kernel's ublk lacks what a disk needs.
    TooOld,
    /// The system refuses a ring.
    Ring(io::Error),
    /// The system refuses a thread.
    Thread(io::Error),
    /// Blocks of the device, in bytes, are larger than the kernel takes.
    BlockSize(u32),
    /// The device has no bytes.
    Empty,
    /// Another process serves the disk.
    Taken {
        /// Number of the disk.
        disk: u32,
        /// Number of the process.
        process: i32,
    },
    /// Another process makes, takes over or ends a disk with the same mark now.
    InWork,
    /// The disk that a former server left isn't like the device.
    Changed {
        /// Number of the disk.
        disk: u32,
        /// Property that differs, as a noun.
        what: &'static str,
        /// Value of the disk.
        disk_has: u64,
        /// Value of the device.
        device_has: u64,
    },
    /// A disk that waits for another server has the same data.
    Left {
        /// Number of the disk.
        disk: u32,
    },
    /// A disk that a former server left has data, and the device is new and empty.
    NewData {
        /// Number of the disk.
        disk: u32,
    },
    /// A command of the control device failed.
    Command {
        /// Purpose of the command, as a verb.
        what: &'static str,
        /// Number of the disk, if it has one.
        disk: Option<u32>,
        /// Error of the system.
        error: io::Error,
    },
}

impl Error {
    pub(crate) fn no_control(error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::NotFound => Error::NoModule,
            io::ErrorKind::PermissionDenied => Error::NotAllowed,
            _ => Error::Command { what: "open /dev/ublk-control", disk: None, error },
        }
    }

    pub(crate) fn command(what: &'static str, disk: u32) -> impl FnOnce(io::Error) -> Error {
        move |error| Error::Command { what, disk: Some(disk), error }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoModule => f.write_str(
                "this kernel has no /dev/ublk-control: load the module (modprobe ublk_drv), or take a \
                 kernel that has it (Linux 6.5 or later)",
            ),
            Error::NotAllowed => f.write_str(
                "/dev/ublk-control may not be opened: run as root, or with CAP_SYS_ADMIN",
            ),
            Error::TooOld => f.write_str("this kernel's ublk is too old: Linux 6.5 or later is needed"),
            Error::Ring(error) => write!(f, "the kernel refuses a ring of io_uring: {error}"),
            Error::Thread(error) => write!(f, "the system refuses a thread: {error}"),
            Error::BlockSize(bytes) => write!(
                f,
                "the device has blocks of {bytes} bytes, and a disk of this machine at most 4096"
            ),
            Error::Empty => f.write_str("the device has no bytes, and a disk needs some"),
            Error::Taken { disk, process } => {
                write!(f, "/dev/ublkb{disk} is served by process {process}: end that process first")
            }
            Error::InWork => f.write_str(
                "another process makes, takes over or ends this disk now: an export is a disk of one \
                 server at a time",
            ),
            Error::Changed { disk, what, disk_has, device_has } => write!(
                f,
                "/dev/ublkb{disk}, which a former server left, has {what} {disk_has}, and the device has \
                 {device_has}: take the disk away (corewise detach /dev/ublkb{disk}; --force if it is in use), or give it the \
                 former device"
            ),
            Error::Left { disk } => write!(
                f,
                "/dev/ublkb{disk} has the same data, and waits for the server that left it (another \
                 manifest, or another name of the export): start that one, or take the disk away \
                 (corewise detach /dev/ublkb{disk}; --force if it is in use)"
            ),
            Error::NewData { disk } => write!(
                f,
                "/dev/ublkb{disk}, which a former server left, has data, and this start made the \
                 device new and empty: put the former data back, or take the disk away (corewise \
                 detach /dev/ublkb{disk}; --force if it is in use)"
            ),
            Error::Command { what, disk: Some(disk), error } => {
                write!(f, "the kernel did not {what} /dev/ublkb{disk}: {error}")
            }
            Error::Command { what, disk: None, error } => {
                write!(f, "the kernel did not {what}: {error}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Ring(error) | Error::Thread(error) | Error::Command { error, .. } => Some(error),
            _ => None,
        }
    }
}
