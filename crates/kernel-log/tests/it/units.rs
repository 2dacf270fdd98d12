//! The units in which kernels print durations: ticks, and microseconds that are 1024 ns long.

use corewise_kernel_log::KernelLog;
use corewise_timeline::Length;

use crate::common::{plain, read, shifted_log, us};

fn shifted(log: &KernelLog) -> bool {
    log.boot.notes().iter().any(|n| n.contains("1.024 µs: they were corrected"))
}

#[test]
fn durations_of_init_calls_in_units_of_1024_nanoseconds_are_corrected() {
    let took = [102_777, 103_801, 204_825, 305_849];
    let calls: Vec<_> = took
        .into_iter()
        .zip(1..)
        .map(|(took, n)| (n * 1_000_000, n * 1_000_000 + took + 3, (took * 1000) >> 10))
        .collect();
    let log = shifted_log(&calls, "");
    for (span, took) in log.boot.spans().iter().zip(took) {
        // A part below the unit was truncated.
        let told = span.took().known();
        assert!(Some(us(took - 2)) < told && told <= Some(us(took)), "{told:?}");
    }
    assert!(shifted(&log), "{:?}", log.boot.notes());
    assert!(!shifted(&read(&plain())));
}

#[test]
fn a_round_number_is_no_tick() {
    let printed =
        [2481, 2000, 2490, 2491].into_iter().zip([1_010_000, 1_020_000, 1_030_000, 1_040_000]);
    let calls: Vec<_> = printed.map(|(printed, at)| (at, at + 2500, printed)).collect();
    let log = shifted_log(&calls, "");
    assert_eq!(log.boot.spans()[1].took(), us(2000));
    assert!(!log.boot.notes().iter().any(|n| n.contains("whole ticks")), "{:?}", log.boot.notes());
}

#[test]
fn one_pair_of_lines_shows_the_unit_of_durations_of_an_old_kernel() {
    let old = "Linux version 5.10.0 (x)\n";
    // 102 777 µs, shifted: 100 368.
    let log = shifted_log(&[(1_000_000, 1_102_780, 100_368)], old);
    assert!(shifted(&log), "{:?}", log.boot.notes());
    let took = log.boot.spans()[0].took().known();
    assert!(Some(us(102_770)) < took && took <= Some(us(102_780)), "{took:?}");
    // The duration is the printed one.
    let log = shifted_log(&[(1_000_000, 1_100_400, 100_368)], old);
    assert!(!shifted(&log) && log.boot.spans()[0].took() == us(100_368));
    assert!(log.boot.notes().is_empty(), "{:?}", log.boot.notes());
    // A slow console shows nothing, and neither does a short call.
    for (to, printed) in [(1_120_000, 100_368), (1_000_412, 400)] {
        let log = shifted_log(&[(1_000_000, to, printed)], old);
        let took = log.boot.spans()[0].took();
        assert!(took.allows(us(printed)) && took.allows(us(printed * 128 / 125)), "{took:?}");
        let notes = log.boot.notes();
        assert!(notes.iter().any(|n| n.contains("2.4 % longer")), "{notes:?}");
    }
    // One that fits among many that don't is chance.
    let many: Vec<_> = (1..5).map(|i| (i * 1_000_000, i * 1_000_000 + 50_131, 50_111)).collect();
    let log = shifted_log(&[&many[..], &[(9_000_000, 9_102_780, 100_368)]].concat(), old);
    assert!(!shifted(&log));
}

