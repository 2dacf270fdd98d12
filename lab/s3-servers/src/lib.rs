//! Nothing but its tests: volumes in servers that speak S3.
