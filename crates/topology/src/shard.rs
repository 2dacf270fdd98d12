//! The division of one last-level cache into shards: pure arithmetic on a number of cores.
//!
//! The rule is that of the Linux kernel's `WQ_AFFN_CACHE_SHARD` as merged for 7.1, with three
//! exceptions. No shard has one core if the cache has more. None cuts a cluster of cores that share
//! a lower cache. None mixes kinds of cores. For a machine of one kind with private L2s the layout
//! is the kernel's.

/// The default shard size in cores.
pub const DEFAULT_SHARD_SIZE: u32 = 8;

/// The shards of one last-level cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardLayout {
    cores: u32,
    size: u32,
    corrected: bool,
    shards: Vec<u32>,
}

/// Divides `cores` cores (SMT siblings count once) into shards of about `size` cores.
///
/// The number of shards is `cores / size` rounded to the nearest integer, halves up, and at least
/// one. The shards are as equal as can be, and larger ones come first. So `size` is the value that
/// a shard's size is closest to, not its maximum. With size 8 an undivided cache has up to 11
/// cores, a shard of a divided one 6 to 10.
///
/// **No shard has one core**, unless that is all the cache has: no other core shares its pool, and
/// while its one thread is busy no neighbour takes its work. The scopes `cpu` and `smt` serve that
/// purpose. So there are at most `cores / 2` shards. Only sizes 1 and 2 are affected; the kernel,
/// which has no such rule, gives every core a shard of its own with size 1.
///
/// A `size` of 0 makes no sense and becomes 1. No cores have no shards.
///
/// ```
/// use corewise_topology::shard_layout;
///
/// assert_eq!(shard_layout(36, 8).shards(), [8, 7, 7, 7, 7]);
/// assert_eq!(shard_layout(11, 8).shards(), [11]);
/// assert_eq!(shard_layout(5, 1).shards(), [3, 2]);
/// ```
pub fn shard_layout(cores: u32, size: u32) -> ShardLayout {
    let corrected = size == 0;
    let size = size.max(1);
    let shards = if cores == 0 {
        Vec::new()
    } else {
        // In 64 bits, since `size` may be any number, also one that means "never split".
        let nearest = (2 * u64::from(cores) + u64::from(size)) / (2 * u64::from(size));
        // At most `cores`, since `size` is at least 1; and two cores for each.
        let count = (nearest as u32).min(cores / 2).max(1);
        let (base, larger) = (cores / count, cores % count);
        (0..count).map(|shard| base + u32::from(shard < larger)).collect()
    };
    ShardLayout { cores, size, corrected, shards }
}

impl ShardLayout {
    /// Returns the number of cores that were divided.
    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// Returns the intended size in cores; at least 1.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns true if a size of 0 was given, and 1 taken instead.
    pub(crate) fn size_was_zero(&self) -> bool {
        self.corrected
    }

    /// Returns the number of cores of each shard, in shard order. For one kind of cores with
    /// private L2s, larger shards come first. Empty if there are no cores.
    pub fn shards(&self) -> &[u32] {
        &self.shards
    }
}

/// Divides cores of one or several kinds, some of which share a lower cache. `kinds` has the sizes
/// in cores of each kind's clusters, in order. Returns the number of cores in each shard, kind by
/// kind.
///
/// Each kind is divided by itself, as by [`shard_layout`]. Then each cut moves to the nearest
/// border between clusters, the later one of two. Cuts that meet become one, and a cut that would
/// leave a core alone disappears. So a kind may have fewer and larger shards than with private
/// caches. Only a kind of one core has a shard of one.
pub(crate) fn clustered_layout(kinds: &[Vec<u32>], size: u32) -> ShardLayout {
    let shards = kinds.iter().flat_map(|clusters| whole_clusters(clusters, size)).collect();
    let cores = kinds.iter().flatten().sum();
    ShardLayout { shards, ..shard_layout(cores, size) }
}

