//! Proved identities of connections, in the form that shards use: made once for each certificate.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use zonal_net::{Peer, PeerCertificate, Serial};
use zonal_types::Holder;
use zonal_types::limits::SUBJECTS_KNOWN_MAX;

type KnownHolders = BTreeMap<Serial, (Arc<PeerCertificate>, Arc<Holder>)>;

/// Holders by serial number of their certificate; all are dropped when there are
/// [`SUBJECTS_KNOWN_MAX`].
#[derive(Default)]
pub(crate) struct Subjects {
    known: Mutex<KnownHolders>,
}

impl Subjects {
    /// The holder of a connection; `None`: the peer had to prove nothing.
    pub(crate) fn holder(&self, peer: &Peer) -> Option<Arc<Holder>> {
        let certified = peer.certified.as_ref()?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, holder)) = known.get(&certified.serial)
            && (Arc::ptr_eq(of, certified) || of == certified)
        {
            return Some(Arc::clone(holder));
        }
        if known.len() >= SUBJECTS_KNOWN_MAX {
            known.clear();
        }
        let holder = Arc::new(Holder {
            subject: certified.subject.to_string(),
            scope: certified.subject.scope().cloned(),
        });
        known.insert(
            certified.serial,
            (Arc::clone(certified), Arc::clone(&holder)),
        );
        Some(holder)
    }
}
