//! What the limits of the process leave to clients: descriptors, and the address space.

use std::fmt;

use corewise::nbd::Options;

use crate::manifest::Device;
use crate::{address_space, descriptors};

/// What the process may have.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    files: descriptors::Descriptors,
    space: address_space::AddressSpace,
    /// The server has TLS.
    tls: bool,
    /// Bytes that are reserved for clients.
    reserved: Option<u64>,
}

/// Fewer clients than were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Files(descriptors::Cut),
    Space(address_space::Cut),
}

impl Cut {
    /// What volumes that come take from clients, and what to raise.
    pub(crate) fn taken(&self) -> (&'static str, &'static str) {
        match self {
            Cut::Files(_) => ("descriptors", "LimitNOFILE (systemd) or `ulimit -Hn`"),
            Cut::Space(_) => ("address space", "LimitAS (systemd) or `ulimit -v`"),
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cut::Files(cut) => cut.fmt(f),
            Cut::Space(cut) => cut.fmt(f),
        }
    }
}

impl Room {
    /// That of this process, of which what it has now was there before.
    pub fn now() -> Room {
        let (files, space) = (descriptors::Descriptors::now(), address_space::AddressSpace::now());
        Room { files, space, tls: false, reserved: None }
    }

    /// For a server with TLS.
    pub(crate) fn with_tls(self, tls: bool) -> Room {
        Room { tls, ..self }
    }

    /// What clients may have beside these devices, of what `options` allows them; or why they can't
    /// have a place.
    pub(crate) fn share<'d>(
        &self,
        options: Options,
        devices: impl Iterator<Item = &'d Device> + Clone,
    ) -> Result<(Options, Option<Cut>), String> {
        let Room { files, space, tls, reserved } = self;
        let (options, cut) =
            files.share(options, devices.clone()).map_err(|why| why.to_string())?;
        let (options, less) =
            space.share(options, *tls, *reserved, devices).map_err(|why| why.to_string())?;
        Ok((options, less.map(Cut::Space).or(cut.map(Cut::Files))))
    }

    /// Reserves the memory that clients may take, where the address space is limited. On the main
    /// thread.
    ///
    /// # Errors
    /// The limit doesn't leave so much.
    pub(crate) fn reserve<'d>(
        &mut self,
        options: &Options,
        devices: impl Iterator<Item = &'d Device>,
    ) -> Result<(), String> {
        self.reserved = self.space.reserve(options, self.tls, devices)?;
        Ok(())
    }

    /// Why these devices can't be had beside so many clients, where they can't.
    pub(crate) fn refusal<'d>(
        &self,
        options: Options,
        devices: impl Iterator<Item = &'d Device> + Clone,
        clients: u64,
    ) -> String {
        match self.space.share(options, self.tls, self.reserved, devices.clone()) {
            Err(why) => format!("{why} and start again"),
            Ok((_, Some(cut))) => format!("{cut}; {clients} clients are there"),
            Ok((_, None)) => self.files.refusal(devices, clients),
        }
    }
}
