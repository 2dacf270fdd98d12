//! `corewise detach`.

use std::path::Path;

use corewise::ublk;
use corewise_server::block_use::is_in_use;
use corewise_server::remove_links;

use super::devices::Device;
use super::netlink::KernelClient;
use super::{list, refused, say};
use crate::args::{self, DetachedDevice};
use crate::exit::Failure;

pub(crate) fn detach(args: &args::Detach) -> Result<(), Failure> {
    let asked = &args.device;
    let missing = || {
        let message =
            format!("'{asked}': neither an NBD device nor a ublk disk here has this name");
        Failure::new(message).help(list::present())
    };
    let device = DetachedDevice::named(asked).ok_or_else(missing)?;
    let (name, hint) = match device {
        DetachedDevice::Nbd(index) => (format!("nbd{index}"), "--force detaches it all the same"),
        DetachedDevice::Ublk(number) => (
            format!("ublkb{number}"),
            "or start its server again; --force ends the disk all the same",
        ),
    };
    let path = format!("/dev/{name}");
    let is_here = match device {
        DetachedDevice::Nbd(index) => Device::of(index).is_some(),
        DetachedDevice::Ublk(_) => Path::new(&path).exists(),
    };
    if !is_here {
        return Err(missing());
    }
    if is_in_use(&name) && !args.force {
        return Err(Failure::new(format!("{path} is in use"))
            .help(format!("unmount what is on it first, {hint}, with I/O errors")));
    }
    match device {
        DetachedDevice::Nbd(index) => {
            let kernel = KernelClient::open().map_err(|error| refused("detach", &error))?;
            kernel.detach(index).map_err(|error| refused("detach", &error))?;
        }
        DetachedDevice::Ublk(number) => {
            ublk::discard_left(number).map_err(|error| Failure::new(error.to_string()))?;
            remove_links(number);
        }
    }
    say(format_args!("detached {path}"));
    Ok(())
}
