//! `zonal top`: samples of a cell, rates between two of them, and a view of the rates in a
//! terminal.
//!
//! | module | task |
//! | --- | --- |
//! | [`sample`] | what all nodes told at one time, as a value |
//! | [`rates`] | two samples compared: rows and rates; pure |
//! | [`document`] | rates as JSON |
//! | [`screen`], [`drawing`] | keys and frames |
//! | [`sampler`] | a thread that asks the cell, so that keys never wait for a server |
//! | [`terminal`] | the terminal's state, given back at every end |
//! | [`view`] | the loop that brings them together |

pub mod document;
mod drawing;
pub mod rates;
pub mod sample;
pub mod sampler;
mod screen;
mod terminal;
pub mod view;

/// The whole part of a rate or a time.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast stops at the bounds of the type, and rates are not negative"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}
