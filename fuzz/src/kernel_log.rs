//! The target for kernel logs, and for the two other sources of a device graph.

use corewise_kernel_log::sysfs::Listing;
use corewise_kernel_log::{DeviceGraph, KernelLog, Reader};
use corewise_timeline::Timeline;

use crate::seeds::Seed;

/// Probes that print 0 in any case, and the lines within them that tell their outcome.
const OLDER: &str = "[    0.0] Linux version 4.19.0 (x)\n\
    [    1.1] probe of a returned 1 after 1000 usecs\n\
    [    1.2] probe of b returned 0 after 1000 usecs\n\
    [    1.3] foo: probe of c failed with error -5\n\
    [    1.4] probe of c returned 0 after 100100 usecs\n\
    [    1.5] foo: probe of d rejects match -19\n\
    [    1.6] probe of d returned 0 after 100100 usecs\n\
    [    1.7] platform e: Driver foo requests probe deferral\n\
    [    1.8] probe of e returned 0 after 100100 usecs\n\
    [    1.9] foo: probe of f failed with error -12\n\
    [    2.0] foo: probe of f failed with error -9223372036854775808\n";

/// Reads these bytes as a kernel log, whole and in pieces. Also reads them as a dependency file and
/// as a listing of a sysfs tree, and applies both to the log.
///
/// # Panics
/// If a timeline contradicts itself, the pieces give another log, or a line's number is none of the
/// log's.
pub fn kernel_log(data: &[u8]) {
    let whole = read(data, data.len().max(1)).finish_all();
    let pieces = read(data, 1 + usize::from(data.first().copied().unwrap_or(0)) % 13).finish_all();
    assert_eq!(whole, pieces, "another log in pieces");
    // The decoded text has lines of its own.
    let decoded = |note: &String| note.contains("UTF-16") || note.contains("gzip");
    let lines = match whole.iter().flat_map(|log| &log.notes).any(decoded) {
        true => u64::MAX,
        false => data.split(|b| *b == b'\n').count() as u64,
    };
    let last = read(data, 4096).finish();
    assert!(last.boots.is_empty() || last.boots.len() == whole.len(), "boots that are no logs");
    for (boot, log) in last.boots.iter().zip(&whole) {
        let found = (boot.lines, boot.kernel.as_ref());
        assert_eq!(found, (log.lines, log.kernel.as_ref()));
    }
    for log in whole {
        agrees(log, data, lines);
    }
}

fn read(data: &[u8], piece: usize) -> Reader {
    let mut reader = Reader::every_boot();
    for piece in data.chunks(piece) {
        reader.feed(piece);
    }
    reader
}

fn agrees(mut log: KernelLog, data: &[u8], lines: u64) {
    assert!(log.lines <= lines, "{} lines of {lines}", log.lines);
    assert!(log.suspicious.iter().all(|s| (1..=lines).contains(&s.line)));
    assert!(log.suspicious.len() as u64 <= log.suspicious_total);
    assert!(log.suspicious.is_sorted_by_key(|s| s.line));
    let attempts: usize = log.deferrals.iter().map(|d| d.attempts).sum();
    assert_eq!(attempts, log.boot.summary().deferred);
    timeline(&log.boot);
    timeline(&log.shutdown);
    if let Some(split) = &log.deferred_probe {
        assert!(split.rest.least() <= split.total.most().expect("it has a place in time"));
        assert_eq!(log.boot.span(split.span).took(), split.total);
    }

    let text = String::from_utf8_lossy(data);
    let mut listing = Listing::new();
    for line in text.lines() {
        listing.line(line);
    }
    let mut graphs = vec![listing.graph()];
    match DeviceGraph::from_text(&text) {
        Ok(graph) => graphs.push(graph),
        Err(error) => assert!((1..=text.lines().count()).contains(&error.line), "{error}"),
    }
    for graph in graphs {
        log.apply(&graph);
        let (boot, shutdown) = (log.boot.clone(), log.shutdown.clone());
        log.apply(&graph);
        assert!(log.boot == boot && log.shutdown == shutdown, "the graph was applied twice");
    }
    timeline(&log.boot);
    timeline(&log.shutdown);
}

