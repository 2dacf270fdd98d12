//! A thread that would wait for itself is refused at once: drivers, callbacks and observers, also
//! through another manager.

use crate::support::{Rig, TestDriver, decl};
use corewise_device::{
    BringUpOptions, DeviceDecl, DeviceManager, Error, Event, ProbeType, ShutdownOptions,
};
use std::sync::{Arc, Mutex};

/// Two nodes.
const MACHINE: &str = "numa:2 core:2 pu:1";

/// Makes each call that waits for devices.
fn waits(manager: &DeviceManager, device: &str) -> Vec<Result<(), Error>> {
    vec![
        manager.wait_for_probes(),
        manager.remove(device).map(drop),
        manager.unbind(device).map(drop),
        manager.unregister("test"),
        manager.shutdown(&ShutdownOptions::new()).map(drop),
    ]
}

fn all_refused(asked: &[Result<(), Error>]) -> bool {
    asked.iter().all(|a| matches!(a, Err(Error::InsideProbe)))
}

#[test]
fn an_observer_that_would_wait_for_the_device_it_hears_of_is_refused() {
    for kind in [ProbeType::PreferAsynchronous, ProbeType::ForceSynchronous] {
        let rig = Rig::new(MACHINE).with(|d| d.probe_type(kind));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (manager, its) = (rig.manager.clone(), heard.clone());
        let observer = move |event: &Event<'_>| {
            if let Event::Started { device } | Event::Finished { device, .. } = event {
                its.lock().unwrap().push(waits(&manager, device));
            }
        };
        let options = BringUpOptions::new().observer(Arc::new(observer));
        let up = rig.manager.bring_up(vec![decl("a", &[]), decl("b", &["a"])], &options).unwrap();
        assert!(up.is_complete());
        let heard = heard.lock().unwrap();
        assert!(heard.len() == 4 && heard.iter().all(|asked| all_refused(asked)), "{heard:?}");
        assert!(rig.manager.remove("a").is_ok(), "afterwards it is not");
    }
}

#[test]
fn a_probe_within_another_managers_probe_that_would_wait_for_the_outer_one_is_refused() {
    // In place, on another node's worker, and on whichever worker comes.
    let ways = [
        (ProbeType::ForceSynchronous, None),
        (ProbeType::ForceSynchronous, Some(1)),
        (ProbeType::PreferAsynchronous, None),
    ];
    for (kind, node) in ways {
        for late in [false, true] {
            if late && kind == ProbeType::PreferAsynchronous {
                continue; // Nobody waits for it.
            }
            let outer = Rig::new(MACHINE);
            let inner = Arc::new(DeviceManager::new(&outer.pools).unwrap());
            let heard = Arc::new(Mutex::new(Vec::new()));
            let (manager, its) = (outer.manager.clone(), heard.clone());
            let probe = TestDriver::new("test", &outer.log).probe_type(kind).probe(move |_| {
                its.lock().unwrap().push(waits(&manager, "a"));
                Ok(())
            });
            inner.register(Arc::new(probe)).unwrap();
            let its = inner.clone();
            let probe = TestDriver::new("test", &outer.log).probe(move |_| {
                let device = DeviceDecl::new("b", "test").node(node);
                if late {
                    its.add(device).unwrap();
                } else {
                    let _ = its.bring_up(vec![device], &BringUpOptions::new()).unwrap();
                }
                Ok(())
            });
            outer.register(probe).unwrap();
            let decls = vec![decl("a", &[]).node(Some(0))];
            assert!(outer.manager.bring_up(decls, &BringUpOptions::new()).unwrap().is_complete());
            let heard = heard.lock().unwrap();
            assert!(heard.len() == 1 && all_refused(&heard[0]), "{kind:?} {node:?}: {heard:?}");
            // Each one's driver keeps the other until then.
            for manager in [&inner, &outer.manager] {
                assert!(manager.shutdown(&ShutdownOptions::new()).unwrap().is_clean());
            }
        }
    }
}
