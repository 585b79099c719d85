//! Read sink: carries the data of a read to the caller in the memory into which the target put
//! them.

use zonal_region::Memory;

/// The data of a read.
#[derive(Debug, Default)]
pub struct ReadSink(pub(crate) Option<Memory>);

impl ReadSink {
    /// Takes the memory, once.
    pub fn take(&mut self) -> Option<Memory> {
        self.0.take()
    }
}
