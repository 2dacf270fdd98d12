//! The forms of lines and of their prefixes, and the moments of lines with the precision of their
//! digits.

named! {
    /// The forms of lines that are understood.
    Form {
        /// An init call begins.
        InitcallStart = "calling FUNCTION @ PID",
        /// An init call ends; older kernels print `msecs`.
        InitcallEnd = "initcall FUNCTION returned N after N usecs",
        /// An init call left something behind, such as a lock.
        InitcallWarning = "initcall FUNCTION returned with WARNING",
        /// An init call that the command line forbids.
        Blacklisted = "initcall FUNCTION blacklisted",
        /// One level of init calls begins.
        InitcallLevel = "entering initcall level: LEVEL",
        /// A probe ends, as kernels before 7.3 print it.
        ProbeEnd = "probe of DEVICE returned N after N usecs",
        /// A probe ends, with the driver's name.
        ProbeEndDriver = "probe of DEVICE with driver DRIVER returned N after N usecs",
        /// A probe ends, as a patch of 2024 prints it.
        ProbeEndPatched = "probe FUNCTION in driver DRIVER for device DEVICE returned N after N usecs",
        /// A probe of the platform bus begins, as the same patch prints it.
        ProbeCalled = "platform probe FUNCTION is being called",
        /// The cost of a probe, and its worker.
        ProbeCost = "DRIVER DEVICE: CPU: N, COMM: WORKER, probe cost: N ns",
        /// A driver is tried on a device.
        ProbeStart = "probing driver DRIVER with device",
        /// A driver is tried on a device, asynchronously.
        ProbeAsync = "probing driver DRIVER asynchronously",
        /// A driver took a device.
        Bound = "driver_bound: bound to device",
        /// A probe failed.
        ProbeFailed = "probe with driver DRIVER failed with error N",
        /// The reason why a probe was deferred.
        Deferral = "error -EPROBE_DEFER: REASON",
        /// A device goes on the list of deferred ones, or leaves it.
        DeferredList = "Added to deferred list",
        /// A device waits for another one.
        Link = "Linked as a consumer to DEVICE",
        /// A change of other links.
        LinkNote = "Fixed dependency cycle(s) with DEVICE",
        /// A device is registered.
        DeviceAdd = "device: 'DEVICE': device_add",
        /// Other words of the driver core.
        BusDebug = "bus: 'BUS': FUNCTION: matched device",
        /// The buses behind a PCI bridge.
        Bridge = "PCI bridge to [bus N-N]",
        /// A fixup of a PCI device begins. It is no init call.
        FixupStart = "DEVICE: calling FUNCTION @ PID",
        /// A fixup of a PCI device ends.
        FixupEnd = "DEVICE: FUNCTION took N usecs",
        /// A callback of suspend or resume begins; it names the parent.
        PmStart = "PM: calling FUNCTION @ PID, parent: DEVICE",
        /// A callback of suspend or resume ends.
        PmEnd = "PM: FUNCTION returned N after N usecs",
        /// A device is shut down.
        Shutdown = "DRIVER DEVICE: shutdown",
        /// The devices are down.
        ShutdownTail = "reboot: ACTION",
        /// The first line of a boot.
        Version = "Linux version VERSION",
        /// A new clock behind printed durations.
        ClockSource = "clocksource: Switched to clocksource NAME",
        /// Command line, machine, and the ends of the boot's phases.
        BootMark = "Kernel command line: WORDS, DMI: MACHINE, Run PROGRAM as init process",
    }
}

named! {
    /// The prefixes of messages.
    Prefix {
        /// The kernel's stamp.
        Printk = "[    1.234567]",
        /// The thread or CPU that logged (`CONFIG_PRINTK_CALLER`).
        CallerId = "[ T8227]",
        /// The level, as a number.
        Level = "<6>",
        /// The prefix of `dmesg -x`.
        Facility = "kern  :info  :",
        /// The stamp of `dmesg -T`, in whole seconds.
        DmesgCtime = "[Wed Mar  4 13:21:03 2026]",
        /// A difference of `dmesg --reltime` or `--show-delta`.
        DmesgDelta = "[  +0.000013]",
        /// The minute alone, at the first line of a minute of `dmesg -H`.
        DmesgMinute = "[Nov23 00:06]",
        /// The stamp of `dmesg --time-format iso` and `journalctl -o short-iso`.
        Iso = "2026-03-04T13:21:03,123456+00:00",
        /// An object of `dmesg --json`.
        DmesgJson = "{\"pri\": 6, \"time\": 1.234567, \"msg\": \"",
        /// The prefix of the device `/dev/kmsg`.
        Kmsg = "6,339,5140900,-;",
        /// The prefix of `journalctl` and of syslog's files, in whole seconds.
        Journal = "mar 06 13:18:23 host kernel:",
        /// The prefix of `journalctl -o short-monotonic`.
        JournalMonotonic = "[    5.140900] host kernel:",
        /// An object of `journalctl -o json`.
        JournalJson = "{\"MESSAGE\": \"",
        /// A field of `journalctl -o export` and `-o verbose`.
        JournalExport = "MESSAGE=",
        /// An object of JSON per line, with the console's line in one of its fields.
        JsonLine = "{\"log\": \"",
        /// The CPU and task that logs, on Android.
        AndroidTask = "(0)[1:swapper/0]",
        /// The prefix of `adb logcat -b kernel`.
        Logcat = "01-01 00:00:05.140 0 0 I :",
        /// The prefix of LAVA's logs.
        Lava = "- {\"lvl\": \"target\", \"msg\": \"",
        /// The time that a terminal program, or `ts`, puts before each line.
        Clock = "13:18:23.123",
        /// A stamp that lost its brackets.
        Bare = "172.609825",
        /// Any other prefix, known by the message behind it. Its times are not read.
        Carrier = "another prefix",
        /// A quotation mark of a mail.
        MailQuote = "> ",
        /// CR and LF behind the line, from a serial console.
        CrLf = "CR LF",
    }
}

/// The moment at which a line was logged, by the clock that its prefix shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Nanoseconds since that clock's zero.
    pub ns: u64,
    pub clock: Clock,
    /// True if only the second is known.
    pub coarse: bool,
    /// True for a stamp of the receiver's clock, such as a journal's: not before the kernel wrote
    /// the line, and perhaps long after.
    pub received: bool,
    /// Unit to which the stamp is truncated, in nanoseconds; the digits of its fraction tell.
    pub unit: u64,
}

/// Zero of a stamp.
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
    /// Creates a stamp at `ns` of a clock, with the precision of the kernel's own stamps.
    pub(crate) fn new(ns: u64, clock: Clock) -> Stamp {
        Stamp { ns, clock, coarse: false, received: false, unit: MICRO }
    }

    pub(crate) fn is_wall(&self) -> bool {
        self.clock == Clock::Wall
    }
}

/// Unit to which the kernel's own stamps are truncated.
pub(crate) const MICRO: u64 = 1000;

/// Returns the unit of a time with these digits behind its point.
pub(crate) fn unit(text: &str) -> u64 {
    let fraction = text.split_once(['.', ',']).map_or("", |(_, fraction)| fraction);
    let digits = fraction.bytes().take_while(u8::is_ascii_digit).count().min(9);
    10u64.pow(9 - digits as u32)
}

/// Returns the digits behind a decimal point of seconds as nanoseconds.
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
