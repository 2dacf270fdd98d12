//! Tests of the health derived from given facts.

use super::*;
use crate::control::disks::{OpCounts, Ops};
use crate::control::mirrors::{Check, CheckResult, Leg, LegStatus, MirrorReport, Schedule};
use crate::control::recent::LastMinute;
use crate::control::stores::RemoteReport;
use crate::control::stores::StoreReport;

fn disk(name: &str, over: &[&str]) -> Disk {
    let over = over.iter().map(ToString::to_string).collect();
    Disk { name: name.to_string(), over, ..Disk::default() }
}

fn mirror(name: &str, legs: &[(&str, LegStatus)]) -> Disk {
    let over: Vec<&str> = legs.iter().map(|(name, _)| *name).collect();
    let leg = |(name, state): &(&str, LegStatus)| Leg {
        name: name.to_string(),
        state: *state,
        why: (*state == LegStatus::Out).then(|| "I/O error".to_string()),
    };
    let legs = legs.iter().map(leg).collect();
    Disk { mirror: Some(MirrorReport { legs, ..MirrorReport::default() }), ..disk(name, &over) }
}

fn export(device: &str) -> Export {
    Export { name: device.to_string(), device: Some(device.to_string()), ..Export::default() }
}

fn device(name: &str, state: &str) -> Device {
    Device { name: name.to_string(), state: state.to_string(), ..Device::default() }
}

fn health(devices: &[Device], disks: &[Disk], exports: &[Export], server: &ServerFacts) -> Health {
    Health::of(&Facts { devices, disks, exports, server })
}

/// Returns the health of a server with these volumes, of which those named in `shown` are exported.
fn of(disks: &[Disk], shown: &[&str]) -> Health {
    let exports: Vec<Export> = shown.iter().map(|name| export(name)).collect();
    health(&[], disks, &exports, &ServerFacts::default())
}

#[track_caller]
fn faults(health: &Health) -> Vec<(Fault, &str)> {
    health.reasons.iter().map(|reason| (reason.fault, reason.subject.as_str())).collect()
}

#[test]
fn without_a_fault_a_server_is_ok_and_says_no_more() {
    let legs = [("a", LegStatus::InSync), ("b", LegStatus::InSync)];
    let all = [disk("a", &[]), disk("b", &[]), mirror("m", &legs)];
    let ok = of(&all, &["m"]);
    assert_eq!((ok.state, ok.text().as_str(), ok.summary()), (HealthState::Ok, "ok\n", None));
}

#[test]
fn a_leg_that_is_out_degrades_and_the_line_has_the_command_that_takes_it_back() {
    let legs = [("a", LegStatus::InSync), ("b", LegStatus::Out), ("c", LegStatus::Resyncing)];
    let all = [disk("a", &[]), disk("b", &[]), disk("c", &[]), mirror("m", &legs)];
    let health = of(&all, &["m"]);
    assert_eq!(health.state, HealthState::Degraded);
    assert_eq!(
        health.text(),
        "degraded\n  \
         m: leg 'b' is out: I/O error. Once the leg's disk works: corewise mirror m --take-back=b\n  \
         m: leg 'c' is being resynced. Wait for the resync: corewise mirror m --wait\n"
    );
    assert_eq!(health.summary().unwrap(), "degraded: m");
    let two = [("a", LegStatus::InSync), ("b", LegStatus::Out), ("c", LegStatus::Out)];
    let two = of(&[mirror("m", &two)], &["m"]);
    assert_eq!(faults(&two), [(Fault::LegOut, "m"); 2], "each leg is a reason of its own");
}

