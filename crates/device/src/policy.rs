//! The decisions, apart from the mechanism: pure functions over plain values, tested without
//! threads. Rule numbers are those of `spec/mechanisms.md`.

use crate::{AsyncProbe, ProbeType};

/// Whether a device probes asynchronously (rule 1.2.1): the driver's type, the declaration's, and
/// what the command line asked for. Asked by the manager once per device and bring-up.
pub(crate) fn probes_async(
    driver: ProbeType,
    decl: Option<ProbeType>,
    name: &str,
    asked: &AsyncProbe,
) -> bool {
    match (driver, decl) {
        (ProbeType::ForceSynchronous, _) | (_, Some(ProbeType::ForceSynchronous)) => false,
        (_, Some(ProbeType::PreferAsynchronous)) => true,
        (_, Some(ProbeType::Default)) | (ProbeType::Default, None) => asked.asks_for(name),
        (ProbeType::PreferAsynchronous, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn force_synchronous_is_never_overridden() {
        use ProbeType::{Default, ForceSynchronous, PreferAsynchronous};
        let all = AsyncProbe::all();
        assert!(!probes_async(ForceSynchronous, Some(PreferAsynchronous), "d", &all));
        assert!(!probes_async(PreferAsynchronous, Some(ForceSynchronous), "d", &all));
        assert!(probes_async(Default, Some(PreferAsynchronous), "d", &AsyncProbe::default()));
        assert!(probes_async(PreferAsynchronous, None, "d", &AsyncProbe::default()));
    }

    #[test]
    fn the_default_type_is_asynchronous_only_where_asked() {
        let asked = AsyncProbe::parse("nvme");
        assert!(probes_async(ProbeType::Default, None, "nvme", &asked));
        assert!(!probes_async(ProbeType::Default, None, "ahci", &asked));
        assert!(!probes_async(
            ProbeType::PreferAsynchronous,
            Some(ProbeType::Default),
            "x",
            &asked
        ));
    }
}
