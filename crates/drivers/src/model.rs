//! For models: no part of the interface, and hidden from its documentation. Here are the protocol
//! types of the drivers, each small enough to be model-checked.

pub use crate::checkpoint::map::ChangeMap;
#[cfg(feature = "crypt")]
pub use crate::crypt::header_data;
pub use crate::file::lane::{LaneState, PushOutcome};
pub use crate::mirror::leg_states::LegStates;
pub use crate::mirror::regions::{RegionAge, RegionEntry, Regions};
pub use crate::overlay::block_locks::BlockLocks;