#[test]
fn what_a_volume_lost_is_lost_unless_each_way_to_clients_leads_through_a_mirror_that_has_it() {
    let lost = |name: &str| Disk { lost: true, ..disk(name, &[]) };
    let legs = |a: &str, b| mirror("m", &[(a, LegStatus::InSync), ("b", b)]);
    let (m, b) = (legs("a", LegStatus::InSync), disk("b", &[]));
    let (out, deep) = (legs("a", LegStatus::Out), legs("slow", LegStatus::InSync));
    let cycle = Disk { lost: true, ..disk("x", &["x"]) };
    for (disks, shown, is, case) in [
        (vec![lost("a")], &["a"][..], HealthState::Lost, "a client reads it"),
        (vec![lost("a")], &[], HealthState::Lost, "nothing stands on it"),
        (vec![lost("a"), b.clone(), m.clone()], &["m"], HealthState::Degraded, "b has it"),
        (vec![lost("a"), lost("b"), m.clone()], &["m"], HealthState::Lost, "no leg has it"),
        (vec![lost("a"), b.clone(), m.clone()], &["m", "a"], HealthState::Lost, "a leg is shown"),
        (
            vec![lost("a"), b.clone(), m, disk("part", &["a"])],
            &["m"],
            HealthState::Lost,
            "another volume is above the leg",
        ),
        (vec![lost("a"), b.clone(), out], &["m"], HealthState::Lost, "the other leg is out"),
        (
            vec![lost("a"), disk("slow", &["a"]), b, deep],
            &["m"],
            HealthState::Degraded,
            "a volume is between the leg and the mirror",
        ),
        (vec![cycle], &[], HealthState::Lost, "a cycle, which no server has, ends the walk"),
    ] {
        assert_eq!(of(&disks, shown).state, is, "{case}");
    }
}

#[test]
fn a_volume_whose_file_is_not_in_its_place_is_degraded_unless_it_has_lost_data() {
    let moved = Disk {
        displaced: true,
        displaced_todo: Some("Put it back".to_string()),
        condition: Some("moved: the path leads to no file".to_string()),
        ..disk("a", &[])
    };
    let health = of(std::slice::from_ref(&moved), &["a"]);
    assert_eq!(
        (health.state, faults(&health)),
        (HealthState::Degraded, vec![(Fault::Displaced, "a")])
    );
    let line = health.reasons[0].line();
    assert!(line.starts_with("a: moved: the path leads to no file. Put it back"), "{line}");
    let stuck = Disk { blocks_changes: true, ..moved.clone() };
    let health = of(std::slice::from_ref(&stuck), &["a"]);
    assert_eq!((health.state, faults(&health)), (HealthState::Lost, vec![(Fault::Displaced, "a")]));
    let legs = [("a", LegStatus::InSync), ("b", LegStatus::InSync)];
    let beside = of(&[stuck, disk("b", &[]), mirror("m", &legs)], &["m"]);
    assert_eq!(beside.state, HealthState::Degraded);
    let lost = of(&[Disk { lost: true, ..moved }], &["a"]);
    assert_eq!(faults(&lost), [(Fault::FileLost, "a")]);
}

#[test]
fn an_encrypted_volume_with_a_damaged_copy_of_its_header_is_degraded() {
    let crypt = |condition: Option<&str>| Disk {
        driver: "crypt".to_string(),
        condition: condition.map(str::to_string),
        ..disk("c", &[])
    };
    assert_eq!(of(&[crypt(None)], &["c"]).state, HealthState::Ok);
    let health = of(&[crypt(Some("a copy is damaged"))], &["c"]);
    assert_eq!(
        (health.state, faults(&health)),
        (HealthState::Degraded, vec![(Fault::HeaderDamaged, "c")])
    );
    assert!(health.reasons[0].line().contains("cryptsetup repair"), "{:?}", health.reasons[0]);
}