/// Returns the shards of one kind's cores.
fn whole_clusters(clusters: &[u32], size: u32) -> Vec<u32> {
    let ends = |sizes: &[u32]| -> Vec<u32> {
        let end = |sum: &mut u32, size: &u32| {
            *sum += size;
            Some(*sum)
        };
        sizes.iter().scan(0, end).collect()
    };
    let borders = ends(clusters);
    let Some(&all) = borders.last() else { return Vec::new() };
    let mut shards: Vec<u32> = Vec::new();
    let mut from = 0;
    for cut in ends(shard_layout(all, size).shards()) {
        // The last one that is as near as any.
        let border = borders.iter().copied().rev().min_by_key(|border| border.abs_diff(cut));
        let Some(border) = border.filter(|&border| border > from + 1) else { continue };
        shards.push(border - from);
        from = border;
    }
    match shards.last_mut() {
        // One core is left, or none.
        Some(last) => *last += all - from,
        None => shards.push(all),
    }
    shards
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_share_out_all_cores_evenly_for_each_size() {
        for cores in 1..=512 {
            for size in 1..=40 {
                let layout = shard_layout(cores, size);
                let shards = layout.shards();
                assert_eq!(shards.iter().sum::<u32>(), cores);
                assert!(shards.is_sorted_by(|a, b| a >= b), "larger shards come first");
                assert!(shards[0] - shards[shards.len() - 1] <= 1, "{cores}/{size}: {shards:?}");
                let single = *shards == [1];
                assert!(shards.iter().all(|&shard| shard >= 2) || single, "{cores}/{size}");
                if shards.len() as u32 == cores / 2 {
                    continue; // as many as there may be, so not the nearest number
                }
                // Round-to-nearest, halves up: |cores - count * size| is at most half a size.
                let (count, cores, size) = (shards.len() as i64, cores as i64, size as i64);
                let over = 2 * (cores - count * size);
                assert!(count == 1 || (-size..=size).contains(&over), "{cores}/{size}");
                assert!(over < size, "{cores}/{size}: a half rounds up");
            }
        }
    }

    #[test]
    fn no_shard_has_one_core_unless_the_cache_has_one() {
        for size in [0, 1, 2] {
            assert_eq!(shard_layout(1, size).shards(), [1], "size {size}");
            assert_eq!(shard_layout(2, size).shards(), [2], "size {size}");
            assert_eq!(shard_layout(3, size).shards(), [3], "size {size}");
            assert_eq!(shard_layout(5, size).shards(), [3, 2], "size {size}");
            assert_eq!(shard_layout(72, size).shards(), [2; 36], "size {size}");
        }
        // From size 3 on the merged rule never makes one.
        for (cores, size) in [(4, 3), (5, 3), (6, 4), (7, 4)] {
            let nearest = (2 * cores + size) / (2 * size);
            assert_eq!(shard_layout(cores, size).shards().len() as u32, nearest.max(1));
        }
    }

    #[test]
    fn cores_with_caches_of_their_own_are_divided_as_by_the_merged_rule() {
        for cores in 1..=200 {
            for size in 0..=20 {
                let plain = shard_layout(cores, size);
                assert_eq!(clustered_layout(&[vec![1; cores as usize]], size), plain);
                assert_eq!(clustered_layout(&[vec![cores]], size).shards(), [cores]);
            }
        }
        assert!(clustered_layout(&[], 8).shards().is_empty());
    }

    #[test]
    fn clusters_stay_whole_and_kinds_apart() {
        for (kinds, size, shards) in [
            // Core i9-13900: 8 performance cores, 16 efficient ones in clusters of 4.
            (vec![vec![1; 8], vec![4; 4]], 8, vec![8, 8, 8]),
            (vec![vec![1; 8], vec![4; 4]], 4, vec![4, 4, 4, 4, 4, 4]),
            (vec![vec![1; 8], vec![4; 4]], 2, vec![2, 2, 2, 2, 4, 4, 4, 4]),
            // Core i5-13600K, and one whose cpuset has half of a cluster.
            (vec![vec![1; 6], vec![4; 2]], 8, vec![6, 8]),
            (vec![vec![1; 6], vec![4, 2]], 8, vec![6, 6]),
            // Three clusters can't be two equal shards.
            (vec![vec![4; 3]], 8, vec![8, 4]),
            // Little, middle, big.
            (vec![vec![1; 4], vec![1; 3], vec![1]], 8, vec![4, 3, 1]),
            // No core is left alone that others of its kind could be with.
            (vec![vec![1, 4, 4]], 2, vec![5, 4]),
            (vec![vec![4, 4, 1]], 2, vec![4, 5]),
            (vec![vec![144 / 36; 36]], 8, vec![8; 18]),
        ] {
            let layout = clustered_layout(&kinds, size);
            assert_eq!(layout.shards(), shards, "{kinds:?} by {size}");
            assert_eq!(layout.cores(), shards.iter().sum::<u32>());
        }
    }

    #[test]
    fn a_shard_of_clusters_is_as_near_to_the_size_as_clusters_let_it() {
        for cluster in 1..=6_u32 {
            for clusters in 1..=24_u32 {
                for size in 1..=16 {
                    let kind = vec![cluster; clusters as usize];
                    let layout = clustered_layout(&[kind], size);
                    let shards = layout.shards();
                    assert_eq!(shards.iter().sum::<u32>(), cluster * clusters);
                    assert!(shards.iter().all(|shard| shard % cluster == 0), "{shards:?}");
                    let plain = shard_layout(cluster * clusters, size);
                    let most = plain.shards()[0] + cluster;
                    assert!(shards.iter().all(|&shard| shard <= most), "{shards:?}, {plain:?}");
                }
            }
        }
    }

    #[test]
    fn a_size_of_zero_becomes_one_and_says_so() {
        let layout = shard_layout(4, 0);
        assert_eq!((layout.shards(), layout.size()), (&[2, 2][..], 1));
        assert!(layout.size_was_zero());
        assert!(!shard_layout(3, 1).size_was_zero());
    }

    #[test]
    fn extreme_numbers_neither_overflow_nor_divide_by_zero() {
        assert_eq!(shard_layout(7, u32::MAX).shards(), [7]);
        assert_eq!(shard_layout(u32::MAX, u32::MAX).shards(), [u32::MAX]);
        assert!(shard_layout(0, 8).shards().is_empty());
    }
}
