//! The control document in Prometheus's text format (0.0.4). `docs/monitoring.md` lists the names,
//! which are a promise as those of the document are.

use super::Answer;
use super::checkpoints::CheckpointState;
use super::exposition::{Exposition, Labels, MetricFamily, MetricFamilyWithKind};
use super::health::HealthState;
use super::mirrors::{CheckFindings, LegStatus, MirrorReport};
use super::served::ExportState;
use super::stores::OverlayReport;

/// Returns all metrics of a server.
pub(crate) fn text(answer: &Answer) -> String {
    let mut text = Exposition::default();
    let who = &answer.who;
    text.family(
        "corewise_build_info",
        "gauge",
        "Is always 1, and names the program's version in a label.",
    );
    text.sample("corewise_build_info", &[("version", &who.version)], 1.0);
    text.family("corewise_up_seconds", "gauge", "Shows for how long the server has run.");
    text.sample("corewise_up_seconds", &[], who.up_seconds);
    health(&mut text, answer);
    clients(&mut text, answer);
    volumes(&mut text, answer);
    overlays(&mut text, answer);
    mirrors(&mut text, answer);
    checkpoints(&mut text, answer);
    stores(&mut text, answer);
    pools(&mut text, answer);
    text.0
}

fn health(text: &mut Exposition, answer: &Answer) {
    let health = answer.health.clone().unwrap_or_default();
    let is = |is: bool| f64::from(u8::from(is));
    text.samples(
        (
            "corewise_health",
            "gauge",
            "Is 1 for the state that the server is in (ok, degraded or lost), and 0 for the others.",
        ),
        &HealthState::ALL,
        |state| (vec![("state", state.name())], is(health.state == *state)),
    );
    let help =
        "Is 1 for each reason why the server isn't ok, with the state that the reason causes.";
    text.samples(("corewise_health_reason", "gauge", help), &health.reasons, |reason| {
        let labels = vec![
            ("reason", reason.fault.name()),
            ("subject", &*reason.subject),
            ("part", reason.part.as_deref().unwrap_or_default()),
            ("state", reason.state.name()),
        ];
        (labels, 1.0)
    });
}

fn clients(text: &mut Exposition, answer: &Answer) {
    let exports = answer.exports.as_deref().unwrap_or_default();
    let clients = answer.clients.as_deref().unwrap_or_default();
    let attached = clients.iter().filter(|client| client.export.is_some()).count();
    for (name, help, value) in [
        ("corewise_clients", "Shows how many clients have chosen an export.", attached),
        (
            "corewise_handshakes",
            "Shows how many clients haven't chosen an export yet.",
            clients.len() - attached,
        ),
    ] {
        text.family(name, "gauge", help);
        text.sample(name, &[], value as f64);
    }
    if let Some(ended) = &answer.handshakes {
        let name = "corewise_handshakes_ended_total";
        text.family(name, "counter", "Counts the handshakes that ended, by result.");
        for (result, count) in [
            ("attached", ended.attached),
            ("no_place", ended.no_place),
            ("evicted", ended.evicted),
            ("timed_out", ended.timed_out),
            ("tls_failed", ended.tls_failed),
            ("failed", ended.failed),
            ("left", ended.left),
        ] {
            text.sample(name, &[("result", result)], count as f64);
        }
    }
    let memory = answer.memory.clone().unwrap_or_default();
    for (name, help, value) in [
        (
            "corewise_memory_taken_bytes",
            "Shows how much memory of the clients' budget requests hold.",
            memory.taken,
        ),
        ("corewise_memory_limit_bytes", "Shows the clients' budget of memory.", memory.of),
        (
            "corewise_memory_waiting_clients",
            "Shows how many clients wait for memory.",
            memory.waiting as u64,
        ),
    ] {
        text.family(name, "gauge", help);
        text.sample(name, &[], value as f64);
    }
    let gauge = |name, help| (name, "gauge", help);
    text.samples(
        gauge("corewise_export_clients", "Shows how many clients an export has."),
        exports,
        |one| (vec![("export", &*one.name)], one.clients as f64),
    );
    text.samples(
        gauge(
            "corewise_export_in_flight_requests",
            "Shows how many requests to an export have no answer yet.",
        ),
        exports,
        |one| (vec![("export", &*one.name)], one.in_flight as f64),
    );
    text.samples(
        gauge(
            "corewise_export_open",
            "Is 1 if new clients find the export, and 0 if it is hidden or leaving.",
        ),
        exports,
        |one| {
            let open = one.state == ExportState::Open;
            (vec![("export", &*one.name)], f64::from(u8::from(open)))
        },
    );
    let ops: Vec<_> = exports.iter().map(|one| (&*one.name, one.ops.all())).collect();
    text.by_op("export", "of clients", &ops);
    text.last_minute("export", "of clients", &ops);
}

