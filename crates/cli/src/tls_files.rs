//! The certificates of a client that uses TLS, from files.

use std::path::Path;

use corewise::nbd::RemoteOptions;
use corewise_server::source;

use crate::args::TlsArgs;
use crate::exit::Failure;

/// Returns the options with the certificates of these files, if there are any.
pub(crate) fn read(args: &TlsArgs, options: RemoteOptions) -> Result<RemoteOptions, Failure> {
    let read = |path: &Path| {
        source::read_any(path, source::LONGEST_PEM)
            .map_err(|error| Failure::new(format!("cannot read '{}': {error}", path.display())))
    };
    let Some(ca) = &args.ca else { return Ok(options) };
    let ca = read(ca)?;
    let pair = args.certificate.as_deref().zip(args.key.as_deref());
    let identity =
        pair.map(|(certificate, key)| Ok::<_, Failure>((read(certificate)?, read(key)?)));
    let identity = identity.transpose()?;
    with_tls(options, &ca, identity.as_ref().map(|(one, other)| (&one[..], &other[..])))
}

#[cfg(feature = "tls")]
fn with_tls(
    options: RemoteOptions,
    ca: &[u8],
    identity: Option<(&[u8], &[u8])>,
) -> Result<RemoteOptions, Failure> {
    let tls = corewise::nbd::RemoteTls::from_pem(ca, identity);
    Ok(options.tls(tls.map_err(|error| Failure::new(error.to_string()))?))
}

#[cfg(not(feature = "tls"))]
fn with_tls(
    _: RemoteOptions,
    _: &[u8],
    _: Option<(&[u8], &[u8])>,
) -> Result<RemoteOptions, Failure> {
    Err(Failure::new("this program was built without TLS"))
}
