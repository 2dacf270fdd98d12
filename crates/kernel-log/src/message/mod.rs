//! The messages of the kernel: the forms of lines, each with the kernel code that prints it.

pub(crate) mod carrier;
pub(crate) mod names;
#[cfg(test)]
mod tests;

use crate::form::Form;
use std::time::Duration;

/// One message, understood or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    InitcallStart {
        function: Function<'a>,
        /// Thread; `None` for a kernel older than 2.6.28, which doesn't print it.
        pid: Option<u32>,
    },
    InitcallEnd {
        function: Function<'a>,
        result: i64,
        took: PrintedDuration,
    },
    ProbeEnd {
        device: &'a str,
        driver: Option<&'a str>,
        result: i64,
        took: PrintedDuration,
        form: Form,
    },
    /// The print of the patch on probing: inside the probe, before `ProbeEnd`.
    ProbeCost {
        driver: &'a str,
        device: &'a str,
        cpu: u32,
        worker: &'a str,
        took: Duration,
    },
    /// A driver is about to be tried; printed with dynamic debugging only.
    ProbeStart {
        driver: &'a str,
        device: &'a str,
    },
    /// A probe that will run beside its caller.
    ProbeAsync {
        driver: Option<&'a str>,
        device: &'a str,
    },
    Bound {
        driver: &'a str,
        device: &'a str,
    },
    /// The driver core's line inside a probe that failed, or that rejected its device; `error` is
    /// negative.
    ProbeFailed {
        driver: &'a str,
        device: &'a str,
        error: i64,
    },
    Deferral {
        device: &'a str,
        driver: Option<&'a str>,
        supplier: Option<&'a str>,
        reason: &'a str,
        said_by: DeferralSource,
    },
    /// `consumer` waits for `supplier`. A link that only syncs state orders nothing.
    Link {
        consumer: &'a str,
        supplier: &'a str,
        orders: bool,
    },
    Bridge {
        device: &'a str,
        first: u8,
        last: u8,
    },
    FixupStart {
        device: &'a str,
        function: Function<'a>,
        pid: u32,
    },
    FixupEnd {
        device: &'a str,
        function: Function<'a>,
        took: PrintedDuration,
    },
    /// A callback of suspend or resume, which names the device's parent.
    PmStart {
        device: &'a str,
        parent: &'a str,
    },
    /// The shutdown of a device. `head` is driver and device with a blank between, though either
    /// may have blanks.
    Shutdown {
        head: &'a str,
        step: Step,
    },
    /// The first message after the last device's shutdown.
    ShutdownTail,
    /// The kernel has chosen the clock behind printed durations, which ticks or doesn't.
    ClockSource {
        ticks: bool,
    },
    Version(&'a str),
    CommandLine(&'a str),
    Machine(&'a str),
    /// A known form without a use here.
    Known(Form),
    /// A device's own words, which tell its driver.
    Words {
        head: &'a str,
    },
    /// A text that looks as if one of the forms was meant.
    Suspicious(&'static str),
    Other,
}

/// The origin of a line about a device that was put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeferralSource {
    /// The driver core, at the end of the probe that was put off.
    ProbeEnd,
    /// A driver, or the driver core, within a probe whose result isn't printed.
    WithinProbe,
    /// A list of the devices that wait: no probe ran.
    WaitingList,
}

/// The part of a device's shutdown that a line announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// `shutdown_pre`, of the device's class.
    Pre,
    Shutdown,
    AsyncStart,
    AsyncEnd,
}

/// `nvme_init+0x0/0xff0 [nvme]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Function<'a> {
    pub name: &'a str,
    pub module: Option<&'a str>,
}

/// A duration as it was printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrintedDuration {
    pub time: Duration,
    /// Precision of the printed number.
    pub unit: Duration,
}