#[test]
fn volumes_of_stores_and_of_other_servers_are_lost_while_nobody_can_reach_them() {
    let store = |served, fenced, damaged| Disk {
        store: Some(StoreReport { served, fenced, damaged, ..StoreReport::default() }),
        condition: Some("why".to_string()),
        ..disk("s", &[])
    };
    assert_eq!(of(&[store(true, false, false)], &["s"]).state, HealthState::Ok);
    for (disk, fault, todo) in [
        (store(false, true, false), Fault::NotServed, "the restart fences the other one"),
        (store(false, false, true), Fault::NotServed, "Only then start the server, without 'size'"),
        (store(true, false, true), Fault::StoreDamaged, "Restore the object"),
    ] {
        let health = of(&[disk], &["s"]);
        assert_eq!((health.state, faults(&health)), (HealthState::Lost, vec![(fault, "s")]));
        assert!(health.reasons[0].line().contains(todo), "{:?}", health.reasons[0]);
    }
    let remote = |connections, down| Disk {
        remote: Some(RemoteReport {
            connections,
            down,
            why: "Connection refused".to_string(),
            ..RemoteReport::default()
        }),
        ..disk("far", &[])
    };
    assert_eq!(of(&[remote(1, false)], &["far"]).state, HealthState::Ok);
    let waits = of(&[remote(0, false)], &["far"]);
    assert_eq!(waits.state, HealthState::Lost);
    let line = waits.reasons[0].line();
    assert!(
        line.starts_with("far: no connection to the remote server, and requests wait: Conn"),
        "{line}"
    );
    assert!(of(&[remote(0, true)], &["far"]).reasons[0].what.contains("requests fail"));
    let legs = [("far", LegStatus::InSync), ("near", LegStatus::InSync)];
    let both = [remote(0, true), disk("near", &[]), mirror("m", &legs)];
    assert_eq!(of(&both, &["m"]).state, HealthState::Degraded);
}

#[test]
fn legs_that_differ_may_have_lost_data_and_a_place_that_another_leg_has_degrades() {
    let legs = [("a", LegStatus::InSync), ("b", LegStatus::InSync)];
    let checked = |check: Check| {
        let mut disk = mirror("m", &legs);
        disk.mirror.as_mut().unwrap().check = Some(check);
        of(&[disk], &["m"])
    };
    let found =
        |differ, unreadable, repaired| Check { differ, unreadable, repaired, ..Check::default() };
    assert_eq!(checked(found(0, 0, 0)).state, HealthState::Ok);
    assert_eq!(checked(found(512, 512, 1024)).state, HealthState::Ok, "all was repaired");
    let differ = checked(found(512, 0, 0));
    assert_eq!(
        (differ.state, faults(&differ)),
        (HealthState::Lost, vec![(Fault::CheckFound, "m")])
    );
    assert!(differ.reasons[0].todo.ends_with("corewise mirror m --check --repair"));
    assert_eq!(checked(found(0, 512, 0)).state, HealthState::Degraded);
    let nobody = checked(Check { lost: 512, ..found(0, 1024, 0) });
    assert_eq!(nobody.state, HealthState::Lost);
    assert!(nobody.reasons[0].what.ends_with("1024 bytes can't be read, 512 bytes on no leg"));
}

#[test]
fn findings_count_until_a_check_that_looks_at_all_finds_none() {
    let legs = [("a", LegStatus::InSync), ("b", LegStatus::InSync)];
    let state = |check: Option<Check>, differ| {
        let mut disk = mirror("m", &legs);
        let of = disk.mirror.as_mut().unwrap();
        (of.check, of.checked) = (check, Some(CheckResult { differ, ..CheckResult::default() }));
        of_state(disk)
    };
    let at = |running, checked, differ| {
        Some(Check { running, checked, size: 100, differ, ..Check::default() })
    };
    for (check, differ, is, case) in [
        (None, 512, HealthState::Lost, "before a restart"),
        (at(true, 50, 0), 512, HealthState::Lost, "another one has only begun"),
        (at(false, 50, 0), 512, HealthState::Lost, "it was stopped"),
        (at(false, 100, 0), 512, HealthState::Ok, "it looked at all"),
        (at(true, 50, 1), 0, HealthState::Lost, "it has found something already"),
    ] {
        assert_eq!(state(check, differ), is, "{case}");
    }
}

fn of_state(disk: Disk) -> HealthState {
    of(&[disk], &["m"]).state
}

