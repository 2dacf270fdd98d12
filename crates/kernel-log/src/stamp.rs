//! Moments of lines, and the digits that they are written with.

/// When a line was logged, by the clock that its prefix shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Nanoseconds since that clock's zero.
    pub ns: u64,
    pub clock: Clock,
    /// True when only the second is known.
    pub coarse: bool,
    /// True when it is of the receiver's clock, such as a journal: not before the
    /// kernel wrote it, and maybe long after.
    pub received: bool,
    /// What it was cut off to, in nanoseconds: the digits of its fraction tell.
    pub unit: u64,
}

/// What a stamp counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The boot: the kernel's own clock.
    Boot,
    /// The first line of the log.
    Log,
    /// A clock on the wall.
    Wall,
}

impl Stamp {
    /// The moment `ns` of a clock, as fine as the kernel's own stamps.
    pub(crate) fn new(ns: u64, clock: Clock) -> Stamp {
        Stamp { ns, clock, coarse: false, received: false, unit: MICRO }
    }

    pub(crate) fn is_wall(&self) -> bool {
        self.clock == Clock::Wall
    }
}

/// What the kernel's own stamps are cut off to.
pub(crate) const MICRO: u64 = 1000;

/// What a time with these digits behind its point was cut off to.
pub(crate) fn unit(text: &str) -> u64 {
    let fraction = text.split_once(['.', ',']).map_or("", |(_, fraction)| fraction);
    let digits = fraction.bytes().take_while(u8::is_ascii_digit).count().min(9);
    10u64.pow(9 - digits as u32)
}

/// The digits behind a decimal point of seconds, as nanoseconds.
pub(crate) fn fraction_ns(digits_behind: &str) -> Option<u64> {
    let digits_behind = digits_behind.get(..9).unwrap_or(digits_behind);
    if !digits(digits_behind) {
        return None;
    }
    let scale = 10u64.pow(9 - digits_behind.len() as u32);
    Some(digits_behind.parse::<u64>().ok()? * scale)
}

pub(crate) fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}