impl Message<'_> {
    /// Returns the form under which the line is counted; `None` if it is none of the forms.
    pub(crate) fn form(&self) -> Option<Form> {
        Some(match self {
            Message::InitcallStart { .. } => Form::InitcallStart,
            Message::InitcallEnd { .. } => Form::InitcallEnd,
            Message::ProbeEnd { form, .. } => *form,
            Message::ProbeCost { .. } => Form::ProbeCost,
            Message::ProbeStart { .. } => Form::ProbeStart,
            Message::ProbeAsync { .. } => Form::ProbeAsync,
            Message::Bound { .. } => Form::Bound,
            Message::ProbeFailed { .. } => Form::ProbeFailed,
            Message::Deferral { .. } => Form::Deferral,
            Message::Link { .. } => Form::Link,
            Message::Bridge { .. } => Form::Bridge,
            Message::FixupStart { .. } => Form::FixupStart,
            Message::FixupEnd { .. } => Form::FixupEnd,
            Message::PmStart { .. } => Form::PmStart,
            Message::Shutdown { .. } => Form::Shutdown,
            Message::ShutdownTail => Form::ShutdownTail,
            Message::Version(_) => Form::Version,
            Message::ClockSource { .. } => Form::ClockSource,
            Message::CommandLine(_) | Message::Machine(_) => Form::BootMark,
            Message::Known(form) => *form,
            Message::Words { .. } | Message::Suspicious(_) | Message::Other => return None,
        })
    }
}

impl Message<'_> {
    /// Returns true if a name has a character that no name of the kernel has: an encoding, or a
    /// prefix, was not undone.
    fn is_misread(&self) -> bool {
        let function = |f: &Function<'_>| [Some(f.name), f.module].into_iter().flatten().any(odd);
        match self {
            Message::InitcallStart { function: f, .. }
            | Message::InitcallEnd { function: f, .. } => function(f),
            Message::FixupStart { device, function: f, .. }
            | Message::FixupEnd { device, function: f, .. } => odd(device) || function(f),
            Message::ProbeEnd { device, driver, .. }
            | Message::ProbeAsync { driver, device }
            | Message::Deferral { device, driver, .. } => odd(device) || driver.is_some_and(odd),
            Message::ProbeCost { driver, device, .. }
            | Message::ProbeStart { driver, device }
            | Message::Bound { driver, device }
            | Message::ProbeFailed { driver, device, .. } => odd(driver) || odd(device),
            Message::Link { consumer, supplier, .. } => odd(consumer) || odd(supplier),
            Message::PmStart { device, parent } => odd(device) || odd(parent),
            Message::Bridge { device, .. } => odd(device),
            Message::Shutdown { head, .. } => odd(head),
            Message::ShutdownTail
            | Message::ClockSource { .. }
            | Message::Version(_)
            | Message::CommandLine(_)
            | Message::Machine(_)
            | Message::Known(_)
            | Message::Words { .. }
            | Message::Suspicious(_)
            | Message::Other => false,
        }
    }
}

/// Returns true if a name has a character that no name of the kernel has.
pub(crate) fn odd(name: &str) -> bool {
    name.contains([';', '=', '"', '{', '}', '|'])
}

/// Reads one message without its prefixes.
pub(crate) fn parse(text: &str) -> Message<'_> {
    let text = text.trim_end();
    match plain(text).or_else(|| device(text)).unwrap_or(Message::Other) {
        unknown @ (Message::Words { .. } | Message::Other) => {
            suspicious(text).map_or(unknown, Message::Suspicious)
        }
        known if known.is_misread() => Message::Suspicious("has a name that no device has"),
        known => known,
    }
}

