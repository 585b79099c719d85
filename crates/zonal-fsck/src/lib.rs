//! The consistency check of a cell, apart from its I/O.
//!
//! A store is checked by itself where its format is (`zonal_meta::check`, `zonal_object::check`).
//! Here is what lies between stores: inodes against objects ([`objects`]), the root and the zone
//! map against first-level directories ([`junctions`]), directories against the tree that they form
//! ([`directory_tree`]); and what a [`Finding`] means to people. Everything comes as streams of facts of
//! fixed size that somebody else sorts; memory is bounded by [`directory_tree::DIRECTORIES_MAX`] and by what
//! one file has of objects.
#![forbid(unsafe_code)]

pub mod data_fact;
pub mod directory_tree;
pub mod finding;
mod finding_codec;
pub mod junctions;
pub mod objects;
pub mod ranges;

pub use finding::{Class, Finding, FindingKind, FindingPlace, StoreFault};
