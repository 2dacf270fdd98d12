//! TLS to the server, as its client. The volume's thread owns all of it, and never waits in here.

use std::io::{self, BufRead, ErrorKind, IoSlice, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::BytesMut;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::stream::send;
use crate::error::{Error, TlsPart};
use crate::tls::{certificates, lasts, refused, spoken, words, wrong};

/// Number of plaintext bytes that are encrypted ahead.
const OUTGOING: usize = 256 << 10;

/// The authorities that vouch for a volume's server, and the client's own certificate.
///
/// TLS has the versions and limits of a [server's](crate::Tls).
#[derive(Clone, Debug)]
pub struct RemoteTls {
    config: Arc<ClientConfig>,
}

impl RemoteTls {
    /// Creates a configuration: the server has to show a certificate that one of these authorities
    /// (PEM) made for its name. With `identity`, a certificate and its key (PEM, too), the client
    /// shows that certificate on request.
    ///
    /// # Errors
    /// `Tls` says which of the three is unusable, and why.
    pub fn from_pem(ca: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<RemoteTls, Error> {
        let mut provider = rustls::crypto::ring::default_provider();
        provider.cipher_suites.retain(lasts);
        let mut roots = RootCertStore::empty();
        for root in certificates(TlsPart::ServerCa, ca)? {
            roots.add(root).map_err(refused(TlsPart::ServerCa))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .map_err(refused(TlsPart::ServerCa))?
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(TlsPart::Certificate, certificate)?;
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
                    wrong(TlsPart::Key)(words(&error, "key without a password"))
                })?;
                builder.with_client_auth_cert(chain, key).map_err(refused(TlsPart::Key))?
            }
        };
        // A connection lasts for days, so resumption would save nothing.
        config.resumption = Resumption::disabled();
        Ok(RemoteTls { config: Arc::new(config) })
    }

    pub(crate) fn dial(&self, hostname: &str) -> io::Result<RemoteTlsStream> {
        let name = ServerName::try_from(hostname.to_owned())
            .map_err(|_| io::Error::other(format!("'{hostname}' is no name of a host")))?;
        let tls =
            ClientConnection::new(Arc::clone(&self.config), name).map_err(io::Error::other)?;
        let mut tls = Box::new(tls);
        tls.set_buffer_limit(Some(OUTGOING));
        Ok(RemoteTlsStream { tls })
    }
}

/// The TLS of one connection.
pub(crate) struct RemoteTlsStream {
    tls: Box<ClientConnection>,
}

impl RemoteTlsStream {
    /// Continues the handshake. `WouldBlock` means that it isn't over.
    pub(crate) fn shake(&mut self, socket: &OwnedFd) -> io::Result<()> {
        loop {
            self.push(socket)?;
            if !self.tls.is_handshaking() {
                return Ok(());
            }
            if self.take(socket)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    pub(crate) fn has_to_send(&self) -> bool {
        self.tls.wants_write()
    }

    /// Sends encrypted bytes.
    pub(crate) fn push(&mut self, socket: &OwnedFd) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Socket(socket))?;
        }
        Ok(())
    }

    /// Receives ciphertext, and decrypts the whole records in it. Returns 0 at the end of the
    /// stream.
    fn take(&mut self, socket: &OwnedFd) -> io::Result<usize> {
        let n = self.tls.read_tls(&mut Socket(socket))?;
        if let Err(error) = self.tls.process_new_packets() {
            // An alert may be pending for the server.
            let _ = self.push(socket);
            return Err(io::Error::new(ErrorKind::InvalidData, format!("TLS: {}", spoken(&error))));
        }
        Ok(n)
    }

    pub(crate) fn receive(&mut self, socket: &OwnedFd, bytes: &mut BytesMut) -> io::Result<usize> {
        loop {
            let mut reader = self.tls.reader();
            match reader.fill_buf() {
                Ok(data) => {
                    let n = data.len().min(bytes.capacity() - bytes.len());
                    bytes.extend_from_slice(&data[..n]);
                    reader.consume(n);
                    return Ok(n);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if self.take(socket)? == 0 {
                return Ok(0);
            }
        }
    }

    pub(crate) fn send(&mut self, socket: &OwnedFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // Pending ciphertext goes first: the buffer is bounded.
        self.push(socket)?;
        let n = self.tls.writer().write_vectored(pieces)?;
        match self.push(socket) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ if n == 0 => Err(ErrorKind::WouldBlock.into()),
            _ => Ok(n),
        }
    }
}

/// The socket as rustls sees it. Never blocks.
struct Socket<'a>(&'a OwnedFd);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        send(self.0, pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Socket<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        use rustix::net::{RecvFlags, recv};
        Ok(recv(self.0, bytes, RecvFlags::DONTWAIT)?.1)
    }
}