#[test]
fn a_check_that_could_not_begin_is_overdue() {
    let legs = [("a", LegStatus::InSync), ("b", LegStatus::InSync)];
    let state = |now, running, checked: bool| {
        let mut disk = mirror("m", &legs);
        let of = disk.mirror.as_mut().unwrap();
        of.schedule = Some(Schedule { every_seconds: 800.0, since: 1_000.0, due: 1_750.0 });
        of.check = Some(Check { running, size: 1, ..Check::default() });
        of.checked = checked.then(CheckResult::default);
        let facts = ServerFacts { now, ..ServerFacts::default() };
        let health = health(&[], &[disk], &[], &facts);
        health.reasons.into_iter().map(|reason| (reason.fault, reason.what)).collect::<Vec<_>>()
    };
    assert_eq!(state(1_890.0, false, true), []);
    for (checked, says) in [(true, "the last check ended at"), (false, "no check has completed")] {
        let late = state(1_910.0, false, checked);
        let [(Fault::CheckOverdue, what)] = &late[..] else { panic!("{late:?}") };
        assert!(what.starts_with(says), "{what}");
    }
    assert_eq!(state(1_910.0, true, true), [], "it goes on");
}

#[test]
fn a_device_that_failed_is_lost_and_one_that_a_change_brings_up_is_none() {
    let facts = ServerFacts::default();
    for (state, is) in [
        ("bound", HealthState::Ok),
        ("probing", HealthState::Ok),
        ("leaving", HealthState::Ok),
        ("failed", HealthState::Lost),
        ("no_driver", HealthState::Lost),
    ] {
        assert_eq!(health(&[device("a", state)], &[], &[], &facts).state, is, "{state}");
    }
    let left = |name: &str| ServerFacts {
        left_out: vec![(name.to_string(), "no such file".to_string())],
        ..ServerFacts::default()
    };
    let out = health(&[], &[], &[], &left("a"));
    assert_eq!((out.state, faults(&out)), (HealthState::Lost, vec![(Fault::LeftOut, "a")]));
    let both = health(&[device("a", "failed")], &[], &[], &left("a"));
    assert_eq!(faults(&both), [(Fault::DeviceDown, "a")], "it is told once");
    let missing = health(&[device("a", "bound")], &[], &[], &left("a"));
    assert_eq!(faults(&missing), [(Fault::LeftOut, "a")], "there is no disk");
    let back = health(&[device("a", "bound")], &[disk("a", &[])], &[], &left("a"));
    assert_eq!(back.state, HealthState::Ok);
    let back = health(&[device("export:a", "bound")], &[], &[], &left("export:a"));
    assert_eq!(back.state, HealthState::Ok);
    let waits = health(&[device("export:a", "waiting")], &[], &[], &left("export:a"));
    assert_eq!(faults(&waits), [(Fault::LeftOut, "export:a")]);
    let unchanged = vec![("export:a".to_string(), "no such user".to_string())];
    let facts = ServerFacts { unchanged, ..ServerFacts::default() };
    let failed = health(&[device("export:a", "bound")], &[], &[], &facts);
    assert_eq!(faults(&failed), [(Fault::ChangeFailed, "export:a")]);
    assert_eq!(failed.state, HealthState::Degraded);
}

#[test]
fn a_server_that_starts_or_stops_is_degraded_and_says_what_it_waits_for() {
    let waits = Some("waits for its supplier \"a\"".to_string());
    let devices = [device("a", "probing"), Device { waits, ..device("b", "waiting") }];
    let phase = |phase| ServerFacts { phase, ..ServerFacts::default() };
    let starting = health(&devices, &[], &[], &phase(LifePhase::Starting));
    assert_eq!(starting.state, HealthState::Degraded);
    let line = starting.reasons[0].line();
    assert!(
        line.starts_with("server: the server is starting: 0 of 2 devices are up; b: waits for"),
        "{line}"
    );
    let stopping = health(&devices, &[], &[], &phase(LifePhase::Stopping));
    assert_eq!(faults(&stopping), [(Fault::Stopping, "server")]);
}

