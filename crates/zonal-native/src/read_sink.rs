//! The data of a read on their way to whoever asked: in the memory that the target put them into.

use zonal_region::Memory;

/// Where the data of a read are.
#[derive(Debug, Default)]
pub struct ReadSink(pub(crate) Option<Memory>);

impl ReadSink {
    /// What it was filled with, once.
    pub fn take(&mut self) -> Option<Memory> {
        self.0.take()
    }
}
