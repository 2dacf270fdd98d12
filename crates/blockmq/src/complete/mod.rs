//! Completion: from the driver's "done" to the request's end, perhaps on another CPU.
//!
//! `README.md` beside this file has the steps.

mod finish;