fn volumes(text: &mut Exposition, answer: &Answer) {
    let disks = answer.disks.as_deref().unwrap_or_default();
    let gauge = |name, help| (name, "gauge", help);
    text.samples(
        gauge("corewise_volume_size_bytes", "Shows the size of a volume."),
        disks,
        |disk| (vec![("volume", &*disk.name), ("driver", &*disk.driver)], disk.size as f64),
    );
    text.samples(
        gauge(
            "corewise_volume_in_flight_requests",
            "Shows how many requests of a volume are queued or with its driver.",
        ),
        disks,
        |disk| (vec![("volume", &*disk.name)], disk.in_flight as f64),
    );
    let oldest = "Shows the age of the oldest request in a volume, to a second. Is 0 without a \
                  request.";
    text.samples(gauge("corewise_volume_oldest_request_seconds", oldest), disks, |disk| {
        (vec![("volume", &*disk.name)], disk.oldest_seconds.unwrap_or(0.0))
    });
    text.samples(
        gauge(
            "corewise_volume_lost",
            "Is 1 if the file of a volume has lost data. Every flush then fails until the server \
             reopens the file.",
        ),
        disks,
        |disk| (vec![("volume", &*disk.name)], f64::from(u8::from(disk.lost))),
    );
    let displaced = "Is 1 if a file or folder of a volume was moved, replaced or truncated.";
    text.samples(gauge("corewise_volume_displaced", displaced), disks, |disk| {
        (vec![("volume", &*disk.name)], f64::from(u8::from(disk.displaced)))
    });
    let ops: Vec<_> = disks.iter().map(|disk| (&*disk.name, disk.ops.all())).collect();
    text.by_op("volume", "of volumes", &ops);
    text.last_minute("volume", "of volumes", &ops);
    let name = "corewise_volume_driver_duration_seconds";
    text.family(name, "histogram", "Counts the requests of a volume by their time in its driver.");
    for disk in disks.iter().filter(|disk| !disk.in_driver.histogram.is_empty()) {
        text.histogram(name, &[("volume", &disk.name)], &disk.in_driver);
    }
    let counters: [MetricFamily<super::disks::HwQueue, u64>; 4] = [
        ("merged_requests", "Counts the requests that were merged into another one.", |hw| {
            hw.merged
        }),
        ("tag_waits", "Counts how often a request waited for a free tag.", |hw| hw.tag_waits),
        ("requeues", "Counts how often the driver returned a request to the queue.", |hw| {
            hw.busy + hw.requeues
        }),
        ("timeouts", "Counts how often a request in the driver exceeded its timeout.", |hw| {
            hw.timeouts
        }),
    ];
    for (counter, help, value) in counters {
        let name = format!("corewise_volume_{counter}_total");
        text.family(&name, "counter", help);
        for disk in disks {
            let sum: u64 = disk.hw_queues.iter().map(value).sum();
            text.sample(&name, &[("volume", &disk.name)], sum as f64);
        }
    }
}

fn overlays(text: &mut Exposition, answer: &Answer) {
    let disks = answer.disks.as_deref().unwrap_or_default();
    let overlays = || disks.iter().filter_map(|disk| Some((&*disk.name, disk.overlay.as_ref()?)));
    let name = "corewise_overlay_own_bytes";
    text.family(name, "gauge", "Shows how many bytes of an overlay differ from its base.");
    for (overlay, own) in overlays().filter_map(|(name, of)| Some((name, of.own?))) {
        text.sample(name, &[("volume", overlay)], own as f64);
    }
    for (name, help, value) in [
        (
            "corewise_overlay_fetching",
            "Is 1 while an overlay fetches all blocks of its base.",
            (|of| of.fetching) as fn(&OverlayReport) -> bool,
        ),
        ("corewise_overlay_has_base", "Is 1 if an overlay needs its base.", |of| of.has_base),
    ] {
        text.family(name, "gauge", help);
        for (overlay, of) in overlays() {
            text.sample(name, &[("volume", overlay)], f64::from(u8::from(value(of))));
        }
    }
}

