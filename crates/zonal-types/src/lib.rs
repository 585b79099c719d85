//! Identifiers, attributes, limits, errors and the byte codec that every crate shares.
#![forbid(unsafe_code)]

pub mod attr;
pub mod boot;
pub mod codec;
pub mod coverage_marks;
pub mod describe;
pub mod error;
pub mod ids;
pub mod layout;
pub mod limits;
pub mod name;
pub mod scope;
pub mod store;
pub mod time;
pub mod truncation;

pub use attr::{Attr, Credentials, FileKind};
pub use boot::{boot_of, kept_of};
pub use codec::{Blob, Codec, CodecError, Reader};
pub use error::ErrorCode;
pub use ids::{
    CellId, ClientId, ClientIdentity, Column, DataId, Epoch, Incarnation, Ino, LayoutGen,
    MapVersion, NodeId, PartitionId, SessionId, ShardId, StripeSetId, TargetId, TraceId, ZoneId,
};
pub use layout::{
    Component, ComponentKind, FileData, Layout, Placement, Redundancy, Relocation, RelocationState,
    StripePolicy,
};
pub use name::{EscapedName, Name, OneLine, is_printable, is_title, unescaped};
pub use scope::{Fence, Holder, HolderNumber, Scope, ScopeError};
pub use store::{KvChange, KvRead};
pub use time::{Instant, Timestamp};
