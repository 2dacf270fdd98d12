//! Linux's NBD client, as generic netlink has it (`linux/nbd-netlink.h`).

use std::os::fd::{AsRawFd, OwnedFd};

use neli::consts::nl::NlmF;
use neli::consts::socket::NlFamily;
use neli::genl::{AttrTypeBuilder, Genlmsghdr, GenlmsghdrBuilder, Nlattr, NlattrBuilder};
use neli::nl::NlPayload;
use neli::router::synchronous::{NlRouter, NlRouterReceiverHandle};
use neli::socket::synchronous::NlSocketHandle;
use neli::types::{Buffer, GenlBuffer};
use neli::utils::Groups;
use neli::{Size, ToBytes};
use rustix::io::Errno;

const FAMILY: &str = "nbd";
const EVENTS: &str = "nbd_mc_group";
const VERSION: u8 = 1;

/// Commands of the family.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
const LINK_DEAD: u8 = 4;

/// Attributes of its messages.
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;

/// Attributes inside `SOCKETS`.
const SOCK_ITEM: u16 = 1;
const SOCK_FD: u16 = 1;

type Message = Genlmsghdr<u8, u16>;
type Attribute = Nlattr<u16, Buffer>;

/// A device that the kernel is to have.
pub(super) struct NewDevice<'a> {
    /// Number of the device; `None` lets the kernel choose.
    pub(super) index: Option<u32>,
    /// Size in bytes.
    pub(super) size: u64,
    /// Block size in bytes.
    pub(super) block_size: u64,
    /// Transmission flags of the export.
    pub(super) flags: u64,
    /// Seconds after which the kernel takes a connection without an answer for dead.
    pub(super) timeout: u64,
    /// Seconds that requests wait for a new connection.
    pub(super) dead_timeout: u64,
    /// Text by which a later call recognises the device.
    pub(super) backend: &'a str,
}

/// The reason why the kernel refuses a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KernelError {
    /// The kernel has no NBD client.
    NoClient,
    /// The kernel's error.
    Errno(Errno),
    /// The answer can't be read.
    Protocol(String),
}

/// A netlink socket of the kernel's NBD client.
pub(super) struct KernelClient {
    router: NlRouter,
    family: u16,
}

impl KernelClient {
    pub(super) fn open() -> Result<KernelClient, KernelError> {
        let (router, _) = NlRouter::connect(NlFamily::Generic, None, Groups::empty())
            .map_err(|error| no_socket(&error))?;
        let family = router.resolve_genl_family(FAMILY).map_err(|_| KernelError::NoClient)?;
        Ok(KernelClient { router, family })
    }

    /// Attaches a device over these sockets, and returns its number.
    pub(super) fn attach(
        &self,
        device: &NewDevice<'_>,
        sockets: &[OwnedFd],
    ) -> Result<u32, KernelError> {
        let mut attributes = vec![
            attribute(SIZE_BYTES, device.size),
            attribute(BLOCK_SIZE_BYTES, device.block_size),
            attribute(SERVER_FLAGS, device.flags),
            attribute(TIMEOUT, device.timeout),
            attribute(DEAD_CONN_TIMEOUT, device.dead_timeout),
            attribute(BACKEND_IDENTIFIER, device.backend),
            list_of(sockets)?,
        ];
        attributes.extend(device.index.map(|index| attribute(INDEX, index)));
        let answers = self.ask(CONNECT, attributes)?;
        let index = answers.iter().find_map(|message| {
            message.attrs().get_attr_handle().get_attr_payload_as::<u32>(INDEX).ok()
        });
        index.ok_or_else(|| KernelError::Protocol("the answer names no device".to_string()))
    }

    /// Gives a device one more socket in place of a dead one, and another size if there is one.
    pub(super) fn replace(
        &self,
        index: u32,
        socket: &OwnedFd,
        size: Option<u64>,
        backend: &str,
    ) -> Result<(), KernelError> {
        let mut attributes = vec![
            attribute(INDEX, index),
            attribute(BACKEND_IDENTIFIER, backend),
            list_of(std::slice::from_ref(socket))?,
        ];
        attributes.extend(size.map(|size| attribute(SIZE_BYTES, size)));
        self.ask(RECONFIGURE, attributes).map(drop)
    }

    /// Detaches a device.
    pub(super) fn detach(&self, index: u32) -> Result<(), KernelError> {
        self.ask(DISCONNECT, vec![attribute(INDEX, index)]).map(drop)
    }

    /// Subscribes to the events of connections that die.
    pub(super) fn dead_links(&self) -> Result<DeadLinks, KernelError> {
        let group = self.router.resolve_nl_mcast_group(FAMILY, EVENTS);
        let group = group.map_err(|error| KernelError::Protocol(error.to_string()))?;
        Ok(DeadLinks { group, socket: subscribe(group)? })
    }

