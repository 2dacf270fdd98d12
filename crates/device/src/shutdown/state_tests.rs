//! Steps shutdowns by hand.
