//! The state that a queue has for each CPU: its place in the map, its software queue, and the boxes
//! of its requests.

pub(crate) mod cache;
pub(crate) mod map;
