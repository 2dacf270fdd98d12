//! The disk as the guest sees it: feature bits and the configuration space.

use corewise_blockmq::Geometry;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::{virtio_blk, virtio_config, virtio_ring};

/// Bytes of a sector, the unit of positions and lengths.
pub(crate) const SECTOR: u64 = 512;
/// Most segments of a request: with header and status they fit a ring of 128.
pub(crate) const SEG_MAX: u32 = 126;
/// Most bytes of a segment.
const SIZE_MAX: u32 = 1 << 20;
/// Most ranges of one discard or write-zeroes.
pub(crate) const RANGES: u32 = 32;
/// Largest range of one discard or write-zeroes, in sectors.
pub(crate) const RANGE_SECTORS: u32 = 1 << 22;
/// Largest block that guests take: a page.
pub(crate) const MOST_BLOCK: u32 = 4096;
/// Bytes of the configuration space; what is behind the disk's own fields reads as zeroes.
const CONFIG_BYTES: usize = 256;

const fn bit(number: u32) -> u64 {
    1 << number
}

pub(crate) const FLUSH: u64 = bit(virtio_blk::VIRTIO_BLK_F_FLUSH);
pub(crate) const EVENT_IDX: u64 = bit(virtio_ring::VIRTIO_RING_F_EVENT_IDX);
const RO: u64 = bit(virtio_blk::VIRTIO_BLK_F_RO);
const DISCARD: u64 = bit(virtio_blk::VIRTIO_BLK_F_DISCARD);
const WRITE_ZEROES: u64 = bit(virtio_blk::VIRTIO_BLK_F_WRITE_ZEROES);
const ALWAYS: u64 = bit(virtio_blk::VIRTIO_BLK_F_SIZE_MAX)
    | bit(virtio_blk::VIRTIO_BLK_F_SEG_MAX)
    | bit(virtio_blk::VIRTIO_BLK_F_BLK_SIZE)
    | bit(virtio_blk::VIRTIO_BLK_F_TOPOLOGY)
    | bit(virtio_blk::VIRTIO_BLK_F_MQ)
    | bit(virtio_config::VIRTIO_F_VERSION_1)
    | bit(virtio_ring::VIRTIO_RING_F_INDIRECT_DESC)
    | EVENT_IDX
    | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

/// Returns the feature bits that a disk offers.
pub(crate) fn features(geometry: &Geometry, read_only: bool) -> u64 {
    let read_only = read_only || geometry.read_only;
    let optional = [
        (geometry.can_flush, FLUSH),
        (read_only, RO),
        (geometry.can_discard && !read_only, DISCARD),
        (geometry.can_write_zeroes && !read_only, WRITE_ZEROES),
    ];
    optional.iter().filter(|(has, _)| *has).fold(ALWAYS, |all, (_, bits)| all | bits)
}

/// Returns the features of the protocol that the server offers.
pub(crate) fn protocol_features() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::RESET_DEVICE
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
}

/// Returns the configuration space, `struct virtio_blk_config`.
pub(crate) fn space(geometry: &Geometry, queues: u16) -> [u8; CONFIG_BYTES] {
    let mut space = [0; CONFIG_BYTES];
    let block = geometry.block_size.max(512);
    let sectors = |bytes: u64| bytes / SECTOR;
    let blocks = |bytes: u32| bytes / block;
    let physical = geometry.physical_block.max(block) / block;
    let align = (block / 512).max(1);
    let optimal = blocks(geometry.preferred.max(block));
    let limit = |bytes: u64| {
        let whole = sectors(bytes).min(RANGE_SECTORS.into()) as u32;
        (whole / align * align).max(align)
    };
    let (discard, zeroes) = (limit(geometry.max_discard), limit(geometry.max_write_zeroes));
    let minimal = u16::try_from(physical).unwrap_or(1);
    let fields: [(usize, &[u8]); 15] = [
        (0, &sectors(geometry.size).to_le_bytes()),
        (8, &SIZE_MAX.to_le_bytes()),
        (12, &SEG_MAX.to_le_bytes()),
        // 16 to 19: cylinders, heads and sectors, which no feature bit vouches for.
        (20, &block.to_le_bytes()),
        // The topology: logarithm of the physical block, its offset, minimal and optimal I/O.
        (24, &[physical.ilog2() as u8, 0]),
        (26, &minimal.to_le_bytes()),
        (28, &optimal.to_le_bytes()),
        // 32: the cache is written back, if flushes are there.
        (32, &[u8::from(geometry.can_flush)]),
        (34, &queues.to_le_bytes()),
        (36, &discard.to_le_bytes()),
        (40, &RANGES.to_le_bytes()),
        (44, &align.to_le_bytes()),
        (48, &zeroes.to_le_bytes()),
        (52, &RANGES.to_le_bytes()),
        (56, &[1]),
    ];
    for (at, bytes) in fields {
        space[at..at + bytes.len()].copy_from_slice(bytes);
    }
    space
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_space_has_the_geometry_in_sectors_and_blocks() {
        let geometry = Geometry {
            block_size: 4096,
            physical_block: 16384,
            preferred: 65536,
            max_discard: 10_000,
            ..Geometry::new(1 << 30)
        };
        let space = space(&geometry, 4);
        let word = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4)), (1 << 21, 0));
        assert_eq!((word(20), space[24], space[26], word(28)), (4096, 2, 4, 16));
        assert_eq!((space[34], word(36), word(44), word(48)), (4, 16, 8, RANGE_SECTORS));
    }

    #[test]
    fn a_disk_offers_what_its_device_can() {
        let all = features(&Geometry::new(1 << 20), false);
        assert_eq!(all & (FLUSH | RO | DISCARD | WRITE_ZEROES), FLUSH | DISCARD | WRITE_ZEROES);
        let plain = Geometry { can_flush: false, can_discard: false, ..Geometry::new(1 << 20) };
        assert_eq!(features(&plain, false) & (FLUSH | RO | DISCARD), 0);
        let changes = RO | DISCARD | WRITE_ZEROES;
        assert_eq!(features(&Geometry::new(512), true) & changes, RO);
    }
}