#[test]
fn a_gap_that_fits_by_chance_corrects_nothing() {
    // The console took 200 µs for each line: 2.41 % of the first call.
    let calls = [(500_000, 508_500, 8300), (510_000, 511_400, 1200)];
    let log = shifted_log(&calls, "Linux version 6.12.0 (x)\n");
    let took = |log: &KernelLog| [0, 1].map(|i| log.boot.spans()[i].took());
    assert_eq!(took(&log), [8300, 1200].map(|n| Length::exact(us(n))));
    assert!(log.boot.notes().is_empty(), "{:?}", log.boot.notes());
    // Without a version, the unit stays unknown.
    for version in ["", "Linux version unknown (x)\n"] {
        let log = shifted_log(&calls, version);
        for (took, printed) in took(&log).into_iter().zip([8300, 1200]) {
            assert!(!took.is_exact() && took.allows(us(printed)), "{took:?}");
            assert!(took.allows(us(printed * 128 / 125)), "{took:?}");
        }
        assert!(!shifted(&log));
    }
    for (version, is) in [("5.17.15-x", true), ("5.18.0", false), ("5.18-rc1", false)] {
        assert_eq!(shifted(&shifted_log(&calls, &format!("Linux version {version} (x)\n"))), is);
    }
    // One delay is no share of two calls, of which one takes thrice as long.
    let one = (1_000_000, 1_102_780, 100_368);
    assert!(!shifted(&shifted_log(&[one, (2_000_000, 2_102_780, 100_368)], "")));
    assert!(shifted(&shifted_log(&[one, (2_000_000, 2_307_202, 300_000)], "")));
}

#[test]
fn a_probe_that_was_longer_than_its_init_call_shows_the_unit_of_durations() {
    let lines = "calling  nvme_init+0x0/0xff0 [nvme] @ 207\n\
                 probe of 0000:01:00.0 returned 0 after 102000 usecs\n\
                 initcall nvme_init+0x0/0xff0 [nvme] returned 0 after 100368 usecs\n";
    let old = "Linux version 5.10.0 (x)\n";
    let log = read(&format!("{old}{lines}"));
    assert!(shifted(&log), "{:?}", log.boot.notes());
    let call = &log.boot.unplaced()[0];
    assert!(call.took.known() > Some(us(102_770)), "{:?}", call.took);
    // Without the first line too: an excerpt may begin anywhere.
    let (_, rest) = lines.split_once('\n').unwrap();
    assert!(shifted(&read(&format!("{old}{rest}"))));
    // One such probe may have run beside the call by chance; two are no chance.
    assert!(!shifted(&read(lines)) && shifted(&read(&lines.replace("nvme", "a").repeat(2))));
    // A newer kernel has no such unit, and a probe that was longer by more ran beside the call.
    assert!(!shifted(&read(&format!("Linux version 6.12.0 (x)\n{lines}"))));
    assert!(!shifted(&read(&format!("{old}{}", lines.replace("102000", "182000")))));
}

#[test]
fn an_init_call_during_which_another_began_took_longer_than_it_says() {
    // All threads' init calls share one clock in the kernel, and the second call has set it.
    let text = "[    8.082267] calling  ath11k_pci_init+0x0/0x68 [ath11k_pci] @ 2933\n\
                [    9.094780] calling  ip_set_init+0x0/0xff8 [ip_set] @ 4821\n\
                [    9.094800] initcall ip_set_init+0x0/0xff8 [ip_set] returned 0 after 15 usecs\n\
                [    9.104746] initcall ath11k_pci_init+0x0/0x68 [ath11k_pci] returned 0 after 9949 usecs\n";
    let log = read(text);
    let call = log.boot.span(log.boot.find("ath11k_pci_init [ath11k_pci]").unwrap());
    assert_eq!((call.start, call.end), (us(8_082_267), us(9_104_746)));
    assert_eq!(call.took(), Length::between(us(9949), us(1_022_479)));
    let other = log.boot.span(log.boot.find("ip_set_init [ip_set]").unwrap());
    assert_eq!(other.took().least(), us(15));
    let notes = log.boot.notes();
    assert!(
        notes.iter().any(|n| n.starts_with("1 init call took longer than it says")),
        "{notes:?}"
    );
    // Without stamps there is no upper bound.
    let bare: String = text.lines().map(|line| format!("{}\n", &line[15..])).collect();
    let log = read(&bare);
    let took =
        |name: &str| log.boot.unplaced().iter().find(|u| u.name.starts_with(name)).unwrap().took;
    assert_eq!(took("ath11k_pci_init"), Length::at_least(us(9949)));
    assert_eq!(took("ip_set_init").least(), us(15));
    assert!(took("ip_set_init").most().is_some());
}
