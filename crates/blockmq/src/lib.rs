//! Multi-queue block dispatch whose common path takes no sleeping lock.
