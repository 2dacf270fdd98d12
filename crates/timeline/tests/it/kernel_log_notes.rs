//! What a log leaves open is told beside the numbers, and bounds them.

use crate::common::{read, us};

#[test]
fn one_of_something_is_told_in_the_singular() {
    let long = "x".repeat(17 << 10);
    let lines = [
        "[    1.000000] calling  a_init+0x0/0x10 @ 1",
        "[    1.000100] calling  b_init+0x0/0x10 @ 2",
        "[    1.200000] initcall b_init+0x0/0x10 returned 0 after 100 usecs",
        "[    1.200100] probe of early returned -19 after 5",
        " usecs",
        "[    1.300000] initcall a_init+0x0/0x10 returned -19 after 100 usecs",
        "[    1.300100] calling  open_init+0x0/0x10 @ 1",
        "[    1.400000] probe of dev returned -517 after 5 usecs",
        "probe of unstamped returned 0 after 7 usecs",
        "[    1.400100] platform foo: PM: calling platform_pm_resume @ 1, parent: platform",
        &format!("[    1.400200] {long}"),
        "Mar 04 10:00:01 host systemd[1]: hello",
        "[    2.000000] nvme 0000:01:00.0: shutdown",
        "[    1.900000] nvme 0000:02:00.0: shutdown",
        "nvme 0000:03:00.0: shutdown",
    ];
    let log = read(&lines.join("\n"));
    let told = [&log.notes[..], log.boot.notes(), log.shutdown.notes()].concat();
    let one = |text: &str, what: &str| {
        text.match_indices(what).any(|(at, _)| !text[..at].ends_with(|c: char| c.is_ascii_digit()))
    };
    for what in ["line", "message", "init call", "probe", "shutdown", "callback", "time"] {
        let many = format!("1 {what}s");
        assert!(!told.iter().any(|note| one(note, &many)), "{many}: {told:#?}");
        let single = told.iter().filter(|note| one(note, &format!("1 {what}"))).count();
        assert!(single > 0, "{what}: {told:#?}");
    }
}

#[test]
fn a_probe_that_one_of_several_calls_may_have_run_bounds_own_times_and_sums() {
    let log = read(
        "[    1.100000] calling  a_init+0x0/0x10 @ 1\n[    1.101000] calling  b_init+0x0/0x10 @ 2\n\
         [    1.150000] probe of dev returned 0 after 40000 usecs\n\
         [    1.160000] initcall b_init+0x0/0x10 returned 0 after 58999 usecs\n\
         [    1.200000] initcall a_init+0x0/0x10 returned 0 after 99999 usecs\n",
    );
    let probe = log.boot.span(log.boot.find("dev").unwrap());
    assert!(probe.may_be_nested && probe.nested_in.is_none());
    let own = log.boot.costs();
    let own = |name: &str| own.iter().find(|cost| cost.name == name).unwrap().own;
    for (name, inside, alone) in [("a_init", 59_999, 99_999), ("b_init", 18_999, 58_999)] {
        for time in [inside, alone] {
            assert!(own(name).allows(us(time)), "{name}: {:?}", own(name));
        }
    }
    assert_eq!(own("dev"), us(40_000));
    let sum = log.boot.serial_sum();
    assert!(sum.allows(us(158_998)) && sum.allows(us(198_998)), "{sum:?}");
    let again = corewise_timeline::json::read(&corewise_timeline::json::render(&log.boot)).unwrap();
    assert_eq!(again[0].serial_sum(), sum);
}

#[test]
fn a_clock_that_goes_back_in_a_boot_is_told() {
    let text = "[    1.200000] probe of a returned 0 after 100 usecs\n\
                [    0.700000] probe of b returned 0 after 100 usecs\n";
    let notes = read(text).boot.notes().to_vec();
    assert!(notes.iter().any(|n| n.starts_with("stamps go back 1 time: ")), "{notes:?}");
    // Two CPUs may print the wrong way round.
    let near = text.replace("0.700000", "1.199000");
    assert!(!read(&near).boot.notes().iter().any(|n| n.contains("go back")));
}