fn mirrors(text: &mut Exposition, answer: &Answer) {
    let disks = answer.disks.as_deref().unwrap_or_default();
    let mirrors: Vec<_> =
        disks.iter().filter_map(|disk| Some((&*disk.name, disk.mirror.as_ref()?))).collect();
    let name = "corewise_mirror_leg_in_sync";
    text.family(name, "gauge", "Is 1 if a leg of a mirror is in sync.");
    for (mirror, of) in &mirrors {
        for leg in &of.legs {
            let is = f64::from(u8::from(leg.state == LegStatus::InSync));
            text.sample(name, &[("mirror", mirror), ("leg", &leg.name)], is);
        }
    }
    for (name, help, value) in [
        (
            "corewise_mirror_to_resync_bytes",
            "Shows how many bytes a resync has still to copy or compare.",
            (|of| of.to_resync) as fn(&MirrorReport) -> u64,
        ),
        (
            "corewise_mirror_dirty_bytes",
            "Shows how many bytes a crash now would cause to be resynced.",
            |of| of.dirty,
        ),
    ] {
        text.family(name, "gauge", help);
        for (mirror, of) in &mirrors {
            text.sample(name, &[("mirror", mirror)], value(of) as f64);
        }
    }
    checks(text, &mirrors);
    let devices = answer.devices.as_deref().unwrap_or_default();
    text.samples(
        ("corewise_device_up", "gauge", "Is 1 if a device is up, exports included."),
        devices,
        |device| {
            let up = f64::from(u8::from(device.state == "bound"));
            (vec![("device", &*device.name)], up)
        },
    );
}

/// Writes the findings of each mirror's checks, and the time of the next one.
fn checks(text: &mut Exposition, mirrors: &[(&str, &MirrorReport)]) {
    let families: [MetricFamily<MirrorReport, Option<f64>>; 4] = [
        ("running", "Is 1 while a check of a mirror runs.", |of| {
            Some(f64::from(u8::from(of.check.as_ref().is_some_and(|check| check.running))))
        }),
        (
            "ended_timestamp_seconds",
            "Shows when the last check of a mirror ended, in seconds since 1970.",
            |of| Some(of.checked.as_ref()?.ended),
        ),
        ("duration_seconds", "Shows how long the last check of a mirror took.", |of| {
            Some(of.checked.as_ref()?.took_seconds)
        }),
        (
            "due_timestamp_seconds",
            "Shows when the next check of a mirror is due, in seconds since 1970.",
            |of| Some(of.schedule.as_ref()?.due),
        ),
    ];
    for (family, help, value) in families {
        let name = format!("corewise_mirror_check_{family}");
        text.family(&name, "gauge", help);
        for (mirror, of) in mirrors {
            if let Some(value) = value(of) {
                text.sample(&name, &[("mirror", mirror)], value);
            }
        }
    }
    let name = "corewise_mirror_check_found_bytes";
    text.family(
        name,
        "gauge",
        "Shows how many bytes the last check of a mirror found with each fault.",
    );
    for (mirror, of) in mirrors {
        let Some(CheckFindings { differ, unreadable, lost, repaired }) = of.found() else {
            continue;
        };
        for (kind, bytes) in
            [("differ", differ), ("unreadable", unreadable), ("lost", lost), ("repaired", repaired)]
        {
            text.sample(name, &[("mirror", mirror), ("kind", kind)], bytes as f64);
        }
    }
}

