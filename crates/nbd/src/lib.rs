//! The NBD protocol: wire module, handshake, session, exports over a block device.
