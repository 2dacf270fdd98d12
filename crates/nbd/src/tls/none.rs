//! Stand-ins for TLS if the feature `tls` is off: types without values, as the compiler knows.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::BytesMut;
use rustix::io::Errno;

use crate::connection::Connection;
use crate::deadline::Deadline;

#[derive(Clone)]
pub(crate) enum Tls {}
pub(crate) enum Channel {}
pub(crate) enum Incoming {}

impl Tls {
    pub(crate) fn is_required(&self) -> bool {
        match *self {}
    }

    pub(crate) fn accept(
        &self,
        _: &Connection,
        _: &mut Deadline,
    ) -> io::Result<(Incoming, Vec<String>)> {
        match *self {}
    }
}

impl Incoming {
    pub(crate) fn channel(&self) -> &Arc<Channel> {
        match *self {}
    }

    pub(crate) fn is_partial(&self) -> bool {
        match *self {}
    }

    pub(crate) fn receive(
        &mut self,
        _: &Connection,
        _: &mut BytesMut,
        _: usize,
        _: bool,
    ) -> io::Result<Option<usize>> {
        match *self {}
    }

    pub(crate) fn receive_until(
        &mut self,
        _: &Connection,
        _: &mut BytesMut,
        _: &mut Deadline,
    ) -> io::Result<usize> {
        match *self {}
    }
}

impl Channel {
    pub(crate) fn send(
        &self,
        _: &Connection,
        _: &mut usize,
        _: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        match *self {}
    }

    pub(crate) fn send_until(&self, _: &Connection, _: &[u8], _: &mut Deadline) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn close(&self, _: &Connection) {
        match *self {}
    }
}

/// The client's side.
pub(crate) mod client {
    use std::io::{self, IoSlice};
    use std::os::fd::OwnedFd;

    use bytes::BytesMut;

    #[derive(Clone, Debug)]
    pub(crate) enum RemoteTls {}
    pub(crate) enum RemoteTlsStream {}

    impl RemoteTls {
        pub(crate) fn dial(&self, _: &str) -> io::Result<RemoteTlsStream> {
            match *self {}
        }
    }

    impl RemoteTlsStream {
        pub(crate) fn shake(&mut self, _: &OwnedFd) -> io::Result<()> {
            match *self {}
        }

        pub(crate) fn has_to_send(&self) -> bool {
            match *self {}
        }

        pub(crate) fn push(&mut self, _: &OwnedFd) -> io::Result<()> {
            match *self {}
        }

        pub(crate) fn receive(&mut self, _: &OwnedFd, _: &mut BytesMut) -> io::Result<usize> {
            match *self {}
        }

        pub(crate) fn send(&mut self, _: &OwnedFd, _: &[IoSlice<'_>]) -> io::Result<usize> {
            match *self {}
        }
    }
}