#[test]
fn sockets_and_changes_that_hang_are_reasons() {
    let lost = |used, only| {
        let socket = LostSocket { path: "/run/s".to_string(), used, only };
        ServerFacts { lost_sockets: vec![socket], ..ServerFacts::default() }
    };
    let state = |used, only| health(&[], &[], &[], &lost(used, only)).state;
    for (used, only, is) in [
        (SocketUse::Clients, true, HealthState::Lost),
        (SocketUse::Clients, false, HealthState::Degraded),
        (SocketUse::Metrics, true, HealthState::Degraded),
        (SocketUse::Control, true, HealthState::Degraded),
    ] {
        assert_eq!(state(used, only), is, "{used:?}");
    }
    let unread = ServerFacts { unread: vec![("stderr", 12)], ..ServerFacts::default() };
    let unread = health(&[], &[], &[], &unread);
    assert_eq!(
        (unread.state, faults(&unread)),
        (HealthState::Degraded, vec![(Fault::LogUnread, "server")])
    );
    assert_eq!(
        unread.reasons[0].what,
        "no process reads the server's stderr, so 12 lines were dropped"
    );
    let hanging = ServerFacts { hanging: vec!["a".to_string()], ..ServerFacts::default() };
    assert_eq!(faults(&health(&[], &[], &[], &hanging)), [(Fault::ChangeHangs, "a")]);
}

#[test]
fn a_certificate_is_told_of_when_its_renewal_is_late_for_its_lifetime() {
    let day = 86_400.0;
    let state = |left: f64, lifetime: f64, required| {
        let certificate = Some(Certificate { left, lifetime, required });
        let facts = ServerFacts { certificate, ..ServerFacts::default() };
        health(&[], &[], &[], &facts).state
    };
    for (left, lifetime, required, is) in [
        (15.0 * day, 365.0 * day, true, HealthState::Ok),
        (13.0 * day, 365.0 * day, true, HealthState::Degraded),
        // A certificate of one day that is renewed in time.
        (day / 3.0, day, true, HealthState::Ok),
        (day / 7.0, day, true, HealthState::Degraded),
        (-1.0, day, true, HealthState::Lost),
        // Other clients come without the certificate.
        (-1.0, day, false, HealthState::Degraded),
    ] {
        assert_eq!(state(left, lifetime, required), is, "{left} of {lifetime}");
    }
}

#[test]
fn the_worst_comes_first_and_what_a_later_server_says_is_read() {
    let all = [
        mirror("m", &[("a", LegStatus::Out), ("b", LegStatus::InSync)]),
        Disk { lost: true, ..disk("z", &[]) },
    ];
    let health = of(&all, &["m", "z"]);
    assert_eq!(faults(&health), [(Fault::FileLost, "z"), (Fault::LegOut, "m")]);
    assert_eq!(health.summary().unwrap(), "lost: z");
    let json = serde_json::to_value(&health).unwrap();
    assert_eq!(
        (&json["state"], &json["reasons"][1]["reason"]),
        (&"lost".into(), &"leg_out".into())
    );
    assert_eq!(json["reasons"][1]["part"], "a");
    let later = r#"{"state":"burning","reasons":[{"reason":"fire","state":"degraded","subject":"x",
        "what":"it burns","todo":"Run","since":7}]}"#;
    let later: Health = serde_json::from_str(later).unwrap();
    assert_eq!((later.state, later.reasons[0].fault), (HealthState::Lost, Fault::Unknown));
}

#[test]
fn a_failed_flush_loses_until_one_succeeds() {
    let doubt = Disk { in_doubt: true, ..disk("a", &[]) };
    let health = of(std::slice::from_ref(&doubt), &["a"]);
    assert_eq!(
        (health.state, faults(&health)),
        (HealthState::Lost, vec![(Fault::FlushFailed, "a")])
    );
    let legs = [("a", LegStatus::InSync), ("b", LegStatus::InSync)];
    assert_eq!(of(&[doubt, mirror("m", &legs)], &["m"]).state, HealthState::Degraded);
}

#[test]
fn a_loss_that_a_client_does_not_know_of_is_told_once_a_device() {
    let export = |name: &str| Export {
        name: name.to_string(),
        device: Some("a".to_string()),
        untold: 2,
        ..Export::default()
    };
    let exports = [export("one"), export("other")];
    let health = health(&[], &[disk("a", &[])], &exports, &ServerFacts::default());
    assert_eq!(
        (health.state, faults(&health)),
        (HealthState::Lost, vec![(Fault::LossUntold, "a")])
    );
}