    fn ask(&self, command: u8, attributes: Vec<Attribute>) -> Result<Vec<Message>, KernelError> {
        let protocol = |error: &dyn std::fmt::Display| KernelError::Protocol(error.to_string());
        let message = GenlmsghdrBuilder::default()
            .cmd(command)
            .version(VERSION)
            .attrs(attributes.into_iter().collect::<GenlBuffer<_, _>>())
            .build()
            .map_err(|error| protocol(&error))?;
        let answers: NlRouterReceiverHandle<u16, Message> = self
            .router
            .send(self.family, NlmF::ACK, NlPayload::Payload(message))
            .map_err(|error| protocol(&error))?;
        let mut messages = Vec::new();
        for answer in answers {
            match answer {
                Ok(answer) => messages.extend(answer.get_payload().cloned()),
                Err(neli::err::RouterError::Nlmsgerr(refusal)) => {
                    return Err(KernelError::Errno(Errno::from_raw_os_error(-*refusal.error())));
                }
                Err(error) => return Err(protocol(&error)),
            }
        }
        Ok(messages)
    }
}

fn no_socket(error: &dyn std::fmt::Display) -> KernelError {
    KernelError::Protocol(format!("no netlink socket: {error}"))
}

fn subscribe(group: u32) -> Result<NlSocketHandle, KernelError> {
    let socket = NlSocketHandle::connect(NlFamily::Generic, None, Groups::empty())
        .map_err(|error| no_socket(&error))?;
    let group = Groups::new_groups(&[group]);
    socket.add_mcast_membership(group).map_err(|error| no_socket(&error))?;
    Ok(socket)
}

/// The events of connections that die.
pub(super) struct DeadLinks {
    group: u32,
    socket: NlSocketHandle,
}

impl DeadLinks {
    /// Waits for the next one, and returns its device. After an error, events may be lost: the
    /// kernel drops those that find no room in the socket.
    pub(super) fn next(&mut self) -> Result<u32, KernelError> {
        let failed = |error: &dyn std::fmt::Display| KernelError::Protocol(error.to_string());
        loop {
            let (events, _) = self.socket.recv::<u16, Message>().map_err(|error| failed(&error))?;
            // The kernel sends each event by itself.
            for event in events {
                let event = event.map_err(|error| failed(&error))?;
                let Some(message) = event.get_payload() else { continue };
                let index = message.attrs().get_attr_handle().get_attr_payload_as::<u32>(INDEX);
                if let (LINK_DEAD, Ok(index)) = (*message.cmd(), index) {
                    return Ok(index);
                }
            }
        }
    }

    /// Subscribes again after an error.
    pub(super) fn reopen(&mut self) -> Result<(), KernelError> {
        self.socket = subscribe(self.group)?;
        Ok(())
    }
}

fn attribute<P: Size + ToBytes>(kind: u16, value: P) -> Attribute {
    let kind = AttrTypeBuilder::default().nla_type(kind).build();
    let kind = kind.expect("its type is given");
    let built = NlattrBuilder::default().nla_type(kind).nla_payload(value).build();
    built.expect("type and payload are given, and the payload is bytes")
}

/// The nested list of sockets.
fn list_of(sockets: &[OwnedFd]) -> Result<Attribute, KernelError> {
    let too_long = |error: neli::err::SerError| KernelError::Protocol(error.to_string());
    let mut list = attribute(SOCKETS, Vec::<u8>::new());
    for socket in sockets {
        let descriptor = attribute(SOCK_FD, socket.as_raw_fd() as u32);
        let item = attribute(SOCK_ITEM, Vec::<u8>::new()).nest(&descriptor).map_err(too_long)?;
        list = list.nest(&item).map_err(too_long)?;
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A type of 16 bits follows a length of 16 bits; nested attributes have bit 15 of the type.
    #[test]
    fn attributes_have_the_kernels_layout() {
        let bytes = |attribute: &Attribute| {
            let mut out = Cursor::new(Vec::new());
            attribute.to_bytes(&mut out).unwrap();
            out.into_inner()
        };
        let mut expected = vec![12, 0, 2, 0];
        expected.extend((1_u64 << 30).to_ne_bytes());
        assert_eq!(bytes(&attribute(SIZE_BYTES, 1_u64 << 30)), expected);
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = [OwnedFd::from(socket)];
        let mut expected = vec![16, 0, 7, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0];
        expected.extend((socket[0].as_raw_fd() as u32).to_ne_bytes());
        assert_eq!(bytes(&list_of(&socket).unwrap()), expected);
        // A text ends with a zero, and its padding isn't part of its length.
        assert_eq!(&bytes(&attribute(BACKEND_IDENTIFIER, "ab"))[..7], [7, 0, 10, 0, b'a', b'b', 0]);
    }
}