/// Reads messages that do not begin with a device.
fn plain(text: &str) -> Option<Message<'_>> {
    // init/main.c: trace_initcall_start_cb, trace_initcall_finish_cb
    if let Some(rest) = text.strip_prefix("calling ") {
        // drivers/base/power/main.c, before it used dev_info.
        if let Some((device, (_, parent))) = rest
            .split_once("+ @ ")
            .and_then(|(device, rest)| Some((device.trim_start(), rest.split_once(", parent: ")?)))
        {
            return Some(Message::PmStart { device, parent });
        }
        let (function, pid) = match called(rest) {
            Some((function, pid)) => (function, Some(pid)),
            // Until 2.6.27 nothing stands behind the function, which may be a bare address.
            None if !rest.contains(['@', '['])
                && (rest.contains("+0x") || rest.contains(" 0x")) =>
            {
                (self::function(rest)?, None)
            }
            None => return None,
        };
        return Some(Message::InitcallStart { function, pid });
    }
    if text.starts_with("call ") && text.contains("+ returned ") && returned(text).is_some() {
        return Some(Message::Known(Form::PmEnd));
    }
    if let Some(rest) = text.strip_prefix("initcall ") {
        if rest.contains(" returned with ") {
            return Some(Message::Known(Form::InitcallWarning));
        }
        if rest.ends_with(" blacklisted") {
            return Some(Message::Known(Form::Blacklisted));
        }
        let (function, result, took) = returned(rest)?;
        return Some(Message::InitcallEnd { function: self::function(function)?, result, took });
    }
    if text.starts_with("blacklisting initcall ") {
        return Some(Message::Known(Form::Blacklisted));
    }
    if text.starts_with("entering initcall level: ") {
        return Some(Message::Known(Form::InitcallLevel));
    }
    // drivers/base/dd.c: really_probe_debug
    if let Some(rest) = text.strip_prefix("probe of ") {
        let (device, result, took) = returned(rest)?;
        let (device, driver, form) = match device.split_once(" with driver ") {
            Some((device, driver)) => (device, Some(driver), Form::ProbeEndDriver),
            None => (device, None, Form::ProbeEnd),
        };
        return Some(Message::ProbeEnd { device, driver, result, took, form });
    }
    // Tim Bird's patch of December 2024
    if let Some((driver, rest)) =
        text.strip_prefix("probe ").and_then(|t| t.split_once(" in driver ")?.1.split_once(" for "))
    {
        let (device, result, took) = returned(rest.strip_prefix("device ")?)?;
        let (driver, form) = (Some(driver), Form::ProbeEndPatched);
        return Some(Message::ProbeEnd { device, driver, result, took, form });
    }
    if text.starts_with("platform probe ") && text.ends_with(" is being called") {
        return Some(Message::Known(Form::ProbeCalled));
    }
    // kernel/time/timekeeping.c: tk_setup_internals; before 4.x without the capital, or another
    // verb.
    let switched = text.strip_prefix("clocksource: ").unwrap_or(text);
    let clock = ["Switched to clocksource ", "Switching to clocksource "]
        .iter()
        .find_map(|words| switched.strip_prefix(words));
    if let Some(clock) = clock {
        return Some(Message::ClockSource {
            ticks: matches!(clock, "jiffies" | "refined-jiffies"),
        });
    }
    if let Some(rest) = text.strip_prefix("Linux version ") {
        return Some(Message::Version(rest.split(' ').next().unwrap_or(rest)));
    }
    let command_line = text.strip_prefix("Kernel command line: ");
    if let Some(rest) = command_line.or_else(|| text.strip_prefix("Command line: ")) {
        return Some(Message::CommandLine(rest));
    }
    if let Some(rest) = text.strip_prefix("Machine model: ") {
        return Some(Message::Machine(rest));
    }
    if let Some(rest) = text.strip_prefix("DMI: ") {
        return (!rest.starts_with("Memory slots")).then_some(Message::Machine(rest));
    }
    if text.starts_with("Freeing unused kernel")
        || (text.starts_with("Run ") && text.ends_with(" as init process"))
    {
        return Some(Message::Known(Form::BootMark));
    }
    // drivers/base/core.c names nodes of the device tree, or of ACPI, here, not devices.
    if text.starts_with(['/', '\\'])
        && [": Fixed dependency cycle(s) with ", " Linked as a fwnode consumer to "]
            .iter()
            .any(|words| text.contains(words))
    {
        return Some(Message::Known(Form::LinkNote));
    }
    if text.starts_with("device: '") && text.contains("': device_") {
        return Some(Message::Known(Form::DeviceAdd));
    }
    tail(text).then_some(Message::ShutdownTail)
}

/// Returns true for a message of kernel/reboot.c, kernel/kexec_core.c and the syscore code once the
/// devices are down.
fn tail(text: &str) -> bool {
    const TAILS: [&str; 9] = [
        "ACPI: PM: Preparing to enter system sleep state S5",
        "ACPI: Preparing to enter system sleep state S5",
        "PM: Calling ",
        "reboot: ",
        "kexec_core: Starting new kernel",
        "kexec: Starting new kernel",
        "Restarting system",
        "Power down.",
        "System halted",
    ];
    TAILS.iter().any(|t| text.starts_with(t))
}