#[test]
fn requests_that_hang_or_fail_are_told_of_the_lowest_volume_that_has_them() {
    let old =
        |name: &str, over: &[&str], age| Disk { oldest_seconds: Some(age), ..disk(name, over) };
    let both = [old("a", &[], 31.0), old("top", &["a"], 31.5)];
    let health = of(&both, &["top"]);
    assert_eq!(
        (health.state, faults(&health)),
        (HealthState::Degraded, vec![(Fault::RequestHangs, "a")])
    );
    let above = [old("a", &[], 2.0), old("top", &["a"], 31.5)];
    assert_eq!(faults(&of(&above, &["top"])), [(Fault::RequestHangs, "top")]);
    assert_eq!(of(&[old("a", &[], 29.0)], &["a"]).state, HealthState::Ok);
    let failing = |name: &str, over: &[&str], reads, zeroes| {
        let of = |errors| OpCounts {
            requests: 100,
            last_minute: Some(LastMinute { requests: 9, errors, ..LastMinute::default() }),
            ..OpCounts::default()
        };
        let ops = Ops { reads: of(reads), write_zeroes: of(zeroes), ..Ops::default() };
        Disk { ops, ..disk(name, over) }
    };
    let health = of(&[failing("a", &[], 2, 0), failing("top", &["a"], 2, 0)], &["top"]);
    assert_eq!(faults(&health), [(Fault::RequestsFail, "a")]);
    assert_eq!(health.reasons[0].what, "requests have failed in the last minute: read 2");
    assert_eq!(of(&[failing("a", &[], 0, 7)], &["a"]).state, HealthState::Ok, "a refusal is none");
}

#[test]
fn a_server_whose_workers_are_stuck_is_degraded() {
    let silent =
        |seconds| ServerFacts { silent: Duration::from_secs(seconds), ..ServerFacts::default() };
    assert_eq!(health(&[], &[], &[], &silent(29)).state, HealthState::Ok);
    let stalled = health(&[], &[], &[], &silent(31));
    assert_eq!(faults(&stalled), [(Fault::Stalled, "server")]);
}

#[test]
fn a_disk_that_waits_is_a_loss_and_the_line_says_how_to_end_it() {
    let disk = WaitingDisk { disk: "/dev/ublkb3".to_string(), export: "data".to_string() };
    let waits = ServerFacts { waiting: vec![disk], ..ServerFacts::default() };
    let health = health(&[], &[], &[], &waits);
    assert_eq!(health.state, HealthState::Lost);
    assert_eq!(faults(&health), [(Fault::DiskWaits, "export:data")]);
    let line = health.reasons[0].line();
    assert!(line.ends_with("corewise detach --force /dev/ublkb3"), "{line}");
}

#[test]
fn names_are_those_of_json_and_the_document_lists_them() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/monitoring.md");
    let document = std::fs::read_to_string(document).unwrap();
    for fault in [
        Fault::CertificateExpires,
        Fault::ChangeFailed,
        Fault::ChangeHangs,
        Fault::CheckFound,
        Fault::CheckOverdue,
        Fault::DeviceDown,
        Fault::DiskWaits,
        Fault::FileLost,
        Fault::FlushFailed,
        Fault::LegOut,
        Fault::LegResyncing,
        Fault::LeftOut,
        Fault::LogUnread,
        Fault::LossUntold,
        Fault::NotServed,
        Fault::RemoteDisconnected,
        Fault::RequestHangs,
        Fault::RequestsFail,
        Fault::SocketGone,
        Fault::Stalled,
        Fault::Starting,
        Fault::Stopping,
    ] {
        assert_eq!(serde_json::to_value(fault).unwrap(), fault.name());
        assert!(document.contains(&format!("`{}`", fault.name())), "{fault:?}");
    }
    for state in HealthState::ALL {
        assert_eq!(serde_json::to_value(state).unwrap(), state.name());
    }
}
