//! The consistency check of a cell, without its I/O.
//!
//! Each store is checked by itself in the crate of its format (`zonal_meta::check`,
//! `zonal_object::check`). This crate compares stores with one another and explains findings to
//! people:
//!
//! | compared | module |
//! | --- | --- |
//! | inodes with objects, and the copies of a file with one another | [`objects`] |
//! | the root and the zone map with first-level directories | [`junctions`] |
//! | directories of a shard with the tree that they form | [`directory_tree`] |
//!
//! [`survival`] judges which files are lost or endangered, from layouts and the zone map alone.
//!
//! The input is streams of facts of fixed size, which the caller sorts. Memory is bounded by
//! [`directory_tree::DIRECTORIES_MAX`] and by the number of objects of one file.
#![forbid(unsafe_code)]

pub mod data_fact;
pub mod directory_tree;
pub mod finding;
mod finding_codec;
pub mod junctions;
pub mod objects;
pub mod ranges;
pub mod survival;

pub use finding::{Class, ColumnCopy, CopyChoice, Finding, FindingKind, FindingPlace, StoreFault};
