//! Start and end of a mount.

use crate::background::MountThreads;
use crate::fs::ZonalFs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zonal_client::{Client, ClientOptions};
use zonal_fuse::{FuseSession, MountError, MountOptions, SessionConfig};
use zonal_native::RealNet;
use zonal_native::block_on;
use zonal_net::{Identity, Pool, PoolConfig};
use zonal_region::Regions;
use zonal_types::ErrorCode;
use zonal_types::limits::{REGION_BUFFER_BYTES, REGION_BUFFERS};

/// How long open files may delay a clean end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Configuration of a mount.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// The client core's options.
    pub client: ClientOptions,
    /// The identity of this process towards servers, with the cell's key.
    pub identity: Identity,
    /// Connections.
    pub pool: PoolConfig,
    /// mount(8) options.
    pub mount: MountOptions,
    /// The FUSE session.
    pub session: SessionConfig,
}

/// Why a mount did not start.
#[derive(Debug, thiserror::Error)]
pub enum MountStartError {
    /// No manager answers, or one refuses.
    #[error("fetching the zone map: {0}")]
    Connect(#[source] ErrorCode),
    /// The kernel refused the mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The cell does not have this zone.
    #[error("the cell has no zone {0}")]
    NoZone(zonal_types::ZoneId),
    /// The system cannot start a thread.
    #[error("starting threads")]
    Threads(#[source] std::io::Error),
}

/// A running mount.
pub struct Mounted {
    session: FuseSession,
    background: MountThreads,
    fs: Arc<ZonalFs>,
}

impl Mounted {
    /// Mounts a cell on `path`. The mount serves requests when this returns.
    ///
    /// # Errors
    /// See [`MountStartError`].
    pub fn start(path: &Path, config: MountConfig) -> Result<Self, MountStartError> {
        let pool = PoolConfig {
            regions: Some(Regions::new(REGION_BUFFER_BYTES, REGION_BUFFERS)),
            ..config.pool
        };
        let pool = Pool::new(config.identity.in_zone(config.client.zone), pool);
        let net = RealNet::new(Arc::new(pool));
        let client =
            block_on(Client::connect(net, config.client)).map_err(MountStartError::Connect)?;
        let zone = client.options().zone;
        if client.map().zone(zone).is_none() {
            return Err(MountStartError::NoZone(zone));
        }
        let fs = Arc::new(ZonalFs::new(
            client,
            config.session.workers,
            config.mount.flags,
        ));
        // A weak reference: the core must not own the file system that owns it.
        let weak = Arc::downgrade(&fs);
        fs.client
            .when_to_drop(move || weak.upgrade().is_some_and(|fs| fs.drop_all_cached()));
        let session = FuseSession::mount(fs.clone(), path, &config.mount, &config.session)?;
        let background = MountThreads::start(&fs).map_err(MountStartError::Threads)?;
        Ok(Self {
            session,
            background,
            fs,
        })
    }

    /// The file system, for gauges.
    #[must_use]
    pub fn fs(&self) -> &Arc<ZonalFs> {
        &self.fs
    }

    /// True where the mount was unmounted.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.session.is_ended()
    }

    /// Waits for an unmount, then flushes and ends.
    pub fn wait(self) {
        self.session.wait();
        self.background.end();
    }

    /// Unmounts, flushes and ends.
    ///
    /// # Errors
    /// The kernel refused to unmount.
    pub fn unmount(self) -> Result<(), MountStartError> {
        let outcome = self.session.unmount(PATIENCE);
        self.background.end();
        outcome.map_err(MountStartError::Mount)
    }
}
