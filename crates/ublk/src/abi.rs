//! The kernel's binary interface: numbers and structures of `linux/ublk_cmd.h`. Pure.

use std::mem;

/// Limits and abilities that the kernel reports, and that a device is made with.
pub(crate) mod feature {
    /// The device outlives its server: requests wait for the next one.
    pub(crate) const USER_RECOVERY: u64 = 1 << 3;
    /// The next server gets the requests again that the former one had.
    pub(crate) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands are numbered as those of `ioctl`.
    pub(crate) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// A device changes its size while it is in use.
    pub(crate) const UPDATE_SIZE: u64 = 1 << 10;
    /// A device is handed over without a death.
    pub(crate) const QUIESCE: u64 = 1 << 12;
    /// A device is stopped only if nobody has it open.
    pub(crate) const SAFE_STOP: u64 = 1 << 17;
}

/// `_IOR('u', n, struct ublksrv_ctrl_cmd)`.
const fn read(n: u32) -> u32 {
    2 << 30 | (size_of::<ControlCommand>() as u32) << 16 | (b'u' as u32) << 8 | n
}

/// `_IOWR('u', n, struct ublksrv_ctrl_cmd)`.
const fn change(n: u32) -> u32 {
    1 << 30 | read(n)
}

/// `_IOWR('u', n, struct ublksrv_io_cmd)`.
const fn io(n: u32) -> u32 {
    3 << 30 | (size_of::<IoCommand>() as u32) << 16 | (b'u' as u32) << 8 | n
}

/// The commands of `/dev/ublk-control`.
pub(crate) mod control {
    use super::{change, read};

    pub(crate) const GET_QUEUE_AFFINITY: u32 = read(0x01);
    pub(crate) const GET_DEV_INFO: u32 = read(0x02);
    pub(crate) const ADD_DEV: u32 = change(0x04);
    pub(crate) const DEL_DEV: u32 = change(0x05);
    pub(crate) const START_DEV: u32 = change(0x06);
    pub(crate) const STOP_DEV: u32 = change(0x07);
    pub(crate) const SET_PARAMS: u32 = change(0x08);
    pub(crate) const GET_PARAMS: u32 = read(0x09);
    pub(crate) const START_USER_RECOVERY: u32 = change(0x10);
    pub(crate) const END_USER_RECOVERY: u32 = change(0x11);
    pub(crate) const GET_FEATURES: u32 = read(0x13);
    pub(crate) const DEL_DEV_ASYNC: u32 = read(0x14);
    pub(crate) const UPDATE_SIZE: u32 = change(0x15);
    pub(crate) const QUIESCE_DEV: u32 = change(0x16);
    pub(crate) const TRY_STOP_DEV: u32 = change(0x17);
}

/// Fetches the first request of a tag.
pub(crate) const FETCH_REQ: u32 = io(0x20);
/// Answers a tag's request, and fetches its next one.
pub(crate) const COMMIT_AND_FETCH_REQ: u32 = io(0x21);

/// `struct ublksrv_ctrl_cmd`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ControlCommand {
    pub(crate) device: u32,
    /// Number of a queue, or `u16::MAX`.
    pub(crate) queue: u16,
    /// Length of the memory at `address`.
    pub(crate) length: u16,
    pub(crate) address: u64,
    pub(crate) data: u64,
    pub(crate) path_length: u16,
    pub(crate) pad: u16,
    pub(crate) reserved: u32,
}

impl ControlCommand {
    /// Returns the bytes of a submission entry.
    pub(crate) fn bytes(self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0..4].copy_from_slice(&self.device.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.length.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes
    }
}

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceInfo {
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    pub(crate) state: u16,
    pub(crate) pad: u16,
    pub(crate) max_bytes: u32,
    pub(crate) device: u32,
    pub(crate) server: i32,
    pub(crate) pad1: u32,
    pub(crate) features: u64,
    /// A word that the kernel keeps for the server.
    pub(crate) mark: u64,
    pub(crate) owner_uid: u32,
    pub(crate) owner_gid: u32,
    pub(crate) reserved: [u64; 2],
}

/// The states of a device. In others its server is gone, and its requests wait or fail.
pub(crate) mod state {
    /// It was added, and has no disk.
    pub(crate) const DEAD: u16 = 0;
    /// It has a server.
    pub(crate) const LIVE: u16 = 1;
}

/// The attributes of [`Basic`].
pub(crate) mod attribute {
    pub(crate) const READ_ONLY: u32 = 1 << 0;
    pub(crate) const ROTATIONAL: u32 = 1 << 1;
    pub(crate) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(crate) const FUA: u32 = 1 << 3;
}

/// `struct ublk_param_basic`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Basic {
    pub(crate) attributes: u32,
    pub(crate) logical_shift: u8,
    pub(crate) physical_shift: u8,
    pub(crate) optimal_shift: u8,
    pub(crate) minimal_shift: u8,
    pub(crate) max_sectors: u32,
    pub(crate) chunk_sectors: u32,
    pub(crate) sectors: u64,
    pub(crate) boundary_mask: u64,
}

