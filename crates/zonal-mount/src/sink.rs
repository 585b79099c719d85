//! The pipe of a worker, by which the data of a read go to the kernel without a copy here.

use zonal_fuse::{ReplyData, ReplyPipe};

/// Where the data of a read go on their way to the kernel: a pipe of the worker.
#[derive(Default)]
pub struct Sink {
    pub(crate) pipe: Option<ReplyPipe>,
    pub(crate) unique: u64,
    /// This process may not have such pipes.
    is_refused: bool,
}

impl Sink {
    /// Ready for the data of request `unique`; `None` where there are no pipes.
    pub fn prepare(&mut self, unique: u64) -> Option<&mut Self> {
        if self.pipe.is_none() && !self.is_refused {
            self.pipe = ReplyPipe::new()
                .inspect_err(|error| tracing::debug!(%error, "reads are copied"))
                .ok();
            self.is_refused = self.pipe.is_none();
        }
        self.unique = unique;
        (!self.is_refused).then_some(self)
    }

    /// Answers with what it was filled with.
    pub fn answer(&mut self, reply: ReplyData) {
        if let Some(pipe) = self.pipe.take()
            && reply.piped(&pipe)
        {
            self.pipe = Some(pipe);
        }
    }
}
