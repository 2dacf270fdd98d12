//! Volumes in servers that speak S3, over connections that fail: what the tests of this crate stand on. `cargo xtask test --long --only s3` runs them.

pub mod disk;
pub mod inside;
pub mod program;
pub mod proxy;
pub mod weed;