fn checkpoints(text: &mut Exposition, answer: &Answer) {
    let disks = answer.disks.as_deref().unwrap_or_default();
    let all: Vec<_> =
        disks.iter().filter_map(|disk| Some((&*disk.name, disk.checkpoints.as_ref()?))).collect();
    let families: [MetricFamilyWithKind<CheckpointState>; 4] = [
        ("corewise_checkpoints", "gauge", "Shows how many checkpoints a volume has.", |of| {
            of.count as f64
        }),
        (
            "corewise_checkpoint_open_bytes",
            "gauge",
            "Shows how many bytes would count as changed after a crash now, whether they are or not.",
            |of| of.open as f64,
        ),
        (
            "corewise_checkpoint_copied_bytes",
            "gauge",
            "Shows how many bytes of old content are kept for the newest checkpoint.",
            |of| of.copied as f64,
        ),
        (
            "corewise_checkpoint_copies_size_bytes",
            "gauge",
            "Shows how many bytes of old content a volume has room for.",
            |of| of.room as f64,
        ),
    ];
    for (name, kind, help, value) in families {
        text.samples((name, kind, help), &all, |(volume, of)| {
            (vec![("volume", *volume)], value(of))
        });
    }
}

fn stores(text: &mut Exposition, answer: &Answer) {
    let disks = answer.disks.as_deref().unwrap_or_default();
    let stores: Vec<_> =
        disks.iter().filter_map(|disk| Some((disk, disk.store.as_ref()?))).collect();
    let name = "corewise_store_requests_total";
    text.family(name, "counter", "Counts the requests of a volume to its object store.");
    for (disk, store) in &stores {
        for (op, count) in store.requests() {
            text.sample(name, &[("volume", &disk.name), ("op", op)], count as f64);
        }
    }
    let name = "corewise_store_bytes_total";
    text.family(
        name,
        "counter",
        "Adds up the bytes that a volume sent to its object store and received.",
    );
    for (disk, store) in &stores {
        for (way, bytes) in [("sent", store.sent), ("received", store.received)] {
            text.sample(name, &[("volume", &disk.name), ("direction", way)], bytes as f64);
        }
    }
    let counter = (
        "corewise_store_failures_total",
        "counter",
        "Counts the requests of a volume to its object store that failed.",
    );
    text.samples(counter, &stores, |(disk, store)| {
        (vec![("volume", &*disk.name)], store.failures as f64)
    });
    let kinds = "Shows how many bytes the data of a volume takes in its object store.";
    text.family("corewise_store_space_bytes", "gauge", kinds);
    for (disk, store) in &stores {
        let of = &store.space;
        let kinds = [
            ("used", of.used),
            ("snapshots", of.snapshots),
            ("garbage", of.garbage),
            ("shared", of.shared),
        ];
        for (kind, bytes) in kinds {
            let labels: Labels<'_> = &[("volume", &disk.name), ("kind", kind)];
            text.sample("corewise_store_space_bytes", labels, bytes as f64);
        }
    }
    let name = "corewise_store_cache_reads_total";
    text.family(
        name,
        "counter",
        "Counts the frames that readers found in memory, or fetched from the store.",
    );
    for (disk, store) in &stores {
        for (result, count) in [("hit", store.cache.hits), ("miss", store.cache.misses)] {
            text.sample(name, &[("volume", &disk.name), ("result", result)], count as f64);
        }
    }
    let is_served = "Is 1 if this server serves the volume, and 0 if another server has opened \
                     it or the store has lost the last writes.";
    text.samples(("corewise_store_served", "gauge", is_served), &stores, |(disk, store)| {
        (vec![("volume", &*disk.name)], f64::from(u8::from(store.served)))
    });
    let is_damaged =
        "Is 1 if a request found a missing or damaged object of the volume in its store.";
    text.samples(("corewise_store_damaged", "gauge", is_damaged), &stores, |(disk, store)| {
        (vec![("volume", &*disk.name)], f64::from(u8::from(store.damaged)))
    });
    let is_writable = "Is 1 if the store of a volume takes writes, and 0 if not.";
    text.samples(("corewise_store_writable", "gauge", is_writable), &stores, |(disk, store)| {
        (vec![("volume", &*disk.name)], f64::from(u8::from(store.refuses.is_none())))
    });
    let not_stored = "Shows how many bytes of changes wait to be sent to the store of a volume.";
    text.samples(
        ("corewise_store_waiting_bytes", "gauge", not_stored),
        &stores,
        |(disk, store)| (vec![("volume", &*disk.name)], store.not_stored as f64),
    );
}

