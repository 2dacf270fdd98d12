//! A small deterministic mutator: a form of libFuzzer's work that every test run can afford and
//! repeat.

/// Numbers that overflow, wrap, or sit at a boundary of the protocol.
const INTERESTING: [u64; 16] = [
    0,
    1,
    2,
    7,
    511,
    512,
    513,
    4096,
    4097,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fe00,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0xffff_ffff_ffff_fe00,
    0xffff_ffff_ffff_ffff,
];

/// Makes variants of inputs, the same ones for the same seed.
#[derive(Debug, Clone)]
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// Creates a mutator with this seed.
    pub fn new(seed: u64) -> Mutator {
        Mutator { state: seed | 1 }
    }

    /// Returns a number below `limit` (which is at least 1). The generator is xorshift64*, by
    /// Marsaglia and Vigna.
    fn below(&mut self, limit: usize) -> usize {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let number = self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        number as usize % limit
    }

    /// Returns a variant of `input`, perhaps with a part of `other`: one to four changes.
    pub fn mutate(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        let mut out = input.to_vec();
        for _ in 0..=self.below(4) {
            let at = self.below(out.len() + 1);
            match self.below(7) {
                0 if at < out.len() => out[at] ^= 1 << self.below(8),
                1 if at < out.len() => out[at] = self.below(256) as u8,
                2 => {
                    let number = INTERESTING[self.below(INTERESTING.len())].to_be_bytes();
                    let width = [2, 4, 8][self.below(3)];
                    for (byte, new) in out.iter_mut().skip(at).zip(&number[8 - width..]) {
                        *byte = *new;
                    }
                }
                3 => out.truncate(at),
                4 => {
                    let end = at + self.below(out.len() - at + 1);
                    let part = out[at..end].to_vec();
                    out.splice(at..at, part);
                }
                5 => {
                    let end = (at + 1 + self.below(32)).min(out.len());
                    out.drain(at..end);
                }
                _ => {
                    let from = self.below(other.len() + 1);
                    let to = from + self.below(other.len() - from + 1);
                    out.splice(at..at, other[from..to].iter().copied());
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_variants_and_another_makes_others() {
        let many = |seed| {
            let mut mutator = Mutator::new(seed);
            (0..50).map(|_| mutator.mutate(b"some input", b"OTHER")).collect::<Vec<_>>()
        };
        assert_eq!(many(1), many(1));
        assert_ne!(many(1), many(5));
    }
}
