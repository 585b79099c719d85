//! Formats and identifies stores, the same for all roles.

use crate::config::StoreConfig;
use crate::error::ServerError;
use std::path::Path;
use zonal_disk::engine::EngineConfig;
use zonal_disk::store::load_identity;
use zonal_disk::{DiskError, Engine, StoreIdentity};

/// The engine's bounds from a config.
pub(crate) fn engine_config(config: &StoreConfig) -> EngineConfig {
    EngineConfig {
        log_bytes: config.log,
        overlay_bytes: usize::try_from(config.overlay).unwrap_or(usize::MAX),
        cache_bytes: usize::try_from(config.cache).unwrap_or(usize::MAX),
        ..EngineConfig::default()
    }
}

/// Formats a store where there is none; the same store stays as it is.
pub(crate) fn format(
    dir: &Path,
    identity: StoreIdentity,
    config: &StoreConfig,
) -> Result<(), ServerError> {
    let failed = |source| ServerError::Store {
        dir: dir.to_owned(),
        source,
    };
    match load_identity(dir).map_err(failed)? {
        Some(stored) => stored.check(&identity).map_err(failed),
        None => {
            Engine::format(dir, identity, &engine_config(config)).map_err(failed)?;
            tracing::info!(dir = %dir.display(), kind = %identity.kind, "formatted");
            Ok(())
        }
    }
}

/// The random identity of the store in `dir`.
pub(crate) fn uuid(dir: &Path, expected: &StoreIdentity) -> Result<[u8; 16], ServerError> {
    let failed = |source| ServerError::Store {
        dir: dir.to_owned(),
        source,
    };
    let stored = load_identity(dir).map_err(failed)?;
    let stored = stored.ok_or_else(|| failed(DiskError::NotFormatted(dir.to_owned())))?;
    stored.check(expected).map_err(failed)?;
    Ok(stored.uuid)
}