/// `struct ublk_param_discard`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Discard {
    pub(crate) alignment: u32,
    pub(crate) granularity: u32,
    pub(crate) max_discard_sectors: u32,
    pub(crate) max_zeroes_sectors: u32,
    pub(crate) max_segments: u16,
    pub(crate) reserved: u16,
}

/// The part of `struct ublk_params` that every kernel knows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Params {
    pub(crate) length: u32,
    pub(crate) types: u32,
    pub(crate) basic: Basic,
    pub(crate) discard: Discard,
}

impl Params {
    /// Length in bytes. The structure's end has padding that the kernel doesn't know.
    pub(crate) const LENGTH: u32 = (mem::offset_of!(Params, discard) + size_of::<Discard>()) as u32;
    /// Type of [`Basic`].
    pub(crate) const BASIC: u32 = 1 << 0;
    /// Type of [`Discard`].
    pub(crate) const DISCARD: u32 = 1 << 1;
}

/// `struct ublksrv_io_desc`: one request, in memory that the kernel writes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) op_and_flags: u32,
    pub(crate) sectors: u32,
    pub(crate) first_sector: u64,
    pub(crate) address: u64,
}

/// The operations of [`Descriptor`].
pub(crate) mod op {
    pub(crate) const READ: u8 = 0;
    pub(crate) const WRITE: u8 = 1;
    pub(crate) const FLUSH: u8 = 2;
    pub(crate) const DISCARD: u8 = 3;
    pub(crate) const WRITE_ZEROES: u8 = 5;
}

impl Descriptor {
    /// Returns the operation.
    pub(crate) fn op(&self) -> u8 {
        self.op_and_flags as u8
    }

    /// Returns true if the change has to be durable when it ends.
    pub(crate) fn is_fua(&self) -> bool {
        self.op_and_flags >> 8 & (1 << 13) != 0
    }

    /// Returns true if zeroes have to stay allocated.
    pub(crate) fn is_no_unmap(&self) -> bool {
        self.op_and_flags >> 8 & (1 << 15) != 0
    }
}

/// The largest depth of a queue, which is the distance of the queues' descriptors.
pub(crate) const MAX_DEPTH: u64 = 4096;

/// `struct ublksrv_io_cmd`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IoCommand {
    pub(crate) queue: u16,
    pub(crate) tag: u16,
    /// Bytes that were done, or a negative error number.
    pub(crate) result: i32,
    pub(crate) address: u64,
}

impl IoCommand {
    /// Returns the bytes of a submission entry.
    pub(crate) fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0..2].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_structures_are_as_the_kernel_lays_them_out() {
        assert_eq!((control::ADD_DEV, control::GET_FEATURES), (0xc020_7504, 0x8020_7513));
        assert_eq!((FETCH_REQ, COMMIT_AND_FETCH_REQ), (0xc010_7520, 0xc010_7521));
        assert_eq!((size_of::<DeviceInfo>(), size_of::<ControlCommand>()), (64, 32));
        assert_eq!((size_of::<Descriptor>(), size_of::<IoCommand>()), (24, 16));
        assert_eq!((Params::LENGTH, mem::offset_of!(Params, basic)), (60, 8));
        assert_eq!((size_of::<Basic>(), size_of::<Discard>()), (32, 20));
    }

    #[test]
    fn a_command_has_its_fields_where_the_kernel_reads_them() {
        let command = IoCommand { queue: 1, tag: 2, result: -5, address: 7 };
        let (number, word) = (|n: u16| n.to_ne_bytes(), |n: u64| n.to_ne_bytes());
        let expected = [&number(1)[..], &number(2), &(-5i32).to_ne_bytes(), &word(7)].concat();
        assert_eq!(command.bytes()[..], expected);
        let bytes = ControlCommand {
            device: 9,
            queue: u16::MAX,
            length: 60,
            address: 3,
            data: 4,
            ..ControlCommand::default()
        }
        .bytes();
        let expected =
            [&9u32.to_ne_bytes()[..], &number(u16::MAX), &number(60), &word(3), &word(4)];
        assert_eq!(bytes[..24], expected.concat());
        assert_eq!(bytes[24..], [0; 56]);
    }

    #[test]
    fn a_descriptor_tells_the_operation_from_its_flags() {
        let descriptor = Descriptor { op_and_flags: 1 | 1 << 21, ..Descriptor::default() };
        assert_eq!((descriptor.op(), descriptor.is_fua()), (op::WRITE, true));
        let descriptor = Descriptor { op_and_flags: 5 | 1 << 23, ..Descriptor::default() };
        assert!(descriptor.is_no_unmap() && !descriptor.is_fua());
    }
}
