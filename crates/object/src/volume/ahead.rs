//! Readers in a row, and how far ahead the next blocks are fetched for them. Plain numbers, in blocks.

use std::collections::VecDeque;
use std::ops::Range;

/// Readers in a row that are known at once.
const STREAMS: usize = 8;
/// Reads that may be the beginning of one.
const BEGINNINGS: usize = 32;
/// Reads in a row, the first one counted, that make a stream.
const ROW: u32 = 3;
/// Blocks that are fetched ahead at first.
const FIRST: u64 = 64;
/// Blocks by which requests that are under way at once may come too late.
const LATE: u64 = 256;
/// Fewer blocks aren't worth a request.
const LEAST: u64 = 16;

/// A reader in a row.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Behind the last block that was read.
    next: u64,
    /// Behind the last block that was asked for ahead.
    ahead: u64,
    window: u64,
    used: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Where reads ended, and how many in a row it were.
    beginnings: VecDeque<(u64, u32)>,
    streams: Vec<Stream>,
    reads: u64,
}

impl Streams {
    /// Somebody reads. The blocks to fetch ahead now; `most` may be under way or unread for one reader.
    pub(crate) fn read(&mut self, start: u64, len: u64, most: u64) -> Option<Range<u64>> {
        if most < LEAST {
            return None;
        }
        self.reads += 1;
        let end = start + len;
        let of = |stream: &&mut Stream| {
            start + LATE >= stream.next && start <= stream.next.max(stream.ahead)
        };
        if let Some(stream) = self.streams.iter_mut().find(of) {
            stream.used = self.reads;
            stream.next = stream.next.max(end);
            stream.ahead = stream.ahead.max(stream.next);
            if stream.ahead - stream.next > stream.window / 2 {
                return None;
            }
            stream.window = (stream.window * 2).min(most);
            let range = stream.ahead..stream.next + stream.window;
            stream.ahead = range.end.max(range.start);
            return (!range.is_empty()).then_some(range);
        }
        let before = self.beginnings.iter().position(|(ended, _)| *ended == start);
        let row = before.and_then(|at| self.beginnings.remove(at)).map_or(1, |(_, row)| row + 1);
        if row < ROW {
            if self.beginnings.len() == BEGINNINGS {
                self.beginnings.pop_front();
            }
            self.beginnings.push_back((end, row));
            return None;
        }
        let window = FIRST.min(most);
        let stream = Stream { next: end, ahead: end + window, window, used: self.reads };
        if self.streams.len() < STREAMS {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
            *oldest = stream;
        }
        Some(end..end + window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_in_a_row_has_each_block_fetched_once_ahead_and_no_more_than_the_most() {
        let mut streams = Streams::default();
        let (mut fetched, mut begun) = (0, None);
        for n in 0..1000 {
            let (start, end) = (n * 8, n * 8 + 8);
            if let Some(range) = streams.read(start, 8, 512) {
                let at = *begun.get_or_insert(range.start);
                assert_eq!(range.start, at + fetched, "none twice, none left out");
                fetched += range.end - range.start;
                assert!(range.end <= end + 512);
            }
            if let Some(begun) = begun {
                assert!(begun + fetched >= end, "it is ahead");
            }
        }
        assert_eq!(begun, Some(24));
    }

    #[test]
    fn random_readers_fetch_nothing_ahead_and_drive_out_no_stream() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut streams = Streams::default();
        let mut ahead = 0;
        for n in 0..1000 {
            for _ in 0..20 {
                let start = (1 << 40) + random.u64(0..1 << 30);
                assert_eq!(streams.read(start, 1, 512), None);
            }
            // Its first reads in a row are found while others read.
            ahead += streams.read(n * 8, 8, 512).map_or(0, |range| range.end - range.start);
        }
        assert!(ahead > 7000, "{ahead}");
    }

    #[test]
    fn requests_that_overtake_each_other_are_one_stream_and_a_small_cache_has_none() {
        let mut streams = Streams::default();
        let _ = (0..4).filter_map(|n| streams.read(n * 8, 8, 512)).count();
        let mut ahead = 0;
        for n in (4..400).map(|n| n ^ 1) {
            ahead += streams.read(n * 8, 8, 512).map_or(0, |range| range.end - range.start);
        }
        assert_eq!(streams.streams.len(), 1);
        assert!((3000..4000).contains(&ahead), "{ahead}");
        assert_eq!((0..9).filter_map(|n| streams.read(90_000 + n, 1, LEAST - 1)).count(), 0);
    }
}
