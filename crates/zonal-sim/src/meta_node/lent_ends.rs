//! A planted bug: lent ends outlive their sessions. A client that comes back gets its old session,
//! and appends at whatever end it claims that it was lent.

use super::MetaNode;
use std::rc::Rc;
use zonal_wire::{Header, MetaReply, MetaRequest};

impl MetaNode {
    pub(super) async fn run_lent(
        self: Rc<Self>,
        header: Header,
        request: MetaRequest,
    ) -> MetaReply {
        match request {
            MetaRequest::AppendAt { ino, offset, .. } => {
                let asked = MetaRequest::GetAttr { ino, data: true };
                match self.clone().run(header, asked).await {
                    MetaReply::Attr {
                        data: Some(data), ..
                    } => {
                        self.lent.borrow_mut().insert((ino, offset));
                        MetaReply::Appending { offset, data }
                    }
                    other => other,
                }
            }
            MetaRequest::AppendEnd {
                ino,
                offset,
                length: length @ 1..,
                mtime,
                allocated_delta,
                kill_suid,
                inline,
                ..
            } if self.lent.borrow().contains(&(ino, offset)) => {
                let report = MetaRequest::ReportWrite {
                    ino,
                    size: offset + u64::from(length),
                    truncate_seq: u64::MAX,
                    mtime: Some(mtime),
                    allocated_delta,
                    kill_suid,
                    inline,
                    sync: false,
                };
                self.run(header, report).await
            }
            request => match self.run(header, request).await {
                MetaReply::Session {
                    session,
                    boot,
                    epoch,
                    term_ms,
                    now,
                    ..
                } => MetaReply::Session {
                    session,
                    boot,
                    epoch,
                    term_ms,
                    now,
                    resumed: true,
                },
                reply => reply,
            },
        }
    }
}