/// Reads messages that begin with a driver and a device: `dev_printk` writes
/// `DRIVER DEVICE: MESSAGE`.
fn device(text: &str) -> Option<Message<'_>> {
    // Older kernels don't use dev_printk here: the driver core named the device itself.
    if let Some(rest) = text.strip_prefix("bus: '") {
        return bus_debug(None, rest);
    }
    if let Some(rest) = text.strip_prefix("driver: '") {
        let (driver, rest) = rest.split_once("': driver_bound: bound to device '")?;
        return Some(Message::Bound { driver, device: rest.strip_suffix('\'')? });
    }
    // drivers/base/core.c: device_shutdown
    if let Some((head, step)) = shutdown(text) {
        return Some(Message::Shutdown { head, step });
    }
    let (head, rest) = text.split_once(": ")?;
    let Some((driver, device)) = split_head(head) else {
        // drivers/base/dd.c, until 2021: `nvme: probe of 0000:01:00.0 failed with error -12`
        let rest = rest.strip_prefix("probe of ")?;
        let (device, error) = probe_error(rest)?;
        return Some(Message::ProbeFailed { driver: head, device, error });
    };
    of_device(driver, device, rest).or(Some(Message::Words { head }))
}

fn of_device<'a>(driver: &'a str, device: &'a str, rest: &'a str) -> Option<Message<'a>> {
    // drivers/pci/quirks.c: fixup_debug_start, fixup_debug_report
    let is_pci = names::pci(device).is_some();
    if let Some(rest) = rest.strip_prefix("calling ").filter(|_| is_pci) {
        let (function, pid) = called(rest)?;
        return Some(Message::FixupStart { device, function, pid });
    }
    if let Some((function, rest)) = rest.split_once(" took ").filter(|_| is_pci) {
        let function = self::function(function).filter(|_| function.contains("+0x"));
        if let Some((function, took)) = function.zip(duration(rest)) {
            return Some(Message::FixupEnd { device, function, took });
        }
    }
    // drivers/base/power/main.c: initcall_debug_start
    if let Some(rest) = rest.strip_prefix("PM: calling ") {
        let (_, parent) = rest.split_once(", parent: ")?;
        return Some(Message::PmStart { device, parent });
    }
    if rest.starts_with("PM: ") && returned(rest).is_some() {
        return Some(Message::Known(Form::PmEnd));
    }
    if let Some(rest) = rest.strip_prefix("CPU: ") {
        let (cpu, rest) = rest.split_once(", COMM: ")?;
        let (worker, cost) = rest.split_once(", probe cost: ")?;
        let ns = cost.strip_suffix(" ns")?.trim().parse().ok()?;
        let (cpu, took) = (cpu.trim().parse().ok()?, Duration::from_nanos(ns));
        return Some(Message::ProbeCost { driver, device, cpu, worker, took });
    }
    if let Some(rest) = rest.strip_prefix("bus: '") {
        return bus_debug(Some(device), rest);
    }
    if let Some(rest) = rest.strip_prefix("driver: '") {
        let (driver, rest) = rest.split_once("': ")?;
        return rest.starts_with("driver_bound").then_some(Message::Bound { driver, device });
    }
    if let Some(rest) = rest.strip_prefix("probing driver ") {
        let driver = Some(rest.strip_suffix(" asynchronously")?);
        return Some(Message::ProbeAsync { driver, device });
    }
    if rest == "scheduling asynchronous probe" {
        return Some(Message::ProbeAsync { driver: None, device });
    }
    if rest.starts_with("driver ") && rest.contains(" async attach completed: ")
        || rest == "async probe completed"
    {
        return Some(Message::Known(Form::ProbeAsync));
    }
    if let Some(rest) = rest.strip_prefix("probe with driver ") {
        let (driver, error) = probe_error(rest)?;
        return Some(Message::ProbeFailed { driver, device, error });
    }
    link(device, rest).or_else(|| deferral(driver, device, rest)).or_else(|| bridge(device, rest))
}

/// Splits ` failed with error -12` or ` rejects match -19` off, with the number.
fn probe_error(text: &str) -> Option<(&str, i64)> {
    let (what, error) =
        text.split_once(" failed with error ").or(text.split_once(" rejects match "))?;
    let error: i64 = error.split(' ').next()?.parse().ok()?;
    Some((what, error.checked_abs()?.checked_neg()?))
}

/// Reads links (drivers/base/core.c: device_link_add, fw_devlink_create_devlink).
fn link<'a>(device: &'a str, rest: &'a str) -> Option<Message<'a>> {
    if let Some(supplier) = rest.strip_prefix("Linked as a consumer to ") {
        return Some(Message::Link { consumer: device, supplier, orders: true });
    }
    if let Some(supplier) = rest.strip_prefix("Linked as a sync state only consumer to ") {
        return Some(Message::Link { consumer: device, supplier, orders: false });
    }
    if rest.starts_with("Failed to create device link (")
        || rest.starts_with("Fixed dependency cycle(s) with ")
        || rest.starts_with("Dropping the link to ")
        || rest.starts_with("Not linking ")
        || rest.starts_with("Failed to link with ")
    {
        return Some(Message::Known(Form::LinkNote));
    }
    None
}