fn pools(text: &mut Exposition, answer: &Answer) {
    let Some(dump) = &answer.dump else { return };
    let names: Vec<String> = dump.pools.iter().map(|pool| pool.pool.to_string()).collect();
    let pools: Vec<_> = dump.pools.iter().zip(&names).collect();
    let of_pools: [MetricFamilyWithKind<super::document::Pool>; 5] = [
        (
            "corewise_pool_workers",
            "gauge",
            "Shows how many threads a pool of workers has.",
            |pool| pool.workers as f64,
        ),
        (
            "corewise_pool_idle_workers",
            "gauge",
            "Shows how many threads of a pool of workers are parked.",
            |pool| pool.idle as f64,
        ),
        (
            "corewise_pool_waiting_items",
            "gauge",
            "Shows how many items wait for a worker.",
            |pool| pool.waiting as f64,
        ),
        (
            "corewise_pool_items_total",
            "counter",
            "Counts the items that the workers of a pool ran.",
            |pool| pool.ran as f64,
        ),
        (
            "corewise_pool_cpu_seconds_total",
            "counter",
            "Adds up the CPU time of the workers of a pool.",
            |pool| pool.cpu_seconds,
        ),
    ];
    for (name, kind, help, value) in of_pools {
        text.samples((name, kind, help), &pools, |(pool, number)| {
            (vec![("pool", number.as_str()), ("scope", &*pool.scope)], value(pool))
        });
    }
    // Names need not be unique, numbers are.
    let ids: Vec<String> = dump.queues.iter().map(|queue| queue.id.to_string()).collect();
    let queues: Vec<_> = dump.queues.iter().zip(&ids).collect();
    let of_queues: [MetricFamilyWithKind<super::document::Queue>; 3] = [
        (
            "corewise_queue_in_flight_items",
            "gauge",
            "Shows how many items of a workqueue are queued or running.",
            |queue| queue.in_flight as f64,
        ),
        (
            "corewise_queue_items_total",
            "counter",
            "Counts the items of a workqueue that ended.",
            |queue| queue.counters.completed as f64,
        ),
        (
            "corewise_queue_refused_total",
            "counter",
            "Counts the items that a full workqueue refused.",
            |queue| queue.refused as f64,
        ),
    ];
    for (name, kind, help, value) in of_queues {
        text.samples((name, kind, help), &queues, |(queue, id)| {
            (vec![("queue", &*queue.name), ("id", id.as_str())], value(queue))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::disks::Ops;
    use super::super::served::{Client, Export};
    use super::*;
    use crate::control::disks::{OpCounts, Times};

    #[test]
    fn labels_are_escaped_and_a_histogram_counts_upwards() {
        let latency =
            Times { histogram: vec![(4e-6, 2), (0.001, 3), (60.0, 1)], ..Times::default() };
        let reads = OpCounts { requests: 6, bytes: 4096, latency, ..OpCounts::default() };
        let name = "a\"b\\c\nd".to_string();
        let export =
            Export { name, clients: 2, ops: Ops { reads, ..Ops::default() }, ..Export::default() };
        let client = Client { export: Some(String::new()), ..Client::default() };
        let clients = Some(vec![client, Client::default()]);
        let answer = Answer { exports: Some(vec![export]), clients, ..Answer::default() };
        let text = text(&answer);
        let label = r#"{export="a\"b\\c\nd",op="read""#;
        for line in [
            "corewise_clients 1".to_string(),
            "corewise_handshakes 1".to_string(),
            format!("corewise_export_requests_total{label}}} 6"),
            format!("corewise_export_request_duration_seconds_bucket{label},le=\"0.00001\"}} 2"),
            format!("corewise_export_request_duration_seconds_bucket{label},le=\"0.001\"}} 5"),
            format!("corewise_export_request_duration_seconds_bucket{label},le=\"30\"}} 5"),
            format!("corewise_export_request_duration_seconds_bucket{label},le=\"+Inf\"}} 6"),
            format!("corewise_export_request_duration_seconds_count{label}}} 6"),
        ] {
            assert!(text.lines().any(|other| other == line), "no {line} in\n{text}");
        }
        assert!(!text.contains("op=\"write\""), "nothing was written");
    }
}
