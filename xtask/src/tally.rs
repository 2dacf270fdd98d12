//! Adds up the result lines of test programs.

/// Counts of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Tests that are marked as ignored.
    pub(crate) skipped: u64,
}

impl Tally {
    /// Returns the counts in a line of output, if it is the result line of a test program:
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; …`. Tests that
    /// were filtered out were not asked for, and do not count.
    pub(crate) fn of_line(line: &str) -> Option<Tally> {
        let (_, counts) = line.trim().strip_prefix("test result: ")?.split_once(". ")?;
        let mut tally = Tally::default();
        for part in counts.split("; ") {
            let (n, what) = part.split_once(' ')?;
            let Ok(n) = n.parse::<u64>() else { continue };
            match what {
                "passed" => tally.passed = n,
                "failed" => tally.failed = n,
                "ignored" => tally.skipped = n,
                _ => {}
            }
        }
        Some(tally)
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_added_up_and_other_lines_are_not() {
        let mut sum = Tally::default();
        for line in [
            "running 4 tests",
            "test a::b ... ok",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.01s",
            "test result: FAILED. 2 passed; 5 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.19s",
            "test result: nonsense",
        ] {
            if let Some(tally) = Tally::of_line(line) {
                sum += tally;
            }
        }
        assert_eq!(sum, Tally { passed: 5, failed: 5, skipped: 1 });
        assert_eq!(sum.to_string(), "5 passed, 5 failed, 1 skipped");
    }
}
