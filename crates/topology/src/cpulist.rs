//! Texts of CPU sets: the kernel's list (`0-1,8`) and its hexadecimal mask (`00000103`).
//!
//! Formats: `Documentation/core-api/printk-formats.rst` (`%*pbl`, `%*pb`) of the Linux kernel.

use crate::cpuset::CpuId;
use std::fmt;
use std::str::FromStr;

use crate::cpuset::CpuSet;
use crate::error::TopologyError;

impl fmt::Display for CpuSet {
    /// Writes the kernel's list format: ranges joined by commas, rising; nothing at all for the
    /// empty set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|cpu| cpu.number() == last.number() + 1) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl FromStr for CpuSet {
    type Err = TopologyError;

    /// Parses a list such as `0-3,8`: numbers and rising ranges, in any order, which may overlap.
    /// White space around the list and around its items is ignored; an empty list is the empty set.
    /// The kernel's strides (`0-31:2/4`) and names (`all`, `N`) are not accepted.
    ///
    /// # Errors
    /// [`TopologyError::CpuList`], which names the item and its position.
    fn from_str(list: &str) -> Result<CpuSet, TopologyError> {
        let mut set = CpuSet::new();
        if list.trim().is_empty() {
            return Ok(set);
        }
        let mut start = 0;
        for part in list.split(',') {
            let item = part.trim();
            let at = start + (part.len() - part.trim_start().len());
            start += part.len() + 1;
            let (first, last) = parse_item(item).map_err(|reason| TopologyError::CpuList {
                list: list.to_owned(),
                item: item.to_owned(),
                position: list[..at].chars().count() + 1,
                reason,
            })?;
            set.insert_range(first, last);
        }
        Ok(set)
    }
}

fn parse_item(item: &str) -> Result<(u32, u32), String> {
    if item.is_empty() {
        return Err("nothing between two commas; write a number or a range".into());
    }
    if item.contains([':', '/']) {
        return Err("strides are not supported; write the numbers or ranges out".into());
    }
    let (first, last) = match item.split_once('-') {
        Some((first, last)) => (parse_cpu(first.trim())?, parse_cpu(last.trim())?),
        None => {
            let cpu = parse_cpu(item)?;
            (cpu, cpu)
        }
    };
    if first > last {
        return Err(format!("the range runs backwards; write {last}-{first}"));
    }
    Ok((first, last))
}

fn parse_cpu(text: &str) -> Result<u32, String> {
    // `u32::from_str` accepts a leading plus sign, which no CPU list has.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("expected a CPU number or a range such as 0-3".into());
    }
    match text.parse() {
        Ok(cpu) if cpu <= CpuSet::MAX_CPU => Ok(cpu),
        _ => Err(format!("the highest CPU number is {}", CpuSet::MAX_CPU)),
    }
}