/// Checks that times increase, that no span is inside itself, and that the numbers bound each
/// other.
fn timeline(t: &Timeline) {
    for (id, span) in t.iter() {
        assert!(span.queued <= span.start && span.start <= span.end, "{span:?}");
        let outer = std::iter::successors(span.nested_in, |id| t.span(*id).nested_in);
        assert!(outer.take(t.spans().len() + 1).all(|outer| outer != id), "{span:?} is in itself");
    }
    assert!(t.edges().iter().all(|e| e.before != e.after));
    let path = t.critical_path();
    let all = t.finish().saturating_sub(t.origin());
    assert!(path.length.least() <= all && t.makespan().least() <= all.max(longest(t)));
    assert!(!t.unplaced().is_empty() || t.makespan().allows(all), "{:?} and {all:?}", t.makespan());
    let slack = t.slack();
    assert!(path.spans.iter().all(|id| slack[id.index()].least().is_zero()));
    assert!(t.summary().max_parallelism <= t.spans().len());
}

/// Returns the least time of the longest entry that has no place in time.
fn longest(t: &Timeline) -> std::time::Duration {
    t.unplaced().iter().map(|u| u.took.least()).max().unwrap_or_default()
}

const BOOT: &str = "\
[    0.000000] Linux version 6.12.0 (a@b)\r
[    0.000000] Command line: console=ttyS0 initcall_debug\r
[    0.100000] pci 0000:00:06.0: PCI bridge to [bus 01-0f]\r
[    1.000000] calling  regulator_init+0x0/0x10 @ 1\r
[    1.004000] probe of reg-dummy returned 0 after 4000 usecs\r
[    1.004100] initcall regulator_init+0x0/0x10 returned 0 after 4000 usecs\r
[    1.100000] pci 0000:00:03.0: calling  quirk_usb_early_handoff+0x0/0x7e0 @ 1\r
[    1.120110] pci 0000:00:03.0: quirk_usb_early_handoff+0x0/0x7e0 took 20110 usecs\r
[    2.000000] calling  nvme_init+0x0/0xff0 [nvme] @ 207\r
[    2.000010] calling  init_module+0x0/0xff0 [ahci] @ 208\r
[    2.000100] nvme 0000:01:00.0: enabling device (0000 -> 0002)\r
[    2.000200] initcall nvme_init+0x0/0xff0 [nvme] returned 0 after 150 usecs\r
[    2.050000] probe of 0000:02:00.0 returned 0 after 49700 usecs\r
[    2.090000] probe of 0000:01:00.0 returned 0 after 89900 usecs\r
[    2.095000] probe of 0000:00:06.0:pcie001 returned 0 after 10 usecs\r
[    2.096000] probe of 0000:00:06.0 returned 0 after 4000 usecs\r
[    2.100000] platform leds: error -EPROBE_DEFER: supplier gpio not ready\r
[    2.100010] probe of leds returned -517 after 9 usecs\r
[    3.000000] calling  deferred_probe_initcall+0x0/0xc8 @ 1\r
[    3.100000] probe of leds returned 517 after 50000 usecs\r
[    3.200000] probe of leds returned 0 after 50000 usecs\r
[    3.300000] initcall deferred_probe_initcall+0x0/0xc8 returned 0 after 299990 usecs\r
";

const SHUTDOWN: &str = "\
[root@localhost ~]# [   41.490716][ T8227] platform
regulatory.0: shutdown [   41.491726][ T8227] sd 0:0:0:0: shutdown
[   41.492471][ T8227] sd 0:0:0:0: [sda] Synchronizing SCSI cache
[   41.496945][ T8227] platform Fixed MDIO bus.0: shutdown
[   41.500000][    C3] tpm tpm0: shutdown_pre
[   41.510000][ T8227] tpm tpm0: shutdown
[   41.520000][ T8227] nvme 0000:01:00.0: async_shutdown_start
[   41.590000][ T8227] nvme 0000:01:00.0: async_shutdown_end
[   42.012042][ T8227] kexec_core: Starting new kernel
[    0.000000] Linux version 6.12.0 (a@b)
[    0.100000] calling  a+0x0/0x10 @ 1
";

fn gzip(text: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut pack = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    // Writing into memory can't fail.
    let _ = pack.write_all(text);
    pack.finish().unwrap_or_default()
}

/// Prefixes of networks, vendors, containers and journals, some of them unknown.
const WRAPPERS: &str = "\
6.12.3,7,402,9000000,-,caller=T8;nvme a: shutdown
6.12.3,7,401,8000000,-,ncfrag=0/33;probe of a returned 0 after 5 usecs
6.12.3,7,403,9100000,-;nvme b: shutdown
 SUBSYSTEM=pci
