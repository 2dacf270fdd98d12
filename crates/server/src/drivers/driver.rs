//! The drivers of the device manager that bring volumes up.

use std::sync::Arc;

use corewise::device::{self, Bound, ProbeContext, ProbeError};

use super::context::House;
use super::volume::Volume;
use crate::manifest::{self};

/// Brings up the devices whose `driver` in the manifest has this name.
pub(crate) struct VolumeDriver {
    name: &'static str,
    house: House,
}

impl VolumeDriver {
    /// One for each driver that a manifest may name.
    pub(crate) fn all(house: &House) -> impl Iterator<Item = VolumeDriver> {
        let house = house.clone();
        manifest::driver_names().map(move |name| VolumeDriver { name, house: house.clone() })
    }
}

impl device::Driver for VolumeDriver {
    fn name(&self) -> &str {
        self.name
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let device = cx.config::<manifest::Device>()?;
        let parts = device.driver.over().iter().map(|name| cx.supplier::<Volume>(name));
        let volume =
            Volume::new(self.house.clone(), device.clone(), parts.collect::<Result<_, _>>()?);
        match volume.make() {
            Ok(made) => volume.came(made),
            Err(error) if self.house.missing.may(&device.name) => {
                self.house.missing.add(&device.name, error.to_string());
                *volume.why.lock() = error.to_string();
            }
            Err(error) => return Err(error),
        }
        Ok(Arc::new(volume))
    }
}