impl CpuSet {
    /// Parses the kernel's mask format: hexadecimal words of 32 bits, the highest first, separated
    /// by commas (`00000000,00000103`). Old sysfs trees have only masks. A single word may be
    /// longer: some sandboxes write masks without commas, and their digits count from the right.
    ///
    /// # Errors
    /// [`TopologyError::CpuList`], which names the word and its position.
    pub(crate) fn from_mask(mask: &str) -> Result<CpuSet, TopologyError> {
        let mut set = CpuSet::new();
        let mut end = mask.trim_end().len();
        let alone = !mask.contains(',');
        // Number of the first CPU in the word.
        let mut first = 0_u64;
        for part in mask.trim_end().rsplit(',') {
            let at = end - part.len();
            end = at.saturating_sub(1);
            let wrong = |reason: String| TopologyError::CpuList {
                list: mask.trim().to_owned(),
                item: part.trim().to_owned(),
                position: mask[..at].chars().count() + 1,
                reason,
            };
            let word = part.trim();
            let hex = word.strip_prefix("0x").unwrap_or(word);
            if hex.is_empty() || hex.len() > 8 && !alone {
                return Err(wrong("expected up to eight hexadecimal digits".into()));
            }
            for (digit, from) in hex.chars().rev().zip((first..).step_by(4)) {
                let Some(bits) = digit.to_digit(16) else {
                    return Err(wrong("expected up to eight hexadecimal digits".into()));
                };
                for cpu in (0..4).filter(|bit| bits & (1 << bit) != 0).map(|bit| from + bit) {
                    if cpu > u64::from(CpuSet::MAX_CPU) {
                        return Err(wrong(format!(
                            "the highest CPU number is {}",
                            CpuSet::MAX_CPU
                        )));
                    }
                    set.insert(CpuId::new(cpu as u32));
                }
            }
            first += u64::from(u32::BITS);
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_in_the_kernels_form() {
        for (list, cpus, written) in [
            ("", vec![], ""),
            ("\n", vec![], ""),
            ("0", vec![0], "0"),
            ("0-3,8\n", vec![0, 1, 2, 3, 8], "0-3,8"),
            ("8, 0 - 3", vec![0, 1, 2, 3, 8], "0-3,8"),
            ("1,0", vec![0, 1], "0-1"),
            ("4-6,5-7,63-65", vec![4, 5, 6, 7, 63, 64, 65], "4-7,63-65"),
            ("5-5", vec![5], "5"),
        ] {
            let set: CpuSet = list.parse().unwrap();
            assert_eq!(set.iter().map(CpuId::number).collect::<Vec<_>>(), cpus, "{list}");
            assert_eq!(set.to_string(), written, "{list}");
        }
    }

    #[test]
    fn a_bad_list_names_the_item_and_where_it_stands() {
        for (list, wanted_item, wanted_position, wanted_word) in [
            ("0-3,,8", "", 5, "between two commas"),
            ("0,", "", 3, "between two commas"),
            ("0, x", "x", 4, "expected a CPU number"),
            ("3-1", "3-1", 1, "write 1-3"),
            ("0-", "0-", 1, "expected a CPU number"),
            ("-1", "-1", 1, "expected a CPU number"),
            ("+1", "+1", 1, "expected a CPU number"),
            ("0-7:2", "0-7:2", 1, "strides"),
            ("0,8192", "8192", 3, "highest CPU number is 8191"),
            ("0-99999999999999999999", "0-99999999999999999999", 1, "highest CPU number is 8191"),
            ("ä,1", "ä", 1, "expected"),
            ("0,ä,y", "ä", 3, "expected"),
        ] {
            let error = list.parse::<CpuSet>().unwrap_err();
            let TopologyError::CpuList { item, position, reason, .. } = &error else {
                panic!("{list}: {error:?}");
            };
            assert_eq!((item.as_str(), *position), (wanted_item, wanted_position), "{list}");
            assert!(reason.contains(wanted_word), "{list}: {reason}");
            assert!(error.to_string().contains(list), "{error}");
        }
    }

    #[test]
    fn masks_are_words_of_32_bits_with_the_highest_first() {
        for (mask, list) in [
            ("0", ""),
            ("f\n", "0-3"),
            ("0000010f", "0-3,8"),
            ("1,00000000", "32"),
            ("80000000,00000000,00000001", "0,95"),
            ("0x3", "0-1"),
            ("123456789", "0,3,7-10,13-14,16,18,22,24-25,29,32"),
            ("ffffffffff", "0-39"),
            ("8000000000000000000000000000000000000000", "159"),
            (&format!("1{}", "0".repeat(2047)), "8188"),
        ] {
            assert_eq!(CpuSet::from_mask(mask).unwrap().to_string(), list, "{mask}");
        }
        let beyond = format!("1{}", "0".repeat(2048));
        for (mask, wanted) in [
            ("", 1),
            ("1,g", 3),
            ("1,,1", 3),
            ("123456789,1", 1),
            ("1,123456789", 3),
            ("12345678g", 1),
            (&beyond, 1),
        ] {
            let TopologyError::CpuList { position, .. } = CpuSet::from_mask(mask).unwrap_err()
            else {
                panic!("{mask}");
            };
            assert_eq!(position, wanted, "{mask}");
        }
    }
}
