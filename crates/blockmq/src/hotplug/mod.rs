//! CPUs that leave and come: a hardware queue without a CPU gives its requests to another one. `README.md` beside
//! this file has the protocol.

pub(crate) mod policy;