/// Reads the reasons for deferred probes and the lists of waiting devices (drivers/base/dd.c and
/// dev_err_probe).
fn deferral<'a>(driver: &'a str, device: &'a str, rest: &'a str) -> Option<Message<'a>> {
    let reason = ["error -EPROBE_DEFER: ", "error -517: ", "probe deferral - "]
        .into_iter()
        .find_map(|start| Some((rest.strip_prefix(start)?, DeferralSource::WithinProbe)))
        .or_else(|| {
            let reason = rest.strip_prefix("deferred probe pending");
            let reason = reason.map(|reason| reason.trim_start_matches([':', ' ']));
            let reason = reason.or_else(|| rest.strip_prefix("deferred probe timeout"))?;
            Some((reason, DeferralSource::WaitingList))
        });
    if let Some((reason, said_by)) = reason {
        let supplier = ["supplier ", "wait for supplier "]
            .into_iter()
            .find_map(|word| reason.split_once(word).map(|(_, name)| name))
            .map(|name| name.strip_suffix(" not ready").unwrap_or(name));
        let driver = Some(driver).filter(|d| !names::is_bus(d));
        return Some(Message::Deferral { device, driver, supplier, reason, said_by });
    }
    for (end, reason) in [
        (" requests probe deferral", "the driver asked for it"),
        (" force probe deferral", "all probes are put off"),
    ] {
        let driver = rest.strip_prefix("Driver ").and_then(|r| r.strip_suffix(end));
        if driver.is_some() {
            let (supplier, said_by) = (None, DeferralSource::ProbeEnd);
            return Some(Message::Deferral { device, driver, supplier, reason, said_by });
        }
    }
    if rest == "Device match requests probe deferral" {
        let (reason, said_by) = ("its bus cannot match it yet", DeferralSource::WaitingList);
        let (driver, supplier) = (None, None);
        return Some(Message::Deferral { device, driver, supplier, reason, said_by });
    }
    let lists =
        ["Added to deferred list", "Removed from deferred list", "Retrying from deferred list"];
    lists.contains(&rest).then_some(Message::Known(Form::DeferredList))
}

/// Reads the buses behind a bridge (drivers/pci/probe.c).
fn bridge<'a>(device: &'a str, rest: &'a str) -> Option<Message<'a>> {
    let buses = rest.strip_prefix("PCI bridge to [bus ")?.split_once(']')?.0;
    let (first, last) = buses.split_once('-').unwrap_or((buses, buses));
    let number = |text: &str| u8::from_str_radix(text, 16).ok();
    Some(Message::Bridge { device, first: number(first)?, last: number(last)? })
}

/// Reads the driver core's debug lines, behind `bus: '`. Newer kernels name the device before that.
fn bus_debug<'a>(device: Option<&'a str>, rest: &'a str) -> Option<Message<'a>> {
    let (_bus, rest) = rest.split_once("': ")?;
    let (function, rest) = rest.split_once(": ")?;
    let words = |start: &str, middle: &str| -> Option<(&'a str, &'a str)> {
        let rest = rest.strip_prefix(start)?;
        match rest.split_once(middle) {
            Some((first, second)) => Some((first, second.trim_start())),
            None => rest.strip_suffix(middle.trim_end()).map(|first| (first, "")),
        }
    };
    if let Some((driver, named)) = words("probing driver ", " with device") {
        let device = device.or(Some(named)).filter(|d| !d.is_empty())?;
        return Some(Message::ProbeStart { driver, device });
    }
    if let Some((named, driver)) = words("bound device", " to driver ") {
        let device = device.unwrap_or(named.trim());
        return Some(Message::Bound { driver, device });
    }
    ["matched device", "add device", "remove device", "add driver"]
        .iter()
        .any(|start| rest.starts_with(start) || function.starts_with(start))
        .then_some(Message::Known(Form::BusDebug))
}

/// Reads `HEAD: shutdown` and similar messages. The head may have blanks and colons, but not `: `.
fn shutdown(text: &str) -> Option<(&str, Step)> {
    let (head, what) = text.rsplit_once(": ")?;
    let step = match what {
        "shutdown" => Step::Shutdown,
        "shutdown_pre" => Step::Pre,
        "async_shutdown_start" => Step::AsyncStart,
        "async_shutdown_end" => Step::AsyncEnd,
        _ => return None,
    };
    let fits = head.contains(' ') && !head.contains(": ") && !head.contains("  ");
    (fits && !stamped(head)).then_some((head, step))
}

