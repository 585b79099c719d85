//! A cell on one thread, from one seed.
