//! Volumes that are somebody else's exports.

use std::sync::Arc;

use corewise::device::ProbeError;
use corewise::nbd::{Remote, RemoteOptions};

use super::context::House;
use crate::manifest;

/// Connects, for as long as the manifest says.
pub(super) fn open(
    house: &House,
    device: &str,
    asked: &manifest::Remote,
) -> Result<Arc<Remote>, ProbeError> {
    let (report, name) = (house.report.clone(), device.to_owned());
    let options = RemoteOptions::new(asked.uri.value.clone())
        .read_only(asked.read_only)
        .connections(asked.connections)
        .connect_timeout(asked.connect_timeout)
        .timeout(asked.request_timeout)
        .name(device)
        .observer(move |event| report.remote(&name, event));
    #[cfg(feature = "tls")]
    let options = match &asked.tls_ca {
        Some(ca) => {
            let identity = asked.tls_certificate.as_ref().zip(asked.tls_key.as_ref());
            options.tls(tls::read(ca, identity)?)
        }
        None => options,
    };
    Remote::connect(options).map(Arc::new).map_err(ProbeError::failed)
}

#[cfg(feature = "tls")]
mod tls {
    use std::path::PathBuf;

    use corewise::device::ProbeError;
    use corewise::nbd::RemoteTls;

    use crate::bounded_file::{self, LONGEST_PEM};
    use crate::manifest::At;

    pub(super) fn read(
        ca: &At<PathBuf>,
        identity: Option<(&At<PathBuf>, &At<PathBuf>)>,
    ) -> Result<RemoteTls, ProbeError> {
        let read = |at: &At<PathBuf>| {
            bounded_file::read_plain(&at.value, LONGEST_PEM).map_err(|why| {
                ProbeError::failed(format!("cannot read {}: {why}", at.value.display()))
            })
        };
        let ca = read(ca)?;
        let identity = match identity {
            Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
            None => None,
        };
        let identity = identity.as_ref().map(|(c, k)| (c.as_slice(), k.as_slice()));
        RemoteTls::from_pem(&ca, identity).map_err(ProbeError::failed)
    }
}
