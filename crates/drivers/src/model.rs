//! For models: no part of the interface, and hidden from its documentation. Here are the protocol types of the drivers, each
//! small enough to be model-checked.

pub use crate::file::lane_state::{LaneState, Pushed};
pub use crate::file::ring::bell::Bell;
pub use crate::mirror::leg_states::LegStates;
pub use crate::mirror::regions::{Age, Entered, Regions};
