//! Layouts: how the bytes of a file map to objects of a stripe set.
