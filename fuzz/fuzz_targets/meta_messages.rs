//! Messages of a metadata shard. The first byte selects the kind; an accepted message encodes to as
//! many bytes again.
#![no_main]

mod feed;

use feed::{by_kind, feed};
use libfuzzer_sys::fuzz_target;
use zonal_wire::{Event, MetaReply, MetaRequest};

fuzz_target!(|data: &[u8]| by_kind(
    data,
    &[
        feed::<MetaRequest>,
        feed::<MetaReply>,
        feed::<Event>,
    ]
));
