//! Every kind of message with its samples and its decoder, and the bytes of `testdata/*.hex`.

use super::{
    admin_replies, admin_requests, agent_replies, agent_requests, events, manager_replies,
    manager_requests, meta_replies, meta_requests, replica_replies, replica_requests,
    storage_replies, storage_requests,
};
use zonal_testkit::from_hex;
use zonal_types::Codec;
use zonal_wire::{
    AdminReply, AdminRequest, AgentReply, AgentRequest, Event, ManagerReply, ManagerRequest,
    MetaReply, MetaRequest, ReplicaReply, ReplicaRequest, StorageReply, StorageRequest,
};

/// Decodes, and where that succeeds encodes again and returns the result. Must not panic on any
/// input.
pub type Roundtrip = fn(&[u8]) -> Option<Vec<u8>>;

fn roundtrip<T: Codec>(bytes: &[u8]) -> Option<Vec<u8>> {
    T::from_bytes(bytes).ok().map(|value| value.to_bytes())
}

/// One kind of message: name, samples (variant, tag, bytes), decoder, and whether a tag is known.
pub struct Kind {
    pub name: &'static str,
    pub samples: Vec<(&'static str, u8, Vec<u8>)>,
    pub roundtrip: Roundtrip,
    pub knows: fn(u8) -> bool,
}

fn knows<T: Codec>(tag: u8) -> bool {
    T::from_bytes(&[tag]).err() != Some(zonal_types::CodecError::BadValue)
}

macro_rules! kind {
    ($type:ty, $samples:expr) => {
        Kind {
            name: stringify!($type),
            samples: ($samples.iter())
                .map(|message| (message.name(), message.tag(), message.to_bytes()))
                .collect(),
            roundtrip: roundtrip::<$type>,
            knows: knows::<$type>,
        }
    };
}

/// Every kind of message.
pub fn kinds() -> Vec<Kind> {
    vec![
        kind!(MetaRequest, meta_requests()),
        kind!(MetaReply, meta_replies()),
        kind!(Event, events()),
        kind!(StorageRequest, storage_requests()),
        kind!(StorageReply, storage_replies()),
        kind!(ManagerRequest, manager_requests()),
        kind!(ManagerReply, manager_replies()),
        kind!(AdminRequest, admin_requests()),
        kind!(AdminReply, admin_replies()),
        kind!(AgentRequest, agent_requests()),
        kind!(AgentReply, agent_replies()),
        kind!(ReplicaRequest, replica_requests()),
        kind!(ReplicaReply, replica_replies()),
    ]
}

/// The lines `NAME HEX` of a file of the corpus.
pub fn corpus(file: &str) -> Vec<(String, Vec<u8>)> {
    let path = corpus_path(file);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    text.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (name, hex) = line.split_once(' ').unwrap();
            (name.to_owned(), from_hex(hex))
        })
        .collect()
}

pub fn corpus_path(file: &str) -> std::path::PathBuf {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    folder.join(file)
}
