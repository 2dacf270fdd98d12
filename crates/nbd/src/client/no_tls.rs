//! What stands in for TLS where the feature `tls` is off: values that there are none of, which the compiler knows.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use bytes::BytesMut;

#[derive(Clone, Debug)]
pub(crate) enum RemoteTls {}
pub(crate) enum Dialled {}

impl RemoteTls {
    pub(crate) fn dial(&self, _: &str) -> io::Result<Dialled> {
        match *self {}
    }
}

impl Dialled {
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