[    0.000000] <7>[    1.000000@1] probe of c returned 0 after 5 usecs
<7>[    1.100000s][pid:1,cpu1,swapper/0]probe of d returned 0 after 5 usecs
{\"log\": \"[    1.2] probe of e returned 0 after 5 usecs\\r\\n\", \"time\": \"x\"}
{\"a\": {\"message\": \"[    1.3] probe of f returned 0 after 5 usecs\"}},
2026-03-04T13:21:00.0Z stdout F [    1.400000] probe of g returned 0 after 5 usecs
<6>1 2026-03-04T13:21:00.003Z host kernel - - [x y=\"z\"] probe of h returned 0 after 5 usecs
1772630460.001001 host kernel: probe of i returned 0 after 40000 usecs
{k} |7| calling  j_init+0x0/0x10 @ 1
{k} |9| i8042 aux 00:01: shutdown
6.1;x=y nvme k: shutdown
[  -0.000001] probe of l returned 0 after 5 usecs
^[[32m[    1.5] ^[[0mprobe of m returned 0 after 5 usecs^M$
[    1.6] probe of n returned 0 after 5 usecs#015
<span>[&nbsp;1.7]&nbsp;probe of o returned 0 after 5 usecs</span><br>[ 1.8] nvme p: shutdown<br/>
Mar 04 13:21:00 host kernel: [41B blob data]
";

const VERBOSE: &str = "\
Wed 2026-03-04 13:21:00.000000 UTC [s=ab12;i=1;b=cd34;m=0;t=6;x=7]
    _TRANSPORT=kernel
    MESSAGE=probe of a returned 0 after 5 usecs
            and more
    _SOURCE_MONOTONIC_TIMESTAMP=5140900
-- Boot 7 --
Wed 2026-03-04 13:21:01.000000 UTC [s=ab12;i=2;b=cd35;m=0;t=6;x=7]
    _BOOT_ID=cd35
    MESSAGE=nvme a: shutdown
";

/// A boot that is repeated in part, and another one.
const TWICE: &str = "\
[    0.000000] Linux version 6.9.0 (a@b)
[    0.000000] Linux version 6.9.0 (a@b)
[    0.100000] calling  a_init+0x0/0x40 @ 1
[    0.103017] initcall a_init+0x0/0x40 returned 0 after 3011 usecs
[    9.000000] beta 0000:00:05.0: shutdown
[    9.005000] reboot: Restarting system
[    0.000000] Linux version 6.9.0 (a@b)
[    0.000000] Command line: x
[    0.103017] initcall a_init+0x0/0x40 returned 0 after 3011 usecs
[    0.200000] probe of c returned 0 after 5 usecs
[    0.000000] Linux version 6.9.0 (a@b)
[    0.100003] calling  a_init+0x0/0x40 @ 1
[    0.103020] initcall a_init+0x0/0x40 returned 0 after 3011 usecs
[    0.000000] Linux version 6.9.1 (a@b)
";

const PSTORE: &str = "\
Panic#2 Part1
<7>[    3.010000] initcall c_init+0x0/0x8 returned 0 after 700000 usecs
Panic#2 Part3
<7>[    2.000000] calling  b_init+0x0/0x8 @ 1
Panic#2 Part2
<7>[    2.310000] calling  c_init+0x0/0x8 @ 1
Oops#1 Part1
<7>[    4.000000] nvme a: shutdown
";

const MAIL: &str = "\
Content-Type: multipart/mixed; boundary=\"b1\"

--b1
Content-Transfer-Encoding: quoted-printable

[   12.345678] calling  a_init+0x0/0x1000 [core_with_a_long_name]=
 @ 627
[   12.352001] probe of 3-0010 returned=200 after 4400 usecs=
--b1
[   12.40] probe of x returned 0 after 24 =
usecs
Content-Transfer-Encoding: base64
";

const WRAPPED: &str = "\
[    0.000000] Linux version 6.13.1
[    0.049931] platform a-device-with-a-very-long-name: Linked as a consumer to a-suppli
er-whose-name-is-so-long-that-it-takes-a-whole-line-of-the-terminal-and-then-som
e.0
[    0.050000] probe of a-device-with-a-very-long-name-xxxxxxxxxxxxx returned 0 after 12
34 usecs
[    0.060000] short
";

/// Returns the seeds of this target.
pub(crate) fn seeds() -> Vec<Seed> {
    let json = "{\"_TRANSPORT\":\"kernel\",\"_SOURCE_MONOTONIC_TIMESTAMP\":\"5140900\",\
                \"MESSAGE\":\"probe of a returned 0 after 5 usecs\"}\n\
                {\"MESSAGE\":[110,118,109,101],\"_TRANSPORT\":\"stdout\"}\n{\n\
                \t\"MESSAGE\" : \"nvme a: shutdown\",\n\
                \t\"_SOURCE_MONOTONIC_TIMESTAMP\" : \"6\"\n}\n";
    let dmesg = "{\n   \"dmesg\": [\n      {\n\"pri\": 6,\n\"time\":    5.140900,\n\
                 \"caller\": \"T17\",\n\"msg\": \"probe of a returned 0 after 5 usecs\"\n},{\n\
                 \"time\": 6.0,\n\"msg\": \"x\"\n}\n]\n}\n";
    let prefixes = "<6>[    1.000000] probe of a returned 0 after 5 usecs\n\
                    6,339,5140900,-,caller=T17;probe of b returned 0 after 5 usecs\n SUBSYSTEM=pci\n\
                    kern  :info  : [    5.2] probe of c returned 0 after 5 usecs\n\
                    [Wed Mar  4 13:21:03 2026] probe of d returned 0 after 5 usecs\n\
                    2026-03-04T13:21:03,123456+00:00 probe of e returned 0 after 5 usecs\n\
                    mar 06 13:18:23 kepler kernel: probe of f returned 0 after 5 usecs\n\
                    mar 06 13:18:24 kepler systemd[1]: x\n-- Boot 12 --\n\
                    [    5.140900] kepler kernel: probe of g returned 0 after 5 usecs\n\
                    > > 172.609825\tnvme h: shutdown\n[1125.***] nvme i: shutdown\n\
                    [  +0.000013] nvme j: shutdown\n\x1b[32m[    7.0] \x1b[0mnvme k: shutdown\n";
    let debug = "[    1.0] pci a: probing driver nvme asynchronously\n\
                 [    1.1] bus: 'pci': really_probe: probing driver nvme with device a\n\
                 [    1.2] nvme a: CPU: 5, COMM: kworker/u1025:5, probe cost: 34765890 ns\n\
                 [    1.2] probe platform_probe in driver nvme for device a returned 0 after 9 usecs\n\
                 [    1.3] driver: 'nvme': driver_bound: bound to device 'a'\n\
                 [    1.4] platform a: Linked as a consumer to b\n\
                 [    1.5] at24 1-0050: PM: calling f+0x0/0x30 [at24] @ 92, parent: i2c-1\n\
                 [    1.6] probe of 1-0050 returned 1 after 18446744073709551 usecs\n\
                 [    1.7] initcall b+0x0/0x1 returned -22 after 3 msecs\n";
    let today = "[    0.9] nvme 0000:01:00.0: scheduling asynchronous probe\n\
                 [    1.0] calling  i8042_init+0x0/0x20 @ 1\n\
                 [    1.1] probe of 00:01 with driver i8042 aux returned 0 after 131 usecs\n\
                 [    1.2] initcall i8042_init+0x0/0x20 returned 0 after 199990 usecs\n\
                 [    1.3] probe of 0000:01:00.0 with driver nvme returned 0 after 756405 usecs\n\
                 [    1.4] probe of leds with driver leds-gpio returned -517 after 6 usecs\n\
                 [    1.5] platform leds: Driver leds-gpio force probe deferral\n\
                 [    6.1] i8042 aux 00:01: shutdown\n[    6.2] nvme 0000:01:00.0: shutdown\n\
                 [    6.4] reboot: Power down\n";
    let ticks = "[    0.0] Linux version 5.2.0 (x)\n\
                 [    1.000000] calling  a_init+0x0/0x1 @ 1\n\
                 [    1.000500] initcall a_init+0x0/0x1 returned 0 after 3255 usecs\n\
                 [    1.000600] calling  b_init+0x0/0x1 @ 1\n\
                 [    1.000600] initcall b_init+0x0/0x1 returned 0 after 0 usecs\n\
                 [    1.000600] probe of c returned 0 after 6666 usecs\n\
                 [    1.008000] initcall cut_init+0x0/0x1 returned 0 after 6510 usecs\n\
                 [    1.009000] clocksource: Switched to clocksource tsc-early\n\
                 [    1.010000] initcall d_init+0x0/0x1 returned 0 after 99999999 usecs\n\
                 [    1.020000] initcall e_init blacklisted\n\
                 [    1.030000] calling  0xc0123456\n\
                 [    1.040000] initcall 0xc0123456 returned 0 after 7 msecs\n";
    let callers = "[  100.000000][ T100] nvme a: shutdown\n[  100.000010][ T101] nvme b: shutdown\n\
                   [  100.000020][ T102] tpm c: shutdown_pre\n[  101.000000][ T100] x d: shutdown\n\
                   [  101.500000][ T102] tpm c: shutdown\n[  103.500000][   T1] reboot: Power down\n";
    let sysfs = "/sys/devices/a/b/driver -> ../../bus/pci/drivers/nvme\n\
                 /sys/devices/a/subsystem -> ../bus/pci\n\
                 /sys/devices/a/b/supplier:platform:c -> ../x/platform:c--pci:b\n\
                 /sys/devices/virtual/devlink/platform:c--pci:b/sync_state_only:1\n";
    let export = "__CURSOR=s=1;i=2\n__MONOTONIC_TIMESTAMP=9\n_BOOT_ID=ab\n_TRANSPORT=kernel\n\
                  _SOURCE_MONOTONIC_TIMESTAMP=5140900\nMESSAGE=probe of a returned 0 after 5 usecs\n\n\
                  __CURSOR=s=1;i=3\n_BOOT_ID=cd\nMESSAGE\n\x0c\0\0\0\0\0\0\0probe of a\nx\n\
                  SYSLOG_PID=1\nMESSAGE=nvme b: shutdown\n";
    let carriers = "[    5.0] (0)[1:swapper/0]probe of a returned 0 after 5 usecs\n\
                    [    5.1] [3: swapper/0: 1] probe of b returned 0 after 5 usecs\n\
                    [    5.2][pid:1,cpu3,swapper/0]probe of c returned 0 after 5 usecs\n\
                    01-01 00:00:05.140  0  0 I   : probe of d returned 0 after 5 usecs\n\
                    - {\"lvl\": \"target\", \"msg\": \"\\e[0m[ 5.3] \\xe9 nvme e: shutdown\"}\n\
                    [Nov23 00:06] nvme f: shutdown\n[13:21:03.123] nvme g: shutdown\n\
                    &gt;\u{a0}[\u{a0}\u{a0}5.4]\tnvme\u{a0}h: shutdown\n[    5.5]\n\
                    nvme i: shutdown\nContent-Transfer-Encoding: base64\n";
    let shutdowns = "[  172.000000] nvme a: shutdown\n[  172.001000] reboot: Restarting system\n\
                     [  745.000000] nvme a: shutdown\n[  745.001000] nvme b: shutdown\n\
                     [  745.002000] nvme a: shutdown\n[  700.000000] nvme c: shutdown\n";
    vec![
        ("journal-export", export.into()),
        ("carriers", carriers.into()),
        ("two-shutdowns", shutdowns.into()),
        (
            "utf-16",
            "\u{feff}[ 5.0] nvme 𝄞: shutdown\r\n"
                .encode_utf16()
                .flat_map(u16::to_le_bytes)
                .collect(),
        ),
        ("gzip", gzip(SHUTDOWN.as_bytes())),
        ("gzip-twice", gzip(&gzip(SHUTDOWN.as_bytes()))),
        ("gzip-damaged", {
            let mut packed = gzip(BOOT.as_bytes());
            let middle = packed.len() / 2;
            packed[middle] ^= 0x10;
            packed
        }),
        ("zstd", b"\x28\xb5\x2f\xfd\x04\x00abcdefgh".to_vec()),
        ("boot", BOOT.into()),
        ("shutdown", SHUTDOWN.into()),
        ("json", json.into()),
        ("dmesg-json", dmesg.into()),
        ("prefixes", prefixes.into()),
        ("dynamic-debugging", debug.into()),
        ("probes-of-7.3", today.into()),
        ("probes-of-4.19", OLDER.into()),
        ("wrappers", WRAPPERS.into()),
        ("journal-verbose", VERBOSE.into()),
        ("twice", TWICE.into()),
        ("pstore", PSTORE.into()),
        ("mail", MAIL.into()),
        ("wrapped", WRAPPED.into()),
        ("ticks", ticks.into()),
        ("shutdown-callers", callers.into()),
        ("sysfs", sysfs.into()),
        ("dependencies", "a: b c # x\nb ^ c\n\"d e\" = f\nc: a\n".into()),
        (
            "stamps-that-overflow",
            "[99999999999999999999.000000] probe of a returned 0 after 1 usecs\n\
          [18446744073.709551] probe of a returned 0 after 9 usecs\n"
                .into(),
        ),
    ]
}
