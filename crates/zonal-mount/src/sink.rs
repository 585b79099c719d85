//! The data of a read on their way to the kernel: in the memory that the target put them into.

use zonal_fuse::ReplyData;
use zonal_region::Memory;

/// Where the data of a read are.
#[derive(Debug, Default)]
pub struct Sink(pub(crate) Option<Memory>);

impl Sink {
    /// Answers with what it was filled with, and lets go of it.
    pub(crate) fn answer(&mut self, reply: ReplyData) {
        if let Some(memory) = self.0.take() {
            reply.data(&memory);
        }
    }
}
