//! Random bytes of the system's.

/// Bytes that nobody has seen before.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let found = rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty());
    // Up to 256 bytes come at once, and never fail where the volume could be opened, which takes a random number too.
    assert_eq!(found, Ok(N), "the system gives no random bytes any more");
    bytes
}
