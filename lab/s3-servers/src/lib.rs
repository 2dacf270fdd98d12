//! Tests of volumes in servers that speak S3. The library itself is empty.
