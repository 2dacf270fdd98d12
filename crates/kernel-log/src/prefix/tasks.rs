//! The author of a line: what kernels and vendors put behind a stamp, and Android's `logcat`.

use crate::form::Prefix;
use crate::stamp::digits;

/// A task, or a CPU, behind a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task<'a> {
    /// The thread; None where only the CPU is said.
    pub thread: Option<u32>,
    pub kind: Prefix,
    /// What stands behind it.
    pub rest: &'a str,
}

/// Reads `[ T8227]`, `[    C3]`, and those of Android's vendors.
pub(crate) fn task(text: &str) -> Option<Task<'_>> {
    let text = text.trim_start_matches(' ');
    caller(text).or_else(|| cpu_and_task(text)).or_else(|| in_brackets(text))
}

/// `CONFIG_PRINTK_CALLER`; without stamps it stands alone.
pub(crate) fn caller(text: &str) -> Option<Task<'_>> {
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    let inside = inside.trim_start();
    let kind = Prefix::CallerId;
    match (inside.strip_prefix('T'), inside.strip_prefix('C')) {
        (Some(id), _) if digits(id) => Some(Task { thread: id.parse().ok(), kind, rest }),
        (_, Some(id)) if digits(id) => Some(Task { thread: None, kind, rest }),
        _ => None,
    }
}

/// `(0)[1:swapper/0]`, where a level and a mark of the context may stand before it.
fn cpu_and_task(text: &str) -> Option<Task<'_>> {
    let text = match text.strip_prefix('<').and_then(|t| t.split_once('>')) {
        Some((level, rest)) if digits(level) => rest,
        _ => text,
    };
    let text = text.trim_start_matches(['.', '-', '~', '*', ' ']);
    let (cpu, rest) = text.strip_prefix('(')?.split_once(")[")?;
    let (inside, rest) = rest.split_once(']')?;
    let (thread, name) = inside.split_once(':')?;
    named(cpu, name, thread, rest)
}

/// `[3: swapper/0: 1]`, where a letter for the level may stand before it, or
/// `[pid:1,cpu3,swapper/0]`.
fn in_brackets(text: &str) -> Option<Task<'_>> {
    let text = text.strip_prefix(|c: char| c.is_ascii_uppercase()).unwrap_or(text);
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    if let Some(inside) = inside.strip_prefix("pid:") {
        let (thread, inside) = inside.split_once(',')?;
        let (cpu, name) = inside.strip_prefix("cpu")?.split_once(',')?;
        return named(cpu, name, thread, rest);
    }
    let (cpu, inside) = inside.split_once(':')?;
    let (name, thread) = inside.rsplit_once(':')?;
    named(cpu, name, thread, rest)
}

fn named<'a>(cpu: &str, name: &str, thread: &str, rest: &'a str) -> Option<Task<'a>> {
    let (cpu, thread) = (cpu.trim(), thread.trim());
    let thread = thread.parse().ok().filter(|_| digits(thread) && digits(cpu))?;
    // A task's name has 15 letters.
    (1..=16).contains(&name.trim().len()).then_some(Task {
        thread: Some(thread),
        kind: Prefix::AndroidTask,
        rest,
    })
}

/// What `adb logcat` puts behind the time: `  0     0 I         : `. Whether another program than the
/// kernel logged the line, and the rest of it.
pub(crate) fn logcat(text: &str) -> Option<(bool, &str)> {
    let mut rest = text.trim_start();
    let mut word = || -> Option<&str> {
        let (word, behind) = rest.split_once(' ')?;
        rest = behind.trim_start();
        Some(word)
    };
    let mut process = word()?;
    if !digits(process) {
        // `-v uid`: the user.
        process = word()?;
    }
    let (thread, level) = (word()?, word()?);
    if !digits(process) || !digits(thread) || !matches!(level, "V" | "D" | "I" | "W" | "E" | "F") {
        return None;
    }
    // The kernel is process 0, and its message follows its empty tag. `logcat` takes a
    // driver and its device for the tag: then that belongs to the message.
    let message = match rest.split_once(": ") {
        Some((tag, message)) if matches!(tag.trim_end(), "" | "kernel") => message,
        _ => rest.strip_prefix(": ").unwrap_or(rest),
    };
    Some((process != "0", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_read_as_each_vendor_writes_it() {
        for text in [
            "(0)[1:swapper/0]x",
            " (0)[1:swapper/0]x",
            "<6>.(0)[1:swapper/0]x",
            "-(10)[1:kworker/0:1H]x",
            "[3:  swapper/0:    1]x",
            "  [0:      swapper:    1]x",
            "I[3:    kworker/3:1:    1]x",
            "[pid:1,cpu3,swapper/0]x",
        ] {
            let task = task(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((task.thread, task.kind, task.rest), (Some(1), Prefix::AndroidTask, "x"));
        }
        for text in ["", "[", "(0)x", "[drm:radeon:1]", "[1:2]", "[a: b: c]", "(x)[1:a]", "[1::2]"]
        {
            assert_eq!(task(text), None, "{text}");
        }
    }

    #[test]
    fn logcat_names_process_thread_and_level() {
        assert_eq!(logcat(" 0     0 I         : probe of a"), Some((false, "probe of a")));
        assert_eq!(logcat("root     0     0 I kernel  : x"), Some((false, "x")));
        assert_eq!(logcat(" 0 0 I nvme 1: shutdown"), Some((false, "nvme 1: shutdown")));
        assert_eq!(logcat("512  530 D Zygote  : begin"), Some((true, "Zygote  : begin")));
        assert_eq!(logcat("a b c d e"), None);
        assert_eq!(logcat(""), None);
    }
}