/// Returns true if a number, or something in brackets, stands before driver and device: a stamp
/// that was not read. The names of drivers begin with digits too (`3c59x`), but are no numbers.
fn stamped(head: &str) -> bool {
    let number = |word: &str| {
        word.starts_with('[') || word.bytes().all(|b| b.is_ascii_digit() || b":.,-".contains(&b))
    };
    split_head(head)
        .is_some_and(|(driver, _)| driver.contains(' ') && driver.split(' ').any(number))
}

/// Splits driver and device at a blank. If there are several, the device is the last word: drivers
/// have names such as `i8042 aux`, and devices only on the platform bus (`Fixed MDIO bus.0`).
pub(crate) fn split_head(head: &str) -> Option<(&str, &str)> {
    match head.strip_prefix("platform ") {
        Some(device) if !device.is_empty() => Some(("platform", device)),
        _ => head
            .rsplit_once(' ')
            .filter(|(driver, device)| !driver.is_empty() && !device.is_empty()),
    }
}

/// Reads ` nvme_init+0x0/0xff0 [nvme] @ 207`, behind `calling `; the kernel writes two blanks.
fn called(rest: &str) -> Option<(Function<'_>, u32)> {
    let (name, pid) = rest.rsplit_once(" @ ")?;
    // Some vendors add `irqs_disabled() 0`.
    let pid = pid.split([' ', ',']).next()?;
    Some((function(name.trim_start())?, pid.parse().ok()?))
}

fn function(text: &str) -> Option<Function<'_>> {
    let (symbol, module) = match text.trim().split_once(" [") {
        // A build id may stand behind the module's name.
        Some((symbol, rest)) => {
            (symbol, rest.strip_suffix(']').map(|m| m.trim().split(' ').next().unwrap_or(m)))
        }
        None => (text.trim(), None),
    };
    let name = symbol.split_once("+0x").map_or(symbol, |(name, _)| name);
    (!name.is_empty() && !name.contains(' ')).then_some(Function { name, module })
}

/// Splits `WHAT returned RESULT after N usecs`.
fn returned(text: &str) -> Option<(&str, i64, PrintedDuration)> {
    let (what, rest) = text.rsplit_once(" returned ")?;
    let (result, rest) = rest.split_once(" after ")?;
    Some((what, result.trim().parse().ok()?, duration(rest)?))
}

/// Reads `N usecs`, in the units of all kernels. A vendor's words may follow.
fn duration(text: &str) -> Option<PrintedDuration> {
    let mut words = text.split([' ', ',']).filter(|w| !w.is_empty());
    let number: u64 = words.next()?.parse().ok()?;
    let unit = match words.next()? {
        "usecs" | "usec" | "us" => Duration::from_micros(1),
        "msecs" | "msec" | "ms" => Duration::from_millis(1),
        "nsecs" | "nsec" | "ns" => Duration::from_nanos(1),
        _ => return None,
    };
    let time = Duration::from_nanos(number.checked_mul(u64::try_from(unit.as_nanos()).ok()?)?);
    Some(PrintedDuration { time, unit })
}

/// Returns `6.12` of `6.12.0-rc3+`.
pub(crate) fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Returns the form that a line may be meant to have. Called for lines that have none of the forms.
fn suspicious(text: &str) -> Option<&'static str> {
    if text.starts_with("calling ") && text.contains("+0x") {
        return Some("begins like an init call");
    }
    if text.starts_with("initcall ") {
        return Some("begins like the end of an init call");
    }
    if text.starts_with("probe of ") || text.starts_with("probe ") && text.contains(" in driver ") {
        return Some("begins like the end of a probe");
    }
    if text.contains(" returned ") && text.contains(" after ") || text.ends_with(" usecs") {
        return Some("has a result or a duration");
    }
    if text.contains("probe cost: ") {
        return Some("has the cost of a probe");
    }
    if text.ends_with(": shutdown") || text.contains(": async_shutdown") {
        return Some("ends like a shutdown");
    }
    if text.contains("EPROBE_DEFER") || text.contains("deferred probe pending") {
        return Some("speaks of a deferred probe");
    }
    text.contains("Linked as a ").then_some("speaks of a device link")
}
